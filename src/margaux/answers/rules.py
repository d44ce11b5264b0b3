"""How expectations given the data are taken once a fit is over: by the most accurate means that the model allows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..esteps import MCMC, AbstractEStep, Exact, ImportanceSampling, Laplace, ModeMixture, Noise, Quadrature
from ..esteps.base import continuous
from ..esteps.laplace import FIRST
from ..kernels import MALA
from ..numerics.compiling import shapes_of
from ..numerics.keys import key_of
from ..numerics.ladder import rung
from ..numerics.sampling import HEAVY
from ..problem.mixed import mixed
from ..problem.model import AbstractConcave, AbstractConjugate, AbstractDiscrete, AbstractLikelihood, AbstractModel, costly
from .hidden import WIDE, suspects, widely, with_hidden
from .posterior import latent_size
from .proposing import proposals

if TYPE_CHECKING:
    from ..algorithms.updates import Problem
    from .fit import Fit


#: rules by the number of latents, of which the first is taken that does: nodes a dimension, those of a finer one that it is to
#: agree with, and their reach
NODES: dict[int, tuple[tuple[int, int, float | None], ...]] = {
    1: ((21, 31, None), (61, 85, None)),
    2: ((15, 21, None), (35, 45, 5.5)),
    3: ((9, 13, None), (17, 21, None)),
}
#: what precedes them for models whose densities take long
COARSE: dict[int, tuple[tuple[int, int, float | None], ...]] = {1: ((11, 15, None),), 2: ((7, 11, None),), 3: ((5, 7, None),)}
#: and searches for modes of theirs: from the starts, and from five standard deviations to both sides; rounds of draws after them
SEARCHES, ROUNDS = 5, 2
#: modes that a posterior of a density that takes long may have, to be integrated by a grid for each
GRIDS = 3
#: points over all units that a quadrature may have
AFFORDABLE = 50_000_000
#: draws a replicate over all units, the least and the most a unit has, and replicates
DRAWS, LEAST, MOST, REPLICATES = 50_000, 100, 4000, 4
#: units from which on what need not be known of each is learned from so many, chosen at random
SAMPLE = 5000
#: latents a unit up to which importance sampling is tried, and how even weights must then be
TRIED, EVEN = 200, 0.02
#: draws a unit that correct Laplace's approximation in each replicate, at most, and replicates; numbers that draws may hold
WEIGHTED, CORRECTED, NUMBERS = 1000, 8, 20_000_000
#: draws of a unit among many, at least
FEWEST = 100
#: transitions in each replicate, at most, and of one of several chains, at least
CHAIN, SHORTEST = 500, 50


@dataclasses.dataclass(frozen=True)
class Rule:
    """An E-step with rows made at certain parameters, which are held where parameters move a little.

    Attributes:
        estep, rows: see `each_unit`. replicates: independent sets of noise; one where the rule is deterministic.
        width: numbers a unit holds. modes, away: of each unit, how many modes its posterior was found to have, and how far
            from its mode the search ended, in standard deviations; None where no search was made. unseen: the share of
            searches that ended where hardly another did, one where there are more modes than draws come from. finer: nodes of a
            quadrature that this one is to agree with. closer: of units that have finer grids, what these are to agree with.
    """

    estep: AbstractEStep
    rows: PyTree
    replicates: int
    width: int
    modes: np.ndarray | None = None
    away: np.ndarray | None = None
    finer: int = 0
    unseen: np.ndarray | None = None
    closer: tuple[tuple[int, float | None], ...] = ()

    def finely(self, widening: float = 1.0) -> Any:
        """The quadrature that this one is to agree with."""
        return dataclasses.replace(self.estep, n_nodes=self.finer, closer=self.closer, widening=widening)  # type: ignore[call-arg]

    @property
    def deterministic(self) -> bool:
        return self.replicates == 1

    @property
    def has_likelihood(self) -> bool:
        """Whether it gives the marginal likelihood as well."""
        return isinstance(self.estep, Quadrature | ImportanceSampling | Laplace) or (
            isinstance(self.estep, Exact) and self.deterministic
        )


def best_rule(
    fit: Fit, params: PyTree = None, key: int = 0, n_draws: int | None = None, level: int = 0, proposal: ModeMixture | None = None
) -> Rule:
    """The most accurate rule for a fit's model, with rows made at the estimate or at `params`.

    A discrete latent is enumerated. Up to three latents are integrated by adaptive quadrature, if each posterior has one mode,
    which is looked into unless the log density is concave, or, where the population is a mixture, or the density takes long, by
    a grid for each of a few, and the points are affordable; others by importance sampling from a mixture over their modes, or,
    where the weights of a hundred latents are too uneven for that, by a conjugate model's own draws or by chains. More latents
    than can be drawn so stay approximated where the fit's own E-step is Laplace's.

    Args:
        level: of `quadratures`; beyond the last there are draws. proposal: of draws, and what quadratures are
            centred by, instead of a thorough one.

    Raises:
        ValueError: variational fits, whose draws are not from a posterior.
    """
    problem = fit._model()
    if isinstance(fit.estep, Noise):
        raise ValueError("a variational fit has no posterior draws to take information or likelihoods from")
    if isinstance(problem.model, AbstractDiscrete):
        return Rule(Exact(), None, 1, 100)
    size = latent_size(fit)
    if size > TRIED and isinstance(fit.estep, Laplace):
        return laplace_rule(fit, params)
    draws = n_draws or int(np.clip(DRAWS // rung(problem.n), LEAST, MOST))
    alone = isinstance(problem.model, AbstractLikelihood)  # whose prior is the kernel's
    if size > TRIED or alone or (isinstance(fit.estep, Exact) and continuous_trouble(fit)):
        return _by_draws(fit, size, draws)
    importance = ImportanceSampling(draws, proposal or thorough(problem.model), quasi=True)
    nodes, finer, reach = grid_of(problem, size, level) or (0, 0, None)
    affordable = nodes > 0 and n_draws is None
    if affordable and isinstance(problem.model, AbstractConcave) and problem.model.concave:
        grid = Quadrature(nodes, held=True, reach=reach)
        return Rule(grid, proposals(fit, grid, params), 1, nodes**size * (size + 2), finer=finer)
    some, several = sample(problem.n), mixed(problem.model)
    rows = proposals(fit, importance, params, some, key)
    if proposal is None and some is not None and len(suspects(fit, rows, params, key, some)):
        rows, some = proposals(fit, importance, params, key=key), None
    if proposal is None and some is None:
        rows = with_hidden(fit, rows, params, key)
    modes, away = (rows[name] if some is None else rows[name][some] for name in ("modes", "away"))
    # Draws of densities that take long are dearer than a few grids.
    grids = 1 < modes.max() <= GRIDS and costly(problem.model) and some is None and rows["unseen"].max() < 1
    if affordable and (modes.max() == 1 or several or grids):
        grid = Quadrature(nodes, held=True, reach=reach)
        if several or grids:
            rows = rows if some is None else proposals(fit, importance, params, key=key)
            unseen = None if several else rows["unseen"]
            return Rule(grid, _by_share(rows), 1, nodes**size * (size + 2), modes, away, finer, unseen)
        # Centred at the mean and scaled by the covariance of the draws, which are the same as mode and curvature or better.
        single = {"mean": rows["mean"][:, 0], "cholesky": rows["cholesky"][:, 0]} if some is None else None
        rows = proposals(fit, grid, params) if single is None else single
        return Rule(grid, rows, 1, nodes**size * (size + 2), modes, away, finer)
    rows = rows if some is None else proposals(fit, importance, params, key=key)
    wide = np.shape(rows["mean"])[1] == WIDE.n_modes
    if rows["unseen"].max() > 0 and not wide and not costly(problem.model):
        rows, wide = widely(fit, rows, params, key, np.flatnonzero(rows["unseen"])), True
        modes, away = rows["modes"], rows["away"]
    if wide:
        importance = dataclasses.replace(importance, proposal=WIDE)
    rule = Rule(importance, rows, REPLICATES, draws * (size + 3), modes, away, unseen=rows["unseen"])
    return rule if size <= 20 or _even(fit, rule, params) else _by_draws(fit, size, draws)


def quadratures(model: AbstractModel, size: int) -> tuple[tuple[int, int, float | None], ...]:
    """Nodes a latent, those that they are to agree with, and their reach, one after the other."""
    return (COARSE.get(size, ()) if costly(model) else ()) + NODES.get(size, ())


def grid_of(problem: Problem, size: int, level: int) -> tuple[int, int, float | None] | None:
    """The quadrature of a level; None where there is none, or its points are more than can be afforded."""
    nodes, finer, reach = (*quadratures(problem.model, size)[level:], (0, 0, None))[0]
    return (nodes, finer, reach) if nodes > 0 and problem.n * finer**size <= AFFORDABLE else None


def with_grid(rule: Rule, grid: tuple[int, int, float | None], size: int) -> Rule:
    """The quadrature of `size` latents with another grid for all units, around the same centres."""
    nodes, finer, reach = grid
    rows = {name: leaf for name, leaf in rule.rows.items() if name != "level"}
    estep, width = Quadrature(nodes, held=True, reach=reach), nodes**size * (size + 2)
    return dataclasses.replace(rule, estep=estep, rows=rows, width=width, finer=finer, closer=())


def with_levels(rule: Rule, levels: np.ndarray, grids: tuple[tuple[int, int, float | None], ...]) -> Rule:
    """The rule with a grid for each unit: its own at level 0, at others one of `grids`, those of `quadratures` beyond its own."""
    closer, finer = (tuple((grid[at], grid[2]) for grid in grids) for at in (0, 1))
    estep = dataclasses.replace(rule.estep, closer=closer)  # type: ignore[call-arg]
    return dataclasses.replace(rule, estep=estep, closer=finer, rows=rule.rows | {"level": levels})


def thorough(model: AbstractModel) -> ModeMixture:
    """A search of each unit's posterior for modes, not from as far away where a density takes long."""
    return ModeMixture(searches=SEARCHES, rounds=ROUNDS) if costly(model) else ModeMixture()


