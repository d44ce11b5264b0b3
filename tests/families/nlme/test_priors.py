"""Priors of a nonlinear mixed-effects model: densities by SciPy, exact posterior modes of Gaussian models, what is refused."""

import dataclasses
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree
from scipy import optimize, stats

import margaux as mx
from margaux.families.nlme import ConstantError, InverseWishart, LogitNormal, LogNormal, Normal, NormalPrior, compare
from margaux.families.nlme.error import as_error
from margaux.families.nlme.occasions import BetweenOccasions
from margaux.families.nlme.outcomes import OCCASION, PRESENT, Continuous
from margaux.families.nlme.prior_places import density
from margaux.numerics.precision import precision
from margaux.problem.model import differentiated

COLUMNS: dict[str, Any] = {"id": "id", "time": "t", "y": "y"}
ONE, TWO = [[0.3, 0.1], [0.1, 0.2]], np.array([[0.5, -0.1], [-0.1, 0.4]])


def _line(psi, row):
    return psi["m"] + psi["s"] * row["t"]


def _table(n: int = 50, seed: int = 0) -> pd.DataFrame:
    """Lines of subjects, whose levels depend on x."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        x, level, slope = rng.normal(), 2.0 + 0.7 * rng.normal(), -0.5 + 0.3 * rng.normal()
        for t in np.arange(rng.integers(3, 7)) / 2:
            rows.append((i, t, x, level + 0.6 * x + slope * t + 0.4 * rng.normal()))
    return pd.DataFrame(rows, columns=["id", "t", "x", "y"])


LOGIT: dict[str, Any] = {"individual": {"m": LogitNormal(), "s": Normal(0.0)}}


def _log_prior(priors: dict, at: dict[str, float]) -> float:
    """By SciPy, of a model whose individual parameters are normal."""
    total = 0.0
    for name, prior in priors.items():
        if isinstance(name, tuple):
            a, b = name
            cov = at.get(f"cov_{a}_{b}", at.get(f"cov_{b}_{a}"))
            matrix: Any = np.array([[at[f"omega2_{a}"], cov], [cov, at[f"omega2_{b}"]]])
            total += stats.invwishart(prior.df, (prior.df + 3) * prior.matrix).logpdf(matrix)
        elif isinstance(prior, InverseWishart):
            total += stats.invgamma(prior.df / 2, scale=(prior.df + 2) * prior.mode / 2).logpdf(at[name])
        elif name == "a":
            total += stats.norm(np.log(prior.center), np.sqrt(np.log1p(prior.cv**2))).logpdf(np.log(at[name]))
        else:
            total += stats.norm(prior.center, prior.sd or prior.cv * abs(prior.center)).logpdf(at[name])
    return total


def _exact(table: pd.DataFrame, priors: dict, full: bool = False) -> tuple[dict[str, float], float, dict[str, float]]:
    """The mode of the Gaussian likelihood times the prior, the log-likelihood there, and standard errors."""
    parts = [(own["t"].to_numpy(), own["x"].iloc[0], own["y"].to_numpy()) for _, own in table.groupby("id")]

    def natural(u: np.ndarray) -> dict[str, float]:
        root = np.array([[np.exp(u[3]), 0.0], [u[6] if full else 0.0, np.exp(u[4])]])
        omega = root @ root.T
        out = dict(zip(["m", "beta_m[x]", "s"], u[:3], strict=True))
        out |= {"omega2_m": omega[0, 0], "omega2_s": omega[1, 1]}
        return out | ({"cov_m_s": omega[0, 1]} if full else {}) | {"a": np.exp(u[5])}

    def loglik(at: dict[str, float]) -> float:
        total, cov = 0.0, at.get("cov_m_s", 0.0)
        for t, x, y in parts:
            covariance: Any = at["omega2_m"] + at["omega2_s"] * np.outer(t, t) + at["a"] ** 2 * np.eye(len(t))
            covariance += cov * (t[:, None] + t[None])
            total += stats.multivariate_normal.logpdf(y, at["m"] + at["beta_m[x]"] * x + at["s"] * t, covariance)
        return total

    def objective(u: np.ndarray) -> float:
        return -loglik(natural(u)) - _log_prior(priors, natural(u))

    u = optimize.minimize(objective, np.r_[1.0, 0.0, 0.0, -0.5, -0.5, -0.5, [0.0] * full], options={"gtol": 1e-5}).x
    k, step = len(u), 1e-4 * (1 + np.abs(u))
    hessian, slopes = np.empty((k, k)), np.empty((k, 6 + full))
    for i in range(k):
        e = step * (np.arange(k) == i)
        ends = [np.array(list(natural(u + sign * e).values())) for sign in (1, -1)]
        slopes[i] = (ends[0] - ends[1]) / (2 * step[i])
        for j in range(k):
            f = step * (np.arange(k) == j)
            four = [objective(u + p * e + q * f) * p * q for p in (1, -1) for q in (1, -1)]
            hessian[i, j] = sum(four) / (4 * step[i] * step[j])
    errors = np.sqrt(np.diagonal(slopes.T @ np.linalg.inv(hessian) @ slopes))
    best = natural(u)
    return best, loglik(best), dict(zip(best, errors, strict=True))


def _fit(table: pd.DataFrame, priors: Any, **settings: Any) -> mx.NLME:
    asked: dict[str, Any] = {"individual": {"m": Normal(1.0, covariates="x"), "s": Normal(0.0)}} | settings
    return mx.NLME(structural=_line, priors=priors, n_starts=1, verbose=False, **asked).fit(table, **COLUMNS)


def _agrees(fitted: mx.NLME, exact: tuple) -> None:
    best, loglik, errors = exact
    assert list(fitted.params_) == list(best)
    assert float(fitted.loglik_) == pytest.approx(loglik, abs=0.01)
    for name, value in best.items():
        assert abs(fitted.params_[name] - value) < 0.03 * errors[name]
        assert fitted.stderr_[name] == pytest.approx(errors[name], rel=0.02)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return _table()


def _model(priors: dict, error: str = "constant") -> BetweenOccasions:
    """Of three effects, two of them in a block, one of which varies between occasions with a covariate; and a fixed one."""
    individual = {"p": Normal(1.0), "q": Normal(1.0, occasion=True), "r": Normal(1.0), "d": LogNormal(1.0, random=False)}
    outcome = Continuous(lambda p, row: p["p"] + p["q"] * row["t"] + p["r"] * p["d"], as_error(error))
    args = outcome, tuple(individual.items()), (0, 0, 1, 2, 3), ((0, 2),)
    model = BetweenOccasions(*args, varying=(1,), shifted=(1,), most=2)
    return dataclasses.replace(model, prior=density(model, individual, priors, ["", "x", "", "", "", "w"], 5))


PARAMS: dict[str, Any] = {
    "beta": np.array([0.4, 0.3, -0.2, 1.0]), "fixed": np.array([0.1]), "omega2": np.array([0.25]), "omega": (TWO,),
    "gamma2": np.array([0.3]), "delta": np.array([0.7]), "error": np.array([0.6]),
}  # fmt: skip

PRIORS: dict[Any, Any] = {
    "p": NormalPrior(0.5, cv=0.4), "beta_p[ x ]": NormalPrior(0.0, sd=0.2), "d": NormalPrior(1.2, cv=0.3),
    ("r", "p"): InverseWishart(ONE, df=7), "omega2_q": InverseWishart(0.2, df=4), "gamma2_q": InverseWishart(0.1, df=3.5),
    "beta_q[w]": NormalPrior(0.5, 0.1),
}  # fmt: skip


def _given(params: dict) -> dict:
    return jax.tree.map(jnp.asarray, params)


def test_densities_are_those_of_scipy():
    model = _model(PRIORS | {"a": NormalPrior(0.8, cv=0.5)})
    with precision(np.dtype(float)):
        found, share = float(model.prior.value(_given(PARAMS))), float(model.prior.share(_given(PARAMS)))
    exact = stats.norm(0.5, 0.2).logpdf(0.4) + stats.norm(0.0, 0.2).logpdf(0.3) + stats.norm(0.5, 0.1).logpdf(0.7)
    exact += stats.norm(np.log(1.2), np.sqrt(np.log(1.09))).logpdf(0.1)
    # The block is of p and r in the model, and of r and p in the prior.
    exact += stats.invwishart(7, 10 * np.array(ONE)[::-1, ::-1]).logpdf(TWO)
    exact += stats.invgamma(2, scale=6 * 0.2 / 2).logpdf(0.25) + stats.invgamma(1.75, scale=5.5 * 0.1 / 2).logpdf(0.3)
    exact += stats.norm(np.log(0.8), np.sqrt(np.log(1.25))).logpdf(np.log(0.6))
    assert found == pytest.approx(exact, rel=1e-12)
    assert share == pytest.approx(exact / 5, rel=1e-12)


def _statistics(rng: np.random.Generator) -> tuple[dict, list]:
    """Sufficient statistics of eight draws, means over five subjects' shares, and what they are of."""
    draws, total = [], {}
    model = _model({})
    for _ in range(8):
        y = {"design": np.r_[1.0, rng.normal(), 1.0, 1.0, 1.0, rng.normal(size=2)], PRESENT: np.ones(2), "mask": np.zeros(3),
             "rows": {"t": np.zeros(3), "y": np.zeros(3), OCCASION: np.zeros(3)}}  # fmt: skip
        z = rng.normal(0.5, 1.0, 5)
        own = jax.tree.map(np.asarray, model.suffstats(_given(PARAMS), jnp.asarray(z), _given(y)))
        total = own if not total else jax.tree.map(np.add, total, own)
        draws.append((z, y["design"]))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf / 8), total), draws


