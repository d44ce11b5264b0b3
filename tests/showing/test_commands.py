"""The command line: every family has one shape, user errors are one line, and each exit code means what it says."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import margaux as mx
from commands_examples import OPTIONS, fit, invoke, refused, written
from margaux.cli import app
from margaux.commands import doctor
from margaux.commands.selftest import MONTE_CARLO_ERROR, tried
from margaux.datasets import load_theophylline, load_wisconsin
from margaux.engine.job import Job
from margaux.engine.outcome import RESULTS
from margaux.reproduce import EXPERIMENTS
from margaux.showing import errors, files
from margaux.showing import inputs as tables
from margaux.showing.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("tables"))


def test_formats_hold_the_same_table(folder, tmp_path):
    pytest.importorskip("pyarrow")
    frame = tables.read_table(folder / "good.csv")
    pd.testing.assert_frame_equal(frame, tables.read_table(folder / "good.tsv"))
    frame.to_parquet(tmp_path / "good.parquet")
    pd.testing.assert_frame_equal(frame, tables.read_table(tmp_path / "good.parquet"))
    frame.to_csv(tmp_path / "saved.csv.gz")  # with row names
    pd.testing.assert_frame_equal(frame, tables.read_table(tmp_path / "saved.csv.gz"))


def test_one_fit_as_table_json_and_files(folder, tmp_path):
    out = tmp_path / "deep" / "out"
    arguments = ["missing-linear", folder / "holes.csv", "--y", "b", "--columns", "a,y", "--level", "0.9"]
    model = mx.MissingLinear(verbose=False).fit(*(pd.read_csv(folder / "holes.csv")[part] for part in (["a", "y"], "b")))
    summary = model.summary(0.9)

    piped = fit(*arguments)
    assert piped.exit_code == 0 and "add --out DIR" in piped.stderr and "90% interval" in piped.stdout
    for name, row in summary.iterrows():
        line = next(line for line in piped.stdout.splitlines() if line.split("│")[1:2] == [f" {name!s:9} "])
        assert f"{row['estimate']:.4f}" in line and f"{row['ci_low']:.4g} to {row['ci_high']:.4g}" in line
    assert f"{float(model.loglik_):.3f}" in piped.stdout

    done = fit(*arguments, "--json", "--out", out)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["family"] == "missing-linear" and told["seed"] == 0 and told["level"] == 0.9
    assert list(told["estimates"]) == list(summary.index)
    for name, row in summary.iterrows():
        for column in ("estimate", "se", "ci_low", "ci_high"):
            assert told["estimates"][name][column] == pytest.approx(row[column], rel=1e-9)
    assert told["loglik"] == pytest.approx(float(model.loglik_)) and told["loglik_se"] == 0.0
    assert told["aic"] == pytest.approx(model.aic_) and told["bic"] == pytest.approx(model.bic_)
    assert told["converged"] is True and told["failed"] is False and told["n_iter"] == model.n_iter_
    assert told["versions"]["margaux"] == mx.__version__
    assert told["data"]["sha256"] == tables.checksum(folder / "holes.csv")
    assert told["command"].startswith("margaux fit missing-linear ") and "--level 0.9" in told["command"]
    assert {Path(one).name for one in told["files"]} | {"fit.json"} == {path.name for path in out.iterdir()}
    kept = json.loads((out / "fit.json").read_text())
    assert kept["estimates"] == told["estimates"] and str(out / "fit.json") in kept["files"]
    page = (out / "report.html").read_text()
    assert "margaux fit missing-linear" in page

    quiet = fit(*arguments, "--quiet")
    assert quiet.stderr == "" and quiet.stdout == piped.stdout


def test_formulas_and_text(folder):
    arguments = ["missing-logistic", folder / "good.csv", "--formula", "~ log(a + 10) + soil", "--y", "y", "--json", "-q"]
    told = json.loads(fit(*arguments).stdout)
    assert list(told["estimates"]) == ["intercept", "log(a + 10)", "soil[T.sand]"]


@pytest.mark.slow
def test_a_sparse_matrix_of_its_own_file_is_the_same_problem(folder, tmp_path):
    options = ["--prior", "l1", "--noise-sd", "0.05", "--n-iter", "200", "--seed", "3", "--json"]
    whole = json.loads(fit("sparse-inverse", folder / "problem.npz", *options, "--out", tmp_path).stdout)
    parts = json.loads(fit("sparse-inverse", folder / "y.npy", "--matrix", folder / "sparse.npz", *options).stdout)
    assert whole["estimates"]["theta"]["estimate"] == pytest.approx(parts["estimates"]["theta"]["estimate"], rel=1e-6)
    assert whole["loglik"] is None and whole["aic"] is None
    x = pd.read_csv(tmp_path / "x.csv", index_col="entry")["x"].to_numpy()
    assert list(np.argsort(-np.abs(x))[:2]) == [40, 3]
    assert {"trace.png", "reconstruction.png", "report.html"} <= {path.name for path in tmp_path.iterdir()}


def test_a_failed_fit_ends_with_1_and_leaves_a_report(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Job, "_failure", lambda self, trace: RESULTS.diverged)
    done = fit("sparse-inverse", folder / "problem.npz", "--n-iter", "50", "--json", "--out", tmp_path)
    assert done.exit_code == 1 and "error: The fit diverged" in done.stderr
    told = json.loads(done.stdout)
    assert told["failed"] is True and told["estimates"] == {} and told["message"].startswith("The fit diverged")
    assert {Path(one).name for one in told["files"]} == {"report.html", "fit.json"} == {path.name for path in tmp_path.iterdir()}


def test_a_fit_that_has_not_converged_is_told_and_strict_makes_it_1(folder, monkeypatch):
    arguments = ["missing-logistic", folder / "holes.csv", "--y", "y", "--columns", "a", "-q"]
    from margaux.families.missing.estimator import MissingGLM

    fitted = MissingGLM.fit

    def unfinished(self, *args, **kwargs):
        out = fitted(self, *args, **kwargs)
        out.converged_ = False
        return out

    monkeypatch.setattr(MissingGLM, "fit", unfinished)
    loose, strict = fit(*arguments), fit(*arguments, "--strict")
    assert loose.exit_code == 0 and loose.stderr.startswith("warning: not converged") and "intercept" in loose.stdout
    assert strict.exit_code == 1 and strict.stdout == loose.stdout


def test_unexpected_errors_are_70_with_a_traceback_on_request(folder, monkeypatch):
    def broken(*_):
        raise KeyError("lost")

    monkeypatch.setattr("margaux.families.missing.estimator.MissingGLM.fit", broken)
    arguments = ["fit", "missing-linear", folder / "good.csv", "--y", "b", "--columns", "a"]
    done = invoke(*arguments)
    assert done.exit_code == 70 and len(done.stderr.strip().splitlines()) == 1
    assert "unexpected error: KeyError: 'lost'" in done.stderr and "MARGAUX_DEBUG=1" in done.stderr
    for told in (invoke("--debug", *arguments), CliRunner(env={"MARGAUX_DEBUG": "1"}).invoke(app, list(map(str, arguments)))):
        assert told.exit_code == 70 and "Traceback" in told.stderr and "in broken" in told.stderr


def test_errors_of_the_engines_are_not_the_users():
    import jax

    with pytest.raises(TypeError) as caught, errors.asked():
        jax.numpy.dot(jax.numpy.zeros((2, 3)), jax.numpy.zeros((2, 3)))
    assert not isinstance(caught.value, UserError)
    with pytest.raises(UserError, match="give two"), errors.asked():
        raise TypeError("give two")


def test_interrupted_is_130(folder, monkeypatch):
    def interrupt(*_):
        raise errors.Interrupted

    monkeypatch.setattr("margaux.families.missing.estimator.MissingGLM.fit", interrupt)
    done = fit("missing-linear", folder / "good.csv", "--y", "b", "--columns", "a")
    assert done.exit_code == 130 and done.stderr == "interrupted\n" and done.stdout == ""


@pytest.mark.slow
def test_control_c_ends_a_running_fit(folder):
    code = "from margaux.cli import main; main()"
    command = [sys.executable, "-c", code, "fit", "sparse-inverse", str(folder / "problem.npz"), "--n-iter", "100000000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)
    time.sleep(20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == b"" and err.decode().strip().endswith("interrupted")


def test_version_help_and_codes():
    assert invoke("--version").stdout == f"margaux {mx.__version__}\n"
    for arguments in ([], ["fit"], *(["fit", family] for family in OPTIONS)):
        shown = invoke(*arguments, "--help")
        assert shown.exit_code == 0 and "130 interrupted" in " ".join(shown.stdout.split())
    for family in OPTIONS:
        shown = invoke("fit", family, "--help").stdout
        for option in ("--seed", "--level", "--out", "--json", "--quiet", "--strict"):
            assert option in shown, family


def test_data_sets_are_listed_and_exported(tmp_path):
    assert "wisconsin" in invoke("datasets").stdout
    done = invoke("datasets", "theophylline", "--out", tmp_path / "theo.csv")
    assert done.exit_code == 0 and done.stdout == ""
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "theo.csv"), load_theophylline())
    printed = invoke("datasets", "wisconsin").stdout
    assert len(printed.splitlines()) == 1 + len(load_wisconsin())
    refused(invoke("datasets", "iris"), "NAME must be one of wisconsin, theophylline, got 'iris'")
    refused(invoke("datasets", "--out", tmp_path / "x.csv"), "--out needs the name of a data set")


def test_experiments_are_listed_and_unknown_ones_refused(tmp_path):
    from pkgutil import iter_modules

    from margaux import reproduce

    assert set(EXPERIMENTS) == {one.name for one in iter_modules(reproduce.__path__) if not one.name.startswith("_")}
    listed = invoke("reproduce", "--list")
    assert listed.exit_code == 0
    for name, one in EXPERIMENTS.items():
        assert name in listed.stdout and one.repeats in listed.stdout and one.paper in listed.stdout
    refused(invoke("reproduce", "soul_wisconsi"), "did you mean 'soul_wisconsin'?")
    refused(invoke("reproduce"), "name an experiment: soul_wisconsin,")


def test_the_self_test_meets_the_exact_answer():
    found = tried()
    assert found.quadrature == pytest.approx(found.exact, abs=1e-9)
    assert found.loglik == pytest.approx(found.exact_loglik, abs=1e-9)
    assert abs(found.mcmc - found.exact) < 5 * MONTE_CARLO_ERROR


def test_doctor_says_what_is_wrong(monkeypatch):
    fine = invoke("doctor", "--quick")
    assert fine.exit_code == 0 and "everything is fine" in fine.stdout and "float64 works" in fine.stdout
    told = json.loads(invoke("doctor", "--quick", "--json").stdout)
    assert told["ok"] is True and told["versions"]["margaux"] == mx.__version__ and told["extras"]["parquet"] in (True, False)
    monkeypatch.setattr(doctor, "tried", lambda: tried()._replace(quadrature=0.0))
    wrong = invoke("doctor")
    assert wrong.exit_code == 1 and "fit by quadrature: this installation computes wrongly" in wrong.stdout
    assert "1 of" in wrong.stdout


def test_completion_knows_models_files_and_names(folder):
    from margaux.commands.shipped import data_sets, experiments
    from margaux.families.nlme.command import curves
    from margaux.showing.options import files as completed

    assert "oral1cpt" in curves("oral1") and all(name.startswith("oral1") for name in curves("oral1"))
    assert data_sets("th") == ["theophylline"] and ("soul_tv", EXPERIMENTS["soul_tv"].repeats) in experiments("soul")
    assert list(completed(".csv")(f"{folder}/goo")) == [str(folder / "good.csv")]
    assert invoke("--show-completion", "bash").exit_code in (0, 1)  # where no shell can be told


def test_figures_axes_and_arrays_of_axes_are_saved(tmp_path):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2)
    for name, drawn in {"figure": figure, "axes": axes[0, 0], "array": axes}.items():
        files.save(drawn, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
@pytest.mark.parametrize("family", [*OPTIONS])
def test_every_family_answers_in_the_same_shape(folder, tmp_path, family):
    more = {
        "pln-pca": ["--rank", "1", "--method", "variational"], "sparse-inverse": ["--n-iter", "100"],
        "nlme": ["--n-iter", "60"], "empirical-bayes-logistic": ["--n-iter", "300", "--columns", "a,b"],
        "sparse-mixed-logistic": ["--n-iter", "500", "--columns", "a,b", "--path", "3"],
        "bayesian-regressor": ["--epochs", "50", "--temperature", "1"],
        "bayesian-classifier": ["--epochs", "50", "--temperature", "1"],
        "missing-logistic": ["--columns", "a,b"], "missing-glm": ["--columns", "a,b"],
        "missing-linear": ["--columns", "a"], "glmm": [],
    }[family]  # fmt: skip
    data = {"nlme": "theo.csv", "pln-pca": "counts.csv", "sparse-inverse": "problem.npz"}.get(family, "good.csv")
    options = OPTIONS[family]
    if family == "nlme":
        load_theophylline().to_csv(folder / "theo.csv", index=False)
        options = ["--model", "oral1cpt", "--id", "Id", "--time", "Time", "--y", "Concentration", "--dose", "Dose"]
    if family == "sparse-inverse":
        options = ["--prior", "l1"]
    done = fit(family, folder / data, *options, *more, "--json", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    shared = {
        "family", "command", "data", "seed", "level", "estimates", "loglik", "loglik_se", "aic", "bic", "n_iter", "converged",
        "failed", "message", "notes", "seconds", "versions", "files",
    }  # fmt: skip
    assert shared <= set(told) and told["family"] == family
    names = {path.name for path in tmp_path.iterdir()}
    assert {"report.html", "fit.json"} <= names and any(name.endswith(".png") for name in names)
    assert all(Path(one).exists() for one in told["files"])
