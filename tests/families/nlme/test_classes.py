"""Classes of subjects that nobody has named, beside likelihoods by NumPy on grids, which share no code with the library."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy
from jax.flatten_util import ravel_pytree
from scipy.special import logsumexp

import margaux
from margaux import NLME
from margaux.answers.rules import best_rule
from margaux.families.nlme import LogNormal, Normal, NormalPrior, bolus1cpt, from_toml, lr_test, words
from margaux.families.nlme import classes as of_classes
from margaux.families.nlme.error import as_error
from margaux.families.nlme.model import MixedEffects
from margaux.families.nlme.outcomes import Continuous
from margaux.families.nlme.whole import whole, with_model
from margaux.numerics.precision import precision
from margaux.problem.model import differentiated

#: few observations, after which the classes of some subjects stay open, and many
SPARSE, RICH = np.array([1.0, 4.0]), np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
#: log k on a grid: sums over it are exact to rounding for what is as smooth as this
GRID = np.linspace(-7, 4, 551)


def decay(psi, row):
    return psi["A"] * jnp.exp(-psi["k"] * row["time"])


def simulated(seed, times, shifts: Any = (1.5,), shares: Any = (0.4,), omega=0.35, sd=1.0, n=80):
    rng = np.random.default_rng(seed)
    of = np.searchsorted(np.cumsum([1 - sum(shares), *shares]), rng.random(n))
    k = 0.2 * np.exp(np.r_[0.0, shifts][of] + omega * rng.normal(size=n))
    y = 10 * np.exp(-k[:, None] * times) + sd * rng.normal(size=(n, len(times)))
    return pd.DataFrame({"id": np.repeat(np.arange(n), len(times)), "time": np.tile(times, n), "y": y.ravel()}), of


def by_numpy(frame, times):
    """log p(y_i, class) (n, K), of log A, log k, log omega2, log a, the shifts, and the log odds of the shares."""
    y = frame["y"].to_numpy().reshape(-1, 1, len(times))
    curve = np.exp(-np.exp(GRID)[:, None] * times)

    def logs(x):
        count = (len(x) - 4) // 2
        shifts, odds = np.r_[0.0, x[4 : 4 + count]], np.r_[0.0, x[4 + count :]]
        with np.errstate(all="ignore"):
            gaps = np.sum((y - np.exp(x[0]) * curve) ** 2, axis=2)
            log_p = -gaps / (2 * np.exp(2 * x[3])) - len(times) * (x[3] + np.log(2 * np.pi) / 2)
            each = [scipy.stats.norm.logpdf(GRID, x[1] + shift, np.exp(x[2] / 2)) for shift in shifts]
            of = [logsumexp(log_p + own, axis=1) + np.log(GRID[1] - GRID[0]) for own in each]
        return np.stack(of, axis=1) + odds - logsumexp(odds)

    def value(x):
        each: Any = logsumexp(logs(x), axis=1)
        total = -float(each.sum())
        return total if np.isfinite(total) else 1e10

    return logs, value


def hessian(f, x, step):
    """By central differences."""
    eye, d = np.diag(step), len(x)
    out = np.empty((d, d))
    for a in range(d):
        for b in range(d):
            signs = [(s, t) for s in (1, -1) for t in (1, -1)]
            out[a, b] = sum(s * t * f(x + s * eye[a] + t * eye[b]) for s, t in signs) / (4 * step[a] * step[b])
    return out


def exact(f, starts):
    """The highest of the maxima from some starts, and standard errors, in the oracle's coordinates, its shifts ascending."""
    ends = [scipy.optimize.minimize(f, start, method="BFGS", options={"gtol": 1e-3}) for start in starts]
    first = min(ends, key=lambda end: end.fun).x
    settings = {"xatol": 1e-4, "fatol": 1e-6, "maxfev": 2000}
    found = scipy.optimize.minimize(f, first, method="Nelder-Mead", options=settings)
    x = found.x
    if len(x) == 6 and x[4] < 0:
        x = np.array([x[0], x[1] + x[4], x[2], x[3], -x[4], -x[5]])
    step = np.where(np.arange(len(x)) == 0, 1e-3, 5e-3)
    return x, -found.fun, np.sqrt(np.diagonal(np.linalg.inv(hessian(f, x, step))))


