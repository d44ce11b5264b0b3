"""What replicates returned: a list, and a table where they are numbers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class Replicates:
    """What the replicates of a function returned.

    Attributes:
        results: by index, None where there is none. errors: index to the text of what was raised, with its traceback. seed: of
            all. missing: the indices that an interruption left out.

    >>> import margaux as mx
    >>> out = mx.Replicates([{"mu": 1.0}, {"mu": 3.0}, None], {2: "ValueError: no"}, seed=0)
    >>> out, out.table["mu"].to_dict()
    (3 replicates, 1 failed: .results, .errors, .table, .summary(), {0: 1.0, 1: 3.0})
    """

    results: list[Any]
    errors: dict[int, str]
    seed: int
    missing: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.results)

    def __repr__(self) -> str:
        failed = f", {len(self.errors)} failed" if self.errors else ""
        missing = f", {len(self.missing)} not run" if self.missing else ""
        return f"{len(self)} replicates{failed}{missing}: .results, .errors, .table, .summary()"

    @property
    def done(self) -> list[int]:
        """The indices that have a result."""
        without = {*self.errors, *self.missing}
        return [index for index in range(len(self)) if index not in without]

    @property
    def table(self) -> pd.DataFrame:
        """A row a replicate that is done, a column a number or word of its result: of a dict (or a dict of dicts and arrays) by
        their names, of a Series by its index, of an array by place, and `value` of a lone number.

        Raises:
            TypeError: results of another kind.
        """
        import pandas as pd

        rows = {index: _row(self.results[index], "") for index in self.done}
        return pd.DataFrame(list(rows.values()), index=pd.Index(list(rows), name="replicate", dtype=int))

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """A row a column of numbers of the table: how many there are, their mean, their standard deviation (of a bootstrap, the
        standard error), and the quantiles between which the middle `level` of them lies (its percentile interval)."""
        import pandas as pd

        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level}")
        table = self.table.select_dtypes(["number", "bool"]).astype(float)
        lower, upper = table.quantile((1 - level) / 2), table.quantile((1 + level) / 2)
        return pd.DataFrame({"n": table.count(), "mean": table.mean(), "sd": table.std(), "lower": lower, "upper": upper})


class ReplicateError(RuntimeError):
    """Replicates failed; the others are in `.replicates`."""

    def __init__(self, replicates: Replicates, told: str) -> None:
        super().__init__(told)
        self.replicates = replicates

    def __reduce__(self) -> tuple:
        return type(self), (self.replicates, str(self))


def _row(result: Any, name: str) -> dict[str, Any]:
    """The scalars of a result by name."""
    if hasattr(result, "_asdict"):
        result = result._asdict()
    if isinstance(result, dict) or type(result).__name__ == "Series":
        inner = [_row(value, f"{name}.{key}" if name else str(key)) for key, value in result.items()]
        return {column: value for row in inner for column, value in row.items()}
    if isinstance(result, str | bytes | bool) or result is None:
        return {name or "value": result}
    try:
        held = np.asarray(result)
    except ValueError:  # lists of unequal lengths
        held = np.asarray(None)
    if held.dtype == object:
        raise TypeError(
            f"a table is of numbers, arrays, or dicts or Series of them, not of a {type(result).__name__}; see .results"
        )
    if held.ndim == 0:
        return {name or "value": held.item()}
    return {f"{name or 'value'}[{','.join(map(str, at))}]": held[at].item() for at in np.ndindex(held.shape)}
