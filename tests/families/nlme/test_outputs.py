"""Several outputs with errors of their own: predictions, densities and derivatives, one fit's answers, refusals."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy import optimize, stats

import margaux as mx
from margaux.families.nlme import (
    Combined,
    ConstantError,
    Exponential,
    Individual,
    LogNormal,
    Power,
    bolus1cpt,
    ode,
    oral1cpt,
    outputs,
)
from margaux.families.nlme.by_output import ErrorByOutput, error_of
from margaux.families.nlme.data import group
from margaux.families.nlme.dosing import with_regimen
from margaux.families.nlme.events import named_by_default, reading_events
from margaux.families.nlme.flipflop import mirrored
from margaux.families.nlme.kinds import OUTPUT
from margaux.families.nlme.limits import of_rows
from margaux.families.nlme.outcomes import Continuous
from margaux.families.nlme.specification import built

ROLES: dict[str, str | None] = dict.fromkeys(("id", "time", "y", "dose", "occ", "cens", "limit", "output"))


def effect(psi, row):
    return psi["E0"] * (1 - row["cp"] / (psi["IC50"] + row["cp"]))


DIRECT = outputs({"cp": bolus1cpt, "effect": effect})
ORAL = outputs({"cp": oral1cpt, "effect": effect})


def grouped(frame, curve, error="constant", **more):
    outcome, columns = reading_events(frame, Continuous(curve, error_of(error, ("cp", "effect"))), ROLES, None)
    roles = named_by_default(frame, ROLES, outcome, columns is not None)
    return outcome, group(frame, roles, outcome, columns=columns, **more)


def predicted(frame, curve, psi):
    outcome, data = grouped(frame, curve)
    outcome = with_regimen(outcome, data.regimen, psi)
    with jax.enable_x64(True):
        found = jax.vmap(lambda rows: outcome.prediction(psi, rows))(jax.tree.map(jnp.asarray, data.units["rows"]))
    return data.flat(np.asarray(found))


def study(n=16, seed=0):
    """A bolus at time 0, and an effect by the concentration of the moment."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        CL, E0 = 2 * np.exp(0.3 * rng.normal()), 50 * np.exp(0.2 * rng.normal())
        rows.append((i, 0.0, 100.0, 1, "cp", 0.0))
        for t in (0.5, 2.0, 5.0, 9.0, 16.0):
            C = 100 / 20 * np.exp(-CL / 20 * t)
            rows.append((i, t, 0.0, 0, "cp", C * (1 + 0.1 * rng.normal())))
            rows.append((i, t, 0.0, 0, "effect", E0 * (1 - C / (2 + C)) + 2 * rng.normal()))
    return pd.DataFrame(rows, columns=["ID", "TIME", "AMT", "EVID", "dvid", "DV"])


STUDY = study()


def test_closed_forms_are_the_differential_equations():
    def slopes(t, state, psi):
        taken = psi["ka"] * state["depot"]
        return {"depot": -taken, "central": taken - psi["CL"] / psi["V"] * state["central"]}

    def concentration(state, psi):
        return state["central"] / psi["V"]

    def acting(state, psi):
        return effect(psi, {"cp": concentration(state, psi)})

    by_steps = ode(slopes, ["depot", "central"], {"cp": concentration, "effect": acting}, rtol=1e-9, atol=1e-10)
    assert by_steps.parameters == ("ka", "CL", "V", "E0", "IC50")
    assert set(ORAL.parameters) == set(by_steps.parameters)
    psi = {"ka": 1.5, "CL": 2.0, "V": 20.0, "E0": 50.0, "IC50": 2.0}
    frame = STUDY[STUDY["ID"] < 2]
    closed = predicted(frame, ORAL, psi)
    np.testing.assert_allclose(predicted(frame, by_steps, psi), closed, rtol=1e-6)
    # By hand, and with numbers for names.
    observed = frame[frame["EVID"] == 0]
    C = 100 * 1.5 / 20 / (1.5 - 0.1) * (np.exp(-0.1 * observed["TIME"]) - np.exp(-1.5 * observed["TIME"]))
    np.testing.assert_allclose(closed, np.where(observed["dvid"] == "cp", C, 50 * (1 - C / (2 + C))), rtol=1e-9)
    numbers = outputs({1: oral1cpt, 2: lambda psi, row: effect(psi, {"cp": row["1"]})})
    coded = frame.assign(dvid=np.where(frame["dvid"] == "cp", 1.0, 2.0))
    outcome = Continuous(numbers, error_of("constant", ("1", "2")))
    assert outcome.error_names == ("a[1]", "a[2]")
    outcome, columns = reading_events(coded, outcome, ROLES, None)
    data = group(coded, named_by_default(coded, ROLES, outcome, True), outcome, columns=columns)
    np.testing.assert_array_equal(data.output, observed["dvid"] == "effect")


