"""Recipes: each algorithm is a few lines that cite their source."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import jax
import numpy as np
from jaxtyping import PyTree

from ..esteps import AbstractEStep
from ..problem.model import AbstractModel
from ..problem.schedule import AbstractSchedule, Polynomial, as_schedule
from .average import AbstractAverage, LastIterate, PolyakRuppert, StepWeighted
from .base import AbstractAlgorithm, Algorithm
from .expanded import ExpandedAscent
from .lbfgs import LBFGS
from .memory import AbstractMemory, Anchor, NoMemory, RobbinsMonro, Saga, Table
from .newton import Newton
from .particles import ParticleLangevin
from .scaled import ScaledAscent
from .statistics import AbstractStatistic, Score, SufficientStatistics, SurrogateMinimiser
from .updates import AbstractUpdate, Ascent, Mean, MStep, Optax, is_optimiser

if TYPE_CHECKING:
    import optax

Step: TypeAlias = "float | AbstractSchedule | optax.GradientTransformation"


def _ascent(step: Step) -> AbstractUpdate:
    if is_optimiser(step):
        return Optax(step, as_schedule(1.0, name="step"))
    return Ascent(as_schedule(step, name="step"))


def _positive(name: str, value: float) -> np.ndarray:
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return np.asarray(float(value))


def _score_or_statistics(
    of: str, step: Step, weight: float | AbstractSchedule | None
) -> tuple[AbstractStatistic, AbstractSchedule | None, AbstractUpdate, AbstractAverage]:
    if of == "score":
        return Score(), as_schedule(1.0 if weight is None else weight, name="weight"), _ascent(step), PolyakRuppert()
    if of == "suffstats":
        schedule = None if weight is None else as_schedule(weight, name="weight")
        return SufficientStatistics(), schedule, MStep(), LastIterate()
    raise ValueError(f'of must be "score" or "suffstats", got {of!r}')


def _composed(
    statistic: AbstractStatistic,
    memory: AbstractMemory,
    update: AbstractUpdate,
    average: AbstractAverage,
    refresh_epochs: int | None = None,
    held: bool = False,
    first_pass: bool = True,
) -> Algorithm:
    return Algorithm(
        statistic=statistic,
        memory=memory,
        update=update,
        average=average,
        refresh_epochs=refresh_epochs,
        held=held,
        first_pass=first_pass,
    )


def soul(step: Step | None = None, average: AbstractAverage | None = None, expanded: bool | None = None) -> AbstractAlgorithm:
    r"""SOUL: $\theta_{n+1} = \Pi_\Theta[\theta_n + \delta_{n+1} \bar\nabla_\theta\log p(x, y\mid\theta_n)]$ along a Markov chain.

    De Bortoli, Durmus, Pereyra and Vidal (2021), algorithm 1 and eqs. 4 to 6, with the signs of the
    errata; with a kernel other than ULA it is their SOUK (eq. 10). The score is a mean over units.

    Args:
        step: $\delta_n$, a number, a schedule, or an optax optimiser. By default nothing need be chosen:
            the step is $n^{-0.6}$ over the complete-data information, see `margaux.ScaledAscent`.
        average: by default step-weighted (eq. 4) over the second half of the run.
        expanded: for many latents of which the data say little each, such as the weights of a network, with the places
            and scales of their priors as parameters: these hardly move otherwise. By default where one unit has 200 latents or
            more with a smooth density, which chains follow, and few parameters without a penalty. See
            `margaux.algorithms.ExpandedAscent`.

    >>> import margaux as mx
    >>> algorithm = mx.soul(step=mx.Polynomial(1.0, power=0.8))

    Raises:
        ValueError: both a step and expanded.
    """
    if step is None:
        gain = Polynomial(1.0, 0.6)
        average = average or StepWeighted(gain)
        many = ExpandedAscent(gain=gain, average=average)
        return many if expanded else ScaledAscent(gain=gain, average=average, where_many=many if expanded is None else None)
    if expanded:
        raise ValueError("soul(expanded=True) finds its own step: leave step out")
    if average is None:
        optimiser = is_optimiser(step)
        average = PolyakRuppert() if optimiser else StepWeighted(step)
    return _composed(Score(), NoMemory(), _ascent(step), average)


souk = soul


def newton(radius: float = 1000.0, average: AbstractAverage | None = None) -> AbstractAlgorithm:
    r"""Newton's method on $\log p(y\mid\theta)$, by Fisher's score and Louis' information, in a trust region.

    For E-steps that give the likelihood: `Quadrature`, `Exact` of a discrete latent, `Laplace`, which is differentiated itself,
    and `ImportanceSampling`, whose draws keep their noise (the estimate is then that of a sample average approximation, and the
    polish goes on with more). Ten iterations are usually enough; the fit ends where a step is shorter than a millionth of a
    standard error (a thousandth in single precision): see `margaux.algorithms.Newton`.

    Args:
        radius: of the region at first, in standard errors.

    >>> import jax, numpy as np, margaux as mx
    >>> normal = jax.scipy.stats.norm.logpdf
    >>> class Normal(mx.AbstractModel):                     # y_i ~ N(z_i, 1), z_i ~ N(mu, 1)
    ...     def log_joint(self, params, z, y):
    ...         return normal(y, z) + normal(z, params["mu"])
    ...     def init_latents(self, key, params, y):
    ...         return 0.0 * y
    >>> y = np.array([1.0, 2.0, 6.0])
    >>> fit = mx.fit(Normal(), y, mx.newton(), mx.Quadrature(5), params={"mu": 0.0}, n_iter=20)
    >>> round(float(fit.params["mu"]), 6), fit.n_iter < 10
    (3.0, True)
    """
    return Newton(radius=_positive("radius", radius), average=average or LastIterate())


def lbfgs(
    memory: int = 10, first: float = 0.1, average: AbstractAverage | None = None, sizes: PyTree = None
) -> AbstractAlgorithm:
    r"""Limited-memory BFGS on $\log p(y\mid\theta)$: as `newton`, for hundreds of parameters and more, by gradients alone.

    See `margaux.algorithms.LBFGS`. It ends as `newton` does, by what it has learned of the curvature.

    Args:
        memory: iterations whose changes of the gradient are remembered. first: length of the first step.
        sizes: about what the standard errors of the unconstrained coordinates will be, a tree like the parameters: steps are
            then measured in these, and the first is Newton's, had they been right and independent.

    >>> import jax, numpy as np, margaux as mx
    >>> normal = jax.scipy.stats.norm.logpdf
    >>> class Normal(mx.AbstractModel):                     # y_i ~ N(z_i, 1), z_i ~ N(mu, 1)
    ...     def log_joint(self, params, z, y):
    ...         return normal(y, z) + normal(z, params["mu"])
    ...     def init_latents(self, key, params, y):
    ...         return 0.0 * y
    >>> y = np.array([1.0, 2.0, 6.0])
    >>> fit = mx.fit(Normal(), y, mx.lbfgs(), mx.Quadrature(5), params={"mu": 0.0}, n_iter=50)
    >>> round(float(fit.params["mu"]), 6)
    3.0
    """
    if memory < 1:
        raise ValueError(f"memory must be at least 1, got {memory}")
    if not all(np.all(np.isfinite(leaf) & (np.asarray(leaf) > 0)) for leaf in jax.tree.leaves(sizes)):
        raise ValueError("sizes must be positive and finite: about what standard errors of the unconstrained coordinates will be")
    return LBFGS(first=_positive("first", first), sizes=sizes, memory=memory, average=average or LastIterate())


def isgd(step: Step | None = None, average: AbstractAverage | None = None) -> AbstractAlgorithm:
    """Importance-sampling gradient ascent: Batardiere, Chiquet, Kwon and Stoehr, algorithm 1 (with `ImportanceSampling`).

    `soul` by another E-step: where no step is given it is found as there.
    """
    return soul(step, average or PolyakRuppert())


def aisgd(step: Step | None = None, average: AbstractAverage | None = None) -> AbstractAlgorithm:
    """`isgd` for proposals that adapt (algorithm 2): use with `ImportanceSampling(proposal="adapted")` or the Laplace one."""
    return isgd(step, average)


def saem(step: float | AbstractSchedule | None = None, average: AbstractAverage | None = None) -> Algorithm:
    r"""MCMC-SAEM: $S_k = S_{k-1} + \gamma_k(S(z_k) - S_{k-1})$, then the M-step (Kuhn and Lavielle 2004).

    Args:
        step: the gain; by default one for 100 iterations, then $(k - 100)^{-0.8}$. Use
            `margaux.ConstantThenDecay(1.0, K1, power)` for your own K1, or Polynomial(1, 0.5) for the
            $1/\sqrt t$ of biased SAEM (Gruffaz, Kim, Durmus and Gardner).
    """
    from ..problem.schedule import ConstantThenDecay

    gain = ConstantThenDecay(1.0, 100, 0.8) if step is None else as_schedule(step, name="step")
    return _composed(SufficientStatistics(), RobbinsMonro(gain), MStep(), average or LastIterate())


def online_em(step: float | AbstractSchedule = Polynomial(1.0, 0.6), average: AbstractAverage | None = None) -> Algorithm:
    """Online EM: stochastic approximation of the batch means of the statistics (Cappé and Moulines 2009).

    No M-step before twice as many units as parameters, and 20 at least, are seen.
    """
    gain = as_schedule(step, name="step")
    return _composed(SufficientStatistics(), RobbinsMonro(gain), MStep(), average or PolyakRuppert(), held=True)


def mcem(average: AbstractAverage | None = None) -> Algorithm:
    """Monte Carlo EM (Wei and Tanner 1990): let the E-step's draws grow, as with n_steps=margaux.Growth(...)."""
    return _composed(SufficientStatistics(), NoMemory(), MStep(), average or PolyakRuppert())


