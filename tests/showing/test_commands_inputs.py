"""What users get wrong in a table: a word among numbers, infinity, holes, classes. One line, with a row as a person counts it."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from margaux.cli import app

NLME = ["nlme", "--model", "oral1cpt", "--id", "g", "--time", "t", "--y", "a", "--dose", "b"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A good table, and the same with one thing wrong each; the fourth row has it."""
    here, rng, n = tmp_path_factory.mktemp("inputs"), np.random.default_rng(0), 60
    good = pd.DataFrame({"a": rng.normal(size=n), "b": rng.normal(size=n), "y": np.arange(n) % 2})
    good = good.assign(g=np.arange(n) % 6, t=np.arange(n) // 6)
    third = np.arange(n) == 3
    wrong = {
        "word": good.assign(a=good["a"].astype(str).mask(third, "high")),
        "infinite": good.assign(a=good["a"].mask(third, np.inf)),
        "hole": good.assign(y=good["y"].astype(float).mask(third)),
        "classes": good.assign(y=np.arange(n) % 3),
        "class": good.assign(y=1),
        "counts": pd.DataFrame({"a": rng.poisson(3.0, n), "b": ["high" if one else str(k) for k, one in enumerate(third)]}),
    }
    for name, frame in wrong.items():
        frame.to_csv(here / f"{name}.csv", index=False)
    np.savez(here / "alone.npz", y=np.ones(5))
    return here


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing-logistic", "word.csv", "--y", "y"], "'a' holds 'high' among its numbers, in row 4"),
        (["missing-linear", "infinite.csv", "--y", "b"], "'a' holds inf among its numbers, in row 4"),
        (["missing-glm", "hole.csv", "--y", "y"], "'y' has an empty cell in row 4"),
        (["bayesian-classifier", "word.csv", "--y", "y"], "'a' holds 'high' among its numbers, in row 4"),
        (["bayesian-regressor", "infinite.csv", "--y", "b"], "'a' holds inf among its numbers, in row 4"),
        (["empirical-bayes-logistic", "infinite.csv", "--y", "y"], "'a' holds inf among its numbers, in row 4"),
        (["empirical-bayes-logistic", "classes.csv", "--y", "y"], "join classes"),
        (["empirical-bayes-logistic", "class.csv", "--y", "y"], "one class only (1)"),
        (["sparse-mixed-logistic", "infinite.csv", "--y", "y", "--groups", "g"], "'a' holds inf among its numbers, in row 4"),
        (["pln-pca", "counts.csv", "--index", "a"], "names"),
        (["pln-pca", "counts.csv"], "'b' must be numbers, and holds 'high' in row 4"),
        (["sparse-inverse", "alone.npz"], "no array A; name the file of the matrix by --matrix"),
        ([*NLME, "word.csv"], "'a' must be numbers, and holds 'high' in row 4"),
        (
            [*NLME, "hole.csv", "--start", "ka=-1"],
            "--start ka=-1: the starting value -1 lies outside the range of LogNormal, whose",
        ),
        ([*NLME, "hole.csv", "--hold", "V"], "--hold V holds it at its start, which is not given; add --start V=1.5"),
    ],
)
def test_what_is_wrong_in_a_table_is_one_line(folder, arguments, message):
    done = CliRunner().invoke(app, ["fit", *(str(folder / one) if (folder / one).exists() else one for one in arguments)])
    lines = done.stderr.strip().splitlines()
    assert done.exit_code == 2 and len(lines) == 1 and message in lines[0], done.output
    assert done.stdout == ""


def test_exports_make_their_folder(tmp_path):
    assert CliRunner().invoke(app, ["datasets", "theophylline", "--out", str(tmp_path / "new/t.csv")]).exit_code == 0
    assert len(pd.read_csv(tmp_path / "new/t.csv")) == 120
    inside = CliRunner().invoke(app, ["datasets", "theophylline", "--out", str(tmp_path / "new/t.csv/u.csv")])
    assert inside.exit_code == 2 and "is a file" in inside.stderr


def test_a_hint_ends_with_one_mark():
    assert "Did you mean 'nlme'? See `" in CliRunner().invoke(app, ["fit", "nlm"]).stderr
