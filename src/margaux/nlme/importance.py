"""Importance sampling of a subject's random effects: what likelihoods, standard errors and moments are computed with."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from ..esteps import AbstractEStep
from ..gaussian import normals
from ..model import leading, mapped
from .modes import find_mode

#: successive draws come from the adapted Gaussian (0), from it twice as wide (1), and from the population (2)
ORDER, WIDE = (0, 0, 1, 0, 2), 2.0
#: rounds of adaptation, and draws in each
ROUNDS, TRIAL = 3, 128


class AdaptedMixture(AbstractEStep):
    r"""Self-normalised importance sampling from $0.6\,N(m, S) + 0.2\,N(m, 4S) + 0.2\,N(C_i\beta, \Omega)$, in fixed proportions.

    (m, S) start at the Laplace approximation and are moved to the weighted moments of trial draws: adaptive importance
    sampling, for posteriors with kinks and flat directions, where the curvature at the mode says little. The population's
    part bounds the weights wherever the likelihood is bounded. Draws are quasi-Monte-Carlo.

    Args:
        n_draws: draws a subject.

    Traces the effective sample size and the log marginal likelihood.
    """

    n_draws: int = eqx.field(static=True)

    def requires(self, model, latents):
        return None

    def init(self, key, model, params, y):
        mode = find_mode(model, params, y)
        normal = normals(key, TRIAL, mode.place.size, mode.place.dtype, True)

        def adapt(_, row):
            z, log_w = _draws(normal, model, params, row, y)
            w = jax.nn.softmax(log_w)
            mean = w @ z
            gap = z - mean
            old = row["root"] @ row["root"].T
            # A tenth of the old covariance keeps the new one from collapsing onto a few heavy draws.
            moments = 0.9 * (gap * w[:, None]).T @ gap + 0.1 * (old + jnp.outer(row["mean"] - mean, row["mean"] - mean))
            root = jnp.linalg.cholesky(moments)
            good = jnp.all(jnp.isfinite(root))
            return {"mean": jnp.where(good, mean, row["mean"]), "root": jnp.where(good, root, row["root"])}

        return jax.lax.fori_loop(0, ROUNDS, adapt, {"mean": mode.place, "root": mode.root})

    def noise(self, key, latents):
        return normals(key, self.n_draws, latents.size, latents.dtype, True)

    def expect(self, f, noise, model, params, rows, batch, k):
        each = mapped(lambda normal, row, y: _draws(normal, model, params, row, y), leading(batch))
        z, log_w = each(noise, rows, batch)
        w = jax.nn.softmax(log_w, axis=1).T
        log_mean = jax.nn.logsumexp(log_w, axis=1) - jnp.log(noise.shape[1])
        ess = 1 / jnp.sum(w**2, axis=0)
        return f(jnp.moveaxis(z, 0, 1), w), rows, {"ess": jnp.sum(ess), "log_marginal": jnp.sum(log_mean)}


def _draws(normal: Any, model: Any, params: Any, row: Any, y: Any) -> tuple[Any, Any]:
    """Draws (m, d) from standard normals, and their log weights."""
    m, d = normal.shape
    mean, root = row["mean"], row["root"]
    centre, spread = model.population(params, y)
    part = jnp.asarray(ORDER)[jnp.arange(m) % len(ORDER)][:, None]
    narrow, wide, far = (normal @ root.T, WIDE * normal @ root.T, normal @ spread.T)
    z = jnp.where(part == 2, centre + far, mean + jnp.where(part == 1, wide, narrow))

    def log_density(z, mean, root):
        # By the inverse: batched triangular solves with a thousand right sides deadlock XLA's CPU thread pool.
        inverse = jax.scipy.linalg.solve_triangular(root, jnp.eye(d, dtype=z.dtype), lower=True)
        white = (z - mean) @ inverse.T
        return -jnp.sum(white**2, axis=1) / 2 - jnp.sum(jnp.log(jnp.diagonal(root))) - d / 2 * jnp.log(2 * jnp.pi)

    parts = [log_density(z, mean, root), log_density(z, mean, WIDE * root), log_density(z, centre, spread)]
    shares = jnp.log(jnp.stack([jnp.mean(part == j) for j in range(3)]).astype(z.dtype))
    log_q = jax.nn.logsumexp(jnp.stack(parts) + shares[:, None], axis=0)
    log_p = jax.vmap(lambda x: model.log_joint(params, x, y))(z)
    return z, jnp.where(jnp.isnan(log_p), -jnp.inf, log_p) - log_q
