"""The records of an event table: a row's kind of event and what it says of a dose."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

#: kinds of events (EVID)
OBSERVATION, DOSE, OTHER, RESET, RESET_AND_DOSE = range(5)
#: what MDV can be: the last two are for records that only some steps of NONMEM leave out
UNOBSERVED = 0, 1, 100, 101
#: EVID from which it is RxODE's own code, 100 times the compartment and one; and from which there is a rate that begins or ends
CODED, RATED = 100, 10_000


@dataclasses.dataclass(frozen=True)
class Records:
    """Columns of an event table (N,), zero where there are none; `names` of roles are the user's."""

    event: np.ndarray
    unobserved: np.ndarray
    amount: np.ndarray
    rate: np.ndarray
    duration: np.ndarray
    interval: np.ndarray
    additional: np.ndarray
    steady: np.ndarray
    compartment: np.ndarray
    time: np.ndarray
    subject: np.ndarray
    row: np.ndarray
    names: Mapping[str, str]

    @property
    def dosed(self) -> np.ndarray:
        """Which are doses."""
        return np.isin(self.event, (DOSE, RESET_AND_DOSE))

    @property
    def observed(self) -> np.ndarray:
        """Which are observations."""
        return (self.event == OBSERVATION) & (self.unobserved == 0)

    @property
    def forever(self) -> np.ndarray:
        """Which are an infusion for ever, at steady state, that ends with the record."""
        return self.dosed & (self.steady == 1) & (self.amount == 0) & (self.rate > 0)

    def where(self, at: int) -> str:
        """How an error names a record."""
        return f"subject {self.subject[at]}, row {self.row[at]}"


def refuse_names_twice(frame: pd.DataFrame) -> None:
    """Raises: ValueError: two columns of one name."""
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise ValueError(f"two columns are called {twice[0]!r}; rename or drop one")


def empty(values: Any) -> np.ndarray:
    """Where a column has nothing, or a point."""
    return np.asarray(values.isna() | values.astype(str).str.strip().isin([".", ""]))


def numbers(frame: pd.DataFrame, column: str, id: str) -> np.ndarray:
    """A column of numbers, where "." and nothing are 0.

    Raises:
        ValueError: an entry that is no number, with subject and row.
    """
    values = frame[column]
    if not pd.api.types.is_numeric_dtype(values):
        read = pd.Series(pd.to_numeric(values.where(~empty(values), 0), errors="coerce"), index=values.index)
        bad = np.asarray(read.isna())
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise ValueError(f"{column} = {values.iloc[at]!r} is no number (subject {frame[id].iloc[at]}, row {frame.index[at]})")
        values = read
    out = values.fillna(0).to_numpy(float)
    if np.isinf(out).any():
        at = int(np.flatnonzero(np.isinf(out))[0])
        raise ValueError(f"{column} is infinite (subject {frame[id].iloc[at]}, row {frame.index[at]})")
    return out


def decoded(records: Records) -> Records:
    """With RxODE's codes as NONMEM's: EVID = 101 is a dose into compartment 1, 10101 a rate into it, that ends where AMT is
    negative.

    Raises:
        ValueError: a rate without an end or a beginning.
    """
    event = records.event
    coded = event >= CODED
    if not coded.any():
        return records
    whole = event.astype(int)
    compartment = np.where(coded, whole % RATED // CODED, records.compartment).astype(float)
    amount, rate, kind = records.amount.copy(), records.rate.copy(), np.where(coded, DOSE, event)
    running: dict[tuple, list[int]] = {}
    for at in np.flatnonzero(whole >= RATED):
        own = (records.subject[at], compartment[at], abs(records.amount[at]))
        if records.amount[at] > 0:
            running.setdefault(own, []).append(int(at))
        elif running.get(own):
            start = running[own].pop(0)
            rate[start] = records.amount[start]
            amount[start] = rate[start] * (records.time[at] - records.time[start])
            amount[at], rate[at], kind[at] = 0.0, 0.0, OTHER
        else:
            raise ValueError(
                f"{records.names['amount']} = {records.amount[at]:g} ends a rate that did not begin ({records.where(int(at))})"
            )
    for at in (int(start) for starts in running.values() for start in starts):
        raise ValueError(f"the rate {records.names['amount']} = {records.amount[at]:g} does not end ({records.where(at)})")
    return dataclasses.replace(records, event=kind, amount=amount, rate=rate, compartment=compartment)
