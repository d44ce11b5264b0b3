"""How a nonlinear mixed-effects model is fitted: starts, screening, SAEM, and a look at the boundary."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from ...algorithms.average import LinearlyWeighted
from ...algorithms.curved import SAEM
from ...algorithms.updates import Problem
from ...answers.fit import Fit
from ...answers.likelihood import loglik
from ...answers.polish import FEW_UNITS, LARGEST, polished
from ...answers.posterior import proposals
from ...engine.outcome import RESULTS, FitError
from ...esteps import MCMC, ImportanceSampling, ModeMixture
from ...fitting import fit as run
from ...kernels import AbstractKernel, Alternating
from ...numerics.compiling import compiled
from ...numerics.precision import precision
from ...problem.penalty import NoPenalty
from ...problem.schedule import ConstantThenDecay
from ...problem.space import as_space
from .data import LongData
from .flipflop import flipped
from .individual import Individual
from .model import MixedEffects, carried_over
from .modes import conditional_modes
from .outcomes import Continuous
from .refusals import refuse_zero_predictions
from .settled import Settled
from .sizes import by_size
from .start import between_subjects, first_parameters, some_subjects

#: a correlation is one where the log-likelihood is no lower then to within this, and a variance zero to within that
NEGLIGIBLE, NO_LOWER = 0.05, 0.001
#: draws a subject that likelihoods of starts are compared with, those of the ends of fits, and the latter's at most
DRAWS, CONVERGED, MOST = 100, 400, 6400
#: which are looked at: variance of the modes over omega2 below the one, eigenvalue of the correlations below the other
SHRUNK, NEARLY = 0.3, 0.1

#: a start is out of the running when its log-likelihood after the screening is lower by so much, and so much a subject
FAR, FAR_EACH = 5.0, 0.1

#: log-likelihood at which the data overrule the side of the user's starting values: twice it is very strong evidence
#: (Kass and Raftery 1995)
STRONGLY = 5.0

#: subjects from which on one short chain each is enough
MANY = 500
#: times the usual measures by which SAEM has settled where the polish does the rest
SLACK = 2.0

#: individual parameters -> model and units
Build = Callable[[dict[str, Individual]], tuple[MixedEffects, dict]]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The numbers of `NLME`."""

    n_iter: int
    n_burn: int
    power: float
    stop: bool
    n_chains: int | None
    n_starts: int
    n_screen: int
    pattern: tuple[str, ...] | AbstractKernel
    n_steps: int | None
    anneal: float
    fixed_effects: str
    batch_size: int | None
    polish: bool | None
    seed: int
    dtype: np.dtype
    verbose: bool

    def check(self) -> None:
        """Raises: ValueError: a number out of its range."""
        for name, least in [("n_iter", 1), ("n_burn", 0), ("n_starts", 1), ("n_screen", 10), ("n_steps", 1)]:
            value = getattr(self, name)
            if value is None and name == "n_steps":
                continue
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.n_burn >= self.n_iter:
            raise ValueError(f"n_burn = {self.n_burn} leaves nothing of n_iter = {self.n_iter}; lower it or raise n_iter")
        if not 0.5 < self.power <= 1:
            raise ValueError(f"power must be above 0.5 and at most 1, got {self.power}")
        if not 0 <= self.anneal < 1:
            raise ValueError(f"anneal must be at least 0 and below 1, got {self.anneal}")
        if self.fixed_effects not in ("newton", "exponentialised"):
            raise ValueError(f'fixed_effects must be "newton" or "exponentialised", got {self.fixed_effects!r}')

    def estep(self, n_units: int, n_chains: int | None = None) -> MCMC:
        chains = n_chains or self.n_chains or max(2 if n_units < MANY else 1, -(-50 // n_units))
        n_steps = self.n_steps or (4 if n_units < MANY else 2)
        kernel = self.pattern if isinstance(self.pattern, AbstractKernel) else Alternating(self.pattern)
        return MCMC(kernel, n_steps=n_steps, thin=n_steps, n_chains=chains)

    def algorithm(self, n_burn: int) -> SAEM:
        gain = ConstantThenDecay(1.0, n_burn, self.power)
        return SAEM(gain=gain, anneal=np.asarray(self.anneal), anneal_until=np.asarray(n_burn),
                    average=LinearlyWeighted(max(n_burn, 1)))  # fmt: skip


def check_structural(model: MixedEffects, units: dict, data: LongData) -> None:
    """Try the user's function at plausible parameters, before anything is fitted.

    Raises:
        ValueError: it fails, has the wrong shape, or is not finite somewhere, with subject and row.
    """
    given = all(one.start is not None for _, one in model.individual)
    psi = {name: np.asarray(one.start if one.start is not None else _middle(one)) for name, one in model.individual}
    rows = units["rows"]
    outcome = model.outcome
    function = outcome.structural if isinstance(outcome, Continuous) else getattr(outcome, "function", None)
    what = "the structural function" if isinstance(outcome, Continuous) else "the log-likelihood"
    if function is not None:
        number = jax.ShapeDtypeStruct((), np.float64)
        try:
            shape = jax.eval_shape(function, {name: number for name in psi}, {name: number for name in rows})
        except KeyError as error:
            raise ValueError(
                f"{what} asks for {error.args[0]!r}, which is no individual parameter ({', '.join(psi)}) and no numeric "
                f"column without holes, or role ({', '.join(rows)})"
            ) from error
        if getattr(shape, "shape", None) != ():
            raise ValueError(
                f"{what} must return one number for one row, but returns {getattr(shape, 'shape', type(shape).__name__)} "
                f"({data.where(0)})"
            )
    values = _tried(outcome, psi, rows)
    bad = ~np.isfinite(data.flat(values))
    if bad.any() and (given or bad.all()):
        at = int(np.flatnonzero(bad)[0])
        raise ValueError(f"{what} is not finite at the starting values ({data.where(at)}): {_readable(psi)}")
    refuse_zero_predictions(outcome, dict(model.individual), rows, data)


@compiled
def _tried(outcome: Any, psi: dict, rows: dict) -> Any:
    """Predictions, or log-likelihoods, of every row."""
    if isinstance(outcome, Continuous):
        return jax.vmap(lambda row: outcome.prediction(psi, row))(rows)
    return jax.vmap(lambda row: outcome.log_density(jnp.zeros(0), psi, row))(rows)


def _middle(one: Individual) -> float:
    """A value such a parameter can have."""
    return float(one.natural(jnp.asarray(0.0))) or 1.0


def _readable(psi: dict) -> str:
    return ", ".join(f"{name} = {float(value):g}" for name, value in psi.items())


def estimate(build: Build, individual: dict[str, Individual], settings: Settings) -> tuple[Fit, pd.DataFrame]:
    """The fit, and its starts: where each came from, its log-likelihood after the screening, and where it was continued the
    one that it reached. A random effect of no variance is left out of the final model.

    Args:
        build: individual parameters -> (model, units).
    """
    with precision(settings.dtype):
        model, units = build(individual)
        starts = first_parameters(model, units, settings)
        ends, table = _screened(model, units, starts, settings)
        continued = np.flatnonzero(table["continued"])
        fits = [_saem(build, individual, ends[at], settings, polish=False) for at in continued]
        table.loc[continued, "reached"] = [_likelihood(fit, fit.params) for fit in fits]
        best = _chosen(model, table["reached"].to_numpy()[continued], [fit.params for fit in fits])
        fit = polished(fits[best], settings.polish)
        fit, dropped = _without_unused(build, individual, fit, settings)
        fit, singular = _made_singular(fit)
        if (dropped or singular) and not fit.result.failed:
            fit = dataclasses.replace(fit, result=RESULTS.boundary)
    return fit, table


def _without_unused(build: Build, individual: dict[str, Individual], fit: Fit, settings: Settings) -> tuple[Fit, bool]:
    """The fit without the random effects that the data do not ask for, and whether there were any.

    EM hardly moves a variance that is small, so a small one may be a slow one: before it is left out, the model is fitted once
    more from a plausible variance.
    """
    dropped = False
    while (name := _least_used(fit)) is not None:
        less = individual | {name: dataclasses.replace(individual[name], random=False)}
        model, units = build(individual)
        reduced = _saem(build, less, carried_over(model, build(less)[0], fit.params), settings)
        if _lower(reduced, fit):
            break
        wide = {key: np.array(value) if key != "omega" else value for key, value in fit.params.items()}
        place = model.independent.index(model.names_of_random.index(name))
        wide["omega2"][place] = max(between_subjects(model, units, wide)[model.independent[place]] ** 2, wide["omega2"][place])
        again = _saem(build, individual, wide, settings)
        if _lower(reduced, again):
            fit = again
            break
        fit, individual, dropped = reduced, less, True
    return fit, dropped


def _lower(reduced: Fit, fit: Fit) -> bool:
    """Whether the log-likelihood of a smaller model is lower, beyond the errors of both."""
    if reduced.result.failed:
        return True
    one, other = reduced.loglik(), fit.loglik()
    return float(one) + NO_LOWER + 2 * float(np.hypot(one.se, other.se)) < float(other)


def _saem(
    build: Build, individual: dict[str, Individual], start: dict, settings: Settings, polish: bool | None = None
) -> Fit:  # fmt: skip
    """SAEM from a start. With polish=False it is only looked at where it ends, or polished later."""
    model, units = build(individual)
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(start))
    unpolished = settings.polish is False or len(units["mask"]) > FEW_UNITS or size > LARGEST
    slack = 1.0 if unpolished else SLACK
    stop = Settled(model, units, start, settings.n_burn, slack) if settings.stop else None
    polish = settings.polish if polish is None else polish
    others: dict[str, Any] = dict(
        n_iter=settings.n_iter, batch_size=settings.batch_size, key=settings.seed, dtype=settings.dtype, stop=stop,
        progress=settings.verbose, polish=False,
    )  # fmt: skip
    algorithm, estep = settings.algorithm(settings.n_burn), settings.estep(len(units["mask"]))
    vanishing = [name for name, one in individual.items() if not one.random]
    if settings.fixed_effects == "newton" or not vanishing:
        fit = _by_size(model, units, algorithm, estep, params=start, space=model.space(), **others)
        return polished(fit, polish)
    wide, wide_units = build({name: dataclasses.replace(one, random=True) for name, one in individual.items()})
    start = carried_over(model, wide, start)
    # `carried_over` gives new random effects a variance of one; a plausible one is what they start from, and a
    # twentieth of it, an SD of a fifth, is where they end: EM moves a mean in proportion to the variance around it.
    plausible = between_subjects(wide, wide_units, start)[wide.independent] ** 2
    new = np.asarray([wide.names[wide.random[j]] in vanishing for j in wide.independent])
    start["omega2"] = np.where(new, plausible, start["omega2"])
    wide = dataclasses.replace(wide, vanishing=tuple(vanishing), vanished=start["omega2"] / 20)
    fit = _by_size(wide, wide_units, algorithm, estep, params=start, space=wide.space(), **others)
    # The likelihood, the information and the predictions are those of the model that was asked for.
    moved: dict[str, Any] = {name: carried_over(wide, model, getattr(fit, name)) for name in ("params", "last_params")}
    if "params" in fit.trace:
        moved["trace"] = fit.trace | {"params": fit.trace["params"][..., _places(wide, model, fit.params)]}
    runs = jax.tree.map(lambda leaf: np.asarray(leaf)[None], moved["params"])
    problem = Problem(model, as_space(model.space(), moved["params"]), NoPenalty(), len(units["mask"]))
    return polished(dataclasses.replace(fit, **moved, run_params=runs, problem=problem, data=units, rows=None), polish)


def _places(source: MixedEffects, target: MixedEffects, params: dict) -> np.ndarray:
    """Which entries of one model's flat parameters are another's, in its order."""
    leaves, structure = jax.tree.flatten(params)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])
    numbered = [np.arange(end - np.size(leaf), end).reshape(np.shape(leaf)) for leaf, end in zip(leaves, ends, strict=True)]
    moved = carried_over(source, target, structure.unflatten(numbered))
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(moved)]).astype(int)


