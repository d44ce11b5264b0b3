r"""What a subject is exposed to: areas under its curve, peaks and troughs, by quadrature between the doses.

Between two doses, or the end of an infusion or of a lag time, a curve is smooth. Each such piece is cut at 1/2048, 1/256, 1/32
and 1/4 of its length, closer where curves are steep, and integrated by the 15-point rule of Kronrod in each cut, whose distance
to the 7-point rule of Gauss inside it bounds the error. Peaks are sought on the same points, and between the neighbours of the
largest on ever finer ones.

Reference: Piessens, de Doncker-Kapenga, Überhuber and Kahaner, QUADPACK (1983), section 2.2 (nodes, weights, error).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .dosing import Administered
from .dynamics import Dynamics
from .responses import AT_INTERVALS
from .several import DosedOutputs

_HALF = np.array([
    0.991455371120812639206854697526329, 0.949107912342758524526189684047851, 0.864864423359769072789712788640926,
    0.741531185599394439863864773280788, 0.586087235467691130294144691258480, 0.405845151377397166906606412076961,
    0.207784955007898467600689403773245, 0.0,
])  # fmt: skip
_KRONROD = np.array([
    0.022935322010529224963732008058970, 0.063092092629978553290700663189204, 0.104790010322250183839876322541518,
    0.140653259715525918745189590510238, 0.169004726639267902826583426598550, 0.190350578064785409913256402421014,
    0.204432940075298892414161999234649, 0.209482141084727828012999174891714,
])  # fmt: skip
_GAUSS = np.array([
    0.129484966168869693270611432679082, 0.279705391489276667901467771423780, 0.381830050505118944950369775488975,
    0.417959183673469387755102040816327,
])  # fmt: skip
#: of the rules on (0, 1): the points, the weights of Kronrod, and those of Gauss, zero where it has no point
NODES = (1 + np.concatenate([-_HALF, _HALF[-2::-1]])) / 2
WEIGHTS = np.concatenate([_KRONROD, _KRONROD[-2::-1]]) / 2
_FEW = np.zeros(8)
_FEW[1::2] = _GAUSS
COARSE = np.concatenate([_FEW, _FEW[-2::-1]]) / 2
#: where a piece is cut
CUTS = np.array([0.0, 1 / 2048, 1 / 256, 1 / 32, 1 / 4, 1.0])
#: pieces after the last interval, each as long as all before, and what the last may add to a finite area
TAIL, VANISHED = 24, 1e-6
#: rounds that a peak is sought in, and points of each
ROUNDS, POINTS = 4, 17
#: a point that is to be after a dose is by this share of its time
AFTER = 1e-12


class Exposure(NamedTuple):
    """Of one subject, or of each of n. Times are on the clock of the doses; `error` is that of the areas, relative."""

    Cmax: Any
    Tmax: Any
    Cmax_last: Any
    Tmax_last: Any
    Ctrough: Any
    Cavg: Any
    AUC: Any
    AUC_total: Any
    AUC_inf: Any
    error: Any


def exposure(
    at: Callable[[Float[Array, " T"]], Float[Array, " T"]], breaks: Float[Array, " M"], begin: Any, last: Any, end: Any,
    forever: bool = True,
) -> Exposure:  # fmt: skip
    """Exposure of one subject.

    Args:
        at: the curve, at times in order. breaks: where it is not smooth, besides `begin`, `last` and `end`.
        begin, last, end: of the doses, the first and the last, and the end of the last interval.
        forever: whether the curve is followed until it vanishes; `AUC_inf` is None where it is not.
    """
    breaks = jnp.sort(jnp.concatenate([jnp.maximum(breaks, begin), jnp.stack([begin, last, end])]))
    breaks = jnp.append(breaks, breaks[-1] + end - last) if forever else breaks
    tail = breaks[-1] + (end - last) * (2.0 ** np.arange(TAIL + 1 if forever else 1) - 1)
    starts = jnp.concatenate([(breaks[:-1, None] + jnp.diff(breaks)[:, None] * CUTS[:-1]).ravel(), tail[:-1]])
    stops = jnp.concatenate([starts[1:], tail[-1:]])
    width = stops - starts
    points = starts[:, None] + width[:, None] * jnp.concatenate([jnp.zeros(1), jnp.asarray(NODES)])
    values = at(points.at[:, 0].add(AFTER * breaks[-1]).ravel()).reshape(points.shape)
    area = width * (values[:, 1:] @ WEIGHTS)
    gap = jnp.abs(width * (values[:, 1:] @ (WEIGHTS - COARSE)))
    # The coarser rule is much the worse one: QUADPACK's exponent.
    size = jnp.maximum(jnp.abs(area), 1e-300)
    error = jnp.minimum(gap, size * (200 * gap / size) ** 1.5)
    inside, latest = stops <= end * (1 + AFTER), starts >= last * (1 - AFTER)
    whole = jnp.sum(jnp.where(inside, area, 0.0))
    every = jnp.sum(area)
    of_last = jnp.sum(jnp.where(inside & latest, area, 0.0))
    vanishes = (jnp.abs(area[-1]) <= VANISHED * jnp.abs(every)) & forever
    place = points.ravel()
    seen = jnp.where(place <= end, values.ravel(), -jnp.inf)
    peak, when = _peak(at, place, seen)
    peak_last, when_last = _peak(at, place, jnp.where(place >= last, seen, -jnp.inf))
    trough = at(end[None])[0]
    return Exposure(
        peak, when, peak_last, when_last, trough, of_last / (end - last), of_last, whole,
        jnp.where(vanishes, every, jnp.inf) if forever else None,
        jnp.maximum(
            jnp.sum(jnp.where(inside, error, 0.0)) / jnp.maximum(whole, 1e-300),
            jnp.where(vanishes, jnp.sum(error) / jnp.maximum(every, 1e-300), 0.0),
        ),
    )  # fmt: skip


def _peak(at: Callable[..., Any], place: Array, seen: Array) -> tuple[Array, Array]:
    """The largest value and when it is."""
    best = jnp.argmax(seen)
    top, when = seen[best], place[best]
    seen_at = jnp.isfinite(seen)
    low = jnp.where((best > 0) & seen_at[best - 1], place[best - 1], when)
    high = jnp.where((best + 1 < len(place)) & seen_at[jnp.minimum(best + 1, len(place) - 1)], place[best + 1], when)

    def closer(_, state):
        low, high, top, when = state
        grid = low + (high - low) * jnp.linspace(0.0, 1.0, POINTS)
        values = at(grid)
        k = jnp.argmax(values)
        better = values[k] > top
        top, when = jnp.where(better, values[k], top), jnp.where(better, grid[k], when)
        return grid[jnp.maximum(k - 1, 0)], grid[jnp.minimum(k + 1, POINTS - 1)], top, when

    top, when = jax.lax.fori_loop(0, ROUNDS, closer, (low, high, top, when))[2:]
    return top, when


def breaks_of(structural: Any, psi: Mapping[str, Any], doses: Mapping[str, Any]) -> Float[Array, " M"]:
    """Where the curve after these doses is not smooth: as they begin to act, and as they end."""
    start, administration = doses["time"], getattr(structural, "function", None)
    if isinstance(administration, DosedOutputs):
        return jnp.concatenate([_breaks(one, psi, doses) for one in administration.administered])
    if not isinstance(administration, Administered | Dynamics):
        return start
    return _breaks(administration, psi, doses)


def _breaks(function: Any, psi: Mapping[str, Any], doses: Mapping[str, Any]) -> Array:
    start = doses["time"]
    begins = start + function._of_dose(function.lag, psi, doses, 0.0)
    if not function.regimen.infusions:
        return begins
    amount = doses["amount"] * function._of_dose(function.bioavailability, psi, doses, 1.0)
    lasts = function.lasts(psi, doses, amount)
    if function.regimen.steady:
        interval = jnp.where(doses["interval"] > 0, doses["interval"], 1.0)
        lasts = jnp.where(doses["steady"] == AT_INTERVALS, jnp.mod(lasts, interval), lasts)
    return jnp.concatenate([begins, begins + lasts])
