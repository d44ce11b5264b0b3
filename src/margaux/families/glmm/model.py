r"""Generalised linear mixed models: $\eta = X\beta + \sum_t Z_t\Lambda_tu_t$ with $u\sim N(0, I)$, and $p(y\mid\eta)$ by row."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ...numerics.structures import AbstractEliminated, Arrow
from ...problem.model import (
    AbstractDifferentiated,
    AbstractModel,
    AbstractPointwise,
    AbstractStructured,
    Params,
    Unit,
    differentiated,
)
from ...problem.space import AbstractSpace, Box, Positive, Real
from .base import AbstractResponse
from .derivatives import by_rows
from .priors import Prior
from .spaces import Ordered, Scaled

#: how near a correlation may come to one in size
EDGE = 1e-9
#: times the largest distance, and a share of the smallest, where a range changes nothing any more
BEYOND = 1e3


class Factor(eqx.Module):
    """Random effects of the groups of one grouping factor.

    Attributes:
        name: that its parameters go by. k: effects a group. groups: how many a unit has, at most. structure: of the covariance.
        positions: k places in one or two dimensions, for ar1, mat and exp.
    """

    name: str = eqx.field(static=True)
    k: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    structure: str = eqx.field(static=True)
    positions: tuple[tuple[float, ...], ...] = eqx.field(static=True, default=())

    @property
    def size(self) -> int:
        """Latents of a unit."""
        return self.groups * self.k

    def start(self, size: Float[np.ndarray, " k"]) -> dict[str, Float[np.ndarray, " m"]]:
        """Where its parameters begin, given standard deviations for its effects: independent ones."""
        if self.structure == "us":
            return {"root": np.diag(size)[np.tril_indices(self.k)]}
        if self.structure == "diag":
            return {"root": size}
        if self.structure == "cs":
            return {"sd": size, "cor": np.zeros(1)}
        apart = self.apart[self.apart > 0]
        shape = {"cor": np.zeros(1)} if self.structure == "ar1" else {"range": np.full(1, np.median(apart) / 2)}
        return {"sd": size[:1]} | shape

    def space(self, size: Float[np.ndarray, " k"]) -> dict[str, AbstractSpace]:
        """Of its parameters. Entries of a Cholesky factor are any numbers: a variance of zero is in the middle of them."""
        if self.structure in ("us", "diag"):
            rows = np.tril_indices(self.k)[0] if self.structure == "us" else np.arange(self.k)
            return {"root": Scaled(size[rows])}
        if self.structure in ("mat", "exp"):
            return {"sd": Positive(), "range": Positive()}
        least = -1 / (self.k - 1) if self.structure == "cs" else -1.0
        return {"sd": Positive(), "cor": Box(least + EDGE, 1 - EDGE)}

    @property
    def apart(self) -> Float[np.ndarray, "k k"]:
        """Distances between the places of the effects."""
        at = np.asarray(self.positions)
        return np.linalg.norm(at[:, None] - at[None], axis=2)

    def root(self, params: Params) -> Float[Array, "k k"]:
        r"""$\Lambda$, whose square $\Lambda\Lambda^\top$ is the covariance of a group's effects."""
        if self.structure == "us":
            entries = params["root"][self.name]
            return jnp.zeros((self.k, self.k), entries.dtype).at[np.tril_indices(self.k)].set(entries)
        if self.structure == "diag":
            return jnp.diag(params["root"][self.name])
        return params["sd"][self.name][:, None] * jnp.linalg.cholesky(self._correlation(params))

    def _correlation(self, params: Params) -> Float[Array, "k k"]:
        """Of a group's effects, where it has parameters of its own."""
        if self.structure == "cs":
            rho = params["cor"][self.name]
            return rho + (1 - rho) * jnp.eye(self.k, dtype=rho.dtype)
        if self.structure == "ar1":
            return _power(params["cor"][self.name][0], self.apart)
        apart = self.apart[self.apart > 0]
        reach = jnp.clip(params["range"][self.name][0], apart.min() / BEYOND, apart.max() * BEYOND)
        scaled = jnp.asarray(self.apart, reach.dtype) / reach
        near = jnp.exp(-scaled) if self.structure == "exp" else (1 + scaled) * jnp.exp(-scaled)
        return near + 1e-10 * jnp.eye(self.k, dtype=near.dtype)


