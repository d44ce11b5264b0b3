"""REML against dense matrices, the analysis of variance, and what the restricted likelihood says of itself."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.optimize

import margaux as mx
from margaux import GLMM
from margaux.families.glmm.reml import objective

#: Davies (1947): yields of dyestuff of six batches, five preparations each
DYESTUFF = [1545, 1440, 1440, 1520, 1580, 1540, 1555, 1490, 1560, 1495, 1595, 1550, 1605, 1510, 1560,
            1445, 1440, 1595, 1465, 1545, 1595, 1630, 1515, 1635, 1625, 1520, 1455, 1450, 1480, 1445]  # fmt: skip


def dyestuff():
    return pd.DataFrame({"y": np.asarray(DYESTUFF, float), "batch": np.repeat(list("ABCDEF"), 5)})


def table(seed, n=120):
    rng = np.random.default_rng(seed)
    g, h, x = rng.integers(0, 15, n), rng.integers(0, 8, n), rng.normal(size=n)
    y = 1 + 0.5 * x + rng.normal(size=15)[g] + 0.7 * rng.normal(size=8)[h] + 0.5 * rng.normal(size=15)[g] * x
    return pd.DataFrame(
        {"y": y + rng.normal(size=n), "x": x, "g": g, "h": h, "gh": [f"{a}/{b}" for a, b in zip(g, h, strict=True)]}
    )


class Dense:
    """-2 log L_R of y ~ N(X beta, V) with all matrices written out; free: log sigma, then entries of the factors' roots."""

    def __init__(self, data, X, terms):
        self.y, self.X, self.n = data["y"].to_numpy(), X, len(data)
        self.Z = []
        for group, columns in terms:
            codes = pd.factorize(data[group])[0]
            placed = np.zeros((self.n, codes.max() + 1, columns.shape[1]))
            placed[np.arange(self.n), codes] = columns
            self.Z.append(placed)

    def roots(self, free):
        out, at = [], 1
        for Z in self.Z:
            k = Z.shape[2]
            root = np.zeros((k, k))
            root[np.tril_indices(k)] = free[at : at + k * (k + 1) // 2]
            out.append(root)
            at += k * (k + 1) // 2
        return out

    def squares(self, free):
        V = np.exp(2 * free[0]) * np.eye(self.n)
        for Z, root in zip(self.Z, self.roots(free), strict=True):
            A = (Z @ root).reshape(self.n, -1)
            V += A @ A.T
        inverse = np.linalg.inv(V)
        gram = self.X.T @ inverse @ self.X
        beta = np.linalg.solve(gram, self.X.T @ inverse @ self.y)
        left = self.y - self.X @ beta
        value = np.linalg.slogdet(V)[1] + np.linalg.slogdet(gram)[1] + left @ inverse @ left
        return value + (self.n - self.X.shape[1]) * np.log(2 * np.pi), beta, np.linalg.inv(gram)

    def maximum(self):
        start = np.concatenate([[np.log(self.y.std() / 2)], *(np.eye(Z.shape[2])[np.tril_indices(Z.shape[2])] for Z in self.Z)])
        found = scipy.optimize.minimize(lambda free: self.squares(free)[0], start, method="BFGS", options={"gtol": 1e-6})
        settings = {"xatol": 1e-8, "fatol": 1e-11, "maxiter": 20_000, "maxfev": 20_000}
        return scipy.optimize.minimize(lambda free: self.squares(free)[0], found.x, method="Nelder-Mead", options=settings).x


def dense(kind, data):
    one, both = np.ones((len(data), 1)), np.column_stack([np.ones(len(data)), data["x"]])
    formula, terms = {
        "intercept": ("y ~ x + (1 | g)", [("g", one)]),
        "slope": ("y ~ x + (1 + x | g)", [("g", both)]),
        "nested": ("y ~ x + (1 | g) + (1 | gh)", [("g", one), ("gh", one)]),
        "crossed": ("y ~ x + (1 | g) + (1 | h)", [("g", one), ("h", one)]),
    }[kind]
    return formula, Dense(data, both, terms)


def agrees(kind, seed):
    data = table(seed)
    formula, oracle = dense(kind, data)
    model = GLMM(formula, reml=True, verbose=False).fit(data)
    free = oracle.maximum()
    squares, beta, covariance = oracle.squares(free)
    assert float(model.loglik_) == pytest.approx(-squares / 2, abs=1e-6)
    se = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose(model.fixef(), beta, atol=1e-4 * se.min())
    np.testing.assert_allclose(model.summary()["se"].iloc[:2], se, rtol=1e-4)
    for name, root in zip(model.groups_, oracle.roots(free), strict=True):
        np.testing.assert_allclose(model.covariance_(name), root @ root.T, atol=2e-5)
    assert model.params_["sigma"] == pytest.approx(np.exp(free[0]), abs=1e-5)
    return model, oracle, free


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slope", "crossed"])
def test_dense_matrices(kind):
    model, _, _ = agrees(kind, 0)
    assert model.certificate_.word == "certified"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("kind", ["intercept", "slope", "nested", "crossed"])
def test_dense_matrices_of_more_data(kind, seed):
    agrees(kind, seed)


@pytest.mark.slow
def test_standard_errors_of_variances_are_of_the_restricted_likelihood():
    model, oracle, free = agrees("crossed", 0)
    # Of sigma and the standard deviations themselves, by differences.
    here, h = np.array([np.exp(free[0]), *np.abs(free[1:])]), 1e-4

    def value(natural):
        return oracle.squares(np.array([np.log(natural[0]), *natural[1:]]))[0] / 2

    eye = h * np.eye(3)
    hessian = [[value(here + a + b) - value(here + a - b) - value(here - a + b) + value(here - a - b) for b in eye] for a in eye]
    se = np.sqrt(np.diagonal(np.linalg.inv(np.array(hessian) / (4 * h**2))))
    found = model.cov_params()
    np.testing.assert_allclose(model.summary().loc[["sigma", "sd_g", "sd_h"], "se"], se, rtol=1e-3)
    assert not found.loc[["Intercept", "x"], ["sigma", "sd_g", "sd_h"]].to_numpy().any()


@pytest.mark.slow
def test_a_balanced_layout_is_its_analysis_of_variance():
    data = dyestuff()
    model = GLMM("y ~ 1 + (1 | batch)", reml=True, verbose=False).fit(data)
    rows = data["y"].to_numpy().reshape(6, 5)
    within = rows.var(axis=1, ddof=1).mean()
    between = 5 * rows.mean(axis=1).var(ddof=1)
    assert model.params_["sigma"] ** 2 == pytest.approx(within, rel=1e-6)
    assert model.params_["sd_batch"] ** 2 == pytest.approx((between - within) / 5, rel=1e-6)
    assert model.params_["Intercept"] == pytest.approx(rows.mean(), rel=1e-9)
    assert model.stderr_["Intercept"] == pytest.approx(np.sqrt(between / 30), rel=1e-6)
    # Bates, Maechler, Bolker and Walker (2015): REML criterion 319.6543.
    assert -2 * float(model.loglik_) == pytest.approx(319.6543, abs=1e-4)
    # Conditional modes shrink the means of the batches.
    share = 1 - within / between
    np.testing.assert_allclose(model.ranef()["batch"]["estimate"], share * (rows.mean(axis=1) - rows.mean()), rtol=1e-5)


@pytest.mark.slow
def test_nearly_collinear_columns_and_far_off_origins_lose_no_digits():
    data = table(0).assign(year=lambda frame: 2000 + frame["x"], near=lambda frame: frame["x"] + 1e-5 * np.sin(np.arange(120)))
    one = GLMM("y ~ x + (1 | g)", reml=True, verbose=False).fit(data)
    far = GLMM("y ~ year + (1 | g)", reml=True, verbose=False).fit(data)
    assert far.params_["year"] == pytest.approx(one.params_["x"], rel=1e-8)
    assert far.stderr_["year"] == pytest.approx(one.stderr_["x"], rel=1e-6)
    assert float(far.loglik_) == pytest.approx(float(one.loglik_), abs=1e-6)
    near = GLMM("y ~ x + near + (1 | g)", reml=True, verbose=False).fit(data)
    wave = data.assign(wave=np.sin(np.arange(120)))
    split = GLMM("y ~ x + wave + (1 | g)", reml=True, verbose=False).fit(wave)
    assert near.params_["sd_g"] == pytest.approx(split.params_["sd_g"], rel=1e-5)
    assert near.params_["near"] == pytest.approx(split.params_["wave"] * 1e5, rel=1e-4)
    assert float(near.loglik_) == pytest.approx(float(split.loglik_) - np.log(1e-5), abs=1e-4)


@pytest.mark.slow
def test_without_fixed_effects_the_likelihood_is_that_of_a_dense_covariance():
    data = table(1)
    model = GLMM("y ~ 0 + (1 | g)", verbose=False).fit(data)
    oracle = Dense(data, np.zeros((len(data), 0)), [("g", np.ones((len(data), 1)))])
    free = oracle.maximum()
    assert float(model.loglik_) == pytest.approx(-oracle.squares(free)[0] / 2, abs=1e-6)
    assert model.params_ == pytest.approx({"sigma": np.exp(free[0]), "sd_g": abs(free[1])}, rel=1e-5)
    assert np.all(np.isfinite(model.summary()["se"]))


@pytest.mark.slow
def test_weights_count_rows():
    data = table(2, 60)
    doubled = GLMM("y ~ x + (1 | g)", reml=True, verbose=False).fit(pd.concat([data, data]))
    weighted = GLMM("y ~ x + (1 | g)", reml=True, verbose=False).fit(data, weights=np.full(60, 2.0))
    assert float(weighted.loglik_) == pytest.approx(float(doubled.loglik_), abs=1e-6)
    assert weighted.params_ == pytest.approx(doubled.params_, rel=1e-5)


@pytest.mark.slow
def test_starts_and_single_precision_lead_to_the_same_place():
    data = table(0)
    model = GLMM("y ~ x + (1 | g)", reml=True, verbose=False).fit(data)
    for start in ({"sd_g": 30.0, "sigma": 0.01}, {"sd_g": 1e-3, "sigma": 100.0}):
        other = GLMM("y ~ x + (1 | g)", reml=True, start=start, verbose=False).fit(data)
        assert other.params_ == pytest.approx(model.params_, rel=1e-5)
    rough = GLMM("y ~ x + (1 | g)", reml=True, dtype="float32", verbose=False).fit(data)
    assert rough.params_ == pytest.approx(model.params_, rel=1e-3)


@pytest.mark.slow
def test_a_variance_of_zero_is_singular():
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"y": np.tile([-1.0, 0.0, 1.0, 2.0], 10) + 0.01 * rng.normal(size=40), "g": np.repeat(np.arange(10), 4)})
    model = GLMM("y ~ 1 + (1 | g)", reml=True, verbose=False).fit(data)
    assert model.is_singular_ and model.certificate_.word == "careful"
    assert model.params_["sigma"] == pytest.approx(data["y"].std(), rel=1e-4)
    assert np.isnan(model.stderr_["sd_g"])


