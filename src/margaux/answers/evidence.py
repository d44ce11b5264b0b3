"""Marginal likelihoods where importance sampling from one Gaussian is not enough: harmonic mean, Student, annealing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ..engine.share import alone
from ..esteps.base import flat_start, flat_target
from ..kernels import MALA
from ..numerics.compiling import compiled
from ..numerics.gaussian import laplace
from ..numerics.keys import key_of
from ..numerics.precision import default_dtype, precision, settle
from .draws import draws

if TYPE_CHECKING:
    from collections.abc import Callable

    from .fit import Fit


#: draws a truncated harmonic mean keeps inside its region, as a share (SOUL, section 4.1)
SHARE = 0.4
#: degrees of freedom of the Student proposal
DF = 5.0
#: batches for Monte Carlo errors of chains
BATCHES = 20


def harmonic_mean(fit: Fit, params: PyTree, n_draws: int, key: int = 0) -> tuple[np.ndarray, np.ndarray]:
    r"""Truncated harmonic mean (Robert and Wraith 2009; SOUL, section 4.1), unit by unit.

    $\hat p(y_i|\theta) = \mathrm{Vol}(A_i)\, m \big/ \sum_j 1\{z_j\in A_i\}/p(y_i, z_j|\theta)$ along a chain of m draws;
    A is the ellipsoid around their mean, shaped by their covariance, that holds 40% of them. The chain is
    MALA, preconditioned by its own covariance, so that it has no bias of its own.

    Returns:
        log marginals (n,) and their standard errors (n,), the latter by batch means.
    """
    dtype = default_dtype(None)
    settled = 2000
    z = draws(fit, n_draws + settled, key=key, params=params, kernel=MALA(0.5, preconditioner="dense"))
    z = jax.tree.map(lambda leaf: leaf[settled:], z)
    with precision(dtype):
        at = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), fit.params if params is None else params)
        model, data = settle((fit._model().model, jax.tree.map(np.asarray, fit.data)), dtype)
        flat, logs = (np.asarray(a) for a in _log_joint_of_draws(model, at, data, jax.tree.map(jnp.asarray, z)))
    out, errors = [], []
    for x, log_p in zip(np.moveaxis(flat, 1, 0), logs.T, strict=True):
        centred = x - x.mean(axis=0)
        factor = np.linalg.cholesky(np.cov(x.T).reshape(x.shape[1], x.shape[1]))
        size = np.linalg.norm(np.linalg.solve(factor, centred.T), axis=0)
        radius = np.quantile(size, SHARE)
        d = x.shape[1]
        log_volume = d / 2 * np.log(np.pi) - scipy.special.gammaln(d / 2 + 1) + d * np.log(radius) + np.log(np.diag(factor)).sum()
        top = log_p[size <= radius].min()
        ratio = np.where(size <= radius, np.exp(top - log_p), 0.0)
        # Chains are the fastest axis: batches of consecutive draws.
        batches = np.array([part.mean() for part in np.array_split(ratio, BATCHES)])
        out.append(log_volume + top - np.log(ratio.mean()))
        errors.append(batches.std(ddof=1) / np.sqrt(BATCHES) / ratio.mean())
    return np.array(out), np.array(errors)


@compiled
def _log_joint_of_draws(model, params, data, z):
    """Flat draws (m, n, d) and their log joints (m, n), m over draws and chains."""
    z = jax.tree.map(lambda leaf: leaf.reshape((-1,) + leaf.shape[2:]), z)

    def one(z_i, y_i):
        return ravel_pytree(z_i)[0], model.log_joint(params, z_i, y_i)

    return jax.lax.map(lambda z_j: jax.vmap(one)(z_j, data), z, batch_size=1000)


def student(fit: Fit, params: PyTree, n_draws: int, key: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Importance sampling from a multivariate t (5 degrees of freedom) at each unit's mode and curvature.

    Returns:
        log marginals (n,) and their standard errors (n,).
    """

    def weights(key, target, mode, factor):
        normal_key, scale_key = jax.random.split(key)
        d = mode.size
        e = jax.random.normal(normal_key, (n_draws, d), mode.dtype)
        # A chi-squared with DF degrees of freedom is twice a gamma.
        chi = 2 * jax.random.gamma(scale_key, DF / 2, (n_draws, 1), mode.dtype)
        u = e * jnp.sqrt(DF / chi)
        lgamma = jax.scipy.special.gammaln
        constant = lgamma((DF + d) / 2) - lgamma(DF / 2) - d / 2 * jnp.log(DF * jnp.pi) - jnp.sum(jnp.log(jnp.diagonal(factor)))
        log_q = constant - (DF + d) / 2 * jnp.log1p(jnp.sum(u**2, axis=1) / DF)
        return jax.lax.map(target, mode + u @ factor.T, batch_size=1000) - log_q

    return _weighted(fit, params, weights, key)


