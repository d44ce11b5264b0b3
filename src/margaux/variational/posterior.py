r"""Gaussian posteriors of weights: $q(w;\theta) = \prod_jN(w_j;\mu_j,\sigma_j^2)$.

One $\sigma$ for all weights, one a tensor, or one a weight (MISSO: Karimi, Wai, Moulines and Li, example 2, has one for all), as
$\log\sigma = \kappa u$. The curvature of the negative ELBO in a $\log\sigma$ that d weights share is 2d at its minimum, whatever
the data are, and that in a mean grows with the data: with $\kappa = \sqrt{\mathcal I/2d}$, $\mathcal I$ the curvature in a mean,
both are the same, and one step suits them. Without it $\sigma$ stays where it began while $\mu$ converges.
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
    r"""Independent Gaussians.

    Args:
        spread: what shares a standard deviation, "all" weights, those of a "tensor", or each "weight" has its own.
        information: $\mathcal I$ of all observations, for methods of one step size; None for $\kappa = 1$, as suits optimisers
            that scale each coordinate (Adam, Adagrad).
    """

    spread: Spread = eqx.field(static=True)
    information: Any

    def __init__(self, spread: Spread = "weight", information: float | None = None) -> None:
        if spread not in ("all", "tensor", "weight"):
            raise ValueError(f'spread must be "all", "tensor" or "weight", not {spread!r}')
        if information is not None and not information > 0:
            raise ValueError(f"information must be positive, got {information}")
        self.spread, self.information = spread, None if information is None else np.asarray(float(information))

    def start(self, weights: PyTree, sigma: float) -> dict[str, PyTree]:
        """Parameters: "mean", and "log_sigma", which is u.

        Raises:
            ValueError: sigma is not positive.
        """
        if not sigma > 0:
            raise ValueError(f"sigma, the standard deviation at the start, must be positive; got {sigma}")
        value = lambda size: np.log(sigma) / np.asarray(self._stretch(size))  # noqa: E731
        if self.spread == "all":
            return {"mean": weights, "log_sigma": value(sum(np.size(leaf) for leaf in jax.tree.leaves(weights)))}
        if self.spread == "tensor":
            return {"mean": weights, "log_sigma": jax.tree.map(lambda leaf: value(np.size(leaf)), weights)}
        return {"mean": weights, "log_sigma": jax.tree.map(lambda leaf: np.full(np.shape(leaf), value(1)), weights)}

    def sigma(self, params: dict[str, PyTree]) -> PyTree:
        """Standard deviations, a tree like the weights whose leaves broadcast to theirs."""
        mean, u = params["mean"], params["log_sigma"]
        if self.spread == "all":
            sigma = jnp.exp(self._stretch(sum(leaf.size for leaf in jax.tree.leaves(mean))) * u)
            return jax.tree.map(lambda _: sigma, mean)
        shared = (lambda leaf: leaf.size) if self.spread == "tensor" else (lambda leaf: 1)
        return jax.tree.map(lambda leaf, u: jnp.exp(self._stretch(shared(leaf)) * u), mean, u)

    def _stretch(self, size: int) -> Any:
        """kappa of a standard deviation that so many weights share."""
        return 1.0 if self.information is None else (self.information / (2 * size)) ** 0.5

    def weights(self, params: dict[str, PyTree], z: PyTree) -> PyTree:
        """mu + sigma z."""
        return jax.tree.map(lambda m, s, e: m + s * e, params["mean"], self.sigma(params), z)

    def log_density(self, params: dict[str, PyTree], z: PyTree) -> Array:
        """log q at the weights of z."""
        each = jax.tree.map(lambda s, e: jnp.sum(-(e**2) / 2 - jnp.log(s) - np.log(2 * np.pi) / 2), self.sigma(params), z)
        return sum(jax.tree.leaves(each), jnp.zeros(()))
