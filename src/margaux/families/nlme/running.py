"""One run of SAEM on a nonlinear mixed-effects model: its settings, its kernel, subjects by size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ...algorithms.average import LinearlyWeighted
from ...algorithms.curved import SAEM
from ...algorithms.updates import Problem
from ...answers.fit import Fit
from ...answers.polish import FEW_UNITS, LARGEST, polished
from ...esteps import MCMC
from ...fitting import fit as run
from ...kernels import AbstractKernel, Alternating
from ...numerics.ladder import rung
from ...numerics.precision import default_dtype
from ...problem.penalty import NoPenalty
from ...problem.schedule import ConstantThenDecay
from ...problem.space import as_space
from ..sharing import equal, fit_by_shares
from .between_models import carried_over
from .individual import Individual
from .model import MixedEffects
from .settled import Settled
from .sizes import COSTLY_WORTH, WORTH, by_size, on_the_ladder
from .start import between_subjects

if TYPE_CHECKING:
    from .estimator import NLME

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
    #: whether several processes visit the subjects
    shared: bool = False

    @classmethod
    def of(cls, asked: NLME, shared: bool = False) -> Settings:
        """Those of an estimator, checked.

        Raises:
            ValueError: a number out of its range.
        """
        own: dict[str, Any] = {one.name: getattr(asked, one.name) for one in dataclasses.fields(cls) if hasattr(asked, one.name)}
        own |= {"seed": asked.random_state, "dtype": default_dtype(asked.dtype), "verbose": bool(asked.verbose), "shared": shared}
        settings = cls(**own)
        settings.check()
        return settings

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

    def estep(self, n_units: int, costly: bool = False) -> MCMC:
        chains = self.n_chains or max(2 if n_units < MANY else 1, -(-50 // rung(n_units)))
        n_steps = self.n_steps or (4 if n_units < MANY and not costly else 2)
        kernel = self.pattern if isinstance(self.pattern, AbstractKernel) else Alternating(self.pattern)
        return MCMC(kernel, n_steps=n_steps, thin=n_steps, n_chains=chains)

    def polishes(self, units: dict, start: dict) -> bool:
        """Whether a polish follows SAEM."""
        size = sum(np.size(leaf) for leaf in jax.tree.leaves(start))
        return self.polish is not False and len(units["mask"]) <= FEW_UNITS and size <= LARGEST

    def algorithm(self, n_burn: int) -> SAEM:
        gain = ConstantThenDecay(1.0, n_burn, self.power)
        return SAEM(gain=gain, anneal=np.asarray(self.anneal), anneal_until=np.asarray(n_burn),
                    average=LinearlyWeighted(max(n_burn, 1)))  # fmt: skip


def saem(
    build: Build, individual: dict[str, Individual], start: dict, settings: Settings, polish: bool | None = None
) -> Fit:  # fmt: skip
    """SAEM from a start. With polish=False it is only looked at where it ends, or polished later."""
    model, units = build(individual)
    ends_polished = settings.polishes(units, start)
    slack = SLACK if ends_polished else 1.0
    polish = settings.polish if polish is None else polish
    others: dict[str, Any] = dict(
        n_iter=settings.n_iter, batch_size=settings.batch_size, key=settings.seed, dtype=settings.dtype,
        progress=settings.verbose, polish=False, shared=settings.shared, near_enough=ends_polished,
    )  # fmt: skip
    algorithm, estep = settings.algorithm(settings.n_burn), settings.estep(len(units["mask"]), model.costly)
    vanishing = [name for j, (name, one) in enumerate(individual.items()) if not (one.random or _is_held(model, j))]

    def settled(model: MixedEffects, units: dict, start: dict) -> Settled | None:
        return Settled(model, units, start, settings.n_burn, slack) if settings.stop else None

    if settings.fixed_effects == "newton" or not vanishing:
        stop = settled(model, units, start)
        fit = run_by_size(model, units, algorithm, estep, params=start, space=model.space(), stop=stop, **others)
        return polished(fit, polish)
    wider = {name: dataclasses.replace(one, random=one.random or name in vanishing) for name, one in individual.items()}
    wide, wide_units = build(wider)
    start = carried_over(model, wide, start)
    # `carried_over` gives new random effects a variance of one; a plausible one is what they start from, and a
    # twentieth of it, an SD of a fifth, is where they end: EM moves a mean in proportion to the variance around it.
    plausible = between_subjects(wide, wide_units, start)[wide.independent] ** 2
    new = np.asarray([wide.names[wide.random[j]] in vanishing for j in wide.independent])
    start["omega2"] = np.where(new, plausible, start["omega2"])
    wide = dataclasses.replace(wide, vanishing=tuple(vanishing), vanished=start["omega2"] / 20)
    stop = settled(wide, wide_units, start)
    fit = run_by_size(wide, wide_units, algorithm, estep, params=start, space=wide.space(), stop=stop, **others)
    # The likelihood, the information and the predictions are those of the model that was asked for.
    moved: dict[str, Any] = {name: carried_over(wide, model, getattr(fit, name)) for name in ("params", "last_params")}
    if "params" in fit.trace:
        moved["trace"] = fit.trace | {"params": fit.trace["params"][..., _places(wide, model, fit.params)]}
    runs = jax.tree.map(lambda leaf: np.asarray(leaf)[None], moved["params"])
    problem = Problem(model, as_space(model.space(), moved["params"]), NoPenalty(), len(units["mask"]))
    return polished(dataclasses.replace(fit, **moved, run_params=runs, problem=problem, data=units, rows=None), polish)


def _is_held(model: MixedEffects, j: int) -> bool:
    """Whether every coefficient of a parameter without random effect is held."""
    return bool(np.all(model.held_coefficients[model.coefficients(j)]))


def _places(source: MixedEffects, target: MixedEffects, params: dict) -> np.ndarray:
    """Which entries of one model's flat parameters are another's, in its order."""
    leaves, structure = jax.tree.flatten(params)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])
    numbered = [np.arange(end - np.size(leaf), end).reshape(np.shape(leaf)) for leaf, end in zip(leaves, ends, strict=True)]
    moved = carried_over(source, target, structure.unflatten(numbered))
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(moved)]).astype(int)


def run_by_size(
    model: MixedEffects, units: dict, algorithm: SAEM, estep: MCMC, shared: bool, near_enough: bool, **others: Any
) -> Fit:  # fmt: skip
    """The fit with subjects in groups by size, if that is worth it; its data, rows and model are in the given order. Shares of
    several processes are not grouped.

    Args:
        near_enough: differential equations are solved for chains by the tolerance of starts, since a polish follows.
    """
    long = (COSTLY_WORTH, model.lengths(units)) if model.costly else (WORTH, None)
    order, groups = by_size(units["mask"], estep.n_chains, *long)
    chains = model.rough() if near_enough else model
    if shared or not groups or others["batch_size"] is not None:
        fit = fit_by_shares(chains, units, equal(len(units["mask"]), shared), algorithm, estep, **others)
        return dataclasses.replace(fit, problem=dataclasses.replace(fit._model(), model=model))
    grouped = dataclasses.replace(chains, groups=on_the_ladder(groups))
    fit = run(grouped, jax.tree.map(lambda leaf: np.asarray(leaf)[order], units), algorithm, estep, **others)
    back, problem = np.argsort(order), fit._model()
    return dataclasses.replace(
        fit,
        rows=jax.tree.map(lambda leaf: leaf[:, back], fit.rows),
        data=jax.tree.map(lambda leaf: np.asarray(leaf)[back], fit.data),
        problem=Problem(model, problem.space, problem.penalty, problem.n),
    )
