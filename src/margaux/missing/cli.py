"""`margaux fit missing-logistic`: logistic regression on a CSV file with holes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer


def fit_missing_logistic(
    data: Annotated[Path, typer.Argument(help="A CSV file: one row a unit, empty cells where an entry is missing.")],
    y: Annotated[str, typer.Option(help="Column of the outcome, of two classes.")],
    columns: Annotated[str | None, typer.Option(help="Covariates, separated by commas; all other columns by default.")] = None,
    select: Annotated[str | None, typer.Option(help="backward, forward or exhaustive: drop columns by BIC.")] = None,
    draws: Annotated[int, typer.Option(help="Completed tables to write.")] = 0,
    seed: Annotated[int, typer.Option(help="Random seed of the completed tables.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for tables and figures.")] = Path("missing-output"),
) -> None:
    """Fit a logistic regression with missing covariates: coefficients, standard errors, likelihood, tables and figures."""
    from ..estimators.missing import MissingLogistic

    try:
        frame = pd.read_csv(data)
        if y not in frame.columns:
            raise ValueError(f"--y {y!r} is no column of {data.name}; they are {', '.join(frame.columns)}")
        names = [name.strip() for name in columns.split(",")] if columns else [name for name in frame.columns if name != y]
        unknown = [name for name in names if name not in frame.columns]
        if unknown:
            raise ValueError(f"--columns names {unknown[0]!r}, which is no column of {data.name}")
        fitted: Any = MissingLogistic().fit(frame[names], frame[y])
        if select:
            fitted = fitted.select(select)
    except (ValueError, TypeError, FileNotFoundError) as problem:
        raise typer.BadParameter(str(problem)) from problem
    show(fitted, f"logistic regression of {y} on {data.name}")
    for line in [*lines(fitted), *write(fitted, out, draws, seed)]:
        typer.echo(line)


def lines(fitted: Any) -> list[str]:
    """The fit in a few sentences."""
    x = fitted.table_.x
    missing = pd.isna(x)
    return [
        f"{len(x)} rows, {int((~missing.any(axis=1)).sum())} complete; {100 * missing.mean():.1f}% of the entries missing",
        f"log-likelihood {float(fitted.loglik_):.3f} of the outcome and the observed covariates, "
        f"{fitted.loglik_outcome_:.3f} of the outcome given them",
        f"AIC {fitted.aic_:.2f}, BIC {fitted.bic_:.2f}; {fitted.message_}",
    ]


def write(fitted: Any, folder: Path, draws: int = 0, seed: int = 0) -> Iterator[str]:
    """`coefficients.csv`, `covariates.csv` (mean and covariance), the models tried, completed tables, and two figures."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name, own in zip(fitted.table_.names, fitted.table_.gaussian, strict=True) if own]
    mean = fitted.mean_ if fitted.mean_.ndim == 1 else fitted.mean_[0]
    tables = {
        "coefficients": fitted.summary(),
        "covariates": pd.DataFrame(fitted.covariance_, index=names, columns=names).assign(mean=mean),
    }
    if hasattr(fitted, "selection_"):
        tables["selection"] = fitted.selection_
    for j, table in enumerate(fitted.impute(draws, seed) if draws else []):
        tables[f"completed_{j + 1}"] = pd.DataFrame(table, columns=fitted.table_.names)
    for name, table in tables.items():
        path = folder / f"{name}.csv"
        table.to_csv(path)
        yield f"saved {path}"
    for name in ("coefficients", "missingness"):
        path = folder / f"{name}.png"
        getattr(fitted.plot, name)().savefig(path, dpi=120)
        yield f"saved {path}"


def show(fitted: Any, title: str, beside: dict[str, Any] | None = None) -> None:
    """Print the coefficients with z, p and interval, or with other values of theirs by the name of a column."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title)
    columns = ("estimate", "se", *(beside or ("z", "p", "95% interval")))
    for column in ("coefficient", *columns):
        table.add_column(column, justify="left" if column == "coefficient" else "right")
    for name, row in fitted.summary().iterrows():
        rest = [f"{row['z']:.2f}", f"{row['p']:.2g}", f"{row['ci_low']:.4g} to {row['ci_high']:.4g}"]
        if beside:
            rest = [f"{values[name]:.4f}" for values in beside.values()]
        table.add_row(escape(str(name)), f"{row['estimate']:.4f}", f"{row['se']:.4f}", *rest)
    Console().print(table)
