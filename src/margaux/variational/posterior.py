r"""Gaussian posteriors of weights: $q(w;\theta) = \prod_jN(w_j;\mu_j,\sigma_j^2)$, in $\mu$ and $\log\sigma$.

One $\sigma$ for all weights, one a tensor, or one a weight (MISSO: Karimi, Wai, Moulines and Li, example 2, has one for all).
In $\log\sigma$, since the gradient of the divergence in a $\sigma$ shared by d weights, $d(\sigma - 1/\sigma)/n$, is stiff.
"""

from __future__ import annotations

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

Spread = Literal["all", "tensor", "weight"]


class GaussianPosterior(eqx.Module):
    """Independent Gaussians.

    Args:
        spread: what shares a standard deviation, "all" weights, those of a "tensor", or each "weight" has its own.
    """

    spread: Spread = eqx.field(static=True, default="weight")

    def __post_init__(self) -> None:
        if self.spread not in ("all", "tensor", "weight"):
            raise ValueError(f'spread must be "all", "tensor" or "weight", not {self.spread!r}')

    def start(self, weights: PyTree, sigma: float) -> dict[str, PyTree]:
        """Parameters "mean" and "log_sigma".

        Raises:
            ValueError: sigma is not positive.
        """
        if not sigma > 0:
            raise ValueError(f"sigma, the standard deviation at the start, must be positive; got {sigma}")
        shape = {"all": lambda leaf: (), "tensor": lambda leaf: (), "weight": np.shape}[self.spread]
        logs = jax.tree.map(lambda leaf: np.full(shape(leaf), np.log(sigma)), weights)
        return {"mean": weights, "log_sigma": np.asarray(np.log(sigma)) if self.spread == "all" else logs}

    def sigma(self, params: dict[str, PyTree]) -> PyTree:
        """Standard deviations, a tree like the weights whose leaves broadcast to theirs."""
        if self.spread == "all":
            return jax.tree.map(lambda _: jnp.exp(params["log_sigma"]), params["mean"])
        return jax.tree.map(jnp.exp, params["log_sigma"])

    def weights(self, params: dict[str, PyTree], z: PyTree) -> PyTree:
        """mu + sigma z."""
        return jax.tree.map(lambda m, s, e: m + s * e, params["mean"], self.sigma(params), z)

    def log_density(self, params: dict[str, PyTree], z: PyTree) -> Array:
        """log q at the weights of z."""
        each = jax.tree.map(
            lambda m, s, e: jnp.sum(-(e**2) / 2 - jnp.log(s) - np.log(2 * np.pi) / 2) + 0 * jnp.sum(m),
            params["mean"], self.sigma(params), z,
        )  # fmt: skip
        return _total(each)


def _total(tree: PyTree) -> Any:
    return sum(jax.tree.leaves(tree))
