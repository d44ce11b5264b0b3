r"""What one dose adds to an exponential phase of a linear compartment model, given at once, over a time, or for ever.

Each phase answers to a dose by a function of its rate, $h(\lambda)$, and absorption by a divided difference of it,
$k_a\,(h(\lambda)-h(k_a))/(k_a-\lambda)$. `Pair` carries values at two rates with their divided difference through sums, products
and reciprocals, so that no history of doses has anything to cancel where the rates meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from .pharmacokinetics import exp_difference

#: kinds of steady state of doses: none, doses at intervals for ever, an infusion for ever that now ends
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


def decay(rates: Pair, t: Any) -> Pair:
    r"""$e^{-\lambda t}$."""
    a, b = -rates.a * t, -rates.b * t
    return Pair(jnp.exp(a), jnp.exp(b), -t * exp_difference(a, b))


def where(condition: Any, one: Pair, other: Pair) -> Pair:
    return Pair(*(jnp.where(condition, x, y) for x, y in zip(one, other, strict=True)))


def history(rates: Pair, doses: Mapping[str, Any], since: Any, lasts: Any, steady: bool) -> Pair:
    """h of doses a time after their records: of one given then, and of all that came before it at steady state.

    Args:
        lasts: how long each takes, None where all are given at once. steady: whether some are at steady state.
    """
    if not steady:
        return one(rates, jnp.maximum(since, 0.0), lasts)
    kind, interval = doses["steady"], jnp.where(doses["interval"] > 0, doses["interval"], 1.0)
    # Between the record and its lagged dose, the regimen's last interval.
    s = jnp.where(since < 0, since + interval, since)
    out = where(kind == AT_INTERVALS, _for_ever(rates, s, interval, lasts), one(rates, jnp.maximum(since, 0.0), lasts))
    return where(kind == UNTIL_NOW, decay(rates, jnp.maximum(since, 0.0)) * rates.inverse(), out)


def past(rates: Pair, doses: Mapping[str, Any], lasts: Any) -> Pair:
    r"""h at their records of all that came before doses at steady state, where none of it still goes on: of doses at intervals
    $g\,e^{-\lambda(II-T)}/(1-e^{-\lambda II})$, g being what one has left as it ends."""
    kind, interval = doses["steady"], jnp.where(doses["interval"] > 0, doses["interval"], 1.0)
    length: Any = 0.0 if lasts is None else jnp.where(kind == AT_INTERVALS, lasts, 0.0)
    left = decay(rates, interval - length) * (_pair(1.0) - decay(rates, interval)).inverse()
    if lasts is not None:
        left = left * one(rates, length, length)
    nothing = Pair(0.0, 0.0, 0.0)
    return where(kind == AT_INTERVALS, left, where(kind == UNTIL_NOW, rates.inverse(), nothing))


def one(rates: Pair, t: Any, lasts: Any) -> Pair:
    r"""$e^{-\lambda t}$, or its mean over an infusion that lasts T: $(e^{-\lambda(t-u)}-e^{-\lambda t})/(\lambda T)$ with u the
    lesser of t and T."""
    if lasts is None:
        return decay(rates, t)
    some = lasts > 0
    length = jnp.where(some, lasts, 1.0)
    at_once = decay(rates, t)
    infused = (decay(rates, jnp.where(some, jnp.maximum(t - length, 0.0), 0.0)) - at_once) * rates.inverse() * (1 / length)
    return where(some, infused, at_once)


def _for_ever(rates: Pair, t: Any, interval: Any, lasts: Any) -> Pair:
    r"""The sum of `one` at t, t + II, t + 2 II, ... for ever.

    N infusions that have not ended are $N/\lambda-e^{-\lambda t}(1-e^{-\lambda N II})/(\lambda(1-e^{-\lambda II}))$, over T. At a
    negative t, N is that of time 0.
    """
    total = (_pair(1.0) - decay(rates, interval)).inverse()
    given = decay(rates, t) * total
    if lasts is None:
        return given
    some = lasts > 0
    length = jnp.where(some, lasts, 1.0)
    running = jnp.maximum(jnp.ceil((length - jnp.maximum(t, 0.0)) / interval), 0.0)
    over = running * interval
    filling = _pair(running) - decay(rates, t) * (_pair(1.0) - decay(rates, over)) * total
    emptying = decay(rates, t + over - length) * (_pair(1.0) - decay(rates, length)) * total
    return where(some, (filling + emptying) * rates.inverse() * (1 / length), given)
