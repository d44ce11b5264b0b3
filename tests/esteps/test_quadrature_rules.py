"""The two grids of a quadrature against integrals that are known."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

import margaux as mx
from margaux.answers.likelihood import _marginals, loglik


class Silent(mx.AbstractModel):
    """Six answers of no, of two crossed effects that may be large: a posterior with a long side."""

    def log_joint(self, params, z, y):
        eta = z[0] * params["spread"] + z[1] * y
        return jnp.sum(-jnp.logaddexp(0.0, eta)) - 0.5 * jnp.sum(z**2) - jnp.log(2 * jnp.pi)

    def init_latents(self, key, params, y):
        return jnp.zeros(2)


def exact(spread, y):
    def density(b, a):
        return np.exp(-np.sum(np.logaddexp(0.0, a * spread + b * y)) - 0.5 * (a**2 + b**2)) / (2 * np.pi)

    return np.log(integrate.dblquad(density, -9, 9, -9, 9, epsabs=1e-11)[0])


def moments(spread, y):
    """Mean and root of the covariance, by a fine grid."""
    z = np.stack(np.meshgrid(*[np.linspace(-9, 9, 1201)] * 2, indexing="ij")).reshape(2, -1)
    logs = -np.sum(np.logaddexp(0.0, z[0, :, None] * spread + z[1, :, None] * y), axis=1) - 0.5 * np.sum(z**2, axis=0)
    w = special.softmax(logs)
    gap = z - (z @ w)[:, None]
    return {"mean": (z @ w)[None], "cholesky": np.linalg.cholesky(gap * w @ gap.T)[None]}


@pytest.fixture(scope="module")
def fit():
    y = np.linspace(0.0, 2.0, 6)[None]
    still = mx.soul(mx.Constant(1e-12), average=mx.LastIterate())
    return mx.fit(Silent(), y, still, mx.Quadrature(5), params={"spread": 8.0}, n_iter=2, polish=False, progress=False)


def test_equidistant_nodes_are_far_better_where_a_posterior_has_a_long_side(fit):
    y = np.asarray(fit.data[0])
    truth, rows = exact(8.0, y), moments(8.0, y)
    grids = (mx.Quadrature(35, held=True), mx.Quadrature(35, held=True, reach=5.5))
    gauss, even = (abs(_marginals(fit, None, grid, rows)[0] - truth) for grid in grids)
    assert even < 5e-5 and gauss > 10 * even
    assert float(loglik(fit)) == pytest.approx(truth, abs=0.01)


def test_both_are_exact_for_a_gaussian():
    class Gaussian(mx.AbstractModel):
        def log_joint(self, params, z, y):
            return -0.5 * jnp.sum((y - z) ** 2) - 0.5 * jnp.sum(z**2) - 2 * jnp.log(2 * jnp.pi)

        def init_latents(self, key, params, y):
            return jnp.zeros(2)

    y = np.array([[1.0, -2.0]])
    for rule in (mx.Quadrature(3), mx.Quadrature(15, reach=6.0)):
        fit = mx.fit(Gaussian(), y, mx.soul(), rule, params={"none": 0.0}, n_iter=2, polish=False, progress=False)
        assert fit.trace["log_marginal"][-1] == pytest.approx(-np.log(4 * np.pi) - 5 / 4, abs=1e-8)


@pytest.mark.parametrize(("nodes", "reach"), [(1, 6.0), (5, 0.0), (5, -1.0), (5, np.nan)])
def test_a_reach_that_is_none_is_refused(nodes, reach):
    with pytest.raises(ValueError, match="reach"):
        mx.Quadrature(nodes, reach=reach)
