"""Whether a fit has stopped moving, as far as its trace can tell."""

from __future__ import annotations

import numpy as np

#: iterations after the burn-in that a trace must have before its drift means anything
ENOUGH = 30
#: share of its whole way that a parameter may drift by, and standard deviations within a third
WAY, NOISE = 0.1, 2.0
#: the last move of a fit at rest, as a share of its whole way; rounding, as a share of a parameter's size
REST, ROUNDING = 1e-6, 1e-12


def has_settled(trace: np.ndarray, burn_in: int) -> bool:
    r"""Whether every parameter (or the norm of many) has come to rest, or moves about a level that no longer drifts.

    At rest: it has moved before, and its last move is less than a millionth of its way. A level: of at least 30 iterations after
    the burn-in (of the second half, where there is none) the means of the first and the last third differ by no more than a
    tenth of the way from one end of the trace to the other, or by two standard deviations within a third. That is little to
    ask, and says nothing of the maximum: it tells fits that are still on their way. What is left is the certificate's.

    Args:
        trace: (iterations, runs, p). burn_in: iterations left out.
    """
    trace = trace.astype(float)
    if len(trace) < 2:
        return False
    rounding = ROUNDING * (1 + np.abs(trace[-1]))
    way = np.ptp(trace, axis=0)
    last = np.abs(trace[-1] - trace[-2])
    if np.any(way > rounding) and np.all(last <= REST * way + rounding):
        return True
    window = trace[max(burn_in, len(trace) // 2) :]
    if len(window) < ENOUGH:
        return False
    first, _, end = np.array_split(window, 3)
    drift = np.abs(end.mean(axis=0) - first.mean(axis=0))
    noise = np.sqrt((first.var(axis=0) + end.var(axis=0)) / 2)
    return bool(np.all(drift <= np.maximum(WAY * way, NOISE * noise) + rounding))
