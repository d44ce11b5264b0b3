"""Random effects of one grouping factor: their covariance, its parameters, and where these begin."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...problem.model import Params
from ...problem.space import AbstractSpace, Box, Positive
from .spaces import Scaled

#: how near a correlation may come to one in size
EDGE = 1e-9
#: times the largest distance, and a share of the smallest, where a range changes nothing any more
BEYOND = 1e3


#: structures whose correlation falls with distance, and what it is of distances in units of the range
RANGED = {
    "exp": lambda s: jnp.exp(-s),
    "mat": lambda s: (1 + s) * jnp.exp(-s),
    "mat52": lambda s: (1 + s + s**2 / 3) * jnp.exp(-s),
}


class Factor(eqx.Module):
    """Random effects of the groups of one grouping factor.

    Attributes:
        name: that its parameters go by. k: effects a group. groups: how many a unit has, at most. structure: of the covariance.
        positions: k places in one or two dimensions, for ar1 and `RANGED`.
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
        if self.structure in RANGED:
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
        near = RANGED[self.structure](scaled)
        return near + 1e-10 * jnp.eye(self.k, dtype=near.dtype)


def _power(rho: Array, apart: np.ndarray) -> Array:
    """$\\rho^{|s - t|}$; of whole numbers also where rho is negative."""
    whole = np.all(apart == np.round(apart))
    size = jnp.exp(apart * jnp.log(jnp.maximum(jnp.abs(rho), 1e-30)))
    sign = jnp.where((rho < 0) & whole & (apart % 2 == 1), -1.0, 1.0)
    return jnp.where(apart == 0, 1.0, jnp.where(apart == 1, rho, sign * size) if whole else size)
