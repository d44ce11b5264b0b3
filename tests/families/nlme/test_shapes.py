"""Random effects of other shapes than the normal one, beside likelihoods by NumPy that share no code with the library."""

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

import margaux
from margaux import NLME
from margaux.families.nlme import BoxCox, LogNormal, Normal, NormalPrior, StudentT, bolus1cpt, from_toml, lr_test, words
from margaux.families.nlme.error import as_error
from margaux.families.nlme.model import MixedEffects
from margaux.families.nlme.occasions import BetweenOccasions
from margaux.families.nlme.outcomes import OCCASION, PRESENT, Continuous
from margaux.numerics.precision import precision
from margaux.problem.model import differentiated

TIMES = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
#: a grid of standard normal effects, and its weights: sums over it are exact to rounding for what is as smooth as this
GRID = np.linspace(-8, 8, 1601)
WEIGHTS = scipy.stats.norm.pdf(GRID) * (GRID[1] - GRID[0])


def decay(psi, row):
    return psi["A"] * jnp.exp(-psi["k"] * row["time"])


def boxcox(z, omega, shape):
    return omega * z if abs(shape) < 1e-9 else np.expm1(shape * omega * z) / shape


def heavy(z, omega, shape):
    """Abramowitz and Stegun, 26.7.5, term by term."""
    terms = [
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    ]
    return omega * sum(term * shape**power for power, term in enumerate(terms))


def simulated(seed, of, omega, shape, n=60, sd=0.25):
    rng = np.random.default_rng(seed)
    k = 0.3 * np.exp(of(rng.normal(size=n), omega, shape))
    y = 10 * np.exp(-k[:, None] * TIMES) + sd * rng.normal(size=(n, len(TIMES)))
    return pd.DataFrame({"id": np.repeat(np.arange(n), len(TIMES)), "time": np.tile(TIMES, n), "y": y.ravel()})


def by_numpy(frame, of):
    """-log p(y) of (log A, log k, log omega2, log a, shape)."""
    y = frame["y"].to_numpy().reshape(-1, len(TIMES))

    def value(x):
        log_a, log_k, log_omega2, log_sd, shape = x
        with np.errstate(all="ignore"):
            k = np.exp(log_k + np.clip(of(GRID, np.exp(log_omega2 / 2), shape), -40, 40))
            gaps = y[:, None] - np.exp(log_a - k[:, None] * TIMES)
            log_p = scipy.stats.norm.logpdf(gaps, scale=np.exp(log_sd)).sum(axis=2)
        return -float(np.sum(scipy.special.logsumexp(log_p, b=WEIGHTS, axis=1)))

    return value


def hessian(f, x, step=2e-3):
    """By central differences."""
    eye, d = step * np.eye(len(x)), len(x)
    out = np.empty((d, d))
    for a in range(d):
        for b in range(d):
            signs = [(s, t) for s in (1, -1) for t in (1, -1)]
            out[a, b] = sum(s * t * f(x + s * eye[a] + t * eye[b]) for s, t in signs) / (4 * step**2)
    return out


def exact(frame, of, start):
    """Maximum of the likelihood, and standard errors, in the oracle's coordinates."""
    f = by_numpy(frame, of)
    found = scipy.optimize.minimize(f, start, method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-7, "maxfev": 4000})
    return found.x, -found.fun, np.sqrt(np.diagonal(np.linalg.inv(hessian(f, found.x))))


def fitted(frame, shape, **settings):
    """From starts that are three times off."""
    individual = {"A": LogNormal(30.0, random=False), "k": LogNormal(0.9, shape=shape)}
    return NLME(structural=decay, individual=individual, verbose=False, **settings).fit(frame, id="id", time="time", y="y")


CASES = [("boxcox", boxcox, "lambda_k", 0.5, 0.8), ("boxcox", boxcox, "lambda_k", 0.5, -0.6), ("t", heavy, "nu_k", 0.35, 0.25)]