def fitted(frame, classes: int | None = 2, **settings) -> Any:
    """From starts that are three times off."""
    individual = {"A": LogNormal(30.0, random=False), "k": LogNormal(0.6, classes=classes)}
    return NLME(structural=decay, individual=individual, verbose=False, **settings).fit(frame, id="id", time="time", y="y")


def own_coordinates(params, count=2):
    """Those of the oracle, and what a standard error there is in `params_`."""
    of = range(2, count + 1)
    shares = np.array([params[f"share_{k}"] for k in of])
    kept = [params[name] for name in ("A", "k", "omega2_k", "a")]
    shifts = [params[f"beta_k[class {k}]"] for k in of]
    x = np.array([*np.log(kept), *shifts, *np.log(shares / (1 - shares.sum()))])
    return x, np.array([*kept, *np.ones(count - 1), *(shares * (1 - shares))])


CASES = {
    "sparse": (SPARSE, {}),
    "far": (SPARSE, {"shifts": (2.0,), "omega": 0.25, "sd": 1.5}),
    "rich": (RICH, {"shifts": (1.0,), "sd": 0.5, "n": 60}),
}
EVERY = [("sparse", 2), *(pytest.param(case, seed, marks=pytest.mark.slow) for case in CASES for seed in (1, 4, 5))]


@pytest.mark.parametrize(("case", "seed"), EVERY)
def test_the_maximum_standard_errors_and_memberships_are_those_of_a_likelihood_by_numpy(case, seed):
    times, settings = CASES[case]
    frame, _ = simulated(seed, times, **settings)
    logs, value = by_numpy(frame, times)
    about = [np.log(10), np.log(0.2), -2.0, 0.0]
    # Of the case that is quick to run, one start is enough.
    starts = [[*about, 1.5, 0.0]] + ([] if seed == 2 else [[*about, 0.8, 1.0], [*about, 1.5, -1.0]])
    x, loglik, se = exact(value, starts)
    model = fitted(frame)
    u, sizes = own_coordinates(model.params_)
    assert float(model.loglik_) > loglik - 0.01
    assert abs(-value(u) - float(model.loglik_)) < 0.01
    if float(model.loglik_) > loglik + 0.01:  # the oracle's searches missed the maximum: they go on from where it is higher
        x, loglik, se = exact(value, [u])
        assert abs(float(model.loglik_) - loglik) < 0.01
    assert np.all(np.abs(u - x) < 0.1 * se)
    names = ("A", "k", "omega2_k", "a", "beta_k[class 2]", "share_2")
    ratios = np.array([model.stderr_[name] for name in names]) / (sizes * se)
    assert np.all(np.abs(ratios - 1) < 0.05), ratios
    each = np.exp(logs(u) - logsumexp(logs(u), axis=1, keepdims=True))
    assert np.abs(model.membership_[["class 1", "class 2"]].to_numpy() - each).max() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("omega", ["diagonal", "full"])