def test_rows_have_the_error_of_their_output():
    errors = (Combined(), Exponential(), Power())
    every = ErrorByOutput(("x", "y", "z"), errors)
    assert every.names == ("a[x]", "b[x]", "a[y]", "a[z]", "b[z]", "c[z]")
    values, f = jnp.asarray([0.2, 0.1, 0.3, 0.4, 0.5, 0.8]), jnp.asarray([3.0, 2.0, 5.0, 0.5])
    y, place = f * 1.1, np.array([0, 2, 1, 0])
    of_rows, own = every.at({OUTPUT: place}), (values[:2], values[2:3], values[3:])
    for method in ("log_density", "sd", "noisy"):
        last = () if method == "sd" else (y,)
        wanted = [getattr(errors[k], method)(own[k], f[j], *(part[j] for part in last)) for j, k in enumerate(place)]
        np.testing.assert_allclose(getattr(of_rows, method)(values, f, *last), wanted, rtol=1e-6)


def test_scores_and_closed_steps_are_by_output():
    outcome, data = grouped(STUDY, DIRECT)
    outcome = with_regimen(outcome, data.regimen, DIRECT.parameters)
    individual: dict[str, Individual] = {name: LogNormal(1.0) for name in DIRECT.parameters}
    model, units = built(outcome, [], data, individual)
    assert model.closed_error
    with jax.enable_x64(True):
        params = {"beta": jnp.log(jnp.asarray([20.0, 2.0, 50.0, 2.0])), "omega2": jnp.full(4, 0.1)}
        params |= {"error": jnp.asarray([0.3, 2.0])}
        batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[:3]), units)
        z = params["beta"] + 0.2 * jax.random.normal(jax.random.key(0), (2, 3, 4))
        w = jnp.asarray([[0.3, 0.5, 0.2], [0.7, 0.5, 0.8]])
        each, hessian = jax.jit(lambda *draws: model.derivatives(*draws))(params, z, w, batch)

        @jax.jit
        def total(error):
            moved = params | {"error": error}
            values = jax.vmap(lambda z: jax.vmap(lambda z, y: model.log_joint(moved, z, y))(z, batch))(z)
            return jnp.sum(w * values)

        # In the order of flat parameters: beta, error, omega2. Beside central differences.
        error, step = params["error"], 1e-4 * jnp.diag(params["error"])
        up, down, middle = total(error + step[0]), total(error - step[0]), total(error)
        other_up, other_down = total(error + step[1]), total(error - step[1])
        size = np.diagonal(step)
        slope = np.array([up - down, other_up - other_down]) / (2 * size)
        bend = np.array([up + down - 2 * middle, other_up + other_down - 2 * middle]) / size**2
        np.testing.assert_allclose(jnp.einsum("mb,mbp->p", w, each)[4:6], slope, rtol=1e-5)
        np.testing.assert_allclose(hessian[4:6, 4:6], np.diag(bend), rtol=1e-4, atol=1e-9)
        statistics = jax.jit(jax.vmap(lambda y: model.suffstats(params, params["beta"], y)))(jax.tree.map(jnp.asarray, units))
        found = model.m_step(jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), statistics), params)["error"]
    gap = data.frame["DV"].to_numpy() - predicted(STUDY, DIRECT, {"V": 20.0, "CL": 2.0, "E0": 50.0, "IC50": 2.0})
    np.testing.assert_allclose(found, [np.sqrt(np.mean(gap[data.output == k] ** 2)) for k in (0, 1)], rtol=1e-6)


