"""How well a fitted regression with missing covariates describes its rows: checks of the outcome and of the covariates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from ...answers.certificate import Check
from .families import Gaussian, Poisson
from .layout import Arranged
from .observed import Params

if TYPE_CHECKING:
    from .families import AbstractFamily
    from .multinomial import Multinomial


#: chance of a right model failing a check; rows below which nothing can be told, and those that are looked at, at most
RARE, ENOUGH, MOST = 0.005, 50, 20_000
#: groups of a calibration, and the rows of the rarer class for one of them
GROUPS, SIDE = 10, 8
#: what matters, however certain it is: skewness and excess kurtosis of a covariate and of the outcome's residuals, the
#: correlation of squared residuals with the mean, how far a dispersion is from one, and the correlation of residuals with a
#: square
COVARIATE, RESIDUAL, TREND, DISPERSION, BEND = (0.5, 1.0), (0.4, 0.8), 0.1, 0.05, 0.05
#: nodes over a Gaussian predictor
NODES = 41


def calibration(expected: np.ndarray, y: np.ndarray, classes: Any) -> Check | None:
    """Hosmer and Lemeshow's test of P(y = k) given what is observed, (n,) or (n, K) (Fagerland, Hosmer and Bofin 2008)."""
    p = np.stack([1 - expected, expected], axis=1) if expected.ndim == 1 else expected
    count = int(min(np.bincount(y.astype(int), minlength=p.shape[1]).min(), p.sum(axis=0).min()) // SIDE)
    if count < 3:
        return None
    groups = np.array_split(np.argsort(1 - p[:, 0], kind="stable"), min(count, GROUPS))
    seen = np.stack([np.bincount(y[rows].astype(int), minlength=p.shape[1]) for rows in groups])
    wanted = np.stack([p[rows].sum(axis=0) for rows in groups])
    # Cells of a class that is almost nowhere to be found are told by their square root, not by their share.
    value = float(np.sum((seen - wanted) ** 2 / np.maximum(wanted, 0.5)))
    chance = float(scipy.special.chdtrc((len(groups) - 2) * (p.shape[1] - 1), value))
    k, j = np.unravel_index(np.argmax(np.abs(seen - wanted) / np.sqrt(np.maximum(wanted, 0.5))), seen.shape)
    bad = (
        f"Predicted probabilities do not agree with the outcome (p = {chance:.2g}): of {len(groups[k])} rows in one group "
        f"{seen[k, j]} are of class {classes[j]} where {wanted[k, j]:.1f} are expected; a term is missing "
        "or bends."
    )
    return _check("calibration", chance, RARE, chance >= RARE, "Predicted probabilities agree with the outcome.", bad)


def dispersion(z: np.ndarray, used: int) -> Check | None:
    """Of counts, by the variance of their residuals."""
    if len(z) < ENOUGH:
        return None
    df = max(len(z) - used, 1)
    ratio = float(np.sum(z**2) / df)
    chance = 2 * min(scipy.special.chdtrc(df, ratio * df), scipy.special.chdtr(df, ratio * df))
    word = "wider" if ratio > 1 else "narrower"
    bad = (
        f"The counts are {word} than a Poisson outcome allows (residuals have variance {ratio:.2f} instead of 1, p = "
        f'{chance:.2g}), so the standard errors are wrong: use errors="robust", or another model.'
    )
    good = chance >= RARE or abs(ratio - 1) < DISPERSION
    return _check("dispersion", ratio, 1.0, good, "The counts vary as a Poisson outcome does.", bad)


def normality(z: np.ndarray) -> Check | None:
    """Of residuals of a linear model."""
    if len(z) < ENOUGH:
        return None
    chance, skew, heavy = _shape(z)
    good = chance >= RARE or (abs(skew) < RESIDUAL[0] and abs(heavy) < RESIDUAL[1])
    bad = (
        f"Residuals are not normal (skewness {skew:.2f}, excess kurtosis {heavy:.2f}, p = {chance:.2g}): transform the "
        'outcome, or use errors="robust".'
    )
    return _check("residuals", chance, RARE, good, "Residuals are normal.", bad)


def evenness(z: np.ndarray, mean: np.ndarray) -> Check | None:
    """Whether the variance of residuals changes with the mean (Koenker's form of the test of Breusch and Pagan)."""
    if len(z) < ENOUGH or np.std(mean) == 0:
        return None
    r = float(np.corrcoef(z**2, mean)[0, 1])
    chance = float(scipy.special.chdtrc(1, len(z) * r**2))
    bad = (
        f"Residuals spread {'more' if r > 0 else 'less'} where the outcome is larger (correlation {r:.2f}, p = {chance:.2g}), "
        'so the standard errors are wrong: transform the outcome, or use errors="robust".'
    )
    return _check("spread", chance, RARE, chance >= RARE or abs(r) < TREND, "Residuals spread evenly.", bad)


def class_residuals(expected: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson's of each class but the first given what is observed, (n, K - 1)."""
    p = expected[:, None] if expected.ndim == 1 else expected[:, 1:]
    seen = y[:, None] == np.arange(1, p.shape[1] + 1)
    return (seen - p) / np.sqrt(np.maximum(p * (1 - p), 1e-12))


def linearity(residuals: np.ndarray, x: np.ndarray, names: list[str]) -> Check | None:
    """Whether residuals (n,) or (n, K - 1) bend along a Gaussian covariate, (n, p) standardised: their correlation with its
    square, less what is linear in it, by the score test of that term (White 1980)."""
    r = residuals.reshape(len(residuals), -1)
    worst, count = None, 0
    for column, name in zip(x.T, names, strict=True):
        seen = ~np.isnan(column)
        if seen.sum() < ENOUGH:
            continue
        line = np.column_stack([np.ones(seen.sum()), column[seen]])
        square = column[seen] ** 2
        square = square - line @ np.linalg.lstsq(line, square, rcond=None)[0]
        # A few rows far out must not carry it.
        square = np.clip(square, *np.quantile(square, [0.01, 0.99]))
        for one in r[seen].T:
            count += 1
            z = float(np.sum(square * one) / np.sqrt(np.maximum(np.sum((square * one) ** 2), 1e-300)))
            share = float(np.sum(square * one) / np.sqrt(np.sum(square**2) * np.sum(one**2) + 1e-300))
            if worst is None or abs(z) > abs(worst[0]):
                worst = (z, share, name)
    if worst is None:
        return None
    chance = 2 * float(scipy.special.ndtr(-abs(worst[0])))
    bad = (
        f'The outcome bends along "{worst[2]}" (p = {chance:.2g}, correlation of its square with the residuals '
        f"{worst[1]:.2f}): add a squared term, or transform it."
    )
    good = chance >= RARE / count or abs(worst[1]) < BEND
    return _check("linearity", chance, RARE / count, good, "The outcome does not bend along any covariate.", bad)


def covariates(residuals: np.ndarray, names: list[str]) -> Check | None:
    """Normality of covariates with holes: residuals (n, p) of `left_out`, NaN where there are none."""
    worst, count = None, 0
    for column, name in zip(residuals.T, names, strict=True):
        z = column[~np.isnan(column)]
        if len(z) < ENOUGH:
            continue
        count += 1
        chance, skew, heavy = _shape(z)
        far = max(abs(skew) / COVARIATE[0], abs(heavy) / COVARIATE[1])
        if far >= 1 and (worst is None or far > worst[0]):
            worst = (far, chance, skew, heavy, name)
    if not count:
        return None
    good = "Covariates with holes are normal given the others."
    if worst is None:
        return _check("covariates", 1.0, RARE / count, True, good, "")
    _, chance, skew, heavy, name = worst
    bad = (
        f'"{name}" is not normal given the other covariates (skewness {skew:.2f}, excess kurtosis {heavy:.2f}, '
        f"p = {chance:.2g}), and its holes are filled as if it were: transform it, as by a logarithm, or "
        "make it discrete."
    )
    return _check("covariates", chance, RARE / count, chance >= RARE / count, good, bad)


def outcome_residuals(
    family: AbstractFamily | Multinomial, params: Params, data: Arranged, m: np.ndarray, v: np.ndarray, share: np.ndarray | None
) -> tuple[Any, Any]:
    """Normal residuals of the outcome given the observed covariates, randomised where it is discrete (Dunn and Smyth 1996), and
    its mean, (n,) both, for predictors N(m, v). `share`: of the completions before the outcome is seen."""
    y = np.asarray(data.rows.y, float)
    if isinstance(family, Gaussian):
        below = at = scipy.special.ndtr((y - m) / np.sqrt(v + float(params["scale"])))
        mean = m
        if data.completions is None:
            back = np.empty((2, len(y)))
            back[:, data.owner] = (y - m) / np.sqrt(v + float(params["scale"])), m
            return back[0], back[1]
    else:
        assert isinstance(family, Poisson)
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        weights = weights / weights.sum()
        rate = np.exp(m[:, None] + np.sqrt(v)[:, None] * nodes)
        at = scipy.special.pdtr(y[:, None], rate) @ weights
        below = np.where(y > 0, scipy.special.pdtr(np.maximum(y - 1, 0)[:, None], rate) @ weights, 0.0)
        mean = np.exp(m + v / 2)
    below, at, mean = (data.totals(part, share) for part in (below, at, mean))
    uniform = below + (at - below) * np.random.default_rng(0).random(data.n)
    return scipy.special.ndtri(np.clip(uniform, 1e-15, 1 - 1e-15)), mean


def left_out(params: Params, data: Arranged) -> np.ndarray:
    r"""Standardised residual of each observed Gaussian entry given the others of its row, (m, p), NaN elsewhere.

    With Q the inverse of the observed block and d its deviations from the mean, $(Qd)_j/\sqrt{Q_{jj}}$ is N(0, 1). Rows whose
    discrete covariates are missing are left out, and rows beyond twenty thousand.
    """
    wide, rows = data.wide(params), data.rows
    counts = np.bincount(data.owner, minlength=data.n)
    some = np.flatnonzero(counts[data.owner] == 1)
    some = some[:: max(1, -(-len(some) // MOST))]
    seen = np.asarray(rows.observed)[some] > 0
    gap = np.where(seen, np.asarray(rows.x)[some] - np.asarray(rows.c)[some] @ np.asarray(wide["mean"]), 0.0)
    sigma, p = np.asarray(wide["covariance"]), seen.shape[1]
    out = np.full(seen.shape, np.nan)
    for part in np.array_split(np.arange(len(some)), max(1, len(some) * p**2 // 4_000_000)):
        both = seen[part][:, :, None] & seen[part][:, None]
        block = np.where(both, sigma, 0.0) + np.eye(p) * ~seen[part][:, None]
        inverse = np.linalg.inv(block)
        pushed = np.einsum("nij,nj->ni", inverse, gap[part])
        out[part] = np.where(seen[part], pushed / np.sqrt(np.einsum("nii->ni", inverse)), np.nan)
    return out


def _shape(z: np.ndarray) -> tuple[float, float, float]:
    """p of D'Agostino and Pearson's test, skewness and excess kurtosis."""
    if np.ptp(z) == 0:
        return 1.0, 0.0, 0.0
    return float(scipy.stats.normaltest(z).pvalue), float(scipy.stats.skew(z)), float(scipy.stats.kurtosis(z))


def _check(name: str, figure: float, threshold: float, good: bool, said: str, bad: str) -> Check:
    return Check(name, figure, float("nan"), threshold, "pass" if good else "careful", said if good else bad)
