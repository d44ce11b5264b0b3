"""`margaux fit missing-logistic`, `missing-linear` and `missing-glm`: regression on a table with holes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...showing.answer import Answer
from ...showing.command import Run
from ...showing.inputs import among, outcome_name, read_table, regression_of
from ...showing.options import Columns, Data, Formula, Iterations, OptionalY, words

if TYPE_CHECKING:
    from .estimator import MissingGLM


METHODS = ("exact", "saem", "mcem", "misso")
LIKELIHOODS = ("logistic", "probit", "gaussian", "poisson", "multinomial")
ERRORS = ("model", "robust")
SEARCHES = ("backward", "forward", "exhaustive")

Method = Annotated[str, typer.Option(help=f"{', '.join(METHODS[:-1])} or {METHODS[-1]}.", autocompletion=words(*METHODS))]
Select = Annotated[
    str | None,
    typer.Option(
        help="backward, forward or exhaustive: drop columns by BIC.", show_default=False, autocompletion=words(*SEARCHES)
    ),
]
Discrete = Annotated[
    str | None,
    typer.Option(help="Columns of few values whose missing ones are enumerated, separated by commas.", show_default=False),
]
Errors = Annotated[
    str,
    typer.Option(
        help="Standard errors: of the model, or robust to a model that is not that of the data.", autocompletion=words(*ERRORS)
    ),
]
Draws = Annotated[int, typer.Option(help="Completed tables to write to --out.", min=0)]


def _of_one_family(kind: str, regression: str) -> Callable[..., Answer]:
    """The command of an estimator that has a family of its own."""

    def fit(
        data: Data,
        run: Run,
        y: OptionalY = None,
        columns: Columns = None,
        formula: Formula = None,
        method: Method = "exact",
        select: Select = None,
        draws: Draws = 0,
        n_iter: Iterations = None,
        discrete: Discrete = None,
        errors: Errors = "model",
    ) -> Answer:
        title = f"{regression} regression"
        return _fit(kind, {}, title, data, y, columns, formula, method, select, draws, n_iter, discrete, errors, run)

    fit.__name__ = f"missing_{regression}"
    fit.__doc__ = f"Fit a {regression} regression with missing covariates (empty cells)."
    return fit


missing_logistic = _of_one_family("MissingLogistic", "logistic")
missing_linear = _of_one_family("MissingLinear", "linear")


def missing_glm(
    data: Data,
    run: Run,
    likelihood: Annotated[
        str,
        typer.Option(
            "--likelihood",
            "--family",
            help="logistic, probit, gaussian, poisson or multinomial.",
            autocompletion=words(*LIKELIHOODS),
        ),
    ] = "logistic",
    y: OptionalY = None,
    columns: Columns = None,
    formula: Formula = None,
    method: Method = "exact",
    select: Select = None,
    draws: Draws = 0,
    n_iter: Iterations = None,
    discrete: Discrete = None,
    errors: Errors = "model",
) -> Answer:
    """Fit a generalised linear model with missing covariates (empty cells)."""
    family = among(likelihood, LIKELIHOODS, "--likelihood")
    title = f"{family} regression"
    return _fit(
        "MissingGLM", {"family": family}, title, data, y, columns, formula, method, select, draws, n_iter, discrete, errors, run
    )


def _fit(
    kind: str,
    settings: dict[str, Any],
    title: str,
    data: Path,
    y: str | None,
    columns: str | None,
    formula: str | None,
    method: str,
    select: str | None,
    draws: int,
    n_iter: int | None,
    discrete: str | None,
    errors: str,
    run: Run,
) -> Answer:
    from . import estimator as estimators

    frame = read_table(data)
    among(method, METHODS, "--method")
    among(select, SEARCHES, "--select")
    among(errors, ERRORS, "--errors")
    regression = regression_of(frame, y, columns, formula, data)
    more: dict[str, Any] = {} if n_iter is None else {"n_iter": n_iter}
    more |= {} if discrete is None else {"discrete": [name.strip() for name in discrete.split(",")]}
    with run.fitting():
        fitted: MissingGLM = getattr(estimators, kind)(method=method, **settings, **more, **run.settings).fit(*regression)
        if select:
            fitted = fitted.select(select)
    return answer(fitted, f"{title} of {outcome_name(y, formula)} on {data.name}", run.level, draws, run.seed, errors)


def answer(fitted: Any, title: str, level: float = 0.95, draws: int = 0, seed: int = 0, errors: str = "model") -> Answer:
    """What is said and written of a fitted regression with missing covariates."""
    import pandas as pd

    x = fitted.table_.x
    missing = pd.isna(x)
    complete = int((~missing.any(axis=1)).sum())
    tables: dict[str, Callable[[], Any]] = {"covariates": lambda: covariates(fitted)}
    tables["certificate"] = lambda: fitted.certificate_.table()
    if fitted.table_.discrete:
        tables["cells"] = lambda: fitted.cells_.set_index([one.name for one in fitted.table_.discrete])
    if hasattr(fitted, "selection_"):
        tables["selection"] = lambda: fitted.selection_
    for j, table in enumerate(fitted.impute(draws, seed) if draws else []):
        tables[f"completed_{j + 1}"] = lambda table=table: pd.DataFrame(table, columns=fitted.table_.names)
    says = [
        f"{fitted.certificate_}",
        f"{len(x)} rows, {complete} complete; {100 * missing.mean():.1f}% of the entries missing",
        f"log-likelihood {float(fitted.loglik_):.3f} of the outcome and the observed covariates, "
        f"{fitted.loglik_outcome_:.3f} of the outcome given them",
        f"AIC {fitted.aic_:.2f}, BIC {fitted.bic_:.2f}; {fitted.n_params_} parameters, those of the covariates included",
    ]
    return Answer(
        fitted,
        title,
        fitted.summary(level, errors),
        says,
        tables,
        figures={name: getattr(fitted.plot, name) for name in ("coefficients", "missingness")},
        facts={
            "n_observations": len(x),
            "n_complete": complete,
            "share_missing": float(missing.mean()),
            "certificate": fitted.certificate_.word,
        },
        level=level,
    )


def covariates(fitted: MissingGLM) -> Any:
    """Mean and covariance of the covariates that have a distribution."""
    import numpy as np
    import pandas as pd

    names = [name for name, own in zip(fitted.table_.names, fitted.table_.gaussian, strict=True) if own]
    mean = np.atleast_2d(fitted.mean_)[0]
    return pd.DataFrame(fitted.covariance_, index=names, columns=names).assign(mean=mean)


#: of `margaux fit`
COMMANDS = (missing_logistic, missing_linear, missing_glm)
