"""Problems with non-smooth priors, and the proximal particle methods that meet them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import optimize, stats

import margaux as mx
from margaux.problem.model import AbstractModel, AbstractNonSmooth

from ._successors import Problem


class Envelope(AbstractModel):
    r"""A model with $g^\lambda(z)=\min_u g(u)+|u-z|^2/(2\lambda)$ in the place of its g: on it `mx.pgd` is MYPGD to the letter.

    Both gradients are what automatic differentiation makes of the value, for a proximal map that it can differentiate.
    """

    model: Any
    smoothing: float

    def log_joint(self, params, z, y):
        near = self.model.prox(params, z, jnp.asarray(self.smoothing), y)
        apart = ravel_pytree(z)[0] - ravel_pytree(near)[0]
        g = self.model.log_smooth(params, near, y) - self.model.log_joint(params, near, y)
        return self.model.log_smooth(params, z, y) - g - jnp.sum(apart**2) / (2 * self.smoothing)

    def init_latents(self, key, params, y):
        return self.model.init_latents(key, params, y)


class Location(AbstractNonSmooth):
    """y_i ~ N(x_i, 1), x_i ~ Laplace(theta, 1)."""

    def log_smooth(self, params, x, y):
        return -0.5 * (y - x) ** 2 - 0.5 * jnp.log(2 * jnp.pi)

    def log_joint(self, params, x, y):
        return self.log_smooth(params, x, y) - jnp.abs(x - params["theta"]) - jnp.log(2.0)

    def prox(self, params, x, step, y):
        return x - jnp.clip(x - params["theta"], -step, step)

    def init_latents(self, key, params, y):
        return jnp.zeros_like(y)


class Scale(AbstractNonSmooth):
    """y_i ~ N(x_i, 1), x_i ~ Laplace(0, e^theta)."""

    def log_smooth(self, params, x, y):
        return -0.5 * (y - x) ** 2 - 0.5 * jnp.log(2 * jnp.pi)

    def log_joint(self, params, x, y):
        theta = params["theta"]
        return self.log_smooth(params, x, y) - jnp.abs(x) * jnp.exp(-theta) - theta - jnp.log(2.0)

    def prox(self, params, x, step, y):
        return soft(x, step * jnp.exp(-params["theta"]))

    def init_latents(self, key, params, y):
        return jnp.zeros_like(y)


class SparseLogistic(AbstractNonSmooth):
    """Logistic regression whose coefficients are Laplace(theta, 1)."""

    def log_smooth(self, params, x, data):
        eta = data["X"] @ x
        return jnp.sum(data["y"] * eta - jnp.logaddexp(0.0, eta))

    def log_joint(self, params, x, data):
        return self.log_smooth(params, x, data) - jnp.sum(jnp.abs(x - params["theta"]) + jnp.log(2.0))

    def prox(self, params, x, step, data):
        return x - jnp.clip(x - params["theta"], -step, step)

    def init_latents(self, key, params, data):
        return params["theta"] + jax.random.normal(key, (data["X"].shape[1],), data["X"].dtype)


class SparseNetwork(AbstractNonSmooth):
    """Two classes by 40 tanh units; weights of layer l are Laplace(0, e^a_l), parameters a_l by the root of their number."""

    def log_smooth(self, params, z, images):
        own = jax.nn.log_softmax(jnp.tanh(images["x"] @ z["hidden"]) @ z["output"])
        return jnp.sum(jnp.take_along_axis(own, images["y"][:, None], axis=1))

    def log_joint(self, params, z, images):
        total = self.log_smooth(params, z, images)
        for name, weights in z.items():
            a = params[name] / weights.size**0.5
            total += -jnp.sum(jnp.abs(weights)) * jnp.exp(-a) - weights.size * (a + jnp.log(2.0))
        return total

    def prox(self, params, z, step, images):
        return {name: soft(weights, step * jnp.exp(-params[name] / weights.size**0.5)) for name, weights in z.items()}

    def init_latents(self, key, params, images):
        shapes = {"hidden": (images["x"].shape[1], 40), "output": (40, 2)}
        return {
            name: jax.random.laplace(own, shape, images["x"].dtype)
            for own, (name, shape) in zip(jax.random.split(key), shapes.items(), strict=True)
        }


def soft(x: Any, threshold: Any) -> Any:
    """The proximal map of a modulus."""
    return x - jnp.clip(x, -threshold, threshold)


def methods(h: float, smoothing: float, split: float, gain: float, n: int, model: Any) -> dict[str, tuple]:
    """By name, at steps h, or `split` of the proximal map, with n particles; SOUL's own by a gain over k^0.6."""
    envelope, root = mx.MCMC(mx.MYULA(h, smoothing), n_chains=n), mx.Polynomial(gain, 0.6)
    return {
        "MYPGD": (mx.mypgd(h), envelope),
        "MYPGD of the envelope": (mx.pgd(h), mx.MCMC(mx.ULA(h), n_chains=n), Envelope(model, smoothing)),
        "MYIPLA": (mx.myipla(h), envelope),
        "PIPGLA": (mx.pipgla(split), mx.MCMC(mx.ProximalULA(split), n_chains=n)),
        "IPLA, subgradients": (mx.ipla(h), mx.MCMC(mx.ULA(h), n_chains=n)),
        "SOUL, MYULA": (mx.soul(root), envelope),
        "SOUL, MALA": (mx.soul(root), mx.MCMC(mx.MALA(h), n_chains=n)),
    }