def incremental_em(average: AbstractAverage | None = None) -> Algorithm:
    """Incremental EM: one row of statistics a unit (Neal and Hinton 1998); with Monte Carlo draws it is
    MISSO of an exponential family (Karimi, Li and Moulines, example 1)."""
    return _composed(SufficientStatistics(), Table(), MStep(), average or LastIterate())


def misso(lipschitz: float | None = None, average: AbstractAverage | None = None, first_pass: bool = True) -> Algorithm:
    r"""MISSO (Karimi, Wai, Moulines and Li, algorithm 2): by default with the model's own surrogate
    (`margaux.AbstractSurrogate`, or the sufficient statistics of an exponential family: their example 1).

    Args:
        lipschitz: L, for quadratic surrogates in its place (eq. 6): a bound on the curvature of each unit's
            $-\log p(y_i\mid\theta)$. Each visit moves one unit's surrogate, so an epoch is about one gradient step of
            length 1 / L.
        first_pass: all units' surrogates at the start, as the paper has it: their minimiser is a gradient step of 1 / L, which
            overshoots where 1 / L is chosen large for the sake of speed. Without it the units that are not visited yet have
            surrogates with their minimum at the start, and the first epoch is one of steps of 1 / (L n). Of quadratic
            surrogates only.
    """
    if lipschitz is None:
        if not first_pass:
            raise ValueError("first_pass=False is for quadratic surrogates; pass lipschitz= as well")
        return incremental_em(average)
    curvature = _positive("lipschitz", lipschitz)
    return _composed(SurrogateMinimiser(curvature), Table(), Mean(curvature), average or PolyakRuppert(), first_pass=first_pass)


