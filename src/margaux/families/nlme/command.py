"""`margaux fit nlme`: a ready structural model on a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
import typer

from ...showing.answer import Answer
from ...showing.command import Run
from ...showing.errors import UserError, asked
from ...showing.files import check_folder
from ...showing.inputs import among, check_column, check_numeric, checksum, read_table
from ...showing.options import TABLES, Iterations, files, words
from .events import observations, recognised
from .kinds import label
from .rows_by_output import DVID

if TYPE_CHECKING:
    from .estimator import NLME


ERRORS = ("constant", "proportional", "combined", "combined1", "power", "exponential")
#: figures of `NLME.plot`, in the order that one reads them
FIGURES = ("convergence", "fits", "predictions", "residuals", "npde", "vpc", "effects", "pairs", "covariates")


def curves(incomplete: str) -> list[str]:
    """Completion to the ready structural models."""
    from .structural import CURVES

    return [name for name in CURVES if name.startswith(incomplete)]


def nlme(
    data: Annotated[
        Path,
        typer.Argument(
            help="The table: CSV, TSV or Parquet, one row an observation; or a model file, model.toml.",
            show_default=False,
            autocompletion=files(*TABLES, ".toml"),
        ),
    ],
    run: Run,
    table: Annotated[
        Path | None,
        typer.Argument(
            help="The table, in place of the one that model.toml names.", show_default=False, autocompletion=files(*TABLES)
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Structural model, such as oral1cpt.", show_default=False, autocompletion=curves)
    ] = None,
    id: Annotated[str | None, typer.Option(help="Column of the subject.", show_default=False)] = None,
    time: Annotated[
        str | None, typer.Option(help="Column of the time, or other independent variable.", show_default=False)
    ] = None,
    y: Annotated[str | None, typer.Option("--y", help="Column of the outcome.", show_default=False)] = None,
    dose: Annotated[
        str | None,
        typer.Option(
            help="Column of the dose of each row; of event tables AMT, EVID, II, ADDL, SS, RATE are read.", show_default=False
        ),
    ] = None,
    occ: Annotated[str | None, typer.Option(help="Column of the occasion, for --between-occasions.", show_default=False)] = None,
    between_occasions: Annotated[
        list[str] | None,
        typer.Option(help="Parameter that varies between occasions, too; may be repeated.", show_default=False),
    ] = None,
    lloq: Annotated[
        float | None, typer.Option(help="Limit of quantification: what lies below it is censored.", show_default=False)
    ] = None,
    dvid: Annotated[
        str | None,
        typer.Option(help="Where a column DVID has several kinds of observations, the one that is fitted.", show_default=False),
    ] = None,
    error: Annotated[str, typer.Option(help=f"{', '.join(ERRORS[:-1])} or {ERRORS[-1]}.", autocompletion=words(*ERRORS))] = (
        "constant"
    ),
    omega: Annotated[str, typer.Option(help="diagonal or full.", autocompletion=words("diagonal", "full"))] = "diagonal",
    covariate: Annotated[
        list[str] | None, typer.Option(help="Such as 'V=log(Weight/70)'; may be repeated.", show_default=False)
    ] = None,
    start: Annotated[
        list[str] | None, typer.Option(help="Such as ka=1; may be repeated. Found where not given.", show_default=False)
    ] = None,
    hold: Annotated[
        list[str] | None,
        typer.Option(help="Parameter whose typical value is held at its --start; may be repeated.", show_default=False),
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            help="Parameter with typical values of its own in classes that no column names, as CL=2; may be repeated.",
            show_default=False,
        ),
    ] = None,
    n_iter: Iterations = None,
    tables: Annotated[
        Path | None,
        typer.Option(help="Folder for sdtab.csv, patab.csv and populationParameters.txt.", show_default=False),
    ] = None,
) -> Answer:
    """Fit a nonlinear mixed-effects model by SAEM: one row an observation of a subject, or an event table of doses and
    observations. A text file can hold the whole model, `margaux fit nlme model.toml`, in place of the options."""
    from .estimator import NLME
    from .individual import LogNormal, Normal
    from .structural import curve

    if tables is not None:
        check_folder(tables, "--tables")
    if data.suffix.lower() == ".toml":
        return _with_tables(of_file(data, table, run), tables, run)
    if table is not None:
        raise UserError(f"{table} is one argument too many: a table beside the first belongs to a model file, model.toml")
    needed = {"--model": model, "--id": id, "--time": time, "--y": y}
    if absent := [option for option, value in needed.items() if value is None]:
        raise UserError(f"give {' '.join(absent)} as well; or write a model file, and margaux fit nlme model.toml")
    frame = read_table(data)
    roles: dict[str, Any] = {"id": id, "time": time, "y": y, "dose": dose, "occ": occ}
    for role, name in roles.items():
        if name is not None:
            check_column(frame, name, f"--{role}", data)
    frame = _of_one_kind(frame, dvid, roles)
    check_numeric(frame, [str(name) for name in (time, dose) if name is not None], "code it as numbers")
    check_numeric(frame, [str(y)], "leave cells without an observation empty", filled=False)
    among(error, ERRORS, "--error")
    with run.fitting():
        structural = curve(str(model))
        covariates = _pairs(covariate, structural.parameters, "--covariate")
        starts = {
            name: _number(value, f"--start {name}") for name, value in _pairs(start, structural.parameters, "--start").items()
        }
        counts = {
            name: int(_number(value, f"--classes {name}"))
            for name, value in _pairs(classes, structural.parameters, "--classes").items()
        }
        individual = {}
        for name in between_occasions or ():
            among(name, structural.parameters, "--between-occasions")
        for name in hold or ():
            among(name, structural.parameters, "--hold")
            if name not in starts:
                raise UserError(f"--hold {name} holds it at its start, which is not given; add --start {name}=1.5")
        for name in structural.parameters:
            kind = LogNormal if name in structural.positive else Normal
            varies, fixed = name in (between_occasions or ()), name in (hold or ())
            said = f"--classes {name}={counts[name]}" if name in counts else f"--start {name}={starts.get(name, np.nan):g}"
            try:
                individual[name] = kind(
                    starts.get(name), covariates.get(name), occasion=varies, fixed=fixed, classes=counts.get(name)
                )
            except ValueError as problem:
                raise UserError(f"{said}: {problem}") from problem
        # A short run has half of its iterations at gain one.
        more: dict[str, Any] = {} if n_iter is None else {"n_iter": n_iter, "n_burn": min(200, n_iter // 2)}
        fitted = NLME(structural=structural, individual=individual, omega=omega, error=error, **run.settings, **more)
        fitted.fit(frame, **roles, lloq=lloq)
    return _with_tables(answer(fitted, f"{model} on {data.name}", run.level), tables, run)


#: options that go with a model file: it says all the rest
BESIDE_A_FILE = ("level", "out", "json", "quiet", "strict", "tables")


def of_file(path: Path, table: Path | None, run: Run) -> Answer:
    """The fit of a model file."""
    from .model_file import from_toml

    for name, option in run.typed.items():
        if name not in BESIDE_A_FILE:
            raise UserError(f"{option} is said by the model file {path.name}; change it there, and leave {option} out")
    with asked():
        file = from_toml(path)
        data = file.table(table)
    source = table or file.data
    assert source is not None  # there is none without
    file.model.set_params(verbose=not run.quiet)
    run.seed = file.model.random_state
    with run.fitting():
        fitted = file.fit(data)
    done = answer(fitted, file.title or f"{path.stem} on {source.name}", run.level)
    done.facts["table"] = {"file": str(source), "sha256": checksum(source)}
    return done


def _with_tables(done: Answer, folder: Path | None, run: Run) -> Answer:
    """The answer, once the tables of other programs are in the folder."""
    if folder is not None:
        with asked():
            paths = done.fitted.tables(folder)
        for path in paths:
            run.say(f"saved {path}")
    return done


def _of_one_kind(frame: pd.DataFrame, kind: str | None, roles: dict[str, Any]) -> pd.DataFrame:
    """The observations of one kind, and what are no observations."""
    found = [column for column in frame.columns if str(column).upper() == DVID and column not in roles.values()]
    if not found:
        if kind is not None:
            raise UserError(f"--dvid {kind} chooses by the column {DVID}, and the table has none")
        return frame
    columns = recognised(frame) if roles["dose"] is None else {}
    seen = observations(frame, columns, roles) if "amount" in columns else np.ones(len(frame), bool)
    values = frame[found[0]].to_numpy()
    kinds = np.asarray([label(value) if there else "" for value, there in zip(values, ~pd.isna(values), strict=True)])
    known = [str(one) for one in pd.unique(kinds[seen]) if one]
    if kind is None:
        if len(known) > 1:
            raise UserError(
                f"{found[0]} has several kinds of observations, {', '.join(known)}; choose the one to fit, as --dvid {known[0]} "
                "(margaux.nlme.outputs and ode fit several at once, in Python)"
            )
        return frame
    if label(kind) not in known:
        raise UserError(f"--dvid {kind}: {found[0]} of the observations is {', '.join(known)}")
    return pd.DataFrame(frame[~seen | (kinds == label(kind))])


def _pairs(given: list[str] | None, known: tuple[str, ...], option: str) -> dict[str, str]:
    out = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise UserError(f"{option} {text!r} must look like NAME=VALUE with NAME one of {', '.join(known)}")
        out[name] = value
    return out


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError as problem:
        raise UserError(f"{option}={text} is no number") from problem


def answer(fitted: NLME, title: str, level: float = 0.95) -> Answer:
    """What is said and written of a fitted `NLME`."""
    tables: dict[str, Callable[[], Any]] = {
        "individual": lambda: fitted.individual_,
        "correlations": fitted.correlations,
        "starts": lambda: fitted.starts_,
    }
    if fitted.model_.classes > 1:
        tables["membership"] = lambda: fitted.membership_
    if fitted.model_.changing:
        tables["by_occasion"] = lambda: fitted.by_occasion_
    if fitted.model_.outcome.continuous:
        tables["residuals"] = fitted.residuals
    says = lines(fitted)
    return Answer(
        fitted,
        title,
        fitted.summary(level),
        says,
        tables,
        figures={name: getattr(fitted.plot, name) for name in FIGURES},
        others={"fit.txt": lambda path: _write_text(path, says)},
        facts={
            "aicc": fitted.aicc_,
            "bicc": fitted.bicc_,
            "n_subjects": fitted.n_subjects_,
            "n_observations": fitted.n_observations_,
            "shrinkage": dict(fitted.shrinkage()),
            "message": fitted.summary().attrs["message"],
        },
        level=level,
    )


def _write_text(path: Path, says: list[str]) -> None:
    path.write_text("\n".join(says) + "\n", encoding="utf-8")


def lines(fitted: NLME) -> list[str]:
    """The fit in a few sentences."""
    loglik = fitted.loglik_
    shrinkage = ", ".join(f"{name} {100 * value:.0f}%" for name, value in fitted.shrinkage().items())
    return [
        f"{fitted.n_subjects_} subjects, {fitted.n_observations_} observations, {fitted.n_iter_} iterations",
        f"log-likelihood {float(loglik):.3f} (Monte Carlo error {loglik.se:.3f}), -2LL {-2 * float(loglik):.3f}",
        f"AIC {fitted.aic_:.2f}, AICc {fitted.aicc_:.2f}, BIC {fitted.bic_:.2f}, BICc {fitted.bicc_:.2f}",
        f"shrinkage of the conditional modes: {shrinkage or 'no random effects'}",
        fitted.summary().attrs["message"],
    ]


#: of `margaux fit`
COMMANDS = (nlme,)
