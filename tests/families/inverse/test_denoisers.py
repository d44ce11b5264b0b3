"""Denoisers in closed form and trained, and the restoration of images by them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import signal

import margaux as mx
from margaux.families.inverse.convolutional import convolution_norm, train
from margaux.families.inverse.denoisers import GaussianDenoiser, MixtureDenoiser
from margaux.families.inverse.restoring import restore


def test_denoisers_in_closed_form_are_posterior_means(double):
    """Tweedie: (D(z) - z) / eps is the gradient of the log density of z = x + noise."""
    eps, rng = 0.3, np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    V, mean = root @ root.T, rng.normal(size=3)
    z = jnp.asarray(rng.normal(size=3))
    shares, means, variances = np.array([0.2, 0.5, 0.3]), rng.normal(size=(3, 3)), np.array([0.1, 0.5, 0.2])

    def gaussian(z):
        return jax.scipy.stats.multivariate_normal.logpdf(z, mean, V + eps * np.eye(3))

    def diagonal(z):
        return jnp.sum(jax.scipy.stats.norm.logpdf(z, mean, np.sqrt(np.diag(V) + eps)))

    def mixture(z):
        each = [
            jax.scipy.stats.multivariate_normal.logpdf(z, m, (v + eps) * np.eye(3)) for m, v in zip(means, variances, strict=True)
        ]
        return jax.scipy.special.logsumexp(jnp.stack(each) + np.log(shares))

    for denoiser, density in [
        (GaussianDenoiser(mean, V, eps), gaussian),
        (GaussianDenoiser(mean, np.diag(V), eps), diagonal),
        (MixtureDenoiser(shares, means, variances, eps), mixture),
    ]:
        np.testing.assert_allclose((denoiser(z) - z) / eps, jax.grad(density)(z), rtol=1e-9)
    own = np.linalg.norm(np.linalg.solve(V + eps * np.eye(3), V) - np.eye(3), 2)
    assert GaussianDenoiser(mean, V, eps).lipschitz == pytest.approx(own)


def test_norms_of_convolutions_are_bounds_and_tight():
    """Beside the matrix of a convolution of an image with zeros around it, and of one on a torus, which is larger."""
    rng, side = np.random.default_rng(0), 12
    kernel = rng.normal(size=(3, 3, 2, 3))
    columns = []
    for k in range(2 * side * side):
        image = np.zeros((2, side, side))
        image.flat[k] = 1.0
        seen = [[signal.correlate2d(image[a], kernel[:, :, a, b], mode="same") for a in range(2)] for b in range(3)]
        columns.append(np.sum(seen, axis=1).ravel())
    exact = np.linalg.norm(np.array(columns).T, 2)
    assert exact <= convolution_norm(kernel) < 1.1 * exact


@pytest.fixture(scope="module")
def pictures():
    """Random walks smoothed to images of soft edges, in [0, 1]: three to train on and one that is held out."""
    rng = np.random.default_rng(0)
    out = []
    for _ in range(4):
        field = np.zeros((64, 64))
        for _ in range(30):
            (a, b), (c, d) = np.sort(rng.integers(0, 64, (2, 2)), axis=1)
            field[a : b + 8, c : d + 8] = rng.random()
        out.append(field)
    return out


@pytest.fixture(scope="module")
def trained(pictures):
    return train(pictures[:3], 0.1**2, width=6, depth=3, n_iter=250, batch_size=8, patch=24, step_size=5e-3)


def test_a_trained_denoiser_denoises_what_it_has_not_seen(pictures, trained):
    x = pictures[3]
    noisy = x + 0.1 * np.random.default_rng(1).normal(size=x.shape)
    assert np.mean((np.asarray(trained(jnp.asarray(noisy, jnp.float32))) - x) ** 2) < 0.5 * np.mean((noisy - x) ** 2)


def test_the_bound_of_its_residual_holds(pictures, trained):
    assert trained.lipschitz == pytest.approx(1.0, rel=1e-6)
    residual = jax.jit(lambda z: trained(z) - z)
    rng = np.random.default_rng(2)
    v = jnp.asarray(rng.normal(size=(64, 64)), jnp.float32)
    for z in (jnp.asarray(pictures[3], jnp.float32), jnp.asarray(rng.normal(size=(64, 64)), jnp.float32)):
        for _ in range(30):
            stretched, pull = jax.jvp(residual, (z,), (v,))[1], jax.vjp(residual, z)[1]
            v = pull(stretched)[0]
            v = v / jnp.linalg.norm(v)
        assert 0.2 < float(jnp.linalg.norm(jax.jvp(residual, (z,), (v,))[1])) <= 1 + 1e-4


def test_training_is_the_same_again_and_another_bound_is_kept(pictures):
    settings = {"width": 3, "depth": 2, "n_iter": 5, "batch_size": 2, "patch": 16}
    first, again = (train(pictures[:1], 0.01, **settings) for _ in range(2))
    np.testing.assert_array_equal(first.filters[1], again.filters[1])
    assert train(pictures[:1], 0.01, lipschitz=0.5, **settings).lipschitz == pytest.approx(0.5)


def test_inpainting_by_a_trained_denoiser(pictures, trained):
    """Half the pixels are told: the others are restored better than by the mean of all."""
    x = pictures[3][:32, :32]
    seen = np.sort(np.random.default_rng(0).choice(x.size, x.size // 2, replace=False))
    y = x.ravel()[seen] + 0.05 * np.random.default_rng(1).normal(size=len(seen))
    A = (lambda x: jnp.ravel(x)[seen], lambda r: jnp.zeros(x.size, r.dtype).at[seen].set(r).reshape(x.shape))
    kernel = mx.PlugAndPlayULA(trained, weight=2.0, bounds=(-0.5, 1.5))
    found = restore(A, y, kernel, shape=x.shape, noise_sd=0.05, start=np.full(x.shape, 0.5), n_draws=2000, warm_up=1000)
    hidden = np.ones(x.size, bool)
    hidden[seen] = False
    error = np.mean((found.mean.ravel() - x.ravel())[hidden] ** 2)
    assert error < 0.5 * np.var(x) and found.fit is None and found.sigma == 0.05
    assert np.all(found.sd > 0) and found.sd.ravel()[hidden].mean() > found.sd.ravel()[~hidden].mean()


def gaussian_restored(noise_sd, **settings):
    rng = np.random.default_rng(3)
    A, eps = rng.normal(size=(120, 60)), 0.2
    y = A @ rng.normal(size=60) + 0.7 * rng.normal(size=120)
    kernel = mx.PlugAndPlayULA(GaussianDenoiser(0.0, 1.0, eps))
    return A, y, restore(A, y, kernel, noise_sd=noise_sd, **settings)


def test_restoration_is_the_conjugate_posterior():
    A, y, found = gaussian_restored(0.7, n_draws=20_000)
    H = A.T @ A / 0.7**2 + np.eye(60) / 1.2
    gap = (found.mean - np.linalg.solve(H, A.T @ y / 0.7**2)) / found.error
    assert np.sqrt(np.mean(gap**2)) < 1.6  # ten stretches that go on from each other
    assert np.mean(found.sd**2 / np.diag(np.linalg.inv(H))) == pytest.approx(1, abs=0.05)
    assert found.drift < 0.3 and found.message == "The chain ended as asked."


def test_restoration_estimates_the_noise():
    A, y, found = gaussian_restored(None, n_draws=1000, n_iter=1500)

    def negative(s):
        S = 1.2 * A @ A.T + s * np.eye(120)
        return np.linalg.slogdet(S)[1] + y @ np.linalg.solve(S, y)

    grid = np.geomspace(0.2, 1.5, 200)
    best = grid[np.argmin([negative(s) for s in grid])]
    assert found.sigma == pytest.approx(np.sqrt(best), rel=0.05) and found.fit is not None
    assert found.message.startswith(found.fit.message) and "range" not in found.message


def test_what_is_wrong_with_a_restoration_is_told():
    """Data without noise, whose level falls to the end of its range, and a chain of few states."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(60, 40)) / 6
    found = restore(A, A @ rng.normal(size=40), mx.PlugAndPlayULA(GaussianDenoiser(0.0, 1.0, 0.1)), n_draws=100, n_iter=20_000)
    assert found.sigma < 1e-3 * found.mean.std() and "lower end of its range" in found.message
    assert found.drift > 0.3 and "raise n_draws" in found.message