def miso(lipschitz: float | None = None) -> Algorithm:
    """MISO (Mairal 2015, algorithm 1): `misso` for a deterministic E-step (Exact or Quadrature), no averaging."""
    return misso(lipschitz, LastIterate())


def sag(step: Step, average: AbstractAverage | None = None, first_pass: bool = True) -> Algorithm:
    """SAG: ascent along the mean of a table of per-unit scores (Schmidt, Le Roux and Bach 2017, eq. 5).

    Args:
        first_pass: all units' scores at the start; without it they are zero until the unit is visited.
    """
    return _composed(Score(), Table(), _ascent(step), average or PolyakRuppert(), first_pass=first_pass)


def saga(
    step: Step = 0.1, of: str = "score", weight: float | AbstractSchedule | None = None, average: AbstractAverage | None = None
) -> Algorithm:
    r"""SAGA on scores, or with of="suffstats" fiEM (see `memory.Saga`).

    Args:
        weight: of the latest batch in the running direction or statistics; by default one for scores, and
            $\min(1, bn^{-2/3})$ for the statistics of batches of b of n units, which are then drawn uniformly.
    """
    statistic, schedule, update, default = _score_or_statistics(of, step, weight)
    return _composed(statistic, Saga(schedule), update, average or default)


def svrg(
    step: Step = 0.1,
    of: str = "score",
    weight: float | AbstractSchedule | None = None,
    refresh_epochs: int = 1,
    average: AbstractAverage | None = None,
) -> Algorithm:
    """SVRG on scores, or with of="suffstats" sEM-vr (see `memory.Anchor`), `weight` as in `saga`; a full pass every
    `refresh_epochs`."""
    if refresh_epochs < 1:
        raise ValueError(f"refresh_epochs must be at least 1, got {refresh_epochs}")
    statistic, schedule, update, default = _score_or_statistics(of, step, weight)
    return _composed(statistic, Anchor(schedule), update, average or default, refresh_epochs)