def test_two_effects_of_which_both_have_classes_are_at_the_maximum(omega):
    """Of the likelihood by a grid in two dimensions: no parameter moved by a quarter of its standard error is more likely."""
    rng, n, times = np.random.default_rng(5), 60, np.array([0.5, 2.0, 5.0])
    of, z = rng.random(n) < 0.4, rng.normal(size=(n, 2)) @ np.array([[0.25, 0.0], [0.1, 0.3]]).T
    a, k = 10 * np.exp(-0.5 * of + z[:, 0]), 0.2 * np.exp(1.4 * of + z[:, 1])
    y = a[:, None] * np.exp(-k[:, None] * times) + 0.6 * rng.normal(size=(n, 3))
    frame = pd.DataFrame({"id": np.repeat(np.arange(n), 3), "time": np.tile(times, n), "y": y.ravel()})
    individual = {"A": LogNormal(30.0, classes=2), "k": LogNormal(0.6, classes=2)}
    model = NLME(structural=decay, individual=individual, omega=omega, verbose=False).fit(frame, id="id", time="time", y="y")
    log_a, log_k = np.meshgrid(np.linspace(0.8, 3.8, 161), np.linspace(-3.6, 1.6, 161), indexing="ij")
    cell = np.log(log_a[1, 0] - log_a[0, 0]) + np.log(log_k[0, 1] - log_k[0, 0])
    curves = np.exp(log_a)[..., None] * np.exp(-np.exp(log_k)[..., None] * times)

    def value(params):
        p = dict(zip(model.params_, params, strict=True))
        matrix = np.diag([p["omega2_A"], p["omega2_k"]]) + p.get("cov_A_k", 0.0) * (1 - np.eye(2))
        inverse, constant = np.linalg.inv(matrix), -np.log(2 * np.pi) - np.linalg.slogdet(matrix)[1] / 2
        parts = []
        for share, a, k in ((1 - p["share_2"], 0, 0), (p["share_2"], p["beta_A[class 2]"], p["beta_k[class 2]"])):
            gap = np.stack([log_a - np.log(p["A"]) - a, log_k - np.log(p["k"]) - k])
            parts.append(np.log(share) + constant - np.einsum("iab,ij,jab->ab", gap, inverse, gap) / 2)
        population = logsumexp(parts, axis=0) + cell
        total = -3 * n * np.log(p["a"] * np.sqrt(2 * np.pi))
        for own in y:
            total += logsumexp(population - np.sum((own - curves) ** 2, axis=-1) / (2 * p["a"] ** 2))
        return total

    params, stderr = np.array(list(model.params_.values())), np.array(list(model.stderr_.values()))
    here = value(params)
    assert model.params_["beta_A[class 2]"] > 0  # the lowest A is that of the first class
    assert abs(here - float(model.loglik_)) < 0.01
    for j, se in enumerate(stderr):
        step = np.where(np.arange(len(params)) == j, 0.25 * se, 0.0)
        assert max(value(params + step), value(params - step)) < here


@pytest.mark.slow
def test_three_classes_are_at_the_maximum():
    frame, of = simulated(6, RICH, shifts=(1.2, 2.4), shares=(0.3, 0.3), omega=0.2, sd=0.3, n=90)
    logs, value = by_numpy(frame, RICH)
    model = fitted(frame, 3)
    u, _ = own_coordinates(model.params_, 3)
    x, loglik, se = exact(value, [[np.log(10), np.log(0.2), 2 * np.log(0.2), np.log(0.3), 1.2, 2.4, 0.0, 0.0]])
    assert abs(float(model.loglik_) - loglik) < 0.01
    assert np.all(np.abs(u - x) < 0.1 * se)
    assert np.mean(model.membership_["class"] == of + 1) > 0.9
    assert model.certificate_.word == "certified"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_one_population_is_not_certified_to_be_two(seed):
    model = fitted(simulated(seed, RICH, shares=(0.0,), sd=0.5, n=50)[0])
    assert model.certificate_["classes"].level == "careful" and model.certificate_.word != "certified"
    assert "do not ask for 2 classes" in model.message_ or "hardly ask for 2 classes" in model.message_