@pytest.fixture(scope="module")
def fitted():
    individual = {
        "V": LogNormal(20.0, random=False),
        "CL": LogNormal(2.0),
        "E0": LogNormal(50.0),
        "IC50": LogNormal(2.0, random=False),
    }
    error = {"cp": "proportional", "effect": ConstantError()}
    settings: dict[str, Any] = {"n_iter": 60, "n_burn": 40, "n_starts": 1, "polish": False, "verbose": False}
    return mx.NLME(structural=DIRECT, individual=individual, error=error, **settings).fit(STUDY, lloq={"cp": 1.5})


def _log_joint(params, rows, eta):
    """log p(y, eta) of one subject, by NumPy and SciPy alone, at effects (..., 2)."""
    t, y, is_cp = rows["TIME"].to_numpy(), rows["DV"].to_numpy(), (rows["dvid"] == "cp").to_numpy()
    CL, E0 = params["CL"] * np.exp(eta[..., :1]), params["E0"] * np.exp(eta[..., 1:])
    C = 100 / params["V"] * np.exp(-CL / params["V"] * t)
    f = np.where(is_cp, C, E0 * (1 - C / (params["IC50"] + C)))
    sd = np.where(is_cp, params["b[cp]"] * C, params["a[effect]"])
    each = np.where(is_cp & (y < 1.5), stats.norm.logcdf(1.5, f, sd), stats.norm.logpdf(y, f, sd))
    return each.sum(axis=-1) + stats.norm.logpdf(eta, 0, np.sqrt([params["omega2_CL"], params["omega2_E0"]])).sum(axis=-1)


def _loglik(params):
    """By adaptive Gauss-Hermite quadrature over both effects."""
    nodes, weights = hermegauss(24)
    grid = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    weight = np.multiply.outer(weights, weights).ravel() / (2 * np.pi)
    total = 0.0
    for _, rows in STUDY[STUDY["EVID"] == 0].groupby("ID"):
        best = optimize.minimize(lambda eta, rows=rows: -_log_joint(params, rows, eta), np.zeros(2), method="BFGS")
        root = np.linalg.cholesky(best.hess_inv)
        values = _log_joint(params, rows, best.x + grid @ root.T) + np.sum(grid**2, axis=1) / 2 + np.log(2 * np.pi)
        top = values.max()
        total += top + np.log(weight @ np.exp(values - top)) + np.log(np.linalg.det(root))
    return total


