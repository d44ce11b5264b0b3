"""Verdicts on sparse fits, against closed forms and finite differences of quadrature."""

from typing import Any

import numpy as np
import pytest
from scipy import optimize, special

import margaux as mx
from margaux.families.sparse_mixed.model import group_posteriors, group_scores


def laplace_value(log_theta, y, sd):
    """Minus log p(y) of y = x + N(0, sd^2), x Laplace of rate theta."""
    theta = np.exp(log_theta)
    halves = [special.log_ndtr(side * y / sd - theta * sd) - side * theta * y for side in (1, -1)]
    return -np.sum(np.logaddexp(*halves) + np.log(theta / 2) + (theta * sd) ** 2 / 2)


@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_the_weight_of_entries_seen_by_themselves_is_that_of_the_closed_form(noise):
    rng = np.random.default_rng(1)
    y = rng.laplace(0, 1.0, 60) + noise * rng.normal(size=60)
    found: Any = optimize.minimize_scalar(laplace_value, args=(y, noise), bounds=(-3, 5), method="bounded")
    exact = found.x
    model = mx.SparseInverse(prior="l1", noise_sd=noise, verbose=False).fit(np.eye(60), y)
    se = float(model.result_.summary()["se"].iloc[0])
    assert abs(np.log(model.theta_) - exact) < 0.1 * se


def test_what_the_envelope_does_is_told():
    rng = np.random.default_rng(1)
    y = rng.laplace(0, 0.3, 60) + 0.5 * rng.normal(size=60)
    model = mx.SparseInverse(prior="l1", noise_sd=0.5, step_size=0.05, n_iter=500, verbose=False).fit(np.eye(60), y)
    assert model.certificate_["smoothing"].level == "careful" and model.certificate_.word != "certified"


def mixed(seed=0, n=200, p=6, groups=20, sigma=1.0):
    rng = np.random.default_rng(seed)
    x, group = rng.normal(size=(n, p)), np.arange(n) % groups
    eta = x[:, 0] - 0.7 * x[:, 1] + sigma * rng.normal(size=groups)[group]
    return x, (rng.random(n) < special.expit(eta)).astype(float), group


def test_scores_and_information_of_groups_are_derivatives():
    x, y, group = mixed()
    at = np.array([0.8, -0.5, 0.1, 0.0, 0.0, 0.2, 0.3, 0.7])

    def value(at):
        return group_posteriors(x @ at[:6] + at[6], at[7], y, group, 20)[0].sum()

    def slope(at):
        return group_scores(x, x @ at[:6] + at[6], at[7], y, group, 20, np.ones(6, bool), True)

    found, information, _ = slope(at)
    units = 1e-5 * np.eye(8)
    np.testing.assert_allclose(found, [(value(at + e) - value(at - e)) / 2e-5 for e in units], atol=1e-4)
    np.testing.assert_allclose(information, [-(slope(at + e)[0] - slope(at - e)[0]) / 2e-5 for e in units], atol=1e-4)


def test_a_penalised_fit_is_certified_at_its_least_objective_and_not_before():
    x, y, group = mixed()
    model = mx.SparseMixedLogistic(penalty_weight=5.0, verbose=False).fit(x, y, group)
    assert model.certificate_.word == "certified", str(model.certificate_)
    short = mx.SparseMixedLogistic(penalty_weight=5.0, n_iter=30, verbose=False).fit(x, y, group)
    assert short.certificate_["gradient"].level != "pass" and short.objective_ > model.objective_


def test_no_variance_between_groups_is_told():
    x, y, group = mixed(sigma=0.0)
    y = (x[:, 0] > 0).astype(float)
    y[group % 2 == 0] = (x[:, 1] > 0)[group % 2 == 0]
    model = mx.SparseMixedLogistic(penalty_weight=5.0, n_iter=20_000, verbose=False).fit(x, y, group)
    check = model.certificate_["boundary"]
    assert (check.figure < 0.01) == (check.level == "careful") and (check.figure < 0.01) == (model.sigma_ < 0.2)
