"""The estimates with their intervals, as a forest plot and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..engine.outcome import RESULTS
from .forest import chosen, forest
from .page import Part, Section, Table, Verdict, attempt, number, probability, section, words

if TYPE_CHECKING:
    from collections.abc import Callable


ID, TITLE = "estimates", "Estimates"
#: sentences of endings that are no reason for care
REGULAR = {one.value.rstrip(".") for one in (RESULTS.successful, RESULTS.stopped)}
#: columns of a summary that a page shows, in this order
COLUMNS = ("estimate", "se", "rse", "z", "t", "p", "ci_low", "ci_high")


def estimates(
    summary: Callable[..., pd.DataFrame],
    caption: str,
    rest: str,
    level: float = 0.95,
    against: float | None = 0.0,
    named: str = "parameter",
    plot: Callable[..., Any] | None = None,
    extra: list[Part] | None = None,
) -> Section:
    """The section: forest plot, table, and what the summary says is not to be trusted.

    Args:
        summary: a function that returns the frame of `summary(level)`. caption: of the table. rest: where all rows are found.
        plot: a function that returns the figure instead of the forest plot.
    """
    made: list[Part] = []
    found = attempt("The table of estimates", lambda: _parts(summary(), caption, rest, level, against, named, plot))
    made += found
    return section(ID, TITLE, made, extra or [])


def _parts(
    frame: pd.DataFrame, caption: str, rest: str, level: float, against: float | None, named: str, plot: Callable[..., Any] | None
) -> list[Part]:
    said = [one for one in frame.attrs.get("message", "").split("; ")[1:] if one.rstrip(".") not in REGULAR]
    about = [Verdict("careful", _sentence("; ".join(said)))] if any(said) else []
    figure = attempt("The forest plot", plot or (lambda: forest(frame, level, against)))
    return [*about, *figure, table(frame, caption, rest, level, named)]


def table(
    frame: pd.DataFrame, caption: str, rest: str, level: float = 0.95, named: str = "parameter", posterior: bool = False
) -> Table:
    """Estimates as a table of at most forty rows; columns without a number are left out.

    Estimates and ends of intervals have the places that three digits of their standard error have. `posterior`: they are
    means and standard deviations of a posterior.

    >>> row = {"estimate": 31.6376, "se": 1.48612, "z": 21.289, "p": 0.0, "ci_low": 28.7249, "ci_high": 34.5503}
    >>> table(pd.DataFrame([row], index=["V"]), "", "").rows
    (('V', '31.64', '1.49', '21.29', '< 0.001', '28.72', '34.55'),)
    """
    columns = [name for name in COLUMNS if name in frame and np.isfinite(frame[name].to_numpy(float)).any()]
    shown = chosen(frame)
    left = len(frame) - len(shown)
    if left and "z" in columns:
        caption += f" The {len(shown)} of {len(frame):,} with the largest |z|."
    heads = {
        "estimate": "estimate",
        "se": "standard error",
        "rse": "relative se, %",
        "ci_low": f"{100 * level:g}% from",
        "ci_high": "to",
    }
    heads |= {"estimate": "mean", "se": "standard deviation"} if posterior else {}
    rows = tuple((words(name), *(_cell(row, column) for column in columns)) for name, row in shown.iterrows())
    note = f"{left:,} more rows are not shown; {rest}." if left else ""
    header = (named, *(heads.get(column, column) for column in columns))
    return Table(caption, header, rows, (False, *(True for _ in columns)), note)


def _cell(row: Any, column: str) -> str:
    value = float(row[column])
    if column == "p":
        return probability(value)
    if not np.isfinite(value):
        return number(value)
    if column in ("z", "t", "rse"):
        return f"{value:.2f}" if column != "rse" else f"{value:.1f}"
    se = float(row.get("se", np.nan))
    if not np.isfinite(se) or se <= 0 or not 1e-6 < se < 1e6:
        return number(value)
    return f"{value:.{max(2 - int(np.floor(np.log10(se))), 0)}f}"


def without_errors(values: dict[str, Any]) -> pd.DataFrame:
    """A frame like a summary of estimates alone."""
    frame = pd.DataFrame({"estimate": pd.Series(values, dtype=float)})
    frame[["ci_low", "ci_high"]] = np.nan
    return frame


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return text[:1].upper() + text[1:] + "."