@pytest.mark.parametrize(
    ("shape", "of", "name", "omega", "truth", "seed"),
    [
        pytest.param(*case, seed, marks=() if (case, seed) == (CASES[0], 1) else pytest.mark.slow)
        for case in CASES
        for seed in range(1, 5)
    ],
)
def test_the_maximum_and_standard_errors_are_those_of_a_likelihood_by_numpy(shape, of, name, omega, truth, seed):
    frame = simulated(seed, of, omega, truth)
    x, loglik, se = exact(frame, of, [np.log(10), np.log(0.3), 2 * np.log(omega), np.log(0.25), truth])
    model = fitted(frame, shape)
    params = model.params_
    own = 1 / params[name] if name == "nu_k" else params[name]
    u = np.array([np.log(params["A"]), np.log(params["k"]), np.log(params["omega2_k"]), np.log(params["a"]), own])
    assert abs(float(model.loglik_) - loglik) < 0.01
    assert np.all(np.abs(u - x) < 0.1 * se)
    sizes = [params["A"], params["k"], params["omega2_k"], params["a"], params[name] ** 2 if name == "nu_k" else 1.0]
    ratios = np.array([model.stderr_[key] for key in ("A", "k", "omega2_k", "a", name)]) / (np.array(sizes) * se)
    assert np.all(np.abs(ratios - 1) < 0.05), ratios


@pytest.fixture(scope="module")
def skewed():
    """A fit with skewed effects, and one with normal ones."""
    frame = simulated(1, boxcox, 0.5, 0.8)
    return frame, fitted(frame, "boxcox"), fitted(frame, None)


@pytest.mark.parametrize("nu", [3.0, 5.0, 30.0])
def test_tails_are_next_to_those_of_student(nu):
    z = np.linspace(-3, 3, 41)
    with precision(np.dtype(float)):
        got = StudentT().effect(jnp.asarray(0.4 * z), jnp.asarray(0.16), jnp.asarray(np.log(nu)))
    np.testing.assert_allclose(got, 0.4 * scipy.stats.t.ppf(scipy.stats.norm.cdf(z), nu), rtol=0.03)
    np.testing.assert_allclose(got, heavy(z, 0.4, 1 / nu), rtol=1e-12)


def test_box_cox_is_smooth_where_its_series_ends_and_finite_far_away():
    eta = np.array([-1.3, 0.1, 0.7])
    with precision(np.dtype(float)):
        for shape in (0.0, 1e-7, 0.0499 / 0.7, 0.0501 / 0.7, 2.0, -2.0):
            got = BoxCox().effect(jnp.asarray(eta), jnp.asarray(0.5), jnp.asarray(shape))
            np.testing.assert_allclose(got, boxcox(eta / 0.6, 0.6, shape), rtol=1e-7)
        for far in (80.0, -80.0):
            value, slope = jax.value_and_grad(lambda x: BoxCox().effect(x, jnp.asarray(0.5), jnp.asarray(3.0)))(jnp.asarray(far))
            assert np.isfinite(value) and np.isfinite(slope) and abs(value) <= 40


SCALED = {
    "p": Normal(1.0, shape="boxcox"), "q": Normal(1.0, occasion=True, shape="t"), "r": Normal(1.0, shape="boxcox"),
    "d": LogNormal(1.0, random=False),
}  # fmt: skip


