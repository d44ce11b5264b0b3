"""Successors of SOUL as algorithms of the engine: what moves the parameters, and the particles where that is not a kernel."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from margaux.algorithms.average import AbstractAverage
from margaux.algorithms.base import AbstractRowless, summed
from margaux.algorithms.scaled import newton_step
from margaux.algorithms.statistics import Score
from margaux.problem.model import leading, log_joints


class Problem(NamedTuple):
    """A model, its data, the start, the maximum, iterations, and by name algorithm and E-step, perhaps with their own model."""

    model: Any
    data: Any
    start: float
    exact: float
    n_iter: int
    methods: dict[str, tuple]


class ParticleNewton(AbstractRowless):
    r"""Particle quasi-Newton: $\theta' = \theta + h\,[\overline{-\nabla^2_\theta\ell}]^{-1}\,\overline{\nabla_\theta\ell}$.

    Means are over the particles, which make one ULA step of h.

    Kuntz, Lim and Johansen (2023), algorithm 2.
    """

    step_size: float
    average: AbstractAverage

    def requires(self, problem):
        return None

    def init(self, problem, params, per_unit):
        return ()

    def statistics(self, problem, params, z, w, batch):
        return Score().per_unit(problem.model, params, z, w, batch)

    def step(self, problem, estep, params, state, visit):
        (rows, own), batch = visit.rows, visit.batch
        flat, unravel = ravel_pytree(params)

        def f(z, w):
            def total(x):
                return jnp.sum(w * log_joints(problem.model, unravel(x), z, batch))

            return jax.grad(total)(flat), -jax.hessian(total)(flat)

        value, rows, info = estep.expect(f, visit.noise, problem.model, params, rows, batch, visit.k)
        (score, information), info = summed(value, info, visit.axis)
        params = unravel(flat + self.step_size * newton_step(information, score)[0])
        return problem.land(params, jnp.asarray(self.step_size)), state, (rows, own), _means(info, batch)


class Kinetic(AbstractRowless):
    r"""Kinetic interacting particles: $\theta$ has a velocity as its particles have theirs (`margaux.Underdamped`),
    $u' = (1-\eta h)u + h\,\overline{\nabla_\theta\ell} + \sqrt{2\eta h/N}\,\zeta$ and $\theta' = \theta + h u'$.

    Oliva and Akyildiz (2024), kinetic interacting particle Langevin Monte Carlo, by Euler's steps in the parameters.
    """

    step_size: float
    friction: float
    n_particles: int = eqx.field(static=True)
    average: AbstractAverage

    def requires(self, problem):
        return None

    def init(self, problem, params, per_unit):
        return jnp.zeros_like(ravel_pytree(params)[0])

    def statistics(self, problem, params, z, w, batch):
        return Score().per_unit(problem.model, params, z, w, batch)

    def step(self, problem, estep, params, state, visit):
        (rows, own), batch, k = visit.rows, visit.batch, visit.k

        def f(z, w):
            return Score().total(problem.model, params, z, w, batch)

        score, rows, info = estep.expect(f, visit.noise, problem.model, params, rows, batch, k)
        score, info = summed(score, info, visit.axis)
        flat, unravel = ravel_pytree(params)
        h, lost = self.step_size, self.friction * self.step_size
        zeta = jax.random.normal(jax.random.fold_in(visit.key, k), flat.shape, flat.dtype)
        velocity = (1 - lost) * state + h * ravel_pytree(score)[0] + jnp.sqrt(2 * lost / self.n_particles) * zeta
        return problem.land(unravel(flat + h * velocity), jnp.asarray(h)), velocity, (rows, own), _means(info, batch)


class CoinEM(AbstractRowless):
    r"""Particles by Stein's direction and parameters by the score, both by betting coins: no step to choose.

    With outcomes $c_t$ (a gradient's component), $x_t = x_0 + \frac{\sum_s c_s}{G_t+L_t}\,(1 + R_t/L_t)$, $L_t=\max|c|$,
    $G_t=\sum|c|$ and $R_t$ what has been won. Stein's direction has a Gaussian kernel of median width.

    Sharrock, Dodd and Nemeth (2024), algorithm 2 with the adaptive bets of their appendix. The E-step only holds the particles.
    """

    all_units: ClassVar[bool] = True
    may_be_padded: ClassVar[bool] = False
    n_particles: int = eqx.field(static=True)
    #: numbers of a particle, of all units together
    size: int = eqx.field(static=True)
    average: AbstractAverage

    def requires(self, problem):
        return None

    def init(self, problem, params, per_unit):
        flat = ravel_pytree(params)[0]
        return {"params": _no_bets(flat), "particles": _no_bets(jnp.zeros((self.n_particles, self.size), flat.dtype))}

    def statistics(self, problem, params, z, w, batch):
        return Score().per_unit(problem.model, params, z, w, batch)

    def step(self, problem, estep, params, state, visit):
        (rows, own), batch = visit.rows, visit.batch
        draws = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), rows["z"])
        flat, unravel = ravel_pytree(params)
        back = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], draws))[1]
        particles = jax.vmap(lambda draw: ravel_pytree(draw)[0])(draws)

        def total(x, particles):
            return jnp.sum(log_joints(problem.model, unravel(x), jax.vmap(back)(particles), batch))

        score, slopes = jax.grad(total, argnums=(0, 1))(flat, particles)
        moved, bets = _bet(flat, score / len(particles), state["params"])
        particles, of_particles = _bet(particles, _stein(particles, slopes), state["particles"])
        z = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), jax.vmap(back)(particles))
        return problem.land(unravel(moved), jnp.ones(())), {"params": bets, "particles": of_particles}, (rows | {"z": z}, own), {}


def _no_bets(x: Array) -> dict[str, Array]:
    return {name: jnp.zeros_like(x) for name in ("start", "sum", "size", "largest", "won", "begun")}


def _bet(x: Array, outcome: Array, bets: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
    start = jnp.where(bets["begun"] > 0, bets["start"], x)
    largest = jnp.maximum(bets["largest"], jnp.abs(outcome))
    size, total = bets["size"] + jnp.abs(outcome), bets["sum"] + outcome
    won = jnp.maximum(bets["won"] + outcome * (x - start), 0.0)
    safe = jnp.where(largest > 0, largest, 1.0)
    bets = {"start": start, "sum": total, "size": size, "largest": largest, "won": won, "begun": jnp.ones_like(x)}
    return start + jnp.where(largest > 0, total / (size + safe) * (1 + won / safe), 0.0), bets


def _stein(x: Float[Array, "N D"], slopes: Float[Array, "N D"]) -> Float[Array, "N D"]:
    """Stein's direction of each particle (Liu and Wang 2016)."""
    square = jnp.sum(x**2, axis=1)
    apart = jnp.maximum(square[:, None] + square - 2 * x @ x.T, 0.0)
    width = jnp.maximum(jnp.median(apart) / jnp.log(len(x) + 1.0), jnp.finfo(x.dtype).eps)
    kernel = jnp.exp(-apart / width)
    repelled = 2 / width * (jnp.sum(kernel, axis=1)[:, None] * x - kernel @ x)
    return (kernel @ slopes + repelled) / len(x)


def _means(info: dict[str, Array], batch: PyTree) -> dict[str, Array]:
    return {name: figure / leading(batch) for name, figure in info.items()}


def evidence(
    log_prior: Any, log_likelihood: Any, prior: Any, theta: float, key: Any,
    n: int, steps: int, warming: int, h: float, gain: float,
) -> tuple[Array, Array]:  # fmt: skip
    r"""Evidence along the way: Langevin particles with Jarzynski's weights, from the prior to the posterior, then up in
    $\theta$.

    Particles $X_0\sim p(x\mid\theta_0)$ follow $U_k=-\log p(x\mid\theta_k)-\beta_k\log p(y\mid x)$, $\beta$ from 0 to 1 in
    the first `warming` steps, with weights whose logarithm gains $\alpha_k(X_k, X_{k+1})-\alpha_{k+1}(X_{k+1}, X_k)$,
    $\alpha_k(x, x')=U_k(x)+\tfrac12(x'-x)^\top\nabla U_k(x)+\tfrac h4|\nabla U_k(x)|^2$: the steps of h bias nothing.

    Carbone, Hua, Coste and Vanden-Eijnden (2023), proposition 2; Cuin, Carbone and Akyildiz (2025), algorithm 1.

    Args:
        log_prior: (theta, x) -> number. log_likelihood: x -> number. prior: (key, theta) -> a draw. gain: of theta's ascent.

    Returns:
        theta, and the estimate of $\log p(y\mid\theta)$ there.
    """

    def potential(x: Array, theta: Array, beta: Array) -> tuple[Array, Array]:
        """U and its gradient at each particle."""
        return jax.vmap(jax.value_and_grad(lambda x: -log_prior(theta, x) - beta * log_likelihood(x)))(x)

    def alpha(value: Array, slopes: Array, apart: Array) -> Array:
        return value + jnp.sum(apart * slopes, axis=1) / 2 + h / 4 * jnp.sum(slopes**2, axis=1)

    def step(carry: Any, k: Array) -> tuple[Any, None]:
        x, value, slopes, logs, theta, beta = carry
        noise = jax.random.normal(jax.random.fold_in(key, k), x.shape, x.dtype)
        moved = x - h * slopes + jnp.sqrt(2 * h) * noise
        score = jax.nn.softmax(logs) @ jax.vmap(jax.grad(log_prior), in_axes=(None, 0))(theta, x)
        after = theta + jnp.where(k > warming, gain, 0.0) * score
        warmer = jnp.minimum(k / warming, 1.0)
        logs = logs + alpha(value, slopes, moved - x)
        value, slopes = potential(moved, after, warmer)
        return (moved, value, slopes, logs - alpha(value, slopes, x - moved), after, warmer), None

    first = jax.vmap(lambda one: prior(one, theta))(jax.random.split(jax.random.fold_in(key, 0), n))
    begun, cold = jnp.asarray(float(theta)), jnp.asarray(0.0)
    start = first, *potential(first, begun, cold), jnp.zeros(n), begun, cold
    (_, _, _, logs, found, _), _ = jax.lax.scan(step, start, jnp.arange(1, steps + 1))
    return found, jax.nn.logsumexp(logs) - jnp.log(n)
