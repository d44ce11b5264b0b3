r"""Concentrations after a history of doses, by superposition: exact for linear compartments.

Each exponential phase of `Compartments` answers to one dose by a function of its rate, $h(\lambda)$, and absorption by a divided
difference of it, $k_a\,(h(\lambda)-h(k_a))/(k_a-\lambda)$. `Pair` carries values at two rates with their divided difference
through sums, products and reciprocals, so that no history of doses has anything to cancel where the rates meet.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import operator
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .outcomes import DOSES
from .pharmacokinetics import Compartments, exp_difference, within
from .structural import Curve

#: which of the doses act on a row
FIRST, LAST = "first_dose", "last_dose"
#: kinds of steady state in `Doses`: none, doses at intervals for ever, an infusion for ever that now ends
NEVER, AT_INTERVALS, UNTIL_NOW = 0, 1, 2


class Pair(NamedTuple):
    """A function of a rate at a, at b, and its divided difference (f(a) - f(b)) / (a - b)."""

    a: Any
    b: Any
    difference: Any

    def __add__(self, other: Any) -> Pair:
        return Pair(*(mine + its for mine, its in zip(self, _pair(other), strict=True)))

    def __sub__(self, other: Any) -> Pair:
        return self + _pair(other) * -1.0

    def __mul__(self, other: Any) -> Pair:
        other = _pair(other)
        return Pair(self.a * other.a, self.b * other.b, self.a * other.difference + other.b * self.difference)

    __rmul__ = __mul__

    def inverse(self) -> Pair:
        return Pair(1 / self.a, 1 / self.b, -self.difference / (self.a * self.b))


def _pair(value: Any) -> Pair:
    return value if isinstance(value, Pair) else Pair(value, value, 0.0)


def _decay(rates: Pair, t: Any) -> Pair:
    r"""$e^{-\lambda t}$."""
    a, b = -rates.a * t, -rates.b * t
    return Pair(jnp.exp(a), jnp.exp(b), -t * exp_difference(a, b))


def _where(condition: Any, one: Pair, other: Pair) -> Pair:
    return Pair(*(jnp.where(condition, x, y) for x, y in zip(one, other, strict=True)))


@dataclasses.dataclass(frozen=True)
class Regimen:
    """What the doses of a table have, known before anything is compiled.

    Args:
        infusions: some last. steady: some are at steady state. depots: whether all doses are absorbed (True), none (False), or
            it depends on the dose (None).
    """

    infusions: bool = False
    steady: bool = False
    depots: bool | None = False

    @classmethod
    def of(cls, doses: Mapping[str, np.ndarray]) -> Regimen:
        """That of the doses of a table."""
        first = np.unique(doses["compartment"]) == 1
        infusions = bool(np.any(doses["rate"] != 0) or np.any(doses["duration"] > 0))
        return cls(infusions, bool(np.any(doses["steady"] > 0)), bool(first[0]) if len(first) == 1 else None)


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
        doses, t = row[DOSES], row["time"]
        place = jnp.arange(doses["time"].shape[0])
        live = (place >= row[FIRST]) & (place < row[LAST])
        fraction = self._of_dose(self.bioavailability, parameters, doses, 1.0)
        if self.regimen.steady:  # what flows in for ever is a rate, which the fraction does not change
            fraction = jnp.where(doses["steady"] == UNTIL_NOW, 1.0, fraction)
        amount = doses["amount"] * fraction
        since = t - doses["time"] - self._of_dose(self.lag, parameters, doses, 0.0)
        lasts = self.lasts(parameters, doses, amount) if self.regimen.infusions else None
        each = self._responses(parameters, doses, jnp.where(live, since, 0.0), lasts)
        given = live & ((since >= 0) | (doses["steady"] > 0)) if self.regimen.steady else live & (since >= 0)
        return jnp.sum(jnp.where(given, amount * each, 0.0))

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

    def _responses(self, parameters: Any, doses: Any, since: Any, lasts: Any) -> Float[Array, " E"]:
        """What a unit of each dose adds to the concentration."""
        model = self.curve
        phases = model.phases(parameters)
        if self._enters == 1 and model.route == "oral":
            ka = parameters["ka"]
            return _total(w * -ka * self._history(Pair(k, ka, 1.0), doses, since, lasts).difference for w, k in phases)
        if self._enters is not None:
            return _total(w * self._history(Pair(k, k, 0.0), doses, since, lasts).a for w, k in phases)
        ka, absorbed = parameters["ka"], doses["compartment"] == 1
        histories = [(w, self._history(Pair(k, ka, 1.0), doses, since, lasts)) for w, k in phases]
        return _total(w * jnp.where(absorbed, -ka * history.difference, history.a) for w, history in histories)

    def _history(self, rates: Pair, doses: Any, since: Any, lasts: Any) -> Pair:
        """h of the doses: of one given now, and of all that came before it at steady state."""
        if not self.regimen.steady:
            return _one(rates, jnp.maximum(since, 0.0), lasts)
        steady, interval = doses["steady"], jnp.where(doses["interval"] > 0, doses["interval"], 1.0)
        # Between the record and its lagged dose, the regimen's last interval.
        s = jnp.where(since < 0, since + interval, since)
        out = _where(steady == AT_INTERVALS, _for_ever(rates, s, interval, lasts), _one(rates, jnp.maximum(since, 0.0), lasts))
        return _where(steady == UNTIL_NOW, _decay(rates, jnp.maximum(since, 0.0)) * rates.inverse(), out)


def _total(terms: Iterable[Any]) -> Any:
    return functools.reduce(operator.add, terms)


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


def _one(rates: Pair, t: Any, lasts: Any) -> Pair:
    r"""$e^{-\lambda t}$, or its mean over an infusion that lasts T: $e^{-\lambda(t-u)}(1-e^{-\lambda u})/(\lambda T)$ with u the
    lesser of t and T."""
    if lasts is None:
        return _decay(rates, t)
    some = lasts > 0
    length = jnp.where(some, lasts, 1.0)
    u = jnp.where(some, jnp.minimum(t, length), 1.0)
    infused = _decay(rates, t - u) * (_pair(1.0) - _decay(rates, u)) * rates.inverse() * (1 / length)
    return _where(some, infused, _decay(rates, t))


def _for_ever(rates: Pair, t: Any, interval: Any, lasts: Any) -> Pair:
    r"""The sum of `_one` at t, t + II, t + 2 II, ... for ever.

    N infusions that have not ended are $N/\lambda-e^{-\lambda t}(1-e^{-\lambda N II})/(\lambda(1-e^{-\lambda II}))$, over T. At a
    negative t, N is that of time 0.
    """
    total = (_pair(1.0) - _decay(rates, interval)).inverse()
    given = _decay(rates, t) * total
    if lasts is None:
        return given
    some = lasts > 0
    length = jnp.where(some, lasts, 1.0)
    running = jnp.maximum(jnp.ceil((length - jnp.maximum(t, 0.0)) / interval), 0.0)
    over = running * interval
    filling = _pair(running) - _decay(rates, t) * (_pair(1.0) - _decay(rates, over)) * total
    emptying = _decay(rates, t + over - length) * (_pair(1.0) - _decay(rates, length)) * total
    return _where(some, (filling + emptying) * rates.inverse() * (1 / length), given)
