"""Tables from files: CSV, TSV and Parquet, and columns by the options that name them."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError

if TYPE_CHECKING:
    import pandas as pd


TABS, PARQUET = (".tsv", ".tab"), (".parquet", ".pq")
#: files of other programs, and what to do about them
OTHERS = {
    ".xlsx": "a spreadsheet",
    ".xls": "a spreadsheet",
    ".ods": "a spreadsheet",
    ".rds": "a file of R",
    ".rdata": "a file of R",
    ".sav": "a file of SPSS",
    ".dta": "a file of Stata",
    ".sas7bdat": "a file of SAS",
    ".json": "JSON",
    ".feather": "Feather",
    ".npz": "an archive of arrays",
    ".npy": "an array",
    ".h5": "HDF5",
    ".pkl": "a pickle",
}


def read_table(path: Path, row_names: bool = False) -> Any:
    """The data frame of a file; a column of row names without a name of its own is left out unless `row_names`.

    Raises:
        UserError: what is wrong with the file and how to mend it.
    """
    check_file(path)
    suffixes = {suffix.lower() for suffix in path.suffixes}
    if ".h5ad" in suffixes:
        raise UserError(f"{path.name} holds annotated counts, which `margaux fit pln-pca` reads; save a table as CSV or Parquet")
    for suffix in suffixes & OTHERS.keys():
        raise UserError(f"{path.name} is {OTHERS[suffix]}; save the table as CSV, TSV or Parquet")
    frame = _parquet(path) if suffixes & set(PARQUET) else _text(path, "\t" if suffixes & set(TABS) else ",")
    frame.columns = [str(name) for name in frame.columns]
    if not row_names:
        frame = frame.drop(columns=[name for name in frame.columns[:1] if name.startswith("Unnamed: 0")])
    if len(frame) == 0 or frame.shape[1] == 0:
        raise UserError(f"{path.name} is no table: it has {frame.shape[1]} columns and no rows")
    return frame


def check_file(path: Path) -> None:
    """Raises: UserError: no such file, with the one that may be meant; a folder; or a file without content."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file")
    if not path.exists():
        nearby = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        meant = _meant(path.name, nearby) or f"; check its name and folder (the current one is {Path.cwd()})"
        raise UserError(f"there is no file {path}{meant}")
    if not path.is_file():
        raise UserError(f"{path} is no regular file; save the table to a file first")
    if path.stat().st_size == 0:
        raise UserError(f"{path.name} is no table: it is empty")


def _text(path: Path, separator: str) -> Any:
    import pandas as pd

    try:
        frame = pd.read_csv(path, sep=separator)
    except UnicodeDecodeError as problem:
        found = f"byte 0x{problem.object[problem.start]:02x}" if problem.object else "a byte"
        raise UserError(f"{path.name} is no text in UTF-8 ({found}); save it as CSV in UTF-8") from problem
    except (pd.errors.EmptyDataError, pd.errors.ParserError, ValueError, EOFError, OSError) as problem:
        raise UserError(f"{path.name} is no table: {problem}") from problem
    if frame.shape[1] == 1:
        header = str(frame.columns[0])
        if ";" in header:
            raise UserError(f"{path.name} is separated by semicolons; save it with commas, or with tabs and the name .tsv")
        if "\t" in header:
            raise UserError(f"{path.name} is separated by tabs; rename it to {path.stem}.tsv, or save it with commas")
    return frame


def _parquet(path: Path) -> Any:
    import pandas as pd

    try:
        frame = pd.read_parquet(path)
    except ImportError as problem:
        raise UserError(f"{path.name} needs pyarrow; install it via: pip install 'margaux[parquet]'") from problem
    except Exception as problem:  # pyarrow has errors of its own
        raise UserError(f"{path.name} is no Parquet file: {str(problem).splitlines()[0]}") from problem
    return frame if isinstance(frame.index, pd.RangeIndex) else frame.reset_index()


def check_column(frame: pd.DataFrame, name: str, option: str, path: Path) -> str:
    """The name, if there is such a column.

    Raises:
        UserError: there is none, with the one that may be meant.
    """
    if name in frame.columns:
        return name
    known = [str(one) for one in frame.columns]
    shown = ", ".join(known[:10]) + (f" and {len(known) - 10} others" if len(known) > 10 else "")
    raise UserError(f"{option} {name!r} is no column of {path.name}; they are {shown}{_meant(name, known)}")


def chosen_columns(frame: pd.DataFrame, columns: str | None, others: Sequence[str], path: Path) -> list[str]:
    """The columns of `--columns`, or all but those that have another role, which `others` names, the outcome first.

    Raises:
        UserError: a name that is no column or has another role, or none is left.
    """
    if columns is None:
        names = [str(name) for name in frame.columns if name not in others]
    else:
        names = [name.strip() for name in columns.split(",") if name.strip()]
        for name in names:
            if name not in frame.columns:
                known = [str(one) for one in frame.columns]
                raise UserError(f"--columns names {name!r}, which is no column of {path.name}{_meant(name, known)}")
            if name in others:
                raise UserError(f"--columns names {name!r}, which is the {'outcome' if name == others[0] else 'groups'}")
    if not names:
        raise UserError(f"{path.name} has no column beside {', '.join(others)}; give one input at least")
    return names


