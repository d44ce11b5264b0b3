"""Mixed models against exact answers: quadrature by SciPy, published fits of other packages, closed forms."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, special, stats

import margaux as mx


def fitted(formula, data, family, **settings):
    return mx.GLMM(formula, family=family, verbose=False, **settings).fit(data)


def counted(n=40, rows=6, seed=2):
    rng = np.random.default_rng(seed)
    g, x = np.repeat(np.arange(n), rows), rng.normal(size=n * rows)
    eta = 0.3 + 0.5 * x + 0.7 * rng.normal(size=n)[g]
    return pd.DataFrame({"x": x, "g": g, "y": rng.poisson(np.exp(eta)), "k": rng.binomial(5, special.expit(eta)), "n": 5})


def by_quadrature(log_rows, data, start):
    """A random-intercept model's maximum by SciPy: (intercept, slope, log sd), log-likelihood, standard errors."""
    u, h = np.linspace(-8, 8, 801, retstep=True)
    log_w = stats.norm.logpdf(u) + np.log(h)
    g, x = data["g"].to_numpy(), data["x"].to_numpy()

    def negative(theta):
        eta = theta[0] + theta[1] * x[:, None] + np.exp(theta[2]) * u
        rows = np.add.reduceat(log_rows(eta), np.flatnonzero(np.diff(g, prepend=-1)))
        total: Any = special.logsumexp(rows + log_w, axis=1)
        return -float(np.sum(total))

    best = optimize.minimize(negative, start, method="BFGS", options={"gtol": 1e-7})
    h, eye = 1e-4, np.eye(3)
    hessian = np.array([
        [(negative(best.x + h * (a + b)) - negative(best.x + h * (a - b)) - negative(best.x - h * (a - b))
          + negative(best.x - h * (a + b))) / (4 * h * h) for b in eye] for a in eye])  # fmt: skip
    return best.x, -best.fun, np.sqrt(np.diagonal(np.linalg.inv(hessian)))


@pytest.mark.parametrize("family, response", [("poisson", "y"), pytest.param("binomial", "k/n", marks=pytest.mark.slow)])
@pytest.mark.parametrize("factor", [None, 1 / 3, 3.0])
def test_a_random_intercept_is_that_of_quadrature(family, response, factor):
    data = counted()
    rows = {
        "poisson": lambda eta: stats.poisson.logpmf(data["y"].to_numpy()[:, None], np.exp(eta)),
        "binomial": lambda eta: stats.binom.logpmf(data["k"].to_numpy()[:, None], 5, special.expit(eta)),
    }[family]
    theta, loglik, se = by_quadrature(rows, data, np.array([0.2, 0.3, -0.5]))
    start = None if factor is None else {"Intercept": 0.3 * factor, "x": 0.5 * factor, "sd_g": 0.7 * factor}
    model = fitted(f"{response} ~ x + (1 | g)", data, family, start=start)
    assert model.certificate_.word == "certified"
    assert float(model.loglik_) == pytest.approx(loglik, abs=1e-4)
    found = np.array([model.params_["Intercept"], model.params_["x"], np.log(model.params_["sd_g"])])
    np.testing.assert_allclose(found, theta, atol=2e-3 * se.min())
    errors = np.array([model.stderr_["Intercept"], model.stderr_["x"], model.stderr_["sd_g"] / model.params_["sd_g"]])
    np.testing.assert_allclose(errors, se, rtol=1e-3)


def test_a_gaussian_model_is_that_of_its_marginal_normal():
    data = counted()
    rng = np.random.default_rng(3)
    data["z"] = 1 + 0.4 * data["x"] + (0.8 * rng.normal(size=40) + 0)[data["g"]] + rng.normal(size=len(data))
    model = fitted("z ~ x + (1 + x | g)", data, "gaussian")
    X = np.column_stack([np.ones(len(data)), data["x"]])
    total = model.params_["sigma"] ** 2 * np.eye(len(data))
    for i in range(40):
        own = np.flatnonzero(data["g"] == i)
        total[np.ix_(own, own)] += X[own] @ model.covariance_("g") @ X[own].T
    exact = stats.multivariate_normal.logpdf(data["z"], X @ model.fixef().to_numpy(), total)
    assert float(model.loglik_) == pytest.approx(exact, abs=1e-8)
    inverse = np.linalg.inv(total)
    gls = np.linalg.solve(X.T @ inverse @ X, X.T @ inverse @ data["z"].to_numpy())
    np.testing.assert_allclose(model.fixef().to_numpy(), gls, atol=1e-7)
    residual = inverse @ (data["z"].to_numpy() - X @ gls)
    own = data["g"].to_numpy() == 7
    blup = model.covariance_("g") @ X[own].T @ residual[own]
    np.testing.assert_allclose(model.ranef()["g"].loc[7, "estimate"].to_numpy(), blup, atol=1e-7)


@pytest.mark.slow
def test_nested_and_crossed_gaussian_factors_are_those_of_their_marginal_normal():
    rng = np.random.default_rng(4)
    a, b = np.repeat(np.arange(8), 12), np.tile(np.repeat(np.arange(4), 3), 8)
    c = rng.integers(0, 6, 96)
    y = 1 + rng.normal(size=8)[a] + 0.7 * rng.normal(size=32)[4 * a + b] + 0.6 * rng.normal(size=6)[c] + 0.5 * rng.normal(size=96)
    data = pd.DataFrame({"y": y, "a": a, "b": b, "c": c})
    for formula, groups in (("y ~ 1 + (1 | a/b)", {"a": a, "a:b": 4 * a + b}), ("y ~ 1 + (1 | a) + (1 | c)", {"a": a, "c": c})):
        model = fitted(formula, data, "gaussian")
        total = model.params_["sigma"] ** 2 * np.eye(96)
        for name, own in groups.items():
            total += model.params_[f"sd_{name}"] ** 2 * (own[:, None] == own)
        exact = stats.multivariate_normal.logpdf(y, np.full(96, model.params_["Intercept"]), total)
        assert float(model.loglik_) == pytest.approx(exact, abs=1e-8)
        assert model.certificate_.word == "certified"


