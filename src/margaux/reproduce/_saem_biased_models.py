"""What the biased-SAEM experiments are made of: their models, a kernel, and test scores."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.scipy.stats import norm
from scipy import special
from scipy.optimize import minimize

import margaux as mx
from margaux.kernels import AbstractKernel


class Dispersed(mx.AbstractExponentialFamily):
    """A model whose chains start at a Gaussian scatter around its own starting latents."""

    model: Any
    sd: float

    def log_joint(self, params, z, y):
        return self.model.log_joint(params, z, y)

    def init_latents(self, key, params, y):
        z = self.model.init_latents(key, params, y)
        return z + self.sd * jax.random.normal(key, z.shape, z.dtype)

    def suffstats(self, z, y):
        return self.model.suffstats(z, y)

    def m_step(self, mean_stats):
        return self.model.m_step(mean_stats)


class Together(mx.AbstractExponentialFamily):
    """All units of a model as one: a chain accepts or rejects their latents together."""

    model: Any

    def log_joint(self, params, z, y):
        return jnp.sum(jax.vmap(lambda z_i, y_i: self.model.log_joint(params, z_i, y_i))(z, y))

    def init_latents(self, key, params, y):
        keys = jax.random.split(key, jax.tree.leaves(y)[0].shape[0])
        return jax.vmap(lambda k, y_i: self.model.init_latents(k, params, y_i))(keys, y)

    def suffstats(self, z, y):
        return jax.tree.map(lambda s: jnp.mean(s, axis=0), jax.vmap(self.model.suffstats)(z, y))

    def m_step(self, mean_stats):
        return self.model.m_step(mean_stats)


class AbstractRobustPoisson(mx.AbstractExponentialFamily):
    r"""$y_i\sim\mathrm{Poisson}(e^{z_i})$, $z_i\sim N(x_i^\top\beta, \sigma^2)$; one unit is a row, its `x` (p,) led by a one."""

    def log_joint(self, params, z, row):
        data = row["y"] * z - jnp.exp(z) - gammaln(row["y"] + 1)
        return data + norm.logpdf(z, row["x"] @ params["beta"], params["sigma"])

    def init_latents(self, key, params, row):
        return row["x"] @ params["beta"]

    def suffstats(self, z, row):
        return {"xz": row["x"] * z, "zz": z**2}


class RobustPoisson(AbstractRobustPoisson):
    """The M-step that regresses with the intercept in the design; `gram` is the mean of x x^T."""

    gram: np.ndarray

    def m_step(self, mean_stats):
        beta = jnp.linalg.solve(self.gram, mean_stats["xz"])
        return {"beta": beta, "sigma": jnp.sqrt(mean_stats["zz"] - beta @ mean_stats["xz"])}


class SlopesAlone(AbstractRobustPoisson):
    """The authors' M-step: slopes without an intercept in the design, which is then set to the mean residual."""

    gram: np.ndarray

    def m_step(self, mean_stats):
        xz, slopes = mean_stats["xz"], jnp.linalg.solve(self.gram[1:, 1:], mean_stats["xz"][1:])
        beta = jnp.concatenate([(xz[0] - self.gram[0, 1:] @ slopes)[None], slopes])
        return {"beta": beta, "sigma": jnp.sqrt(mean_stats["zz"] - 2 * beta @ xz + beta @ self.gram @ beta)}


class CurvatureScaled(AbstractKernel):
    r"""A kernel preconditioned by a bound on each coefficient's curvature as the prior stands: $1/P_j = 1/\sigma_j^2 + n/4$.

    For logistic regression with n rows, standardised columns, and an intercept, the first, whose own prior is left out.
    """

    kernel: AbstractKernel
    step_size: Any
    target_acceptance: Any
    adjusted: ClassVar[bool] = True

    def __init__(self, kernel: AbstractKernel) -> None:
        self.kernel, self.step_size, self.target_acceptance = kernel, kernel.step_size, kernel.target_acceptance

    def init(self, z):
        return self.kernel.init(z)

    def noise(self, key, z):
        return self.kernel.noise(key, z)

    def refresh(self, z, kstate, logdensity):
        root, target = _scaled(logdensity)
        return self.kernel.valued(z / root, kstate, target)

    def step(self, noise, z, kstate, logdensity, scale):
        root, target = _scaled(logdensity)
        w, kstate, probability = self.kernel.step(noise, z / root, kstate, target, scale)
        return root * w, kstate, probability


