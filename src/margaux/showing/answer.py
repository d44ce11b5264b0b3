"""What a command answers: tables and sentences for people, one JSON document for programs, files for both."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import pandas as pd


#: columns of a summary that are shown, in this order, and how
SHOWN = {
    "estimate": "{:.4f}",
    "se": "{:.4f}",
    "rse": "{:.1f}",
    "z": "{:.2f}",
    "p": "{:.2g}",
}
HEADINGS = {"rse": "rse %"}


@dataclasses.dataclass
class Answer:
    """A fitted model and what is to be said of it.

    Attributes:
        title: of what is printed. estimates: `summary()`, one named row a parameter, or None. lines: sentences.
        tables, figures, others: what `--out` writes, by name, made only then; `others` are functions of a path.
        facts: what the JSON document has beside what every fit has. shown: prints, in place of the estimates.
        likelihood: whether there is one. failed: the estimate is not to be used. level: of the intervals of the estimates.
    """

    fitted: Any
    title: str
    estimates: Any = None
    lines: list[str] = dataclasses.field(default_factory=list)
    tables: dict[str, Callable[[], Any]] = dataclasses.field(default_factory=dict)
    figures: dict[str, Callable[[], Any]] = dataclasses.field(default_factory=dict)
    others: dict[str, Callable[[Path], Any]] = dataclasses.field(default_factory=dict)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    shown: Callable[[], None] | None = None
    likelihood: bool = True
    failed: bool = False
    level: float = 0.95

    def document(self) -> dict[str, Any]:
        """What every fit has in JSON: estimates by name, likelihood, how it ended."""
        one = self.fitted
        loglik = one.loglik_ if self.likelihood else None
        return {
            "estimates": {} if self.estimates is None else nested(self.estimates),
            "loglik": None if loglik is None else float(loglik),
            "loglik_se": getattr(loglik, "se", None),
            "aic": one.aic_ if self.likelihood else None,
            "bic": one.bic_ if self.likelihood else None,
            "converged": bool(one.converged_),
            "failed": self.failed,
            "message": ended(one),
            "n_iter": getattr(one, "n_iter_", getattr(one, "n_sweeps_", None)),
        } | self.facts

    def print(self) -> None:
        """The estimates, or what is shown in their place, and the sentences, on stdout."""
        if self.shown is not None:
            self.shown()
        elif self.estimates is not None:
            show_estimates(self.estimates, self.title, level=self.level)
        for line in self.lines:
            typer.echo(line)


def ended(fitted: Any) -> str:
    """The word of a fit's certificate, and its sentence."""
    certificate = getattr(fitted, "certificate_", None)
    if certificate is not None:
        return str(certificate)
    message = getattr(fitted, "message_", None)
    if message is not None:
        return str(message)
    return "The fit ended as asked." if fitted.converged_ else "The fit ended before it had converged."


def nested(frame: pd.DataFrame) -> dict[str, Any]:
    """The rows of a frame by name; rows with several names nest.

    >>> import pandas as pd
    >>> nested(pd.DataFrame({"se": [0.1]}, index=pd.MultiIndex.from_tuples([("moisture", "oak")])))
    {'moisture': {'oak': {'se': 0.1}}}
    """
    out: dict[str, Any] = {}
    for name, row in frame.iterrows():
        *above, last = name if isinstance(name, tuple) else (name,)
        at = out
        for part in above:
            at = at.setdefault(str(part), {})
        at[str(last)] = {str(column): value for column, value in row.items()}
    return out


def console() -> Any:
    """stdout; not cut to the width of a terminal where there is none."""
    from rich.console import Console

    out = Console()
    return out if out.is_terminal else Console(width=1000)


def show_estimates(frame: Any, title: str, beside: dict[str, Any] | None = None, level: float = 0.95) -> None:
    """Print a summary: those of its columns that are known and not empty, and more columns of values by name."""
    columns = [name for name in SHOWN if name in frame.columns and frame[name].notna().any()]
    if "rse" in columns:  # parameters of which no test is of interest
        columns = [name for name in columns if name not in ("z", "p")]
    interval = "ci_low" in frame.columns and bool(frame["ci_low"].notna().any())
    heads = [HEADINGS.get(name, name) for name in columns] + ([f"{100 * level:g}% interval"] if interval else [])
    table = _table(title, "parameter", [*heads, *(beside or {})])
    from rich.markup import escape

    for name, row in frame.iterrows():
        cells = [_cell(SHOWN[column], row[column]) for column in columns]
        cells += [f"{row['ci_low']:.4g} to {row['ci_high']:.4g}" if _known(row["ci_low"]) else ""] if interval else []
        cells += [_cell("{:.4f}", values[str(name)]) for values in (beside or {}).values()]
        table.add_row(escape(": ".join(map(str, name)) if isinstance(name, tuple) else str(name)), *cells)
    console().print(table)


def show_frame(frame: pd.DataFrame, title: str, first: str, names: dict[str, str] | None = None) -> None:
    """Print a frame of numbers; those that are unknown are left empty."""
    from rich.markup import escape

    table = _table(title, first, list(map(str, frame.columns)))
    for name, row in frame.iterrows():
        table.add_row(escape((names or {}).get(str(name), str(name))), *(_cell("{:.4f}", value) for value in row))
    console().print(table)


def show_facts(rows: Iterator[tuple[str, str]], title: str) -> None:
    """Print names and values."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(escape(name), escape(value))
    console().print(table)


def _table(title: str, first: str, columns: list[str]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title))
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(escape(column), justify="right", no_wrap=True)
    return table


def _known(value: Any) -> bool:
    return isinstance(value, str) or not math.isnan(value)


def _cell(form: str, value: object) -> str:
    return value if isinstance(value, str) else form.format(value) if _known(value) else ""


def to_json(document: dict[str, Any]) -> str:
    """JSON of a document; what is not finite is null.

    >>> import numpy as np
    >>> print(to_json({"se": np.float64("nan"), "n": np.int64(3)}))
    {
      "se": null,
      "n": 3
    }
    """
    return json.dumps(_plain(document), indent=2, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "tolist"):  # arrays and numbers of NumPy
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)


def versions() -> dict[str, str]:
    """Of what a result depends on."""
    return {"margaux": importlib.metadata.version("margaux"), "python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy", "scipy", "equinox")
    }