def problems() -> dict[str, Problem]:
    """Two whose maxima are known in closed form; the regression of the paper at its size, by its steps and by shorter ones."""
    rng, model = np.random.default_rng(0), SparseLogistic()
    found = {
        name: Problem(model, regression(), 0.0, LOGISTIC, 5000, methods(h, smoothing, 0.01, 1 / 50, 50, model))
        for name, h, smoothing in (("Laplace logistic", 0.05, 0.35), ("Laplace logistic, short steps", 0.01, 0.05))
    }
    for name, model, y in (
        ("Laplace place", Location(), rng.laplace(1.0, 1.0, 50) + rng.normal(size=50)),
        ("Laplace scale", Scale(), rng.laplace(0.0, 2.0, 50) + rng.normal(size=50)),
    ):
        found[name] = Problem(model, y, 3.0, maximum(y, name.split()[1]), 4000, methods(0.01, 0.1, 0.01, 1.0, 20, model))
    return found


def maximum(y: np.ndarray, of: str) -> float:
    """Of the marginal likelihood in theta, by the density of a Laplace and a standard normal number's sum."""

    def negative(theta: float) -> float:
        place, b = (theta, 1.0) if of == "place" else (0.0, np.exp(theta))
        r = (y - place) / b
        tails = np.logaddexp(stats.norm.logcdf(r * b - 1 / b) - r, stats.norm.logcdf(-r * b - 1 / b) + r)
        return -float(np.sum(tails - np.log(2 * b) + 0.5 / b**2))

    found: Any = optimize.minimize_scalar(negative, bounds=(-5.0, 5.0), method="bounded", options={"xatol": 1e-9})
    return float(found.x)


#: theta of `regression`, by random-walk Metropolis chains in NumPy and by MALA, to about 0.02: see the slow test of
#: tests/reproduce/test_proximal_reproduce.py
LOGISTIC = -4.58


def regression(seed: int = 3) -> Any:
    """900 answers on 50 uniform covariates whose coefficients are Laplace(-4, 1), as one unit."""
    rng = np.random.default_rng(seed)
    X, x = rng.uniform(-1.0, 1.0, (900, 50)), rng.laplace(-4.0, 1.0, 50)
    return mx.one_unit({"X": X, "y": (rng.uniform(size=900) < 1 / (1 + np.exp(-X @ x))).astype(float)})