def _power(rho: Array, apart: np.ndarray) -> Array:
    """$\\rho^{|s - t|}$; of whole numbers also where rho is negative."""
    whole = np.all(apart == np.round(apart))
    size = jnp.exp(apart * jnp.log(jnp.maximum(jnp.abs(rho), 1e-30)))
    sign = jnp.where((rho < 0) & whole & (apart % 2 == 1), -1.0, 1.0)
    return jnp.where(apart == 0, 1.0, jnp.where(apart == 1, rho, sign * size) if whole else size)


class Mixed(AbstractModel, AbstractDifferentiated, AbstractPointwise, AbstractStructured):
    """A generalised linear mixed model of one unit: a group of the coarsest factor with all that is nested in it, or all data.

    A unit holds "X" (rows, p), "y", "base" (what of the density depends on the data alone), "offset", "weight" (rows,; zero in
    padding), perhaps "trials", and by factor "Z" (rows, k) and "code" (rows,).
    """

    response: AbstractResponse
    factors: tuple[Factor, ...]
    #: sizes of fixed effects that matter (p,): their coordinates are in these
    scale: Array | np.ndarray
    #: of the parameters; and the share of its log density that a unit counts, one divided by their number
    prior: Prior | None = None
    share: Array | np.ndarray | float = 1.0

    @property
    def in_order(self) -> list[Factor]:
        """The factors in the order of flattened latents."""
        return sorted(self.factors, key=lambda factor: factor.name)

    @property
    def largest(self) -> Factor:
        """The one with most latents, which is eliminated."""
        return max(self.in_order, key=lambda factor: factor.size)

    def by_factor(self, z: Float[Array, " d"]) -> dict[str, Array]:
        """Flattened latents by factor (groups, k)."""
        parts = jnp.split(z, np.cumsum([factor.size for factor in self.in_order])[:-1])
        return {one.name: part.reshape(one.groups, one.k) for one, part in zip(self.in_order, parts, strict=True)}

    def init_latents(self, key, params, y):
        return {factor.name: jnp.zeros((factor.groups, factor.k), y["y"].dtype) for factor in self.factors}

    def predictor(self, params: Params, z: dict[str, Array], y: Unit) -> Float[Array, " rows"]:
        r"""$\eta$."""
        eta = y["X"] @ params["beta"] + y["offset"]
        for factor in self.factors:
            effects = z[factor.name] @ factor.root(params).T
            own = effects[y["code"][factor.name]] if factor.groups > 1 else effects[0]
            eta = eta + jnp.sum(y["Z"][factor.name] * own, axis=-1)
        return eta

    def log_rows(self, params: Params, eta: Array, y: Unit) -> Float[Array, " rows"]:
        """Weighted log densities; zero in padding."""
        logs = self.response.log_kernel(y["y"], eta, params["dispersion"], y.get("trials")) + y["base"]
        return jnp.where(y["weight"] > 0, y["weight"] * logs, 0.0)

    def log_joint(self, params, z, y):
        squares = sum(jnp.sum(u**2) + u.size * jnp.log(2 * jnp.pi) for u in z.values())
        return jnp.sum(self.log_rows(params, self.predictor(params, z, y), y)) - squares / 2 + self.log_prior(params)

    def log_prior(self, params: Params) -> Any:
        """A unit's share of the log density of the parameters: all units together have it once."""
        return 0.0 if self.prior is None else self.share * self.prior.log_density(params, self.factors)

    def pointwise(self, params, z, y):
        logs = self.log_rows(params, self.predictor(params, z, y), y)
        return jnp.where(y["weight"] > 0, logs, jnp.nan)

    def moments(self, params: Params, z: dict[str, Array], y: Unit) -> dict[str, tuple[Array, Array]]:
        """Effects $b = \\Lambda u$ and their squares by factor, each (groups, k), given latents."""
        effects = {factor.name: z[factor.name] @ factor.root(params).T for factor in self.factors}
        return {name: (b, b**2) for name, b in effects.items()}

    def structure(self, params, y):
        return ByPredictor(self, params, y)

    def derivatives(self, params, z, w, batch):
        if all(factor.structure in ("us", "diag") for factor in self.factors):
            return by_rows(self, params, z, w, batch)
        flat, back = ravel_pytree(params)
        return differentiated(self, back, flat, z, w, batch)

    def space(self, sizes: dict[str, np.ndarray]) -> dict[str, Any]:
        """Of the parameters, given standard deviations of the effects of each factor that matter."""
        thresholds = {name: Ordered() if name == "thresholds" else Positive() for name in self.response.dispersion}
        out: dict[str, Any] = {"beta": Scaled(self.scale)}
        out["dispersion"] = thresholds | {name: Real() for name in self.response.predictors}
        for factor in self.factors:
            for name, space in factor.space(sizes[factor.name]).items():
                out.setdefault(name, {})[factor.name] = space
        return out


