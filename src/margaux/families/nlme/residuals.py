r"""Residuals of continuous outcomes: population and individual weighted residuals, prediction discrepancies and their tests.

`discrepancies` and `standard_normal` are functions of arrays: they serve any model that can be simulated from.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import scipy

from ...numerics.precision import precision
from . import prediction
from .censoring import CENSORED, imputed
from .data import _places
from .error import MULTIPLIER
from .kinds import OUTPUT
from .limits import of_rows
from .rows_by_output import in_order, rows_of

if TYPE_CHECKING:
    from .estimator import NLME


#: parts that simulations are ranked in, each by the moments of the others
FOLDS = 5
#: numbers held at once when the simulations are decorrelated
BLOCK = 8_000_000
#: a simulated standard deviation below this share of the largest is none: such rows have no residual
DEGENERATE = 1e-8
#: observations that the Shapiro-Wilk test is made for
SHAPIRO = 5000


class Discrepancies(NamedTuple):
    """Of each observation (n, T), NaN in the padding: mean and SD of its simulations, the weighted residual, prediction
    discrepancies (pd) and decorrelated ones (pde), each also as a normal score (npd, npde). Of each subject the variances over
    simulations of the sums of its npde's first four Hermite polynomials, `spread` (n, 4)."""

    mean: np.ndarray
    sd: np.ndarray
    wres: np.ndarray
    pd: np.ndarray
    npd: np.ndarray
    pde: np.ndarray
    npde: np.ndarray
    spread: np.ndarray