@pytest.mark.slow
def test_a_singular_fit_says_so():
    rng = np.random.default_rng(5)
    data = pd.DataFrame({"x": rng.normal(size=240), "g": np.repeat(np.arange(40), 6)})
    data["y"] = rng.poisson(np.exp(0.3 + 0.5 * data["x"]))
    data["y"] = data.groupby("x", sort=True)["y"].transform("first")
    words = set()
    for seed in range(6):
        draw = data.assign(y=np.random.default_rng(seed).permutation(data["y"].to_numpy()))
        model = fitted("y ~ x + (x | g)", draw, "poisson")
        words.add((model.is_singular_, model.certificate_.word, np.isnan(model.stderr_["sd_g[x]"])))
    assert words <= {(True, "careful", True), (False, "careful", False), (False, "certified", False)}
    assert any(singular for singular, *_ in words)


def test_separation_is_told():
    x = np.random.default_rng(6).normal(size=120)
    model = fitted("y ~ x + (1 | g)", pd.DataFrame({"x": x, "y": x > 0, "g": np.arange(120) % 12}), "binomial")
    assert model.certificate_.word == "failed" and "mostly by x" in str(model.certificate_)


# -- published ----------------------------------------------------------------------------------------

#: formula, file, family, exact answers of `glmm.json`, names of the standard deviations there
EXACT = {
    "cbpp": ("incidence/size ~ period + (1 | herd)", "cbpp.csv", "binomial"),
    "toenail_1re": ("y ~ time + time:treatment + (1 | id)", "saemix_toenail.csv", "binomial"),
    "epil_poisson_RI": ("y ~ log(base/4)*trt + log(age) + v4 + (1 | subject)", "epil.csv", "poisson"),
    "epil_intercept_only": ("y ~ 1 + (1 | subject)", "epil.csv", "poisson"),
    "rapi_poisson_slope": ("rapi ~ gender*time + (time | id)", "saemix_rapi.csv", "poisson"),
}


def read(folder, file):
    data = pd.read_csv(folder / file).rename(columns=str.lower)
    return data.assign(period=data["period"].astype(str)) if file == "cbpp.csv" else data


LONG = ("toenail_1re", "epil_poisson_RI", "epil_intercept_only", "rapi_poisson_slope")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in EXACT])
def test_exact_answers(name, data_folder, reference):
    formula, file, family = EXACT[name]
    truth = reference("glmm")["exact_mle"][name]
    model = fitted(formula, read(data_folder, file), family)
    assert float(model.loglik_) == pytest.approx(truth["loglik_more_nodes"], abs=1e-3)
    order, theirs = np.argsort(model.fixef()), np.argsort(truth["fixed"])
    fixed, se = np.array(truth["fixed"])[theirs], np.array(truth["se_fixed"])[theirs]
    np.testing.assert_array_less(np.abs(model.fixef().to_numpy()[order] - fixed) / se, 0.01)
    np.testing.assert_allclose(model.summary()["se"].to_numpy()[order], se, rtol=0.01)
    factor = next(iter(model.groups_))
    np.testing.assert_allclose(np.sqrt(np.diagonal(model.covariance_(factor))), truth["sd"], rtol=1e-3)
    assert model.certificate_.word == "certified", str(model.certificate_)


@pytest.mark.slow
def test_laplace_is_that_of_glmmtmb(data_folder, reference):
    peers = reference("glmm")["peers"]
    cbpp = fitted(EXACT["cbpp"][0], read(data_folder, "cbpp.csv"), "binomial", method="laplace")
    assert float(cbpp.loglik_) == pytest.approx(peers["cbpp_glmmTMB"]["logLik"], abs=1e-6)
    np.testing.assert_allclose(cbpp.fixef().to_numpy(), list(peers["cbpp_glmmTMB"]["fixef"].values()), atol=1e-4)
    np.testing.assert_allclose(cbpp.summary()["se"][:4], peers["cbpp_glmmTMB"]["se"], rtol=1e-3)
    formula = "r2 ~ (anger + gender + btype + situ)**2 + (1 | id) + (1 | item)"
    verbagg = fitted(formula, read(data_folder, "verbagg.csv.gz"), "binomial", method="laplace")
    peer = peers["VerbAgg_glmmTMB"]
    assert float(verbagg.loglik_) == pytest.approx(peer["logLik"], abs=0.02)
    for factor, sd in peer["sd"].items():
        assert verbagg.params_[f"sd_{factor}"] == pytest.approx(sd, abs=1e-3)
    np.testing.assert_allclose(np.sort(verbagg.summary()["se"][:15]), np.sort(peer["se"]), rtol=0.01)


@pytest.mark.slow
def test_subjects_and_observations(data_folder):
    """glmer 1.1-31 on Poisson counts with an effect of every row: -624.7646."""
    data = read(data_folder, "epil.csv").assign(obs=np.arange(236))
    model = fitted("y ~ log(base/4)*trt + log(age) + v4 + (1 | subject) + (1 | obs)", data, "poisson", method="laplace")
    assert float(model.loglik_) == pytest.approx(-624.764645, abs=0.02)
