"""Concentrations after a history of doses, by superposition: exact for linear compartments."""

from __future__ import annotations

import abc
import dataclasses
import functools
import operator
from collections.abc import Collection, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...numerics.partials import by_partials
from .carried import carried, reach
from .outcomes import DOSES
from .pharmacokinetics import Compartments, within
from .responses import UNTIL_NOW, Pair, history
from .structural import Curve

#: which of the doses act on a row
FIRST, LAST = "first_dose", "last_dose"
#: what of a dose arrives, and how long it takes
AMOUNT, LASTS = "amount that arrives", "lasts"


@dataclasses.dataclass(frozen=True)
class Regimen:
    """What the doses of a table have, known before anything is compiled.

    Args:
        infusions: some last. steady: some are at steady state. depots: whether all doses are absorbed (True), none (False), or
            it depends on the dose (None). reach: see `margaux.families.nlme.carried.reach`. forever: some of those at steady
            state flow in all the time before they are recorded.
    """

    infusions: bool = False
    steady: bool = False
    depots: bool | None = False
    reach: int | None = None
    forever: bool = True

    @classmethod
    def of(cls, doses: Mapping[str, np.ndarray]) -> Regimen:
        """That of the doses of a table."""
        first = np.unique(doses["compartment"]) == 1
        infusions = bool(np.any(doses["rate"] != 0) or np.any(doses["duration"] > 0))
        steady, forever = bool(np.any(doses["steady"] > 0)), bool(np.any(doses["steady"] == UNTIL_NOW))
        return cls(infusions, steady, bool(first[0]) if len(first) == 1 else None, reach(doses), forever)


class AbstractAdministration(abc.ABC):
    """How a structural model reads the doses of an event table.

    Attributes:
        regimen: what doses there are. duration, rate: names of what doses whose RATE is -2 and -1 read.
        by_parts: whether it needs to know where the record begins, and where it begins anew. needs_doses: whether nothing
            happens without one. may_diverge: whether predictions need not be finite, as where a steady state is never reached;
            parameters are impossible then.
    """

    regimen: Regimen
    duration: str | None
    rate: str | None
    by_parts = False
    needs_doses = True
    may_diverge = True

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """What it reads besides the parameters of its compartments."""

    @property
    @abc.abstractmethod
    def compartments(self) -> int:
        """How many take doses."""

    def lasts(self, parameters: Any, doses: Any, amount: Any) -> Float[Array, " E"]:
        """How long each dose takes."""
        rate = doses["rate"]
        lasts = jnp.where(rate > 0, amount / jnp.where(rate > 0, rate, 1.0), doses["duration"])
        if self.rate is not None:
            lasts = jnp.where(rate == -1, amount / read_of_dose(self.rate, parameters, doses), lasts)
        if self.duration is not None:
            lasts = jnp.where(rate == -2, read_of_dose(self.duration, parameters, doses), lasts)
        return lasts


