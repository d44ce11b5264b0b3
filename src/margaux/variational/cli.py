"""`margaux fit bayesian-classifier` and `bayesian-regressor`: a network with a posterior of its weights, on a CSV file."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import typer

#: categories that a column of text may have, to be one-hot encoded
CATEGORIES = 50

Data = Annotated[Path, typer.Argument(help="A CSV file (or TSV, by its name): one row an observation.")]
Outcome = Annotated[str, typer.Option(help="Column of the outcome.")]
Columns = Annotated[str | None, typer.Option(help="Inputs, separated by commas; all other columns by default.")]
Network = Annotated[str, typer.Option(help="tanh or relu: a hidden layer of 100 units.")]
Method = Annotated[str, typer.Option(help="adam, adagrad, momentum, bbb, sag, saga or misso.")]
Spread = Annotated[str, typer.Option(help="What shares a standard deviation: weight, tensor or all.")]
Prior = Annotated[float, typer.Option(help="Prior standard deviation of the weights.")]
Epochs = Annotated[int, typer.Option(help="Passes over the observations.")]
Held = Annotated[float, typer.Option(help="Share of the rows that is held out, to be scored; 0 for none.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Out = Annotated[Path, typer.Option(help="Folder for tables, the model and figures.")]


def fit_bayesian_classifier(
    data: Data, y: Outcome, columns: Columns = None, network: Network = "tanh", method: Method = "adam",
    spread: Spread = "weight", prior: Prior = 1.0, epochs: Epochs = 100, validation: Held = 0.1, seed: Seed = 0,
    out: Out = Path("bayesian-output"),
) -> None:  # fmt: skip
    """Fit a Bayesian network to classes: probabilities, scores, the model, tables and figures."""
    settings = {"network": network, "method": method, "spread": spread, "prior": prior, "epochs": epochs}
    _fit("BayesianClassifier", data, y, columns, settings, validation, seed, out)


def fit_bayesian_regressor(
    data: Data, y: Outcome, columns: Columns = None,
    likelihood: Annotated[str, typer.Option(help="gaussian, or poisson for counts.")] = "gaussian",
    network: Network = "tanh", method: Method = "adam", spread: Spread = "weight", prior: Prior = 1.0, epochs: Epochs = 300,
    validation: Held = 0.1, seed: Seed = 0, out: Out = Path("bayesian-output"),
) -> None:  # fmt: skip
    """Fit a Bayesian network to numbers or counts: predictions, scores, the model, tables and figures."""
    settings = {"network": network, "method": method, "spread": spread, "prior": prior, "epochs": epochs}
    _fit("BayesianRegressor", data, y, columns, settings | {"likelihood": likelihood}, validation, seed, out)


class Sample(NamedTuple):
    """Inputs, one-hot encoded, and outcomes, with a mask of the rows that are held out, and what there is to say of them."""

    x: pd.DataFrame
    y: np.ndarray
    held: np.ndarray
    notes: list[str]

    def parts(self) -> Iterator[tuple[str, np.ndarray]]:
        """Names and masks of the parts that have rows."""
        yield "fit", ~self.held
        if self.held.any():
            yield "held out", self.held


def _fit(
    kind: str, path: Path, y: str, columns: str | None, settings: dict[str, Any], validation: float, seed: int, out: Path
) -> None:
    from ..estimators import bayesian

    try:
        if out.exists() and not out.is_dir():
            raise FileExistsError(f"--out {out} is a file; name a folder")
        if settings["network"] not in ("tanh", "relu"):
            raise ValueError(f"--network must be tanh or relu for a table, got {settings['network']!r}")
        sample = read(path, y, columns, validation, seed, classes=kind == "BayesianClassifier")
        began = time.perf_counter()
        fitted = getattr(bayesian, kind)(random_state=seed, **settings)
        own, held = (sample.x.to_numpy()[rows] for rows in (~sample.held, sample.held))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            fitted.fit(own, sample.y[~sample.held], validation=(held, sample.y[sample.held]) if len(held) else None)
        seconds = time.perf_counter() - began
        table = scored(fitted, sample)
        show(table, f"{kind} of {y} in {path.name}")
        notes = [*sample.notes, *(str(each.message) for each in told if issubclass(each.category, UserWarning | RuntimeWarning))]
        for line in [*(f"note: {note}" for note in dict.fromkeys(notes)), *lines(fitted, seconds)]:
            typer.echo(line)
        for line in write(fitted, sample, table, out):
            typer.echo(line)
    except (ValueError, TypeError, OSError) as problem:
        typer.echo(f"error: {' '.join(str(problem).split())}", err=True)
        raise typer.Exit(2) from problem


def read(path: Path, y: str, columns: str | None, validation: float, seed: int, classes: bool) -> Sample:
    """The table of a file.

    Raises:
        ValueError, OSError: no such file or column, holes, or a column of text with too many categories.
    """
    if not 0 <= validation < 1:
        raise ValueError(f"--validation must be a share from 0 to below 1, got {validation:g}")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        frame: Any = pd.read_csv(path, sep="\t" if path.suffix in (".tsv", ".tab") else ",")
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path.name} is no table: {problem}") from problem
    if frame.shape[1] == 1 and ";" in str(frame.columns[0]):
        raise ValueError(f"{path.name} is separated by semicolons; save it with commas, or with tabs and the name .tsv")
    frame = frame.drop(columns=[name for name in frame.columns[:1] if name.startswith("Unnamed: 0")])  # names of rows
    if y not in frame.columns:
        raise ValueError(f"--y {y!r} is no column of {path.name}; they are {', '.join(frame.columns)}")
    names = [name.strip() for name in columns.split(",")] if columns else [name for name in frame.columns if name != y]
    for name in names:
        if name not in frame.columns or name == y:
            told = f"which is no column of {path.name}" if name != y else "which is the outcome"
            raise ValueError(f"--columns names {name!r}, {told}")
    if not names or len(frame) < 2:
        raise ValueError(f"{path.name} has {len(frame)} rows and {len(names)} inputs; two rows and one input are needed")
    for name in (y, *names):
        empty = frame[name].isna().to_numpy()
        if empty.any():
            raise ValueError(
                f"the column {name!r} has {int(empty.sum())} empty cells, the first in row {int(empty.argmax()) + 1}; fill them, "
                "or drop these rows or this column"
            )
    if validation and (rows := round(validation * len(frame))) < 2:
        raise ValueError(f"--validation {validation:g} holds out {rows} of {len(frame)} rows; hold out two at least, or 0")
    x, notes = encoded(frame[names])
    outcome = frame[y].to_numpy()
    return Sample(x, outcome, held_out(outcome, validation, seed, classes), notes)


def encoded(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Numbers, with a column of zeros and ones for each category of a column of text, and a sentence on each of these.

    >>> table, notes = encoded(pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "x"]}))
    >>> list(table.columns), notes
    (['a', 'b_x', 'b_y'], ["the column 'b' is one-hot encoded: x, y"])

    Raises:
        ValueError: a column of text with too many categories.
    """
    texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    notes = []
    for name in texts:
        kinds = sorted(frame[name].astype(str).unique())
        if len(kinds) > min(CATEGORIES, max(len(frame) // 2, 2)):
            raise ValueError(
                f"the column {name!r} holds text with {len(kinds)} different values, such as {kinds[0]!r}; leave it out by "
                "--columns, make it numbers, or join values into fewer categories"
            )
        shown = ", ".join(kinds[:6]) + (f" and {len(kinds) - 6} others" if len(kinds) > 6 else "")
        notes.append(f"the column {name!r} is one-hot encoded: {shown}")
    return pd.get_dummies(frame, columns=texts, dtype=float).astype(float), notes


def held_out(y: np.ndarray, share: float, seed: int, classes: bool) -> np.ndarray:
    """A mask (n,) of rows at random, which leaves one row of each class at least."""
    order = np.random.default_rng(seed).permutation(len(y))
    free = order
    if classes:
        free = order[pd.Series(y[order]).duplicated().to_numpy()]
    mask = np.zeros(len(y), bool)
    mask[free[: round(share * len(y))]] = True
    return mask


def scored(fitted: Any, sample: Sample) -> pd.DataFrame:
    """Scores by part of the sample; "elbo" is that an observation."""
    x = sample.x.to_numpy()
    return pd.DataFrame({name: fitted.evaluate(x[rows], sample.y[rows]) for name, rows in sample.parts()})


def lines(fitted: Any, seconds: float) -> Iterator[str]:
    """The fit in a few sentences."""
    found = fitted.params_
    n_weights = sum(sd.size for sd in fitted.stderr_.values())
    yield (
        f"{fitted.n_observations_} observations of {fitted.n_features_in_} inputs, {n_weights} weights; "
        f"ELBO {fitted.elbo_:.2f}, a lower bound of the log-likelihood"
    )
    if "noise" in found:
        yield f"standard deviation of the outcome around its mean {found['noise']:.4g}"
    yield f"{fitted.message_} Fitted in {seconds:.1f} s, compilation included"


def predicted(fitted: Any, sample: Sample) -> pd.DataFrame:
    """A row an observation: row of the file, part, observed, predicted, and probabilities of the classes, or "sd"."""
    x = sample.x.to_numpy()
    start = {"part": np.where(sample.held, "held out", "fit"), "observed": sample.y}
    if hasattr(fitted, "classes_"):
        probabilities = fitted.predict_proba(x)
        rest = {"predicted": fitted.classes_[probabilities.argmax(axis=1)]}
        rest |= {f"p[{label}]": column for label, column in zip(fitted.classes_, probabilities.T, strict=True)}
    else:
        rest = {"predicted": fitted.predict(x), "sd": fitted.predict_std(x)}
    return pd.DataFrame(start | rest, index=pd.RangeIndex(1, len(x) + 1, name="row"))


def write(fitted: Any, sample: Sample, table: pd.DataFrame, folder: Path) -> Iterator[str]:
    """`predictions`, `history`, `scores`, `weights` (by tensor) and `inputs` (columns as the model has them) as CSV, `model.npz`,
    and figures, of the held-out part where there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs = pd.DataFrame({"mean": sample.x[~sample.held].mean(), "sd": sample.x[~sample.held].std(ddof=0)}).rename_axis("input")
    tables = {
        "predictions": predicted(fitted, sample), "history": fitted.history_.set_index("epoch"),
        "scores": table.rename_axis("score"), "weights": fitted.summary().rename_axis("tensor"), "inputs": inputs,
    }  # fmt: skip
    for name, frame in tables.items():
        frame.to_csv(folder / f"{name}.csv")
        yield f"saved {folder / f'{name}.csv'}"
    fitted.save(folder / "model.npz")
    yield f"saved {folder / 'model.npz'}"
    rows = sample.held if sample.held.any() else ~sample.held
    yield from draw(fitted, sample.x.to_numpy()[rows], sample.y[rows], folder)


def draw(fitted: Any, x: np.ndarray, y: np.ndarray, folder: Path) -> Iterator[str]:
    """The figures as PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    last = "reliability" if hasattr(fitted, "classes_") else "predictions"
    for name in ("elbo", "signal_to_noise", "pruning", last):
        given = () if name in ("elbo", "signal_to_noise") else (x, y)
        getattr(fitted.plot, name)(*given).savefig(folder / f"{name}.png", dpi=120)
        yield f"saved {folder / f'{name}.png'}"


#: what scores are called in print
NAMES = {
    "accuracy": "accuracy", "log_score": "log score", "brier": "Brier score", "ece": "calibration error", "r2": "R²",
    "rmse": "root mean square error", "elbo": "ELBO an observation",
}  # fmt: skip


def show(table: pd.DataFrame, title: str) -> None:
    """Print scores, a column a part or a model; those that are unknown are left empty."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    shown = Table(title=escape(title))
    shown.add_column("score", no_wrap=True)
    for name in table.columns:
        shown.add_column(escape(str(name)), justify="right")
    for name, row in table.iterrows():
        shown.add_row(NAMES[str(name)], *("" if pd.isna(value) else f"{value:.4f}" for value in row))
    Console().print(shown)
