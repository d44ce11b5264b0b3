"""Laplace's approximation as an E-step, and as a proposal: latents of one unit by the thousand where their structure is known."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..kernels.base import flat_size
from ..numerics.gaussian import HOPELESS, normals
from ..numerics.keys import key_of
from ..numerics.memory import memory
from ..numerics.sampling import effective_size
from ..numerics.structures import AbstractFactor, AbstractStructure, Dense, LogDensity
from ..problem.model import AbstractStructured, leading, mapped
from .arranged import arranged, missed
from .base import AbstractMarginal, continuous, flat_start, flat_target

#: Newton's step, in posterior standard deviations, from where on two chords end at the mode to rounding
NEAR = 1e-5
#: share of its length that a step by an old factor has left, at most; rise, as a share of the log density, that is rounding
FAST, ROUNDING = 0.2, 1e-14
#: steps to the mode from the model's own start
FIRST = 200
#: matrices of the size of second derivatives that there are at a time
COPIES = 4
#: latents a unit up to which quasi-random draws are more even than random ones
EVEN = 20


class Laplace(AbstractMarginal):
    r"""$\log p(y_i) \approx h(\hat z) - \tfrac12\log|H| + \tfrac d2\log 2\pi$ with $h=\log p(y_i, z\mid\theta)$, its mode
    $\hat z$ and $H=-\nabla_z^2h(\hat z)$ (Tierney and Kadane 1986); posterior expectations are those of $N(\hat z, H^{-1})$.

    `margaux.newton` and `margaux.lbfgs` climb this function of $\theta$ itself: its derivatives take the mode, an implicit
    function of $\theta$, and the determinant along. Where latents are far from Gaussian, as for few binary answers a unit, its
    maximum is biased; `correct` weights draws from the same factor, which makes the likelihood unbiased and its error known.

    Args:
        structure: which latents of a unit depend on each other, so that thousands of them can be factorised:
            `margaux.Band`, `margaux.Blocks`; by default what the model declares (`margaux.AbstractStructured`), or what is found
            of 100 to 20,000 latents at the start of a fit: a band, or groups that are independent given the rest, in any order;
            dense otherwise.
        correct: weights draws $\hat z + L^{-\top}u$ by $p(y, z)/q(z)$.
        n_draws: u and -u, half as many of each. n_newton: steps an iteration, at most, that follow the mode.

    Traces the log marginal likelihood, how far the mode is in standard deviations, by how much, as a share, second derivatives
    outside the structure change the effect of the others, where determinants are estimated the error that this makes, and where
    draws are weighted their effective size.

    Raises:
        ValueError: a structure that the latents do not have, or second derivatives that do not fit into memory.

    >>> import jax, numpy as np, margaux as mx
    >>> normal = jax.scipy.stats.norm.logpdf
    >>> class Normal(mx.AbstractModel):                     # y_i ~ N(z_i, 1), z_i ~ N(mu, 1): Laplace is exact
    ...     def log_joint(self, params, z, y):
    ...         return normal(y, z) + normal(z, params["mu"])
    ...     def init_latents(self, key, params, y):
    ...         return 0.0 * y
    >>> fit = mx.fit(Normal(), np.array([1.0, 2.0, 6.0]), mx.newton(), mx.Laplace(), params={"mu": 0.0}, n_iter=20)
    >>> round(float(fit.params["mu"]), 6)
    3.0
    """

    may_be_padded: ClassVar[bool] = True
    structure: AbstractStructure | None
    correct: bool = eqx.field(static=True)
    n_draws: int = eqx.field(static=True)
    n_newton: int

    def __init__(
        self, structure: AbstractStructure | None = None, *, correct: bool = False, n_draws: int = 64, n_newton: int = 20
    ) -> None:
        if structure is not None and not isinstance(structure, AbstractStructure):
            raise TypeError(f"structure must be margaux.Band, margaux.Blocks or None, got {structure!r}")
        if n_draws < 2 or n_draws % 2:
            raise ValueError(f"n_draws must be an even number, for draws come in pairs, got {n_draws}")
        if n_newton < 1:
            raise ValueError(f"n_newton must be at least 1, got {n_newton}")
        self.structure, self.correct, self.n_draws, self.n_newton = structure, correct, n_draws, n_newton

    def requires(self, model, latents):
        trouble = continuous(model, latents, "Laplace's approximation")
        return self.structure.trouble(latents) if trouble is None and self.structure is not None else trouble

    def _structure(self, model: Any, params: PyTree, y: PyTree) -> AbstractStructure:
        shapes = jax.eval_shape(model.init_latents, key_of(0), params, y)
        declared = model.structure(params, y) if isinstance(model, AbstractStructured) else Dense()
        return (self.structure or declared).ready(shapes)

    def prepared(self, problem, params, units):
        model: Any = problem.model
        out, y = self, jax.tree.map(lambda leaf: leaf[0], units(np.arange(1)))
        size = flat_size(jax.eval_shape(model.init_latents, key_of(0), params, y))[0]
        if self.structure is None and not isinstance(model, AbstractStructured):
            found = arranged(problem, params, units)
            out = self if isinstance(found, Dense) else dataclasses.replace(self, structure=found)
        bytes_, most = COPIES * out._structure(model, params, y).numbers(size) * 8, memory()
        if bytes_ > most:
            raise ValueError(
                f"Laplace's approximation of the {size:,} latents of a unit takes about {bytes_ / 2**30:,.0f} GiB for their "
                f"second derivatives, and this machine has {most / 2**30:,.0f}: declare which of them depend on each other "
                "(margaux.Band, margaux.Blocks), leave terms out, or draw them by margaux.MCMC"
            )
        return out

    def init(self, key, model, params, y):
        target, _ = flat_target(model, params, y)
        return {"mean": _mode(target, flat_start(key, model, params, y), self._structure(model, params, y), FIRST)}

    def noise(self, key, latents):
        size, dtype = flat_size(latents)
        half = normals(key, self.n_draws // 2, size, dtype, quasi=size <= EVEN)
        return jnp.concatenate([half, -half])

    def followed(self, model, params, rows, batch):
        def unit(row, y):
            target, _ = flat_target(model, params, y)
            return {"mean": _mode(target, row["mean"], self._structure(model, params, y), self.n_newton)}

        return mapped(unit, leading(batch))(rows, batch)

    def log_marginals(self, noise, model, params, rows, batch, derivatives=2):
        def unit(u, row, y):
            target, _ = flat_target(model, params, y)
            structure = self._structure(model, params, y)
            if self.correct:
                log_w = _drawn(target, *_at_mode(target, row["mean"], structure), u)[1]
                return jax.nn.logsumexp(log_w) - jnp.log(self.n_draws)
            value, log_det = (_plain, _sloped, _curved)[derivatives](target, row["mean"], structure)
            return value - log_det / 2 + row["mean"].size / 2 * jnp.log(2 * jnp.pi)

        return mapped(unit, leading(batch))(noise, rows, batch)

    def expect(self, f, noise, model, params, rows, batch, k):
        rows = self.followed(model, params, rows, batch)

        def unit(u, row, y):
            target, unravel = flat_target(model, params, y)
            structure = self._structure(model, params, y)
            factor = structure.factor(structure.curvature(target, row["mean"]), 0.0)
            x, log_w = _drawn(target, row["mean"], factor, u)
            value, slope = jax.value_and_grad(target)(row["mean"])
            away = jnp.sqrt(jnp.abs(slope @ factor.solve(slope)))
            plain = value - factor.log_det() / 2 + x.shape[1] / 2 * jnp.log(2 * jnp.pi)
            outside = jnp.zeros_like(away)
            if not isinstance(structure, Dense):
                outside = missed(structure, target, row["mean"])
            figures = {"log_marginal": plain, "away": away, "outside": outside}
            if structure.estimated:
                figures["log_marginal_se"] = factor.log_det_error() / 2
            return jax.vmap(unravel)(x), log_w, figures

        z, log_w, figures = mapped(unit, leading(batch))(noise, rows, batch)
        z, log_w = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), (z, log_w))
        if not self.correct:
            return f(z, jnp.full_like(log_w, 1 / self.n_draws)), rows, figures
        w = jax.nn.softmax(log_w, axis=0)
        log_mean = jax.nn.logsumexp(log_w, axis=0) - jnp.log(self.n_draws)
        return f(z, w), rows, figures | {"ess": effective_size(w), "log_marginal": log_mean}


def _mode(log_density: LogDensity, start: Float[Array, " d"], structure: AbstractStructure, most: int | Array) -> Array:
    """The mode from `start` on by damped Newton steps: after one that does not raise the density the damping grows."""
    if structure.costly:
        return _mode_by_chords(log_density, start, structure, most)

    def local(z: Array) -> tuple[Array, Array, PyTree]:
        value, slope = jax.value_and_grad(log_density)(z)
        return value, slope, structure.curvature(log_density, z)

    def unfinished(state: Any) -> Array:
        count, _, _, damping, length, _ = state
        return (count < most) & (length > NEAR) & (damping < HOPELESS)

    def turn(state: Any) -> Any:
        count, proposal, mode, damping, _, here = state
        there = local(proposal)
        better = (there[0] >= here[0]) & jnp.isfinite(there[0]) & jnp.all(jnp.isfinite(there[1]))
        here = jax.tree.map(lambda new, old: jnp.where(better, new, old), there, here)
        mode = jnp.where(better, proposal, mode)
        damping = jnp.where(better, damping * 0.1, jnp.minimum(damping * 10 + 1e-3, HOPELESS))
        step = structure.factor(here[2], damping).solve(here[1])
        sound = jnp.all(jnp.isfinite(step))
        # A matrix that is not positive definite gives no step: the damping grows until it does.
        proposal = jnp.where(sound, mode + step, mode)
        damping = jnp.where(sound, damping, jnp.minimum(damping * 10 + 1e-3, HOPELESS))
        length = jnp.where(better & sound, jnp.sqrt(jnp.abs(step @ here[1])), jnp.inf)
        return count + 1, proposal, mode, damping, length, here

    zero = jnp.zeros((), start.dtype)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(local, start))
    first = (-1, start, start, zero, zero + jnp.inf, (zero - jnp.inf, *nothing[1:]))
    _, proposal, mode, _, length, _ = jax.lax.while_loop(unfinished, turn, first)
    return jnp.where(length <= NEAR, proposal, mode)


def _mode_by_chords(log_density: LogDensity, start: Array, structure: AbstractStructure, most: int | Array) -> Array:
    """The same by steps with the factor of an earlier place, which is made anew where they no longer shrink fast."""

    def local(z: Array) -> tuple[Array, Array]:
        return jax.value_and_grad(log_density)(z)

    def unfinished(state: Any) -> Array:
        count, _, _, damping, length = state
        return (count < most) & (length > NEAR) & (damping < HOPELESS)

    def turn(state: Any) -> Any:
        count, mode, here, damping, _ = state
        factor = structure.factor(structure.curvature(log_density, mode), damping)

        def next_step(here: tuple[Array, Array]) -> tuple[Array, Array]:
            step = factor.solve(here[1])
            return step, jnp.sqrt(jnp.abs(here[1] @ step))

        def shrinking(state: Any) -> Array:
            _, _, _, length, before, better = state
            return better & (length > NEAR) & (length < FAST * before)

        def chord(state: Any) -> Any:
            mode, here, step, length, _, _ = state
            proposal = mode + step
            there = local(proposal)
            slack = ROUNDING * jnp.abs(here[0])
            better = (there[0] >= here[0] - slack) & jnp.isfinite(there[0]) & jnp.all(jnp.isfinite(there[1]))
            mode, here = jax.tree.map(lambda new, old: jnp.where(better, new, old), (proposal, there), (mode, here))
            step, left = next_step(here)
            return mode, here, step, jnp.where(better, left, length), length, better

        step, length = next_step(here)
        # A matrix that is not positive definite gives no step: the damping grows until it does.
        first = mode, here, step, length, length + jnp.inf, jnp.isfinite(length)
        reached, there, _, length, _, _ = jax.lax.while_loop(shrinking, chord, first)
        moved = there[0] != here[0]
        damping = jnp.where(moved | (length <= NEAR), damping * 0.1, jnp.minimum(damping * 10 + 1e-3, HOPELESS))
        return count + 1, reached, there, damping, jnp.where(jnp.isfinite(length), length, jnp.inf)

    zero = jnp.zeros((), start.dtype)
    return jax.lax.while_loop(unfinished, turn, (0, start, local(start), zero, zero + jnp.inf))[1]


def _at_mode(log_density: LogDensity, found: Array, structure: AbstractStructure) -> tuple[Array, AbstractFactor]:
    r"""The mode as a function of what the density depends on, and the factor of its curvature there.

    The chord $z\mapsto z + H^{-1}\nabla h(\theta, z)$ with H held has the mode for its fixed point, and derivative zero there:
    so many as are taken have so many derivatives in $\theta$ right (Griewank and Walther 2008, section 15.3).
    """
    found = jax.lax.stop_gradient(found)
    held = jax.lax.stop_gradient(structure.factor(structure.curvature(log_density, found), 0.0))
    mode = found
    for _ in range(2):
        mode = mode + held.solve(jax.grad(log_density)(mode))
    return mode, structure.factor(structure.curvature(log_density, mode), 0.0)


def _plain(log_density: LogDensity, found: Array, structure: AbstractStructure) -> tuple[Array, Array]:
    """The log density at its mode, and the log-determinant of its curvature there."""
    return log_density(found), structure.factor(structure.curvature(log_density, found), 0.0).log_det()


def _curved(log_density: LogDensity, found: Array, structure: AbstractStructure) -> tuple[Array, Array]:
    """The same with two derivatives."""
    mode, factor = _at_mode(log_density, found, structure)
    return log_density(mode), factor.log_det()


def _sloped(log_density: LogDensity, found: Array, structure: AbstractStructure) -> tuple[Array, Array]:
    r"""The same with the first derivative alone, by one factor: $\partial\log|H| = \mathrm{tr}(H^{-1}\partial H)$."""
    found = jax.lax.stop_gradient(found)
    held = jax.lax.stop_gradient(structure.curvature(log_density, found))
    factor = structure.factor(held, 0.0)
    mode = found + factor.solve(jax.grad(log_density)(found))
    changes = jax.tree.map(lambda now, then: now - then, structure.curvature(log_density, mode), held)
    slopes = factor.slope_of_log_det()
    change = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(slopes), jax.tree.leaves(changes), strict=True))
    return log_density(mode), factor.log_det() + change


def _drawn(log_density: LogDensity, mode: Array, factor: AbstractFactor, u: Float[Array, "m d"]) -> tuple[Array, Array]:
    """Draws from the Gaussian (m, d), and the logarithms of their weights (m,)."""
    x = mode + jax.vmap(factor.coloured)(u)
    constant = mode.size / 2 * jnp.log(2 * jnp.pi) - factor.log_det() / 2
    return x, jax.vmap(log_density)(x) + jnp.sum(u**2, axis=1) / 2 + constant
