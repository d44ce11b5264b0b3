"""`margaux datasets` and `margaux reproduce`: data and published experiments that ship with margaux."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from ..reproduce import EXPERIMENTS
from ..showing.errors import UserError
from ..showing.files import check_folder
from ..showing.inputs import among
from ..showing.options import files

#: data sets by name, with the function of `margaux.datasets` that loads them
LOADERS = {"wisconsin": "load_wisconsin", "theophylline": "load_theophylline"}


def data_sets(incomplete: str) -> list[str]:
    """Completion to the names of data sets."""
    return [name for name in LOADERS if name.startswith(incomplete)]


def experiments(incomplete: str) -> list[tuple[str, str]]:
    """Completion to the names of experiments, with what they repeat."""
    return [(name, one.repeats) for name, one in EXPERIMENTS.items() if name.startswith(incomplete)]


def datasets(
    name: Annotated[
        str | None, typer.Argument(help="One of them, to be exported.", show_default=False, autocompletion=data_sets)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A CSV file to write it to; stdout by default.", show_default=False, autocompletion=files(".csv")),
    ] = None,
) -> None:
    """List the data sets that ship with margaux, or export one as CSV."""
    from .. import datasets as shipped

    if name is None:
        if out is not None:
            raise UserError(f"--out needs the name of a data set: {', '.join(LOADERS)}")
        typer.echo(shipped.list_datasets().to_string())
        return
    among(name, list(LOADERS), "NAME")
    frame = getattr(shipped, LOADERS[name])()
    if out is None:
        frame.to_csv(sys.stdout, index=False)
        return
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; name a file, such as {out / f'{name}.csv'}")
    check_folder(out.parent)
    out.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(out, index=False)
    typer.echo(f"saved {out}", err=True)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="One of `margaux reproduce --list`.", show_default=False, autocompletion=experiments),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="The paper's own sizes, instead of a few minutes.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("reproduce-output"),
    listed: Annotated[bool, typer.Option("--list", help="List the experiments and leave.")] = False,
) -> None:
    """Repeat a published experiment: its figures as PNG, and a table paper / ours / why they differ."""
    if listed:
        return listing()
    if name is None:
        raise UserError(f"name an experiment: {', '.join(EXPERIMENTS)}; `margaux reproduce --list` says what they are")
    among(name, list(EXPERIMENTS), "NAME")
    check_folder(out)
    import_module(f"margaux.reproduce.{name}").main(out, full)
    typer.echo(f"figures are in {out}", err=True)


def listing() -> None:
    """Print the experiments: name, paper, what is repeated, and how much of it."""
    from rich.table import Table

    from ..showing.answer import console

    table = Table(title="margaux reproduce NAME [--full]")
    table.add_column("name", no_wrap=True)
    for column in ("paper", "what it repeats", "by default, in minutes", "with --full, in an hour or more"):
        table.add_column(column)
    for name, one in EXPERIMENTS.items():
        table.add_row(name, one.paper, one.repeats, one.default, one.full)
    console().print(table)
