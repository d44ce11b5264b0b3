"""The command line: `margaux fit`, `demo`, `datasets`, `reproduce`, `launch`, `doctor` and `cache`."""

from __future__ import annotations

import os
import signal
import threading
from typing import Annotated, Any

import typer

from .commands.cache import app as cache
from .commands.demo import demo
from .commands.doctor import doctor
from .commands.launch import launch
from .commands.shipped import datasets, reproduce
from .families.registry import FAMILIES, Family
from .showing.command import fit_command
from .showing.errors import CODES, Boundary, Interrupted

app = typer.Typer(
    cls=Boundary,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Maximum marginal likelihood for latent-variable models.",
    epilog=CODES,
)
fits = typer.Typer(
    no_args_is_help=True,
    help="Fit a model to a table: `margaux fit FAMILY DATA --y COLUMN --out DIR`. Results are printed on stdout, progress and "
    "notes on stderr; --out writes tables, figures, fit.json and report.html.",
    epilog=CODES,
)
app.add_typer(fits, name="fit")
app.add_typer(cache, name="cache")


def add(family: Family) -> None:
    """The commands of a family, below `margaux fit`."""
    for command in family.commands():
        fits.command(command.__name__.replace("_", "-"), epilog=CODES)(fit_command(command))


for family in FAMILIES:
    add(family)
for command in (datasets, demo, doctor, reproduce):
    app.command()(command)
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(launch)


def _version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        typer.echo(f"margaux {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.", callback=_version, is_eager=True)] = (
        False
    ),
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every command."""
    context.obj.debug |= debug


def _interrupt(*_: Any) -> None:
    raise Interrupted


def main() -> None:
    """Entry point."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupt)
    app(prog_name="margaux")
