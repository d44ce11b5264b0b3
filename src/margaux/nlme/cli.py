"""`margaux fit nlme`: a ready structural model on a CSV file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer


def fit_nlme(
    data: Annotated[Path, typer.Argument(help="A CSV file: one row an observation.")],
    model: Annotated[str, typer.Option(help="A structural model, such as oral1cpt; see margaux.nlme.CURVES.")],
    id: Annotated[str, typer.Option(help="Column of the subject.")],
    time: Annotated[str, typer.Option(help="Column of the time, or of the other independent variable.")],
    y: Annotated[str, typer.Option(help="Column of the outcome.")],
    dose: Annotated[str | None, typer.Option(help="Column of the dose.")] = None,
    error: Annotated[str, typer.Option(help="constant, proportional, combined, combined1, power or exponential.")] = "constant",
    omega: Annotated[str, typer.Option(help="diagonal or full.")] = "diagonal",
    covariate: Annotated[list[str] | None, typer.Option(help="Such as 'V=log(Weight/70)'; may be repeated.")] = None,
    start: Annotated[list[str] | None, typer.Option(help="Such as ka=1; may be repeated. Found where not given.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for tables and figures.")] = Path("nlme-output"),
) -> None:
    """Fit a nonlinear mixed-effects model: estimates, standard errors, individual parameters and all figures."""
    from .output import lines, write

    try:
        fitted = fitted_from(data, model, dict(id=id, time=time, y=y, dose=dose), error, omega, covariate, start, seed)
    except (ValueError, TypeError, FileNotFoundError) as problem:
        raise typer.BadParameter(str(problem)) from problem
    show(fitted, f"{model} on {data.name}")
    for line in [*lines(fitted), *write(fitted, out)]:
        typer.echo(line)


def fitted_from(
    data: Path,
    model: str,
    roles: dict[str, str | None],
    error: str,
    omega: str,
    covariate: list[str] | None,
    start: list[str] | None,
    seed: int,
) -> Any:
    """The fitted `NLME`; positive parameters of the curve are log-normal, the others normal."""
    from ..estimators.nlme import NLME
    from .individual import LogNormal, Normal
    from .structural import curve

    structural = curve(model)
    covariates = _pairs(covariate, structural.parameters, "--covariate")
    starts = {name: float(value) for name, value in _pairs(start, structural.parameters, "--start").items()}
    individual = {}
    for name in structural.parameters:
        kind = LogNormal if name in structural.positive else Normal
        individual[name] = kind(starts.get(name), covariates=covariates.get(name))
    estimator = NLME(structural=structural, individual=individual, omega=omega, error=error, random_state=seed)
    columns: dict[str, Any] = roles
    return estimator.fit(pd.read_csv(data), **columns)


def _pairs(given: list[str] | None, known: tuple[str, ...], option: str) -> dict[str, str]:
    out = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise ValueError(f"{option} {text!r} must look like NAME=VALUE with NAME one of {', '.join(known)}")
        out[name] = value
    return out


def show(fitted: Any, title: str, exact: dict[str, tuple[float, float]] | None = None) -> None:
    """Print the estimates, beside exact ones (value, standard error) where they are known."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title)
    for column in ("parameter", "estimate", "se", "rse %", "95% interval", *(("exact", "exact se") if exact else ())):
        table.add_column(column, justify="left" if column == "parameter" else "right")
    for name, row in fitted.summary().iterrows():
        interval = f"{row['ci_low']:.4g} to {row['ci_high']:.4g}"
        known = [f"{value:.4f}" for value in exact[str(name)]] if exact else []
        table.add_row(escape(str(name)), f"{row['estimate']:.4f}", f"{row['se']:.4f}", f"{row['rse']:.1f}", interval, *known)
    Console().print(table)
