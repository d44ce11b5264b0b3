r"""Observations known to lie below, above or between limits: quantification limits, by the likelihood of that.

With scale g and the standard normal's $\Phi$, an observation below its limit l has the likelihood $\Phi((l-f)/g)$, one above it
$1-\Phi((l-f)/g)$, one between k and l $\Phi((l-f)/g)-\Phi((k-f)/g)$ (M3). M4 has all of it given that y is positive.

References: Beal, J. Pharmacokinet. Pharmacodyn. 28 (2001), 481-504 (M3, M4); Comets, Brendel and Mentré, J. Soc. Fr. Stat. 151
(2010), 106-128 (prediction errors).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array

from .error import ResidualError
from .outcomes import Continuous
from .records import empty, numbers

METHODS = ("M3", "M4")
#: columns of a subject's rows: -1 above the limit, 1 below it; the other end of an interval, and whether there is one
CENSORED, LIMIT, BETWEEN = "censored", "limit", "between"


@dataclasses.dataclass(frozen=True)
class Censored(Continuous):
    """y = f(psi, row) + residual error, of which some y are limits. Args: method: "M3" or "M4"."""

    method: str = "M3"
    censored = True

    def density_at(self, f, error, rows):
        y, how = rows["y"], rows[CENSORED]
        residual = self.error.at(rows)
        scale, sd = residual.transformed, residual.sd(error, f)
        at = (scale(y) - scale(f)) / sd
        between = rows[BETWEEN] > 0
        below = jax.scipy.special.log_ndtr(at)
        lower = jnp.where(between, (scale(rows[LIMIT]) - scale(f)) / sd, at - 1.0)
        zero = -f / sd
        # What is positive anyway has nothing to be given.
        given_positive = self.method == "M4" and isinstance(self.error, ResidualError) and not self.error.positive
        if given_positive:
            lower = jnp.where(between, jnp.maximum(lower, zero), zero)
            below = _log_share(at, lower)
        else:
            below = jnp.where(between, _log_share(at, lower), below)
        limited = jnp.where(how > 0, below, jax.scipy.special.log_ndtr(-at))
        out = jnp.where(how == 0, residual.log_density(error, f, y), limited)
        return out - jax.scipy.special.log_ndtr(-zero) if given_positive else out


def with_limits(outcome: Any, method: str, data: Any) -> Censored:
    """A continuous outcome of data some of which are limits.

    Raises:
        ValueError: an output that is censored throughout, M4 of several outputs, or of an observation below zero.
    """
    y, how = (data.flat(data.units["rows"][name]) for name in ("y", CENSORED))
    for place, name in enumerate(outcome.outputs):
        if np.all(how[data.output == place] != 0):
            raise ValueError(f"every observation of the output {name} is censored; there is nothing that tells its curve")
    if method == "M4" and outcome.outputs:
        raise ValueError('censoring="M4" takes every output as positive, which is for a model with one; take censoring="M3"')
    if method == "M4" and np.any((y < 0) & (how == 0)):
        at = int(np.flatnonzero((y < 0) & (how == 0))[0])
        raise ValueError(
            f"{data.roles['y']} = {y[at]:g} is negative ({data.where(at)}), which M4 holds for impossible; drop or censor it, or "
            'take censoring="M3"'
        )
    return Censored(outcome.structural, outcome.error, method)


def _log_share(upper: Array, lower: Array) -> Array:
    r"""$\log(\Phi(u)-\Phi(l))$ for u > l, in the tail where both are far from 0."""
    flip = (upper > 0) & (lower > 0)
    u, low = jnp.where(flip, -lower, upper), jnp.where(flip, -upper, lower)
    some = u > low
    u, low = jnp.where(some, u, 1.0), jnp.where(some, low, -1.0)
    high, less = jax.scipy.special.log_ndtr(u), jax.scipy.special.log_ndtr(low)
    return jnp.where(some, high + jnp.log(-jnp.expm1(less - high)), -jnp.inf)


def censored(
    frame: pd.DataFrame, roles: dict[str, str], lloq: np.ndarray | None, outcome: Any, where: Any
) -> dict[str, np.ndarray] | None:
    """Which observations (N,) are censored and how, `y` with the limits; None where none are.

    Args:
        roles: "y", and "cens" and "limit" where there are such columns. lloq: y below that of their row (N,) are
            below it, whatever they are.
        where: how an error names a row.

    Raises:
        ValueError: codes other than -1, 0 and 1; an interval that is none; an outcome that cannot be censored.
    """
    y = frame[roles["y"]].to_numpy(float).copy()
    how, limit = np.zeros(len(frame)), np.full(len(frame), np.nan)
    if "cens" in roles:
        how = numbers(frame, roles["cens"], roles["id"])
        bad = ~np.isin(how, (-1, 0, 1))
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"{roles['cens']} = {how[at]:g} ({where(at)}) must be 1 (below the limit in {roles['y']}), -1 (above it) or 0"
            )
        if "limit" in roles:
            limit = np.where(empty(frame[roles["limit"]]), np.nan, numbers(frame, roles["limit"], roles["id"]))
            bad = (how != 0) & np.isfinite(limit) & np.where(how > 0, limit >= y, limit <= y)
            if bad.any():
                at = int(np.flatnonzero(bad)[0])
                side = "below" if how[at] > 0 else "above"
                raise ValueError(
                    f"{roles['limit']} = {limit[at]:g} is no other end of the interval from {roles['y']} = {y[at]:g} "
                    f"({where(at)}); of an observation {side} its limit it lies {side} it"
                )
    if lloq is not None:
        below = (y < lloq) & (how == 0)
        y[below], how[below] = lloq[below], 1.0
    if not how.any():
        return None
    if not isinstance(outcome, Continuous):
        raise ValueError(f"only continuous outcomes can be censored, not {type(outcome).__name__}; leave cens and lloq out")
    if (how != 0).all():
        raise ValueError("every observation is censored; there is nothing that tells one curve from another")
    between = np.isfinite(limit) & (how != 0)
    # An interval is said from its upper end.
    upper = np.where(between & (how < 0), limit, y)
    lower = np.where(between, np.where(how < 0, y, limit), 0.0)
    return {"y": upper, CENSORED: np.where(between, 1.0, how), LIMIT: lower, BETWEEN: between.astype(float)}


def imputed(
    y: np.ndarray, rows: dict[str, np.ndarray], limits: dict[int, np.ndarray], simulations: np.ndarray, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Observations (n, T) and simulations (K, n, T) as if what lies beyond limits had been drawn from the simulations that do,
    whatever the subject's others: under the model both still are draws of one distribution.

    Args:
        limits: of each row, by code (n, T); see `margaux.families.nlme.limits.of_rows`.

    Reference: Comets, Brendel and Mentré (2010).
    """
    how, between, rng = rows[CENSORED], rows[BETWEEN] > 0, np.random.default_rng(seed)
    out, simulated = np.array(y), np.array(simulations)
    for code, beyond in ((1, np.less), (-1, np.greater)):
        if not np.any(how == code):
            continue
        for i, j in np.ndindex(*y.shape):
            values = simulations[:, i, j]
            at = np.flatnonzero(beyond(values, limits[code][i, j]))
            simulated[at, i, j] = values[rng.permutation(at)]
            if how[i, j] == code:
                inside = values[at] if not between[i, j] else values[at][values[at] > rows[LIMIT][i, j]]
                out[i, j] = rng.choice(inside) if len(inside) else y[i, j]
    return out, simulated


def limited(
    how: np.ndarray, limits: dict[int, np.ndarray], simulations: np.ndarray
) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Simulations (K, N) as they would have been observed: at their limits where they lie beyond; and which of the outcomes and
    of them lie "below" or "above".

    Args:
        how: of outcomes (N,), 1 below, -1 above, else 0. limits: by code (N,), see `margaux.families.nlme.limits.of_rows`.
    """
    beyond = {}
    for name, code, least in (("below", 1, np.maximum), ("above", -1, np.minimum)):
        if np.any(how == code):
            kept = least(simulations, limits[code])
            beyond[name] = (how == code).astype(float), (kept != simulations).astype(float)
            simulations = kept
    return simulations, beyond