def _by_size(model: MixedEffects, units: dict, algorithm: SAEM, estep: MCMC, **others: Any) -> Fit:
    """The fit with subjects in groups by size, if that is worth it; its data, rows and model are in the given order."""
    order, groups = by_size(units["mask"], estep.n_chains)
    if not groups or others["batch_size"] is not None:
        return run(model, units, algorithm, estep, **others)
    grouped = dataclasses.replace(model, groups=groups)
    fit = run(grouped, jax.tree.map(lambda leaf: np.asarray(leaf)[order], units), algorithm, estep, **others)
    back, problem = np.argsort(order), fit._model()
    return dataclasses.replace(
        fit,
        rows=jax.tree.map(lambda leaf: leaf[:, back], fit.rows),
        data=jax.tree.map(lambda leaf: np.asarray(leaf)[back], fit.data),
        problem=Problem(model, problem.space, problem.penalty, problem.n),
    )


def _screened(model: MixedEffects, units: dict, starts: list, settings: Settings) -> tuple[list[dict], pd.DataFrame]:
    """Short SAEM runs from every start, on at most `ENOUGH` subjects: where they end, and a table of all of them.

    Continued are the one of highest log-likelihood, and the best that ended in another mode unless it is far below. Of two modes
    that are mirror images, one is always on the side that the user started from.
    """
    n_burn = 4 * settings.n_screen // 5
    units = some_subjects(units, settings.seed)
    places = np.asarray([_intercepts(model, start) for _, start in starts])
    natural = {name: np.asarray(one.natural(jnp.asarray(x))) for (name, one), x in zip(model.individual, places.T, strict=True)}
    table = pd.DataFrame({"origin": [kind for kind, _ in starts]} | natural)
    first = [start for _, start in starts]
    if len(starts) == 1:
        return first, table.assign(loglik=np.nan, continued=True, reached=np.nan)
    fit = run(model, units, settings.algorithm(n_burn), settings.estep(len(units["mask"]), 1), params=first[0], runs=first,
              space=model.space(), n_iter=settings.n_screen, key=settings.seed + 1, dtype=settings.dtype, progress=False,
              polish=False, throw=False)  # fmt: skip
    ends = [jax.tree.map(lambda leaf, r=r: leaf[r], fit.run_params) for r in range(len(starts))]
    values = np.asarray([_likelihood(fit, end, DRAWS) for end in ends])
    if not np.any(np.isfinite(values)):
        raise FitError(dataclasses.replace(fit, result=RESULTS.diverged))
    table = table.assign(loglik=values, continued=False, reached=np.nan)
    order = np.argsort(-np.where(np.isnan(values), -np.inf, values))
    best, near = int(order[0]), FAR + FAR_EACH * len(units["mask"])
    others = [at for at in order[1:] if values[at] > values[best] - near and _apart(model, ends[best], ends[at])]
    side = _side_asked_for(model)
    if side is not None and _side(model, ends[best]) != side:
        others = [at for at in others if _side(model, ends[at]) == side] or others
    table.loc[[best, *others[:1]], "continued"] = True
    return ends, table


