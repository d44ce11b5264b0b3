"""Weights against NumPy: how even they are, the shape of their tail, and the pooling of replicates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from margaux.numerics.sampling import effective_size, pareto_shape, pareto_shapes, pooled

pytestmark = pytest.mark.usefixtures("double")


def shape_by_numpy(log_w):
    """Zhang and Stephens' estimate of the largest min(m / 5, 3 sqrt m), drawn towards a half as by ten more weights."""
    m = len(log_w)
    count = int(min(m // 5, np.ceil(3 * np.sqrt(m))))
    w = np.sort(np.exp(log_w - log_w.max()))[-count - 1 :]
    x = w[1:] - w[0]
    places = 30 + int(np.sqrt(count))
    b = np.array(
        [1 / x[-1] + (1 - np.sqrt(places / (j - 0.5))) / (3 * x[int(count / 4 + 0.5) - 1]) for j in range(1, places + 1)]
    )
    k = np.array([np.mean(np.log1p(-each * x)) for each in b])
    profile = count * (np.log(-b / k) - k - 1)
    weight = np.array([1 / np.sum(np.exp(profile - own)) for own in profile])
    shape = np.mean(np.log1p(-np.sum(b * weight) * x))
    return (count * shape + 10 * 0.5) / (count + 10)


@pytest.mark.parametrize(("m", "shape"), [(25, 0.4), (60, 0.9), (226, 0.1), (700, 1.3), (4000, 0.6)])
def test_the_shape_is_that_of_zhang_and_stephens(m, shape):
    log_w = np.log(stats.genpareto(shape).rvs(m, random_state=m) + 0.1)
    found = float(jax.jit(pareto_shape)(jnp.asarray(log_w + 300.0)))
    assert found == pytest.approx(shape_by_numpy(log_w), rel=1e-9)


def test_long_tails_have_their_own_shape():
    for shape in (0.3, 0.8):
        log_w = np.log(stats.genpareto(shape).ppf((np.arange(20_000) + 0.5) / 20_000))
        assert float(jax.jit(pareto_shape)(jnp.asarray(log_w))) == pytest.approx(shape, abs=0.05)


def test_fewer_than_five_weights_in_the_tail_tell_nothing_and_equal_ones_have_no_tail():
    uneven = 6 * np.log(np.arange(1.0, 30.0))
    assert float(pareto_shape(jnp.asarray(uneven[:24]))) == np.inf
    assert np.isfinite(float(pareto_shape(jnp.asarray(uneven[:25]))))
    short = pareto_shape(jnp.asarray(uneven[:24], jnp.float32))
    assert short.dtype == jnp.float32 and short.shape == ()
    assert float(jax.jit(pareto_shape)(jnp.zeros(100))) == -np.inf


@pytest.mark.parametrize("found", [jax.jit(pareto_shape), lambda log_w: pareto_shapes(np.asarray(log_w)[None])[0]])
def test_a_few_weights_beside_many_that_are_all_but_equal_are_no_heavy_tail(found):
    rng = np.random.default_rng(0)
    bulk = 1 - 0.05 * rng.random(4000) ** 2
    few = np.concatenate([bulk, rng.uniform(2, 3.5, 10)])
    assert shape_by_numpy(np.log(few)) > 1 and float(found(jnp.log(few))) == -np.inf
    many = np.concatenate([bulk, 40 * (1 - rng.random(20)) ** -0.9])
    assert float(found(jnp.log(many))) > 0.7


def test_weights_that_vanish_are_no_trouble():
    log_w = np.where(np.arange(100) % 2, -np.inf, 5 * np.log(np.arange(1.0, 101.0)))
    assert float(jax.jit(pareto_shape)(jnp.asarray(log_w))) == pytest.approx(shape_by_numpy(log_w), rel=1e-9)


def test_the_effective_size_is_the_inverse_of_the_sum_of_squares():
    w = np.random.default_rng(0).dirichlet(np.ones(6), size=3).T
    np.testing.assert_allclose(effective_size(jnp.asarray(w)), [1 / np.sum(w[:, i] ** 2) for i in range(3)])
    assert float(effective_size(jnp.full(8, 0.125))) == pytest.approx(8.0)


def test_replicates_are_pooled_as_densities_with_the_error_of_the_delta_method():
    logs = np.random.default_rng(1).normal(-700.0, 1.5, (5, 4))
    value, error = pooled(logs)
    densities = np.exp(logs + 700.0)
    np.testing.assert_allclose(value, special.logsumexp(logs, axis=0) - np.log(5))
    np.testing.assert_allclose(error, densities.std(axis=0, ddof=1) / np.sqrt(5) / densities.mean(axis=0))
    shifted = pooled(logs + np.array([0.0, 900.0, -900.0, 3.0]))
    np.testing.assert_allclose(shifted[0] - value, [0.0, 900.0, -900.0, 3.0])
    np.testing.assert_allclose(shifted[1], error)


def test_replicates_of_density_zero_pool_to_zero_and_one_of_them_counts():
    value, error = pooled(np.array([[-np.inf, -np.inf, np.inf], [-np.inf, 0.0, 0.0]]))
    assert value[0] == -np.inf and np.isnan(error[0])
    assert value[1] == pytest.approx(np.log(0.5)) and error[1] == pytest.approx(np.sqrt(0.5) / 0.5 / np.sqrt(2))
    assert value[2] == np.inf