@pytest.mark.slow
def test_intervals():
    model = GLMM("y ~ 1 + (1 | batch)", reml=True, verbose=False).fit(dyestuff())
    profiled = model.conf_int(method="profile")
    assert list(profiled.index) == ["sigma", "sd_batch"]
    oracle = Dense(dyestuff(), np.ones((30, 1)), [("batch", np.ones((30, 1)))])
    top = 2 * float(model.loglik_)
    for end in profiled.loc["sigma"]:
        inner: Any = scipy.optimize.minimize_scalar(
            lambda sd, end=end: oracle.squares([np.log(end), sd])[0], bounds=(0, 300), method="bounded"
        )
        assert inner.fun + top == pytest.approx(3.8415, abs=0.02)
    with pytest.raises(ValueError, match="no profile of the fixed effect"):
        model.conf_int(method="profile", parameters="Intercept")
    drawn = model.conf_int(method="boot", n_boot=60, random_state=1)
    assert drawn.attrs["replicates"]["Intercept"].std() == pytest.approx(model.stderr_["Intercept"], rel=0.35)


@pytest.mark.slow
def test_models_of_other_fixed_effects_do_not_compare():
    data = table(0)
    small = GLMM("y ~ 1 + (1 | g)", reml=True, verbose=False).fit(data)
    large = GLMM("y ~ x + (1 | g)", reml=True, verbose=False).fit(data)
    more = GLMM("y ~ x + (1 | g) + (1 | h)", reml=True, verbose=False).fit(data)
    plain = GLMM("y ~ x + (1 | g)", verbose=False).fit(data)
    with pytest.raises(ValueError, match="different fixed effects.*reml=False"):
        small.anova(large)
    with pytest.raises(ValueError, match="some models were fitted with reml=True"):
        plain.anova(more)
    found = large.anova(more)
    assert found["chisq"].iloc[1] == pytest.approx(2 * (float(more.loglik_) - float(large.loglik_)))
    assert found["npar"].tolist() == [4, 5]
    boot = large.anova(more, n_boot=19)
    assert boot["p"].iloc[1] <= 0.2


