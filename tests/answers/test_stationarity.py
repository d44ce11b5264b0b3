"""The stationarity measure of MISSO against exact gradients, active constraints and penalties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import optimize

import margaux as mx
from helpers import intercept_negative_loglik, logistic_normal, normal, random_intercept, simulate_intercepts
from margaux.algorithms.updates import Problem
from margaux.answers.stationarity import _steepest
from margaux.problem.space import as_space

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]


class Regression(mx.AbstractModel, mx.AbstractConjugate):
    """y_i ~ N(z_i, 1), z_i ~ N(x_i'w, 1): so y_i ~ N(x_i'w, 2)."""

    def log_joint(self, params, z, unit):
        return normal(unit["y"], z) + normal(z, unit["x"] @ params["w"])

    def init_latents(self, key, params, unit):
        return 0.0 * unit["y"]

    def sample_posterior(self, key, params, unit):
        mean = (unit["y"] + unit["x"] @ params["w"]) / 2
        return mean + jax.random.normal(key, (), mean.dtype) / jnp.sqrt(2.0).astype(mean.dtype)


def regression(seed, w, n=50):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, len(w)))
    return {"x": x, "y": x @ np.asarray(w) + rng.normal(0, np.sqrt(2), n)}


def slope(data, w):
    """Gradient of the mean log-likelihood."""
    return data["x"].T @ (data["y"] - data["x"] @ w) / 2 / len(data["y"])


def fitted(model, data, params, **settings):
    """Any fit at all: the measure is taken at parameters of our own."""
    return mx.fit(
        model, data, mx.soul(step=1e-9), mx.Quadrature(3), params=params, n_iter=1, polish=False, progress=False, **settings
    )


def cone(v, w):
    """Projection of v on the tangent cone of the simplex at w, by enumerating the faces."""
    zero = np.flatnonzero(w == 0)
    best = np.zeros_like(v)
    for mask in range(2 ** len(zero)):
        free = np.ones(len(v), bool)
        free[zero[[bool(mask >> j & 1) for j in range(len(zero))]]] = False
        d = np.where(free, v - v[free].mean(), 0.0)
        if np.all(d[zero] >= -1e-12) and np.linalg.norm(v - d) < np.linalg.norm(v - best):
            best = d
    return best


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("estep", [None, mx.Exact(500)], ids=["importance", "exact draws"])
def test_interior_maximum_and_elsewhere(seed, estep):
    problem = random_intercept()
    groups, _ = simulate_intercepts(40, 3)
    fit = fitted(problem.model, problem.data, problem.start, space=problem.space)
    there = fit.stationarity(params=problem.mle, estep=estep, key=seed)
    assert there.stationary and there.noise < 0.02, str(there)
    away = {"mu": 0.3, "tau2": 1.4}
    measured = fit.stationarity(params=away, estep=estep, key=seed)
    x = np.array(list(away.values()))
    value = lambda v: -intercept_negative_loglik(groups, dict(zip(away, v, strict=True))) / 40  # noqa: E731
    truth = np.array([(value(x + h) - value(x - h)) / 2e-5 for h in 1e-5 * np.eye(2)])
    assert measured.value == pytest.approx(np.linalg.norm(truth), abs=4 * measured.se + 1e-6)
    assert not measured.stationary and "not stationary" in str(measured) and "told from zero" in str(there)
    np.testing.assert_allclose([measured.direction[name] for name in away], truth, atol=5 * measured.noise + 1e-6)


def test_the_error_is_the_spread_over_keys():
    problem = logistic_normal()
    fit = fitted(problem.model, problem.data, problem.start, space=problem.space)
    walk = mx.MCMC(mx.RandomWalk(1.5), n_steps=100, burn_in=100)
    there = [fit.stationarity(estep=walk, params=problem.mle, key=key) for key in range(12)]
    away = [fit.stationarity(estep=walk, params={"mu": 0.6, "tau2": 1.0}, key=key) for key in range(12)]
    size = np.sqrt(np.mean([s.value**2 for s in there]))
    assert 0.5 < size / np.mean([s.noise for s in there]) < 2
    assert 0.4 < np.std([s.value for s in away], ddof=1) / np.mean([s.se for s in away]) < 2
    exact = fit.stationarity(estep=mx.Quadrature(60), params={"mu": 0.6, "tau2": 1.0})
    assert exact.se < 1e-12 and not exact.stationary
    error = float(np.mean([s.value for s in away])) - exact.value
    assert abs(error) < 5 * np.mean([s.se for s in away]) / 12**0.5 + 1e-3


@pytest.mark.parametrize("seed", SEEDS)
def test_few_draws_an_importance_sampler(seed):
    problem = logistic_normal(400, seed=17)
    fit = fitted(problem.model, problem.data, problem.start, space=problem.space)
    few = mx.ImportanceSampling(20, widening=3.0, defensive=0.5, control_variate=False)
    there = fit.stationarity(estep=few, params=problem.mle, replicates=40, key=seed)
    assert there.stationary, str(there)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("estep", [mx.Quadrature(5), mx.Exact(200)], ids=["quadrature", "exact draws"])
def test_box_active_at_the_maximum(seed, estep):
    data = regression(seed, [2.5, 0.5, -1.5], n=200)
    low, high = np.array([-np.inf, -3.0, -0.4]), np.array([1.2, 3.0, np.inf])
    best = optimize.lsq_linear(data["x"], data["y"], (low, high), method="bvls", tol=1e-14).x
    assert best[0] == 1.2 and best[2] == -0.4
    fit = fitted(Regression(), data, {"w": np.array([0.5, 0.0, 0.0])}, space={"w": mx.Box(low, high)})
    there = fit.stationarity(params={"w": best}, estep=estep, key=seed)
    assert there.stationary and np.linalg.norm(there.gradient["w"]) > 0.1, str(there)
    assert np.all(np.abs(there.direction["w"][[0, 2]]) == 0)
    # At the same edges but with the free entry moved, and well inside.
    for w in (best - [0, 0.3, 0], np.array([0.3, 0.1, 0.2]), np.array([-1.0, 3.0, -0.4])):
        v = slope(data, w)
        blocked = ((w == low) & (v < 0)) | ((w == high) & (v > 0))
        measured = fit.stationarity(params={"w": w}, estep=estep, key=seed)
        assert measured.value == pytest.approx(np.linalg.norm(v[~blocked]), abs=5 * measured.se + 1e-6)
        assert not measured.stationary


@pytest.mark.parametrize("seed", SEEDS)
def test_simplex_with_active_faces(seed):
    data = regression(seed, [0.7, 0.3, -0.6, 0.0], n=200)
    # The face by non-negative least squares with a heavy row of ones; exact on it by its normal equations.
    free = optimize.nnls(np.vstack([data["x"], np.full(4, 1e4)]), np.r_[data["y"], 1e4])[0] > 0
    w = np.zeros(4)
    a, ones = data["x"][:, free], np.ones((1, free.sum()))
    kkt = np.block([[a.T @ a, ones.T], [ones, np.zeros((1, 1))]])
    w[free] = np.linalg.solve(kkt, np.r_[a.T @ data["y"], 1.0])[:-1]
    fit = fitted(Regression(), data, {"w": np.full(4, 0.25)}, space={"w": mx.Simplex()})
    there = fit.stationarity(params={"w": w}, estep=mx.Exact(200), key=seed)
    assert w[2] == 0 and there.stationary and np.linalg.norm(there.gradient["w"]) > 0.05, str(there)
    for point in (np.full(4, 0.25), np.array([0.0, 0.5, 0.5, 0.0]), np.array([0, 0, 1.0, 0]), np.array([1 - 1e-5, 0, 1e-5, 0])):
        measured = fit.stationarity(params={"w": point}, estep=mx.Quadrature(5))
        truth = cone(slope(data, point), point)
        np.testing.assert_allclose(measured.direction["w"], truth, atol=1e-6)
        assert measured.value == pytest.approx(np.linalg.norm(truth), abs=1e-6)


def directions(space, x, v, penalty=None, n=1):
    with jax.enable_x64(True):
        x, v = (jax.tree.map(lambda leaf: jnp.asarray(leaf, float), tree) for tree in (x, v))
        problem = Problem(Regression(), as_space(space, x), penalty or mx.NoPenalty(), n)
        flat, back = ravel_pytree(v)
        return jax.tree.map(np.asarray, back(_steepest(problem, x, flat[None], jnp.asarray(1.5e-8))[0]))


@pytest.mark.parametrize("seed", range(20))
def test_curved_spaces_and_pytrees(seed):
    rng = np.random.default_rng(seed)
    centre, radius = rng.normal(size=4), 2.5
    normal_ = rng.normal(size=4)
    normal_ /= np.linalg.norm(normal_)
    v = rng.normal(size=4)
    q, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    floor = 1e-10
    singular = (q * np.array([floor, floor, 0.5, 100.0])) @ q.T
    inside = (q * np.array([1e-3, 0.1, 1.0, 100.0])) @ q.T
    s = rng.normal(size=(4, 4))
    ascent = {"edge": v, "within": v, "singular": s, "inside": s, "small": rng.normal(), "floor": v, "free": 1e3 * v}
    x = {"edge": centre + radius * normal_, "within": centre + 0.999 * radius * normal_, "singular": singular, "inside": inside,
         "small": 3e-6, "floor": np.array([floor, floor, 1.0, 1e-4]), "free": np.zeros(4)}  # fmt: skip
    space = {"edge": mx.Ball(radius, centre), "within": mx.Ball(radius, centre), "singular": mx.PositiveDefinite(),
             "inside": mx.PositiveDefinite(), "small": mx.Positive(), "floor": mx.Positive()}  # fmt: skip
    got = directions(space, x, ascent)
    np.testing.assert_allclose(got["edge"], v - max(v @ normal_, 0) * normal_, atol=1e-6)
    np.testing.assert_allclose(got["within"], v, atol=1e-6)
    np.testing.assert_allclose(got["small"], ascent["small"], atol=1e-6)
    np.testing.assert_allclose(got["floor"], np.where([1, 1, 0, 0], np.maximum(v, 0), v), atol=1e-6)
    np.testing.assert_allclose(got["free"], 1e3 * v, rtol=1e-9)
    symmetric = (s + s.T) / 2
    np.testing.assert_allclose(got["inside"], symmetric, atol=1e-6)
    # In its own axes: the block of the null space is made positive semidefinite, the rest is free.
    local = q.T @ symmetric @ q
    values, vectors = np.linalg.eigh(local[:2, :2])
    local[:2, :2] = (vectors * np.maximum(values, 0)) @ vectors.T
    np.testing.assert_allclose(got["singular"], q @ local @ q.T, atol=3e-6)


def test_penalties_by_their_smallest_subgradient():
    v = {"a": np.array([0.5, 0.1, -0.3, 0.0]), "b": np.array(0.0)}
    x = {"a": np.array([0.0, 0.0, 2.0, -1e-3]), "b": np.array(1.0)}
    got = directions(None, x, v, mx.L1(20.0, on="a"), n=100)
    np.testing.assert_allclose(got["a"], [0.3, 0.0, -0.5, 0.2], atol=1e-7)
    np.testing.assert_allclose(got["b"], 0.0, atol=1e-7)
    bounded = directions({"a": mx.Box(low=-1e-3), "b": mx.Real()}, x, v, mx.L2(10.0), n=100)
    np.testing.assert_allclose(bounded["a"], [0.5, 0.1, -0.5, 1e-4], atol=1e-7)
    np.testing.assert_allclose(bounded["b"], -0.1, atol=1e-7)


@pytest.mark.parametrize("seed", SEEDS)
def test_penalised_fit_is_stationary(seed):
    data = regression(seed, [1.5, 0.05, -0.05])
    fit = mx.fit(Regression(), data, mx.soul(step=0.5), mx.Quadrature(3), params={"w": np.zeros(3)}, n_iter=300,
                 penalty=mx.L1(10.0), average=mx.LastIterate(), polish=False, progress=False)  # fmt: skip
    assert np.any(fit.params["w"] == 0)
    there = fit.stationarity()
    assert there.value < 1e-6 and np.linalg.norm(there.gradient["w"]) > 0.1
    assert fit.stationarity(params={"w": fit.params["w"] + 0.1}).value > 0.01


def test_single_precision_and_averages_near_an_edge():
    data = regression(0, [2.0, 0.5])
    fit = mx.fit(Regression(), data, mx.soul(step=0.5), mx.Quadrature(3), params={"w": np.zeros(2)}, n_iter=200,
                 space={"w": mx.Box(high=1.1)}, average=mx.LastIterate(), dtype="float32",
                 polish=False, progress=False)  # fmt: skip
    assert fit.stationarity().value < 1e-5
    near = {"w": fit.params["w"].astype(float) - [1e-4, 0]}
    assert fit.stationarity(params=near).value > 0.1
    assert fit.stationarity(params=near, reach=1e-3).value < 0.1 * fit.stationarity(params=near).value


def test_variational_fits_have_that_of_their_bound():
    class Bound(mx.AbstractModel):
        def log_joint(self, params, z, y):
            return -((y - params["m"] - z) ** 2) / 2

        def init_latents(self, key, params, y):
            return 0.0 * y

    y = np.array([1.0, 2.0, 6.0])
    fit = mx.fit(
        Bound(), y, mx.soul(step=0.1), mx.Noise(64, antithetic=True), params={"m": 0.0}, n_iter=1, polish=False, progress=False
    )
    assert fit.stationarity(estep=fit.estep, params={"m": 2.0}).value == pytest.approx(1.0, abs=1e-9)
    with pytest.raises(ValueError, match="variational"):
        fit.stationarity()


def test_refusals():
    problem = random_intercept()
    fit = fitted(problem.model, problem.data, problem.start, space=problem.space)
    with pytest.raises(ValueError, match="outside Positive"):
        fit.stationarity(params={"mu": 0.0, "tau2": -1.0})
    with pytest.raises(ValueError, match="reach"):
        fit.stationarity(reach=2.0)
    with pytest.raises(ValueError, match="replicates"):
        fit.stationarity(replicates=1)
    broken = fitted(problem.model, problem.data, problem.start)
    with pytest.raises(ValueError, match="not finite|is NaN"):
        broken.stationarity(params={"mu": 0.0, "tau2": 0.0})
