"""`margaux fit pln-pca`: Poisson log-normal PCA of a table of counts in a file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer


def fit_pln_pca(
    counts: Annotated[Path, typer.Argument(help="Counts, a row a unit and a column a feature: CSV, TSV or .h5ad.")],
    covariates: Annotated[Path | None, typer.Option(help="Covariates of the units: CSV or TSV.")] = None,
    formula: Annotated[str | None, typer.Option(help="Such as '~ site + depth'; all covariates by default.")] = None,
    offsets: Annotated[
        str | None, typer.Option(help="total, TSS, RLE, poscounts, GMPR or Wrench; or a column of covariates, on the log scale.")
    ] = None,
    rank: Annotated[int, typer.Option(help="Number of components.")] = 5,
    ranks: Annotated[str | None, typer.Option(help="Such as 1-10 or 2,4,8: choose the rank by BIC.")] = None,
    method: Annotated[
        str, typer.Option(help="auto, variational, isgd-vem, isgd-vemmix, aisgd-snis, aisgd-hessian or student.")
    ] = "auto",
    index: Annotated[str | None, typer.Option(help="Column of the units' names; the first by default, unless numeric.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for tables and figures.")] = Path("pln-output"),
) -> None:
    """Fit a Poisson log-normal PCA: coefficients with standard errors, loadings, scores, likelihood, tables and figures."""
    try:
        if out.exists() and not out.is_dir():
            raise FileExistsError(f"--out {out} is a file; name a folder")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", UserWarning)
            fitted, choice = fitted_from(counts, covariates, formula, offsets, rank, ranks, method, index, seed)
        show(fitted, f"PLN-PCA of {counts.name}")
        for note in dict.fromkeys(str(each.message) for each in told if issubclass(each.category, UserWarning)):
            typer.echo(f"note: {note}")
        if choice is not None:
            typer.echo(choice.table.drop(columns="seconds").round(2).to_string())
        for line in write(fitted, out, choice):
            typer.echo(line)
    except (ValueError, TypeError, OSError, ImportError) as problem:
        typer.echo(f"error: {' '.join(str(problem).split())}", err=True)
        raise typer.Exit(2) from problem


def fitted_from(
    counts: Path, covariates: Path | None = None, formula: str | None = None, offsets: str | None = None, rank: int = 5,
    ranks: str | None = None, method: str = "auto", index: str | None = None, seed: int = 0,
) -> tuple[Any, Any]:  # fmt: skip
    """The fitted `PLNPCA`, and the `RankChoice` it comes from where several ranks were tried.

    Raises:
        ValueError, TypeError, OSError: what is wrong with a file or an option. ImportError: an .h5ad file without anndata.
    """
    from ..estimators.pln import PLNPCA
    from ..estimators.ranks import pln_ranks

    tried = None if ranks is None else several(ranks)
    table = read_counts(counts, index)
    frame = None if covariates is None else aligned(read_frame(covariates, index), table, covariates.name)
    if formula is not None and frame is None and isinstance(table, pd.DataFrame):
        raise ValueError("--formula names covariates; give their file by --covariates")
    given: Any = offsets
    if frame is not None and offsets in frame.columns:
        given, frame = frame[offsets], frame.drop(columns=[offsets])
    frame = None if frame is None or frame.shape[1] == 0 else frame
    data: dict[str, Any] = {"covariates": frame, "formula": formula, "offsets": given}
    settings: dict[str, Any] = {"method": method, "random_state": seed}
    if tried is None:
        return PLNPCA(rank=rank, **settings).fit(table, **data), None
    choice = pln_ranks(table, tried, **data, **settings)
    return choice.best, choice


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
        raise ValueError(f"--ranks must look like 1-10 or 2,4,8, not {text!r}")
    return found


def read_counts(path: Path, index: str | None = None) -> Any:
    """A table of counts from a file: an AnnData of .h5ad, otherwise a data frame."""
    if path.suffix != ".h5ad":
        return read_frame(path, index)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        import anndata  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(f"{path.name} needs anndata; install it via: pip install 'margaux[outofcore]'") from error
    return anndata.read_h5ad(path)


def read_frame(path: Path, index: str | None = None) -> pd.DataFrame:
    """A CSV file, or a TSV file by its name, with the units' names as the index: a column, or the first one unless numeric."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    separator = "\t" if {".tsv", ".tab"} & set(path.suffixes) else ","
    try:
        frame: Any = pd.read_csv(path, sep=separator)
    except (pd.errors.EmptyDataError, pd.errors.ParserError) as problem:
        raise ValueError(f"{path.name} is no table: {problem}") from problem
    if frame.shape[1] == 1 and ";" in str(frame.columns[0]):
        raise ValueError(f"{path.name} is separated by semicolons; save it with commas, or with tabs and the name .tsv")
    if index is None:
        # What a data frame's own row names are called in a file: a column of text or of no name.
        first = frame.columns[0]
        numeric = pd.api.types.is_numeric_dtype(frame[first])
        # A row number is no feature, whatever it is called.
        counted = numeric and len(frame) > 2 and bool((frame[first].diff()[1:] == 1).all())
        named = len(frame) > 0 and (str(first).startswith("Unnamed: 0") or not numeric or counted)
        # A column of text that repeats itself is a covariate, not a name.
        index = str(first) if named and frame[first].is_unique else None
    elif index not in frame.columns:
        raise ValueError(f"--index {index!r} is no column of {path.name}; they are {', '.join(map(str, frame.columns[:10]))}")
    if index is None:
        return frame
    if not frame[index].is_unique:
        twice = frame[index][frame[index].duplicated()].iloc[0]
        raise ValueError(f"the column {index!r} of {path.name} names {twice!r} twice; each unit needs a name of its own")
    return frame.set_index(index)