@pytest.mark.parametrize(("error", "blocks"), [
    pytest.param("constant", ((0, 2),), marks=pytest.mark.slow),
    pytest.param("combined", ((0, 2),), marks=pytest.mark.slow),
    ("constant", ()),
])  # fmt: skip
def test_two_derivatives(error, blocks):
    """Of scores that densities of effects and of data share, in blocks, of occasions, with covariates."""
    outcome = Continuous(lambda p, row: p["p"] + p["q"] * row["t"] + p["r"] * p["d"], as_error(error))
    model = BetweenOccasions(outcome, tuple(SCALED.items()), (0, 0, 1, 2, 3), blocks, varying=(1,), shifted=(1,), most=2)
    rng, b, rows, m = np.random.default_rng(0), 3, 4, 5
    each = {"t": rng.uniform(0, 2, (b, rows)), "y": rng.normal(1, 1, (b, rows)), OCCASION: np.tile([0.0, 0, 1, 1], (b, 1))}
    root = np.eye(3) + 0.3 * np.tril(rng.normal(size=(3, 3)))
    with precision(np.dtype(float)):
        batch = {"rows": each, "mask": np.ones((b, rows)), "design": rng.normal(size=(b, 7)), PRESENT: np.ones((b, 2))}
        params: dict[str, Any] = {
            "beta": np.array([0.4, 0.3, -0.2, 1.0]), "fixed": np.array([0.1]), "gamma2": np.array([0.3]),
            "delta": np.array([0.7]), "error": np.array([0.6, 0.3][: len(outcome.error_names)]),
            "shape": np.array([0.4, 1.5, -0.3]),
        }  # fmt: skip
        if model.independent:
            params["omega2"] = rng.uniform(0.2, 0.6, len(model.independent))
        if blocks:
            params["omega"] = tuple((root @ root.T)[np.ix_(block, block)] for block in blocks)
        batch, params = jax.tree.map(jnp.asarray, (batch, params))
        z, w = jnp.asarray(rng.normal(0.3, 0.6, (m, b, 5))), jnp.asarray(rng.uniform(size=(m, b)))
        flat, back = ravel_pytree(params)
        ours = jax.jit(lambda flat: model.derivatives(back(flat), z, w, batch))(flat)
        theirs = jax.jit(lambda flat: differentiated(model, back, flat, z, w, batch))(flat)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("omega", "rho", "shape"), [("full", 0.5, None), ("diagonal", 0.0, "t")])
def test_two_effects_with_a_covariate_are_at_the_maximum(omega, rho, shape):
    """Of the likelihood by a grid in two dimensions: no parameter moved by a quarter of its standard error is more likely."""
    rng = np.random.default_rng(7)
    n, x = 60, np.tile([0.0, 1.0], 30)
    z = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], size=n)
    a = 10 * np.exp(0.2 * x + boxcox(z[:, 0], 0.3, 1.0))
    k = 0.3 * np.exp(0.3 * z[:, 1] if shape is None else heavy(z[:, 1], 0.3, 0.3))
    y = a[:, None] * np.exp(-k[:, None] * TIMES) + 0.8 * rng.normal(size=(n, len(TIMES)))
    frame = pd.DataFrame({"id": np.repeat(np.arange(n), 6), "time": np.tile(TIMES, n), "y": y.ravel(), "x": np.repeat(x, 6)})
    individual = {"A": LogNormal(30.0, covariates="x", shape="boxcox"), "k": LogNormal(0.9, shape=shape)}
    model = NLME(structural=decay, individual=individual, omega=omega, verbose=False).fit(frame, id="id", time="time", y="y")
    grid = np.linspace(-6, 6, 301)
    inner, outer = np.meshgrid(grid, grid, indexing="ij")
    weight = scipy.stats.norm.pdf(inner) * scipy.stats.norm.pdf(outer) * (grid[1] - grid[0]) ** 2

    def value(params):
        p = dict(zip(model.params_, params, strict=True))
        sd = np.sqrt([p["omega2_A"], p["omega2_k"]])
        rho = p.get("cov_A_k", 0.0) / np.prod(sd)
        log_k = rho * inner + np.sqrt(1 - rho**2) * outer
        rate = p["k"] * np.exp(sd[1] * log_k if shape is None else heavy(log_k, sd[1], 1 / p["nu_k"]))
        first = p["A"] * np.exp(boxcox(inner, sd[0], p["lambda_A"]))
        curves = [first[..., None] * np.exp(p["beta_A[x]"] * at - rate[..., None] * TIMES) for at in (0, 1)]
        total = -6 * n * np.log(p["a"] * np.sqrt(2 * np.pi))
        for own, at in zip(y, x, strict=True):
            log_p = -np.sum((own - curves[int(at)]) ** 2, axis=-1) / (2 * p["a"] ** 2)
            total += scipy.special.logsumexp(log_p, b=weight)
        return total

    params, stderr = np.array(list(model.params_.values())), np.array(list(model.stderr_.values()))
    here = value(params)
    assert model.certificate_.word == "certified"
    assert abs(here - float(model.loglik_)) < 0.01
    for j, se in enumerate(stderr):
        step = np.where(np.arange(len(params)) == j, 0.25 * se, 0.0)
        assert max(value(params + step), value(params - step)) < here


