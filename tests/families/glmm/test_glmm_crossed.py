"""The exact likelihood of crossed factors against sums over grids."""

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

import margaux as mx
from margaux.answers.rules import laplace_rule
from margaux.families.glmm.elimination import can_eliminate, likelihood, weighed


def crossed(persons=60, items=3, seed=1):
    rng = np.random.default_rng(seed)
    person, item = np.repeat(np.arange(persons), items), np.tile(np.arange(items), persons)
    eta = 0.4 + rng.normal(size=persons)[person] + rng.normal(size=items)[item]
    return pd.DataFrame({"y": (rng.random(persons * items) < special.expit(eta)).astype(int), "p": person, "i": item})


def over_grids(data, intercept, sd_person, sd_item, points=41):
    """The log-likelihood: items on a grid in three dimensions, persons on one given these."""
    u = np.linspace(-6, 6, points)
    log_w = stats.norm.logpdf(u) + np.log(u[1] - u[0])
    y = data["y"].to_numpy().reshape(-1, 3)
    # Of person effects (u) and one item's effect (v): a table for each answer.
    eta = intercept + sd_person * u[:, None] + sd_item * u
    answers = {1: -np.logaddexp(0, -eta), 0: -np.logaddexp(0, eta)}
    total = np.zeros((points,) * 3)
    for pattern, count in zip(*np.unique(y, axis=0, return_counts=True), strict=True):
        a, b, c = (answers[int(value)] for value in pattern)
        joint = log_w[:, None, None, None] + a[:, :, None, None] + b[:, None, :, None] + c[:, None, None, :]
        total += count * special.logsumexp(joint, axis=0)
    prior = log_w[:, None, None] + log_w[None, :, None] + log_w
    return float(np.log(np.sum(np.exp(total + prior - total.max()))) + total.max())


@pytest.mark.slow
def test_the_likelihood_at_the_estimate():
    data = crossed()
    model = mx.GLMM("y ~ 1 + (1 | p) + (1 | i)", family="binomial", method="laplace", verbose=False).fit(data)
    fit = model.result_
    assert can_eliminate(model.model_)
    exact = over_grids(data, *(model.params_[name] for name in ("Intercept", "sd_p", "sd_i")))
    mode = laplace_rule(fit).rows["mean"][0]
    found = [likelihood(fit, fit.params, mode, seed=seed) for seed in range(5)]
    for one in found:
        assert abs(float(one) - exact) < 4 * one.se + 1e-3 and one.se <= 0.02
    assert abs(float(model.loglik_) - exact) > 0.03  # Laplace's own


@pytest.mark.slow
def test_the_estimate_is_that_of_the_exact_likelihood():
    """Newton's step by differences of sums over grids, at the corrected estimate and at Laplace's."""
    data = crossed()
    model = mx.GLMM("y ~ 1 + (1 | p) + (1 | i)", family="binomial", verbose=False).fit(data)
    names = ["Intercept", "sd_p", "sd_i"]
    covariance = model.cov_params().loc[names, names].to_numpy()

    def away(values):
        h = 0.05 * np.sqrt(np.diagonal(covariance))
        ups, downs = ([over_grids(data, *(values + sign * h * e)) for e in np.eye(3)] for sign in (1, -1))
        gradient = (np.array(ups) - np.array(downs)) / (2 * h)
        return float(np.sqrt(gradient @ covariance @ gradient))

    made = model.correction_
    assert model.fitted_by_ == "laplace, corrected" and made is not None
    assert next(check for check in model.certificate_.checks if check.name == "approximation").level == "pass"
    assert away(np.array([model.params_[name] for name in names])) < 0.05 + 2 * made.error
    laplace = mx.GLMM("y ~ 1 + (1 | p) + (1 | i)", family="binomial", method="laplace", verbose=False).fit(data)
    assert away(np.array([laplace.params_[name] for name in names])) > 0.1
    assert made.moved == pytest.approx(away(np.array([laplace.params_[name] for name in names])), rel=0.5)
    assert made.even > 0.5


@pytest.mark.slow
def test_answers_at_the_end_of_their_range_do_not_spoil_the_gradient():
    """Padding of uneven groups repeats their rows: a one would be no answer of a beta response."""
    rng = np.random.default_rng(3)
    p, i = rng.integers(0, 30, 150), rng.integers(0, 4, 150)
    mean = special.expit(0.3 + 0.8 * rng.normal(size=30)[p] + 0.5 * rng.normal(size=4)[i])
    data = pd.DataFrame({"y": np.clip(rng.beta(6 * mean, 6 * (1 - mean)), 1e-4, 1 - 1e-4), "p": p, "i": i})
    model = mx.GLMM("y ~ 1 + (1 | p) + (1 | i)", family="beta", method="laplace", verbose=False).fit(data)
    fit = model.result_
    found = weighed(fit, fit.params, laplace_rule(fit).rows["mean"][0], 32, 1)
    assert np.isfinite(found.logs).all() and np.isfinite(found.gradient).all()


@pytest.mark.slow
def test_verbal_aggression_over_seeds(data_folder):
    data = pd.read_csv(data_folder / "verbagg.csv.gz").rename(columns=str.lower)
    formula = "r2 ~ (anger + gender + btype + situ)**2 + (1 | id) + (1 | item)"
    model = mx.GLMM(formula, family="binomial", method="laplace", verbose=False).fit(data)
    mode = laplace_rule(model.result_).rows["mean"][0]
    found = [likelihood(model.result_, model.result_.params, mode, seed=seed, tol=0.05) for seed in range(20)]
    values, errors = np.array([float(one) for one in found]), np.array([one.se for one in found])
    assert errors.max() <= 0.05
    auto = mx.GLMM(formula, family="binomial", verbose=False).fit(data)
    # It is at the maximum of the likelihood itself, not at that of the approximation.
    assert auto.certificate_.word == "certified" and -0.02 < float(auto.loglik_) - values.mean() < 0.5
    assert (np.abs(values - values.mean()) < 2.6 * errors).mean() > 0.9 and values.std(ddof=1) < 1.7 * errors.mean()