@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_a_number_as_mean_of_a_matrix(double, shape):
    """The exact conditional mean: of x given z, jointly normal, and of the restoration of y = x + noise."""
    eps, V = 0.25, np.array([[1.0, 0.8, 0.1], [0.8, 1.0, 0.3], [0.1, 0.3, 0.5]])
    z = np.array([1.0, -2.0, 0.4])
    D = GaussianDenoiser(0.5, V, eps)
    made = D(jnp.asarray(z).reshape(shape))
    assert made.shape == shape
    np.testing.assert_allclose(np.ravel(made), 0.5 + V @ np.linalg.inv(V + eps * np.eye(3)) @ (z - 0.5), rtol=1e-12)
    np.testing.assert_allclose(made, GaussianDenoiser(np.full(shape, 0.5), V, eps)(jnp.asarray(z).reshape(shape)), rtol=1e-12)
    assert D.lipschitz == pytest.approx(np.linalg.norm(np.linalg.solve(V + eps * np.eye(3), V) - np.eye(3), 2))


def test_covariances_of_low_rank():
    """Their lowest eigenvalue is zero but for rounding."""
    root = np.random.default_rng(0).normal(size=(6, 2))
    D = GaussianDenoiser(0.0, root @ root.T, 0.3)
    assert D.lipschitz == pytest.approx(1.0)
    v = np.linalg.svd(root)[0][:, -1]
    np.testing.assert_allclose(D(jnp.asarray(v, jnp.float32)), 0, atol=1e-6)


