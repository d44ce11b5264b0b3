"""Interacting particles: parameters and latents move together along one Langevin system."""

from __future__ import annotations

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..problem.schedule import AbstractSchedule
from .average import AbstractAverage
from .base import AbstractRowless, summed
from .statistics import Score

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Array


class ParticleLangevin(AbstractRowless):
    r"""$\theta' = \Pi_\Theta[\theta + h\,\frac1N\sum_j\nabla_\theta\log p(y, z_j\mid\theta) + \sqrt{2h\tau}\,\zeta]$,
    with N particles $z_j$ that each make one ULA step.

    The particles are the chains of the E-step: `MCMC(ULA(h), n_chains=N)`. What sets it apart from SOUL are
    steps of $\theta$ that do not vanish, on the time scale of the latents (scores are totals over units),
    and its temperature: $\tau = 0$ (particle gradient descent), 1 / N (IPLA: the law of $\theta$
    concentrates on the maximiser as N grows), or fixed (slow-fast Langevin).

    Args:
        step: h. noise: "none", "per particle" or "fixed". temperature: $\tau$ of "fixed".
    """

    step_size: AbstractSchedule
    noise: str = eqx.field(static=True)
    temperature: Array | np.ndarray
    average: AbstractAverage

    def __init__(self, step: AbstractSchedule, noise: str, temperature: Array | np.ndarray, average: AbstractAverage) -> None:
        self.step_size, self.noise, self.temperature = step, noise, temperature
        self.average = average

    def requires(self, problem):
        return None

    def init(self, problem, params, per_unit):
        return ()

    def statistics(self, problem, params, z, w, batch):
        return Score().per_unit(problem.model, params, z, w, batch)

    def step(self, problem, estep, params, state, visit):
        estep_rows, own_rows = visit.rows
        batch, k = visit.batch, visit.k
        b, chains = visit.size(problem), getattr(estep, "n_chains", 1)
        estep = visit.counting(estep)

        def f(z, w):
            return Score().total(problem.model, params, z, w, batch)

        score, estep_rows, info = estep.expect(f, visit.noise, problem.model, params, estep_rows, batch, k)
        score, info = summed(score, info, visit.axis)
        flat, unravel = ravel_pytree(params)
        h = self.step_size(k).astype(flat.dtype)
        moved = flat + h * (problem.n / b) * ravel_pytree(score)[0]
        if self.noise != "none":
            tau = self.temperature / chains if self.noise == "per particle" else self.temperature
            zeta = jax.random.normal(jax.random.fold_in(jax.random.fold_in(visit.key, k), 2**31 - 1), flat.shape, flat.dtype)
            moved = moved + jnp.sqrt(2 * h * jnp.asarray(tau, flat.dtype)) * zeta
        params = problem.land(unravel(moved), h * problem.n)
        return params, state, (estep_rows, own_rows), {name: figure / b for name, figure in info.items()}