def pgd(step: float | AbstractSchedule, average: AbstractAverage | None = None) -> ParticleLangevin:
    """Particle gradient descent (Kuntz, Lim and Johansen 2023, algorithm 1): `ParticleLangevin` without noise on theta."""
    return _particles(step, "none", average)


def ipla(step: float | AbstractSchedule, average: AbstractAverage | None = None) -> ParticleLangevin:
    """The interacting particle Langevin algorithm (Akyildiz, Crucinio, Girolami, Johnston and Sabanis 2025):
    `ParticleLangevin` at temperature one over the number of particles."""
    return _particles(step, "per particle", average)


def slow_fast(
    step: float | AbstractSchedule, inverse_temperature: float = 1e3, average: AbstractAverage | None = None
) -> ParticleLangevin:
    r"""Slow-fast Langevin (Akyildiz, Ottobre and Souttar 2024): theta at a fixed inverse temperature $\beta$, the latents
    sped up by $1/\epsilon$, that is with a kernel step of `step` / $\epsilon$."""
    return _particles(step, "fixed", average, 1 / float(_positive("inverse_temperature", inverse_temperature)))


def mypgd(step: float | AbstractSchedule, average: AbstractAverage | None = None) -> ParticleLangevin:
    r"""Moreau-Yosida particle gradient descent: `pgd` for models with a non-smooth g (`margaux.AbstractNonSmooth`).

    Particles follow $U^\lambda(\theta,x)=-\log p_{smooth}+\min_u[g(u)+|u-x|^2/(2\lambda)]$ by
    $X_j'=X_j-h\nabla_xU^\lambda(\theta,X_j)+\sqrt{2h}\,\xi_j$, and
    $\theta'=\theta+\frac hN\sum_j\nabla_\theta\log p(y,X_j'\mid\theta)$. The score is the model's, where the paper
    has that of $-U^\lambda$: as $e^{-U^\lambda}$ has no normalising constant its integral has no maximum in a scale of x (it
    grows without bound as the scale vanishes), and its bias is of first order in $\lambda$, here of second.

    Cordero Encinar, Crucinio and Akyildiz (2025), "Proximal interacting particle Langevin algorithms".

    Args:
        step: h. The E-step is `MCMC(MYULA(step, smoothing), n_chains=N)`, with $\lambda$ = `smoothing` of at least h.

    Raises:
        TypeError: (by `fit`) another kernel.

    >>> import jax.numpy as jnp, numpy as np, margaux as mx
    >>> class Sparse(mx.AbstractNonSmooth):                     # y_i ~ N(x_i, 1), x_i ~ Laplace(theta, 1)
    ...     def log_smooth(self, params, x, y):
    ...         return -0.5 * (y - x) ** 2
    ...     def prox(self, params, x, step, y):
    ...         return x - jnp.clip(x - params["theta"], -step, step)
    ...     def log_joint(self, params, x, y):
    ...         return self.log_smooth(params, x, y) - jnp.abs(x - params["theta"]) - jnp.log(2 * (2 * jnp.pi) ** 0.5)
    ...     def init_latents(self, key, params, y):
    ...         return 0.0 * y
    >>> y, estep = np.array([0.2, 1.0, 1.1, 1.9]), mx.MCMC(mx.MYULA(0.02, smoothing=0.1), n_chains=20)
    >>> fit = mx.fit(Sparse(), y, mx.mypgd(0.02), estep, params={"theta": 0.0}, n_iter=2000, polish=False, progress=False)
    >>> abs(float(fit.params["theta"]) - 1.05) < 0.1            # these data are symmetric about their maximum
    True
    """
    return _particles(step, "none", average, nonsmooth="envelope")


