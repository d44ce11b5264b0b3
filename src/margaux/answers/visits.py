"""Whether a fit by mini-batches has visited its units often enough, by a random subsample of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..esteps import MCMC
from .certificate import Check
from .draws import continued
from .rules import best_rule
from .scores import evaluate, subsample

if TYPE_CHECKING:
    from .fit import Fit


#: units of the subsample, those of them whose chains are run on, for so many transitions, and coordinates that are looked at
UNITS, CHAINS, LENGTH, COORDINATES = 2000, 200, 400, 50
#: autocorrelation times that a chain must have run for its start to be forgotten
FORGOTTEN = 20
#: standard errors from the maximum that matter, and that spoil a fit; errors of the figure that are allowed for
MATTERS, SPOILS, ERRORS = 0.25, 1.0, 3


def visits(fit: Fit, size: int = UNITS, key: int = 0, transitions: float | None = None) -> Check:
    r"""Transitions of a unit's chain against their autocorrelation time, and the gradient of a subsample by an accurate E-step.

    With $S$ a random sample of $m$ of the $n$ units, $s_i$ their scores and $I_S$ their Louis information by `best_rule` at the
    estimate, Newton's step $I_S^{-1}\sum_{i\in S}s_i$ is compared with the standard errors of all units,
    $(m/n\,I_S^{-1})_{jj}^{1/2}$. Its sampling error, $I_S^{-1}\,\mathrm{Cov}(\sum_Ss_i)\,I_S^{-1}$ corrected for a finite
    population, is about $(n/m)^{1/2}$ standard errors: gross errors alone are seen in this way, which is why chains that start
    cold are told by their count as well.

    Args:
        size: units of the sample. transitions: that each chain has made, by default as its rows tell, or else those of full
            batches.

    Returns:
        A check whose figure is the length of Newton's step in the parameter where it is most beyond its error.

    Raises:
        ValueError: a fit without its model.
    """
    some = subsample(fit, size, key)
    gradient, error, name = _newton(some, fit)
    beyond = gradient - ERRORS * error
    told = f"by {some._model().n} units at random the maximum is {gradient:.2g} standard errors away in {name}, +- {error:.2g}"
    made, time = (np.nan, np.nan) if not _remembers(fit) else (_made(fit, transitions), autocorrelation_time(some, key))
    cold = made < FORGOTTEN * time
    chains = f"each unit's chain has made {made:.0f} transitions, and forgets its start in about {FORGOTTEN * time:.0f}"
    mend = "visit them more often, or use an E-step without memory such as margaux.Quadrature or margaux.ImportanceSampling"
    if beyond > MATTERS:
        why = f"; {chains}: {mend}" if cold else ": run longer"
        level = "failed" if beyond > SPOILS else "careful"
        return Check("visits", gradient, error, MATTERS, level, f"{told[0].upper()}{told[1:]}{why}.")
    if cold:
        return Check("visits", gradient, error, MATTERS, "careful", f"{chains[0].upper()}{chains[1:]}: {mend}.")
    return Check(
        "visits", gradient, error, MATTERS, "pass", f"Units were visited often enough, as far as a sample tells: {told}."
    )


def _newton(some: Fit, fit: Fit) -> tuple[float, float, str]:
    """Newton's step of a subsample in standard errors of all units, its error, and the parameter where it is furthest beyond."""
    rule = best_rule(some)
    found = evaluate(some, rule, some.params, range(rule.replicates))
    m, n = some._model().n, fit._model().n
    inverse, scores = np.linalg.pinv(found.matrix), found.scores.mean(axis=0)
    se = np.sqrt(np.maximum(np.diag(inverse), np.finfo(float).tiny) * m / n)
    step = np.abs(inverse @ scores.sum(axis=0)) / se
    sampling = (1 - m / n) * m * np.cov(scores, rowvar=False).reshape(len(se), -1)
    error = np.sqrt(np.maximum(np.diag(inverse @ sampling @ inverse), 0.0)) / se
    if rule.replicates > 1:
        noise = (found.scores.sum(axis=1) @ inverse).std(axis=0, ddof=1) / np.sqrt(rule.replicates) / se
        error = np.hypot(error, noise)
    j = int(np.argmax(step - ERRORS * error))
    return float(step[j]), float(error[j]), fit.names[j] if len(fit.names) == len(se) else f"coordinate {j}"


def _remembers(fit: Fit) -> bool:
    return isinstance(fit.estep, MCMC) and fit.estep.warm_start and fit.rows is not None


def _made(fit: Any, transitions: float | None) -> float:
    """Transitions of a chain: the median of what its rows have counted, or those of full batches."""
    if transitions is not None:
        return float(transitions)
    if "n_transitions" in fit.rows:
        return float(np.median(fit.rows["n_transitions"]) - 1)
    n_steps = fit.estep.n_steps
    each = n_steps if isinstance(n_steps, int) else float(n_steps(fit.n_iter))
    return fit.n_iter * (each + fit.estep.burn_in) + fit.estep.warm_up


def autocorrelation_time(fit: Fit, key: int = 0, length: int = LENGTH) -> float:
    r"""$1+2\sum_t\rho_t$ of the chains run on at the estimate, the largest over coordinates z and their squares.

    $\rho_t$ pools the chains of a random subsample of units; the sum ends where a pair of successive ones is no longer positive
    (Geyer 1992).
    """
    some = subsample(fit, CHAINS, key + 1)
    z = continued(some, length, key=key)[0]
    flat = np.concatenate([leaf.reshape(length, leaf.shape[1] * leaf.shape[2], -1) for leaf in jax.tree.leaves(z)], axis=2)
    chosen = np.random.default_rng(key).permutation(flat.shape[2])[:COORDINATES]
    centred = flat[:, :, chosen] - flat[:, :, chosen].mean(axis=0)
    return float(max(_pooled(each) for each in (centred, centred**2)))


def _pooled(series: np.ndarray) -> float:
    """The largest time over coordinates of series (length, chains, coordinates)."""
    series = series - series.mean(axis=0)
    length = len(series)
    spectrum = np.abs(np.fft.rfft(series, 2 * length, axis=0)) ** 2
    # Divided by the length, not by the number of pairs, as is usual for its smaller error.
    covariance = np.fft.irfft(spectrum.mean(axis=1), axis=0)[:length] / length
    rho = covariance[: length // 2 * 2] / np.maximum(covariance[0], np.finfo(float).tiny)
    pairs = rho[0::2] + rho[1::2]
    positive = np.cumprod(pairs > 0, axis=0)
    return float(np.max(2 * np.sum(pairs * positive, axis=0) - 1))