def _intercepts(model: MixedEffects, params: dict) -> np.ndarray:
    """Typical individual parameters on the Gaussian scale, (d,)."""
    values = np.concatenate([np.ravel(params[name]) for name in ("beta", "fixed") if name in params])
    return np.asarray([values[model.coefficients(j)[0]] for j in range(len(model.names))])


def _apart(model: MixedEffects, params: dict, other: dict) -> bool:
    """Whether two ends lie in different modes: typical parameters more than 1.5 SDs of the random effects apart."""
    here = _intercepts(model, params)
    scale = 0.2 * (1 + np.abs(here))
    if model.random:
        sd = np.sqrt(np.diagonal(np.asarray(model.covariance(params))))
        scale[model.random] = np.maximum(1.5 * sd, scale[model.random])
    return bool(np.any(np.abs(_intercepts(model, other) - here) > scale))


def _side(model: MixedEffects, params: dict) -> bool | None:
    """Whether a curve with two sets of parameters has those where absorption is the slower."""
    psi = {name: float(one.natural(x)) for (name, one), x in zip(model.individual, _intercepts(model, params), strict=True)}
    return flipped(getattr(model.outcome, "structural", None), psi)


def _side_asked_for(model: MixedEffects) -> bool | None:
    """The side of the user's starting values; None where they do not say."""
    psi = {name: one.start for name, one in model.individual}
    return None if None in psi.values() else flipped(getattr(model.outcome, "structural", None), psi)  # type: ignore[arg-type]