def test_tails_of_normal_effects_are_infinitely_normal():
    model = fitted(simulated(11, boxcox, 0.4, 0.0), "t")
    assert np.isinf(model.params_["nu_k"]) and np.isnan(model.stderr_["nu_k"])
    assert model.certificate_.word == "careful" and "tails are no heavier" in model.message_
    normal = fitted(simulated(11, boxcox, 0.4, 0.0), None)
    assert float(model.loglik_) == pytest.approx(float(normal.loglik_), abs=1e-3)
    assert model.n_params_ == normal.n_params_ + 1
    assert model.predict().shape == (360,) and "nu_k" in model.summary().index


@pytest.mark.slow
def test_tails_without_a_variance_are_said_to_be():
    rng = np.random.default_rng(3)
    k = 0.3 * np.exp(0.2 * rng.standard_t(1.2, size=60))
    y = 10 * np.exp(-k[:, None] * TIMES) + 0.2 * rng.normal(size=(60, 6))
    frame = pd.DataFrame({"id": np.repeat(np.arange(60), 6), "time": np.tile(TIMES, 60), "y": y.ravel()})
    model = fitted(frame, "t")
    assert model.params_["nu_k"] < 2 and model.certificate_.word == "careful"
    assert any(check.name == "tails" for check in model.certificate_.trouble)


def test_a_shape_without_information_is_said_to_have_none():
    """Effects of two percent, which are hardly there."""
    hardly = fitted(simulated(5, boxcox, 0.02, 0.8, n=40), "boxcox")
    assert hardly.certificate_.word == "careful" and "lambda_k" in str(hardly.certificate_)


@pytest.mark.slow
def test_an_effect_without_variance_has_no_shape():
    none = fitted(simulated(5, boxcox, 0.0001, 0.8, n=40), "boxcox")
    assert "lambda_k" not in none.params_ and none.params_["omega2_k"] == 0 and "no shape" in none.message_


def test_answers(skewed, tmp_path):
    frame, model, normal = skewed
    test = lr_test(normal, model)
    assert test.df == 1 and test.p < 0.01 and not test.note
    wald = model.wald_test("lambda_k")
    assert wald.statistic == pytest.approx((model.params_["lambda_k"] / model.stderr_["lambda_k"]) ** 2)
    assert float(model.summary()["p"]["lambda_k"]) < 0.01
    # Simulated parameters have the skewness of the distribution, by quantiles of the curve at one time.
    draws = model.simulate(n_draws=400)[:, frame["time"].to_numpy() == 1.0]
    k = model.params_["k"] * np.exp(boxcox(GRID, np.sqrt(model.params_["omega2_k"]), model.params_["lambda_k"]))
    assert np.mean(draws) == pytest.approx(np.sum(WEIGHTS * model.params_["A"] * np.exp(-k)), rel=0.01)
    eta = np.log(model.individual_["mode_k"] / model.params_["k"])
    np.testing.assert_allclose(eta, boxcox(model.plot._effects()["k"].to_numpy(), 1.0, model.params_["lambda_k"]), rtol=1e-6)
    np.testing.assert_allclose(model.predict(level="population")[:6], model.params_["A"] * np.exp(-model.params_["k"] * TIMES))
    model.save(tmp_path / "fit")
    assert margaux.load(tmp_path / "fit").params_ == model.params_
    assert "skewness" in words.effects(model)
    with pytest.raises(ValueError, match="effects that are normal"):
        model.summary(method="linearised")
    line = model.profile("lambda_k", [0.2, 0.5, 0.7, 1.0])
    assert float(line["loglik"].to_numpy().argmax()) == 2 and line.attrs["maximiser"] == pytest.approx(
        model.params_["lambda_k"], abs=0.05
    )


