r"""Stochastic gradients with momentum and noise: chains whose draws are of the posterior of the weights.

With F the log posterior an observation, $F(w) = \frac1n\sum_i\log p(y_i\mid x_i, w) + \frac Tn\log p(w)$, a step is

$$m\leftarrow(1-a)\,m + \sqrt{h_k}\,\hat\nabla F(w) + \sqrt{2aT/n}\;\zeta,\qquad w\leftarrow w + \sqrt{h_k}\,m$$

(stochastic gradient Hamiltonian Monte Carlo: Chen, Fox and Guestrin 2014, eq. 15, with $v=\sqrt{h_k}m$); with friction a = 1 it
is stochastic gradient Langevin dynamics (Welling and Teh 2011, eq. 4). As $h\to0$ draws are of $p(y\mid w)^{1/T}p(w)$. Steps
fall along cosines, again and again, and draws are kept at the end of each (cyclical SG-MCMC: Zhang, Li, Zhang, Chen and Wilson
2020, algorithm 1). There is noise in all of a cycle, where that algorithm leaves it out of the first part: directions in which
the later, shorter steps take too long to spread a chain would have no spread without it.

Along an eigenvector of curvature $\lambda$ of a Gaussian, a constant step h gives the variance

$$\frac T{n\lambda}\cdot\frac{1 + hcn/2aT}{1 - h\lambda/2(2-a)},$$

c the variance of $\hat\nabla F$ there, were it new at each step; of batches without replacement it is less. In the last quarter
of a cycle, where draws are kept, h is a twentieth of the first on average. With all observations, means and standard deviations
of a linear and of a logistic regression are within their Monte Carlo errors of the exact ones.
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...algorithms.average import AbstractAverage, LastIterate
from ...algorithms.base import AbstractRowless
from ...algorithms.statistics import Score
from ...problem.schedule import AbstractSchedule

#: how much of Newton's step a logarithm of a scale that is learned takes, and how far it moves at most
RATE, FARTHEST = 0.02, 0.05


class Cyclical(AbstractSchedule):
    r"""$s\,(1+\cos(\pi r))/2$, $r = ((k-1)\bmod\ell)/\ell$: from `first` towards zero in each `length` iterations (Zhang et al.
    2020, eq. 1).

    >>> schedule = Cyclical(0.1, 100)
    >>> [round(float(schedule(k)), 6) for k in (1, 51, 101, 151)]
    [0.1, 0.05, 0.1, 0.05]
    """

    first: Array | np.ndarray
    length: Array | np.ndarray

    def __init__(self, first: float, length: float) -> None:
        self.first, self.length = np.asarray(float(first)), np.asarray(float(length))

    def __call__(self, k):
        return self.first * (1 + jnp.cos(jnp.pi * jnp.mod(k - 1, self.length) / self.length)) / 2


class Levelling(AbstractSchedule):
    r"""From `first` along a cosine to `last` in `length` iterations, and `last` from there on: the steps of SWAG.

    >>> schedule = Levelling(1.0, 0.1, 100)
    >>> [round(float(schedule(k)), 6) for k in (1, 51, 101, 500)]
    [1.0, 0.55, 0.1, 0.1]
    """

    first: Array | np.ndarray
    last: Array | np.ndarray
    length: Array | np.ndarray

    def __init__(self, first: float, last: float, length: float) -> None:
        self.first, self.last = np.asarray(float(first)), np.asarray(float(last))
        self.length = np.asarray(float(length))

    def __call__(self, k):
        share = (1 + jnp.cos(jnp.pi * jnp.minimum((k - 1) / self.length, 1.0))) / 2
        return self.last + (self.first - self.last) * share


class Langevin(AbstractRowless):
    """See the module. Logarithms of scales that are learned, such as the noise, follow their score along the chain, the weights
    being latents (SOUL).

    Its model is `Variational` with draws shared by a block and deviations of next to nothing: the normals behind the weights are
    then those of the step. The trace has "kinetic", the temperature of the momentum over T, which is one without discretisation
    and noise of gradients.

    Args:
        step: h. friction: a. hot: whether there is noise; without, it is gradient descent with momentum 1 - a.
        log_noise: logarithm of a learned noise s for which the steps are; they shrink with s^2 below it, as F bends by 1/s^2.
    """

    step_size: AbstractSchedule
    friction: Array | np.ndarray
    hot: bool = eqx.field(static=True)
    log_noise: Array | np.ndarray | None
    average: AbstractAverage
    may_be_padded: ClassVar[bool] = False

    def __init__(self, step: AbstractSchedule, friction: float, hot: bool = True, log_noise: float | None = None) -> None:
        self.step_size, self.friction, self.hot = step, np.asarray(float(friction)), hot
        self.log_noise = None if log_noise is None else np.asarray(float(log_noise))
        self.average = LastIterate()

    def requires(self, problem):
        return None

    def init(self, problem, params, per_unit):
        return jax.tree.map(jnp.zeros_like, params["mean"])

    def statistics(self, problem, params, z, w, batch):
        return Score().per_unit(problem.model, params, z, w, batch)

    def step(self, problem, estep, params, state, visit):
        model: Any = problem.model
        estep_rows, own_rows = visit.rows

        def read(z, w):
            score, value = Score().valued(model, params, z, w, visit.batch, each=False)
            return score, value, jax.tree.map(lambda leaf: leaf[0, 0], z)

        (score, value, noise), estep_rows, info = estep.expect(read, visit.noise, model, params, estep_rows, visit.batch, visit.k)
        leaves = jax.tree.leaves(state)
        dtype, size = leaves[0].dtype, sum(leaf.size for leaf in leaves)
        a, share = self.friction.astype(dtype), jnp.asarray(model.temperature / model.n, dtype)
        root = jnp.sqrt(self.step_size(visit.k)).astype(dtype)
        if self.log_noise is not None and "log_noise" in params:
            root = root * jnp.exp(jnp.minimum(params["log_noise"] - self.log_noise, 0.0)).astype(dtype)
        heat = jnp.sqrt(2 * a * share) if self.hot else jnp.zeros((), dtype)
        momentum = jax.tree.map(lambda m, g, z: (1 - a) * m + root * g + heat * z, state, score["mean"], noise)
        moved = params | {"mean": jax.tree.map(lambda w, m: w + root * m, params["mean"], momentum)}
        curvature = {"log_noise": 2.0, "log_scale": 2.0 * share * size}
        for name in curvature.keys() & params.keys():
            step = RATE * score[name] / curvature[name]
            moved[name] = params[name] + jnp.clip(step, -FARTHEST, FARTHEST).astype(params[name].dtype)
        energy = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(momentum))
        kinetic = energy / size / share * (1 - a / 2)
        return moved, momentum, (estep_rows, own_rows), info | {"log_joint": value, "kinetic": kinetic}
