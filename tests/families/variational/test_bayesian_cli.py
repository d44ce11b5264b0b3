"""`margaux fit bayesian-classifier`, `bayesian-regressor`, and the demonstration of digits."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from scipy.stats import norm
from typer.testing import CliRunner

import margaux as mx
from margaux.cli import app
from margaux.commands.demo import network
from margaux.examples import digits
from margaux.families.variational.command import encoded, held_out, read

N = 160


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Flowers of three kinds, with a column of text, and files that are refused."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    kind = np.array(["ash", "elm", "oak"])[rng.integers(0, 3, N)]
    frame = pd.DataFrame({
        "width": rng.normal(size=N) + 2 * (kind == "ash"), "height": rng.normal(size=N) - 2 * (kind == "oak"),
        "soil": np.where(rng.random(N) < 0.3, "clay", "sand"), "kind": kind,
    })  # fmt: skip
    frame["yield"] = 10 + 3 * np.sin(frame["width"]) - 2 * (frame["soil"] == "clay") + 0.3 * rng.normal(size=N)
    frame["fruits"] = rng.poisson(np.exp(1 + 0.5 * frame["height"]))
    frame.to_csv(folder / "trees.csv")
    frame.to_csv(folder / "semicolons.csv", sep=";")
    frame.assign(height=frame["height"].mask(frame.index == 6)).to_csv(folder / "holes.csv")
    frame.assign(soil=[f"s{i}" for i in range(N)]).to_csv(folder / "names.csv")
    frame.assign(kind="ash").to_csv(folder / "one.csv")
    frame.head(8).to_csv(folder / "short.csv")
    (folder / "empty.csv").touch()
    return folder, frame


def invoke(*arguments):
    return CliRunner().invoke(app, ["fit", *map(str, arguments)])


def test_classes_of_a_file_are_fitted_as_by_the_estimator(tables, tmp_path):
    folder, frame = tables
    options = [
        "--y",
        "kind",
        "--columns",
        "width,height,soil",
        "--epochs",
        "30",
        "--temperature",
        "1",
        "--validation",
        "0.25",
        "--seed",
        "3",
    ]
    done = invoke("bayesian-classifier", folder / "trees.csv", *options, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "the column 'soil' is one-hot encoded: clay, sand" in done.output
    found = pd.read_csv(tmp_path / "predictions.csv", index_col="row")
    held = (found["part"] == "held out").to_numpy()
    assert held.sum() == 40 and list(found.index) == list(range(1, N + 1)) and list(found["observed"]) == list(frame["kind"])
    X = np.column_stack([frame["width"], frame["height"], frame["soil"] == "clay", frame["soil"] == "sand"]).astype(float)
    model = mx.BayesianClassifier(temperature=1.0, epochs=30, random_state=3, verbose=False).fit(X[~held], frame["kind"][~held])
    probabilities = found[["p[ash]", "p[elm]", "p[oak]"]].to_numpy()
    np.testing.assert_allclose(probabilities, model.predict_proba(X), rtol=1e-3, atol=1e-5)
    assert (found["predicted"] == model.classes_[probabilities.argmax(axis=1)]).all()
    # Scores from the predictions that were written, by their definitions.
    scores = pd.read_csv(tmp_path / "scores.csv", index_col=0)
    unit = np.column_stack([found["observed"] == kind for kind in model.classes_])
    for part, rows in {"fit": ~held, "held out": held}.items():
        p, own = probabilities[rows], unit[rows]
        assert scores.loc["accuracy", part] == pytest.approx(np.mean((found["predicted"] == found["observed"])[rows]))
        assert scores.loc["log_score", part] == pytest.approx(np.mean(np.log(p[own])), rel=1e-6)
        assert scores.loc["brier", part] == pytest.approx(np.mean(np.sum((p - own) ** 2, axis=1)), rel=1e-6)
    assert scores.loc["accuracy", "held out"] > 0.5
    told = float(done.output.split("weights; ELBO ")[1].split(" +- ")[0])
    assert told == pytest.approx(model.elbo_, rel=1e-4) and f"{scores.loc['log_score', 'held out']:.4f}" in done.output
    page = (tmp_path / "report.html").read_text()
    assert "Scores of 120 of the fit and 40 held out" in page and f"{scores.loc['brier', 'held out']:.4g}" in page
    loaded = mx.BayesianClassifier.load(tmp_path / "model.npz")
    np.testing.assert_allclose(loaded.predict_proba(X), probabilities, rtol=1e-5, atol=1e-7)
    history = pd.read_csv(tmp_path / "history.csv")
    assert list(history) == ["epoch", "elbo", "validation"] and history["epoch"].iloc[-1] == 30
    assert list(pd.read_csv(tmp_path / "inputs.csv")["input"]) == ["width", "height", "soil_clay", "soil_sand"]
    assert {path.stem for path in tmp_path.glob("*.png")} == {"elbo", "signal_to_noise", "pruning", "reliability"}


def test_sentences_name_options(tables, tmp_path):
    """A fit whose ELBO still rises advises --epochs, not epochs=."""
    options = [
        "--y",
        "yield",
        "--columns",
        "width,height",
        "--epochs",
        "100",
        "--temperature",
        "1",
        "--validation",
        "0",
        "--json",
    ]
    done = invoke("bayesian-regressor", tables[0] / "trees.csv", *options)
    message = json.loads(done.stdout)["message"]
    assert "raise --epochs (or the step)" in message and message in done.stderr


@pytest.mark.parametrize(("likelihood", "y"), [("gaussian", "yield"), pytest.param("poisson", "fruits", marks=pytest.mark.slow)])
def test_numbers_of_a_file_are_fitted(tables, tmp_path, likelihood, y):
    folder, frame = tables
    options = [
        "--y",
        y,
        "--columns",
        "width,height,soil",
        "--likelihood",
        likelihood,
        "--epochs",
        "200",
        "--temperature",
        "1",
        "--validation",
        "0",
    ]
    done = invoke("bayesian-regressor", folder / "trees.csv", *options, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    found: Any = pd.read_csv(tmp_path / "predictions.csv", index_col="row")
    assert (found["part"] == "fit").all() and found["observed"].to_numpy() == pytest.approx(frame[y].to_numpy())
    scores: Any = pd.read_csv(tmp_path / "scores.csv", index_col=0)["fit"]
    residual = found["observed"] - found["predicted"]
    assert scores["r2"] > 0.2
    # Of 30 draws beside 100.
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean(residual**2)), rel=0.1)
    if likelihood == "gaussian":
        model = mx.BayesianRegressor.load(tmp_path / "model.npz")
        noise = model.params_["noise"]
        X = np.column_stack([frame["width"], frame["height"], frame["soil"] == "clay", frame["soil"] == "sand"]).astype(float)
        each = norm.logpdf(frame[y].to_numpy(), model._means_of_draws(X, 100, 0), noise)
        assert scores["log_score"] == pytest.approx(np.mean(np.asarray(logsumexp(each, axis=0))) - np.log(100), rel=1e-4)
        assert f"around its mean {noise:.4g}" in done.output
    assert (tmp_path / "predictions.png").exists()


@pytest.mark.parametrize(
    ("command", "data", "options", "message"),
    [
        ("classifier", "none.csv", ["--y", "kind"], "there is no file"),
        ("classifier", "empty.csv", ["--y", "kind"], "empty.csv is no table"),
        ("classifier", "semicolons.csv", ["--y", "kind"], "separated by semicolons"),
        ("classifier", "trees.csv", ["--y", "kinds"], "--y 'kinds' is no column of trees.csv"),
        ("classifier", "trees.csv", ["--y", "kind", "--columns", "width,depth"], "'depth', which is no column"),
        ("classifier", "trees.csv", ["--y", "kind", "--columns", "width,kind"], "'kind', which is the outcome"),
        ("classifier", "trees.csv", ["--y", "yield"], "mx.BayesianRegressor"),
        ("classifier", "one.csv", ["--y", "kind"], "y has one class"),
        ("classifier", "holes.csv", ["--y", "kind"], "the column 'height' has an empty cell in row 7"),
        ("classifier", "names.csv", ["--y", "kind"], "the column 'soil' holds text with 160 different values, such as 's0'"),
        ("classifier", "short.csv", ["--y", "kind"], "--validation 0.1 holds out 1 of 8 rows"),
        ("classifier", "trees.csv", ["--y", "kind", "--validation", "1"], "--validation must be a share"),
        ("classifier", "trees.csv", ["--y", "kind", "--network", "lenet5"], "--network must be one of tanh, relu"),
        ("classifier", "trees.csv", ["--y", "kind", "--method", "sgd"], "method must be one of"),
        ("classifier", "trees.csv", ["--y", "kind", "--spread", "layer"], "spread"),
        ("classifier", "trees.csv", ["--y", "kind", "--epochs", "0"], "epochs"),
        ("classifier", "trees.csv", ["--y", "kind", "--temperature", "cold"], "--temperature must be auto or a positive number"),
        ("classifier", "trees.csv", ["--y", "kind", "--prior", "-1"], "scale"),
        ("regressor", "trees.csv", ["--y", "kind"], "mx.BayesianClassifier"),
        ("regressor", "trees.csv", ["--y", "yield", "--likelihood", "poisson"], "is no count"),
        ("regressor", "trees.csv", ["--y", "yield", "--likelihood", "student"], "likelihood"),
    ],
)
def test_errors_are_one_line(tables, tmp_path, command, data, options, message):
    done = invoke(f"bayesian-{command}", tables[0] / data, *options, "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0], lines
    assert not (tmp_path / "out").exists()


def test_held_out_rows_leave_every_class():
    y = np.array(["a"] * 6 + ["b"] * 3 + ["c"])
    for seed in range(20):
        mask = held_out(y, 0.5, seed, classes=True)
        assert mask.sum() == 5 and set(y[~mask]) == {"a", "b", "c"}
    free = [held_out(np.arange(10.0), 0.5, seed, classes=False) for seed in range(20)]
    assert np.all(np.mean(free, axis=0) > 0) and all(mask.sum() == 5 for mask in free)


def test_names_of_rows_are_no_input_and_numbers_are_kept(tables):
    sample = read(tables[0] / "trees.csv", "kind", None, 0.1, 0, classes=True)
    assert list(sample.x.columns) == ["width", "height", "yield", "fruits", "soil_clay", "soil_sand"]
    assert sample.held.sum() == 16 and [name for name, _ in sample.parts()] == ["fit", "held out"]
    table, notes = encoded(pd.DataFrame({"flag": [True, False], "count": [1, 2]}))
    assert table.to_numpy().tolist() == [[1.0, 1.0], [0.0, 2.0]] and notes == []


@pytest.mark.slow
def test_the_demonstration_of_digits(tmp_path, capsys):
    network(tmp_path)
    shown = capsys.readouterr().out
    accuracy = [float(cell) for cell in next(line for line in shown.splitlines() if "accuracy" in line).split("│")[2:-1]]
    assert accuracy[2:] == [digits.POINT["accuracy"], digits.LOGISTIC["accuracy"]]
    # One standard error of an accuracy of 0.96 on 450 digits is 0.009.
    assert abs(accuracy[0] - accuracy[3]) < 0.03 and abs(accuracy[1] - accuracy[0]) < 0.03
    assert {path.stem for path in tmp_path.glob("*.png")} == {"elbo", "signal_to_noise", "pruning", "reliability"}


@pytest.mark.slow
def test_known_scores_of_the_digits_are_those_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from margaux.families.variational import scores

    data = digits.split()
    models = {
        "LOGISTIC": LogisticRegression(max_iter=2000),
        "POINT": MLPClassifier((100,), activation="tanh", max_iter=1000, random_state=0),
    }
    for name, model in models.items():
        p = make_pipeline(StandardScaler(), model).fit(data.x, data.y).predict_proba(data.x_new)
        found = {
            "accuracy": np.mean(p.argmax(axis=1) == data.y_new), "log_score": scores.log_score(data.y_new, p),
            "brier": scores.brier_score(data.y_new, p), "ece": scores.expected_calibration_error(data.y_new, p),
        }  # fmt: skip
        assert found == pytest.approx(getattr(digits, name), abs=0.01)
