"""Matern covariances in time and in the plane against dense multivariate normals, by Bessel functions, climbed by SciPy."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import linalg, optimize, special, stats

import margaux as mx
from margaux.families.glmm.factor import Factor
from margaux.families.glmm.formula import design

#: word of a formula and smoothness
WORDS = {"mat12": 0.5, "exp": 0.5, "mat32": 1.5, "mat": 1.5, "mat52": 2.5}


def matern(apart, reach, nu):
    s = np.maximum(apart / reach, 1e-12)
    return np.where(apart > 0, 2 ** (1 - nu) / special.gamma(nu) * s**nu * special.kv(nu, s), 1.0)


def table(dims, nu):
    """Groups, their places and measurements."""
    rng = np.random.default_rng(round(10 * nu) + dims)
    groups, each = (12, 8) if dims == 1 else (4, 16)
    g = np.repeat(np.arange(groups), each)
    # Of all groups the same places, some of them twice in a group.
    places = rng.uniform(0, 4, (each - 2, dims))
    at = np.concatenate([places, places[:2]])[np.tile(np.arange(each), groups)]
    effects = [rng.multivariate_normal(np.zeros(each - 2), matern(linalg.norm(places[:, None] - places, axis=2), 0.8, nu))
               for _ in range(groups)]  # fmt: skip
    found = np.concatenate([np.concatenate([one, one[:2]]) for one in effects])
    x = rng.normal(size=len(g))
    data = pd.DataFrame({"g": g, "x": x, "y": 1 + 0.5 * x + found + 0.4 * rng.normal(size=len(g)), "east": at[:, 0]})
    return data if dims == 1 else data.assign(north=at[:, 1])


def dense(data, nu):
    """Minus the log-likelihood of (intercept, slope, log sigma, log sd, log range)."""
    at = data[[name for name in ("east", "north") if name in data]].to_numpy()
    together = data["g"].to_numpy()[:, None] == data["g"].to_numpy()
    apart = linalg.norm(at[:, None] - at, axis=2)

    def value(v):
        sigma, sd, reach = np.exp(v[2:])
        total = sigma**2 * np.eye(len(data)) + sd**2 * matern(apart, reach, nu) * together
        return -float(stats.multivariate_normal.logpdf(data["y"], v[0] + v[1] * data["x"], total))

    return value


@pytest.mark.parametrize("word, dims", [
    pytest.param(word, dims, marks=() if (word, dims) == ("mat52", 1) else pytest.mark.slow)
    for word in WORDS for dims in (1, 2)
])  # fmt: skip
def test_the_maximum_is_that_of_a_dense_normal(word, dims):
    nu, places = WORDS[word], "east" if dims == 1 else "east + north"
    data = table(dims, nu)
    value = dense(data, nu)
    best = optimize.minimize(value, [1.0, 0.5, -1.0, 0.0, 0.0], method="BFGS", options={"gtol": 1e-5})
    for factor in (1.0, 3.0, 1 / 3):
        start = None if factor == 1 else {"sigma": 0.4 * factor, "sd_g": factor, "range_g": factor}
        model = mx.GLMM(f"y ~ x + {word}(0 + {places} | g)", verbose=False, start=start).fit(data)
        own = [model.params_[name] for name in ("Intercept", "x", "sigma", "sd_g", "range_g")]
        assert float(model.loglik_) == pytest.approx(-value([*own[:2], *np.log(own[2:])]), abs=1e-6)
        assert float(model.loglik_) == pytest.approx(-best.fun, abs=1e-4)
        assert np.abs(np.array(own) - [*best.x[:2], *np.exp(best.x[2:])]).max() < 0.01 * min(model.stderr_.values())


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("word", WORDS)
def test_a_correlation_by_its_bessel_function(word):
    rng, times = np.random.default_rng(0), np.array([0.0, 0.3, 1.0, 2.5, 4.0])
    data = pd.DataFrame({"g": np.repeat(np.arange(6), 5), "t": np.tile(times, 6), "y": rng.normal(size=30)})
    term = design(f"y ~ 1 + {word}(0 + t | g)", data).terms[0]
    factor = Factor("g", 5, 1, term.structure, tuple(map(tuple, np.asarray(term.positions).tolist())))
    root = factor.root({"sd": {"g": jnp.array([2.0])}, "range": {"g": jnp.array([0.7])}})
    np.testing.assert_allclose(root @ root.T, 4 * matern(np.abs(times[:, None] - times), 0.7, WORDS[word]), atol=1e-8)
