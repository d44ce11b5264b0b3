"""The demonstrations and the command line, against the reference numbers."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import margaux as mx
from margaux.cli import app
from margaux.datasets import load_theophylline, load_wisconsin
from margaux.examples import decline, measurements, theophylline, wisconsin


@pytest.mark.slow
def test_theophylline_is_exact_for_eight_seeds():
    fits = theophylline.fit(key=11, runs=8, spread=0.0, progress=False)
    for name, truth in theophylline.EXACT.items():
        errors = np.abs(fits.run_params[name] - truth) / theophylline.EXACT_SE[name]
        assert np.all(errors < 0.35), f"{name}: {errors}"
    at_fit = fits.loglik()
    assert float(at_fit) == pytest.approx(-172.72, abs=0.1) and at_fit.se < 0.05
    assert float(fits.loglik(params=theophylline.EXACT)) == pytest.approx(-172.717, abs=0.05)
    summary = fits.summary()
    for name in ("ka", "V", "CL"):
        assert summary.loc[name, "se"] == pytest.approx(theophylline.EXACT_SE[name], rel=0.05)


def test_theophylline_constants_are_the_references(reference):
    told = reference("nlme")["problems"]["theo_base"]["exact_mle"]
    for name, value in theophylline.EXACT.items():
        assert value == pytest.approx(told["estimate"][name], rel=1e-4)
        assert theophylline.EXACT_SE[name] == pytest.approx(told["se_observed_info"][name], rel=1e-3)


@pytest.mark.slow
def test_wisconsin_short_run_and_inference():
    fit = wisconsin.fit(n_iter=60_000, progress=False)
    assert abs(fit.params["theta"] - 0.729) < 0.1  # about three SDs of so short a run
    assert fit.summary().loc["theta", "se"] == pytest.approx(0.714, rel=0.02)
    loglik = fit.loglik(params={"theta": 0.729})
    assert float(loglik) == pytest.approx(-69.515, abs=0.05) and loglik.se < 0.05


@pytest.mark.slow
def test_wisconsin_twenty_seeds():
    fit = wisconsin.fit(runs=20, spread=0.0, progress=False)
    theta = fit.run_params["theta"]
    print("mean", theta.mean(), "SD", theta.std(ddof=1))
    assert theta.mean() == pytest.approx(0.729, abs=0.015)
    assert 0.010 <= theta.std(ddof=1) <= 0.020


def test_shipped_data_are_the_published_ones(data_folder):
    frame = load_wisconsin()
    theirs = np.genfromtxt(data_folder / "wisconsin683.csv", delimiter=",", skip_header=1)
    np.testing.assert_array_equal(np.sort(frame.to_numpy(), axis=0), np.sort(theirs, axis=0))
    theo = load_theophylline()
    other = np.genfromtxt(data_folder / "saemix_theo.csv", delimiter=",", skip_header=1)
    np.testing.assert_allclose(np.sort(theo["Concentration"].to_numpy(float)), np.sort(other[:, 3]))
    np.testing.assert_allclose(np.unique(theo["Dose"].to_numpy(float)), np.unique(other[:, 1]), atol=1e-3)
    assert theo.shape == (120, 5) and load_theophylline(drop_time0=False).shape == (132, 5)


@pytest.mark.parametrize("pharmacokinetics", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_command_line(tmp_path, monkeypatch, pharmacokinetics):
    runner = CliRunner()
    listed = runner.invoke(app, ["datasets"])
    assert listed.exit_code == 0 and "wisconsin" in listed.output and "theophylline" in listed.output
    short = wisconsin.fit
    monkeypatch.setattr(wisconsin, "fit", lambda: short(n_iter=30_000, progress=False))
    monkeypatch.setattr("margaux.commands.demo.network", lambda out: None)  # tested with its figures
    if not pharmacokinetics:
        monkeypatch.setattr("margaux.commands.demo.pharmacokinetics", lambda out: None)
    shown = runner.invoke(app, ["demo", "--out", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "theta" in shown.output and "complete" in shown.output and ("omega2_ka" in shown.output) == pharmacokinetics
    holes = pd.read_csv(tmp_path / "measurements" / "estimates.csv", index_col=0)
    assert holes["estimate"].to_dict() == pytest.approx(measurements.EXACT, abs=2e-5)
    assert holes["se"].to_dict() == pytest.approx(measurements.EXACT_SE, rel=1e-3)
    late = pd.read_csv(tmp_path / "decline" / "estimates.csv", index_col=0)
    assert late["estimate"].to_dict() == pytest.approx(decline.EXACT, abs=2e-5)
    assert late["se"].to_dict() == pytest.approx(decline.EXACT_SE, rel=1e-3)
    assert len(list(tmp_path.glob("*.png"))) == 2
    assert len(list((tmp_path / "theophylline").glob("*.png"))) == (9 if pharmacokinetics else 0)


@pytest.mark.slow
def test_command_line_fits_a_file(tmp_path):
    path, out = tmp_path / "theophylline.csv", tmp_path / "out"
    load_theophylline().to_csv(path, index=False)
    roles = ["--id", "Id", "--time", "Time", "--y", "Concentration", "--dose", "Dose", "--out", str(out)]
    starts = ["--start", "ka=1", "--start", "V=20", "--start", "CL=2", "--covariate", "V=log(Weight/70)"]
    shown = CliRunner().invoke(app, ["fit", "nlme", str(path), "--model", "oral1cpt", *roles, *starts])
    assert shown.exit_code == 0, shown.output
    assert "beta_V[log(Weight / 70)]" in shown.output or "beta_V[log(Weight/70)]" in shown.output
    estimates = pd.read_csv(out / "estimates.csv", index_col=0)
    assert np.all(estimates["se"] > 0) and len(estimates) == 8
    assert len(pd.read_csv(out / "individual.csv")) == 12
    assert {path.stem for path in out.glob("*.png")} >= {"fits", "vpc", "npde", "convergence"}
    for wrong, message in [
        (["--model", "oral1cp", *roles], "did you mean"),
        (["--model", "oral1cpt", *roles, "--start", "kb=1"], "NAME=VALUE"),
    ]:
        refused = CliRunner().invoke(app, ["fit", "nlme", str(path), *wrong])
        assert refused.exit_code == 2 and message in refused.stderr and len(refused.stderr.splitlines()) == 1


def test_schedule_check_has_something_to_say():
    assert "eq. 9" in mx.problem.check_schedules(mx.Polynomial(1.0, 1.0), mx.Polynomial(0.1, 0.3))
    assert "eqs. 8 and 12" in mx.problem.check_schedules(mx.Polynomial(1.0, 0.9), mx.Polynomial(0.1, 0.5), mx.Growth(1, 1.0, 1.0))
    assert "bias" in mx.problem.check_schedules(mx.Polynomial(60.0, 0.8), 8e-5)
    assert "Robbins-Monro" in mx.problem.check_schedules(mx.ConstantThenDecay(1.0, 100, 0.8))
    assert "diverges" in mx.problem.check_schedules(None, mc_size=mx.Growth(1, 1.0, 2.0))
    assert "applies" in mx.problem.check_schedules(None, mc_size=mx.Growth(1, 1.0, 2.5))