@pytest.mark.slow
def test_subjects_of_a_class_that_are_alike_are_an_edge():
    """Where the likelihood by NumPy rises as the variance within classes falls to nothing."""
    frame, _ = simulated(3, SPARSE, **CASES["far"][1])
    _, value = by_numpy(frame, SPARSE)
    model = fitted(frame)
    x = own_coordinates(model.params_)[0]
    along = [value(np.array([*x[:2], log_omega2, *x[3:]])) for log_omega2 in (-3.0, -4.0, -5.0, -6.0)]
    assert np.all(np.diff(along) < 0) and float(model.loglik_) > -along[-1]
    assert "omega2_k vanishes" in model.message_ and model.certificate_.word == "careful"
    assert np.isnan(model.stderr_["omega2_k"]) and model.stderr_["share_2"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_few_subjects_and_equal_ones(classes):
    few = fitted(simulated(2, RICH, sd=0.5, n=8)[0], classes)
    assert np.isfinite(float(few.loglik_)) and few.membership_["class"].isin(range(1, classes + 1)).all()
    frame, _ = simulated(2, RICH, n=12)
    rng = np.random.default_rng(0)
    same = frame.assign(y=10 * np.exp(-0.2 * frame["time"]) + 0.3 * np.tile(rng.normal(size=len(RICH)), 12))
    model = fitted(same, classes)
    assert model.certificate_.word != "certified"
    assert model.params_["share_2"] == 0 and np.isnan(model.stderr_["share_2"]) and np.isnan(model.params_["beta_k[class 2]"])
    assert (model.membership_["class 1"] == 1).all()
    assert whole(model)._model().model.classes == 1 and model.individual_.notna().all(axis=None)  # type: ignore[attr-defined]
    assert np.all(np.isfinite(model.predict())) and np.all(np.isfinite(model.simulate()))


@pytest.fixture(scope="module")
def both():
    """Data, classes, a fit with two classes, and one of one population."""
    frame, of = simulated(2, SPARSE)
    return frame, of, fitted(frame), fitted(frame, None)


def test_answers_are_of_classes(both, tmp_path):
    frame, of, model, one = both
    assert list(model.params_) == ["A", "k", "beta_k[class 2]", "omega2_k", "a", "share_2"]
    assert model.n_params_ == 6 and one.n_params_ == 4
    assert abs(model.bic_ - (-2 * float(model.loglik_) + 6 * np.log(80))) < 1e-9 and model.bic_ < one.bic_
    assert model.certificate_.word == "certified" and model.starts_.attrs["more"] == 2
    assert np.mean(model.membership_["class"] == of + 1) > 0.9
    table = model.summary()
    assert np.isnan(table.loc[["share_2", "beta_k[class 2]"], ["t", "p"]].to_numpy()).all()
    assert 0 < table.loc["share_2", "ci_low"] < table.loc["share_2", "ci_high"] < 1
    # Means given the data, by a grid.
    u = own_coordinates(model.params_)[0]
    gaps = (frame["y"].to_numpy().reshape(-1, 1, 2) - np.exp(u[0]) * np.exp(-np.exp(GRID)[:, None] * SPARSE)) ** 2
    prior = [np.log(s) + scipy.stats.norm.logpdf(GRID, u[1] + shift, np.exp(u[2] / 2))
             for s, shift in ((1 - model.params_["share_2"], 0.0), (model.params_["share_2"], u[4]))]  # fmt: skip
    weight = scipy.special.softmax(-gaps.sum(axis=2) / (2 * np.exp(2 * u[3])) + logsumexp(prior, axis=0), axis=1)
    np.testing.assert_allclose(model.individual_["mean_k"], weight @ np.exp(GRID), rtol=1e-4)
    draws = model.sample_individual(1000)["k"]
    np.testing.assert_allclose(draws.mean(axis=0), weight @ np.exp(GRID), rtol=0.15)
    # Predictions of typical subjects, of their mean, and of individuals at their modes.
    levels = {level: model.predict(level=level) for level in ("class 1", "class 2", "population", "individual")}
    share = model.params_["share_2"]
    np.testing.assert_allclose(levels["population"], (1 - share) * levels["class 1"] + share * levels["class 2"], rtol=1e-6)
    rate = model.params_["k"] * np.exp(model.params_["beta_k[class 2]"])
    np.testing.assert_allclose(levels["class 2"], model.params_["A"] * np.exp(-rate * frame["time"]), rtol=1e-5)
    at_mode = model.individual_["mode_k"].to_numpy()[np.repeat(np.arange(80), 2)]
    np.testing.assert_allclose(levels["individual"], model.params_["A"] * np.exp(-at_mode * frame["time"]), rtol=1e-5)
    margaux_file = tmp_path / "model"
    model.save(margaux_file)
    loaded = margaux.load(margaux_file)
    assert loaded.membership_.equals(model.membership_) and loaded.certificate_.word == "certified"
    assert "2 classes" in words.effects(model)


def test_simulations_draw_a_class(both):
    model = both[2]
    y = model.simulate(n_draws=200)[:, ::2].ravel()
    p = model.params_
    z = np.linspace(-6, 6, 401)
    weight = scipy.stats.norm.pdf(z) * (z[1] - z[0])
    of = [p["A"] * np.exp(-p["k"] * np.exp(shift + np.sqrt(p["omega2_k"]) * z)) for shift in (0.0, p["beta_k[class 2]"])]
    mean = (1 - p["share_2"]) * weight @ of[0] + p["share_2"] * weight @ of[1]
    square = (1 - p["share_2"]) * weight @ of[0] ** 2 + p["share_2"] * weight @ of[1] ** 2
    assert abs(y.mean() - mean) < 0.1
    assert abs(y.var() - (square - mean**2 + p["a"] ** 2)) < 0.4


def test_what_is_of_one_population_refuses_classes(both):
    _, _, model, one = both
    with pytest.raises(ValueError, match="no test by chi-squared"):
        lr_test(one, model)
    with pytest.raises(ValueError, match="a search for covariates is of one population"):
        model.covariates({"k": ["x"]})
    with pytest.raises(ValueError, match="no Wald test holds"):
        model.wald_test("share_2")
    with pytest.raises(ValueError, match="linearised information is of one population"):
        model.summary(method="linearised")
    with pytest.raises(ValueError, match="or \"class 2\", got 'class 3'"):
        model.predict(level="class 3")
    with pytest.raises(ValueError, match="no parameter has classes"):
        _ = one.membership_


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"classes": 1}, "at least 2, got 1"),
        ({"classes": True}, "at least 2, got True"),
        ({"classes": 2.0}, "at least 2, got 2.0"),
        ({"classes": 2, "random": False}, "does not go with random=False"),
        ({"classes": 2, "occasion": True}, "does not go with occasion=True"),
        ({"classes": 2, "shape": "t"}, "does not go with shape="),
        ({"classes": 2, "fixed": True}, "does not go with fixed=True"),
        ({"classes": 2, "variance": 0.1}, "does not go with variance="),
    ],
)
def test_classes_that_a_parameter_cannot_have(settings, told):
    with pytest.raises(ValueError, match=told):
        LogNormal(1.0, **settings)