def discrepancies(y: np.ndarray, mask: np.ndarray, simulations: np.ndarray, method: str = "cholesky") -> Discrepancies:
    r"""Where observations lie among simulations of the same design.

    With mean $m_i$ and covariance $V_i = L_i L_i^\top$ of subject i's simulations, observations and simulations become
    $L_i^{-1}(y_i - m_i)$ (for the observations, the weighted residuals). With k of the K decorrelated simulations below the
    decorrelated observation, each fifth of them by the mean and covariance of the others, pde = (k + 1/2) / (K + 1), kept in
    [1/(2K), 1 - 1/(2K)], and npde is $\Phi^{-1}$(pde): under the model N(0, 1), and uncorrelated within a subject.

    Args:
        y: observations (n, T). mask: (n, T), zero in the padding. simulations: (K, n, T).
        method: "cholesky", where a residual depends on the subject's earlier rows only, or "eigen", the symmetric root.

    Raises:
        ValueError: fewer simulations than a subject's covariance needs, or an unknown method.

    Reference: Brendel, Comets, Laffont, Laveille and Mentre, Pharm. Res. 23 (2006), 2036-2049; Comets, Brendel and
    Mentre, Comput. Methods Programs Biomed. 90 (2008), 154-166 (ties and extremes).
    """
    if method not in ("cholesky", "eigen"):
        raise ValueError(f'method must be "cholesky" or "eigen", got {method!r}')
    y, mask = np.asarray(y, float), np.asarray(mask) > 0
    n_simulations, longest = len(simulations), int(mask.sum(axis=1).max())
    if n_simulations < 2 * longest + 10:
        raise ValueError(
            f"{n_simulations} simulations are too few for subjects of {longest} observations; take {2 * longest + 10} or more"
        )
    largest = np.where(mask, np.std(simulations, axis=0), 0.0).max()
    size = max(BLOCK // (n_simulations * mask.shape[1]), 1)
    parts = [
        _block(y[at : at + size], mask[at : at + size], np.asarray(simulations[:, at : at + size], float), largest, method)
        for at in range(0, len(y), size)
    ]
    return Discrepancies(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _block(y: np.ndarray, mask: np.ndarray, simulations: np.ndarray, largest: float, method: str) -> Discrepancies:
    """Some subjects at once; simulations are (K, n, T)."""
    mean, sd = simulations.mean(axis=0), simulations.std(axis=0, ddof=1)
    used = mask & (sd > DEGENERATE * largest)
    scale = np.where(used, sd, 1.0)
    # Simulations, then the observation in the last place, in units of their standard deviation: (n, T, K + 1).
    every = np.moveaxis(np.concatenate([simulations, y[None]]) - mean, 0, 2) / scale[:, :, None]
    every = np.where(used[:, :, None], every, 0.0)
    among, one = every[:, :, :-1], every[:, :, -1:]
    wres = (_inverse_root(among, used, scale, method) @ one)[:, :, 0]
    raw, white, simulated = _below(one, among), np.zeros(y.shape), np.zeros(among.shape)
    # Simulations that made the covariance lie closer to it than a new observation does, so they are not ranked against it.
    for fold in range(FOLDS):
        inside = np.arange(len(simulations)) % FOLDS == fold
        others, held = among[:, :, ~inside], among[:, :, inside]
        centre, root = others.mean(axis=2, keepdims=True), _inverse_root(others, used, scale, method)
        simulated[:, :, inside] = root @ (held - centre)
        white += _below(root @ (one - centre), simulated[:, :, inside])
    # Midpoints: k / K with only its ends moved inwards would make the variance of npde 1 + 8 / K.
    least = 0.5 / len(simulations)
    pd_, pde = (np.clip((count + 0.5) / (len(simulations) + 1), least, 1 - least) for count in (raw, white))
    out = (mean, sd, wres, pd_, scipy.stats.norm.ppf(pd_), pde, scipy.stats.norm.ppf(pde))
    # Where nothing varies in the model, a residual has no scale.
    each = (np.where(mask if k < 2 else used, value, np.nan) for k, value in enumerate(out))
    return Discrepancies(*each, spread=_spread(simulated, used))


def _spread(simulated: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Of decorrelated simulations (n, T, K), each among the others, the variances of the sums of polynomials, (n, 4)."""
    count = simulated.shape[2]
    ranks = np.argsort(np.argsort(simulated, axis=2), axis=2)
    scores = scipy.stats.norm.ppf((np.arange(count) + 0.5) / count)[ranks]
    sums = [np.where(used[:, :, None], each, 0.0).sum(axis=1) for each in _polynomials(scores)]
    return np.stack([np.mean(each**2, axis=1) for each in sums], axis=1)


def _below(one: np.ndarray, among: np.ndarray) -> np.ndarray:
    """How many of (..., K) lie below (..., 1), ties counting half."""
    return (np.sum(among < one, axis=-1) + np.sum(among <= one, axis=-1)) / 2


def _inverse_root(among: np.ndarray, used: np.ndarray, scale: np.ndarray, method: str) -> np.ndarray:
    """A such that A x has the identity for covariance over simulations x (n, T, K) in units of `scale`: (n, T, T)."""
    gaps = among - among.mean(axis=2, keepdims=True)
    correlation = gaps @ gaps.transpose(0, 2, 1) / (among.shape[2] - 1)
    lanes = np.arange(used.shape[1])
    correlation[:, lanes, lanes] += np.where(used, 1e-10, 1.0)
    if method == "cholesky":
        return np.linalg.inv(np.linalg.cholesky(correlation))
    # The symmetric root is of the covariance, not of the correlation: it depends on the units of the rows.
    values, vectors = np.linalg.eigh(correlation * scale[:, :, None] * scale[:, None, :])
    root = (vectors / np.sqrt(np.maximum(values, 1e-12 * values[:, -1:]))[:, None, :]) @ vectors.transpose(0, 2, 1)
    return root * scale[:, None, :]


def standard_normal(npde: np.ndarray) -> pd.DataFrame:
    """Whether npde look like draws from N(0, 1): statistics and p-values.

    Rows: "mean" (Wilcoxon signed rank, mean zero), "variance" (chi-squared, variance one), "normality" (Shapiro-Wilk, of a
    subset beyond 5000) and "global", the least of the three p-values times three (Bonferroni).

    Raises:
        ValueError: fewer than three npde.
    """
    values = np.asarray(npde, float)
    values = values[np.isfinite(values)]
    n = len(values)
    if n < 3:
        raise ValueError(f"the tests need at least 3 npde, got {n}")
    rank: Any = scipy.stats.wilcoxon(values, method="approx")
    spread = (n - 1) * values.var(ddof=1)
    some = values if n <= SHAPIRO else np.random.default_rng(0).choice(values, SHAPIRO, replace=False)
    shape = scipy.stats.shapiro(some)
    below = scipy.stats.chi2.cdf(spread, n - 1)
    p = [float(rank.pvalue), float(min(1.0, 2 * min(below, 1 - below))), float(shape.pvalue)]
    return pd.DataFrame(
        {"statistic": [float(rank.statistic), float(spread), float(shape.statistic), np.nan], "p": [*p, min(1.0, 3 * min(p))]},
        index=["mean", "variance", "normality", "global"],
    )


def as_simulated(npde: np.ndarray, spread: np.ndarray) -> dict[str, float]:
    r"""p-values of "mean", "variance" and "normality" where the npde of a subject depend on each other as simulations say.

    Decorrelated is not independent: of curves that are nonlinear in the effects, or errors that grow with them, the squares of a
    subject's many npde rise and fall together, and the tests of `standard_normal` reject models that are true. Under these each
    npde is standard normal by itself, so that its Hermite polynomials have mean zero, $x$, $x^2-1$, $x^3-3x$ and $x^4-6x^2+3$;
    their sums are held to the variances that they have over simulations, the last two together for the shape.

    Args:
        npde: NaN where there is none. spread: of each subject the variances of its sums (n, 4), see `Discrepancies`.
    """
    x = np.asarray(npde, float)
    sums = [float(each.sum()) for each in _polynomials(x[np.isfinite(x)])]
    p = 2 * scipy.stats.norm.sf(np.abs(sums) / np.sqrt(np.sum(spread, axis=0)))
    return {"mean": float(p[0]), "variance": float(p[1]), "normality": float(min(1.0, 2 * min(p[2:])))}


def _polynomials(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of Hermite: of a standard normal they have mean zero."""
    return x, x**2 - 1, x**3 - 3 * x, x**4 - 6 * x**2 + 3


@dataclasses.dataclass(frozen=True)
class NPDE:
    """Normalised prediction distribution errors of a fit.

    Attributes:
        frame: in the order of the data: subject, time, output and outcome under the names of their columns; `mean` and
            `variance` of the simulations; `wres`, `pd`, `npd`, `pde`, `npde` (see `discrepancies`), NaN where the
            model has no variability.
        n_simulations: K. spread: see `Discrepancies`.
    """

    frame: pd.DataFrame
    n_simulations: int
    spread: np.ndarray

    def test(self) -> pd.DataFrame:
        """Mean, variance, normality and global p-value: see `margaux.families.nlme.residuals.standard_normal`. They take npde to
        be independent, as usual; the certificate of a fit allows for those of a subject that are not (`as_simulated`)."""
        return standard_normal(self.frame["npde"].to_numpy())


def npde(fitted: NLME, n_simulations: int = 1000, key: int = 0, method: str = "cholesky") -> NPDE:
    """Normalised prediction distribution errors of a fit to a continuous outcome: see `discrepancies`.

    The estimates are taken as known, so the tests of the data that were fitted are slightly conservative. Every simulation
    of a subject is a new one, with its design and covariates.

    Raises:
        ValueError: the outcome is not continuous, or there are too few simulations.
    """
    check_continuous(fitted, "npde")
    return fitted.result_.remembered(
        f"npde/{n_simulations}/{key}/{method}", lambda: _computed_npde(fitted, n_simulations, key, method)
    )


def _computed_npde(fitted: Any, n_simulations: int, key: int, method: str) -> NPDE:
    data = fitted.data_
    with precision(fitted.result_.dtype):
        simulations = prediction.drawn(fitted, data, n_simulations, key)
    y = data.units["rows"]["y"]
    if data.censored:
        y, simulations = imputed(y, data.units["rows"], _padded_limits(data), simulations, key)
    unit = _units_of_outputs(data, simulations)
    found = discrepancies(y / unit, data.units["mask"], simulations / unit, method)
    columns = {"mean": found.mean * unit, "variance": (found.sd * unit) ** 2}
    columns |= {k: getattr(found, k) for k in found._fields[2:-1]}
    frame = data.frame[[data.roles[role] for role in ("id", "time", "output", "y") if role in data.roles]].copy()
    frame[list(columns)] = np.stack([data.flat(value) for value in columns.values()], axis=1)
    lost = int(frame["npde"].isna().sum())
    if lost:
        warnings.warn(f"{lost} rows whose simulations do not vary have no residual", stacklevel=4)
    return NPDE(frame.sort_index(), n_simulations, found.spread)


def _units_of_outputs(data: Any, simulations: np.ndarray) -> np.ndarray | float:
    """Of each row (n, T), the largest standard deviation of simulations of its output: outputs have units of their own."""
    if data.output is None:
        return 1.0
    place, sd = data.units["rows"][OUTPUT], np.where(data.units["mask"] > 0, np.std(simulations, axis=0), 0.0)
    largest = np.asarray([np.max(sd, where=place == number, initial=0.0) for number in range(int(place.max()) + 1)])
    return np.where(largest > 0, largest, 1.0)[place.astype(int)]


def _padded_limits(data: Any) -> dict[int, np.ndarray]:
    """Limits of the rows by code, (n, T)."""
    cells = _places(np.bincount(data.codes), data.units["mask"].shape[1])
    return {code: limits[cells] for code, limits in of_rows(data).items()}


def iwres(fitted: Any) -> np.ndarray:
    r"""Individual weighted residuals $(y - f(\hat\psi_i)) / g(f(\hat\psi_i))$ at the conditional modes, in the order of the data.

    On the logarithmic scale for an exponential error; NaN where y is a limit. Raises ValueError for an outcome that is not
    continuous.
    """
    check_continuous(fitted, "residuals")
    data = fitted.data_
    error = fitted.model_.outcome.error.at({name: in_order(data, values) for name, values in rows_of(data).items()})
    y = data.frame[data.roles["y"]].sort_index().to_numpy(float)
    with precision(fitted.result_.dtype):
        f = jax.numpy.asarray(fitted.predict(level="individual"))
        gap = error.transformed(jax.numpy.asarray(y, f.dtype)) - error.transformed(f)
        out = np.asarray(gap / error.sd(jax.numpy.asarray(fitted.result_.params["error"]), f), float)
    out = out / multipliers(fitted)
    if not data.censored:
        return out
    return np.where(in_order(data, data.flat(data.units["rows"][CENSORED])) == 0, out, np.nan)


def multipliers(fitted: Any) -> np.ndarray | float:
    """Of each row, in the order of the data, the factor of its subject's residual error at the conditional mode."""
    data, error = fitted.data_, fitted.model_.outcome.error
    if not error.multipliers:
        return 1.0
    own = {name: fitted.individual_[f"mode_{name}"].to_numpy(float)[data.codes] for name in error.multipliers}
    if data.output is None:
        return in_order(data, own[MULTIPLIER])
    every = [own.get(f"{MULTIPLIER}[{output}]", np.ones(len(data.codes))) for output in error.outputs]
    return in_order(data, np.choose(np.asarray(data.output, int), every))


def check_continuous(fitted: NLME, what: str) -> None:
    """Raises: ValueError: the outcome has no residual error."""
    outcome = fitted.model_.outcome
    if not outcome.continuous:
        raise ValueError(
            f"{what} are about continuous outcomes, and the outcome of this fit is {type(outcome).__name__}; look at "
            "plot.vpc(), which suits every outcome that can be simulated"
        )


def residuals(fitted: NLME, n_simulations: int = 1000, key: int = 0) -> pd.DataFrame:
    """All of a fit's residuals, in the order of the data: `npde(fitted).frame` with the predictions `population` and
    `individual`, and `iwres`, the individual weighted residuals."""
    check_continuous(fitted, "residuals")
    frame = npde(fitted, n_simulations, key).frame.copy()
    with precision(fitted.result_.dtype):
        frame["population"], frame["individual"] = (
            np.asarray(fitted.predict(level=k), float) for k in ("population", "individual")
        )
    frame["iwres"] = iwres(fitted)
    return frame
