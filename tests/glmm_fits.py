"""Fits to simulated data that several tests ask, each made once."""

import functools

import numpy as np
import pandas as pd

from margaux import GLMM


def counts(seed=0, groups=30, size=8, sd=0.6):
    """Poisson counts with a covariate, a treatment of three levels and a random intercept."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(groups), size)
    x, arm = rng.normal(size=g.size), np.array(["a", "b", "c"])[rng.integers(3, size=g.size)]
    eta = 0.6 + 0.3 * x + 0.4 * (arm == "b") + sd * rng.normal(size=groups)[g]
    return pd.DataFrame({"y": rng.poisson(np.exp(eta)), "x": x, "arm": arm, "g": g})


def shares(seed=0, groups=25, size=6, sd=0.7):
    """Successes of trials."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(groups), size)
    x, n = rng.normal(size=g.size), rng.integers(3, 15, size=g.size)
    eta = -0.5 + 0.8 * x + sd * rng.normal(size=groups)[g]
    return pd.DataFrame({"y": rng.binomial(n, 1 / (1 + np.exp(-eta))), "n": n, "x": x, "g": g})


def measurements(seed=0, groups=20, size=6, sd=0.8, sigma=0.5):
    """Gaussian measurements."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(groups), size)
    x = rng.normal(size=g.size)
    y = 1.0 + 0.5 * x + sd * rng.normal(size=groups)[g] + sigma * rng.normal(size=g.size)
    return pd.DataFrame({"y": y, "x": x, "g": g})


TABLES = {"counts": counts, "shares": shares, "measurements": measurements}


@functools.cache
def table(name):
    return TABLES[name]()


@functools.cache
def fitted(name, formula, family, **settings):
    return GLMM(formula, family=family, verbose=False, **settings).fit(table(name))


def poisson():
    return fitted("counts", "y ~ x + arm + (1 | g)", "poisson")


def binomial():
    return fitted("shares", "y/n ~ x + (1 | g)", "binomial")


def gaussian():
    return fitted("measurements", "y ~ x + (1 | g)", "gaussian")