def annealed(fit: Fit, params: PyTree, n_draws: int, key: int = 0, n_temperatures: int = 50) -> tuple[np.ndarray, np.ndarray]:
    r"""Annealed importance sampling (Neal 2001) from the Laplace approximation to the posterior.

    Along $\log\pi_t = (1-t)\log q + t\log p(y_i, z|\theta)$, t on a uniform grid, with two MALA transitions a
    temperature in the coordinates whitened by q, whose standard deviations are widened by 1.5.

    Returns:
        log marginals (n,) and their standard errors (n,).
    """
    step = 0.3

    def weights(key, target, mode, factor):
        factor = 1.5 * factor
        d = mode.size
        log_det = jnp.sum(jnp.log(jnp.diagonal(factor)))

        def log_q(w):
            return -0.5 * jnp.sum(w**2) - d / 2 * jnp.log(2 * jnp.pi) - log_det

        def log_p(w):
            return target(mode + factor @ w)

        kernel, gamma = MALA(step / max(d, 1) ** (1 / 3), target_acceptance=None), jnp.asarray(step / max(d, 1) ** (1 / 3))

        def particle(key):
            w = jax.random.normal(jax.random.fold_in(key, 0), (d,), mode.dtype)

            def anneal(state, j):
                w, log_weight = state
                t = (j + 1) / n_temperatures
                log_weight = log_weight + (log_p(w) - log_q(w)) / n_temperatures

                def bridge(w):
                    return (1 - t) * log_q(w) + t * log_p(w)

                known = kernel.valued(w, {}, bridge)
                for turn in range(2):
                    noise = kernel.noise(jax.random.fold_in(key, 1 + 2 * j + turn), w)
                    w, known, _ = kernel.step(noise, w, known, bridge, gamma)
                return (w, log_weight), None

            start = (w, jnp.zeros((), mode.dtype))
            return jax.lax.scan(anneal, start, jnp.arange(n_temperatures))[0][1]

        return jax.lax.map(particle, jax.random.split(key, n_draws), batch_size=256)

    return _weighted(fit, params, weights, key)


def _weighted(fit: Fit, params: PyTree, weights: Callable[..., Any], key: int) -> tuple[np.ndarray, np.ndarray]:
    """Log of the mean weight of each unit, and its error by the delta method."""
    dtype = default_dtype(None)
    with precision(dtype):
        at = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), fit.params if params is None else params)
        alone(fit.share, "this likelihood")
        model, data = settle((fit._model().model, jax.tree.map(np.asarray, fit.data)), dtype)
        logs = np.asarray(_log_weights(model, at, data, key_of(key), weights)).astype(float)
    top = logs.max(axis=1, keepdims=True)
    ratio = np.exp(logs - top)
    mean = ratio.mean(axis=1)
    return top[:, 0] + np.log(mean), ratio.std(axis=1, ddof=1) / np.sqrt(ratio.shape[1]) / mean


@compiled
def _log_weights(model, params, data, key, weights):
    def unit(pair: tuple[Array, PyTree]) -> Array:
        i, y = pair
        at = jax.random.fold_in(key, i)
        target, _ = flat_target(model, params, y)
        mode, factor = laplace(target, flat_start(at, model, params, y), 50)
        log_w = weights(jax.random.fold_in(at, 1), target, mode, factor)
        return jnp.where(jnp.isnan(log_w), -jnp.inf, log_w)

    n = jax.tree.leaves(data)[0].shape[0]
    return jax.lax.map(unit, (jnp.arange(n), data))
