"""Several Metropolis moves in turn, as one body: what MCMC-SAEM runs on small latents."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ..numerics import triangular
from ..numerics.gaussian import laplace
from ..problem.model import Latents, mapped
from ..problem.schedule import AbstractSchedule, as_schedule
from .base import AbstractMetropolis, LogDensity, gain

#: acceptance rates the moves are adapted towards (None: not adapted), and their first scales in d dimensions
MOVES: dict[str, tuple[float | None, Any]] = {
    "independence": (None, lambda d: 1.0),
    "joint": (0.30, lambda d: 2.38 / d**0.5),
    "component": (0.44, lambda d: 2.38),
    "mala": (0.574, lambda d: 0.6 / d ** (1 / 3)),
    "ula": (None, lambda d: 0.1),
}
#: Newton steps at the first visit, and at later refreshes of the approximation
FIRST, LATER = 12, 4


class Alternating(AbstractMetropolis):
    r"""Moves taken in turn, all shaped by the unit's Laplace approximation $N(\hat z, LL^\top)$, accepted unit by unit.

    - "independence": $\hat z + \sqrt{c} L\xi$ whatever the state (f-SAEM: Karimi, Lavielle and Moulines 2020);
    - "joint": random walk $z + sL\xi$;
    - "component": random walk in one coordinate, each in its turn;
    - "mala": $z + s LL^\top\nabla + \sqrt{2s} L\xi$, accepted or rejected; "ula": the same, always accepted.

    Each move's scale s is adapted by Robbins-Monro, chain by chain. A transition costs one density (with its
    gradient where a Langevin move is in the pattern): the value at the current state is kept within an E-step,
    and computed anew where the parameters have moved.

    Args:
        pattern: names of the moves of successive transitions, repeated for ever.
        every: E-steps between two refreshes of the approximation.
        inflation: c, which keeps the independent proposal's tails heavier than the target's.
        step_size: a factor on every scale s, constant or a schedule: of "ula", which is not adapted, it makes the
            step eta_n = 0.1 step_size(n), and Polynomial(1, 0.5) makes it decrease.

    >>> import margaux as mx
    >>> estep = mx.MCMC(mx.Alternating(("independence", "joint")), n_steps=4, thin=4)
    """

    step_size: AbstractSchedule
    target_acceptance: None
    pattern: tuple[str, ...] = eqx.field(static=True)
    every: int
    inflation: Array | np.ndarray

    def __init__(
        self,
        pattern: tuple[str, ...] = ("independence", "joint", "component"),
        every: int = 20,
        inflation: float = 1.3,
        step_size: float | AbstractSchedule = 1.0,
    ) -> None:
        pattern = tuple(pattern)
        unknown = [move for move in pattern if move not in MOVES]
        if unknown or not pattern:
            raise ValueError(f"pattern must be made of {list(MOVES)}; got {unknown[0] if unknown else 'nothing'!r}")
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        if not inflation > 0:
            raise ValueError(f"inflation must be positive, got {inflation}")
        self.step_size, self.target_acceptance = as_schedule(step_size, name="step_size"), None
        self.pattern, self.every, self.inflation = pattern, every, np.asarray(inflation, float)

    @property
    def adjusted(self) -> bool:
        """Whether every move is accepted or rejected: one "ula" in the pattern biases the whole."""
        return "ula" not in self.pattern

    @property
    def _langevin(self) -> bool:
        return bool({"mala", "ula"} & set(self.pattern))

    def init(self, z):
        flat, _ = ravel_pytree(z)
        d, dtype = flat.size, flat.dtype
        scales = jnp.log(jnp.asarray([start(d) for _, start in MOVES.values()], dtype))
        state = {
            "mode": flat,
            "root": jnp.eye(d, dtype=dtype),
            "inverse": jnp.eye(d, dtype=dtype),
            "log_scale": scales,
            "taken": jnp.ones(len(MOVES), dtype),
            "visits": jnp.zeros((), jnp.int32),
            "turn": jnp.zeros((), jnp.int32),
            "value": jnp.zeros((), dtype),
        }
        return state | ({"gradient": jnp.zeros(d, dtype)} if self._langevin else {})

    def refresh(self, z, kstate, logdensity):
        return self.valued(z, kstate | self._approximation(z, kstate, logdensity), logdensity)

    def refresh_unit(self, z, kstate, logdensity, n_chains):
        def first(tree):
            return jax.tree.map(lambda leaf: leaf[0], tree)

        shared = self._approximation(first(z), first(kstate), logdensity)
        return mapped(lambda z, state: self.valued(z, state | shared, logdensity), n_chains)(z, kstate)

    def _approximation(self, z: Latents, kstate: PyTree, logdensity: LogDensity) -> PyTree:
        """Mode, root and its inverse, renewed if they are due."""
        flat, unravel = ravel_pytree(z)

        def target(x):
            return logdensity(unravel(x))

        def renewed(_, state):
            mode, root = laplace(target, state[0], jnp.where(kstate["visits"] == 0, FIRST, LATER))
            return mode, root, triangular.inverse_root(root)

        # A loop of no turns costs nothing, under vmap too (its start passes through the carry, or XLA would hoist it).
        due = kstate["visits"] % self.every == 0
        start = (flat, kstate["root"], kstate["inverse"])
        mode, root, inverse = jax.lax.fori_loop(0, due.astype(jnp.int32), renewed, start)
        mode = jnp.where(due, mode, kstate["mode"])
        return {"mode": mode, "root": root, "inverse": inverse, "visits": kstate["visits"] + 1}

    def valued(self, z, kstate, logdensity):
        flat, unravel = ravel_pytree(z)
        return kstate | self._value(lambda x: logdensity(unravel(x)), flat)

    def _value(self, target: LogDensity, flat: Array) -> dict[str, Array]:
        if not self._langevin:
            return {"value": _or_never(target(flat))}
        value, gradient = jax.value_and_grad(target)(flat)
        return {"value": _or_never(value), "gradient": gradient}

    def step(self, noise, z, kstate, logdensity, scale):
        normal, uniform = noise
        flat, unravel = ravel_pytree(z)

        def target(x):
            return logdensity(unravel(x))

        names = list(MOVES)
        order = jnp.asarray([names.index(move) for move in self.pattern])
        move = order[kstate["turn"] % len(self.pattern)]
        s = jnp.exp(kstate["log_scale"][move]) * scale.astype(flat.dtype)
        is_ = {name: move == names.index(name) for name in self.pattern}
        root, mode = kstate["root"], kstate["mode"]
        shaped = _times(root, normal)
        wide = jnp.sqrt(jnp.asarray(self.inflation, flat.dtype))

        proposal = flat + s * shaped
        if "independence" in is_:
            proposal = jnp.where(is_["independence"], mode + wide * shaped, proposal)
        if "component" in is_:
            j = kstate["taken"][names.index("component")].astype(jnp.int32) % flat.size
            along = jnp.where(jnp.arange(flat.size) == j, normal, 0.0) * jnp.linalg.norm(root, axis=1)
            proposal = jnp.where(is_["component"], flat + s * along, proposal)
        drift = normal
        if self._langevin:
            drift = s * _times(root.T, kstate["gradient"]) + jnp.sqrt(2 * s) * normal
            langevin = is_.get("mala", False) | is_.get("ula", False)
            proposal = jnp.where(langevin, flat + _times(root, drift), proposal)

        new = self._value(target, proposal)
        log_ratio = new["value"] - kstate["value"]
        if "independence" in is_:
            current = _times(kstate["inverse"], flat - mode) / wide
            log_ratio += jnp.where(is_["independence"], jnp.sum(normal**2) / 2 - jnp.sum(current**2) / 2, 0.0)
        if "mala" in is_:
            back = -drift - s * _times(root.T, new["gradient"])
            log_ratio += jnp.where(is_["mala"], jnp.sum(normal**2) / 2 - jnp.sum(back**2) / (4 * s), 0.0)
        if "ula" in is_:
            log_ratio = jnp.where(is_["ula"], 0.0, log_ratio)
        finite = jnp.isfinite(new["value"]) & ~jnp.isnan(log_ratio)
        probability = jnp.where(finite, jnp.exp(jnp.minimum(log_ratio, 0.0)), 0.0)
        taken = uniform < probability

        def keep(a, b):
            return jnp.where(taken, a, b)

        goal = jnp.asarray([aim or 0.0 for aim, _ in MOVES.values()], flat.dtype)[move]
        here = jnp.arange(len(names)) == move
        change = jnp.where(goal > 0, (probability - goal) * gain(kstate["taken"][move]), 0.0)
        state = kstate | {name: keep(value, kstate[name]) for name, value in new.items()}
        state |= {
            "log_scale": kstate["log_scale"] + jnp.where(here, change, 0.0),
            "taken": kstate["taken"] + here,
            "turn": kstate["turn"] + 1,
        }
        return unravel(keep(proposal, flat)), state, probability


def _times(matrix: Array, vector: Array) -> Array:
    """Their product, as a sum in one loop with what is around it: a call for every unit's few numbers takes longer."""
    return jnp.sum(matrix * vector, axis=1)


def _or_never(value: Array) -> Array:
    """A density that is not a number is a place to leave, and never to go to."""
    return jnp.where(jnp.isnan(value), -jnp.inf, value)
