"""Sparse linear inverse problems: operators, priors against quadrature and brute force, and the estimator."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, sparse

import margaux as mx
from margaux.families.inverse.estimator import SparseInverse
from margaux.families.inverse.model import (
    BlockOperator,
    DenseOperator,
    LinearInverse,
    SparseOperator,
    as_operator,
    maximum_a_posteriori,
    norm_squared,
)
from margaux.families.inverse.priors import L1, GroupL2, HuberPrior, TotalVariation1D, TotalVariation2D
from margaux.numerics.precision import settle

FLOAT = np.dtype(float)


def _identity(x):
    return x


def blocks(rng, count=6, height=5, width=4):
    """A permuted block-diagonal matrix of uneven blocks, with a zero row and a zero column."""
    parts = [rng.normal(size=(height - b % 2, width - b % 3)) for b in range(count)]
    A = sparse.block_diag([*parts, np.zeros((1, 1))]).toarray()
    return A[rng.permutation(A.shape[0])][:, rng.permutation(A.shape[1])]


@pytest.mark.parametrize("kind", ["array", "sparse"])
def test_blocks_give_the_dense_products(double, kind):
    rng = np.random.default_rng(0)
    A = blocks(rng)
    y = rng.normal(size=len(A))
    given = sparse.coo_matrix(A) if kind == "sparse" else A
    fast = settle(as_operator(given, y, None, FLOAT), FLOAT)
    plain = settle(as_operator(given, y, None, FLOAT, structure="dense"), FLOAT)
    assert isinstance(fast, BlockOperator) and fast.blocks.shape[0] == 6
    assert isinstance(plain, SparseOperator if kind == "sparse" else DenseOperator)
    x = jnp.asarray(rng.normal(size=A.shape[1]))
    for operator in (fast, plain):
        np.testing.assert_allclose(operator(x), A @ x, atol=1e-12)
        np.testing.assert_allclose(operator.adjoint(jnp.asarray(y)), A.T @ y, atol=1e-12)
        gradient = jax.grad(lambda x, op=operator: jnp.sum((y - op(x)) ** 2) / 2)(x)
        np.testing.assert_allclose(gradient, A.T @ (A @ np.asarray(x) - y), atol=1e-12)
    assert norm_squared(fast, 2000) == pytest.approx(np.linalg.norm(A, 2) ** 2, rel=1e-6)


def test_a_full_matrix_stays_dense():
    A = np.random.default_rng(0).normal(size=(5, 8))
    assert isinstance(as_operator(A, np.zeros(5), None, FLOAT), DenseOperator)


@pytest.mark.parametrize("theta", [0.3, 4.0, 200.0])
def test_normalisers_against_quadrature(double, theta):
    one = jnp.zeros(1)
    huber = HuberPrior(0.05)
    for prior in (L1(), huber):
        density = lambda u, prior=prior: np.exp(-theta * float(prior.value(jnp.array([u]))))  # noqa: E731
        points = [0.05, 1 / theta, 10 / theta]
        edges = [0.0, *sorted(points), 60 / theta + 0.05]
        exact = 2 * sum(integrate.quad(density, a, b)[0] for a, b in zip(edges[:-1], edges[1:], strict=True))
        assert float(prior.log_normaliser(jnp.asarray(theta), one)) == pytest.approx(np.log(exact), abs=1e-6)
    radial = lambda r: 4 * np.pi * r**2 * np.exp(-theta * r)  # noqa: E731
    exact = integrate.quad(radial, 0, 60 / theta)[0]
    group = GroupL2(np.zeros(3, int))
    assert float(group.log_normaliser(jnp.asarray(theta), jnp.zeros(3))) == pytest.approx(np.log(exact), abs=1e-6)


def test_total_variation_is_normalised_off_the_constants(double):
    theta = 1.7
    basis = np.linalg.svd(np.ones((1, 3)))[2][1:]
    prior = TotalVariation1D()
    density = lambda a, b: np.exp(-theta * np.abs(np.diff(a * basis[0] + b * basis[1])).sum())  # noqa: E731
    grid = np.linspace(-14, 14, 1401)
    exact = sum(density(a, b) for a in grid for b in grid[::10]) * (grid[1] - grid[0]) * (grid[10] - grid[0])
    assert float(prior.log_normaliser(jnp.asarray(theta), jnp.zeros(3))) == pytest.approx(np.log(exact), abs=0.01)
    slopes = jax.grad(lambda t: TotalVariation2D().log_normaliser(t, jnp.zeros((4, 5))))(theta)
    assert float(slopes) == pytest.approx(-19 / theta)


PROXES = {
    "l1": (L1(), (7,)),
    "huber": (HuberPrior(0.3), (7,)),
    "group": (GroupL2(np.array([0, 0, 1, 1, 1, 2, 2])), (7,)),
    "tv1": (TotalVariation1D(n_dual=2000), (7,)),
    "tv2": (TotalVariation2D(n_dual=2000), (4, 5)),
    "tv2 anisotropic": (TotalVariation2D(isotropic=False, n_dual=2000), (4, 5)),
}


@pytest.mark.parametrize("name", PROXES)
def test_proximal_maps_are_minimisers(double, name):
    prior, shape = PROXES[name]
    rng = np.random.default_rng(1)
    x, step = jnp.asarray(rng.normal(size=shape)), 0.4
    objective = jax.jit(lambda u: prior.value(u) + jnp.sum((u - x) ** 2) / (2 * step))
    near = jax.jit(lambda x: prior.prox(x, jnp.asarray(step)))(x)
    others = near + jnp.asarray(rng.normal(size=(300, *shape))) * jnp.asarray(10.0 ** rng.uniform(-4, 0, 300)).reshape(
        (-1,) + (1,) * len(shape)
    )
    assert float(objective(near)) <= float(jax.vmap(objective)(others).min()) + 1e-8
    found = optimize.minimize(lambda u: float(objective(jnp.asarray(u.reshape(shape)))), np.ravel(near), method="Powell")
    assert found.fun > float(objective(near)) - 1e-6


def test_score_of_log_theta_and_noise(double):
    rng = np.random.default_rng(2)
    A, x = rng.normal(size=(9, 4)), jnp.asarray(rng.normal(size=4))
    y = rng.normal(size=9)
    model = settle(LinearInverse(as_operator(A, y, None, FLOAT), L1(), np.zeros(4)), FLOAT)
    params = {"log_theta": jnp.log(2.0), "log_sigma2": jnp.log(0.5)}
    score = jax.grad(model.log_joint)(params, x, {"y": jnp.asarray(y)})
    assert float(score["log_theta"]) == pytest.approx(4 - 2 * float(jnp.abs(x).sum()))
    residual = y - A @ np.asarray(x)
    assert float(score["log_sigma2"]) == pytest.approx(-4.5 + residual @ residual / (2 * 0.5))


def laplace_evidence(y, sd, theta):
    """log p(y | theta) of y_j = x_j + noise, by quadrature of every x_j."""
    z = np.linspace(-40, 40, 8001)
    prior = theta / 2 * np.exp(-theta * np.abs(z))
    noise = np.exp(-((y[:, None] - z) ** 2) / (2 * sd**2))
    return np.log((noise * prior).sum(axis=1) * (z[1] - z[0])).sum()


def test_theta_is_the_maximum_likelihood_estimate_and_x_the_soft_threshold():
    rng = np.random.default_rng(3)
    y = rng.laplace(size=400) / 0.8 + 0.5 * rng.normal(size=400)
    found: Any = optimize.minimize_scalar(lambda t: -laplace_evidence(y, 0.5, t), bounds=(0.2, 3), method="bounded")
    model = SparseInverse(prior="l1", noise_sd=0.5, n_iter=3000, n_steps=3, verbose=False).fit(sparse.eye(400), y)
    assert model.theta_ == pytest.approx(found.x, rel=0.1)
    assert model.params_ == {"theta": model.theta_} and model.sigma_ == 0.5
    weight = model.theta_ * 0.25
    np.testing.assert_allclose(model.x_, np.sign(y) * np.maximum(np.abs(y) - weight, 0), atol=1e-6)
    assert np.all(model.x_[np.abs(y) < weight - 1e-6] == 0)
    np.testing.assert_allclose(model.predict(), model.x_)


def test_smooth_and_proximal_solvers_agree(double):
    rng = np.random.default_rng(5)
    A, x = rng.normal(size=(40, 80)) / 6, np.zeros(80)
    x[:4] = 3.0
    y = A @ x + 0.1 * rng.normal(size=40)
    operator = settle(as_operator(A, y, None, FLOAT), FLOAT)
    smooth, sharp = (
        maximum_a_posteriori(operator, prior, jnp.asarray(y), 0.05, jnp.zeros(80)) for prior in (HuberPrior(1e-3), L1())
    )
    np.testing.assert_allclose(smooth, sharp, atol=0.02)
    slope = A.T @ (y - A @ np.asarray(sharp))
    assert np.all(np.abs(slope) <= 0.05 + 1e-5)
    np.testing.assert_allclose(slope[sharp != 0], 0.05 * np.sign(sharp[sharp != 0]), atol=1e-5)


def test_noise_level_is_estimated():
    rng = np.random.default_rng(6)
    A = rng.normal(size=(200, 20))
    y = A @ rng.laplace(size=20) + 0.7 * rng.normal(size=200)
    model = SparseInverse(prior="l1", n_iter=1000, verbose=False).fit(A, y)
    assert model.sigma_ == pytest.approx(0.7, rel=0.15)
    assert list(model.params_) == ["theta", "sigma"]
    table = model.summary()
    np.testing.assert_allclose(table["estimate"], [model.theta_, model.sigma_])
    assert np.all((table["ci_low"] < table["estimate"]) & (table["estimate"] < table["ci_high"]))
    assert model.stderr_["sigma"] < 0.1


def test_an_image_by_functions_and_its_figures():
    rng = np.random.default_rng(7)
    truth = np.kron(rng.normal(size=(3, 3)), np.ones((8, 8)))
    transfer = np.fft.rfft2(np.pad(np.full((3, 3), 1 / 9), (0, 21)))
    operator = (
        lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x) * transfer, x.shape).astype(x.dtype),
        lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x) * transfer.conj(), x.shape).astype(x.dtype),
    )
    y = np.asarray(operator[0](jnp.asarray(truth))) + 0.1 * rng.normal(size=truth.shape)
    model = SparseInverse(prior=TotalVariation2D(n_dual=10), noise_sd=0.1, n_iter=200, verbose=False).fit(
        operator, y, shape=truth.shape
    )
    assert model.x_.shape == truth.shape
    assert np.mean((model.x_ - truth) ** 2) < 0.3 * np.mean((y - truth) ** 2)
    np.testing.assert_array_equal(model.plot_trace().lines[0].get_ydata(), model.trace())
    shown = [axis.images[0].get_array() for axis in model.plot_reconstruction(truth)]
    for image, expected in zip(shown, (y, model.x_, truth), strict=True):
        np.testing.assert_array_equal(image, expected)


def test_total_variation_without_noise_counts_its_dimensions():
    shape = (12, 12)
    truth = np.random.default_rng(8).normal(size=shape)
    model = SparseInverse(prior="tv", noise_sd=0.01, n_iter=400, verbose=False).fit((_identity, _identity), truth, shape=shape)
    assert model.theta_ == pytest.approx((truth.size - 1) / float(model.prior_.value(jnp.asarray(truth))), rel=0.02)


def test_the_audio_experiment(data_folder, reference):
    data, known = np.load(data_folder / "audio_mary.npz"), reference("soul")["audio"]
    A, y, step = data["A"], data["y"], mx.Polynomial(20 / 2900, 0.8)
    model = SparseInverse(
        prior=HuberPrior(4e-5), noise_sd=0.015, step=step, step_size=6.9e-6, average=mx.StepWeighted(step, burn_in=100),
        n_iter=500, n_steps=1, verbose=False,
    ).fit(A, y)  # fmt: skip
    assert isinstance(model.operator_, BlockOperator) and model.operator_.blocks.shape == (29, 23, 100)
    assert 28 < model.theta_ < 37
    assert np.isclose(0.1 * np.abs(A.T @ y).max() / 0.015**2, known["theta_cs"], rtol=1e-3)

    n = np.arange(1, 11_026) / 44_100
    notes = ((1 + np.exp(-3.75)) * np.exp(-15 * n) - np.exp(-30 * n)) * np.sin(2 * np.pi * np.outer(data["freqs"], n))

    signal = (model.x_.reshape(100, 29).T @ notes).ravel()
    assert 10 * np.log10(np.mean((signal - data["z"]) ** 2)) == pytest.approx(known["map_error_db"]["30"], abs=0.2)


BAD = [
    ({}, np.eye(3), np.zeros(4), None, ValueError, "A has 3 rows"),
    ({}, np.eye(3), np.array([1.0, np.nan, 0.0]), None, ValueError, "not finite"),
    ({}, np.diag([1.0, np.inf, 1.0]), np.ones(3), None, ValueError, "A holds 1 values"),
    ({}, np.ones(3), np.ones(3), None, ValueError, "must be a matrix"),
    ({}, np.eye(3), np.zeros(3), None, ValueError, "is zero"),
    ({}, np.eye(3), np.ones(3), (2, 2), ValueError, "has 4 entries"),
    ({"noise_sd": -1.0}, np.eye(3), np.ones(3), None, ValueError, "noise_sd must be"),
    ({"n_iter": 0}, np.eye(3), np.ones(3), None, ValueError, "n_iter"),
    ({"prior": "lasso"}, np.eye(3), np.ones(3), None, ValueError, "prior must be"),
    ({"prior": 3}, np.eye(3), np.ones(3), None, TypeError, "prior must be"),
    ({"prior": "group"}, np.eye(3), np.ones(3), None, ValueError, "two-dimensional"),
    ({"prior": TotalVariation2D()}, np.eye(3), np.ones(3), None, ValueError, "for an image"),
    ({"prior": GroupL2([0, 1])}, np.eye(3), np.ones(3), None, ValueError, "one label"),
    ({}, (_identity, _identity), np.ones(3), None, ValueError, "pass shape="),
    ({}, (_identity, _identity), np.ones(3), (4,), ValueError, "forward maps"),
    ({}, (_identity, lambda r: 2 * r), np.ones(3), (3,), ValueError, "dot-product test"),
    ({}, (lambda x: np.asarray(x), _identity), np.ones(3), (3,), TypeError, "not written in jax"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "A", "y", "shape", "error", "words"), BAD)
def test_bad_input_is_told(settings, A, y, shape, error, words):
    with pytest.raises(error, match=words):
        SparseInverse(verbose=False, **settings).fit(A, y, shape=shape)


def test_bad_priors_are_told():
    with pytest.raises(ValueError, match="smoothing"):
        HuberPrior(0.0)
    with pytest.raises(ValueError, match="n_dual"):
        TotalVariation1D(n_dual=0)
    with pytest.raises(TypeError, match="integers"):
        GroupL2([0.5, 1.0])
