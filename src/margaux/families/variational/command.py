"""`margaux fit bayesian-classifier` and `bayesian-regressor`: a network with a posterior of its weights, on a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ...showing.answer import Answer, nested, show_frame
from ...showing.command import Run
from ...showing.errors import UserError
from ...showing.inputs import among, check_column, check_filled, check_sound, chosen_columns, read_table
from ...showing.options import Columns, Data, Y, words

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from .estimator import BayesianNetwork


#: categories that a column of text may have, to be one-hot encoded
CATEGORIES = 50
NETWORKS, SPREADS = ("tanh", "relu"), ("weight", "tensor", "all")
METHODS = ("ivon", "adam", "adagrad", "momentum", "bbb", "sag", "saga", "misso", "ensemble", "laplace", "sgmcmc")
LIKELIHOODS = ("gaussian", "poisson")

Network = Annotated[str, typer.Option(help="tanh or relu: a hidden layer of 100 units.", autocompletion=words(*NETWORKS))]
Method = Annotated[
    str | None,
    typer.Option(help=f"{', '.join(METHODS[:-1])} or {METHODS[-1]}.", show_default="ivon", autocompletion=words(*METHODS)),
]
Spread = Annotated[
    str, typer.Option(help="What shares a standard deviation: weight, tensor or all.", autocompletion=words(*SPREADS))
]
Prior = Annotated[
    float | None,
    typer.Option(
        help="Prior standard deviation of the weights; by default one over the root of a unit's inputs.", show_default=False
    ),
]
Temperature = Annotated[
    str, typer.Option(help="auto, by the log score of rows held out, or the weight of the prior: 1 for the plain posterior.")
]
Epochs = Annotated[
    int | None, typer.Option(help="Passes over the observations; by default as many as the log score needs.", show_default=False)
]
Held = Annotated[float, typer.Option(help="Share of the rows that is held out, to be scored; 0 for none.")]


def bayesian_classifier(
    data: Data,
    y: Y,
    run: Run,
    columns: Columns = None,
    network: Network = "tanh",
    method: Method = None,
    spread: Spread = "weight",
    prior: Prior = None,
    temperature: Temperature = "auto",
    epochs: Epochs = None,
    validation: Held = 0.1,
) -> Answer:
    """Fit a Bayesian network to classes: probabilities, scores, the model."""
    settings = {"network": network, "method": method, "spread": spread, "prior": prior, "epochs": epochs} | heated(temperature)
    return _fit("BayesianClassifier", data, y, columns, settings, validation, run)


def bayesian_regressor(
    data: Data,
    y: Y,
    run: Run,
    columns: Columns = None,
    likelihood: Annotated[
        str, typer.Option("--likelihood", "--family", help="gaussian, or poisson for counts.", autocompletion=words(*LIKELIHOODS))
    ] = "gaussian",
    network: Network = "tanh",
    method: Method = None,
    spread: Spread = "weight",
    prior: Prior = None,
    temperature: Temperature = "auto",
    epochs: Epochs = None,
    validation: Held = 0.1,
) -> Answer:
    """Fit a Bayesian network to numbers or counts: predictions, scores, the model."""
    among(likelihood, LIKELIHOODS, "--likelihood")
    settings = {"network": network, "method": method, "spread": spread, "prior": prior, "epochs": epochs} | heated(temperature)
    return _fit("BayesianRegressor", data, y, columns, settings | {"likelihood": likelihood}, validation, run)


def heated(temperature: str) -> dict[str, float | str]:
    """The setting of an option.

    Raises:
        UserError: neither "auto" nor a positive number.
    """
    if temperature == "auto":
        return {"temperature": "auto"}
    try:
        number = float(temperature)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise UserError(f"--temperature must be auto or a positive number, got {temperature}")
    return {"temperature": number}


class Sample(NamedTuple):
    """Inputs, one-hot encoded, and outcomes, with a mask of the rows that are held out, and what there is to say of them."""

    x: Any
    y: np.ndarray
    held: Any
    notes: list[str]

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Names and masks of the parts that have rows."""
        yield "fit", ~self.held
        if self.held.any():
            yield "held out", self.held