def check_numeric(frame: Any, names: Iterable[str], mend: str, filled: bool = True) -> None:
    """Raises: UserError: a column with text, or if `filled` an empty cell, and its first row; `mend`: what to do about text."""
    for name in names:
        if texts := _texts(frame[name]):
            row = texts[0]
            raise UserError(f"the column {name!r} must be numbers, and holds {frame[name].iloc[row]!r} in row {row + 1}; {mend}")
        if filled:
            check_filled(frame, [name])


def check_filled(frame: pd.DataFrame, names: Iterable[str]) -> None:
    """Raises: UserError: a column with empty cells, with the first."""
    for name in names:
        empty = frame[name].isna().to_numpy()
        if empty.any():
            what = f"{int(empty.sum())} empty cells, the first" if empty.sum() > 1 else "an empty cell"
            raise UserError(
                f"the column {name!r} has {what} in row {int(empty.argmax()) + 1}; fill it, or drop such rows or this column"
            )


def check_sound(frame: Any, names: Iterable[str]) -> None:
    """Text and categories may be meant, but not a few words among numbers, nor what is infinite.

    Raises:
        UserError: such a column, with the first row of it.
    """
    import numpy as np

    for name in names:
        texts, known = _texts(frame[name]), int(frame[name].notna().sum())
        infinite = np.isinf(frame[name]).to_numpy() if frame[name].dtype.kind == "f" else np.zeros(1, bool)
        row = int(infinite.argmax()) if infinite.any() else texts[0] if texts else 0
        if infinite.any() or 0 < len(texts) < known / 2:
            held = frame[name].iloc[row]
            raise UserError(
                f"the column {name!r} holds {repr(held) if isinstance(held, str) else held} among its numbers, in row {row + 1}; "
                "write a number, or leave the cell empty if it is missing"
            )


def _texts(column: pd.Series) -> list[int]:
    """Positions of the cells that hold no number, empty ones apart."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return []
    numbers: Any = pd.to_numeric(column, errors="coerce")
    return (numbers.isna() & column.notna()).to_numpy().nonzero()[0].tolist()


def regression_of(
    frame: pd.DataFrame,
    y: str | None,
    columns: str | None,
    formula: str | None,
    data: Path,
    others: Sequence[str] = (),
    complete: bool = False,
) -> tuple[Any, Any]:
    """What estimators of regressions are fitted to: inputs and outcome by column, or a formula and the frame.

    Args:
        others: columns with other roles. complete: inputs must be numbers without empty cells.

    Raises:
        UserError: columns that are not there, or both ways of naming them, or neither.
    """
    if y is not None:
        check_column(frame, y, "--y", data)
    if formula is not None:
        if columns is not None:
            raise UserError("--formula and --columns both name inputs; leave one out")
        return whole_formula(formula, y), frame
    if y is None:
        raise UserError("name the outcome by --y, or write --formula 'y ~ a + b'")
    names = chosen_columns(frame, columns, [y, *others], data)
    check_filled(frame, [y])
    check_sound(frame, [y, *names])
    if complete:
        check_numeric(frame, names, f"leave it out by --columns, or write --formula '{quoted(y)} ~ C({quoted(names[0])}) + ...'")
    return frame[names], frame[y]


def outcome_name(y: str | None, formula: str | None) -> str:
    """What a regression is called by."""
    return y if y is not None else str(formula).partition("~")[0].strip()


def whole_formula(formula: str, y: str | None) -> str:
    """A formula with its outcome, which it has or `--y` names.

    >>> whole_formula("~ age + log(dose)", "response time")
    '`response time` ~ age + log(dose)'

    Raises:
        UserError: no outcome, or two.
    """
    left, _, right = formula.rpartition("~")
    left = left.strip()
    if not left and y is None:
        raise UserError(f"--formula {formula!r} has no outcome; write it as 'y ~ a + b', or name the outcome by --y")
    if left and y is not None and left.strip("`") != y:
        raise UserError(f"--formula {formula!r} and --y {y!r} name different outcomes; leave one out")
    return f"{left or quoted(str(y))} ~ {right.strip()}"


def quoted(name: str) -> str:
    """The name of a column as formulas have it."""
    return name if name.isidentifier() else f"`{name}`"


def among(value: str | None, known: Sequence[str], option: str) -> Any:
    """The value of an option, if it is one of those known.

    Raises:
        UserError: it is none of them.
    """
    if value is None or value in known:
        return value
    raise UserError(f"{option} must be one of {', '.join(known)}, got {value!r}{_meant(value, known)}")


def _meant(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def checksum(path: Path) -> str:
    """SHA-256 of a file, so that a result tells which data it is of."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