def sample(n: int, size: int = SAMPLE) -> np.ndarray | None:
    """Ids of units chosen at random, always the same ones; None where all are few enough."""
    return None if n <= size else np.sort(np.random.default_rng(n).choice(n, size, replace=False))


def continuous_trouble(fit: Fit) -> bool:
    """Whether the latents are not all continuous."""
    unit = jax.tree.map(lambda leaf: np.asarray(leaf[0]), fit.data)
    latents = shapes_of(fit._model().model.init_latents, key_of(0), fit.params, unit)
    return continuous(fit._model().model, latents, "") is not None


def _by_share(rows: PyTree) -> dict[str, np.ndarray]:
    """Gaussians of each unit's mixture (n, K, ...), as many as the unit of most has, those of most mass first."""
    order = np.argsort(-rows["log_share"], axis=1, kind="stable")
    order = order[:, : np.max(np.sum(rows["log_share"] > -np.inf, axis=1))]
    units = np.arange(len(order))[:, None]
    return {name: rows[name][units, order] for name in ("mean", "cholesky", "log_share")}


def _even(fit: Fit, rule: Rule, params: PyTree) -> bool:
    from .posterior import each_unit, nothing

    _, figures = each_unit(fit, nothing, rule.estep, params, width=rule.width, rows=rule.rows)
    draws: Any = rule.estep
    return bool(np.median(figures["ess"]) > EVEN * draws.n_draws and np.median(figures["pareto"]) < HEAVY)


