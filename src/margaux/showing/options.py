"""Options that mean the same in every command, with what a shell completes them to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from .inputs import PARQUET, TABS


def files(*suffixes: str) -> Callable[[str], Iterator[str]]:
    """Completion to folders and to files with these suffixes."""

    def complete(incomplete: str) -> Iterator[str]:
        begun = Path(incomplete)
        folder = begun if incomplete.endswith("/") or not incomplete else begun.parent
        if not folder.is_dir():
            return
        for path in sorted(folder.iterdir()):
            shown = f"{path}/" if path.is_dir() else str(path)
            if shown.startswith(incomplete) and (path.is_dir() or set(path.suffixes) & set(suffixes)):
                yield shown

    return complete


def words(*known: str) -> Callable[[str], list[str]]:
    """Completion to one of these words."""
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


TABLES = (".csv", ".txt", *TABS, *PARQUET)

Data = Annotated[
    Path,
    typer.Argument(
        help="The table: CSV, TSV or Parquet, one row an observation.", show_default=False, autocompletion=files(*TABLES)
    ),
]
Y = Annotated[str, typer.Option("--y", help="Column of the outcome.", show_default=False)]
OptionalY = Annotated[str | None, typer.Option("--y", help="Column of the outcome; or in --formula.", show_default=False)]
Columns = Annotated[
    str | None, typer.Option(help="Inputs, separated by commas; by default all columns without another role.", show_default=False)
]
Formula = Annotated[str | None, typer.Option(help="Instead of --columns, such as '~ age + log(dose)'.", show_default=False)]
Iterations = Annotated[
    int | None, typer.Option("--n-iter", help="Iterations; by default those of the estimator.", min=1, show_default=False)
]
