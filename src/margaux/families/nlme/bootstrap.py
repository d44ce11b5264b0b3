r"""The non-parametric bootstrap of a nonlinear mixed-effects model: subjects drawn with replacement, and the model fitted anew.

References: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 13 and 14; Efron, J. Am. Stat. Assoc. 82
(1987), 171-185, sections 3 and 7; Thai, Mentre, Holford, Veyrat-Follet and Comets, J. Pharmacokinet. Pharmacodyn. 41 (2014),
15-33.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd
import scipy
from jaxtyping import Float, Int

from ...answers.scores import Coordinates
from ...engine.share import alone
from ...numerics.inverse import guarded
from ...numerics.precision import precision
from ...numerics.wald import check_level
from . import answers, flipflop
from .design import Design
from .maxima import Maxima, at_the_estimate, maxima
from .outcomes import PRESENT
from .whole import whole

if TYPE_CHECKING:
    from ...answers.fit import Fit
    from .estimator import NLME


#: how a replicate ended: the first two are estimates
CONVERGED, BOUNDARY, MIRRORED, UNKNOWN, LOST = "converged", "boundary", "flip-flop", "not identified", "not converged"
#: share of the fit's own variance, or of a plausible one, below which one about which nothing is known vanishes
VANISHED = 1e-3
#: standard errors that the whole data's maximum may be from the fit, and replicates that an end of an interval takes beyond it
AWAY, BEYOND = 0.1, 5


@dataclasses.dataclass(frozen=True)
class Bootstrap:
    """Replicates of a fit.

    Attributes:
        replicates: a row a replicate, a column a parameter as `params_` names it; zero where a variance vanishes. status: of
            each "converged", "boundary" (a variance vanishes, or nothing is known of a correlation: an estimate too),
            "flip-flop" (the other parameters of the same curve), "not identified" (the resample has no such covariate values),
            "not converged"; the first two are used. loglik: their maxima (of fits with priors,
            with the log prior added). counts: how often each subject was drawn (R, n).
        estimate: that of the data themselves, by the same search. acceleration: of BCa intervals, NaN where there is none.
        level: of intervals. note: what is to be said of the fit itself.
    """

    replicates: pd.DataFrame
    status: np.ndarray
    loglik: np.ndarray
    counts: np.ndarray
    estimate: pd.Series
    acceleration: np.ndarray
    level: float
    note: str = ""

    def __len__(self) -> int:
        return len(self.status)

    @property
    def used(self) -> pd.DataFrame:
        """The replicates that are estimates."""
        return self.replicates.loc[np.isin(self.status, (CONVERGED, BOUNDARY))]

    @property
    def message(self) -> str:
        """How many replicates are used, which are not and why, and how far intervals are to be trusted."""
        numbers = {status: int(np.sum(self.status == status)) for status in (BOUNDARY, MIRRORED, UNKNOWN, LOST)}
        told = [f"{len(self.used)} of {len(self)} replicates are used"]
        if numbers[BOUNDARY]:
            zero = dict(zip(self.replicates.columns, np.sum(self.used.to_numpy() == 0, axis=0), strict=True))
            which = ", ".join(f"{name} is zero in {count}" for name, count in zero.items() if count)
            told.append(f"{numbers[BOUNDARY]} of them are on a boundary" + (f" ({which})" if which else ""))
        reasons = {
            MIRRORED: "are left out as flip-flop: they went to the other parameters of the same curves",
            UNKNOWN: "are left out because coefficients are not identified in these resamples: draw within levels (stratify=)",
            LOST: "are left out because they did not converge",
        }
        told += [f"{numbers[status]} {reason}" for status, reason in reasons.items() if numbers[status]]
        beyond = len(self.used) * (1 - self.level) / 2
        if beyond < BEYOND:
            enough = int(np.ceil(2 * BEYOND / (1 - self.level)))
            told.append(f"{beyond:.1f} replicates lie beyond each end of an interval, which is few: take {enough} or more")
        return "; ".join(told + ([self.note] if self.note else [])) + "."

    def summary(self, level: float | None = None) -> pd.DataFrame:
        r"""Estimate, mean, bias and standard error over the replicates that are used, and intervals of two kinds.

        `percentile_low`, `percentile_high`: quantiles of the replicates. `bca_low`, `bca_high`: bias-corrected and accelerated,
        quantiles at $\Phi(z_0+\frac{z_0+z}{1-a(z_0+z)})$, with $z_0$ from the share of replicates below the estimate, ties
        by halves, and a the skewness of the subjects' influence on the estimate; NaN where a parameter has no influence, as a
        variance that is zero, or where these quantiles are beyond the replicates. `attrs["message"]` is `message`.

        Raises:
            ValueError: a level that is no probability, or fewer than two replicates to be used.
        """
        level = self.level if level is None else level
        check_level(level)
        used = self.used.to_numpy()
        if len(used) < 2:
            raise ValueError(f"a summary needs two replicates, and {self.message}")
        estimate = self.estimate.to_numpy()
        out = pd.DataFrame({"estimate": estimate, "mean": used.mean(axis=0)}, index=self.replicates.columns)
        out["bias"], out["se"] = out["mean"] - out["estimate"], used.std(axis=0, ddof=1)
        tails = np.array([(1 - level) / 2, (1 + level) / 2])
        out["percentile_low"], out["percentile_high"] = np.quantile(used, tails, axis=0)
        ends = [_bca(used[:, j], estimate[j], a, tails) for j, a in enumerate(self.acceleration)]
        out["bca_low"], out["bca_high"] = np.asarray(ends).T
        short = [name for name, (low, _) in zip(out.index, ends, strict=True) if np.isnan(low) and name in self._influenced]
        note = f"quantiles of BCa intervals of {', '.join(short)} are beyond the replicates: take more" if short else ""
        noted = "; ".join(part for part in (self.note, note) if part)
        out.attrs["message"] = dataclasses.replace(self, level=level, note=noted).message
        return out

    @property
    def _influenced(self) -> list[str]:
        return list(self.replicates.columns[np.isfinite(self.acceleration)])

    def __repr__(self) -> str:
        return f"Bootstrap: {self.message} .replicates, .status, .summary()"


def _bca(values: np.ndarray, estimate: float, acceleration: float, tails: np.ndarray) -> np.ndarray:
    """Ends of a BCa interval (Efron and Tibshirani 1993, equations 14.9 to 14.14)."""
    below = (np.mean(values < estimate) + np.mean(values <= estimate)) / 2
    z0, z = scipy.special.ndtri(below), scipy.special.ndtri(tails)
    with np.errstate(invalid="ignore"):
        at = scipy.special.ndtr(z0 + (z0 + z) / (1 - acceleration * (z0 + z)))
    if not np.all(np.isfinite(at)) or at.min() < 1 / (len(values) + 1) or at.max() > len(values) / (len(values) + 1):
        return np.full(2, np.nan)
    return np.quantile(values, at)


def bootstrap(fitted: NLME, n: int, stratify: str | None, level: float, key: int) -> Bootstrap:
    """See `NLME.bootstrap`."""
    check_level(level)
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 2:
        raise ValueError(f"n must be a whole number of replicates, at least 2, got {n!r}")
    alone(fitted.result_.share, "a bootstrap")
    strata = _strata(fitted, stratify)
    counts = resampled(strata, int(n), np.random.default_rng(key))
    fit = whole(fitted)
    model: Any = fit._model().model
    names = answers.natural_names(model, fitted._design.labels if fit is fitted.result_ else _labels(fitted), ())
    found = maxima(fit, np.vstack([np.ones(len(strata), int), counts]), [fit.params], progress=bool(fitted.verbose))
    values, zero = natural(fit, found, names)
    status = np.full(len(values), CONVERGED, object)
    status[_flat_among(fit, found, "omega.") | zero.any(axis=1)] = BOUNDARY
    status[_mirrored(fitted, values, names)] = MIRRORED
    status[_flat_among(fit, found, "beta", "fixed", "delta", "drift", "error", "shape")] = UNKNOWN
    status[~found.converged] = LOST
    drawn = np.vstack([np.ones(len(strata)), counts]) > 0
    status[[not _identified(model, jax.tree.map(lambda leaf, own=own: leaf[own], fit.data)) for own in drawn]] = UNKNOWN
    return Bootstrap(
        pd.DataFrame(values[1:], columns=names),
        status[1:].astype(str),
        found.loglik[1:],
        counts,
        pd.Series(values[0], index=names),
        _accelerations(fitted, strata, names),
        level,
        _note(fitted, values[0], names, str(status[0])),
    )


def _labels(fitted: NLME) -> list[str]:
    """Of the coefficients of the model that was asked for."""
    from . import specification

    return Design(specification.individual(fitted), fitted.data_).labels


def _strata(fitted: NLME, column: str | None) -> Int[np.ndarray, " n"]:
    """The stratum of each subject.

    Raises:
        ValueError: no such column, one that varies within a subject, or with holes.
    """
    data = fitted.data_
    if column is None:
        return np.zeros(len(data.labels), int)
    if column not in data.frame.columns:
        known = ", ".join(map(str, data.frame.columns))
        raise ValueError(f"stratify={column!r} is no column of the data; they are {known}")
    values = data.frame[column]
    missing = values.isna().to_numpy()
    if missing.any():
        raise ValueError(f"stratify={column!r} is missing ({data.where(int(np.flatnonzero(missing)[0]))})")
    first = data.subjects[column].to_numpy()
    varies = values.to_numpy() != first[data.codes]
    if varies.any():
        raise ValueError(
            f"stratify={column!r} varies within a subject ({data.where(int(np.flatnonzero(varies)[0]))}); subjects are drawn "
            "whole, so that it must be constant in each"
        )
    return pd.factorize(first)[0]


def resampled(strata: Int[np.ndarray, " n"], count: int, rng: np.random.Generator) -> Int[np.ndarray, "R n"]:
    """How often each subject is drawn, in each replicate as many of a stratum as there are.

    >>> resampled(np.array([0, 0, 1]), 2, np.random.default_rng(0)).sum(axis=1)
    array([3, 3])
    """
    out = np.zeros((count, len(strata)), int)
    for stratum in np.unique(strata):
        own = np.flatnonzero(strata == stratum)
        out[:, own] = rng.multinomial(len(own), np.full(len(own), 1 / len(own)), size=count)
    return out


def natural(fit: Fit, found: Maxima, names: list[str]) -> tuple[Float[np.ndarray, "R m"], np.ndarray]:
    """Parameters as `params_` has them, variances that vanish as zero; and which are so (R, m)."""
    model: Any = fit._model().model
    with precision(np.dtype(float)):
        params = jax.tree.map(lambda leaf: np.asarray(leaf, float), found.params)
        values = np.array(jax.vmap(lambda one: answers.natural_values(model, one, ()))(params), float)
    variances = np.array([name.startswith(("omega2_", "gamma2_")) for name in names])
    sizes = np.array(answers.natural_values(model, fit.params, ()), float)
    zero = variances & (values < VANISHED * np.abs(sizes)) & _flat(fit, found, names)
    return np.where(zero, 0.0, values), zero


def _flat(fit: Fit, found: Maxima, names: list[str]) -> np.ndarray:
    """Of which natural parameters next to nothing is known, (R, m)."""
    model: Any = fit._model().model
    called = answers.engine_names(model, [""] * len(model.owner + model.shifted))
    out = np.zeros((len(found.flat), len(names)), bool)
    for column, name in enumerate(fit.names):
        if (own := called.get(name)) in names:
            out[:, names.index(own)] |= found.flat[:, column]
    return out


def _flat_among(fit: Fit, found: Maxima, *kinds: str) -> Any:
    """Whether next to nothing is known of an entry of these parameters of the engine, (R,)."""
    return found.flat[:, [name.startswith(kinds) for name in fit.names]].any(axis=1)


def _identified(model: Any, units: dict) -> bool:
    """Whether covariates of these subjects, and of their occasions, tell what is estimated of each parameter's coefficients
    apart."""
    design = np.asarray(units["design"])
    for j in range(len(model.names)):
        own = [k for k in model.coefficients(j) if not model.held_coefficients[k]]
        columns = design[:, own]
        if shifts := [k for k in model.shifts(j) if not model.held_shifts[k]]:
            subject, occasion = np.nonzero(np.asarray(units[PRESENT]) > 0)
            columns = np.hstack([columns[subject], model.covariates(design)[subject, occasion][:, shifts]])
        if columns.shape[1] > 1 and np.linalg.matrix_rank(columns) < columns.shape[1]:
            return False
    return True


def _mirrored(fitted: NLME, values: np.ndarray, names: list[str]) -> np.ndarray:
    """Which went to the other side of a flip-flop than the fit, (R,)."""
    own = flipflop.flipped(fitted.structural, fitted.params_)
    if own is None:
        return np.zeros(len(values), bool)
    each = [dict(zip(names, row, strict=True)) for row in values]
    return np.array([flipflop.flipped(fitted.structural, psi) != own for psi in each])


def _accelerations(fitted: NLME, strata: np.ndarray, names: list[str]) -> np.ndarray:
    r"""$\frac16\sum_i U_i^3/(\sum_i U_i^2)^{3/2}$ of the subjects' influences $U_i = J I^{-1} s_i$ on each natural parameter,
    centred within strata; NaN of a variance that is zero."""
    fit, model = fitted.result_, fitted.model_
    done = at_the_estimate(fit)
    with precision(np.dtype(float)):
        params = jax.tree.map(lambda leaf: np.asarray(leaf, float), fit.params)
        jacobian = np.asarray(answers.natural_jacobian(model, params, fitted._dropped)[1])
    inverse = guarded(done.matrix)[0]
    influence = done.scores.mean(axis=0) @ inverse @ (jacobian @ Coordinates(fit).jacobian(done.u)).T
    for stratum in np.unique(strata):
        influence[strata == stratum] -= influence[strata == stratum].mean(axis=0)
    with np.errstate(all="ignore"):
        skewness = np.sum(influence**3, axis=0) / np.sum(influence**2, axis=0) ** 1.5 / 6
    own = dict(zip(fitted.params_, skewness, strict=True)) | dict.fromkeys(fitted._dropped, np.nan)
    return np.array([own.get(name, np.nan) for name in names])


def _note(fitted: NLME, values: np.ndarray, names: list[str], status: str) -> str:
    """What is to be said where the search on the data themselves does not end at the fit."""
    if status not in (CONVERGED, BOUNDARY):
        return f"on the data themselves the search ended as {status!r}, so that no replicate is to be trusted"
    own, se = np.array([fitted.params_[name] for name in names]), np.array([fitted.stderr_[name] for name in names])
    away = np.abs(values - own) / np.where(np.isfinite(se) & (se > 0), se, np.inf)
    worst = int(away.argmax())
    if away[worst] <= AWAY:
        return ""
    return (
        f"on the data themselves the search ended {away[worst]:.1f} standard errors from the fit ({names[worst]} = "
        f"{values[worst]:.4g}, not {own[worst]:.4g}); bias is from where it ended"
    )
