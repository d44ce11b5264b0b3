"""Interacting particles: parameters and latents move together along one Langevin system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..esteps import MCMC
from ..kernels import MYULA, ProximalULA
from ..kernels.base import move
from ..problem.model import leading, mapped
from ..problem.schedule import AbstractSchedule
from .average import AbstractAverage
from .base import AbstractRowless, summed
from .statistics import Score

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Array, PyTree

#: kernel of the particles, and how it is written, by how g is met
_KERNELS = {"envelope": (MYULA, "mx.MYULA(step, smoothing)"), "splitting": (ProximalULA, "mx.ProximalULA(step)")}


class ParticleLangevin(AbstractRowless):
    r"""$\theta' = \Pi_\Theta[\theta + h\,\frac1N\sum_j\nabla_\theta\log p(y, z_j\mid\theta) + \sqrt{2h\tau}\,\zeta]$,
    with N particles $z_j$ that each make one ULA step.

    The particles are the chains of the E-step: `MCMC(ULA(h), n_chains=N)`. What sets it apart from SOUL are
    steps of $\theta$ that do not vanish, on the time scale of the latents (scores are totals over units),
    and its temperature: $\tau = 0$ (particle gradient descent), 1 / N (IPLA: the law of $\theta$
    concentrates on the maximiser as N grows), or fixed (slow-fast Langevin).

    Of models with a non-smooth g (`margaux.AbstractNonSmooth`) the particles follow the envelope of g, by
    `MCMC(MYULA(h, smoothing), n_chains=N)`, or its proximal map, by `MCMC(ProximalULA(h), n_chains=N)`. Scores are then taken
    half-way between where a particle was before the map and where it is behind it: behind it, it may lie on the kink of g, where
    a derivative is whatever the last bit of rounding makes of it.

    Args:
        step: h. noise: "none", "per particle" or "fixed". temperature: $\tau$ of "fixed".
        nonsmooth: how a non-smooth g is met, "envelope" or "splitting".
    """

    step_size: AbstractSchedule
    noise: str = eqx.field(static=True)
    temperature: Array | np.ndarray
    average: AbstractAverage
    nonsmooth: str | None = eqx.field(static=True)

    def __init__(
        self,
        step: AbstractSchedule,
        noise: str,
        temperature: Array | np.ndarray,
        average: AbstractAverage,
        nonsmooth: str | None = None,
    ) -> None:
        self.step_size, self.noise, self.temperature = step, noise, temperature
        self.average, self.nonsmooth = average, nonsmooth

    def check(self, estep):
        if isinstance(estep, MCMC) and not estep.warm_start:
            raise ValueError("particles go on from where they were: leave warm_start=False out of mx.MCMC")
        if self.nonsmooth is None:
            return
        kind, shown = _KERNELS[self.nonsmooth]
        kernel: Any = estep.kernel if isinstance(estep, MCMC) else estep
        if not isinstance(kernel, kind):
            raise TypeError(
                f"particles of this algorithm move by {kind.__name__}, those given by {type(kernel).__name__}: "
                f"pass mx.MCMC({shown}, n_chains=N)"
            )
        own, theirs = float(self.step_size(1)), float(kernel.step_size(1))
        follows = kernel.automatic if isinstance(kernel, MYULA) else kernel.scaling.relative
        if not follows and abs(own - theirs) > 1e-6 * own:
            raise ValueError(
                f"the particles' step is {theirs:g} and that of the parameters {own:g}; this algorithm has one for both: pass "
                f"step={own:g} to the kernel, too"
            )

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
        estep, split = visit.counting(estep), self.nonsmooth == "splitting"

        def f(z, w):
            return w if split else Score().total(problem.model, params, z, w, batch)

        score, estep_rows, info = estep.expect(f, visit.noise, problem.model, params, estep_rows, batch, k)
        if split:
            score = Score().total(problem.model, params, _halfway(estep_rows, b=leading(batch)), score, batch)
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


def _halfway(rows: PyTree, b: int) -> PyTree:
    """Latents (chains, b, ...) half-way between before and behind the last proximal map of `margaux.ProximalULA`."""
    chain = mapped(lambda z, state: move(z, state["fall"] / 2), rows["kernel"]["fall"].shape[1])
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), mapped(chain, b)(rows["z"], rows["kernel"]))