@dataclasses.dataclass(frozen=True)
class Administered(AbstractAdministration):
    r"""Concentration in the central compartment at one time of a subject whose doses are a table: f(parameters, row).

    With doses $D_j$ at $t_j$, bioavailability F and lag time L, $c(t)=\sum_j F D_j\,g_j(t-t_j-L)$, g the response of
    `Compartments` to a unit dose given at once or at a constant rate: over the dose as it is given by RATE (F changes how long it
    lasts), or over a duration. At steady state, doses were given at intervals for ever:
    $\sum_k g(t+k\,II)=$ a geometric sum, of infusions that overlap too. As in NONMEM, steady state holds at the time of the
    record, and the interval before the lagged dose is that of the regimen, which is continued backwards where the lag is longer
    than the interval.

    Args:
        curve: compartments and the route of doses into compartment 1.
        regimen: what doses there are.
        lag, bioavailability, duration, rate: names, of an individual parameter or else of a column of the dose's record, of the
            compartments 1 and 2; None for none. `duration` and `rate` serve doses whose RATE is -2 and -1.

    Reference: Gibaldi and Perrier, Pharmacokinetics (2nd ed., 1982), ch. 3; Beal et al., NONMEM Users Guide (1989-2018), VI.
    """

    curve: Compartments
    regimen: Regimen = Regimen()
    lag: tuple[str | None, str | None] = (None, None)
    bioavailability: tuple[str | None, str | None] = (None, None)
    duration: str | None = None
    rate: str | None = None

    def __call__(self, parameters: Mapping[str, Any], row: Mapping[str, Any]) -> Array:
        doses = row[DOSES]
        fraction = self._of_dose(self.bioavailability, parameters, doses, 1.0)
        if self.regimen.steady:  # what flows in for ever is a rate, which the fraction does not change
            fraction = jnp.where(doses["steady"] == UNTIL_NOW, 1.0, fraction)
        doses = doses | {AMOUNT: doses["amount"] * fraction}
        lag = self._of_dose(self.lag, parameters, doses, 0.0)
        if self.regimen.infusions:
            doses = doses | {LASTS: self.lasts(parameters, doses, doses[AMOUNT])}
        read = {name: row[name] for name in ("time", FIRST, LAST)}
        # Where nothing about the doses is a parameter, a phase is told by its rates.
        told = self.lag == self.bioavailability == (None, None) and self.duration is self.rate is None
        phase = by_partials(self._phase) if told else self._phase
        weights, rates = zip(*self.curve.phases(parameters), strict=True)
        numbers = [jnp.stack([rate, parameters["ka"]] if self.curve.route == "oral" else [rate]) for rate in rates]
        each = [weight * phase(number, (read, doses, lag)) for weight, number in zip(weights, numbers, strict=True)]
        return functools.reduce(operator.add, each)

    def _phase(self, rates: Array, given: tuple[Any, Any, Any]) -> Array:
        """What all doses add to an exponential phase, by its rate, and that of absorption where there is one."""
        row, doses, lag = given
        of_doses = self._carried if self._may_carry and jnp.ndim(lag) == 0 else self._superposed
        into, entering = self._enters, doses[AMOUNT]
        out: Any = 0.0
        if into != 1 or self.curve.route != "oral":
            directly = entering if into else jnp.where(doses["compartment"] == 1, 0.0, entering)
            out = of_doses(Pair(rates[0], rates[-1], 1.0), False, directly, row, doses, lag)
        if into != 2 and self.curve.route == "oral":
            absorbed = entering if into else jnp.where(doses["compartment"] == 1, entering, 0.0)
            out = out - rates[1] * of_doses(Pair(rates[0], rates[1], 1.0), True, absorbed, row, doses, lag)
        return out

    def _superposed(self, rates: Pair, absorbed: bool, entering: Array, row: Any, doses: Any, lag: Any) -> Array:
        """The sum over all doses."""
        place, since = jnp.arange(doses["time"].shape[0]), row["time"] - doses["time"] - lag
        live = (place >= row[FIRST]) & (place < row[LAST])
        given = live & ((since >= 0) | (doses["steady"] > 0)) if self.regimen.steady else live & (since >= 0)
        found = history(rates, doses, jnp.where(live, since, 0.0), doses.get(LASTS), self.regimen.steady)
        return jnp.sum(jnp.where(given, entering * (found.difference if absorbed else found.a), 0.0))

    def _carried(self, rates: Pair, absorbed: bool, entering: Array, row: Any, doses: Any, lag: Any) -> Array:
        """The same, carried from dose to dose, see `margaux.families.nlme.carried`."""
        last, t = row[LAST], row["time"]
        if self.lag != (None, None):
            place = jnp.arange(doses["time"].shape[0])
            last = row[FIRST] + jnp.sum((place >= row[FIRST]) & (place < row[LAST]) & (t - doses["time"] >= lag))
        last = jnp.where(last > row[FIRST], last - 1, -1).astype(int)

        def since(place: Array) -> Array:
            return jnp.maximum(t - doses["time"][place] - lag, 0.0)

        known = doses.get(LASTS), self.regimen.steady, self.regimen.reach or 1
        return carried(rates, absorbed, doses, entering, *known, last, since)

    @property
    def _may_carry(self) -> bool:
        """Whether it is known before parameters are how long doses last, and none of a steady state is lagged."""
        known = not self.regimen.infusions or self.bioavailability == (None, None)
        return self.regimen.reach is not None and known and not (self.regimen.steady and self.lag != (None, None))

    @property
    def names(self):
        named = (*self.lag, *self.bioavailability, self.duration, self.rate)
        return tuple(dict.fromkeys(name for name in named if name is not None and name not in self.curve.parameters))

    @property
    def compartments(self):
        return 2 if self.curve.route == "oral" else 1

    def _of_dose(self, names: tuple[str | None, str | None], parameters: Any, doses: Any, none: float) -> Any:
        """A quantity of each dose, by the compartment that it enters."""
        first, second = (none if name is None else read_of_dose(name, parameters, doses) for name in names)
        if names[0] == names[1] or self._enters == 1:
            return first
        return second if self._enters == 2 else jnp.where(doses["compartment"] == 1, first, second)

    @property
    def _enters(self) -> int | None:
        """The compartment that all doses enter, or None."""
        if self.curve.route != "oral":
            return 1
        return {True: 1, False: 2, None: None}[self.regimen.depots]


