"""Which occasion of a subject it is when, for parameters that change with it while a drug is still there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Int

from ...numerics.ladder import rung

#: of a subject, when occasions begin, in which part of its record, and their places among its own; of a dose, its occasion's
SINCE, IN_PART, PLACE = "when occasions begin", "their parts", "their places"
OF_DOSE = "place of the dose's occasion"


class Parameters(dict):
    """The parameters of a subject, by name: a number each, or a number an occasion (K,). Where a name is none of them, it is the
    column of the subject's rows that is called so, a constant."""

    def __init__(self, parameters: Iterable[tuple[str, Any]], rows: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._rows = rows

    def __missing__(self, name: str) -> Any:
        return self._rows[name][0]

    def like(self, values: Mapping[str, Any]) -> Parameters:
        """Other values, of the same subject."""
        return Parameters(values.items(), self._rows)

    @property
    def changes(self) -> bool:
        """Whether some are numbers an occasion."""
        return any(jnp.ndim(value) for value in self.values())

    def on(self, places: Any) -> Parameters:
        """Those of an occasion, or of several."""
        own = ((name, value[places] if jnp.ndim(value) else value) for name, value in self.items())
        return Parameters(own, self._rows)

    def of_doses(self, doses: Mapping[str, Any]) -> Parameters:
        """Those of the occasion that each dose is of, (E,)."""
        return self.on(doses[OF_DOSE].astype(int)) if self.changes else self

    def at(self, doses: Mapping[str, Any], part: Any, t: Any) -> Parameters:
        """Those that hold from a time on, in a part of the record."""
        return self.on(place_at(doses, part, t)) if self.changes else self


def place_at(doses: Mapping[str, Any], part: Any, t: Any) -> Int[Array, ""]:
    """The place of the occasion that began last."""
    begun = (doses[SINCE] <= t) & (doses[IN_PART] == part)
    last = jnp.argmax(jnp.where(begun, 1 + jnp.arange(len(begun)), 0))
    return doses[PLACE][last].astype(int)


@dataclasses.dataclass(frozen=True)
class Timetable:
    """The records of an event table, each with its occasion.

    An occasion begins with its first record. A dose is of the occasion of its record, an additional one of that in which it is
    given.

    Attributes:
        records: a row a record in whose part of the table something is observed, in order, under the number of its row:
            `subject`, `part` and `place` of its occasion as numbers, `occasion`, `time`, `observed`. doses: of each dose (n, E),
            the number of the row of its record, or -1.
    """

    records: pd.DataFrame
    doses: np.ndarray

    @classmethod
    def of(
        cls, whole: pd.DataFrame, roles: Mapping[str, str], owner: np.ndarray, part: np.ndarray, observed: Any, doses: np.ndarray
    ) -> Timetable:
        """Of the rows of a table. Args: owner: number of the subject, NaN where it has none, and part: of each. observed: the
        number of its part among its subject's of each observation, under the number of its row."""
        time, occasion = whole[roles["time"]].to_numpy(float), whole[roles["occ"]].to_numpy()
        columns = {"subject": owner, "given": part, "time": time, "occasion": occasion}
        table: Any = pd.DataFrame(columns, whole.index).assign(observed=whole.index.isin(observed.index))
        own = pd.MultiIndex.from_frame(table[["subject", "given"]])
        numbers = pd.Series(observed.to_numpy(float), index=own[table.index.get_indexer(observed.index)])
        first: Any = numbers[~numbers.index.duplicated()]
        table = table.assign(part=first.reindex(own).to_numpy(float)).drop(columns="given")
        table = table[np.isfinite(table["subject"]) & np.isfinite(table["part"])].astype({"subject": int, "part": int})
        table = table.sort_values("subject", kind="stable")
        firsts = table[~table.duplicated(["subject", "occasion"])]
        each = pd.MultiIndex.from_frame(firsts[["subject", "occasion"]])
        place: Any = pd.Series(firsts.groupby("subject").cumcount().to_numpy(), each)
        own = pd.MultiIndex.from_frame(table[["subject", "occasion"]])
        return cls(table.assign(place=place.reindex(own).to_numpy()), doses)

    @property
    def occasions(self) -> pd.DataFrame:
        """See `LongData.occasions`."""
        seen: Any = self.records.sort_values(["subject", "place", "observed"], ascending=[True, True, False], kind="stable")
        return seen[~seen.duplicated(["subject", "place"])][["subject", "occasion", "place"]]

    def units(self, doses: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What `Parameters` reads of the doses of subjects (n, E)."""
        known: Any = self.records
        before = known.groupby("subject")[["part", "place"]].shift()
        first = known[(known[["part", "place"]] != before).any(axis=1).to_numpy()]
        order = first.groupby("subject").cumcount().to_numpy()
        n, width = len(self.doses), rung(int(order.max(initial=0)) + 1)
        since, part, place = np.zeros((n, width)), np.full((n, width), -1.0), np.zeros((n, width))
        subject = first["subject"].to_numpy(int)
        for out, name in ((since, "time"), (part, "part"), (place, "place")):
            out[subject, order] = first[name].to_numpy(float)
        begun = (since[:, None] <= doses["time"][..., None]) & (part[:, None] == doses["part"][..., None])
        in_time = np.take_along_axis(place, np.argmax(np.where(begun, 1 + np.arange(width), 0), axis=-1), axis=1)
        own = known["place"].reindex(self.doses.ravel()).fillna(0.0).to_numpy(float).reshape(self.doses.shape)
        return {SINCE: since, IN_PART: part, PLACE: place, OF_DOSE: np.where(self.doses >= 0, own, in_time)}
