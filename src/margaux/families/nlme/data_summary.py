"""What a model was fitted to, in numbers: subjects, observations, doses, times and covariates."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from .censoring import CENSORED
from .words import units

if TYPE_CHECKING:
    from .estimator import NLME

#: levels of a covariate up to which each is counted, and covariates that are told
LEVELS, MOST = 10, 40


def summary(fitted: NLME) -> pd.DataFrame:
    """See `NLME.data_summary`."""
    data, known = fitted.data_, units(fitted)
    rows: list[tuple[str, str, str]] = [("subjects", "", f"{fitted.n_subjects_:,}")]
    each = np.bincount(data.codes, minlength=len(data.labels))
    rows += [("observations", "", f"{len(data.frame):,}"), ("observations", "a subject", _spread(each))]
    if data.output is not None:
        labels = fitted.model_.outcome.outputs
        rows += [("observations", f"of {name}", f"{np.sum(data.output == k):,}") for k, name in enumerate(labels)]
    if data.censored:
        beyond = int(np.sum(data.flat(data.units["rows"][CENSORED]) != 0))
        rows.append(("observations", "beyond a limit", f"{beyond:,} ({100 * beyond / len(data.frame):.1f}%)"))
    if "occ" in data.roles:
        count = data.occasions.groupby("subject").size().to_numpy()
        rows.append(("occasions", "a subject", _spread(count)))
    for role in ("y", "time"):
        column = data.roles.get(role)
        if column is not None and is_numeric_dtype(data.frame[column]):
            rows.append((str(column), known.get(str(column), ""), _spread(data.frame[column])))
    rows += _doses(fitted, known)
    subjects: Any = data.subjects
    for name in covariates(fitted)[:MOST]:
        rows += _covariate(name, subjects[name], known.get(name, ""))
    return pd.DataFrame(rows, columns=["what", "of", "value"]).set_index(["what", "of"])


def covariates(fitted: NLME) -> list[str]:
    """Columns with one value a subject that differ between subjects, and those that the model reads."""
    data = fitted.data_
    special = {*data.roles.values(), *(data.columns or {}).values()}
    groups: Any = data.frame.groupby(data.roles["id"], sort=False)
    read = {str(one.covariates) for _, one in fitted.model_.individual if one.covariates}
    found = []
    for name in map(str, data.frame.columns):
        if name in special or name not in data.subjects:
            continue
        steady = bool(groups[name].nunique(dropna=False).max() <= 1) and len(data.subjects[name].unique()) > 1
        if steady or any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", formula) for formula in read):
            found.append(name)
    return found


def _doses(fitted: NLME, known: dict[str, str]) -> list[tuple[str, str, str]]:
    data = fitted.data_
    if (column := data.roles.get("dose")) is not None:
        return [(str(column), known.get(str(column), ""), _spread(data.subjects[column]))]
    amount = (data.columns or {}).get("amount")
    records: Any = data.records
    if records is None or amount is None:
        return []
    given: Any = pd.to_numeric(records[amount], errors="coerce")
    given = given[given > 0]
    if not len(given):
        return [("records of doses", "", "0")]
    each = records.loc[given.index].groupby(data.roles["id"]).size().reindex(data.labels, fill_value=0)
    return [
        ("records of doses", "", f"{len(given):,}"),
        ("records of doses", "a subject", _spread(each)),
        (amount, known.get(amount, ""), _spread(given)),
    ]


def _covariate(name: str, values: pd.Series, unit: str) -> list[tuple[str, str, str]]:
    lacking = int(values.isna().sum())
    if is_numeric_dtype(values) and len(values.unique()) > 2:
        text = _spread(values.dropna()) + (f", {lacking:,} missing" if lacking else "")
        return [(name, unit, text)]
    counts: Any = values.value_counts(dropna=False)
    shown = [(name, f"= {level}", f"{count:,} ({100 * count / len(values):.0f}%)") for level, count in counts[:LEVELS].items()]
    more = len(counts) - LEVELS
    return [*shown, (name, "others", f"{counts[LEVELS:].sum():,}, of {more:,} levels")] if more > 0 else shown


def _spread(values: Any) -> str:
    """Median and range."""
    x = np.asarray(values, float)
    low, middle, high = np.min(x), np.median(x), np.max(x)
    return f"{low:.4g}" if low == high else f"median {middle:.4g}, {low:.4g} to {high:.4g}"
