"""`margaux fit pln-pca`: Poisson log-normal PCA of a table of counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...showing.answer import Answer, show_facts
from ...showing.command import Run
from ...showing.errors import UserError
from ...showing.inputs import among, check_column, check_file, check_numeric, read_table
from ...showing.options import TABLES, files, words

if TYPE_CHECKING:
    import pandas as pd

    from .estimator import PLNPCA
    from .ranks import RankChoice


METHODS = ("auto", "variational", "isgd-vem", "isgd-vemmix", "aisgd-snis", "aisgd-hessian", "student")


def pln_pca(
    data: Annotated[
        Path,
        typer.Argument(
            help="Counts, a row a unit and a column a feature: CSV, TSV, Parquet or .h5ad.",
            show_default=False,
            autocompletion=files(*TABLES, ".h5ad"),
        ),
    ],
    run: Run,
    covariates: Annotated[
        Path | None, typer.Option(help="Table of covariates of the units.", show_default=False, autocompletion=files(*TABLES))
    ] = None,
    formula: Annotated[
        str | None, typer.Option(help="Such as '~ site + depth'; all covariates by default.", show_default=False)
    ] = None,
    offsets: Annotated[
        str | None,
        typer.Option(
            help="total, TSS, RLE, poscounts, GMPR or Wrench; or a column of covariates, on the log scale.",
            show_default=False,
            autocompletion=words("total", "TSS", "RLE", "poscounts", "GMPR", "Wrench"),
        ),
    ] = None,
    rank: Annotated[int, typer.Option(help="Number of components.", min=1)] = 5,
    ranks: Annotated[str | None, typer.Option(help="Such as 1-10 or 2,4,8: choose the rank by BIC.", show_default=False)] = None,
    method: Annotated[
        str, typer.Option(help=f"{', '.join(METHODS[:-1])} or {METHODS[-1]}.", autocompletion=words(*METHODS))
    ] = "auto",
    errors: Annotated[
        str, typer.Option(help="model, or robust: where counts are not Poisson.", autocompletion=words("model", "robust"))
    ] = "model",
    index: Annotated[
        str | None, typer.Option(help="Column of the units' names; the first by default, unless numeric.", show_default=False)
    ] = None,
) -> Answer:
    """Fit a Poisson log-normal PCA of counts: coefficients, loadings, scores."""
    from .estimator import PLNPCA
    from .ranks import pln_ranks

    among(method, METHODS, "--method")
    among(errors, ("model", "robust"), "--errors")
    tried = None if ranks is None else several(ranks)
    table = read_counts(data, index)
    if data.suffix != ".h5ad":
        check_numeric(table, table.columns, "name the column of the units' names by --index, and leave out others of text", False)
    frame = None if covariates is None else aligned(read_frame(covariates, index), table, covariates.name)
    if formula is not None and frame is None and data.suffix != ".h5ad":
        raise UserError("--formula names covariates; give their file by --covariates")
    given: Any = offsets
    if frame is not None and offsets in frame.columns:
        given, frame = frame[offsets], frame.drop(columns=[offsets])
    frame = None if frame is None or frame.shape[1] == 0 else frame
    named: dict[str, Any] = {"covariates": frame, "formula": formula, "offsets": given}
    settings: dict[str, Any] = {"method": method, **run.settings}
    with run.fitting():
        choice = None if tried is None else pln_ranks(table, tried, **named, **settings)
        fitted = PLNPCA(rank=rank, **settings).fit(table, **named) if choice is None else choice.best
    return answer(fitted, f"PLN-PCA of {data.name}", run.level, choice, errors)


def several(text: str) -> list[int]:
    """Ranks from a text.

    >>> several("1-3"), several("2,4,8")
    ([1, 2, 3], [2, 4, 8])
    """
    try:
        ends = [part.split("-") for part in text.split(",")]
        found = [rank for part in ends for rank in range(int(part[0]), int(part[-1]) + 1)]
    except ValueError:
        found = []
    if not found or any(len(part) > 2 for part in ends):
        raise UserError(f"--ranks must look like 1-10 or 2,4,8, not {text!r}")
    return found


def read_counts(path: Path, index: str | None = None) -> Any:
    """A table of counts from a file: an AnnData of .h5ad, otherwise a data frame."""
    if path.suffix != ".h5ad":
        return read_frame(path, index)
    check_file(path)
    try:
        import anndata  # pyright: ignore[reportMissingImports]
    except ImportError as problem:
        raise UserError(f"{path.name} needs anndata; install it via: pip install 'margaux[outofcore]'") from problem
    try:
        return anndata.read_h5ad(path)
    except Exception as problem:  # h5py and anndata have errors of their own
        raise UserError(f"{path.name} is no .h5ad file: {str(problem).splitlines()[0]}") from problem


def read_frame(path: Path, index: str | None = None) -> Any:
    """A table with the units' names as the index: a column, or the first one unless numeric."""
    import pandas as pd

    frame = read_table(path, row_names=True)
    if index is None:
        # What a data frame's own row names are called in a file: a column of text or of no name.
        first = frame.columns[0]
        numeric = pd.api.types.is_numeric_dtype(frame[first])
        # A row number is no feature, whatever it is called.
        counted = numeric and len(frame) > 2 and bool((frame[first].diff()[1:] == 1).all())
        named = str(first).startswith("Unnamed: 0") or not numeric or counted
        # A column of text that repeats itself is a covariate, not a name.
        index = str(first) if named and frame[first].is_unique else None
    else:
        check_column(frame, index, "--index", path)
    if index is None:
        return frame
    if not frame[index].is_unique:
        twice = frame[index][frame[index].duplicated()].iloc[0]
        raise UserError(f"the column {index!r} of {path.name} names {twice!r} twice; each unit needs a name of its own")
    return frame.set_index(index)


