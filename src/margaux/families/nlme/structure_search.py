"""Structural models and residual errors of a table side by side, and the one that a criterion chooses."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...engine.outcome import FitError
from .error import ResidualError
from .individual import Individual, LogNormal, Normal
from .structural import CURVES, Curve, curve

if TYPE_CHECKING:
    from .estimator import NLME

#: candidates by route of administration, simplest first
BY_ROUTE: dict[str, tuple[str, ...]] = {
    "oral": ("oral1cpt", "oral1cpt_lag", "oral2cpt", "oral2cpt_lag"),
    "bolus": ("bolus1cpt", "bolus2cpt", "bolus3cpt"),
    "infusion": ("infusion1cpt", "infusion2cpt", "infusion3cpt"),
}
CRITERIA = ("bicc", "bic", "aicc", "aic")


@dataclasses.dataclass(frozen=True)
class StructureSearch:
    """Fits of several models to one table.

    Attributes:
        table: a row a fit, best first: structural model, error, parameters, log-likelihood with its Monte Carlo error, criteria,
            the certificate's verdict, what the fit says. fits: the fitted `NLME`, by "structural model, error". best: the first
            of the table. criterion: that it is best by.
    """

    table: pd.DataFrame
    fits: dict[str, NLME]
    best: NLME
    criterion: str

    def __repr__(self) -> str:
        kept = self.table[["parameters", "loglik", self.criterion, "verdict"]]
        return f"StructureSearch(by {self.criterion})\n{kept.to_string(float_format='%.2f')}"


def choose_structure(
    data: pd.DataFrame,
    structures: str | Sequence[str | Curve],
    *,
    error: str | ResidualError | Sequence[str | ResidualError] = ("combined", "proportional", "constant"),
    individual: Mapping[str, Individual] | None = None,
    criterion: str = "bicc",
    settings: Mapping[str, Any] | None = None,
    verbose: bool = True,
    **columns: Any,
) -> StructureSearch:
    r"""Fit structural models to one table, all with the first of the errors, then the best of them with the other errors.

    The best has the lowest criterion among fits that are not failed: by default
    $\mathrm{BIC}_c=-2\log L+\dim(\beta_R,\Omega)\log N+\dim(\beta_F,\text{error})\log n_{tot}$ (Delattre, Lavielle and Poursat
    2014), whose first count is of what is learned from N subjects and whose second of what is from all observations. Individual
    parameters have log-normal distributions where they are positive by nature, else normal ones, and starting values from the
    data, unless `individual` says otherwise. Nothing that was fitted is lost where a candidate fails: its row says why.

    Args:
        structures: ready curves or their names, or a route, "oral", "bolus" or "infusion", for its usual ones.
        individual: distributions of parameters, by name; each model takes those that it has.
        criterion: "bicc", "bic", "aicc" or "aic". settings: more arguments of `NLME`. columns: of its `fit`.

    Raises:
        ValueError: unknown names, fewer than two models, distributions of what no model has, or no candidate could be fitted.

    >>> from margaux.datasets import load_theophylline
    >>> found = choose_structure(
    ...     load_theophylline(), ["oral1cpt", "oral1cpt_lag"], error="constant", settings={"n_starts": 1}, verbose=False,
    ...     id="Id", time="Time", y="Concentration", dose="Dose",
    ... )
    >>> list(found.table.index), found.best.structural.name
    (['oral1cpt_lag, constant', 'oral1cpt, constant'], 'oral1cpt_lag')
    """
    from .estimator import NLME

    candidates = _candidates(structures)
    errors = [error] if isinstance(error, str | ResidualError) else list(error)
    if not errors or len(candidates) * len(errors) < 2:
        count = f"{len(candidates)} structures and {len(errors)} errors"
        raise ValueError(f"a choice is among two models at least; there are {count}")
    if criterion not in CRITERIA:
        raise ValueError(f"criterion is one of {', '.join(CRITERIA)}, not {criterion!r}")
    given = dict(individual or {})
    known = {name for one in candidates for name in one.parameters}
    if unknown := sorted(set(given) - known):
        raise ValueError(f"individual names {', '.join(unknown)}, which no candidate has; they have {', '.join(sorted(known))}")
    more: dict[str, Any] = {"verbose": False} | dict(settings or {})
    fits: dict[str, NLME] = {}
    rows: dict[str, dict[str, Any]] = {}

    def tried(one: Curve, residual: str | ResidualError) -> None:
        label, began = f"{one.name}, {_named(residual)}", time.perf_counter()
        own = {name: given.get(name) or (LogNormal() if name in one.positive else Normal()) for name in one.parameters}
        model = NLME(structural=one, individual=own, error=residual, **more)
        try:
            fits[label] = model.fit(data, **columns)
            rows[label] = _row(fits[label], one, residual)
        except (ValueError, FitError) as problem:
            fits.pop(label, None)
            rows[label] = {"structure": one.name, "error": _named(residual), "verdict": "failed", "message": str(problem)}
        if verbose:
            value, took = rows[label].get(criterion, np.nan), time.perf_counter() - began
            print(f"{label}: {criterion} {value:.2f}, {rows[label]['verdict']} ({took:.1f} s)", file=sys.stderr)

    for one in candidates:
        tried(one, errors[0])
    best = _best(rows, fits, criterion)
    chosen = next(one for one in candidates if one.name == rows[best]["structure"])
    for residual in errors[1:]:
        tried(chosen, residual)
    best = _best(rows, fits, criterion)
    table = pd.DataFrame.from_dict(rows, orient="index").sort_values(criterion, na_position="last")
    table = table.loc[[best, *(label for label in table.index if label != best)]]
    return StructureSearch(table, fits, fits[best], criterion)


def _candidates(structures: str | Sequence[str | Curve]) -> list[Curve]:
    if isinstance(structures, str):
        if structures not in BY_ROUTE:
            raise ValueError(
                f"structures is a route, {', '.join(BY_ROUTE)}, or a list of structural models, not {structures!r}; "
                f"ready models are {', '.join(CURVES)}"
            )
        structures = BY_ROUTE[structures]
    found = [curve(one) if isinstance(one, str) else one for one in structures]
    for one in found:
        if not isinstance(one, Curve):
            raise TypeError(f"a structural model of a search is a name or a Curve, which knows its parameters, not {one!r}")
    names = [one.name for one in found]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"structures has {', '.join(twice)} twice")
    return found


def _named(error: str | ResidualError) -> str:
    return error if isinstance(error, str) else repr(error)


def _row(fitted: NLME, one: Curve, error: str | ResidualError) -> dict[str, Any]:
    return {
        "structure": one.name,
        "error": _named(error),
        "parameters": fitted.n_params_,
        "loglik": float(fitted.loglik_),
        "loglik_se": fitted.loglik_.se,
        **{name: getattr(fitted, f"{name}_") for name in CRITERIA},
        "verdict": fitted.certificate_.level,
        "message": fitted.message_,
    }


def _best(rows: Mapping[str, Mapping[str, Any]], fits: Mapping[str, NLME], criterion: str) -> str:
    """Raises: ValueError: none could be fitted."""
    if not fits:
        why = "; ".join(f"{label}: {row['message']}" for label, row in rows.items())
        raise ValueError(f"no candidate could be fitted: {why}")
    sound = [label for label in fits if rows[label]["verdict"] != "failed"] or list(fits)
    return min(sound, key=lambda label: np.nan_to_num(rows[label][criterion], nan=np.inf))
