r"""The restricted likelihood of a Gaussian mixed model: the fixed effects are latents under a flat prior.

$L_R(\theta) = \int p(y\mid\beta,\theta)\,d\beta$ (Harville 1974), whose integrand is Gaussian in $\beta$ and in the random
effects together, so that Laplace's approximation is exact.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...numerics.structures import AbstractEliminated, Arrow
from ...problem.model import AbstractModel, AbstractStructured, Params, Unit
from .curvature import ByPredictor
from .model import Mixed


class Restricted(AbstractModel, AbstractStructured):
    r"""All rows as one unit, whose latents are the random effects and coordinates c of $\beta = Tc$.

    The unit's "X" is $XT$, with orthogonal columns: fixed effects that are nearly collinear lose no digits.

    Args:
        mixed: the model given $\beta$. log_volume: $\log|\det T|$.
    """

    mixed: Mixed
    log_volume: Array | np.ndarray

    def given(self, params: Params, fixed: Array) -> Params:
        """Parameters of the model given the fixed effects."""
        return {**params, "beta": fixed}

    def init_latents(self, key, params, y):
        effects = self.mixed.init_latents(key, params, y)
        return {"effects": effects, "fixed": jnp.zeros(y["X"].shape[-1], y["y"].dtype)}

    def log_joint(self, params, z, y):
        # Of the measure in which the prior of the fixed effects is flat.
        volume = jnp.asarray(self.log_volume, y["y"].dtype)
        return self.mixed.log_joint(self.given(params, z["fixed"]), z["effects"], y) + volume

    def structure(self, params, y):
        return WithFixed(self, params, y)


class WithFixed(AbstractEliminated):
    r"""Second derivatives in random and fixed effects: those of the first, bordered by $A^\top\mathrm{diag}(w)X$ and
    $X^\top\mathrm{diag}(w)X$. Flattened latents have the fixed effects last."""

    model: Restricted
    params: Params
    y: Unit
    start: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    k: int = eqx.field(static=True)

    def __init__(self, model: Restricted, params: Params, y: Unit) -> None:
        self.model, self.params, self.y = model, params, y
        inner = ByPredictor(model.mixed, params, y)
        self.start, self.groups, self.k = inner.start, inner.groups, inner.k

    def curvature(self, log_density: Any, z: Array) -> Arrow:
        X: Float[Array, "rows p"] = self.y["X"]
        p = X.shape[-1]
        effects, fixed = jnp.split(z, [z.size - p])
        inner = ByPredictor(self.model.mixed, self.model.given(self.params, fixed), self.y)
        rows = inner.rows(effects)
        blocks, edges, rest = inner.arrow(rows)
        weighted = rows.weight[:, None] * X
        beside = jnp.zeros((self.k, self.groups, p), z.dtype)
        for j in range(self.k):
            beside = beside.at[j, rows.code].add(rows.own[:, j, None] * weighted)
        across = jnp.zeros((rows.m, p), z.dtype)
        for j in range(rows.place.shape[1]):
            across = across.at[rows.place[:, j]].add(rows.value[:, j, None] * weighted)
        rest = jnp.block([[rest, across], [across.T, X.T @ weighted]])
        return Arrow(blocks, jnp.concatenate([edges, beside], axis=2), rest)
