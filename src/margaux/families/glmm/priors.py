r"""Priors of a mixed model's parameters, against separation and against variances that collapse: the estimate is then the
maximum of $\log p(y\mid\theta) + \log\pi(\theta)$."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

if TYPE_CHECKING:
    from ...problem.model import Params
    from .factor import Factor


class Prior(eqx.Module):
    r"""$\log\pi(\theta)$ but for its constant.

    Fixed effects with a finite scale s are $N(0, s^2)$. Standard deviations of independent effects, of an intercept alone, and
    of structures with few parameters are Gamma(2, 1/s), $\log\sigma - \sigma/s$, whose mode is s; a covariance of k correlated
    effects is Wishart with k + 2 degrees of freedom and scale $s^2I$, $\tfrac12\log|\Sigma| - \mathrm{tr}(\Sigma)/(2s^2)$.
    With s infinite what is left keeps an estimate off zero and changes it by about a standard error at most (Chung,
    Rabe-Hesketh, Dorie, Gelman and Liu 2013; for covariances Chung et al. 2015).

    Args:
        fixed: scales of the fixed effects (p,), infinite of those without a prior; None where none has one.
        spreads: scales by factor.

    References: Chung, Rabe-Hesketh, Dorie, Gelman and Liu, Psychometrika 78 (2013), 685-709; Chung, Gelman, Rabe-Hesketh, Liu
    and Dorie, J. Educ. Behav. Stat. 40 (2015), 136-157.
    """

    fixed: Array | np.ndarray | None
    spreads: dict[str, Array | np.ndarray]

    def log_density(self, params: Params, factors: tuple[Factor, ...]) -> Array:
        """At some parameters; minus infinity where a variance with a prior is zero."""
        total: Any = 0.0
        if self.fixed is not None:
            total = total - jnp.sum((params["beta"] / self.fixed) ** 2) / 2
        for factor in factors:
            if factor.name not in self.spreads:
                continue
            scale = self.spreads[factor.name]
            if factor.structure == "us" and factor.k > 1:
                root = factor.root(params)
                total = total + jnp.sum(jnp.log(jnp.abs(jnp.diagonal(root)))) - jnp.sum((root / scale) ** 2) / 2
            else:
                name = "root" if factor.structure in ("us", "diag") else "sd"
                sd = jnp.abs(params[name][factor.name])
                total = total + jnp.sum(jnp.log(sd) - sd / scale)
        return total


def given(asked: Mapping[str, float] | None, names: list[str], factors: tuple[Factor, ...], reml: bool = False) -> Prior | None:
    """The prior that a user asks for by names: of fixed effects, and `sd_g` of all effects of a factor.

    Raises:
        TypeError, ValueError: a name that there is not, a scale that is no positive number, or one of a fixed effect that is
            integrated out.
    """
    if not asked:
        return None
    if not isinstance(asked, Mapping):
        raise TypeError(f'prior must be a dict of scales by name, such as {{"{names[0] if names else "x"}": 2.5}}, got {asked!r}')
    spreads = {f"sd_{factor.name}": factor.name for factor in factors}
    for name, scale in asked.items():
        if name not in names and name not in spreads:
            raise ValueError(f'prior has "{name}", and what may have one is {", ".join([*names, *spreads])}')
        if isinstance(scale, bool) or not isinstance(scale, numbers.Real) or not scale > 0:
            raise ValueError(f'the scale of the prior of "{name}" must be a positive number, got {scale!r}')
        if name in names and not np.isfinite(float(scale)):
            raise ValueError(f'the prior of "{name}" has an infinite standard deviation, which is none; leave it out')
        if name in names and reml:
            raise ValueError(f'reml=True integrates "{name}" out under a flat prior; leave its prior out, or take reml=False')
    fixed: Any = np.array([float(asked.get(name, np.inf)) for name in names])
    scales: dict[str, Any] = {spreads[name]: np.asarray(float(asked[name])) for name in asked if name not in names}
    return Prior(fixed if np.isfinite(fixed).any() else None, scales)


def described(asked: Mapping[str, float], names: list[str], factors: tuple[Factor, ...]) -> str:
    """The prior in words."""
    told = [f"N(0, {asked[name]:g}^2) of {name}" for name in names if name in asked]
    for factor in factors:
        scale = asked.get(f"sd_{factor.name}")
        if scale is None:
            continue
        joint = factor.structure == "us" and factor.k > 1
        free = f"Wishart({factor.k + 2}) of the covariance of {factor.name}" if joint else f"Gamma(2) of sd_{factor.name}"
        told.append(free + (f", scale {scale:g}" if np.isfinite(scale) else ", flat but at zero"))
    return "; ".join(told)