def myipla(step: float | AbstractSchedule, average: AbstractAverage | None = None) -> ParticleLangevin:
    r"""Moreau-Yosida interacting particle Langevin: `mypgd` with $\sqrt{2h/N}\,\zeta$ added to $\theta$, as `ipla` is to `pgd`.

    Cordero Encinar, Crucinio and Akyildiz (2025). The E-step is that of `mypgd`.
    """
    return _particles(step, "per particle", average, nonsmooth="envelope")


def pipgla(step: float | AbstractSchedule, average: AbstractAverage | None = None) -> ParticleLangevin:
    r"""Proximal interacting particle gradient Langevin: `ipla` split forward and backward, with no envelope to choose.

    $V_j=X_j+h\nabla_x\log p_{smooth}(\theta,X_j)+\sqrt{2h}\,\xi_j$, $X_j'=\mathrm{prox}_{hg(\theta,\cdot)}(V_j)$ and
    $\theta'=\theta+\frac hN\sum_j\nabla_\theta\log p(y,\tfrac12(V_j+X_j')\mid\theta)+\sqrt{2h/N}\,\zeta$. The paper's
    approximate proximal map of $\theta$ is a step by the score at $X_j'$. There a scale of x that is below $\sqrt h$ for once
    sends all particles to zero and vanishes for good, and a place meets its kink; half-way there is neither.

    Cordero Encinar, Crucinio and Akyildiz (2025). The E-step is `MCMC(ProximalULA(step), n_chains=N)`.

    Raises:
        TypeError: (by `fit`) another kernel.
    """
    return _particles(step, "per particle", average, nonsmooth="splitting")


def _particles(
    step: float | AbstractSchedule,
    noise: str,
    average: AbstractAverage | None,
    temperature: float = 1.0,
    nonsmooth: str | None = None,
) -> ParticleLangevin:
    schedule, average = as_schedule(step, name="step"), average or PolyakRuppert()
    return ParticleLangevin(schedule, noise, np.asarray(temperature), average, nonsmooth)


def describe(algorithm: AbstractAlgorithm, estep: AbstractEStep, model: AbstractModel) -> str:
    """One line for progress and summaries."""
    names = [type(part).__name__ for part in (model, algorithm, estep)]
    if isinstance(algorithm, Algorithm):
        parts = (algorithm.statistic, algorithm.memory, algorithm.update)
        names[1] = " x ".join(type(part).__name__ for part in parts)
    return f"{names[0]}: {names[1]}, {names[2]}"