def test_settings_may_be_integers_of_numpy(pictures):
    settings = {
        "width": np.int64(3),
        "depth": np.int32(2),
        "n_iter": np.int64(2),
        "batch_size": np.int64(2),
        "patch": np.int64(16),
    }
    D = train(pictures[:1], 0.01, **settings)
    assert D.eps == 0.01 and D.filters[0].shape == (3, 3, 1, 3)


def halve(z):
    return z / 2


WRONG: Any = mx.MALA()
WORD: Any = "a"


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: train([], 0.01), ValueError, "no images"),
        (lambda: train([np.zeros((64, 64, 3))], 0.01), ValueError, "grey"),
        (lambda: train([np.zeros((64, 20))], 0.01), ValueError, "at least 40"),
        (lambda: train([np.full((64, 64), np.nan)], 0.01), ValueError, "not finite"),
        (lambda: train([np.zeros((64, 64))], 0.0), ValueError, "eps"),
        (lambda: train([np.zeros((64, 64))], 0.1, depth=1), ValueError, "depth"),
        (lambda: train([np.zeros((64, 64))], WORD), ValueError, "eps must be a positive number, got 'a'"),
        (lambda: train([np.zeros((64, 64))], 0.1, width=2.0), TypeError, "width must be a whole number"),  # type: ignore
        (lambda: train([np.zeros((64, 64))], 0.1, random_state=-1), ValueError, "random_state must be at least 0"),
        (lambda: GaussianDenoiser(0.0, -1.0, 0.1), ValueError, "variance"),
        (lambda: GaussianDenoiser(0.0, np.array([[1.0, 2.0], [2.0, 1.0]]), 0.1), ValueError, "lowest is -1"),
        (lambda: GaussianDenoiser(0.0, np.array([[1.0, 0.8], [0.0, 1.0]]), 0.1), ValueError, "not symmetric"),
        (lambda: GaussianDenoiser(np.nan, 1.0, 0.1), ValueError, "mean must hold finite"),
        (lambda: GaussianDenoiser(0.0, [1.0, np.inf], 0.1), ValueError, "variance must hold finite"),
        (lambda: GaussianDenoiser(np.zeros(2), np.ones((3, 3)), 0.1), ValueError, r"mean has shape \(2,\)"),
        (lambda: GaussianDenoiser(0.0, np.eye(3), 0.1)(jnp.ones(9)), ValueError, r"of 3 entries.* z has shape \(9,\)"),
        (lambda: GaussianDenoiser(np.zeros(3), 1.0, 0.1)(jnp.ones((3, 3))), ValueError, r"x shaped \(3,\)"),
        (lambda: MixtureDenoiser([0.5, 0.5], [0.0, 1.0], [1.0, 1.0], 0.1)(jnp.ones(2)), ValueError, r"x shaped \(\)"),
        (lambda: GaussianDenoiser(0.0, 1.0, 0.0), ValueError, "eps"),
        (lambda: MixtureDenoiser([0.5, 0.6], [[0.0], [1.0]], [1.0, 1.0], 0.1), ValueError, "sum to one"),
        (lambda: restore(np.eye(3), np.ones(3), WRONG), TypeError, "bring a prior"),
        (lambda: restore(np.eye(3), np.ones(3), mx.PlugAndPlayULA(halve, 0.1), noise_sd=0.0), ValueError, "noise_sd"),
        (lambda: restore(np.eye(3), np.ones(3), mx.PlugAndPlayULA(halve, 0.1), noise_sd=True), ValueError, "noise_sd"),
        (lambda: restore(np.eye(3), np.zeros(3), mx.PlugAndPlayULA(halve, 0.1)), ValueError, "y is 0 everywhere"),
        (lambda: restore(np.eye(3), np.ones(3), mx.PlugAndPlayULA(halve, 0.1)), ValueError, "y is 1 everywhere"),
        (lambda: restore(np.eye(3), np.ones(3), mx.PlugAndPlayULA(halve, 0.1), n_draws=5), ValueError, "n_draws"),
        (
            lambda: restore(np.eye(3), np.arange(3.0), mx.PlugAndPlayULA(halve, 0.1), start=np.ones(4)),
            ValueError,
            "start must be finite and of shape",
        ),
        (lambda: restore(np.eye(3), np.full(3, np.inf), mx.PlugAndPlayULA(halve, 0.1)), ValueError, "not finite"),
        (
            lambda: restore(np.eye(3), np.ones(3), mx.PlugAndPlayULA(halve, 0.1, step_size=9.0), noise_sd=1.0),
            ValueError,
            "too long",
        ),
        (
            lambda: restore(np.eye(3), np.ones(3), mx.PlugAndPlayULA(lambda z: z + z**3, 0.1), noise_sd=1.0, n_draws=500),
            FloatingPointError,
            "diverged",
        ),
    ],
)
def test_bad_input_is_told(call, error, words):
    with pytest.raises(error, match=words):
        call()