def test_densities_are_those_outside(fitted):
    assert list(fitted.params_) == ["V", "CL", "E0", "IC50", "omega2_CL", "omega2_E0", "b[cp]", "a[effect]"]
    assert fitted.data_.censored
    eta = 0.3 * np.random.default_rng(1).normal(size=(fitted.n_subjects_, 2))
    params = jax.tree.map(jnp.asarray, fitted.result_.params)
    units, z = fitted._units(fitted.data_), params["beta"] + eta
    found = jax.jit(jax.vmap(lambda z, y: fitted.model_.log_joint(params, z, y)))(z.astype(params["beta"].dtype), units)
    subjects = [rows for _, rows in STUDY[STUDY["EVID"] == 0].groupby("ID")]
    wanted = [_log_joint(fitted.params_, rows, one) for rows, one in zip(subjects, eta, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=2e-4)


@pytest.mark.slow
def test_the_likelihood_is_that_of_a_quadrature_outside(fitted):
    found = fitted.loglik(method="quadrature", n_nodes=15)
    assert float(found) == pytest.approx(_loglik(fitted.params_), abs=2e-3)


def test_predictions_and_simulations_are_by_output(fitted):
    p = fitted.params_
    new = pd.DataFrame(
        {"ID": [99] * 3, "TIME": [0.0, 3.0, 3.0], "AMT": [50.0, 0, 0], "EVID": [1, 0, 0], "dvid": ["cp", "cp", "effect"]}
    )
    C = 50 / p["V"] * np.exp(-p["CL"] / p["V"] * 3)
    np.testing.assert_allclose(fitted.predict(new, level="population"), [C, p["E0"] * (1 - C / (p["IC50"] + C))], rtol=1e-4)
    drawn = np.log(np.maximum(fitted.simulate(new, n_draws=4000), 1e-9))
    # Of the concentration the logarithm has the variance of its error and of the clearance.
    wanted = p["b[cp]"] ** 2 + p["omega2_CL"] * (3 * p["CL"] / p["V"]) ** 2
    assert np.var(drawn[:, 0]) == pytest.approx(wanted, rel=0.15)
    with pytest.raises(ValueError, match="dvid = pain .*none of the model's outputs, cp, effect"):
        fitted.predict(new.assign(dvid="pain"))
    with pytest.raises(ValueError, match="output='dvid' is no column of the data"):
        fitted.predict(new.drop(columns="dvid"))


def test_residuals_and_figures_are_by_output(fitted):
    frame = fitted.residuals()
    assert list(frame.columns[:4]) == ["ID", "TIME", "dvid", "DV"]
    p, cp = fitted.params_, (frame["dvid"] == "cp").to_numpy()
    scale = np.where(cp, p["b[cp]"] * frame["individual"], p["a[effect]"])
    wanted = ((frame["DV"] - frame["individual"]) / scale).to_numpy()
    np.testing.assert_allclose(frame["iwres"], np.where(cp & (frame["DV"] <= 1.5), np.nan, wanted), rtol=1e-3, atol=1e-3)
    assert np.all(frame.loc[~cp, "variance"] > 4 * frame.loc[cp, "variance"].max())
    # A limit of the concentration is none of the effect.
    limits = of_rows(fitted.data_)[1]
    np.testing.assert_array_equal(limits, np.where(fitted.data_.output == 0, 1.5, -np.inf))
    assert [axis.get_ylabel() for axis in fitted.plot.vpc(n_simulations=40)] == [
        "cp (5th, 50th, 95th percentile)", "share of cp below its limit", "effect (5th, 50th, 95th percentile)",
    ]  # fmt: skip
    panels = fitted.plot.fits(n=2)
    assert [axis.get_title() for axis in panels] == ["ID 0: cp", "ID 1: cp", "ID 0: effect", "ID 1: effect"]
    seen = [axis.lines[2].get_ydata() for axis in panels]
    own = fitted.data_.frame.query("ID == 1 and dvid == 'effect'")
    np.testing.assert_array_equal(seen[3], own["DV"])
    np.testing.assert_allclose(panels[3].lines[1].get_ydata()[-1], frame["individual"][own.index[-1]], rtol=1e-3)
    assert np.shape(fitted.plot.goodness()) == (4, 3)


def test_conditional_residuals_are_by_output(fitted, tmp_path):
    fitted.tables(tmp_path, n_simulations=200)
    table, p = pd.read_csv(tmp_path / "sdtab.csv"), fitted.params_
    assert sorted(table["DVID"].unique()) == ["cp", "effect"]
    modes = pd.read_csv(tmp_path / "patab.csv").set_index("ID")[["ETA_CL", "ETA_E0"]]
    for subject, rows in table.groupby("ID"):
        cp = (rows["DVID"] == "cp").to_numpy()
        kept = ~(cp & (rows["DV"] <= 1.5).to_numpy())
        t, y, eta = rows["TIME"].to_numpy(), rows["DV"].to_numpy(), modes.loc[subject].to_numpy()

        def curve(eta, cp=cp, t=t):
            C = 100 / p["V"] * np.exp(-p["CL"] * np.exp(eta[0]) / p["V"] * t)
            return np.where(cp, C, p["E0"] * np.exp(eta[1]) * (1 - C / (p["IC50"] + C)))

        f = curve(eta)
        G = np.stack([(curve(eta + step) - curve(eta - step)) / 2e-5 for step in 1e-5 * np.eye(2)], axis=1)[kept]
        noise = np.where(cp, p["b[cp]"] * f, p["a[effect]"])[kept] ** 2
        values, vectors = np.linalg.eigh(G @ np.diag([p["omega2_CL"], p["omega2_E0"]]) @ G.T + np.diag(noise))
        wanted = vectors @ ((vectors.T @ ((y - f)[kept] + G @ eta)) / np.sqrt(values))
        np.testing.assert_allclose(rows["CWRES"].to_numpy()[kept], wanted, rtol=1e-3, atol=2e-3)
        assert rows["CWRES"].isna().to_numpy()[~kept].all()


def test_a_regimen_is_followed_by_one_output(fitted):
    p = fitted.params_
    effects = fitted.simulate_regimen("100 mg q12h x 3", n=20, output="effect", times=[1.0, 30.0])
    psi = effects.parameters
    C = sum(100 / psi["V"] * np.exp(-psi["CL"] / psi["V"] * (30 - at)) for at in (0, 12, 24))
    np.testing.assert_allclose(effects.individual[:, 1], psi["E0"] * (1 - C / (psi["IC50"] + C)), rtol=1e-6)
    assert np.all(np.isinf(effects.summary().loc["AUC_inf"].drop("cv").to_numpy()))
    spread = (effects.observed - effects.individual)[:, 1].std()
    assert spread == pytest.approx(p["a[effect]"], rel=0.5)
    with pytest.raises(ValueError, match="output= names one of the model's outputs, cp, effect; got None"):
        fitted.simulate_regimen("100 mg q12h x 3")


def test_starts_know_the_mirror_of_absorption_among_outputs():
    psi = {"ka": 0.1, "V": 2.0, "CL": 3.0, "E0": 1.0, "IC50": 1.0}
    assert mirrored(ORAL, psi) == mirrored(oral1cpt, psi)
    assert mirrored(DIRECT, psi) is None


@pytest.mark.slow
@pytest.mark.parametrize("error", ["proportional", Combined()])
def test_outputs_that_share_nothing_are_two_fits(error):
    """The log-likelihood is the sum of those of both alone, and estimates and standard errors are theirs: with a closed step of
    the errors, and by Newton's."""

    def decay(psi, row):
        return psi["A"] * jnp.exp(-psi["k"] * row["t"])

    def line(psi, row):
        return psi["b0"] + psi["b1"] * row["t"]

    rng, rows = np.random.default_rng(0), []
    for i in range(30):
        A, k, b0, b1 = np.array([10.0, 0.5, 100.0, 2.0]) * np.exp([0.3, 0.3, 0.1, 0.2] * rng.normal(size=4))
        rows += [(i, t, "cp", A * np.exp(-k * t) * (1 + 0.1 * rng.normal())) for t in (0.5, 1.0, 2.0, 4.0)]
        rows += [(i, t, "effect", b0 + b1 * t + 2 * rng.normal()) for t in (0.0, 1.0, 3.0, 6.0, 9.0)]
    data = pd.DataFrame(rows, columns=["id", "t", "DVID", "y"])
    of_decay, of_line = {"A": LogNormal(), "k": LogNormal()}, {"b0": LogNormal(), "b1": LogNormal()}
    roles: dict[str, Any] = {"id": "id", "time": "t", "y": "y"}
    both = mx.NLME(
        structural=outputs({"cp": decay, "effect": line}), individual=of_decay | of_line,
        error={"cp": error, "effect": "constant"}, verbose=False,
    ).fit(data, **roles)  # fmt: skip
    alone = {
        name: mx.NLME(structural=curve, individual=individual, error=own, verbose=False).fit(data.query("DVID == @name"), **roles)
        for name, curve, individual, own in [("cp", decay, of_decay, error), ("effect", line, of_line, "constant")]
    }
    total = sum(float(one.loglik_) for one in alone.values())
    assert float(both.loglik_) == pytest.approx(total, abs=0.01 + 3 * both.loglik_.se)
    for name, one in alone.items():
        for own, value in one.params_.items():
            joint = own if own in both.params_ else f"{own}[{name}]"
            assert both.params_[joint] == pytest.approx(value, abs=0.02 * one.stderr_[own])
            if own != "a" or not isinstance(error, Combined):
                assert both.stderr_[joint] == pytest.approx(one.stderr_[own], rel=0.02)
