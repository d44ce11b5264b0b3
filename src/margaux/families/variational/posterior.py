r"""Gaussian posteriors of weights: $q(w;\theta) = \prod_jN(w_j;\mu_j,\sigma_j^2)$.

One $\sigma$ for all weights, one a tensor, or one a weight (MISSO: Karimi, Wai, Moulines and Li, example 2, has one for all), as
$\log\sigma = \kappa u$. The curvature of the negative ELBO in a $\log\sigma$ that d weights share is 2d at its minimum, whatever
the data are, and that in a mean grows with the data: with $\kappa = \sqrt{\mathcal I/2d}$, $\mathcal I$ the curvature in a mean,
both are the same, and one step suits them. Without it $\sigma$ stays where it began while $\mu$ converges.

A score of one block of B has noise in it. Where a step makes $\log\sigma$ relax at a rate r, the noise of a step in it is of
order $\tfrac r2\sqrt{B/d}$, and what it fluctuates by $\sqrt{rB/8d}$: for it to stay below a quarter the rate is bounded, by
$\kappa = \sqrt{\mathcal I/\max(2d, 4B)}$.

A table of scores or surrogates repeats what a block once said for a whole epoch. Far from its minimum $\log\sigma$ is driven by
the entropy alone, as hard as ever, and would overshoot by that: with $dB$ for $2d$ it moves by about one an epoch.
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
            that scale each coordinate (Adam, Adagrad). n_blocks: B. table: whether the method keeps one.
    """

    spread: Spread = eqx.field(static=True)
    information: Any
    n_blocks: Any
    table: bool = eqx.field(static=True)

    def __init__(
        self, spread: Spread = "weight", information: float | None = None, n_blocks: int = 1, table: bool = False
    ) -> None:
        if spread not in ("all", "tensor", "weight"):
            raise ValueError(f'spread must be "all", "tensor" or "weight", not {spread!r}')
        if information is not None and not information > 0:
            raise ValueError(f"information must be positive, got {information}")
        self.spread, self.n_blocks, self.table = spread, np.asarray(float(n_blocks)), table
        self.information = None if information is None else np.asarray(float(information))

    def start(self, weights: PyTree, sigma: float) -> dict[str, PyTree]:
        """Parameters: "mean", and "log_sigma", which is u.

        Raises:
            ValueError: sigma is not positive.
        """
        if not sigma > 0:
            raise ValueError(f"sigma, the standard deviation at the start, must be positive; got {sigma}")

        def value(size):
            return np.log(sigma) / np.asarray(self.unit(size))

        if self.spread == "all":
            return {"mean": weights, "log_sigma": value(sum(np.size(leaf) for leaf in jax.tree.leaves(weights)))}
        if self.spread == "tensor":
            return {"mean": weights, "log_sigma": jax.tree.map(lambda leaf: value(np.size(leaf)), weights)}
        return {"mean": weights, "log_sigma": jax.tree.map(lambda leaf: np.full(np.shape(leaf), value(1)), weights)}

    def around(self, means: PyTree, deviations: PyTree) -> dict[str, PyTree]:
        """The parameters of means and standard deviations of all weights; of those that share one, by its geometric mean."""
        kappa, params = self.stretches({"mean": means}), {"mean": means}
        if self.spread == "all":
            logs = np.concatenate([np.ravel(np.log(leaf)) for leaf in jax.tree.leaves(deviations)])
            return params | {"log_sigma": logs.mean() / np.asarray(kappa)}

        def own(leaf, unit):
            return (np.log(leaf) if self.spread == "weight" else np.mean(np.log(leaf))) / np.asarray(unit)

        return params | {"log_sigma": jax.tree.map(own, deviations, kappa)}

    def sigma(self, params: dict[str, PyTree]) -> PyTree:
        """Standard deviations, a tree like the weights whose leaves broadcast to theirs."""
        mean = params["mean"]
        sigma = jax.tree.map(lambda u, kappa: jnp.exp(kappa * u), params["log_sigma"], self.stretches(params))
        return jax.tree.map(lambda _: sigma, mean) if self.spread == "all" else sigma

    def stretches(self, params: dict[str, PyTree]) -> PyTree:
        """kappa of each leaf of "log_sigma"."""
        mean = params["mean"]
        if self.spread == "all":
            return self.unit(sum(np.size(leaf) for leaf in jax.tree.leaves(mean)))
        return jax.tree.map(lambda leaf: self.unit(np.size(leaf) if self.spread == "tensor" else 1), mean)

    def unit(self, size: Any) -> Any:
        """kappa of a scale that so many weights, or observations, share."""
        if self.information is None:
            return 1.0
        larger: Any = jnp.maximum if isinstance(self.n_blocks, jax.Array) else np.maximum
        stiffness = larger(larger(2 * size, 4 * self.n_blocks), size * self.n_blocks if self.table else 0)
        return (self.information / stiffness) ** 0.5

    def weights(self, params: dict[str, PyTree], z: PyTree) -> PyTree:
        """mu + sigma z."""
        return jax.tree.map(lambda m, s, e: m + s * e, params["mean"], self.sigma(params), z)

    def entropy(self, params: dict[str, PyTree]) -> Array:
        r"""$-E\log q = \sum_j\log\sigma_j + \tfrac12\log 2\pi e$."""

        def each(m, s):
            return m.size / s.size * jnp.sum(jnp.log(s)) + m.size * np.log(2 * np.pi * np.e) / 2

        return sum(jax.tree.leaves(jax.tree.map(each, params["mean"], self.sigma(params))), jnp.zeros(()))
