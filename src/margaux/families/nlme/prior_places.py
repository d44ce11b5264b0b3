"""Which of the engine's parameters priors are of: by the names that parameters have in `params_`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .answers import engine_names
from .individual import LogNormal, Normal
from .prior_density import NO_PRIOR, VARIANCES, PriorDensity
from .priors import InverseWishart, NormalPrior

if TYPE_CHECKING:
    from .individual import Individual
    from .model import MixedEffects

#: what `NLME(priors=)` is: by names, and tuples of them
Priors = Mapping[Any, NormalPrior | InverseWishart]

EXAMPLE = '{"ka": margaux.nlme.NormalPrior(1.5, cv=0.3), "omega2_ka": margaux.nlme.InverseWishart(0.09, df=20)}'


def checked(priors: Priors | None) -> Priors:
    """The priors that were asked for.

    Raises:
        TypeError: no mapping, or something in it that is no prior or no name.
    """
    if priors is None:
        return {}
    if not isinstance(priors, Mapping):
        raise TypeError(f"priors must be a dict by the names of parameters, as {EXAMPLE}, got {priors!r}")
    for name, one in priors.items():
        if not (isinstance(name, str) or (isinstance(name, tuple) and all(isinstance(part, str) for part in name))):
            raise TypeError(f"priors are by the name of a parameter, or a tuple of names of a block of omega, not by {name!r}")
        if not isinstance(one, NormalPrior | InverseWishart):
            raise TypeError(f"priors[{name!r}] must be a prior, as in {EXAMPLE}, got {one!r}")
    return priors


def starts(priors: Priors, individual: Mapping[str, Individual]) -> dict[str, float]:
    """Where typical values without a start of their own begin: at the centers of their priors."""
    out = {}
    for name, one in individual.items():
        prior = priors.get(name)
        if one.start is None and isinstance(prior, NormalPrior):
            prior.on_scale_of(one, name)
            out[name] = float(prior.center)
    return out


def density(model: MixedEffects, individual: Mapping[str, Individual], priors: Priors, labels: list[str], n: int) -> PriorDensity:
    """The log prior of a model's parameters.

    Args:
        labels: of the coefficients, as `Design` has them. n: subjects.

    Raises:
        ValueError: a parameter that there is not, that is held, or whose prior must be of the other kind.
    """
    if not priors:
        return NO_PRIOR
    every = [(name, place) for place, name in engine_names(model, labels).items() if not place.startswith("omega.")]
    named = dict(every)
    spaceless = {"".join(name.split()): name for name in named}
    found: dict[str, dict[int, tuple[Any, Any]]] = {}
    constant, names = 0.0, model.names_of_random
    for asked, prior in priors.items():
        if isinstance(asked, tuple):
            block, matrix = _block(model, asked, prior)
            found.setdefault("omega", {})[block] = (matrix, np.asarray(prior.weight))  # type: ignore[union-attr]
            constant += prior.constant  # type: ignore[union-attr]
            continue
        name = spaceless.get("".join(asked.split()))
        if name is None:
            inside = [names[j] for own in model.blocks for j in own]
            blocks = [tuple(names[j] for j in own) for own in model.blocks]
            if asked.removeprefix("omega2_") in inside:
                raise ValueError(
                    f"{asked} is in a block of omega, whose prior is of the whole: priors={{{blocks[0]!r}: InverseWishart(...)}}"
                )
            known = [*named, *blocks]
            raise ValueError(
                f"priors names {asked!r}, which is no parameter of this model; they are {', '.join(map(str, known))}"
            )
        parameter, place = named[name].removesuffix("]").split("[")
        if int(place) in found.get(parameter, {}) or sum(other == name for other, _ in every) > 1:
            raise ValueError(f"priors names {name} twice, or two parameters are called so: rename one of them")
        if named[name] in model.held.names:
            raise ValueError(f"{name} is held and has a prior: leave one of them out")
        numbers, more = _numbers(parameter, name, prior, dict(individual).get(name))
        found.setdefault(parameter, {})[int(place)] = numbers
        constant += more
    places = tuple((name, tuple(sorted(own))) for name, own in found.items())
    values = {name: tuple(zip(*(found[name][k] for k in at), strict=True)) for name, at in places}
    numbers = {
        name: (first, second) if name == "omega" else (np.asarray(first), np.asarray(second))
        for name, (first, second) in values.items()
    }
    return PriorDensity(places, numbers, np.asarray(constant), np.asarray(float(n)))


def _numbers(
    parameter: str, name: str, prior: NormalPrior | InverseWishart, one: Individual | None
) -> tuple[tuple[float, float], float]:
    """What an entry of a parameter has in `PriorDensity`, and the constant of its density."""
    if parameter in VARIANCES:
        if not isinstance(prior, InverseWishart) or prior.size > 1:
            raise ValueError(f"the prior of the variance {name} is an InverseWishart(mode, df=) of one number, not {prior}")
        return (float(prior.matrix[0, 0]), prior.weight), prior.constant
    if parameter == "shape" and name.startswith("nu_"):
        raise ValueError(f"{name} is normal as its reciprocal if at all, and takes no prior; hold it, as StudentT(5, fixed=True)")
    if not isinstance(prior, NormalPrior):
        raise ValueError(f"the prior of {name} is a NormalPrior; {type(prior).__name__} is for variances of random effects")
    scale = LogNormal() if parameter == "error" else Normal() if one is None else one
    mean, sd = prior.on_scale_of(scale, name)
    return (mean, sd**-2), float(-np.log(sd) - np.log(2 * np.pi) / 2)


def _block(model: MixedEffects, asked: tuple[str, ...], prior: NormalPrior | InverseWishart) -> tuple[int, np.ndarray]:
    """Which block of omega it is, and the mode in the order of its effects."""
    names = model.names_of_random
    blocks = [tuple(names[j] for j in own) for own in model.blocks]
    place = next((k for k, own in enumerate(blocks) if sorted(own) == sorted(asked)), None)
    if place is None:
        there = (
            f"they are {blocks}" if blocks else 'there is none; name a variance, as "omega2_V", or correlate effects by omega='
        )
        raise ValueError(f"priors names {asked!r}, which is no block of omega; {there}")
    if not isinstance(prior, InverseWishart) or prior.size != len(asked):
        raise ValueError(f"the prior of the block {asked!r} is an InverseWishart of {len(asked)} rows and columns, not {prior}")
    order = [asked.index(name) for name in blocks[place]]
    return place, prior.matrix[np.ix_(order, order)]
