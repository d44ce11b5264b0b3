"""Whether a fit is to be trusted: each check is a figure and a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy

from ..algorithms.expanded import ExpandedAscent
from ..algorithms.scaled import ScaledAscent
from ..algorithms.updates import Ascent
from ..esteps import MCMC, ImportanceSampling
from ..numerics.precision import precision
from ..problem.schedule import check_schedules
from .certificate import Check

if TYPE_CHECKING:
    import pandas as pd

    from .fit import Fit
    from .polish import Polish


#: standard errors that a trace may drift by, and runs lie apart by
LITTLE = 0.1
NAN = float("nan")


def rhat(chains: np.ndarray) -> np.ndarray:
    r"""Rank-normalised split $\hat R$ of (iterations, runs, p), entry by entry (Vehtari, Gelman, Simpson, Carpenter and
    Bürkner 2021, section 4).

    Chains are cut in halves (the middle of an odd number of iterations is left out) and values replaced by the normal
    scores of their ranks, so that heavy tails do not hide a disagreement; the larger of the $\hat R$ of the values and that
    of their distances to the median, so that chains of one centre and different spreads disagree.

    Returns:
        p figures: one where nothing moves and all agree, infinite where chains stand still apart from one another, NaN
        where a value is not finite.

    >>> import numpy as np
    >>> draws = np.random.default_rng(0).normal(size=(1000, 4, 1))
    >>> rhat(draws).round(2).tolist(), bool(rhat(draws * [[1.0], [1.0], [1.0], [5.0]])[0] > 1.1)
    ([1.0], True)
    """
    half = chains.shape[0] // 2
    split = np.concatenate([chains[:half], chains[chains.shape[0] - half :]], axis=1).astype(float)
    with np.errstate(invalid="ignore"):
        folded = np.abs(split - np.median(split, axis=(0, 1)))
    figure = np.maximum(_ratio(_normal_scores(split)), _ratio(_normal_scores(folded)))
    return np.where(np.all(np.isfinite(split), axis=(0, 1)), figure, np.nan)


def _normal_scores(split: np.ndarray) -> np.ndarray:
    """Normal quantiles of the ranks over all chains, ties shared (Blom 1958)."""
    count = split.shape[0] * split.shape[1]
    rank = scipy.stats.rankdata(split.reshape(count, -1), axis=0).reshape(split.shape)
    return scipy.special.ndtri((rank - 3 / 8) / (count + 1 / 4))


def _ratio(chains: np.ndarray) -> np.ndarray:
    """The pooled over the within-chain standard deviation (Gelman and Rubin 1992)."""
    length = chains.shape[0]
    within = chains.var(axis=0, ddof=1).mean(axis=0)
    between = chains.mean(axis=0).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt((length - 1) / length + between / within)
    return np.where(within > 0, ratio, np.where(between > 0, np.inf, 1.0))


def drift(trace: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Difference between the first and last thirds of (iterations, runs, p), and its z with batch-means errors."""
    trace = trace.astype(float)
    third = trace.shape[0] // 3

    def mean_and_se(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = part.shape[0] // 10  # few and long: iterates are strongly autocorrelated
        batches = part[: 10 * size].reshape(10, size, *part.shape[1:]).mean(axis=1)
        return part.mean(axis=0), batches.std(axis=0, ddof=1) / np.sqrt(10)

    (a, se_a), (b, se_b) = mean_and_se(trace[:third]), mean_and_se(trace[-third:])
    se = np.sqrt(se_a**2 + se_b**2)
    floor = 1e-9 * (1 + np.abs(b))
    return np.abs(a - b), np.abs(a - b) / np.maximum(se, floor)


def schedules(fit: Fit) -> str:
    """What theory says of the step sizes of a gradient algorithm along chains; "" where it says nothing."""
    if not isinstance(fit.estep, MCMC):
        return ""
    algorithm, update = fit.algorithm, getattr(fit.algorithm, "update", None)
    step = update.step if isinstance(update, Ascent) else None
    if isinstance(algorithm, ScaledAscent | ExpandedAscent):
        step = algorithm.gain
    if step is None:
        return ""
    kernel = fit.estep.kernel
    with precision(fit.dtype):
        return check_schedules(step, None if kernel.adjusted else kernel.step_size, fit.estep.n_steps)


def trace_checks(fit: Fit, done: Polish | None) -> list[Check]:
    """What the iterates and the chains say: `done` is the record of the estimate's polish, None where it has none."""
    out: list[Check] = []

    def add(check: str, figure: float, threshold: float, ok: bool, good: str, bad: str) -> None:
        out.append(Check(check, float(figure), NAN, threshold, "pass" if ok else "careful", good if ok else bad))

    tail = fit.trace["params"][fit.averaged_from :] if "params" in fit.trace else np.zeros((0, 1, 1))
    if tail.shape[0] >= 30:
        # What is little beside the standard errors matters to nobody, however sure it is.
        se = np.full(tail.shape[-1], np.nan) if done is None else fit.information().se
        little = LITTLE * se if len(se) == tail.shape[-1] else np.full(tail.shape[-1], np.nan)
        moved, z = drift(tail)
        bad = np.where(moved <= little, 0.0, z).max(axis=0)
        good = "The traces show no trend." if z.max() < 5 else "The traces drift by less than a tenth of a standard error."
        add("stationarity", z.max(), 5.0, bad.max() < 5, good, f"The trace of {_traced(fit, bad)} still drifts: run longer.")
        if tail.shape[1] > 1:
            r = rhat(tail)
            bad = np.where(np.ptp(tail.mean(axis=0), axis=0) <= little, 1.0, r)
            good = "The runs agree." if r.max() < 1.1 else "The runs agree to a tenth of a standard error."
            add(
                "rhat",
                r.max(),
                1.1,
                bad.max() < 1.1,
                good,
                f"The runs disagree on {_traced(fit, bad)}: several optima, or too short.",
            )
    said = schedules(fit)
    if said:
        level = "pass" if "finite:" not in said and "no theorem" not in said else "careful"
        out.append(Check("schedules", NAN, NAN, NAN, level, said))
    if "acceptance" in fit.trace:
        rate = fit.trace["acceptance"][-max(fit.n_iter // 2, 1) :].mean()
        add(
            "acceptance", rate, 0.05, rate > 0.05, "The chains move.", "Few proposals are accepted: lower the kernel's step size."
        )
    if "ess" in fit.trace and isinstance(fit.estep, ImportanceSampling):
        ess = fit.trace["ess"][-max(fit.n_iter // 2, 1) :].mean()
        good, bad = "The importance weights are even.", "The importance weights are uneven: raise n_draws."
        add("ess", ess, 5.0, ess > 5, good, bad)
    return out


def _traced(fit: Fit, figures: np.ndarray) -> str:
    """The parameter of the largest figure."""
    return fit.names[int(figures.argmax())] if len(figures) == len(fit.names) else f"parameter {int(figures.argmax())}"


def diagnostics(fit: Fit) -> pd.DataFrame:
    """The certificate as a frame. See `Fit.diagnostics`."""
    import pandas as pd

    table = fit.certificate.table()
    return pd.DataFrame(
        {
            "figure": table["figure"],
            "error": table["error"],
            "threshold": table["threshold"],
            "ok": table["level"] == "pass",
            "verdict": table["sentence"],
        }
    ).rename_axis("check")
