"""The command line as tests call it, and tables, whole and broken, for it to read."""

from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse
from typer.testing import CliRunner

from margaux.cli import app

NLME = ["nlme", "--model", "oral1cpt", "--id", "id", "--time", "time", "--y", "y", "--dose", "dose"]
REGRESSIONS = {
    "missing-logistic": ["--y", "y"], "missing-linear": ["--y", "b"], "missing-glm": ["--y", "y"],
    "empirical-bayes-logistic": ["--y", "y"], "sparse-mixed-logistic": ["--y", "y", "--groups", "g"],
    "bayesian-classifier": ["--y", "y"], "bayesian-regressor": ["--y", "b"],
}  # fmt: skip
GLMM = ["glmm", "--formula", "y ~ a + (1 | id)", "--family", "binomial"]
#: of each family, options that fit the good table
OPTIONS = REGRESSIONS | {"glmm": GLMM[1:], "nlme": NLME[1:], "pln-pca": [], "sparse-inverse": ["--y", "b"]}


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def fit(*arguments):
    return invoke("fit", *arguments)


def refused(done, message, code=2):
    """One line on stderr that says so, and nothing on stdout."""
    assert done.exit_code == code, done.output
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0], lines
    assert done.stdout == ""


def written(here: Path) -> Path:
    """A folder, once the tables are in it."""
    rng = np.random.default_rng(0)
    n = 90
    frame = pd.DataFrame({"a": rng.normal(size=n), "b": rng.normal(size=n), "g": np.arange(n) % 3})
    frame["y"] = (frame["a"] + rng.logistic(size=n) > 0).astype(int)
    frame["soil"] = np.where(rng.random(n) < 0.4, "clay", "sand")
    frame = frame.assign(id=np.arange(n) // 9, time=1.0 + np.arange(n) % 9, dose=1.0)
    frame.to_csv(here / "good.csv", index=False)
    frame.to_csv(here / "good.tsv", sep="\t", index=False)
    frame.to_csv(here / "tabs.csv", sep="\t", index=False)
    frame.to_csv(here / "semicolons.csv", sep=";", index=False)
    frame.iloc[:0].to_csv(here / "header.csv", index=False)
    frame.assign(name="é").to_csv(here / "latin.csv", index=False, encoding="latin-1")
    frame.assign(a=frame["a"].astype(str).mask(frame.index == 4, "high")).to_csv(here / "text.csv", index=False)
    frame.drop(columns="soil").assign(a=frame["a"].mask(frame.index % 5 == 0)).to_csv(here / "holes.csv", index=False)
    (here / "empty.csv").touch()
    (here / "broken.csv").write_text('a,b\n1,2\n3,4,5,6\n"unfinished')
    (here / "broken.parquet").write_bytes(b"not a table at all")
    (here / "broken.npz").write_bytes(b"not an archive")
    (here / "broken.h5ad").write_bytes(b"not an archive")
    (here / "sheet.xlsx").write_bytes(b"PK")
    A, x = rng.normal(size=(40, 60)) / 6, np.zeros(60)
    x[[3, 40]] = 2.0, -3.0
    y = A @ x + 0.05 * rng.normal(size=40)
    np.savez(here / "problem.npz", A=A, y=y)
    np.save(here / "y.npy", y)
    scipy.sparse.save_npz(here / "sparse.npz", scipy.sparse.csr_array(A))
    counts = pd.DataFrame(rng.poisson(4.0, (30, 5)), columns=[f"f{j}" for j in range(5)])
    counts.to_csv(here / "counts.csv", index=False)
    return here
