"""What outputs of a network say of observations."""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree


class AbstractLikelihood(eqx.Module):
    """log p(y | outputs) of each observation."""

    def start(self) -> dict[str, Any]:
        """Parameters of the likelihood that are estimated."""
        return {}

    @abc.abstractmethod
    def log_prob(self, params: dict[str, PyTree], outputs: Float[Array, "b o"], y: Array) -> Float[Array, " b"]:
        """Of observations (b,) given outputs (b, o)."""


class Categorical(AbstractLikelihood):
    """Classes 0 to K - 1 by softmax of K outputs."""

    def log_prob(self, params, outputs, y):
        return jnp.take_along_axis(jax.nn.log_softmax(outputs, axis=1), y[:, None].astype(int), axis=1)[:, 0]


class Bernoulli(AbstractLikelihood):
    """0 or 1 by the logit, the only output."""

    def log_prob(self, params, outputs, y):
        eta = outputs[:, 0]
        return y * eta - jax.nn.softplus(eta)


class Poisson(AbstractLikelihood):
    """Counts by the log-rate, the only output."""

    def log_prob(self, params, outputs, y):
        eta = outputs[:, 0]
        return y * eta - jnp.exp(eta) - jax.scipy.special.gammaln(y + 1)


class Gaussian(AbstractLikelihood):
    """y ~ N(output, noise^2), the noise estimated unless it is fixed.

    Args:
        noise: standard deviation, at the start if it is learned. learned: estimate it.
    """

    noise: Array | np.ndarray
    learned: bool = eqx.field(static=True)

    def __init__(self, noise: float = 1.0, learned: bool = True) -> None:
        if not noise > 0:
            raise ValueError(f"noise must be positive, got {noise}")
        self.noise, self.learned = np.asarray(float(noise)), learned

    def start(self):
        return {"log_noise": np.log(self.noise)} if self.learned else {}

    def log_prob(self, params, outputs, y):
        noise = jnp.exp(params["log_noise"]) if self.learned else jnp.asarray(self.noise, outputs.dtype)
        return jax.scipy.stats.norm.logpdf(y, outputs[:, 0], noise)


class Given(AbstractLikelihood):
    """Outputs that are the log-likelihoods themselves."""

    def log_prob(self, params, outputs, y):
        return outputs[:, 0]