def test_m_steps_maximise_the_posterior_density():
    """Where they stay, no other parameters are better by the complete data and SciPy's densities."""
    priors = {name: prior for name, prior in PRIORS.items() if name != "d"}
    with precision(np.dtype(float)):
        model = _model(priors)
        stats_, draws = _statistics(np.random.default_rng(3))
        params = _given({name: value for name, value in PARAMS.items() if name not in ("error",)})
        for _ in range(60):
            new = model._gaussian_step(stats_, params)
            params = params | new | model._step_of_occasions(stats_, params | new)
        end = jax.tree.map(np.asarray, params)

    def objective(at: dict[str, Any]) -> float:
        total, spread = 0.0, np.diag([0.0, at["omega2"][0], 0.0])
        spread[np.ix_([0, 2], [0, 2])] = at["omega"][0]
        for z, x in draws:
            centre = np.array([at["beta"][0] + at["beta"][1] * x[1], at["beta"][2], at["beta"][3]])
            total += stats.multivariate_normal.logpdf(z[:3], centre, spread)
            total += stats.norm(at["delta"][0] * x[5:], np.sqrt(at["gamma2"][0])).logpdf(z[3:]).sum()
        named = {"p": at["beta"][0], "beta_p[ x ]": at["beta"][1], "beta_q[w]": at["delta"][0], "omega2_q": at["omega2"][0]}
        named |= {"omega2_p": at["omega"][0][0, 0], "omega2_r": at["omega"][0][1, 1], "cov_p_r": at["omega"][0][0, 1]}
        # Means over draws are those of five subjects.
        return total * 5 / 8 + _log_prior(priors, named | {"gamma2_q": at["gamma2"][0]})

    best, (flat, back) = objective(end), ravel_pytree(end)
    for k in range(flat.size):
        for sign in (-1, 1):
            there = back(np.asarray(flat) + sign * 1e-3 * (np.arange(flat.size) == k))
            there = there | {"omega": (np.array((there["omega"][0] + there["omega"][0].T) / 2),)}
            assert objective(there) < best - 1e-9


