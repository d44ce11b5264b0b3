"""The interface of a Markov kernel, and what kernels on a flat latent share."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar

from ..problem.model import Latents, mapped
from ..problem.schedule import AbstractSchedule

#: z -> log p(y, z | theta); a `margaux.problem.target.Target` where the model has more to give
LogDensity = Callable[[Latents], Scalar] | Any


class AbstractKernel(eqx.Module):
    """One transition of one unit's chain. Deterministic given its noise, so that noise is drawn ahead.

    `step` gets the step size to use as `scale`: the kernel's schedule times the E-step's adaptation.
    """

    #: step size as a function of the iteration
    step_size: eqx.AbstractVar[AbstractSchedule]
    #: acceptance rate that step-size adaptation aims at; None: never adapted
    target_acceptance: eqx.AbstractVar[float | None]
    #: whether it accepts or rejects, and so keeps its target exactly
    adjusted: eqx.AbstractClassVar[bool]

    @property
    def brings_prior(self) -> bool:
        """Whether it adds the prior's score to a target that is the likelihood."""
        return False

    @abc.abstractmethod
    def init(self, z: Latents) -> PyTree:
        """Adaptation state of one chain."""

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray, z: Latents) -> PyTree:
        """All the randomness of one transition."""

    def noises(self, key: PRNGKeyArray, z: Latents, count: int) -> PyTree:
        """The randomness of so many transitions, on a leading axis."""
        return jax.vmap(lambda t: self.noise(jax.random.fold_in(key, t), z))(jnp.arange(count))

    @abc.abstractmethod
    def refresh(self, z: Latents, kstate: PyTree, logdensity: LogDensity) -> PyTree:
        """Called once at the start of an E-step, where the parameters have moved."""

    def refresh_unit(self, z: Latents, kstate: PyTree, logdensity: LogDensity, n_chains: int) -> PyTree:
        """`refresh` of all chains of one unit (leading axis), for kernels whose chains share what is computed."""
        return mapped(lambda z_c, state: self.refresh(z_c, state, logdensity), n_chains)(z, kstate)

    def valued(self, z: Latents, kstate: PyTree, logdensity: LogDensity) -> PyTree:
        """The state with what this kernel keeps of its target at z from one step to the next, if anything.

        A part of `refresh`, for whom changes the target between two steps.
        """
        return kstate

    def refused(self, z: Latents, logdensity: LogDensity, k: int = 1, reach: float = 1.0) -> str | None:
        """Why no chain of this kernel can be at z in iteration k, or None; asked on the host, of the first unit before a fit and
        of the steepest after it, then with `reach` for the share of the longest stable step that is allowed."""
        return None

    @abc.abstractmethod
    def step(
        self, noise: PyTree, z: Latents, kstate: PyTree, logdensity: LogDensity, scale: Scalar
    ) -> tuple[Latents, PyTree, Scalar]:
        """Next latents, state and acceptance probability (one for an unadjusted kernel)."""


class AbstractMetropolis(AbstractKernel):
    """A kernel that takes a normal vector and a uniform number a transition; "value" is the log density at its state."""

    def valued(self, z, kstate, logdensity):
        return kstate | {"value": logdensity(z)}

    def noise(self, key, z):
        normal, uniform = self.noises(key, z, 1)
        return normal[0], uniform[0]

    def noises(self, key, z, count):
        size, dtype = flat_size(z)
        # All by one call: hashing a key for each of them takes as long as their numbers, and is more to compile.
        uniform = _uniform(key, count * (size + 1), dtype)
        normal = jax.lax.erf_inv(2 * uniform[: count * size] - 1) * math.sqrt(2)
        return normal.reshape(count, size), uniform[count * size :]


def _uniform(key: PRNGKeyArray, count: int, dtype: Any) -> Float[Array, " count"]:
    """Uniform numbers in the open unit interval, on the grid of $(w + 1/2) / 2^{32}$ in double precision."""
    if dtype != jnp.float64:
        half_step = jnp.finfo(dtype).eps / 4
        return jax.random.uniform(key, (count,), dtype, half_step, 1 - half_step)
    # Two of a word of 64 bits, of which a hash makes one.
    words = jax.random.bits(key, (-(-count // 2),), jnp.uint64)
    halves = jnp.concatenate([words >> 32, words & 0xFFFFFFFF])[:count]
    return (halves.astype(dtype) + 0.5) * 2.0**-32


class AbstractProximalKernel(AbstractKernel):
    """A kernel whose target must also have `smooth` and `prox`: models of `margaux.AbstractNonSmooth`."""


class AbstractPriorKernel(AbstractKernel):
    """A kernel that brings the score of the latents' prior, for a target that is the likelihood: models of
    `margaux.AbstractLikelihood`."""

    @property
    def brings_prior(self):
        return True


class AbstractSubsamplingKernel(AbstractKernel):
    """A kernel whose target must also have `prior`, `likelihood` and `n_rows`: models of `margaux.AbstractFactorised`."""


class AbstractBlockedKernel(AbstractKernel):
    """A kernel whose target must also have `unit` and `y`: models of `margaux.AbstractShared`."""


def normal_like(key: PRNGKeyArray, z: Latents) -> Float[Array, " d"]:
    """A standard normal vector of the latent's flat size."""
    size, dtype = flat_size(z)
    return jax.random.normal(key, (size,), dtype)


def flat_size(z: Latents) -> tuple[int, Any]:
    """Flat dimension and dtype of one unit's latents."""
    leaves = jax.tree.leaves(z)
    return sum(leaf.size for leaf in leaves), jnp.result_type(*leaves)


def move(z: Latents, flat: Array) -> Latents:
    """z + a flat increment."""
    vector, unravel = ravel_pytree(z)
    return unravel(vector + flat)


def gain(count: Array) -> Array:
    """Robbins and Monro's, count^-0.6: of a transition, counted from one."""
    # A power of doubles is a call for each of them; those of single precision are vectorised, and seven digits are enough.
    return (count.astype(jnp.float32) ** -0.6).astype(count.dtype)


def unvalued(z: Latents) -> dict[str, Array]:
    """A value that is not known yet, so that no move is accepted until `AbstractKernel.valued` says what it is."""
    return {"value": jnp.full((), jnp.nan, flat_size(z)[1])}


def accept(z: PyTree, proposal: PyTree, log_ratio: Scalar, uniform: Scalar) -> tuple[PyTree, Scalar]:
    """Metropolis-Hastings accept or reject; a ratio that is not a number rejects."""
    log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
    probability = jnp.exp(jnp.minimum(log_ratio, 0.0))
    taken = uniform < probability
    return jax.tree.map(lambda new, old: jnp.where(taken, new, old), proposal, z), probability