def test_a_profile_and_an_interval_of_degrees_of_freedom():
    model = fitted(simulated(2, heavy, 0.35, 0.25), "t")
    line = model.profile("nu_k", [2.5, 4.0, 20.0])
    assert list(line["nu_k"]) == pytest.approx([2.5, 4.0, 20.0]) and np.argmax(line["loglik"].to_numpy()) == 1
    row = model.summary().loc["nu_k"].to_dict()
    assert row["ci_low"] < row["estimate"] and np.isinf(row["ci_high"]) and np.isnan(row["p"])
    with pytest.raises(ValueError, match="lr_test"):
        model.wald_test("nu_k")


@pytest.mark.slow
def test_a_shape_that_is_held_and_one_that_has_a_prior():
    frame = simulated(1, boxcox, 0.5, 0.8)
    held = fitted(frame, BoxCox(0.4, fixed=True))
    free, start = by_numpy(frame, boxcox), [np.log(10), np.log(0.3), -1.4, np.log(0.25)]
    found = scipy.optimize.minimize(lambda x: free([*x, 0.4]), start, method="Nelder-Mead")
    assert held.held_ == {"lambda_k": 0.4} and float(held.loglik_) == pytest.approx(-found.fun, abs=0.01)
    prior = fitted(frame, "boxcox", priors={"lambda_k": NormalPrior(0.0, sd=0.1)})
    posterior = scipy.optimize.minimize(
        lambda x: free(x) + (x[4] / 0.1) ** 2 / 2, [*start, 0.1], method="Nelder-Mead",
        options={"xatol": 1e-5, "fatol": 1e-7, "maxfev": 4000},
    )  # fmt: skip
    assert prior.params_["lambda_k"] == pytest.approx(posterior.x[4], abs=0.01)


def test_model_files_hold_shapes(tmp_path):
    shapes = {"V": LogNormal(20.0, shape=BoxCox(0.5, fixed=True)), "CL": LogNormal(shape="t")}
    text = NLME(structural=bolus1cpt, individual=shapes).to_toml()
    assert 'shape = "boxcox"' in text and "shape_initial = 0.5" in text and 'shape = "t"' in text
    (tmp_path / "model.toml").write_text(text)
    assert from_toml(tmp_path / "model.toml").model.individual == shapes
    (tmp_path / "wrong.toml").write_text(text.replace('shape = "boxcox"\n', ""))
    with pytest.raises(ValueError, match="is of a shape, which is missing"):
        from_toml(tmp_path / "wrong.toml")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LogNormal(shape="gamma"), "shape must be one of boxcox, t"),
        (lambda: LogNormal(1.0, random=False, shape="t"), "random=False leaves out"),
        (lambda: BoxCox(np.inf), "lambda of BoxCox cannot be inf"),
        (lambda: StudentT(1.5), "nu of StudentT cannot be 1.5"),
        (lambda: StudentT(fixed=True), "there is none"),
    ],
)
def test_what_is_no_shape(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_what_is_refused_before_anything_is_fitted():
    frame = simulated(1, boxcox, 0.5, 0.8, n=4)
    with pytest.raises(ValueError, match="exponentialised"):
        fitted(frame, "boxcox", fixed_effects="exponentialised")
    with pytest.raises(ValueError, match="takes no prior"):
        fitted(frame, "t", priors={"nu_k": NormalPrior(4.0, sd=1.0)})
    individual: dict[str, Any] = {"A": LogNormal(1.0), "k": LogNormal(1.0, shape="t")}
    with pytest.raises(ValueError, match="leave k out of the block"):
        NLME(structural=decay, individual=individual, omega="full").fit(frame, id="id", time="time", y="y")
    individual = {"A": LogNormal(1.0), "k": LogNormal(1.0, shape="boxcox"), "lambda_k": Normal(1.0)}
    with pytest.raises(ValueError, match="rename it"):
        NLME(structural=decay, individual=individual).fit(frame, id="id", time="time", y="y")


def test_without_shapes_there_is_nothing_more():
    individual = (("p", Normal(1.0)), ("q", Normal(1.0)))
    model = MixedEffects(Continuous(lambda p, row: p["p"] + p["q"], as_error("constant")), individual, (0, 1), ())
    assert model.numerical == () and model.curved == () and "shape" not in model.space()
    assert len(jax.tree.leaves(dataclasses.replace(model, typical=np.ones(2)))) == 1
