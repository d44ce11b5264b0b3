"""Regimens that were never given, simulated from a fitted nonlinear mixed-effects model."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...showing.parts import check_fitted

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .simulated import SimulatedRegimen

#: points of curves that are drawn by default
POINTS = 241
#: relative error of areas that is said
ROUGH = 1e-4


class Simulating:
    """An estimator that simulates regimens."""

    def simulate_regimen(
        self,
        regimen: str | pd.DataFrame,
        n: int | None = 1000,
        subjects: pd.DataFrame | None = None,
        times: ArrayLike | None = None,
        infusion: float | None = None,
        uncertainty: bool = False,
        key: int = 0,
        *,
        dose_unit: str | None = None,
        time_unit: str = "h",
        per: str | None = None,
        output: str | int | None = None,
    ) -> SimulatedRegimen:
        r"""Curves and exposure of virtual subjects under a regimen that need not be that of the data.

        Each subject has covariates of `subjects`, parameters $\psi_i = h(C_i\beta + \eta_i)$ with $\eta_i\sim N(0, \Omega)$, and
        one occasion where parameters or covariates vary between them. Compartment models sum over the doses in closed form, at
        steady state too; any other curve that reads `dose` is summed over doses if it is linear in them. Differential equations
        are solved from time 0, or the first dose that is earlier, and their curves are not followed for ever (no `AUC_inf`).
        Areas are by quadrature between the doses, with a warning where its error exceeds 1e-4.

        Args:
            regimen: in words: "100 mg q12h x 10", "load 200 mg then 100 mg q12h x 10", "60 q24h x 7 over 2 h", "steady state 100
                q12h", "100 q12h x 10 + load 200", where "+" joins what begins at the same time and "then" what follows, at an
                interval; or a frame of dose records, with the columns TIME, AMT, II, ADDL, SS, RATE, DUR, CMT of an event table.
            n: subjects, drawn with replacement; None for each of `subjects` once.
            subjects: a row a subject, with the covariates that the model has; those of the fitted data by default, on their
                first occasion.
            times: of the curves; from the first dose to an interval after the last by default. One dose is followed until the
                last of them, or as long as the data go on.
            infusion: how long a dose lasts that does not say "over", in the unit of time of the data.
            uncertainty: whether each subject has its own draw of the estimates, by their standard errors and correlations.
            dose_unit: that of the data, which written units are turned into; without, they must all be that of the data.
            time_unit: that of the data: "min", "h", "d" or "wk".
            output: which of several outputs is followed.
            per: the column that amounts are multiplied by, such as the weight of doses in "5 mg/kg q24h x 3".

        Raises:
            ValueError, TypeError: words that cannot be read, malformed records, units that disagree, a model that no dose
                changes or that cannot be simulated from, covariates that `subjects` lacks.

        Reference: Mould and Upton, CPT Pharmacometrics Syst. Pharmacol. 2 (2013), e38 (simulation of regimens).

        >>> from margaux import NLME
        >>> from margaux.datasets import load_theophylline
        >>> from margaux.nlme import LogNormal, oral1cpt
        >>> model = NLME(structural=oral1cpt, individual={"ka": LogNormal(1), "V": LogNormal(20), "CL": LogNormal(2)},
        ...              n_iter=60, n_burn=40, verbose=False)
        >>> model = model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
        >>> steady = model.simulate_regimen("steady state 100 mg q12h", n=50)
        >>> bool(abs(steady.exposure["AUC"] * steady.parameters["CL"] / 100 - 1).max() < 1e-9)
        True
        """
        from . import course as of_doses
        from . import receiving, virtual

        fitted: Any = self
        check_fitted(fitted)
        if isinstance(key, bool) or not isinstance(key, int | np.integer) or key < 0:
            raise ValueError(f"key must be a whole number, 0 or more, got {key!r}")
        if n is not None and (isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1):
            raise ValueError(f"n is a number of subjects, at least 1, or None for each of subjects once, got {n!r}")
        takes = receiving.receiving(fitted, output)
        asked = None if times is None else _times(times)
        course = of_doses.course(fitted, takes, regimen, infusion, asked, dose_unit, time_unit)
        receiving.check_superposed(fitted, takes, course.regimen, course.count)
        if course.per_kg and per is None:
            raise ValueError(f'{regimen!r} is per kg; name the column of the weight, as per="WT"')
        if per is not None and np.any(course.doses["rate"] > 0):
            raise ValueError("RATE says how long a dose lasts by its amount, which per= changes; give DUR instead")
        known = virtual.sampled(virtual.covariates(fitted, takes, subjects, per), n, int(key))
        scale = np.ones(len(known)) if per is None else known[per].to_numpy(float)
        labels = fitted.data_.roles["time"], fitted.data_.roles["y"] if takes.output is None else takes.output[0]
        grid = _grid(course) if asked is None else asked
        params = virtual.parameters(fitted, len(known), uncertainty, int(key))
        psi, exposure, individual, observed = virtual.simulated(fitted, takes, course, known, scale, grid, params, int(key))
        return _gathered(regimen, course, grid, psi, exposure, individual, observed, known, uncertainty, labels)


def _times(times: ArrayLike) -> np.ndarray:
    out = np.asarray(times, float)
    if out.ndim != 1 or not len(out) or not np.all(np.isfinite(out)) or np.any(out < 0) or np.any(np.diff(out) <= 0):
        raise ValueError("times must be increasing numbers of at least 0, in one dimension")
    return out


def _grid(course: Any) -> np.ndarray:
    """Times of curves: evenly from the first dose on, and at each dose and just before it."""
    doses = course.clock[: course.count]
    even = np.linspace(course.begin, course.end, POINTS)
    before = doses[doses > course.begin] - 1e-6 * (course.end - course.begin)
    return np.unique(np.concatenate([even, doses, before]))


def _gathered(
    regimen: str | pd.DataFrame, course: Any, times: np.ndarray, psi: Any, exposure: Any, individual: np.ndarray,
    observed: np.ndarray, known: pd.DataFrame, uncertainty: bool, labels: tuple[str, str],
) -> SimulatedRegimen:  # fmt: skip
    from .simulated import SimulatedRegimen

    measures = pd.DataFrame({name: values for name, values in exposure._asdict().items() if values is not None})
    rough = measures.pop("error").to_numpy(float)
    numbers = np.hstack([measures.drop(columns="AUC_inf", errors="ignore").to_numpy(float), individual])
    bad = np.asarray(~np.isfinite(numbers).all(axis=1) | measures.isna().to_numpy().any(axis=1))
    parameters = pd.DataFrame(psi)
    if bad.any():
        first = parameters[bad].iloc[0]
        told = ", ".join(f"{name} = {value:.3g}" for name, value in first.items())
        raise ValueError(f"the curve is no number for {int(bad.sum())} of {len(bad)} simulated subjects (the first: {told})")
    if np.max(rough) > ROUGH:
        warnings.warn(
            f"areas under the curve are known to within {np.max(rough):.1g} of themselves only: the curve bends more than "
            "the quadrature between doses can follow",
            stacklevel=3,
        )
    return SimulatedRegimen(
        regimen, course.records, course.unit, (course.last, course.end), times, individual, observed,
        pd.concat([parameters, known], axis=1), measures, uncertainty, labels,
    )  # fmt: skip