def read_of_dose(name: str, parameters: Mapping[str, Any], doses: Mapping[str, Any]) -> Any:
    """An individual parameter, or else a column of the doses' records."""
    return parameters[name] if name in parameters else doses[name]


def dosed(
    curve: Any,
    *,
    lag: str | Mapping[int, str] | None = None,
    bioavailability: str | Mapping[int, str] | None = None,
    duration: str | None = None,
    rate: str | None = None,
) -> Curve:
    """A compartment model whose doses are an event table, with what varies between doses.

    `NLME.fit` makes one of a ready curve by itself where the data have doses on rows of their own; this one names a lag time, a
    bioavailability, or the duration or the rate of infusions (RATE = -2, -1). A name is that of an individual parameter, or else
    of a column, read on the record of the dose.

    Args:
        curve: a ready compartment model.
        lag, bioavailability: a name, for doses into compartment 1; or name by compartment, 1 the depot and 2 the central one
            of an oral model.

    >>> from margaux.nlme import oral1cpt
    >>> dosed(oral1cpt, bioavailability="F1")
    oral1cpt[doses](ka, V, CL, F1 | time)

    Raises:
        ValueError: a curve that has no compartments or doses of its own, or a compartment that takes no dose.
    """
    compartments = within(curve)
    if compartments is None or not isinstance(curve.function, Compartments):
        raise ValueError(f"only a ready compartment model can be given the doses of an event table, not {curve!r}")
    taking = (1, 2) if compartments.route == "oral" else (1,)

    def each(named: str | Mapping[int, str] | None, what: str) -> tuple[str | None, str | None]:
        given = {1: named} if isinstance(named, str) else dict(named or {})
        if unknown := set(given) - set(taking):
            raise ValueError(f"{what} names compartment {sorted(unknown)[0]}, which takes no dose; {curve.name} has {taking}")
        return given.get(1), given.get(2)

    lags = each(lag, "lag")
    if compartments.lag:
        lags = ("Tlag", lags[1])
    function = Administered(
        compartments, Regimen(True, True, None), lags, each(bioavailability, "bioavailability"), duration, rate
    )
    parameters = (*curve.parameters, *function.names)
    return dataclasses.replace(
        curve, function=function, parameters=parameters, columns=("time",), positive=parameters, name=f"{curve.name}[doses]"
    )


def administered(outcome: Any) -> AbstractAdministration | None:
    """How an outcome's structural model reads the doses of event tables; None where it does not."""
    function = getattr(getattr(outcome, "structural", None), "function", None)
    return function if isinstance(function, AbstractAdministration) else None


def with_regimen(outcome: Any, regimen: Regimen | None, individual: Collection[str] | None = None) -> Any:
    """An outcome for tables whose doses have no more than this, any other as it is.

    Args:
        individual: the individual parameters; what else the doses need is read from columns.
    """
    if regimen is None:
        return outcome
    curve = outcome.structural
    changed: dict[str, Any] = {"function": dataclasses.replace(curve.function, regimen=regimen)}
    if individual is not None:
        read = set(curve.function.names) - set(individual)
        changed |= {name: tuple(p for p in getattr(curve, name) if p not in read) for name in ("parameters", "positive")}
    return dataclasses.replace(outcome, structural=dataclasses.replace(curve, **changed))