def aligned(frame: pd.DataFrame, table: Any, name: str) -> pd.DataFrame:
    """Covariates in the order of the counts, by the units' names where both tables have them."""
    units = table.index if isinstance(table, pd.DataFrame) else table.obs_names
    if isinstance(units, pd.RangeIndex) or isinstance(frame.index, pd.RangeIndex):
        if len(frame) != len(units):
            raise ValueError(f"{name} has {len(frame)} rows and the counts {len(units)}; let them agree, or both name the units")
        return frame
    frame, names = frame.set_axis(frame.index.astype(str)), units.astype(str)
    lost = names.difference(frame.index, sort=False)
    if len(lost):
        raise ValueError(f"{name} has no row for {len(lost)} of the {len(units)} units, such as {lost[0]!r}")
    return frame.loc[names].set_axis(units)


def show(fitted: Any, title: str) -> None:
    """Print what was fitted and how well."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in rows(fitted):
        table.add_row(name, escape(value))
    Console().print(table)


def rows(fitted: Any) -> Iterator[tuple[str, str]]:
    """The fit in a few names and values."""
    table, loglik, starts = fitted.table_, fitted.loglik_, fitted.starts_
    yield "units", str(table.counts.n)
    yield "features", str(table.counts.p)
    yield "coefficients a feature", f"{len(table.covariate_names)}: {', '.join(table.covariate_names)}"
    yield "rank", str(fitted.loadings_.shape[1])
    yield "shares of the variance", ", ".join(f"{100 * share:.1f}%" for share in fitted.explained_variance_ratio_)
    yield "bound", f"{fitted.elbo_:.2f}, {'converged' if fitted.converged_ else 'not converged'} in {fitted.n_sweeps_} sweeps"
    yield "log-likelihood", f"{float(loglik):.2f} (Monte Carlo error {loglik.se:.2f})"
    yield "BIC", f"{fitted.bic_:.2f} with {fitted.n_params_} parameters"
    yield "verdict", fitted.verdict_
    near = int((starts["bound"].max() - starts["bound"] < 1.0).sum())
    yield "starts", f"{len(starts)}, of which {near} within 1 nat of the best"


def write(fitted: Any, folder: Path, choice: Any = None) -> Iterator[str]:
    """Tables as CSV and figures as PNG: what is in them, and what there is to see of this fit.

    `coefficients` (with standard errors and intervals), `loadings`, `scores`, `importance` (how well the posteriors serve as
    proposals), `starts`, and `refinement` and `ranks` where there are any.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "coefficients": fitted.summary(),
        "loadings": fitted.loadings_frame(),
        "scores": fitted.scores_frame(),
        "importance": fitted.importance_,
        "starts": fitted.starts_,
        "refinement": fitted.refinement_,
        "ranks": None if choice is None else choice.table,
    }
    for name, frame in tables.items():
        if frame is not None:
            frame.to_csv(folder / f"{name}.csv")
            yield f"saved {folder / f'{name}.csv'}"
    (p, q), figures = fitted.loadings_.shape, ["coefficients", "importance", "convergence", "starts"]
    figures += ["scores", "correlation_circle", "biplot"] if q > 1 else []
    figures += ["covariance"] if p > 1 else []
    for name in figures:
        getattr(fitted.plot, name)().savefig(folder / f"{name}.png", dpi=120)
        yield f"saved {folder / f'{name}.png'}"
    if choice is not None:
        choice.plot().savefig(folder / "ranks.png", dpi=120)
        yield f"saved {folder / 'ranks.png'}"