@pytest.mark.parametrize(
    ("individual", "settings", "told"),
    [
        ({"A": LogNormal(classes=2), "k": LogNormal(classes=3)}, {}, "differ on how many: A has 2, k has 3"),
        ({"A": LogNormal(shape="t"), "k": LogNormal(classes=2)}, {}, r"individual\['A'\] has shape="),
        ({"A": LogNormal(occasion=True), "k": LogNormal(classes=2)}, {}, r"individual\['A'\] has occasion=True"),
        ({"A": LogNormal(), "share_2": LogNormal(classes=2)}, {}, "the share of a class is called share_2"),
        ({"A": LogNormal(), "k": LogNormal(classes=2)}, {"priors": {"A": NormalPrior(1.0, sd=1.0)}}, "priors= does not go with"),
        ({"A": LogNormal(), "k": LogNormal(classes=2)}, {"polish": False}, "does not go with polish=False"),
    ],
)
def test_models_that_cannot_have_classes(individual, settings, told):
    frame, _ = simulated(2, SPARSE, n=6)
    with pytest.raises(ValueError, match=told):
        NLME(structural=decay, individual=individual, verbose=False, **settings).fit(frame, id="id", time="time", y="y")


@pytest.mark.parametrize("error", ["constant", "combined"])
def test_two_derivatives(error):
    """In a block, with a covariate, of three classes."""
    outcome = Continuous(lambda p, row: p["p"] + p["q"] * row["t"] + p["r"] * p["d"], as_error(error))
    individual = {
        "p": Normal(1.0, classes=3), "q": LogNormal(1.0), "r": Normal(1.0, classes=3), "d": LogNormal(1.0, random=False)
    }  # fmt: skip
    model = MixedEffects(outcome, tuple(individual.items()), (0, 0, 1, 2, 3), ((0, 2),))
    rng, b, rows, m = np.random.default_rng(0), 3, 4, 5
    root = np.eye(2) + 0.3 * np.tril(rng.normal(size=(2, 2)))
    with precision(np.dtype(float)):
        batch = {
            "rows": {"t": rng.uniform(0, 2, (b, rows)), "y": rng.normal(1, 1, (b, rows))},
            "mask": np.ones((b, rows)), "design": rng.normal(size=(b, 5)),
        }  # fmt: skip
        params: dict[str, Any] = {
            "beta": np.array([0.4, 0.3, -0.2, 1.0]), "fixed": np.array([0.1]), "omega2": np.array([0.4]),
            "omega": (root @ root.T,), "error": np.array([0.6, 0.3][: len(outcome.error_names)]),
            "share": np.array([0.3, -0.4]), "shift": np.array([0.5, -1.0, 1.5, 0.7]),
        }  # fmt: skip
        batch, params = jax.tree.map(jnp.asarray, (batch, params))
        z, w = jnp.asarray(rng.normal(0.3, 0.6, (m, b, 3))), jnp.asarray(rng.uniform(size=(m, b)))
        flat, back = ravel_pytree(params)
        ours = jax.jit(lambda flat: model.derivatives(back(flat), z, w, batch))(flat)
        theirs = jax.jit(lambda flat: differentiated(model, back, flat, z, w, batch))(flat)
        # The same population in whatever order its classes come.
        right = of_classes.ordered(model, params)
        turned = of_classes.ordered(model, jax.tree.map(np.asarray, params) | {"shift": -np.asarray(params["shift"])})
        others = [model.log_effects(own, z[0, 0], {"design": batch["design"][0] * 0 + 1}) for own in (params, right)]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)
    assert np.all(np.diff([0.0, *right["shift"][::2]]) > 0)
    assert np.all(np.diff([0.0, *turned["shift"][::2]]) > 0) and float(others[0]) == pytest.approx(float(others[1]))


