"""The model that an `NLME` was asked for: its settings, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from . import classes, held, prior_places, shaped
from .by_output import error_of
from .censoring import METHODS
from .data import LongData
from .design import Design
from .dosing import administered
from .individual import Individual, LogNormal
from .kinds import outputs_of
from .model import MixedEffects
from .occasions import BetweenOccasions
from .outcomes import DOSES, PRESENT, AbstractOutcome, Continuous, Custom, whole

if TYPE_CHECKING:
    from .estimator import NLME


def outcome(asked: NLME) -> AbstractOutcome:
    """What is observed given individual parameters.

    Raises:
        ValueError, TypeError: not one of a structural model and a log-likelihood, or one that is no function.
    """
    if (asked.structural is None) == (asked.log_likelihood is None):
        raise ValueError("give either structural (with error) or log_likelihood")
    structural, log_likelihood = asked.structural, asked.log_likelihood
    if log_likelihood is None:
        if not callable(structural):
            raise TypeError(f"structural must be a function of (parameters, row), got {structural!r}")
        if asked.censoring not in METHODS:
            raise ValueError(f"censoring must be one of {', '.join(METHODS)}, got {asked.censoring!r}")
        return Continuous(structural, error_of(asked.error, outputs_of(structural)))
    if isinstance(log_likelihood, AbstractOutcome):
        return log_likelihood
    if not callable(log_likelihood):
        raise TypeError(f"log_likelihood must be a function of (parameters, row), got {log_likelihood!r}")
    return Custom(log_likelihood)


def outcome_of(fitted: NLME) -> AbstractOutcome:
    """The outcome of a fitted model, with what of its error is held: the engine's has no numbers."""
    own = fitted.model_.outcome
    return dataclasses.replace(own, error=error_of(fitted.error, own.outputs)) if isinstance(own, Continuous) else own


def multipliers(asked: NLME) -> set[str]:
    """Names of individual parameters that multiply a residual error."""
    return set() if asked.structural is None else set(error_of(asked.error, outputs_of(asked.structural)).multipliers)


def with_multipliers(named: dict[str, Individual], factors: set[str]) -> dict[str, Individual]:
    """With the parameters that multiply residual errors, whose typical value is one.

    Raises:
        ValueError: one is given that is estimated, not log-normal, or varies between occasions.
    """
    for name in sorted(factors & set(named)):
        one = named[name]
        if not (isinstance(one, LogNormal) and one.fixed and one.start == 1 and not one.occasion):
            raise ValueError(
                f"individual[{name!r}] multiplies each subject's residual error, whose own parameters are its typical size: "
                "its typical value is one and held, as LogNormal(1.0, fixed=True)"
            )
    return named | {name: LogNormal(1.0, fixed=True) for name in sorted(factors - set(named))}


def individual(asked: NLME) -> dict[str, Individual]:
    """The individual parameters by name.

    Raises:
        ValueError, TypeError: there are none, one is no distribution, or none has a random effect.
    """
    named = asked.individual
    if not isinstance(named, dict) or not named:
        raise ValueError('individual must name the parameters, as {"ka": LogNormal(), "V": LogNormal()}')
    named = with_multipliers(named, multipliers(asked))
    for name, one in named.items():
        if not isinstance(one, Individual):
            raise TypeError(f"individual[{name!r}] must be a distribution such as margaux.nlme.LogNormal(), got {one!r}")
    if not any(one.random or one.occasion for one in named.values()):
        raise ValueError("no parameter has a random effect; a mixed model needs one (random=True)")
    shaped.check(named, asked.fixed_effects)
    classes.check(named, asked.priors, asked.polish)
    return named


def built(
    outcome: AbstractOutcome,
    blocks: list[tuple[str, ...]],
    data: LongData,
    individual: dict[str, Individual],
    priors: prior_places.Priors | None = None,
) -> tuple[MixedEffects, dict]:
    """The model of these individual parameters, with their priors, and the data as its units."""
    known_before = prior_places.checked(priors)
    design = Design(individual, data)
    random = [name for name, one in individual.items() if one.random]
    placed = [tuple(random.index(name) for name in block if name in random) for block in blocks]
    plain = tuple((name, one.without_numbers()) for name, one in individual.items())
    known = outcome
    if isinstance(outcome, Continuous) and outcome.error.held:
        known = dataclasses.replace(outcome, error=outcome.error.without_numbers())
    args = known, plain, design.owner, tuple(block for block in placed if len(block) > 1)
    units = data.units | {"design": design.matrix(data)}
    varying = tuple(j for j, one in enumerate(individual.values()) if one.occasion)
    if not (varying or design.shifted):
        model, units = MixedEffects(*args), {name: part for name, part in units.items() if name != PRESENT}
    else:
        model = BetweenOccasions(*args, varying=varying, shifted=design.shifted, most=units[PRESENT].shape[1])
    classes.check_occasions(model)
    starts = prior_places.starts(known_before, individual)
    typical = np.asarray([starts.get(name, one.start) for name, one in individual.items()], float)
    model = dataclasses.replace(model, typical=typical, first_shapes=shaped.starts(individual))
    model = dataclasses.replace(model, held=held.values(model, individual, outcome, design.labels))
    density = prior_places.density(model, individual, known_before, design.labels, len(data.labels))
    return dataclasses.replace(model, prior=density), units


def check_parameters(asked: NLME, outcome: AbstractOutcome, individual: Mapping[str, Individual]) -> None:
    """Raises: ValueError: a ready model's parameters are others; names of `dosed` may be columns of the doses instead."""
    needed = getattr(getattr(outcome, "structural", None) if whole(asked.structural) else asked.structural, "parameters", None)
    if needed is None:
        return
    administration = administered(outcome)
    read = set() if administration is None else set(administration.names) & set(asked.data_.units["rows"].get(DOSES, {}))
    curves = set(individual) - multipliers(asked)
    if not set(needed) - read <= curves <= set(needed):
        raise ValueError(f"{asked.structural!r} has the parameters {', '.join(needed)}; individual has {', '.join(individual)}")


def blocks(asked: NLME, individual: Mapping[str, Individual]) -> list[tuple[str, ...]]:
    """Names of correlated effects.

    Raises:
        ValueError: an unknown word, or a name without a random effect or named twice.
    """
    random = [name for name, one in individual.items() if one.random]
    if isinstance(asked.omega, str):
        if asked.omega not in ("diagonal", "full"):
            raise ValueError(f'omega must be "diagonal", "full" or a list of tuples of names, got {asked.omega!r}')
        out = [tuple(random)] if asked.omega == "full" else []
        for refuse in (held.refuse_blocks, shaped.refuse_blocks):
            refuse(individual, out)
        return out
    seen: set[str] = set()
    out = []
    for block in asked.omega:
        for name in block:
            if name not in random or name in seen:
                raise ValueError(f"omega names {name!r}, which has no random effect, or is named twice; they are {random}")
            seen.add(name)
        out.append(tuple(block))
    for refuse in (held.refuse_blocks, shaped.refuse_blocks):
        refuse(individual, out)
    return out
