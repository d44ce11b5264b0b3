"""How far a point is from a stationary one, constraints and penalty included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..algorithms.statistics import Score
from ..algorithms.updates import Problem
from ..esteps import AbstractEStep
from ..numerics.compiling import compiled
from ..numerics.precision import precision
from ..problem.space import validate
from .moments import of_all_modes
from .posterior import each_unit, latent_size, reference_estep

if TYPE_CHECKING:
    from .fit import Fit


#: so many times the Monte Carlo noise is called zero
NOISES = 3.0


class Stationarity(NamedTuple):
    r"""$g_-(\theta)$ by Monte Carlo, in nats a unit of data and a unit of parameter.

    Attributes:
        value: $\hat g_-$, a norm, which noise makes larger on average: $E\hat g_-^2\approx g_-^2 + \text{noise}^2$.
        se: its Monte Carlo error where it is well above the noise.
        noise: the root mean square of $\hat g_-$ at a stationary point, from Monte Carlo and, `reach` times the size of
            the units' scores, from parameters that are known so far only.
        gradient: $-\nabla\mathcal L(\theta)$, a pytree like the parameters.
        direction: the feasible direction of steepest descent of the objective, of length `value`: zero where the
            parameters are stationary, though the gradient need not be.
    """

    value: float
    se: float
    noise: float
    gradient: PyTree
    direction: PyTree

    @property
    def stationary(self) -> bool:
        """Whether the value is within three times its noise, and so cannot be told from zero."""
        return self.value <= NOISES * self.noise

    def __str__(self) -> str:
        verdict = "not to be told from zero" if self.stationary else "not stationary"
        return f"g_- = {self.value:.3g} (se {self.se:.2g}; {self.noise:.2g} would be noise alone): {verdict}."


def stationarity(
    fit: Fit,
    n_draws: int = 500,
    estep: AbstractEStep | None = None,
    params: PyTree = None,
    replicates: int = 16,
    reach: float | None = None,
    key: int = 0,
) -> Stationarity:
    r"""The stationarity measure of MISSO, $g_- = -\min(0, g)$ with
    $g(\theta) = \inf_{\theta'\in\Theta}\mathcal L'(\theta, \theta'-\theta)/\|\theta'-\theta\|$ (Karimi, Wai, Moulines and Li,
    section 3) and $\mathcal L = -\frac1n\log p(y\mid\theta)$.

    Directions into a convex $\Theta$ close up to the tangent cone $T$, and for v = $-\nabla\mathcal L$ Moreau's
    decomposition $v = P_Tv + P_{T^\circ}v$ gives $\sup_{d\in T,|d|\le1}\langle v, d\rangle = |P_Tv|$: so $g_- = |P_T v|$, which
    is $|\nabla\mathcal L|$ without constraints. The projection is $P_Tv = \lim_{t\to0+}(P_\Theta(\theta + tv) - \theta)/t$,
    and with a penalty g the limit of $(\mathrm{prox}_{tg/n}(\theta + tv) - \theta)/t$, projected as fits do it, is minus the
    smallest element of $\nabla\mathcal L + \partial g/n + N_\Theta$ (where one leaf has both a penalty and a constraint: if the
    constraint is entry by entry). v is the mean of the scores E[grad log p(y_i, z_i | theta) | y_i].

    Args:
        n_draws: draws a unit and a replicate, by the E-step that inference uses. estep: another one.
        params: where; by default at the estimate.
        replicates: independent E-steps, whose spread is the Monte Carlo error. A bias that they share, as of a discretised
            kernel or a chain that has not forgotten its start, is not in it.
        reach: length of the step t v of each leaf $\theta_l$, over $1 + |\theta_l|$: what is nearer to an edge counts as on it.
            By default as small as rounding allows (1.5e-8 in float64). An average of iterates that an edge stopped now and
            then lies just inside, where the whole gradient counts: give 1e-3, say, or params=fit.last_params.

    Raises:
        ValueError: parameters outside their space; no finite gradient there (a variance or weight of zero may have none);
            a variational fit, but with `estep=fit.estep` it is that of the evidence bound.

    >>> import jax, numpy as np, margaux as mx
    >>> normal = jax.scipy.stats.norm.logpdf
    >>> class Normal(mx.AbstractModel):                     # y_i ~ N(z_i, 1), z_i ~ N(mu, 1)
    ...     def log_joint(self, params, z, y):
    ...         return normal(y, z) + normal(z, params["mu"])
    ...     def init_latents(self, key, params, y):
    ...         return 0.0 * y
    >>> fit = mx.fit(Normal(), np.array([1.0, 2.0, 6.0]), mx.soul(step=1.0), mx.Quadrature(5), params={"mu": 0.0},
    ...              n_iter=60, space={"mu": mx.Box(high=2.0)}, average=mx.LastIterate())
    >>> here, there = fit.stationarity(), fit.stationarity(params={"mu": 1.0})
    >>> round(float(here.gradient["mu"]), 6), here.stationary   # held by the bound, not by a gradient of zero
    (0.5, True)
    >>> round(there.value, 6), there.stationary
    (1.0, False)
    """
    problem = fit._model()
    if replicates < 2:
        raise ValueError(f"replicates must be at least 2, got {replicates}")
    eps = np.finfo(float).eps
    reach = max(eps**0.5, 8 * float(np.finfo(fit.dtype).eps)) if reach is None else float(reach)
    if not eps < reach < 1:
        raise ValueError(f"reach must lie between {eps:.2g} and 1, got {reach}")
    params = jax.tree.map(lambda leaf: np.asarray(leaf, float), fit.params if params is None else params)
    with precision(np.dtype(float)):
        validate(problem.space, params)
    estep, rows = of_all_modes(fit, reference_estep(fit, n_draws), params) if estep is None else (estep, None)
    width = n_draws * (latent_size(fit) + len(fit.names))
    draws: list[tuple[Any, Any]] = []
    for r in range(replicates):
        scores, figures = each_unit(fit, _score, estep, params, key=key * replicates + r, width=width, rows=rows)
        flat = np.concatenate([np.reshape(leaf, (problem.n, -1)) for leaf in jax.tree.leaves(scores)], axis=1)
        draws.append((flat.astype(float), np.asarray(figures.get("log_marginal", np.zeros(problem.n)), float)))
        if r == 1 and np.array_equal(draws[0][0], flat):
            break
    scores, logs = map(np.stack, zip(*draws, strict=True))
    if not np.all(np.isfinite(scores)):
        raise ValueError("the score is not finite at these parameters; pass params= a little inside their space")
    # Weighted by their likelihoods, replicates of importance sampling pool into one of all their draws.
    share = np.exp(logs - logs.max(axis=0))
    share = (share / share.mean(axis=0))[..., None]
    pooled = np.mean(share * scores, axis=0)
    gradient, apart = pooled.mean(axis=0), np.mean(share * (scores - pooled), axis=1)
    count = len(apart)
    # Displacements whose covariance is that of the mean of the replicates.
    displaced = np.concatenate([gradient[None], gradient + apart / (count - 1) ** 0.5])
    with precision(np.dtype(float)):
        start, back = ravel_pytree(jax.tree.map(jnp.asarray, params))
        here, *moved = np.asarray(
            _steepest(problem, jax.tree.map(jnp.asarray, params), jnp.asarray(displaced), jnp.asarray(reach))
        )

        def unflat(v):
            return jax.tree.map(np.asarray, back(jnp.asarray(v, start.dtype)))

        value = float(np.linalg.norm(here))
        spread = apart @ here / max(value, np.finfo(float).tiny)
        size = reach * np.sqrt(np.mean(np.sum(pooled**2, axis=1)))
        noise = np.hypot(np.sqrt(np.mean(np.sum((moved - here) ** 2, axis=1))), size)
        se = float(np.sqrt(np.sum(spread**2) / (count - 1) / count))
        return Stationarity(value, se, float(noise), unflat(gradient), unflat(here))


def _score(model, params, z, w, batch):
    return Score().total(model, params, z, w, batch)


@compiled
def _steepest(problem: Problem, params: PyTree, ascents: Float[Array, "r p"], reach: Array) -> Float[Array, "r p"]:
    r"""$(\mathrm{prox}(\theta + tv) - \theta)/t$ of several v, each leaf with a t of its own, from one short enough."""
    # Rounding may have left the space; from outside the difference would be a distance over t.
    x = problem.space.project(params)

    def length(leaf):
        return jnp.sqrt(jnp.sum(leaf**2))

    leaves, structure = jax.tree.flatten(x)
    _, back = ravel_pytree(x)
    pulled = jax.tree.leaves(problem.penalty.prox(x, reach))
    pulls = [length(a - b) / (reach * problem.n) for a, b in zip(leaves, pulled, strict=True)]

    def one(flat: Array) -> Array:
        v, out = back(flat), []
        for j, (leaf, slope, pull) in enumerate(zip(leaves, jax.tree.leaves(v), pulls, strict=True)):
            speed = length(slope) + pull
            t = reach * (1 + length(leaf)) / jnp.where(speed > 0, speed, 1.0)
            landed = problem.land(jax.tree.map(lambda a, b, t=t: a + t * b, x, v), t)
            out.append((jax.tree.leaves(landed)[j] - leaf) / t)
        return ravel_pytree(jax.tree.unflatten(structure, out))[0]

    return jax.vmap(one)(ascents)