def test_what_has_no_restricted_likelihood_is_refused():
    data = table(0).assign(count=lambda frame: frame["g"] % 3)
    with pytest.raises(ValueError, match="this one is poisson with the log link"):
        GLMM("count ~ x + (1 | g)", family="poisson", reml=True, verbose=False).fit(data)
    with pytest.raises(ValueError, match="this one is gaussian with the log link"):
        GLMM("I(y + 20) ~ x + (1 | g)", link="log", reml=True, verbose=False).fit(data)
    with pytest.raises(ValueError, match='use method="auto"'):
        GLMM("y ~ x + (1 | g)", method="quadrature", reml=True, verbose=False).fit(data)


@pytest.mark.slow
def test_every_answer_is_of_the_same_estimate(tmp_path):
    data = table(0)
    model = GLMM("y ~ x + (1 + x | g)", reml=True, verbose=False).fit(data)
    se = np.sqrt(np.diagonal(model.cov_params()))
    np.testing.assert_allclose(model.result_.summary()["se"].iloc[:2], se[:2])
    assert objective(model.result_).params.keys() == model.result_.params.keys() - {"beta"}
    assert "restricted log-likelihood" in " ".join(model.diagnostics()["sentence"])
    assert model.n_params_ == 6 and model.aic_ == pytest.approx(-2 * float(model.loglik_) + 12)
    eta = model.predict(data, re_form="NA")
    np.testing.assert_allclose(eta, model.params_["Intercept"] + model.params_["x"] * data["x"])
    effects = model.ranef()["g"]["estimate"].unstack().loc[data["g"]]
    own = effects["Intercept"].to_numpy() + effects["x"].to_numpy() * data["x"]
    np.testing.assert_allclose(model.predict() - eta, own)
    model.plot.trace()
    model.plot.effects()
    model.save(tmp_path / "model")
    again = mx.load(tmp_path / "model")
    pd.testing.assert_frame_equal(again.summary(), model.summary())
    assert again.certificate_.word == model.certificate_.word == "certified"
    page = model.report(tmp_path / "page.html")
    assert "restricted log-likelihood" in page.read_text()
