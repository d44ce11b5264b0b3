"""Whether intervals hold the truth as often as they say, for every family: 1000 data sets each, fitted together."""

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

import margaux as mx
from margaux.families.glmm.responses import Hurdle, ZeroInflated, by_name

SETS, GROUPS, ROWS = 1000, 100, 6
#: three Monte Carlo errors of a share of 0.95 of so many
CHANCE = 3 * np.sqrt(0.95 * 0.05 / SETS)


def without_zero(rng, mean):
    """Poisson counts of one or more."""
    return stats.poisson.ppf(rng.uniform(np.exp(-mean), 1), mean)


#: what draws responses given the predictor; the truth of the response's own parameters
FAMILIES = {
    "gaussian": ("gaussian", lambda rng, eta: rng.normal(eta), {"sigma": 1.0}),
    "binomial": ("binomial", lambda rng, eta: rng.random(eta.shape) < special.expit(eta), {}),
    "poisson": ("poisson", lambda rng, eta: rng.poisson(np.exp(eta)), {}),
    "nbinom2": ("nbinom2", lambda rng, eta: rng.negative_binomial(3, 3 / (3 + np.exp(eta))), {"theta": 3.0}),
    "nbinom1": ("nbinom1", lambda rng, eta: rng.negative_binomial(np.exp(eta), 0.5), {"alpha": 1.0}),
    "gamma": ("gamma", lambda rng, eta: rng.gamma(4, np.exp(eta) / 4), {"sigma": 0.5}),
    "beta": (
        "beta",
        lambda rng, eta: np.clip(rng.beta(6 * special.expit(eta), 6 * special.expit(-eta)), 1e-9, 1 - 1e-9),
        {"phi": 6.0},
    ),
    "ordinal": (
        "ordinal",
        lambda rng, eta: np.digitize(rng.logistic(eta), [-0.5, 0.8, 2.0]),
        {"0|1": -0.9, "1|2": 0.4, "2|3": 1.6},
    ),
    "student": ("student", lambda rng, eta: eta + rng.standard_t(5, eta.shape), {"sigma": 1.0}),
    "zero-inflated": (
        ZeroInflated(by_name("poisson")),
        lambda rng, eta: rng.poisson(np.exp(eta)) * (rng.random(eta.shape) > 0.25),
        {"zero": -np.log(3)},
    ),
    "hurdle": (
        Hurdle(by_name("poisson")),
        lambda rng, eta: without_zero(rng, np.exp(eta)) * (rng.random(eta.shape) > 0.25),
        {"zero": -np.log(3)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_intervals_hold_the_truth(name):
    family, draw, own = FAMILIES[name]
    rng = np.random.default_rng(17)
    g, x = np.repeat(np.arange(GROUPS), ROWS), rng.normal(size=GROUPS * ROWS)
    eta = 0.4 + 0.5 * x[:, None] + 0.7 * rng.normal(size=(GROUPS, SETS))[g]
    fits = mx.GLMM("~ x + (1 | g)", family=family, verbose=False).fit_many(
        np.asarray(draw(rng, eta), float), pd.DataFrame({"x": x, "g": g})
    )
    assert np.mean(fits.verdicts["word"].to_numpy() == "certified") > 0.97
    truth = {"Intercept": 0.4, "x": 0.5, "sd_g": 0.7} | own
    for one in fits.params_:
        if one not in truth:
            continue
        estimate, se = (frame[one].to_numpy() for frame in (fits.params_, fits.stderr_))
        known = np.isfinite(se)
        inside = np.abs(estimate - truth[one])[known] < 1.959964 * se[known]
        least, most = (0.92, 0.98) if one.startswith("sd_") else (0.93, 0.97)
        assert known.mean() > 0.97 and least - CHANCE / 3 < inside.mean() < most + CHANCE / 3, (one, inside.mean())
