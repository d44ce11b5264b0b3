"""Priors of weights, and the divergence of a Gaussian posterior from them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .posterior import GaussianPosterior


class AbstractWeightPrior(eqx.Module):
    """A prior of independent weights."""

    @abc.abstractmethod
    def start(self) -> dict[str, Any]:
        """Parameters of the prior that are estimated."""

    @property
    def by_draws(self) -> bool:
        """Whether the divergence is known by draws of the weights only."""
        return False

    @abc.abstractmethod
    def divergence(self, posterior: GaussianPosterior, params: dict[str, PyTree], z: PyTree) -> Array:
        r"""$\mathrm{KL}[q\|p]$; by draws $E\log q - \log p(w)$ at the weights of z, of which it is the mean."""


def _summed(function: Callable[..., Array], *trees: PyTree) -> Array:
    return sum(jax.tree.leaves(jax.tree.map(lambda *leaf: jnp.sum(function(*leaf)), *trees)))  # type: ignore[return-value]


class Normal(AbstractWeightPrior):
    r"""$N(0, s^2)$: $\mathrm{KL} = \sum_j\log(s/\sigma_j) + (\sigma_j^2 + \mu_j^2)/(2s^2) - 1/2$.

    Args:
        scale: s. learned: estimate it, from there on, by maximum marginal likelihood (empirical Bayes).
    """

    scale: Array | np.ndarray
    learned: bool = eqx.field(static=True)

    def __init__(self, scale: float = 1.0, learned: bool = False) -> None:
        self.scale, self.learned = _positive("scale", scale), learned

    def start(self):
        return {"log_scale": np.log(self.scale)} if self.learned else {}

    def divergence(self, posterior, params, z):
        scale = jnp.exp(params["log_scale"]) if self.learned else jnp.asarray(self.scale, _dtype(params))

        def each(m, s):
            return jnp.log(scale / s) + (s**2 + m**2) / (2 * scale**2) - 0.5

        return _summed(each, params["mean"], posterior.sigma(params))


class ByTensor(AbstractWeightPrior):
    r"""$N(0, s_t^2)$ with a scale $s_t$ for each tensor t of weights: the divergence of `Normal`, tensor by tensor.

    Args:
        scales: s_t, in the order of the network's tree.
    """

    scales: tuple[Array | np.ndarray, ...]

    def __init__(self, scales: Sequence[float]) -> None:
        self.scales = tuple(_positive("scales", scale) for scale in scales)

    def start(self):
        return {}

    def divergence(self, posterior, params, z):
        means, structure = jax.tree.flatten(params["mean"])
        if len(means) != len(self.scales):
            raise ValueError(f"the prior has {len(self.scales)} scales, and the network {len(means)} tensors of weights")
        scales = jax.tree.unflatten(structure, [jnp.asarray(s, _dtype(params)) for s in self.scales])

        def each(m, s, scale):
            return jnp.log(scale / s) + (s**2 + m**2) / (2 * scale**2) - 0.5

        return _summed(each, params["mean"], posterior.sigma(params), scales)


class Laplace(AbstractWeightPrior):
    r"""Density $e^{-|w|/b}/2b$: $\mathrm{KL} = \sum_j\log 2b + E|w_j|/b - \tfrac12\log 2\pi e\sigma_j^2$, with
    $E|w| = \sigma\sqrt{2/\pi}e^{-\mu^2/2\sigma^2} + \mu\,\mathrm{erf}(\mu/\sqrt2\sigma)$.

    Args:
        scale: b.
    """

    scale: Array | np.ndarray

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = _positive("scale", scale)

    def start(self):
        return {}

    def divergence(self, posterior, params, z):
        b = jnp.asarray(self.scale, _dtype(params))

        def each(m: Array, s: Array) -> Array:
            ratio = m / s
            size = s * np.sqrt(2 / np.pi) * jnp.exp(-(ratio**2) / 2) + m * jax.lax.erf(ratio / np.sqrt(2))
            return jnp.log(2 * b) + size / b - jnp.log(s) - 0.5 * np.log(2 * np.pi * np.e)

        return _summed(each, params["mean"], posterior.sigma(params))


class ScaleMixture(AbstractWeightPrior):
    r"""$\pi N(0, s_1^2) + (1-\pi)N(0, s_2^2)$ (Blundell, Cornebise, Kavukcuoglu and Wierstra 2015, eq. 7), by draws.

    Args:
        share: pi. wide, narrow: s_1 and s_2.
    """

    share: Array | np.ndarray
    wide: Array | np.ndarray
    narrow: Array | np.ndarray

    def __init__(self, share: float = 0.5, wide: float = 1.0, narrow: float = 0.0025) -> None:
        if not 0 < share < 1:
            raise ValueError(f"share must be between 0 and 1, got {share}")
        self.share, self.wide, self.narrow = np.asarray(float(share)), _positive("wide", wide), _positive("narrow", narrow)

    @property
    def by_draws(self):
        return True

    def start(self):
        return {}

    def divergence(self, posterior, params, z):
        share, wide, narrow = (jnp.asarray(x, _dtype(params)) for x in (self.share, self.wide, self.narrow))
        normal = jax.scipy.stats.norm.logpdf

        def each(w):
            return jnp.logaddexp(jnp.log(share) + normal(w, 0, wide), jnp.log1p(-share) + normal(w, 0, narrow))

        return -posterior.entropy(params) - _summed(each, posterior.weights(params, z))


def _positive(name: str, value: float) -> np.ndarray:
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return np.asarray(float(value))


def _dtype(params: dict[str, PyTree]) -> Any:
    return jnp.result_type(*jax.tree.leaves(params["mean"]))


class Density(AbstractWeightPrior):
    """Any log density of the weights, by draws.

    Args:
        log_density: weights -> scalar.
    """

    log_density: Callable[[PyTree], Array]

    @property
    def by_draws(self):
        return True

    def start(self):
        return {}

    def divergence(self, posterior, params, z):
        return -posterior.entropy(params) - self.log_density(posterior.weights(params, z))
