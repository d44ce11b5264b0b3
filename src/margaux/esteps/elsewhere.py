"""Whether a posterior has its mode where a search ended, by how it rises and falls where other units have theirs."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..numerics import triangular
from ..problem.model import leading, mapped
from .base import AbstractEStep, continuous, flat_target

#: how much of the way to the mode a place is set against, and the change of a log density, as a share, that is no rounding
NEARER, CHANGE = 0.01, 1e-9
#: standard deviations from the centre up to which a place says nothing: a mean of draws is no mode
CLOSE = 4.0


class Elsewhere(AbstractEStep):
    r"""No expectation, but a figure: at how many of the places $x_j$ the log density falls on the first part of the way to the
    mode, $h(x_j) > h(x_j + \epsilon(\hat z - x_j))$, or is above that at the mode itself. With one mode, and level sets around it
    that are convex, there is no such place.

    Rows are centres and Cholesky factors of covariances; places close to the centre say nothing.

    Args:
        places: points of the latents' space (p, d), alike for all units.
    """

    may_be_padded: ClassVar[bool] = True
    places: Float[Array, "p d"] | np.ndarray

    def requires(self, model, latents):
        return continuous(model, latents, "a look elsewhere")

    def init(self, key, model, params, y):
        raise TypeError("a look elsewhere starts from modes that are known: give their rows")

    def noise(self, key, latents):
        return ()

    def expect(self, f, noise, model, params, rows, batch, k):
        x = jnp.asarray(self.places)

        def unit(row, y):
            target, unravel = flat_target(model, params, y)
            mode = row["mean"]
            away = jnp.sum((triangular.inverse_root(row["cholesky"]) @ (x - mode).T) ** 2, axis=0)
            at = jnp.concatenate([mode[None], x, x + NEARER * (mode - x)])
            top, here, nearer = jnp.split(jax.vmap(target)(at), [1, 1 + len(x)])
            slack = CHANGE * jnp.abs(here)
            against = (here > nearer + slack) | ((here > top + slack) & jnp.isfinite(here))
            return unravel(mode), jnp.sum(against & (away > CLOSE**2), dtype=x.dtype)

        z, against = mapped(unit, leading(batch))(rows, batch)
        return f(jax.tree.map(lambda leaf: leaf[None], z), jnp.ones_like(against)[None]), rows, {"against": against}