def test_closed_derivatives_have_the_prior():
    rng = np.random.default_rng(4)
    with precision(np.dtype(float)):
        model, b, m, rows = _model(PRIORS), 3, 2, 4
        batch = {"rows": {"t": rng.uniform(0, 2, (b, rows)), "y": rng.normal(size=(b, rows)), OCCASION: np.zeros((b, rows), int)},
                 "mask": np.ones((b, rows)), "design": rng.normal(size=(b, 7)), PRESENT: np.ones((b, 2))}  # fmt: skip
        batch, params, z, w = _given((batch, PARAMS, rng.normal(size=(m, b, 5)), rng.uniform(size=(m, b))))
        flat, back = ravel_pytree(params)
        ours = jax.jit(lambda flat: model.derivatives(back(flat), z, w, batch))(flat)
        theirs = jax.jit(lambda flat: differentiated(model, back, flat, z, w, batch))(flat)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_a_posterior_mode(table):
    """Of a Gaussian model, by SciPy; and what its answers say, refuse and keep."""
    priors = {"m": NormalPrior(1.0, sd=0.05), "beta_m[x]": NormalPrior(0.0, sd=0.1), "omega2_s": InverseWishart(0.3, df=30)}
    fitted = _fit(table, priors)
    _agrees(fitted, _exact(table, priors))
    assert fitted.log_prior_ == pytest.approx(_log_prior(priors, fitted.params_), rel=1e-9)
    assert float(fitted.result_.loglik()) == pytest.approx(float(fitted.loglik_) + fitted.log_prior_, abs=1e-9)
    assert float(np.sum(fitted.loglik_.per_unit)) == float(fitted.loglik_)
    frame = fitted.summary()
    assert frame["prior"].to_dict() == {
        "m": "normal(1, sd 0.05)", "beta_m[x]": "normal(0, sd 0.1)", "s": "", "omega2_m": "",
        "omega2_s": "inverse Wishart(mode 0.3, df 30)", "a": "",
    }  # fmt: skip
    assert frame["p"].isna().to_dict() == {
        "m": True,
        "beta_m[x]": True,
        "s": False,
        "omega2_m": True,
        "omega2_s": True,
        "a": False,
    }
    assert "MAP" in frame.attrs["message"] and "log prior" in fitted.message_
    for asked in (lambda: fitted.aic_, lambda: fitted.aicc_, lambda: fitted.bic_, lambda: fitted.bicc_, fitted.sir,
                  lambda: fitted.lr_test(fitted), lambda: compare(fitted, fitted), lambda: fitted.covariates({"s": ["x"]}),
                  lambda: fitted.profile("s", [-1.0, 0.0, 1.0]), lambda: fitted.slice("s", [-1.0, 0.0, 1.0])):  # fmt: skip
        with pytest.raises(ValueError, match="this fit has priors: it maximises the log-likelihood and the log prior"):
            asked()
    with pytest.raises(ValueError, match=r"beta_m\[x\] has a prior, which is in its estimate"):
        fitted.wald_test(["s", "beta_m[x]"])
    assert fitted.wald_test("s").df == 1


