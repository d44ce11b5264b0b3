"""`margaux fit glmm`: a generalised linear mixed model of a table, by formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...showing.answer import Answer
from ...showing.command import Run
from ...showing.errors import UserError
from ...showing.inputs import among, check_column, read_table
from ...showing.options import Data, Iterations, words
from .fitting import METHODS

if TYPE_CHECKING:
    from .estimator import GLMM


#: `family` of `margaux.GLMM`, and zeros of their own
FAMILIES = ("gaussian", "binomial", "poisson", "nbinom1", "nbinom2", "gamma", "beta", "ordinal", "student")
ZEROS = ("inflated", "hurdle")
LINKS = ("identity", "log", "inverse", "sqrt", "logit", "probit", "cloglog")
#: figures of `GLMM.plot`, in the order that one reads them
FIGURES = ("fixed", "effects", "caterpillar", "normality", "observed", "trace")


def glmm(
    data: Data,
    formula: Annotated[str, typer.Option(help="As lme4's: 'ill/size ~ period + (1 | herd)'.", show_default=False)],
    run: Run,
    family: Annotated[
        str, typer.Option(help=f"{', '.join(FAMILIES[:-1])} or {FAMILIES[-1]}.", autocompletion=words(*FAMILIES))
    ] = "gaussian",
    link: Annotated[
        str | None,
        typer.Option(help="By name; by default the family's first.", show_default=False, autocompletion=words(*LINKS)),
    ] = None,
    method: Annotated[
        str,
        typer.Option(help="auto, quadrature, or laplace, as lme4 and glmmTMB have it.", autocompletion=words(*METHODS)),
    ] = "auto",
    reml: Annotated[bool, typer.Option("--reml", help="Restricted likelihood of a Gaussian response.")] = False,
    weights: Annotated[str | None, typer.Option(help="Column of prior weights.", show_default=False)] = None,
    offset: Annotated[str | None, typer.Option(help="Column added to the linear predictor.", show_default=False)] = None,
    zeros: Annotated[
        str | None,
        typer.Option(help="inflated or hurdle: zeros of their own.", show_default=False, autocompletion=words(*ZEROS)),
    ] = None,
    n_iter: Iterations = None,
) -> Answer:
    """Fit a generalised linear mixed model: random effects in the formula, as (1 + x | group)."""
    from .estimator import GLMM
    from .responses import Hurdle, ZeroInflated, by_name

    among(family, FAMILIES, "--family")
    among(link, LINKS, "--link")
    among(method, METHODS, "--method")
    among(zeros, ZEROS, "--zeros")
    frame = read_table(data)
    for name, option in ((weights, "--weights"), (offset, "--offset")):
        if name is not None:
            check_column(frame, name, option, data)
    if "~" not in formula:
        raise UserError(f"--formula {formula!r} has no ~; write it as 'y ~ x + (1 | group)'")
    more: dict[str, Any] = {} if n_iter is None else {"n_iter": n_iter}
    with run.fitting():
        response: Any = by_name(family, link)
        if zeros is not None:
            response, link = (ZeroInflated if zeros == "inflated" else Hurdle)(response), None
        more |= {"link": link, "method": method, "reml": reml}
        fitted = GLMM(formula, family=family if zeros is None else response, **more, **run.settings)
        fitted.fit(frame, weights=weights, offset=offset)
    return answer(fitted, f"{formula} ({response.name}) on {data.name}", run.level)


def answer(fitted: GLMM, title: str, level: float = 0.95) -> Answer:
    """What is said and written of a fitted `GLMM`."""
    summary = fitted.summary(level)
    tables: dict[str, Callable[[], Any]] = {"fixed_effects": lambda: summary.loc[fitted.design_.names], "varcorr": fitted.VarCorr}
    for name in fitted.groups_:
        tables[_file(f"ranef_{name}")] = lambda name=name: fitted.ranef()[name]
    return Answer(
        fitted,
        title,
        summary,
        lines(fitted, summary.attrs["message"]),
        tables,
        figures={name: getattr(fitted.plot, name) for name in FIGURES},
        facts={
            "n_observations": fitted.n_observations_,
            "n_groups": dict(fitted.groups_),
            "fitted_by": fitted.fitted_by_,
            "singular": fitted.is_singular_,
            "variances": _variances(fitted),
        },
        level=level,
    )


def _file(name: str) -> str:
    """A name of a file, of a factor such as "g:h" or "factor(g)"."""
    return "".join(mark if mark.isalnum() or mark in "._-" else "_" for mark in name)


def _variances(fitted: GLMM) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, row in fitted.VarCorr().iterrows():
        group, effect = name if isinstance(name, tuple) else (name, "")
        out.setdefault(str(group), {})[str(effect)] = {str(column): value for column, value in row.items()}
    return out


def lines(fitted: GLMM, message: str) -> list[str]:
    """The fit in a few sentences."""
    groups = ", ".join(f"{count:,} groups of {name}" for name, count in fitted.groups_.items())
    loglik = fitted.loglik_
    likelihood = "restricted log-likelihood" if fitted.reml else "log-likelihood"
    error = f" (Monte Carlo error {loglik.se:.3f})" if loglik.se > 5e-4 else ""
    told = [
        f"{fitted.n_observations_:,} observations, {groups}; {fitted.n_iter_} iterations by {fitted.fitted_by_}",
        f"{likelihood} {float(loglik):.3f}{error}, AIC {fitted.aic_:.2f}, BIC {fitted.bic_:.2f}",
    ]
    if fitted.is_singular_:
        told.append("boundary (singular) fit: a variance is estimated as zero, or a correlation as one")
    return [*told, message]


#: of `margaux fit`
COMMANDS = (glmm,)
