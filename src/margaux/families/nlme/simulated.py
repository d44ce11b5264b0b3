"""What simulated subjects of a regimen tell: curves, exposure, and how many attain a target."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy

from ...numerics.wald import check_level
from ...showing.axes import single

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

#: quantiles of curves and of exposure
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclasses.dataclass(frozen=True)
class SimulatedRegimen:
    """Simulated subjects of a regimen: see `NLME.simulate_regimen`.

    Attributes:
        regimen: what was asked for. records: its dose records. unit: of the doses, "" where none was given.
        interval: the last dosing interval, from and to.
        times: of the curves (T,). individual: each subject's curve, without residual error (n, T). observed: with it (n, T).
        parameters: individual parameters and covariates, a row a subject.
        exposure: a row a subject. Over the last interval: `Cmax_last` and its time `Tmax_last`, `Ctrough` (at its end), `AUC` and
            the average concentration `Cavg`. From the first dose to the end of the last interval: `Cmax`, its time `Tmax`, and
            `AUC_total`. From the first dose for ever, nothing else being given: `AUC_inf`, infinite where the curve does not
            vanish, left out of differential equations. Curves are without residual error, and times on the clock of the regimen.
        uncertainty: whether each subject has its own draw of the estimates. labels: of time and outcome.
    """

    regimen: str | pd.DataFrame
    records: pd.DataFrame
    unit: str
    interval: tuple[float, float]
    times: np.ndarray
    individual: np.ndarray
    observed: np.ndarray
    parameters: pd.DataFrame
    exposure: pd.DataFrame
    uncertainty: bool
    labels: tuple[str, str]

    @property
    def curves(self) -> pd.DataFrame:
        """Quantiles over subjects, a row a time: `time`, `of` ("individual" or "observed" curves), `mean`, and `q5` to `q95`."""
        parts = []
        for name, values in (("individual", self.individual), ("observed", self.observed)):
            part = pd.DataFrame(np.quantile(values, LEVELS, axis=0).T, columns=[f"q{100 * level:g}" for level in LEVELS])
            part.insert(0, "mean", values.mean(axis=0))
            part.insert(0, "of", name)
            part.insert(0, "time", self.times)
            parts.append(part)
        return pd.concat(parts, ignore_index=True)

    def summary(self, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Each measure of exposure over the subjects: mean, coefficient of variation in %, and quantiles.

        Raises:
            ValueError: a level that is no probability.
        """
        for level in levels:
            check_level(level)
        values = self.exposure.to_numpy(float)
        with np.errstate(all="ignore"):
            mean = values.mean(axis=0)
            cv = 100 * values.std(axis=0, ddof=1) / mean if len(values) > 1 else np.full(values.shape[1], np.nan)
        out = pd.DataFrame({"mean": mean, "cv": cv}, index=self.exposure.columns)
        with np.errstate(invalid="ignore"):
            quantiles = np.quantile(values, np.asarray(levels, float), axis=0, method="linear")
        quantiles = np.where(np.isnan(quantiles), np.inf, quantiles)  # between two infinite areas
        return out.assign(**{f"q{100 * level:g}": row for level, row in zip(levels, quantiles, strict=True)})

    def attain(
        self,
        metric: str,
        above: float | Sequence[float] | None = None,
        below: float | Sequence[float] | None = None,
        level: float = 0.95,
    ) -> pd.DataFrame:
        """The share of subjects whose exposure attains a target: above a value, below one, or between two.

        Args:
            metric: a column of `exposure`, such as "AUC". above, below: one value or, of one of them, several.

        Returns:
            A row a target: `above`, `below`, `probability` and its Monte Carlo error `se`, Wilson's interval `ci_low`, `ci_high`.

        Raises:
            ValueError: no such measure, or no target.

        Reference: Wilson, J. Am. Stat. Assoc. 22 (1927), 209-212.
        """  # fmt: skip
        if metric not in self.exposure.columns:
            raise ValueError(f"no measure of exposure is called {metric!r}; they are {', '.join(self.exposure.columns)}")
        if above is None and below is None:
            raise ValueError(f"say what {metric} is to attain: above=, below=, or both")
        check_level(level)
        low, high = (np.atleast_1d(np.asarray(side, float)) for side in (
            -np.inf if above is None else above, np.inf if below is None else below
        ))  # fmt: skip
        if len(low) > 1 and len(high) > 1:
            raise ValueError("give several values of above or of below, not of both")
        low, high = np.broadcast_arrays(low, high)
        if np.any(np.isnan(low)) or np.any(np.isnan(high)) or np.any(low >= high):
            raise ValueError(f"targets must be numbers, with above less than below; got above={above}, below={below}")
        values = self.exposure[metric].to_numpy(float)[:, None]
        p, n = np.mean((values > low) & (values < high), axis=0), len(values)
        z = scipy.special.ndtri(0.5 + level / 2)
        centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
        return pd.DataFrame({
            "above": low, "below": high, "probability": p, "se": np.sqrt(p * (1 - p) / n),
            "ci_low": np.maximum(centre - half, 0.0), "ci_high": np.minimum(centre + half, 1.0),
        })  # fmt: skip

    def plot(self, log: bool = False, ax: Axes | None = None) -> Axes:
        """Bands of half and of 90% of the curves, their median, and the 90% limits of observations."""
        axis = single(ax, 6.4, 3.8)
        low, quarter, median, upper, high = np.quantile(self.individual, LEVELS, axis=0)
        axis.fill_between(self.times, low, high, color="tab:blue", alpha=0.18, lw=0, label="90% of subjects")
        axis.fill_between(self.times, quarter, upper, color="tab:blue", alpha=0.3, lw=0, label="50% of subjects")
        axis.plot(self.times, median, color="tab:blue", lw=1.4, label="median")
        for k, end in enumerate(np.quantile(self.observed, (0.05, 0.95), axis=0)):
            axis.plot(self.times, end, color="0.4", lw=0.8, ls="--", label=None if k else "90% of observations")
        title = self.regimen if isinstance(self.regimen, str) else f"{len(self.records)} dose records"
        axis.set(xlabel=self.labels[0], ylabel=self.labels[1], title=title, yscale="log" if log else "linear")
        axis.legend(frameon=False, fontsize=8)
        return axis

    def __repr__(self) -> str:
        what = repr(self.regimen) if isinstance(self.regimen, str) else f"{len(self.records)} dose records"
        return f"SimulatedRegimen({what}, {len(self.exposure):,} subjects)\n{self.summary().to_string(float_format='%.4g')}"
