"""Binary answers of small groups, where Laplace's approximation is biased, against sums over a grid climbed by SciPy."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from scipy import optimize, special, stats

import margaux as mx

GROUPS, ROWS = 300, 3
NAMES = ("intercept", "log_sd", "slope")


class Answers(mx.AbstractModel):
    """Logit of three answers a group, with an intercept of the group's."""

    def log_joint(self, params, z, u):
        eta = params["intercept"] + params["slope"] * u["x"] + jnp.exp(params["log_sd"]) * z
        return jnp.sum(u["y"] * eta - jnp.logaddexp(0.0, eta)) + norm.logpdf(z)

    def init_latents(self, key, params, u):
        return jnp.zeros((), u["x"].dtype)


def answers(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(GROUPS, ROWS))
    eta = -0.5 + 0.8 * x + 1.5 * rng.normal(size=(GROUPS, 1))
    return {"y": (rng.random((GROUPS, ROWS)) < special.expit(eta)).astype(float), "x": x}


def on_a_grid(data):
    """The maximum and its standard errors, by NAMES, and the log-likelihood."""
    z, h = np.linspace(-8, 8, 401, retstep=True)
    log_w = stats.norm.logpdf(z) + np.log(h)

    def value(v):
        eta = v[0] + v[2] * data["x"][:, :, None] + np.exp(v[1]) * z
        total: Any = special.logsumexp(np.sum(data["y"][:, :, None] * eta - np.logaddexp(0, eta), axis=1) + log_w, axis=1)
        return -float(np.sum(total))

    best = optimize.minimize(value, [0.0, 0.0, 0.0], method="BFGS", options={"gtol": 1e-6})
    e, h = np.eye(3), 1e-3
    bent = [[value(best.x + h * (a + b)) - value(best.x + h * (a - b)) - value(best.x - h * (a - b)) + value(best.x - h * (a + b))
             for b in e] for a in e]  # fmt: skip
    return best.x, np.sqrt(np.diagonal(np.linalg.inv(np.array(bent) / (4 * h * h)))), -best.fun


def climbed(data, estep, key=0, times=1.0):
    start = dict(zip(NAMES, times * np.array([-0.4, 0.3, 0.7]), strict=True))
    return mx.fit(Answers(), data, mx.newton(), estep, params=start, n_iter=40, key=key, polish=False, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_corrected_maximum_is_that_of_quadrature(seed):
    data = answers(seed)
    truth, se, loglik = on_a_grid(data)

    def away(fit):
        return np.max(np.abs([fit.params[name] for name in NAMES] - truth) / se)

    assert away(climbed(data, mx.Laplace())) > 0.2
    for key, times in ((0, 1.0), (1, 3.0), (2, 1 / 3)):
        mended = climbed(data, mx.Laplace(correct=True, n_draws=1024), key, times)
        assert mended.result is mx.RESULTS.stopped and away(mended) < 0.05
        assert float(mended.trace["log_marginal"][-1, 0]) == pytest.approx(loglik, abs=0.1)
    start = dict(zip(NAMES, [-0.4, 0.3, 0.7], strict=True))
    polished = mx.fit(Answers(), data, mx.newton(), mx.Laplace(correct=True), params=start, n_iter=40, progress=False)
    assert away(polished) < 0.01 and polished.certificate.word == "certified"