@pytest.mark.parametrize(("make", "message"), [
    (lambda: NormalPrior(1.0), "give a NormalPrior either sd= .* or cv="),
    (lambda: NormalPrior(1.0, 0.2, cv=0.3), "give a NormalPrior either sd= .* or cv="),
    (lambda: NormalPrior(float("nan"), 0.2), "center of a prior must be a finite number, got nan"),
    (lambda: NormalPrior(1.0, 0.0), "sd of a prior must be a positive number, got 0.0; a value that is certain is held"),
    (lambda: NormalPrior(1.0, cv=float("inf")), "cv of a prior must be a positive number, got inf"),
    (lambda: InverseWishart([0.1, 0.2], 5), r"a variance or a square matrix, got the shape \(2,\)"),
    (lambda: InverseWishart([[0.1, 0.2], [0.2, 0.1]], 5), "must be positive definite"),
    (lambda: InverseWishart([[0.1, 0.2], [0.0, 0.1]], 5), "must be symmetric and finite"),
    (lambda: InverseWishart(0.0, 5), "must be positive definite, got 0.0"),
    (lambda: InverseWishart(0.1, 0), "df of an InverseWishart of 1 effects must be above 0, got 0"),
    (lambda: InverseWishart(np.eye(3), 2), "df of an InverseWishart of 3 effects must be above 2, got 2"),
    (lambda: InverseWishart("wide", 2), "a variance or a square matrix of numbers, got 'wide'"),
])  # fmt: skip
def test_what_is_no_prior_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("priors", "settings", "message"), [
    (NormalPrior(1.0, 0.1), {}, "priors must be a dict by the names of parameters"),
    ({"m": 1.5}, {}, r"priors\['m'\] must be a prior, as in"),
    ({1: NormalPrior(1.0, 0.1)}, {}, "not by 1"),
    ({"v": NormalPrior(1.0, 0.1)}, {}, r"'v', which is no parameter of this model; they are m, beta_m\[x\], s, omega2_m"),
    ({"m": InverseWishart(1.0, 3)}, {}, "the prior of m is a NormalPrior"),
    ({"omega2_m": NormalPrior(0.3, 0.1)}, {}, "the prior of the variance omega2_m is an InverseWishart"),
    ({"omega2_m": InverseWishart(np.eye(2), 3)}, {}, "the prior of the variance omega2_m is an InverseWishart.* of one number"),
    ({"beta_m[x]": NormalPrior(0.0, cv=0.2)}, {}, r"beta_m\[x\] has its center at 0, where a cv says nothing; give sd="),
    ({"a": NormalPrior(-0.5, 0.1)}, {}, "the prior of a has its center at -0.5, outside the range"),
    ({("m", "s"): InverseWishart(np.eye(2), 4)}, {}, "no block of omega; there is none; name a variance"),
    ({("m", "s"): InverseWishart(1.0, 4)}, {"omega": "full"}, "is an InverseWishart of 2 rows and columns"),
    ({"omega2_m": InverseWishart(1.0, 4)}, {"omega": "full"}, r"whose prior is of the whole: priors=\{\('m', 's'\)"),
    ({"m": NormalPrior(1.0, 0.1)}, {"individual": {"m": Normal(1.0, fixed=True), "s": Normal(0.0)}}, "m is held and has a prior"),
    ({"m": NormalPrior(0.4, cv=0.1)}, LOGIT, "takes sd= on its Gaussian scale"),
    ({"m": NormalPrior(2.0, 0.1)}, LOGIT, "outside the range of LogitNormal"),
    ({"beta_m[x]": NormalPrior(1.0, 0.1), "beta_m[ x]": NormalPrior(2.0, 0.1)}, {}, "twice, or two parameters are called so"),
])  # fmt: skip
def test_priors_of_what_there_is_not_are_refused(table, priors, settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        _fit(table, priors, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_modes_of_blocks_and_errors_and_their_limits(seed):
    """Of correlated effects and an error, by SciPy; that of flat priors is the maximum of the likelihood, and of strong ones
    theirs."""
    table = _table(25, seed)
    wide = InverseWishart([[0.6, 0.2], [0.2, 0.3]], df=12)
    priors: dict[Any, Any] = {"s": NormalPrior(-1.0, cv=0.1), ("s", "m"): wide, "a": NormalPrior(0.6, cv=0.1)}
    fitted = _fit(table, priors, omega="full")
    _agrees(fitted, _exact(table, priors, full=True))
    assert fitted.certificate_.word == "certified"
    flat = _fit(table, {"m": NormalPrior(3.0, sd=1e4), "beta_m[x]": NormalPrior(3.0, sd=1e4), "a": NormalPrior(5.0, sd=1e4)})
    plain = _fit(table, None)
    assert list(flat.params_.values()) == pytest.approx(list(plain.params_.values()), rel=2e-3, abs=1e-3)
    assert list(flat.stderr_.values()) == pytest.approx(list(plain.stderr_.values()), rel=2e-3)
    assert float(flat.loglik_) == pytest.approx(float(plain.loglik_), abs=1e-3)
    strong = {"m": NormalPrior(1.3, sd=1e-4), "a": NormalPrior(0.5, cv=1e-4), "omega2_m": InverseWishart(0.2, df=1e7)}
    told = _fit(table, strong)
    assert [told.params_[name] for name in strong] == pytest.approx([1.3, 0.5, 0.2], rel=1e-3)
    held = _fit(table, None, individual={"m": Normal(1.3, covariates="x", fixed=True, variance=0.2), "s": Normal(0.0)},
                error=ConstantError(fixed=0.5))  # fmt: skip
    for name in ("beta_m[x]", "s", "omega2_s"):
        assert abs(told.params_[name] - held.params_[name]) < 0.05 * held.stderr_[name]
        assert told.stderr_[name] == pytest.approx(held.stderr_[name], rel=0.02)


def _decay(psi, row):
    return psi["A"] * jnp.exp(-psi["k"] * row["t"])


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"fixed_effects": "exponentialised"}, {"error": "proportional"}])
def test_the_mode_of_a_curve_by_quadrature(settings):
    """Few subjects, of whom two rows each tell nothing of k: by Gauss and Hermite's nodes and SciPy's optimiser. The prior of k
    is where the fit begins, and a variance that is nothing in the data has its prior."""
    rng = np.random.default_rng(8)
    b = 0.3 if settings.get("error") == "proportional" else 0.0
    rows = [(i, t, 5 * np.exp(0.02 * e - 0.4 * t) * (1 + b * rng.normal()) + (0.4 - b) * rng.normal())
            for i, e in enumerate(rng.normal(size=8)) for t in (0.1, 0.5)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["id", "t", "y"])
    priors = {"k": NormalPrior(0.4, cv=0.2), "A": NormalPrior(6.0, cv=0.5), "omega2_A": InverseWishart(0.09, df=6)}
    individual = {"A": LogNormal(), "k": LogNormal(random=False)}
    fitted = mx.NLME(structural=_decay, individual=individual, priors=priors, verbose=False, **settings).fit(table, **COLUMNS)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    t, y = (table[name].to_numpy().reshape(8, 2) for name in ("t", "y"))

    def loglik(u):
        curve = np.exp(u[0] + np.exp(u[2]) * nodes)[:, None, None] * np.exp(-np.exp(u[1]) * t)
        each = stats.norm(curve, np.exp(u[3]) * (curve if b else 1.0)).logpdf(y).sum(axis=2)
        return float(np.sum(np.log(weights @ np.exp(each) / np.sqrt(2 * np.pi))))

    def objective(u):
        known = stats.norm(np.log(6.0), np.sqrt(np.log(1.25))).logpdf(u[0])
        known += stats.norm(np.log(0.4), np.sqrt(np.log(1.04))).logpdf(u[1])
        return -loglik(u) - known - stats.invgamma(3, scale=4 * 0.09).logpdf(np.exp(2 * u[2]))

    found = optimize.minimize(objective, [1.6, -0.9, -1.2, -0.9], method="BFGS", options={"gtol": 1e-6})
    best = [np.exp(found.x[0]), np.exp(found.x[1]), np.exp(2 * found.x[2]), np.exp(found.x[3])]
    assert list(fitted.params_) == ["A", "k", "omega2_A", "b" if b else "a"]
    for (name, value), exact in zip(fitted.params_.items(), best, strict=True):
        assert abs(value - exact) < 0.03 * fitted.stderr_[name]
    assert float(fitted.loglik_) == pytest.approx(loglik(found.x), abs=0.01)
    again = mx.load(_saved(fitted))
    assert again.params_ == fitted.params_ and float(again.loglik_) == float(fitted.loglik_)