def _scaled(logdensity: Any) -> tuple[jax.Array, Any]:
    """What divides a latent, and the density of the quotient."""
    sigma = logdensity.params["sigma"]
    precision = jnp.concatenate([jnp.zeros(1, sigma.dtype), 1 / sigma**2]) + logdensity.n_rows / 4
    root = 1 / jnp.sqrt(precision)
    return root, lambda w: logdensity(root * w)


def poisson_density(params: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, n_nodes: int = 1024) -> float:
    """Mean log p(y | x) over rows by Gauss-Hermite, every constant included."""
    nodes, weights = special.roots_hermite(n_nodes)
    kept = weights > 0  # the outermost weights underflow
    z = (x @ params["beta"])[:, None] + np.sqrt(2) * params["sigma"] * nodes[kept]
    with np.errstate(over="ignore"):  # a rate too large for a float has density zero
        logs = y[:, None] * z - np.exp(z) - special.gammaln(y[:, None] + 1)
    density: Any = special.logsumexp(logs + np.log(weights[kept] / np.sqrt(np.pi)), axis=1)
    return float(np.mean(density))


def laplace(x: np.ndarray, y: np.ndarray, sigma: np.ndarray, test: np.ndarray) -> tuple[float, np.ndarray]:
    r"""Logistic regression with $\beta_j\sim N(0, \sigma_j^2)$ by the Laplace approximation to its posterior.

    Returns:
        log p(y | sigma), and P(y = 1) at the test rows.
    """
    design = x * sigma  # beta = sigma w, w ~ N(0, I): the curvature is at least one, and sigma may vanish

    def minus(w: np.ndarray) -> tuple[float, np.ndarray]:
        eta = design @ w
        return float(np.sum(np.logaddexp(0, eta) - y * eta) + w @ w / 2), design.T @ (special.expit(eta) - y) + w

    def hessian(w: np.ndarray) -> np.ndarray:
        p = special.expit(design @ w)
        return (design * (p * (1 - p))[:, None]).T @ design + np.eye(len(w))

    found: Any = minimize(minus, np.zeros(x.shape[1]), jac=True, hess=hessian, method="trust-exact")
    factor = np.linalg.cholesky(hessian(found.x))
    marginal = -found.fun - np.sum(np.log(np.diag(factor)))
    sd = np.linalg.norm(np.linalg.solve(factor, (test * sigma).T), axis=0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    p = special.expit((test * sigma @ found.x)[:, None] + sd[:, None] * nodes) @ (weights / weights.sum())
    return float(marginal), p


def log_score(p: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Mean log predictive density and accuracy of probabilities of y = 1."""
    return float(np.mean(np.log(np.where(y == 1, p, 1 - p)))), float(np.mean((p > 0.5) == (y == 1)))


def decades(steps: np.ndarray, values: np.ndarray, least: float) -> float:
    """Width, in decades of the step, of the run of grid points around the best one that reach `least`; NaN for none."""
    values = np.where(np.isfinite(values), values, -np.inf)
    best = int(np.argmax(values))
    if values[best] < least:
        return np.nan
    low = high = best
    while low > 0 and values[low - 1] >= least:
        low -= 1
    while high + 1 < len(values) and values[high + 1] >= least:
        high += 1
    return float(np.log10(steps[high] / steps[low]))


def standardised(x: np.ndarray, train: np.ndarray) -> np.ndarray:
    """An intercept, and columns with mean 0 and SD 1 over the training rows."""
    sd = x[train].std(axis=0)
    return np.column_stack([np.ones(len(x)), (x - x[train].mean(axis=0)) / np.where(sd > 0, sd, 1.0)])