def _fit(kind: str, data: Path, y: str, columns: str | None, settings: dict[str, Any], validation: float, run: Run) -> Answer:
    from . import estimator as estimators

    for name, known in {"network": NETWORKS, "method": METHODS, "spread": SPREADS}.items():
        if settings[name] is not None:
            among(settings[name], known, f"--{name}")
    sample = read(data, y, columns, validation, run.seed, classes=kind == "BayesianClassifier")
    run.notes += sample.notes
    own, held = (sample.x.to_numpy()[rows] for rows in (~sample.held, sample.held))
    with run.fitting():
        fitted = getattr(estimators, kind)(**settings, **run.settings)
        fitted.fit(own, sample.y[~sample.held], validation=(held, sample.y[sample.held]) if len(held) else None)
    return answer(fitted, sample, f"{kind} of {y} in {data.name}")


def read(path: Path, y: str, columns: str | None, validation: float, seed: int, classes: bool) -> Sample:
    """The table of a file.

    Raises:
        UserError: no such file or column, holes, or a column of text with too many categories.
    """
    if not 0 <= validation < 1:
        raise UserError(f"--validation must be a share from 0 to below 1, got {validation:g}")
    frame = read_table(path)
    check_column(frame, y, "--y", path)
    names = chosen_columns(frame, columns, [y], path)
    if len(frame) < 2:
        raise UserError(f"{path.name} has one row; two at least are needed")
    check_filled(frame, (y, *names))
    check_sound(frame, (y, *names))
    if validation and (rows := round(validation * len(frame))) < 2:
        raise UserError(f"--validation {validation:g} holds out {rows} of {len(frame)} rows; hold out two at least, or 0")
    x, notes = encoded(frame[names])
    outcome = frame[y].to_numpy()
    return Sample(x, outcome, held_out(outcome, validation, seed, classes), notes)


