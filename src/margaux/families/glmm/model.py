r"""Generalised linear mixed models: $\eta = X\beta + \sum_t Z_t\Lambda_tu_t$ with $u\sim N(0, I)$, and $p(y\mid\eta)$ by row."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ...problem.model import (
    AbstractConcave,
    AbstractDifferentiated,
    AbstractModel,
    AbstractPointwise,
    AbstractStructured,
    Params,
    Unit,
    differentiated,
)
from ...problem.space import Positive, Real
from .base import AbstractResponse
from .cells import ByCells
from .counts import Binomial, Poisson
from .curvature import ByPredictor
from .derivatives import by_rows
from .factor import Factor
from .priors import Prior
from .products import ByProducts
from .spaces import Ordered, Scaled

#: share of the least number from which on a sum of log densities has one of minus infinity in it
IMPOSSIBLE = 1e-15


def is_concave(response: AbstractResponse) -> bool:
    r"""Whether $\log p(y\mid\eta)$ is concave in the predictor for all y: of a probability by each of its links."""
    return type(response) is Binomial or (type(response) is Poisson and response.link.name == "log")


def fixed_effects(params: Params) -> Any:
    """Coefficients (p,) of fixed effects: parameters have no entry for them where a model has none."""
    return params.get("beta", np.zeros(0, np.float32))


class Mixed(AbstractModel, AbstractConcave, AbstractDifferentiated, AbstractPointwise, AbstractStructured):
    """A generalised linear mixed model of one unit: a group of the coarsest factor with all that is nested in it, or all data.

    A unit holds "X" (rows, p), "y", "base" (what of the density depends on the data alone), "offset", "weight" (rows,; zero in
    padding), perhaps "trials", by factor "Z" (rows, k) and "code" (rows,), and perhaps "cells" of a sparse crossing.
    """

    response: AbstractResponse
    factors: tuple[Factor, ...]
    #: sizes of fixed effects that matter (p,): their coordinates are in these
    scale: Array | np.ndarray
    #: of the parameters; and the share of its log density that a unit counts, one divided by their number
    prior: Prior | None = None
    share: Array | np.ndarray | float = 1.0

    @property
    def concave(self) -> bool:
        return is_concave(self.response)

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
        eta = y["X"] @ fixed_effects(params) + y["offset"]
        for factor in self.factors:
            effects = z[factor.name] @ factor.root(params).T
            own = effects[y["code"][factor.name]] if factor.groups > 1 else effects[0]
            eta = eta + jnp.sum(y["Z"][factor.name] * own, axis=-1)
        return eta

    def log_rows(self, params: Params, eta: Array, y: Unit) -> Float[Array, " rows"]:
        """Weighted log densities, the least number for minus infinity; zero in padding, also of that."""
        logs = self.response.log_kernel(y["y"], eta, params["dispersion"], y.get("trials")) + y["base"]
        # A choice between what is expensive and zero would be compiled to a branch, and vectors to numbers one by one.
        return y["weight"] * jnp.maximum(logs, jnp.finfo(logs.dtype).min)

    def log_likelihood(self, params: Params, eta: Float[Array, "*g rows"], y: Unit) -> Float[Array, "*g"]:
        """The sum over rows; minus infinity where that of one is."""
        logs = jnp.sum(self.log_rows(params, eta, y), axis=-1)
        return jnp.where(logs < jnp.finfo(logs.dtype).min * IMPOSSIBLE, -jnp.inf, logs)

    def log_joint(self, params, z, y):
        squares = sum(jnp.sum(u**2) + u.size * jnp.log(2 * jnp.pi) for u in z.values())
        return self.log_likelihood(params, self.predictor(params, z, y), y) - squares / 2 + self.log_prior(params)

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
        if "cells" not in y:
            return ByPredictor(self, params, y)
        return (ByProducts if "met" in y["cells"] else ByCells)(self, params, y)

    def derivatives(self, params, z, w, batch):
        if all(factor.structure in ("us", "diag") for factor in self.factors):
            return by_rows(self, params, z, w, batch)
        flat, back = ravel_pytree(params)
        return differentiated(self, back, flat, z, w, batch)

    def space(self, sizes: dict[str, np.ndarray]) -> dict[str, Any]:
        """Of the parameters, given standard deviations of the effects of each factor that matter."""
        thresholds = {name: Ordered() if name == "thresholds" else Positive() for name in self.response.dispersion}
        out: dict[str, Any] = {"beta": Scaled(self.scale)} if np.shape(self.scale)[-1] else {}
        out["dispersion"] = thresholds | {name: Real() for name in self.response.predictors}
        for factor in self.factors:
            for name, space in factor.space(sizes[factor.name]).items():
                out.setdefault(name, {})[factor.name] = space
        return out