def test_a_model_file_has_classes(tmp_path):
    individual = {"V": LogNormal(20.0), "CL": LogNormal(2.0, classes=2)}
    text = NLME(structural=bolus1cpt, individual=individual).to_toml()
    file = tmp_path / "model.toml"
    file.write_text(text)
    assert from_toml(file).model.individual == individual
    file.write_text(text.replace("classes = 2", "classes = 1"))
    with pytest.raises(ValueError, match="classes must be a whole number of at least 2"):
        from_toml(file)


def test_modes_of_a_posterior_are_searched_for_from_each_class(both):
    """Two modes so far apart that each is empty of the other's curvature: the likelihood is that of a grid."""
    frame, _ = simulated(1, SPARSE, n=5, sd=4.0)
    model = both[2]
    params = {
        **model.result_.params,
        "shift": np.array([4.0]), "omega2": np.array([0.05]), "share": np.array([0.0]), "error": np.array([4.0]),
    }  # fmt: skip
    units = model.data_.units | {"design": np.ones((80, 2))}
    given: Any = units["rows"]
    rows = {name: np.asarray(leaf)[:5] for name, leaf in given.items()} | {"y": frame["y"].to_numpy().reshape(5, 2)}
    units = {"rows": rows, "mask": units["mask"][:5], "design": units["design"][:5]}
    fit = with_model(model.result_, dataclasses.replace(model.model_, groups=()), units, params)
    modes = best_rule(fit).modes
    assert modes is not None and modes.max() == 2
    _, value = by_numpy(frame, SPARSE)
    x = [params["fixed"][0], params["beta"][0], np.log(0.05), np.log(4.0), 4.0, 0.0]
    assert abs(float(fit.loglik()) + value(np.array(x, float))) < 0.01
