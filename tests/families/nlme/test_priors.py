"""Priors of a nonlinear mixed-effects model: densities by SciPy, exact posterior modes of Gaussian models, what is refused."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

from margaux.families.nlme import InverseWishart, LogitNormal, LogNormal, Normal, NormalPrior, bounds, compare
from margaux.families.nlme.error import as_error
from margaux.families.nlme.occasions import BetweenOccasions
from margaux.families.nlme.outcomes import OCCASION, PRESENT, Continuous
from margaux.families.nlme.prior_places import density
from margaux.numerics.precision import precision
from margaux.problem.model import differentiated
from prior_modes import check_mode, exact_mode, fit_lines, lines, log_prior

ONE, TWO = [[0.3, 0.1], [0.1, 0.2]], np.array([[0.5, -0.1], [-0.1, 0.4]])


LOGIT: dict[str, Any] = {"individual": {"m": LogitNormal(), "s": Normal(0.0)}}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return lines()


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


def _given(params: Any) -> Any:
    return jax.tree.map(jnp.asarray, params)


def test_densities_are_those_of_scipy():
    model = _model(PRIORS | {"a": NormalPrior(0.8, cv=0.5)})
    with precision(np.dtype(float)):
        found, share = float(model.prior.value(_given(PARAMS))), float(model.prior.share(_given(PARAMS)))
    exact = stats.norm.logpdf(0.4, 0.5, 0.2) + stats.norm.logpdf(0.3, 0.0, 0.2) + stats.norm.logpdf(0.7, 0.5, 0.1)
    exact += stats.norm.logpdf(0.1, np.log(1.2), np.sqrt(np.log(1.09)))
    # The block is of p and r in the model, and of r and p in the prior.
    exact += stats.invwishart.logpdf(TWO, 7, 10 * np.array(ONE)[::-1, ::-1])
    exact += stats.invgamma.logpdf(0.25, 2, scale=6 * 0.2 / 2) + stats.invgamma.logpdf(0.3, 1.75, scale=5.5 * 0.1 / 2)
    exact += stats.norm.logpdf(np.log(0.6), np.log(0.8), np.sqrt(np.log(1.25)))
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
        total = 0.0
        spread: Any = np.diag([0.0, at["omega2"][0], 0.0])
        spread[np.ix_([0, 2], [0, 2])] = at["omega"][0]
        for z, x in draws:
            centre = np.array([at["beta"][0] + at["beta"][1] * x[1], at["beta"][2], at["beta"][3]])
            total += stats.multivariate_normal.logpdf(z[:3], centre, spread)
            total += stats.norm.logpdf(z[3:], at["delta"][0] * x[5:], np.sqrt(at["gamma2"][0])).sum()
        named = {"p": at["beta"][0], "beta_p[ x ]": at["beta"][1], "beta_q[w]": at["delta"][0], "omega2_q": at["omega2"][0]}
        named |= {"omega2_p": at["omega"][0][0, 0], "omega2_r": at["omega"][0][1, 1], "cov_p_r": at["omega"][0][0, 1]}
        # Means over draws are those of five subjects.
        return total * 5 / 8 + log_prior(priors, named | {"gamma2_q": at["gamma2"][0]})

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
    fitted = fit_lines(table, priors)
    check_mode(fitted, exact_mode(table, priors))
    assert fitted.log_prior_ == pytest.approx(log_prior(priors, fitted.params_), rel=1e-9)
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
    for asked in (lambda: fitted.aic_, lambda: fitted.aicc_, lambda: fitted.bic_, lambda: fitted.bicc_,
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
        fit_lines(table, priors, **settings)


def test_fixed_effects_at_a_bound_are_told():
    individual = (("k", LogitNormal(low=0.5, high=1.0, random=False)), ("c", LogitNormal(random=False)), ("r", LogitNormal()))
    fitted: Any = SimpleNamespace(
        model_=SimpleNamespace(individual=individual), held_={}, params_={"k": 0.5 + 1e-9, "c": 0.999, "r": 1.0}
    )
    assert bounds.reached(fitted) == {"k": 0.5}
    assert "k = 0.5 at a bound of its distribution" in bounds.note(fitted)
    fitted.held_ = {"k": 0.5}
    assert bounds.note(fitted) == ""