def encoded(frame: pd.DataFrame) -> tuple[Any, list[str]]:
    """Numbers, with a column of zeros and ones for each category of a column of text, and a sentence on each of these.

    >>> import pandas as pd
    >>> table, notes = encoded(pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "x"]}))
    >>> list(table.columns), notes
    (['a', 'b_x', 'b_y'], ["the column 'b' is one-hot encoded: x, y"])

    Raises:
        UserError: a column of text with too many categories.
    """
    import pandas as pd

    texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    notes = []
    for name in texts:
        kinds = sorted(frame[name].astype(str).unique())
        if len(kinds) > min(CATEGORIES, max(len(frame) // 2, 2)):
            raise UserError(
                f"the column {name!r} holds text with {len(kinds)} different values, such as {kinds[0]!r}; leave it out by "
                "--columns, make it numbers, or join values into fewer categories"
            )
        shown = ", ".join(kinds[:6]) + (f" and {len(kinds) - 6} others" if len(kinds) > 6 else "")
        notes.append(f"the column {name!r} is one-hot encoded: {shown}")
    return pd.get_dummies(frame, columns=texts, dtype=float).astype(float), notes


def held_out(y: np.ndarray, share: float, seed: int, classes: bool) -> Any:
    """A mask (n,) of rows at random, which leaves one row of each class at least."""
    import numpy as np
    import pandas as pd

    order = np.random.default_rng(seed).permutation(len(y))
    free = order
    if classes:
        free = order[pd.Series(y[order]).duplicated().to_numpy()]
    mask = np.zeros(len(y), bool)
    mask[free[: round(share * len(y))]] = True
    return mask


#: what scores are called in print
NAMES = {
    "accuracy": "accuracy",
    "log_score": "log score",
    "brier": "Brier score",
    "ece": "calibration error",
    "r2": "R²",
    "rmse": "root mean square error",
    "elbo": "ELBO an observation",
}


def answer(fitted: BayesianNetwork, sample: Sample, title: str) -> Answer:
    """What is said and written of a fitted network: its weights by tensor, scores and predictions by part of the sample."""
    from .laplace import LAPLACE
    from .watching import FELL

    weights, scores = fitted.summary().rename_axis("tensor"), scored(fitted, sample).rename_axis("score")
    rows = sample.held if sample.held.any() else ~sample.held
    tables = {
        "predictions": lambda: predicted(fitted, sample),
        "history": lambda: fitted.history_.set_index("epoch"),
        "scores": lambda: scores,
        "weights": lambda: weights,
        "inputs": lambda: inputs(sample),
    }
    if len(fitted.temperatures_):
        tables["temperatures"] = lambda: fitted.temperatures_.set_index("temperature")
    if fitted.method == LAPLACE:
        facts: dict[str, Any] = {"log_evidence": fitted.log_evidence_}
    else:
        facts = {"elbo": fitted.elbo_, "elbo_se": fitted.elbo_.se} if fitted._has_bound else {}
    facts |= {
        "scores": {part: dict(scores[part]) for part in scores},
        "weights": nested(weights),
        "n_observations": fitted.n_observations_,
        "n_inputs": fitted.n_features_in_,
        "temperature": fitted.temperature_,
    }
    if "noise" in fitted.params_:
        facts["estimates"] = {"noise": dict.fromkeys(("se", "ci_low", "ci_high")) | {"estimate": fitted.params_["noise"]}}
    return Answer(
        fitted,
        title,
        None,
        list(lines(fitted)),
        tables,
        figures=figures(fitted, sample.x.to_numpy()[rows], sample.y[rows]),
        others={"model.npz": fitted.save},
        facts=facts,
        shown=lambda: show_frame(scores, title, "score", NAMES),
        likelihood=False,
        failed=fitted.result_.result.failed or fitted.message_ == FELL,
    )


def scored(fitted: Any, sample: Sample) -> Any:
    """Scores by part of the sample; "elbo" is that an observation."""
    import pandas as pd

    x = sample.x.to_numpy()
    return pd.DataFrame({name: fitted.evaluate(x[rows], sample.y[rows]) for name, rows in sample.parts()})


def lines(fitted: BayesianNetwork) -> Iterator[str]:
    """The fit in a few sentences."""
    from .laplace import LAPLACE

    n_weights = fitted.signal_to_noise().size
    if fitted.method == LAPLACE:
        found = f"log evidence {fitted.log_evidence_:.2f}, by Laplace's approximation"
    elif not fitted._has_bound:
        found = f"draws at temperature {fitted.temperature_:g}"
    else:
        elbo = fitted.elbo_
        found = f"ELBO {elbo:.2f} +- {elbo.se:.1g}, a lower bound of the log-likelihood; temperature {fitted.temperature_:g}"
    yield f"{fitted.n_observations_} observations of {fitted.n_features_in_} inputs, {n_weights} weights; {found}"
    if "noise" in fitted.params_:
        yield f"standard deviation of the outcome around its mean {fitted.params_['noise']:.4g}"
    yield fitted.message_


def predicted(fitted: Any, sample: Sample) -> Any:
    """A row an observation: row of the file, part, observed, predicted, and probabilities of the classes, or "sd"."""
    import numpy as np
    import pandas as pd

    x = sample.x.to_numpy()
    start = {"part": np.where(sample.held, "held out", "fit"), "observed": sample.y}
    if hasattr(fitted, "classes_"):
        probabilities = fitted.predict_proba(x)
        rest = {"predicted": fitted.classes_[probabilities.argmax(axis=1)]}
        rest |= {f"p[{label}]": column for label, column in zip(fitted.classes_, probabilities.T, strict=True)}
    else:
        rest = {"predicted": fitted.predict(x), "sd": fitted.predict_std(x)}
    return pd.DataFrame(start | rest, index=pd.RangeIndex(1, len(x) + 1, name="row"))


def inputs(sample: Sample) -> Any:
    """The columns as the model has them, with mean and standard deviation in the part that is fitted."""
    import pandas as pd

    x = sample.x[~sample.held]
    return pd.DataFrame({"mean": x.mean(), "sd": x.std(ddof=0)}).rename_axis("input")


def figures(fitted: BayesianNetwork, x: Any, y: np.ndarray) -> dict[str, Any]:
    """Figures by name, of these observations; each is a function."""
    last = "reliability" if hasattr(fitted, "classes_") else "predictions"
    drawn = {name: getattr(fitted.plot, name) for name in ("elbo", "signal_to_noise")}
    others = ["pruning", last] if fitted._has_bound else [last]
    return drawn | {name: lambda name=name: getattr(fitted.plot, name)(x, y) for name in others}


#: of `margaux fit`
COMMANDS = (bayesian_classifier, bayesian_regressor)
