"""`margaux fit missing-logistic`, `missing-linear` and `missing-glm`: regression on a table with holes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from .answer import Answer
from .fitting import Run
from .options import Columns, Data, Formula, Iterations, OptionalY, words
from .tables import among, outcome_name, read_table, regression_of

METHODS = ("exact", "saem", "mcem", "misso")
LIKELIHOODS = ("logistic", "probit", "gaussian", "poisson", "multinomial")
SEARCHES = ("backward", "forward", "exhaustive")

Method = Annotated[str, typer.Option(help=f"{', '.join(METHODS[:-1])} or {METHODS[-1]}.", autocompletion=words(*METHODS))]
Select = Annotated[
    str | None,
    typer.Option(
        help="backward, forward or exhaustive: drop columns by BIC.", show_default=False, autocompletion=words(*SEARCHES)
    ),
]
Draws = Annotated[int, typer.Option(help="Completed tables to write to --out.", min=0)]


def missing_logistic(
    data: Data, run: Run, y: OptionalY = None, columns: Columns = None, formula: Formula = None, method: Method = "exact",
    select: Select = None, draws: Draws = 0, n_iter: Iterations = None,
) -> Answer:  # fmt: skip
    """Fit a logistic regression with missing covariates (empty cells)."""
    return _fit("MissingLogistic", {}, "logistic regression", data, y, columns, formula, method, select, draws, n_iter, run)


def missing_linear(
    data: Data, run: Run, y: OptionalY = None, columns: Columns = None, formula: Formula = None, method: Method = "exact",
    select: Select = None, draws: Draws = 0, n_iter: Iterations = None,
) -> Answer:  # fmt: skip
    """Fit a linear regression with missing covariates (empty cells)."""
    return _fit("MissingLinear", {}, "linear regression", data, y, columns, formula, method, select, draws, n_iter, run)


def missing_glm(
    data: Data, run: Run,
    likelihood: Annotated[
        str, typer.Option("--likelihood", "--family", help="logistic, probit, gaussian, poisson or multinomial.",
                          autocompletion=words(*LIKELIHOODS)),
    ] = "logistic",
    y: OptionalY = None, columns: Columns = None, formula: Formula = None, method: Method = "exact", select: Select = None,
    draws: Draws = 0, n_iter: Iterations = None,
) -> Answer:  # fmt: skip
    """Fit a generalised linear model with missing covariates (empty cells)."""
    family = among(likelihood, LIKELIHOODS, "--likelihood")
    title = f"{family} regression"
    return _fit("MissingGLM", {"family": family}, title, data, y, columns, formula, method, select, draws, n_iter, run)


def _fit(
    kind: str, settings: dict[str, Any], title: str, data: Path, y: str | None, columns: str | None, formula: str | None,
    method: str, select: str | None, draws: int, n_iter: int | None, run: Run,
) -> Answer:  # fmt: skip
    from ..estimators import missing as estimators

    frame = read_table(data)
    among(method, METHODS, "--method")
    among(select, SEARCHES, "--select")
    regression = regression_of(frame, y, columns, formula, data)
    more = {} if n_iter is None else {"n_iter": n_iter}
    with run.fitting():
        fitted: Any = getattr(estimators, kind)(method=method, **settings, **more, **run.settings).fit(*regression)
        if select:
            fitted = fitted.select(select)
    return answer(fitted, f"{title} of {outcome_name(y, formula)} on {data.name}", run.level, draws, run.seed)


def answer(fitted: Any, title: str, level: float = 0.95, draws: int = 0, seed: int = 0) -> Answer:
    """What is said and written of a fitted regression with missing covariates."""
    import pandas as pd

    x = fitted.table_.x
    missing = pd.isna(x)
    complete = int((~missing.any(axis=1)).sum())
    tables: dict[str, Callable[[], Any]] = {"covariates": lambda: covariates(fitted)}
    if hasattr(fitted, "selection_"):
        tables["selection"] = lambda: fitted.selection_
    for j, table in enumerate(fitted.impute(draws, seed) if draws else []):
        tables[f"completed_{j + 1}"] = lambda table=table: pd.DataFrame(table, columns=fitted.table_.names)
    says = [
        f"{len(x)} rows, {complete} complete; {100 * missing.mean():.1f}% of the entries missing",
        f"log-likelihood {float(fitted.loglik_):.3f} of the outcome and the observed covariates, "
        f"{fitted.loglik_outcome_:.3f} of the outcome given them",
        f"AIC {fitted.aic_:.2f}, BIC {fitted.bic_:.2f}; {fitted.message_}",
    ]
    return Answer(
        fitted, title, fitted.summary(level), says, tables,
        figures={name: getattr(fitted.plot, name) for name in ("coefficients", "missingness")},
        facts={"n_observations": len(x), "n_complete": complete, "share_missing": float(missing.mean())}, level=level,
    )  # fmt: skip


def covariates(fitted: Any) -> Any:
    """Mean and covariance of the covariates that have a distribution."""
    import pandas as pd

    names = [name for name, own in zip(fitted.table_.names, fitted.table_.gaussian, strict=True) if own]
    mean = fitted.mean_ if fitted.mean_.ndim == 1 else fitted.mean_[0]
    return pd.DataFrame(fitted.covariance_, index=names, columns=names).assign(mean=mean)
