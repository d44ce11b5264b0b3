"""`margaux fit sparse-mixed-logistic`: selection of covariates beside a random intercept a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...showing.answer import Answer
from ...showing.command import Run
from ...showing.inputs import among, check_column, outcome_name, read_table, regression_of
from ...showing.options import Columns, Data, Formula, Iterations, OptionalY, words

if TYPE_CHECKING:
    from .estimator import SparseMixedLogistic


PENALTIES = ("l1", "huber")


def sparse_mixed_logistic(
    data: Data,
    groups: Annotated[str, typer.Option(help="Column of the groups.", show_default=False)],
    run: Run,
    y: OptionalY = None,
    columns: Columns = None,
    formula: Formula = None,
    penalty_weight: Annotated[float, typer.Option(help="Weight of the penalty, scikit-learn's 1 / C.", min=0.0)] = 30.0,
    penalty: Annotated[str, typer.Option(help="l1, with exact zeros, or huber.", autocompletion=words(*PENALTIES))] = "l1",
    intercept: Annotated[bool, typer.Option("--intercept", help="Estimate an intercept.")] = False,
    path: Annotated[int, typer.Option(help="Follow so many weights of the penalty too, largest first.", min=0)] = 0,
    n_iter: Iterations = None,
) -> Answer:
    """Fit a sparse logistic regression with a random intercept a group."""
    from .estimator import SparseMixedLogistic

    among(penalty, PENALTIES, "--penalty")
    frame = read_table(data)
    check_column(frame, groups, "--groups", data)
    X, outcome = regression_of(frame, y, columns, formula, data, others=[groups], complete=True)
    more: dict[str, Any] = {} if n_iter is None else {"n_iter": n_iter}
    given = (X, outcome, groups if formula is not None else frame[groups])
    with run.fitting():
        fitted = SparseMixedLogistic(
            penalty_weight=penalty_weight, penalty=penalty, fit_intercept=intercept, **more, **run.settings
        ).fit(*given)
        if path:
            fitted.path(*given, penalty_weights=path)
    return answer(fitted, f"sparse logistic regression of {outcome_name(y, formula)} on {data.name}")


def answer(fitted: SparseMixedLogistic, title: str) -> Answer:
    """What is said and written of a fitted `SparseMixedLogistic`."""
    tables: dict[str, Callable[[], Any]] = {"random_effects": lambda: fitted.random_effects_}
    figures: dict[str, Callable[[], Any]] = {"random_effects": lambda: effects(fitted.random_effects_)}
    if hasattr(fitted, "path_"):
        tables["path"], figures["path"] = (lambda: fitted.path_), fitted.plot_path
    selected = int(fitted.support_.sum())
    summary = fitted.summary()
    says = [
        f"{fitted.n_observations_} rows in {len(fitted.groups_)} groups, {fitted.n_iter_} iterations",
        f"{selected} of {fitted.n_features_in_} covariates selected at the penalty {fitted.penalty_weight:g}",
        f"log-likelihood {float(fitted.loglik_):.3f}, AIC {fitted.aic_:.2f}, BIC {fitted.bic_:.2f}",
        summary.attrs["message"],
    ]
    facts = {
        "n_observations": fitted.n_observations_,
        "n_groups": len(fitted.groups_),
        "n_selected": selected,
        "objective": fitted.objective_,
        "message": summary.attrs["message"],
    }
    return Answer(fitted, title, summary, says, tables, figures, facts=facts)


def effects(frame: Any) -> Any:
    """Random effects with two standard deviations, the largest fifty by size."""
    from matplotlib.figure import Figure

    some = frame.loc[frame["mean"].abs().sort_values(ascending=False).index[:50]].sort_values("mean")
    figure = Figure(figsize=(5, 1.2 + 0.2 * len(some)), layout="constrained")
    axis = figure.subplots()
    axis.errorbar(some["mean"], range(len(some)), xerr=2 * some["sd"], fmt="o", ms=3, lw=1)
    axis.axvline(0, color="grey", lw=0.8)
    axis.set(xlabel="random effect", yticks=range(len(some)), yticklabels=[str(name) for name in some.index])
    return figure


#: of `margaux fit`
COMMANDS = (sparse_mixed_logistic,)
