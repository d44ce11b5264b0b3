"""Parameters as users of mixed models know them: standard deviations and correlations instead of entries of Cholesky factors."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ...numerics.compiling import compiled
from ...numerics.precision import default_dtype, precision, settle
from .factor import RANGED
from .model import fixed_effects

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, PyTree

    from .factor import Factor
    from .formula import Design
    from .model import Mixed

#: share of a moderate standard deviation below which there is none: lme4's tolerance
EDGE = 1e-4


def names(model: Mixed, design: Design) -> list[str]:
    """Of `values`: fixed effects by their columns; the response's own parameters; `sd_herd` of an intercept alone, else
    `sd_g[x]`; `cor_g[Intercept,x]`; `cor_g` and `range_g` of structures with one such number."""
    own, spread, shape = [], [], []
    for name in _own(model):
        levels = design.levels
        own += [f"{a}|{b}" for a, b in zip(levels[:-1], levels[1:], strict=True)] if name == "thresholds" else [name]
    for factor, term in zip(model.factors, design.terms, strict=True):
        columns = term.columns
        one = factor.structure == "ar1" or factor.structure in RANGED
        spread += [f"sd_{factor.name}"] if one or columns == ["Intercept"] else [f"sd_{factor.name}[{name}]" for name in columns]
        if factor.structure == "us":
            shape += [f"cor_{factor.name}[{columns[j]},{columns[i]}]" for i in range(factor.k) for j in range(i)]
        elif factor.structure != "diag":
            shape.append(("range_" if factor.structure in RANGED else "cor_") + factor.name)
    return [*design.names, *own, *spread, *shape]


def _own(model: Mixed) -> list[str]:
    return [*model.response.dispersion, *model.response.predictors]


def values(model: Mixed, params: PyTree) -> Float[Array, " q"]:
    """All parameters on their natural scale."""
    own = [jnp.ravel(params["dispersion"][name]) for name in _own(model)]
    spread, shape = [], []
    for factor in model.factors:
        if factor.structure in ("us", "diag"):
            root = factor.root(params)
            sd = jnp.sqrt(jnp.sum(root**2, axis=1))
            spread.append(sd)
            if factor.structure == "us":
                shape.append(((root / sd[:, None]) @ (root / sd[:, None]).T)[np.tril_indices(factor.k, -1)])
        else:
            spread.append(params["sd"][factor.name])
            shape.append(params["range" if factor.structure in RANGED else "cor"][factor.name])
    return jnp.concatenate([fixed_effects(params), *own, *spread, *shape])


def given(model: Mixed, design: Design, params: dict[str, Any], start: Mapping[str, float]) -> dict[str, Any]:
    """Parameters of which some have values of the user's, by their natural names.

    Raises:
        TypeError, ValueError: a name that there is not, a value that is no finite number, a standard deviation that is not
            positive, correlations that cannot be.
    """
    known = names(model, design)
    if not isinstance(start, Mapping):
        raise TypeError(f'start must be a dict of values by name, such as {{"{known[0]}": 0.5}}, got {start!r}')
    unknown = [name for name in start if name not in known]
    if unknown:
        raise ValueError(f'start has "{unknown[0]}", and the parameters are {", ".join(known)}')
    for name, value in start.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not np.isfinite(float(value)):
            raise ValueError(f'start has {value!r} for "{name}"; it must be a finite number')
    with precision(default_dtype(None)):
        now = np.asarray(values(model, settle(jax.tree.map(np.asarray, params), default_dtype(None))), float)
    asked = dict(zip(known, now.tolist(), strict=True)) | dict(start)
    flat = iter(asked.values())
    fixed = np.array([next(flat) for _ in design.names])
    out: dict[str, Any] = ({"beta": fixed} if fixed.size else {}) | {"dispersion": {}}
    for name in _own(model):
        size = np.shape(params["dispersion"][name])
        out["dispersion"][name] = np.array([next(flat) for _ in range(size[0])]) if size else np.asarray(next(flat))
    spread = {}
    for factor in model.factors:
        count = factor.k if factor.structure in ("us", "diag", "cs") else 1
        spread[factor.name] = np.array([next(flat) for _ in range(count)])
        if not (spread[factor.name] > 0).all():
            least = spread[factor.name].min()
            raise ValueError(f"start has a standard deviation of {least:g} for {factor.name}; it must be positive")
    for factor in model.factors:
        sd = spread[factor.name]
        if factor.structure == "diag":
            out.setdefault("root", {})[factor.name] = sd
        elif factor.structure == "us":
            low = np.tril_indices(factor.k, -1)
            matrix = np.eye(factor.k)
            matrix[low] = [next(flat) for _ in low[0]]  # of which LAPACK reads the lower triangle
            try:
                lower = sd[:, None] * np.linalg.cholesky(matrix)
            except np.linalg.LinAlgError:
                raise ValueError(f"start has correlations for {factor.name} that no variables have together") from None
            out.setdefault("root", {})[factor.name] = lower[np.tril_indices(factor.k)]
        else:
            out.setdefault("sd", {})[factor.name] = sd
            shape = "range" if factor.structure in RANGED else "cor"
            out.setdefault(shape, {})[factor.name] = np.array([next(flat)])
    return out


def moved(model: Mixed, params: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """Natural values (q,), and their derivatives in the flat parameters (q, p)."""
    dtype = default_dtype(None)
    with precision(dtype):
        given = settle((model, jax.tree.map(np.asarray, params)), dtype)
        return tuple(np.asarray(part, float) for part in _moved(*given))  # type: ignore[return-value]


def root(factor: Factor, params: PyTree) -> Float[np.ndarray, "k k"]:
    """$\\Lambda$ of a factor, on the host."""
    dtype = default_dtype(None)
    with precision(dtype):
        return np.asarray(_root(*settle((factor, jax.tree.map(np.asarray, params)), dtype)), float)


def singular(covariance: Float[np.ndarray, "*n k k"], size: Float[np.ndarray, "*n k"]) -> Bool[np.ndarray, "*n"]:
    """Whether covariances are at the edge: in some direction effects vary by a ten-thousandth of moderate spreads."""
    scaled = covariance / (size[..., :, None] * size[..., None, :])
    return np.linalg.eigvalsh(np.where(np.isfinite(scaled), scaled, 0.0))[..., 0] < EDGE**2


@compiled
def _root(factor: Any, params: Any) -> Any:
    return factor.root(params)


@compiled
def _moved(model: Any, params: Any) -> Any:
    flat, back = ravel_pytree(params)
    of_flat = functools.partial(_of_flat, model, back)
    return of_flat(flat), jax.jacfwd(of_flat)(flat)


def _of_flat(model: Any, back: Any, flat: Any) -> Any:
    return values(model, back(flat))
