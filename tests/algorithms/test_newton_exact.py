"""`mx.newton` on models of many parameters and of few units, against maxima that share no code with it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from scipy import optimize, special, stats

import margaux as mx
from margaux.answers.scores import Coordinates
from margaux.datasets import load_theophylline
from margaux.families.nlme import LogNormal, oral1cpt

PERSONS, ITEMS = 500, 20


class TwoParameter(mx.AbstractModel):
    """Item response: answers with probability 1 / (1 + exp(-slope z - intercept))."""

    def log_joint(self, params, z, y):
        eta = params["slope"] * z + params["intercept"]
        return jnp.sum(y * eta - jnp.logaddexp(0.0, eta)) + norm.logpdf(z)

    def init_latents(self, key, params, y):
        return jnp.zeros(())


def on_a_grid(y):
    """The maximum of the two-parameter likelihood over 161 nodes, by scipy's gradients: slopes and intercepts."""
    x = np.linspace(-8, 8, 161)
    log_w = stats.norm.logpdf(x) + np.log(x[1] - x[0])

    def value(v):
        eta = np.outer(v[:ITEMS], x) + v[ITEMS:, None]
        logs = -y @ np.logaddexp(0, -eta) - (1 - y) @ np.logaddexp(0, eta) + log_w
        total: Any = special.logsumexp(logs, axis=1)
        w = np.exp(logs - total[:, None])
        slope = y.T @ w - w.sum(axis=0) * special.expit(eta)
        return -total.sum(), -np.concatenate([(slope * x).sum(axis=1), slope.sum(axis=1)])

    start = np.concatenate([np.ones(ITEMS), np.zeros(ITEMS)])
    options = {"ftol": 1e-15, "gtol": 1e-8, "maxiter": 2000}
    found = optimize.minimize(value, start, jac=True, method="L-BFGS-B", options=options)
    return found.x[:ITEMS], found.x[ITEMS:], -found.fun


@pytest.mark.slow
def test_item_response_from_three_starts():
    rng = np.random.default_rng(4)
    slope, intercept = rng.lognormal(0, 0.4, ITEMS), rng.normal(size=ITEMS)
    y = (rng.random((PERSONS, ITEMS)) < special.expit(np.outer(rng.normal(size=PERSONS), slope) + intercept)).astype(float)
    slopes, intercepts, loglik = on_a_grid(y)
    for first in (1.0, 0.3, 3.0):
        start = {"slope": np.full(ITEMS, first), "intercept": np.zeros(ITEMS)}
        fit = mx.fit(TwoParameter(), y, mx.newton(), mx.Quadrature(31), params=start, n_iter=40, polish=False, progress=False)
        assert fit.result is mx.RESULTS.stopped and np.argmax(fit.trace["newton"][:, 0] < 1e-4) < 15
        se = fit.information().se
        assert (np.abs(fit.params["intercept"] - intercepts) < 1e-4 * se[:ITEMS]).all()
        assert (np.abs(fit.params["slope"] - slopes) < 1e-4 * se[ITEMS:]).all()
        assert float(fit.loglik()) == pytest.approx(loglik, abs=1e-4)


@pytest.mark.slow
def test_twelve_subjects_and_seven_parameters():
    """Scores of twelve units say little about curvature: from ten starts, of which four are three times off in all parameters."""
    individual = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(0.5)}
    model = mx.NLME(structural=oral1cpt, individual=individual, verbose=False)
    best = model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose").result_
    assert float(model.loglik_) == pytest.approx(-172.7174, abs=2e-3)
    problem, coordinates, se = best._model(), Coordinates(best), best.information().se
    u, data = coordinates.to(best.params), jax.tree.map(np.asarray, best.data)
    first = {"beta": np.log([1.0, 20.0, 0.5]), "error": np.ones(1), "omega2": np.full(3, 0.2)}
    others = [coordinates.back(u + 0.4 * np.random.default_rng(seed).normal(size=u.size)) for seed in range(5)]
    for turns, times, spread in (([1, 1, 1], 3, 3), ([-1, -1, -1], 1 / 3, 1 / 3), ([1, -1, 1], 3, 9), ([-1, 1, -1], 3, 1 / 3)):
        off = {"beta": np.log(3) * np.array(turns), "error": times, "omega2": spread}
        times_off = {name: best.params[name] * off[name] for name in ("error", "omega2")}
        others.append({"beta": best.params["beta"] + off["beta"], **times_off})

    def fitted(start, nodes):
        settings = {"params": start, "space": problem.space, "n_iter": 40, "polish": False, "progress": False}
        fit = mx.fit(problem.model, data, mx.newton(), mx.Quadrature(nodes), **settings)
        assert fit.result is mx.RESULTS.stopped and np.argmax(fit.trace["newton"][:, 0] < 1e-4) < 15
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(fit.params)])

    exact = fitted(best.params, 25)
    for start in (first, *others):
        assert np.abs((fitted(start, 15) - exact) / se).max() < 1e-4
    assert np.abs((fitted(others[-2], 21) - exact) / se).max() < 1e-5
