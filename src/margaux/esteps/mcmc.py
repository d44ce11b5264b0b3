"""The Markov chain E-step: one kernel, several chains a unit, started where they were left."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ..kernels import (
    MALA,
    AbstractBlockedKernel,
    AbstractKernel,
    AbstractPriorKernel,
    AbstractProximalKernel,
    AbstractSubsamplingKernel,
)
from ..kernels.base import gain
from ..problem.model import (
    AbstractFactorised,
    AbstractLikelihood,
    AbstractModel,
    AbstractNonSmooth,
    AbstractShared,
    for_searches,
    leading,
    mapped,
    over_units,
)
from ..problem.schedule import AbstractSchedule, as_schedule
from ..problem.target import Target
from .base import AbstractEStep, continuous, first_draw

#: transitions of the default kernel an iteration, and before the first one
STEPS, WARM_UP = 5, 500

#: kernels that ask for more than a density, and the models that have it
_CAPABILITIES = [
    (AbstractProximalKernel, AbstractNonSmooth),
    (AbstractSubsamplingKernel, AbstractFactorised),
    (AbstractBlockedKernel, AbstractShared),
]


class MCMC(AbstractEStep):
    """Averages over the states of Markov chains, each unit with its own (SOUL / SOUK, MCMC-SAEM).

    Args:
        kernel: any kernel, exact or not; by default `margaux.MALA`, whose step adapts to its target acceptance.
        n_steps: transitions an iteration, a number or a growing schedule (`margaux.Growth`).
        n_chains: chains a unit.
        thin: every `thin`-th state is averaged; n_steps for the last one alone (the SAEM habit).
        burn_in: transitions discarded at the start of each iteration.
        warm_up: transitions made once, at the starting parameters, before the first iteration. From latents that start close
            together the first iterations would have variances collapse, which then take long to recover.
        warm_start: chains go on from where they stopped; otherwise they restart each iteration.

    With the default kernel n_steps is 5 and warm_up 500, and with one that is given 1 and 0, unless they are given too.

    Step sizes of adjusted kernels are adapted by Robbins-Monro, unit by unit, towards the kernel's
    target acceptance, with gain (number of transitions)^-0.6.

    >>> import margaux as mx
    >>> mx.MCMC().kernel.adjusted
    True
    >>> estep = mx.MCMC(mx.ULA(step_size=0.02), n_steps=3)      # not adjusted: its bias shrinks with the step
    """

    may_be_padded: ClassVar[bool] = True
    kernel: AbstractKernel
    n_steps: int | AbstractSchedule
    n_chains: int = eqx.field(static=True)
    thin: int = eqx.field(static=True)
    burn_in: int = eqx.field(static=True)
    warm_up: int
    warm_start: bool = eqx.field(static=True)

    def __init__(
        self,
        kernel: AbstractKernel | None = None,
        n_steps: int | AbstractSchedule | None = None,
        n_chains: int = 1,
        thin: int = 1,
        burn_in: int = 0,
        warm_up: int | None = None,
        warm_start: bool = True,
    ) -> None:
        steps, transitions = (STEPS, WARM_UP) if kernel is None else (1, 0)
        n_steps, warm_up = steps if n_steps is None else n_steps, transitions if warm_up is None else warm_up
        kernel = MALA() if kernel is None else kernel
        if not isinstance(kernel, AbstractKernel):
            raise TypeError(f"kernel must be a margaux kernel such as mx.MALA(); got {kernel!r}")
        for name, value, least in [
            ("n_chains", n_chains, 1),
            ("thin", thin, 1),
            ("burn_in", burn_in, 0),
            ("warm_up", warm_up, 0),
        ]:
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if isinstance(n_steps, int):
            if n_steps < 1:
                raise ValueError(f"n_steps must be at least 1, got {n_steps}")
            if thin > n_steps:
                raise ValueError(f"thin = {thin} keeps no state of n_steps = {n_steps}; lower thin or raise n_steps")
            self.n_steps = n_steps
        else:
            self.n_steps = as_schedule(n_steps, name="n_steps")
        self.kernel, self.n_chains, self.thin, self.burn_in = kernel, n_chains, thin, burn_in
        self.warm_up, self.warm_start = warm_up, warm_start

    def requires(self, model, latents):
        if (trouble := continuous(model, latents, type(self.kernel).__name__)) is not None:
            return trouble
        for kind, capability in _CAPABILITIES:
            if isinstance(self.kernel, kind) and not isinstance(model, capability):
                kernel, parts = type(self.kernel).__name__, sorted(capability.__abstractmethods__ - {"log_joint", "init_latents"})
                return (
                    f"{kernel} needs {' and '.join(parts)}, which {type(model).__name__} lacks; "
                    f"inherit from margaux.{capability.__name__}, or use margaux.MALA"
                )
        if isinstance(self.kernel, AbstractPriorKernel) and not isinstance(model, AbstractLikelihood):
            return (
                f"{type(self.kernel).__name__} brings a prior of its own, and log_joint of {type(model).__name__} holds one "
                "already, which would count beside it; inherit from margaux.AbstractLikelihood, with the likelihood alone"
            )
        return lacks_prior(model, self)

    def refused(self, model, params, z, y, k=1, reach=1.0):
        return self.kernel.refused(z, Target(for_searches(model), params, y), k, reach)

    def init(self, key, model, params, y):
        z = mapped(lambda c: model.init_latents(jax.random.fold_in(key, c), params, y), self.n_chains)(jnp.arange(self.n_chains))
        row = {"z": z, "kernel": mapped(self.kernel.init, self.n_chains)(z)}
        if self.kernel.target_acceptance is not None:
            dtype = jnp.result_type(*jax.tree.leaves(z))
            row |= {"log_scale": jnp.zeros((), dtype), "n_transitions": jnp.ones((), dtype)}
        return self._warmed(jax.random.fold_in(key, self.n_chains), model, params, row, y) if self.warm_up else row

    def _warmed(self, key, model, params, row, y):
        rows, batch = first_draw(row), first_draw(y)
        latents = jax.tree.map(lambda z: z[0], row["z"])
        # The step of a kernel that is not adjusted is to follow the curvature on the way.
        steps = STEPS if self.kernel.adjusted else 1

        def some(t, rows):
            rows = rows | {"kernel": self._refreshed(model, params, rows, batch)}
            noise = self._steps(jax.random.fold_in(key, t), latents, steps)

            def one(s, rows):
                return self._transition(jax.tree.map(lambda leaf: leaf[s][None], noise), model, params, rows, batch, 1)[0]

            return jax.lax.fori_loop(0, jnp.minimum(steps, self.warm_up - t * steps), one, rows)

        return jax.tree.map(lambda leaf: leaf[0], jax.lax.fori_loop(0, -(-self.warm_up // steps), some, rows))

    def noise(self, key, latents):
        if not isinstance(self.n_steps, int):
            return {"key": key}
        steps = self._steps(key, latents, self.burn_in + self.n_steps)
        return {"steps": steps} if self.warm_start else {"steps": steps, "key": key}

    def _steps(self, key, latents, count):
        """Noise of so many transitions of one unit: leaves (count, chains, ...)."""
        drawn = self.kernel.noises(key, latents, count * self.n_chains)
        return jax.tree.map(lambda leaf: leaf.reshape((count, self.n_chains) + leaf.shape[1:]), drawn)

    def expect(self, f, noise, model, params, rows, batch, k):
        b = leading(batch)
        if not self.warm_start:
            rows = self._restarted(noise, model, params, rows, batch)
        rows = rows | {"kernel": self._refreshed(model, params, rows, batch)}
        at = _reader(self, noise, rows)

        if isinstance(self.n_steps, int):
            kept = self.n_steps // self.thin
            last = self.burn_in + kept * self.thin
        else:
            kept = jnp.maximum(jnp.floor(self.n_steps(k)).astype(jnp.int32) // self.thin, 1)
            last = self.burn_in + kept * self.thin
        dtype = jnp.result_type(*jax.tree.leaves(rows["z"]))
        w = jnp.full((self.n_chains, b), 1.0, dtype) / jnp.asarray(self.n_chains * kept, dtype)

        # Traced once, by the name of a program of its own: its second use finds the first.
        @functools.partial(jax.jit, inline=True)
        def evaluate(rows):
            return f(jax.tree.map(lambda z: jnp.moveaxis(z, 1, 0), rows["z"]), w)

        def info(accepted):
            return {"acceptance": accepted / last} if self.kernel.adjusted else {}

        if isinstance(last, int) and kept == 1:
            # One state counts: its evaluation stays out of the loop.
            def move(t, state):
                rows, now = self._transition(at(t), model, params, state[0], batch, k)
                return rows, state[1] + now

            first = rows, jnp.zeros(b, dtype)
            rows, accepted = jax.lax.fori_loop(0, last, move, first) if last > 1 else move(0, first)
            return evaluate(rows), rows, info(accepted)

        def body(t, state):
            rows, value, accepted = state
            rows, now = self._transition(at(t), model, params, rows, batch, k)
            if self.burn_in == 0 and self.thin == 1:
                value = jax.tree.map(jnp.add, value, evaluate(rows))
            else:
                keep = (t >= self.burn_in) & ((t - self.burn_in) % self.thin == self.thin - 1)
                value = jax.lax.cond(keep, lambda v: jax.tree.map(jnp.add, v, evaluate(rows)), lambda v: v, value)
            return rows, value, accepted + now

        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(evaluate, rows))
        rows, value, accepted = jax.lax.fori_loop(0, last, body, (rows, zero, jnp.zeros(b, dtype)))
        return value, rows, info(accepted)

    def _transition(self, noise, model, params, rows, batch, k):
        """One transition of every chain of every unit; noise leaves (b, c, ...)."""
        kernel: Any = self.kernel
        adaptive = kernel.target_acceptance is not None
        base = jnp.asarray(kernel.step_size(k))

        def unit(noise, row, y):
            scale = base * jnp.exp(row["log_scale"]) if adaptive else base
            target = Target(for_searches(model), params, y)
            chain = mapped(lambda e, z, s: kernel.step(e, z, s, target, scale), self.n_chains)
            z, kstate, acceptance = chain(noise, row["z"], row["kernel"])
            row = row | {"z": z, "kernel": kstate}
            if adaptive:
                rate = gain(row["n_transitions"])
                row["log_scale"] = row["log_scale"] + rate * (jnp.mean(acceptance) - kernel.target_acceptance)
                row["n_transitions"] = row["n_transitions"] + 1
            return row, jnp.mean(acceptance)

        rows, acceptance = over_units(model, unit, batch)(noise, rows)
        return rows, acceptance

    def _refreshed(self, model, params, rows, batch) -> PyTree:
        def unit(row, y):
            return self.kernel.refresh_unit(row["z"], row["kernel"], Target(for_searches(model), params, y), self.n_chains)

        return over_units(model, unit, batch)(rows)

    def _restarted(self, noise, model, params, rows, batch) -> PyTree:
        def unit(key, y):
            starts = [model.init_latents(jax.random.fold_in(key, 2**31 - 1 - c), params, y) for c in range(self.n_chains)]
            return jax.tree.map(lambda *z: jnp.stack(z), *starts)

        return rows | {"z": mapped(unit, leading(batch))(noise["key"], batch)}


def lacks_prior(model: AbstractModel, estep: AbstractEStep) -> str | None:
    """Why expectations by an E-step would be those of a flat prior, or None."""
    if not isinstance(model, AbstractLikelihood) or (isinstance(estep, MCMC) and estep.kernel.brings_prior):
        return None
    what = type(estep.kernel if isinstance(estep, MCMC) else estep).__name__
    return (
        f"log_joint of {type(model).__name__} is a likelihood alone, and {what} brings no prior; "
        "use margaux.MCMC(margaux.PlugAndPlayULA(denoiser, eps=...))"
    )


def _reader(estep: MCMC, noise: PyTree, rows: PyTree) -> Any:
    """t -> noise of transition t: read from what was drawn ahead, or drawn now if the number of steps grows."""
    if "steps" in noise:
        return lambda t: jax.tree.map(lambda leaf: leaf[:, t], noise["steps"])
    latents = jax.tree.map(lambda z: z[0, 0], rows["z"])

    def draw(t):
        def unit(key):
            return jax.tree.map(lambda e: e[0], estep._steps(jax.random.fold_in(key, t), latents, 1))

        return jax.vmap(unit)(noise["key"])

    return lambda t: draw(jnp.asarray(t))
