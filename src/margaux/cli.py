"""The command line: `margaux fit`, `demo`, `datasets`, `reproduce` and `doctor`."""

from __future__ import annotations

import os
import signal
import threading
from typing import Annotated, Any

import typer

from .commands import bayesian, missing
from .commands.demo import demo
from .commands.doctor import doctor
from .commands.empirical_bayes import empirical_bayes_logistic
from .commands.errors import CODES, Boundary, Interrupted
from .commands.fitting import fit_command
from .commands.nlme import nlme
from .commands.pln_pca import pln_pca
from .commands.shipped import datasets, reproduce
from .commands.sparse_inverse import sparse_inverse
from .commands.sparse_mixed import sparse_mixed_logistic

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
for family in (
    nlme, missing.missing_logistic, missing.missing_linear, missing.missing_glm, pln_pca, bayesian.bayesian_classifier,
    bayesian.bayesian_regressor, empirical_bayes_logistic, sparse_mixed_logistic, sparse_inverse,
):  # fmt: skip
    fits.command(family.__name__.replace("_", "-"), epilog=CODES)(fit_command(family))
for command in (datasets, demo, doctor, reproduce):
    app.command()(command)


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
