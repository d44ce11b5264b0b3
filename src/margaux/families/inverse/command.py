"""`margaux fit sparse-inverse`: a linear inverse problem whose regularisation is estimated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...showing.answer import Answer
from ...showing.command import Run
from ...showing.errors import UserError
from ...showing.inputs import among, check_column, check_file, check_numeric, read_table
from ...showing.options import TABLES, Iterations, files, words

if TYPE_CHECKING:
    import pandas as pd

    from .estimator import SparseInverse


PRIORS = ("huber", "l1", "tv", "group")
ARRAYS = (".npz", ".npy")


def sparse_inverse(
    data: Annotated[
        Path,
        typer.Argument(
            help="The outcome y: .npy, a table with a column of it, or an .npz with the arrays A and y.",
            show_default=False,
            autocompletion=files(*ARRAYS, *TABLES),
        ),
    ],
    run: Run,
    matrix: Annotated[
        Path | None,
        typer.Option(
            help="File of the matrix A: .npy, .npz (also of a SciPy sparse matrix) or a table; by default in DATA.",
            show_default=False,
            autocompletion=files(*ARRAYS, *TABLES),
        ),
    ] = None,
    y: Annotated[str | None, typer.Option("--y", help="Column or array of the outcome.", show_default="y")] = None,
    prior: Annotated[str, typer.Option(help="huber, l1, tv or group.", autocompletion=words(*PRIORS))] = "huber",
    noise_sd: Annotated[float | None, typer.Option(help="Standard deviation of the noise.", show_default="estimated")] = None,
    shape: Annotated[str | None, typer.Option(help="Shape of x, such as 64,64.", show_default="a vector")] = None,
    n_iter: Iterations = None,
) -> Answer:
    """Recover x from y = A x + noise, with the weight of the prior estimated."""
    from .estimator import SparseInverse

    among(prior, PRIORS, "--prior")
    A, outcome = problem_of(data, matrix, y)
    more: dict[str, Any] = {} if n_iter is None else {"n_iter": n_iter}
    with run.fitting():
        fitted = SparseInverse(prior=prior, noise_sd=noise_sd, **more, **run.settings).fit(A, outcome, _shape(shape))
    return answer(fitted, f"sparse inverse problem of {data.name}", run.level)


def problem_of(data: Path, matrix: Path | None, y: str | None) -> tuple[Any, Any]:
    """A (rows, d), an array or a SciPy sparse matrix, and y (rows,).

    Raises:
        UserError: files that are no arrays or tables, or arrays that are not there or do not fit.
    """
    import numpy as np

    held = _arrays(data)
    if isinstance(held, dict):
        outcome = np.asarray(_named(held, y or "y", "--y", data))
        A = held.get("A") if matrix is None else None
    else:
        outcome, A = (_column(held, y, data) if hasattr(held, "columns") else held), None
    if A is None:
        if matrix is None:
            raise UserError(f"{data.name} has no array A; name the file of the matrix by --matrix")
        A = _matrix(matrix)
    if getattr(A, "ndim", 2) != 2:
        raise UserError(f"the matrix has shape {A.shape}; it must have two dimensions, a row an entry of y")
    if A.shape[0] != np.size(outcome):
        raise UserError(f"the matrix has {A.shape[0]} rows and y {np.size(outcome)} entries; they must agree")
    return A, outcome


def _arrays(path: Path) -> Any:
    """What a file holds: arrays by name (.npz), an array (.npy), or a data frame."""
    import numpy as np

    if path.suffix.lower() not in ARRAYS:
        return read_table(path)
    check_file(path)
    try:
        held = np.load(path, allow_pickle=False)
        return dict(held) if hasattr(held, "files") else held
    except Exception as problem:  # zipfile, zlib and NumPy have errors of their own
        raise UserError(f"{path.name} holds no arrays of NumPy: {str(problem).splitlines()[0]}") from problem


def _matrix(path: Path) -> Any:
    import scipy.sparse

    held = _arrays(path)
    if isinstance(held, dict):
        if {"format", "shape", "data"} <= held.keys():
            return scipy.sparse.load_npz(path)
        return _named(held, "A" if "A" in held or len(held) > 1 else next(iter(held)), "the matrix", path)
    if hasattr(held, "columns"):
        check_numeric(held, held.columns, "a matrix holds numbers alone")
        return held.to_numpy(float)
    return held


def _named(held: dict[str, Any], name: str, what: str, path: Path) -> Any:
    if name not in held:
        raise UserError(f"{what} {name!r} is no array of {path.name}; they are {', '.join(held)}")
    return held[name]


def _column(frame: pd.DataFrame, y: str | None, path: Path) -> Any:
    name = y if y is not None else "y" if "y" in frame.columns else str(frame.columns[0])
    if y is None and name != "y" and frame.shape[1] > 1:
        raise UserError(f"{path.name} has {frame.shape[1]} columns; name that of the outcome by --y")
    check_column(frame, name, "--y", path)
    check_numeric(frame, [name], "code it as numbers")
    return frame[name].to_numpy(float)


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError as problem:
        raise UserError(f"--shape must look like 64,64, got {text!r}") from problem


def answer(fitted: SparseInverse, title: str, level: float) -> Answer:
    """What is said and written of a fitted `SparseInverse`: estimates, and x with its index."""
    import numpy as np

    x, summary = fitted.x_, fitted.summary(level)
    kept = int(np.sum(np.abs(x) > 1e-6 * np.abs(x).max()))
    says = [
        f"{fitted.y_.size} observations of {x.size} unknowns, {fitted.n_iter_} iterations; noise {fitted.sigma_:.4g}",
        f"{kept} entries of x are not zero; the residual has a standard deviation of {residual_sd(fitted):.4g}",
        summary.attrs["message"],
    ]
    tables: dict[str, Callable[[], Any]] = {"x": lambda: entries(x), "trace": lambda: trace(fitted)}
    return Answer(
        fitted,
        title,
        summary,
        says,
        tables,
        figures={"trace": fitted.plot_trace, "reconstruction": fitted.plot_reconstruction},
        facts={
            "n_observations": fitted.y_.size,
            "n_unknowns": x.size,
            "n_nonzero": kept,
            "sigma": fitted.sigma_,
            "residual_sd": residual_sd(fitted),
            "message": summary.attrs["message"],
        },
        likelihood=False,
        level=level,
    )


def residual_sd(fitted: SparseInverse) -> float:
    """Root mean square of y - A x."""
    import numpy as np

    return float(np.sqrt(np.mean((fitted.y_ - fitted.predict().reshape(fitted.y_.shape)) ** 2)))


def entries(x: Any) -> Any:
    """A row an entry of x, by its indices."""
    import numpy as np
    import pandas as pd

    names = ["entry"] if x.ndim == 1 else [f"axis_{j}" for j in range(x.ndim)]
    index = pd.MultiIndex.from_arrays([at.ravel() for at in np.indices(x.shape)], names=names)
    return pd.DataFrame({"x": x.ravel()}, index=index)


def trace(fitted: SparseInverse) -> Any:
    """The iterates of theta."""
    import pandas as pd

    values = fitted.trace()
    return pd.DataFrame({"theta": values}, index=pd.RangeIndex(1, len(values) + 1, name="iteration"))


#: of `margaux fit`
COMMANDS = (sparse_inverse,)