class Loaded(NamedTuple):
    """What the rows of a unit say of its effects.

    Attributes:
        weight: $-\\ell''$ of each (rows,). own: what its predictor is multiplied by in the effects of the eliminated factor
            (rows, k), of the group `code` (rows,). value, place: in the others (rows, c), and which of these `m` they are.
    """

    weight: Float[Array, " rows"]
    own: Float[Array, "rows k"]
    code: Array
    value: Float[Array, "rows c"]
    place: Array
    m: int


class ByPredictor(AbstractEliminated):
    r"""Second derivatives of a mixed model in its effects, $A^\top\mathrm{diag}(-\ell'')A + I$ with A the rows' own effects.

    The factor with most latents is eliminated.
    """

    model: Mixed
    params: Params
    y: Unit
    largest: Factor
    start: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    k: int = eqx.field(static=True)

    def __init__(self, model: Mixed, params: Params, y: Unit) -> None:
        self.model, self.params, self.y, self.largest = model, params, y, model.largest
        self.start = sum(factor.size for factor in model.in_order if factor.name < self.largest.name)
        self.groups, self.k = self.largest.groups, self.largest.k

    def rows(self, z: Array) -> Loaded:
        """How the predictor of each row is made of the effects, and what it knows of them."""
        model, params, y = self.model, self.params, self.y
        eta = model.predictor(params, model.by_factor(z), y)
        weight = -_second(lambda e: model.log_rows(params, e, y), eta)
        places, values, m = [], [], 0
        for factor in model.in_order:
            if factor.name != self.largest.name:
                places.append(m + y["code"][factor.name][:, None] * factor.k + np.arange(factor.k))
                values.append(y["Z"][factor.name] @ factor.root(params))
                m += factor.size
        place, value = jnp.zeros((len(eta), 0), int), jnp.zeros((len(eta), 0), eta.dtype)
        if m:
            place, value = jnp.concatenate(places, axis=1), jnp.concatenate(values, axis=1)
        own = y["Z"][self.largest.name] @ self.largest.root(params)
        return Loaded(weight, own, y["code"][self.largest.name], value, place, m)

    def curvature(self, log_density: Any, z: Array) -> Arrow:
        return self.arrow(self.rows(z))

    def arrow(self, rows: Loaded) -> Arrow:
        """$A^\\top\\mathrm{diag}(w)A + I$."""
        weight, a, code, value, place, m = rows
        blocks = (
            jnp.zeros((self.groups, self.k, self.k), a.dtype).at[code].add(weight[:, None, None] * a[:, :, None] * a[:, None])
        )
        blocks = jnp.moveaxis(blocks, 0, 2) + jnp.eye(self.k, dtype=a.dtype)[:, :, None]
        edges, rest = jnp.zeros((self.k, self.groups, m), a.dtype), jnp.eye(m, dtype=a.dtype)
        if m:
            weighted = weight[:, None] * value
            for j in range(self.k):
                edges = edges.at[j, code[:, None], place].add(a[:, j, None] * weighted)
            rest = rest.at[place[:, :, None], place[:, None]].add(weighted[:, :, None] * value[:, None])
        return Arrow(blocks, edges, rest)


def _second(function: Any, x: Array) -> Array:
    """Second derivatives of a function that acts entry by entry."""
    one = jnp.ones_like(x)

    def slope(x: Array) -> Array:
        return jax.jvp(function, (x,), (one,))[1]

    return jax.jvp(slope, (x,), (one,))[1]