def _chosen(model: MixedEffects, reached: np.ndarray, ends: list[dict]) -> int:
    """The end of highest log-likelihood; of two mirror images the one on the user's side, unless data are strongly against."""
    values = np.where(np.isnan(reached), -np.inf, reached)
    best, side = int(values.argmax()), _side_asked_for(model)
    if side is None or _side(model, ends[best]) == side:
        return best
    own = [at for at, end in enumerate(ends) if _side(model, end) == side and values[at] > values[best] - STRONGLY]
    return max(own, key=lambda at: values[at], default=best)


def _likelihood(fit: Fit, params: dict, n_draws: int = CONVERGED) -> float:
    """Log-likelihood with the same draws at any parameters; more of them until its error is small beside `NEGLIGIBLE`."""
    here = fit.at(params)
    rows = proposals(here, ImportanceSampling(2, ModeMixture()))
    while True:
        value = loglik(here, estep=ImportanceSampling(n_draws, ModeMixture(), quasi=True), replicates=4, rows=rows)
        if n_draws < CONVERGED or n_draws >= MOST or not value.se > NEGLIGIBLE / 4:
            return float(value)
        n_draws *= 4


def _least_used(fit: Fit) -> str | None:
    """The parameter whose random effect the data use least, if they hardly do: its modes spread much less than omega2."""
    model: Any = fit._model().model
    if fit.result.failed or not model.independent:
        return None
    modes = np.asarray(conditional_modes(model, fit.params, fit.data)[0])
    gap = modes - model.means(fit.params, np.asarray(fit.data["design"]))
    used = gap.var(axis=0)[model.independent] / fit.params["omega2"]
    return model.names[model.random[model.independent[int(used.argmin())]]] if used.min() < SHRUNK else None


def _made_singular(fit: Fit) -> tuple[Fit, bool]:
    """The fit with covariance matrices put on the boundary where the likelihood is no lower there, and whether any is."""
    singular, params = False, fit.params
    for position, matrix in enumerate(params.get("omega", ())):
        sd = np.sqrt(np.diagonal(matrix))
        values, vectors = np.linalg.eigh(matrix / np.outer(sd, sd))
        if values[0] > NEARLY:
            continue
        edge = (vectors * np.where(values > NEARLY, values, 1e-7)) @ vectors.T
        edge = edge / np.sqrt(np.outer(np.diagonal(edge), np.diagonal(edge))) * np.outer(sd, sd)
        moved = params | {"omega": tuple(edge if p == position else m for p, m in enumerate(params["omega"]))}
        if _likelihood(fit, moved) > _likelihood(fit, fit.params) - NEGLIGIBLE:
            singular, params = True, moved
    return dataclasses.replace(fit, params=params) if singular else fit, singular