def _by_draws(fit: Fit, size: int, draws: int) -> Rule:
    """Exact draws where the model has them, chains otherwise."""
    model, width = fit._model().model, draws * (size + 3)
    if isinstance(model, AbstractConjugate):
        return Rule(Exact(draws), None, REPLICATES, width)
    # The fit's own kernel, whose bias is told by a check of its own, and as many chains as it has, which go on; their draws in
    # all replicates are as many as of the others.
    chains = fit.estep.n_chains if isinstance(fit.estep, MCMC) else 1
    steps = max(min(draws, CHAIN) // chains, SHORTEST)
    own = fit.estep.kernel if isinstance(fit.estep, MCMC) else MALA()
    return Rule(MCMC(own, n_steps=steps, n_chains=chains, burn_in=steps // 4), None, REPLICATES, steps * chains * (size + 3))


def laplace_rule(fit: Fit, params: PyTree = None) -> Rule:
    """The rule of a fit whose latents are approximated, with modes at the estimate or at `params`: followed from the fit's own
    where a unit has only one, otherwise found anew, for the fit's own may have been lost."""
    from .marginals import followed

    model, own = fit._model().model, fit.estep if isinstance(fit.estep, Laplace) else None
    estep = Laplace(own.structure if own else None, n_newton=FIRST)
    unimodal = isinstance(model, AbstractConcave) and model.concave
    if unimodal and own and fit.share is None and fit.rows is not None:
        rows = followed(fit, estep, fit.params if params is None else params, jax.tree.map(lambda leaf: leaf[0], fit.rows))
    else:
        rows = proposals(fit, estep, params)
    return Rule(estep, rows, 1, latent_size(fit) * (estep.n_draws + 3))


def weighted_draws(fit: Fit, rule: Rule) -> Rule:
    """Of Laplace's rule: draws from the same Gaussians with weights, of a unit as many as memory holds, of many fewer."""
    size, n = latent_size(fit), fit._model().n
    width = max(size, max(np.size(leaf) for leaf in jax.tree.leaves(fit.data) if leaf.dtype.kind == "f") // n)
    plain: Any = rule.estep
    draws = int(np.clip(NUMBERS // (width * n), FEWEST if n > 1 else 16, WEIGHTED)) // 2 * 2
    return Rule(dataclasses.replace(plain, correct=True, n_draws=draws), rule.rows, CORRECTED, draws * (width + 3))