def _saved(fitted: mx.NLME) -> str:
    path = tempfile.mkdtemp() + "/fit"
    fitted.save(path)
    return path


@pytest.mark.slow
def test_occasions_and_the_bootstrap():
    """Variances between occasions and coefficients of their covariates by SciPy; each replicate is a mode of its own subjects."""
    rng, rows = np.random.default_rng(5), []
    for i in range(30):
        eta = 0.8 * rng.normal()
        for k in range(3):
            w = rng.normal()
            kappa = 0.5 * w + 0.5 * rng.normal()
            rows += [(i, k, float(t), w, 2.0 + eta + kappa + 0.4 * rng.normal()) for t in range(3)]
    table = pd.DataFrame(rows, columns=["id", "visit", "t", "w", "y"])
    priors = {"beta_m[w]": NormalPrior(0.0, sd=0.1), "gamma2_m": InverseWishart(0.6, df=50), "m": NormalPrior(3.0, sd=0.2)}
    asked: dict[str, Any] = {"structural": lambda psi, row: psi["m"] + 0.0 * row["t"], "n_starts": 1, "verbose": False}
    fitted = mx.NLME(individual={"m": Normal(1.0, covariates="w", occasion=True)}, priors=priors, **asked)
    fitted.fit(table, occ="visit", **COLUMNS)
    y, w = (table[name].to_numpy().reshape(30, 9) for name in ("y", "w"))
    same = np.kron(np.eye(3), np.ones((3, 3)))

    def loglik(u):
        covariance = np.exp(u[2]) + np.exp(u[3]) * same + np.exp(2 * u[4]) * np.eye(9)
        return float(np.sum(stats.multivariate_normal(np.zeros(9), covariance).logpdf(y - u[0] - u[1] * w)))

    def objective(u):
        known = stats.norm(3.0, 0.2).logpdf(u[0]) + stats.norm(0.0, 0.1).logpdf(u[1])
        return -loglik(u) - known - stats.invgamma(25, scale=26 * 0.6).logpdf(np.exp(u[3]))

    found = optimize.minimize(objective, [2.0, 0.3, -0.5, -1.0, -1.0], options={"gtol": 1e-6})
    best = [*found.x[:2], np.exp(found.x[2]), np.exp(found.x[3]), np.exp(found.x[4])]
    assert list(fitted.params_) == ["m", "beta_m[w]", "omega2_m", "gamma2_m", "a"]
    for (name, value), exact in zip(fitted.params_.items(), best, strict=True):
        assert abs(value - exact) < 0.03 * fitted.stderr_[name]
    assert float(fitted.loglik_) == pytest.approx(loglik(found.x), abs=0.01)
    line = _fit(_table(), {"m": NormalPrior(1.0, sd=0.02), "s": NormalPrior(-0.6, sd=0.05)})
    replicates = line.bootstrap(4, key=1)
    parts = [own for _, own in _table().groupby("id")]
    for r, counts in enumerate(replicates.counts):
        again = [parts[i] for i in np.repeat(np.arange(50), counts)]
        drawn = pd.concat([own.assign(id=k) for k, own in enumerate(again)], ignore_index=True)
        exact = _exact(drawn, {"m": NormalPrior(1.0, sd=0.02), "s": NormalPrior(-0.6, sd=0.05)})
        for name, value in exact[0].items():
            assert abs(replicates.replicates[name][r] - value) < 0.03 * exact[2][name]