def aligned(frame: pd.DataFrame, table: Any, name: str) -> Any:
    """Covariates in the order of the counts, by the units' names where both tables have them."""
    import pandas as pd

    units = table.index if isinstance(table, pd.DataFrame) else table.obs_names
    if isinstance(units, pd.RangeIndex) or isinstance(frame.index, pd.RangeIndex):
        if len(frame) != len(units):
            raise UserError(f"{name} has {len(frame)} rows and the counts {len(units)}; let them agree, or both name the units")
        return frame
    frame, names = frame.set_axis(frame.index.astype(str)), units.astype(str)
    lost = names.difference(frame.index, sort=False)
    if len(lost):
        raise UserError(f"{name} has no row for {len(lost)} of the {len(units)} units, such as {lost[0]!r}")
    return frame.loc[names].set_axis(units)


def answer(fitted: PLNPCA, title: str, level: float = 0.95, choice: RankChoice | None = None, errors: Any = "model") -> Answer:
    """What is said and written of a fitted `PLNPCA`, and of the `RankChoice` it comes from.

    Tables: certificate, loadings, scores, importance (how well proposals serve), starts, and refinement and ranks where there
    are any.
    """
    tables: dict[str, Callable[[], Any]] = {
        "certificate": fitted.certificate_.table,
        "loadings": fitted.loadings_frame,
        "scores": fitted.scores_frame,
        "importance": lambda: fitted.importance_,
        "starts": lambda: fitted.starts_,
    }
    if fitted.refinement_ is not None:
        tables["refinement"] = lambda: fitted.refinement_
    (p, q), names = fitted.loadings_.shape, ["coefficients", "importance", "convergence", "starts", "rootogram"]
    names += ["scores", "correlation_circle", "biplot"] if q > 1 else []
    names += ["covariance"] if p > 1 else []
    figures: dict[str, Callable[[], Any]] = {name: getattr(fitted.plot, name) for name in names}
    facts: dict[str, Any] = {
        "n_units": fitted.table_.counts.share.n,
        "n_features": p,
        "rank": q,
        "elbo": fitted.elbo_,
        "icl": fitted.icl_,
        "explained_variance_ratio": fitted.explained_variance_ratio_,
        "certificate": fitted.certificate_.word,
        "ascent": fitted.ascent_,
    }
    says = []
    if choice is not None:
        tables["ranks"], figures["ranks"] = (lambda: choice.table), choice.plot
        facts["ranks"] = {str(rank): row.to_dict() for rank, row in choice.table.iterrows()}
        says.append(choice.table.drop(columns="seconds").round(2).to_string())

    def shown():
        return show_facts(rows(fitted), title)

    return Answer(fitted, title, fitted.summary(level, errors), says, tables, figures, facts=facts, shown=shown, level=level)


def rows(fitted: PLNPCA) -> Iterator[tuple[str, str]]:
    """The fit in a few names and values."""
    table, loglik, starts = fitted.table_, fitted.loglik_, fitted.starts_
    yield "certificate", fitted.message_
    yield "units", str(table.counts.share.n)
    yield "features", str(table.counts.p)
    yield "coefficients a feature", f"{len(table.covariate_names)}: {', '.join(table.covariate_names)}"
    yield "rank", str(fitted.loadings_.shape[1])
    yield "shares of the variance", ", ".join(f"{100 * share:.1f}%" for share in fitted.explained_variance_ratio_)
    yield "bound", f"{fitted.elbo_:.2f}, {'converged' if fitted.converged_ else 'not converged'} in {fitted.n_sweeps_} sweeps"
    yield "log-likelihood", f"{float(loglik):.2f} (Monte Carlo error {loglik.se:.2f})"
    yield "BIC", f"{fitted.bic_:.2f} with {fitted.n_params_} parameters"
    yield "ascent", fitted.ascent_
    near = int((starts["bound"].max() - starts["bound"] < 1.0).sum())
    yield "starts", f"{len(starts)}, of which {near} within 1 nat of the best"


#: of `margaux fit`
COMMANDS = (pln_pca,)
