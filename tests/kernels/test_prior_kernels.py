"""Kernels for latents with a standard normal prior keep their target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx

pytestmark = pytest.mark.usefixtures("double")


def valued(kernel, z, logdensity):
    """The state of a chain that starts."""
    return kernel.refresh(z, kernel.init(z), logdensity)


def chain(kernel, logdensity, n=20_000, warm=200):
    """States of one chain from zero."""

    @jax.jit
    def run(key):
        def move(state, k):
            z, kstate, accepted = kernel.step(kernel.noise(k, state[0]), *state, logdensity, jnp.ones(()))
            return (z, kstate), (z, accepted)

        start = jnp.zeros(())
        return jax.lax.scan(move, (start, valued(kernel, start, logdensity)), jax.random.split(key, n + warm))[1]

    z, accepted = run(jax.random.key(0))
    return np.asarray(z)[warm:], np.asarray(accepted)[warm:]


def error_of_mean(x, batches=100):
    """Monte Carlo error by batch means."""
    return x[: len(x) // batches * batches].reshape(batches, -1).mean(axis=1).std(ddof=1) / np.sqrt(batches)


def outcome(name):
    """A log likelihood of one latent."""
    return {
        "normal": lambda z: jax.scipy.stats.norm.logpdf(1.5, z, 0.5),
        "logistic": lambda z: 6 * jax.nn.log_sigmoid(2 * z - 1),
        "nothing": lambda z: 0.0 * z,
    }[name]


@pytest.mark.parametrize("name", ["normal", "logistic", "nothing"])
@pytest.mark.parametrize("kernel", [mx.CrankNicolson(), mx.CrankNicolson(0.5), mx.EllipticalSlice()], ids=["1", "0.5", "slice"])
def test_kernels_of_a_normal_prior_keep_their_target(kernel, name):
    likelihood = outcome(name)
    grid = np.linspace(-9, 9, 4001)
    weight = np.exp(np.asarray(likelihood(jnp.asarray(grid))) - grid**2 / 2)
    mean, square = (weight @ grid**power / weight.sum() for power in (1, 2))
    if name == "normal":
        assert (mean, square - mean**2) == pytest.approx((1.2, 0.2), abs=1e-9)
    z, accepted = chain(kernel, lambda z: likelihood(z) - z**2 / 2)
    centred = (z - mean) ** 2
    assert abs(z.mean() - mean) < 4 * error_of_mean(z)
    assert abs(centred.mean() - (square - mean**2)) < 4 * error_of_mean(centred)
    assert error_of_mean(z) < 0.03
    if name == "nothing" or isinstance(kernel, mx.EllipticalSlice):
        assert np.all(accepted == 1)


def test_kernels_of_a_normal_prior_take_latents_of_any_shape():
    target = lambda z: -jnp.sum(z["a"] ** 2) / 2 - z["b"] ** 2 / 2 - 2 * (z["b"] - z["a"][0, 1] - 1) ** 2  # noqa: E731
    # The precision of (a[0, 1], b) is [[5, -4], [-4, 5]], with linear terms -4 and 4.
    exact = np.linalg.solve(np.array([[5.0, -4.0], [-4.0, 5.0]]), np.array([-4.0, 4.0]))
    for kernel in (mx.CrankNicolson(0.7), mx.EllipticalSlice()):
        start = {"a": jnp.zeros((2, 2)), "b": jnp.zeros(())}

        @jax.jit
        def run(key, kernel=kernel, start=start):
            def move(state, k):
                z, kstate = state
                z, kstate, _ = kernel.step(kernel.noise(k, z), z, kstate, target, jnp.ones(()))
                return (z, kstate), z

            return jax.lax.scan(move, (start, valued(kernel, start, target)), jax.random.split(key, 20_000))[1]

        states = run(jax.random.key(1))
        for x, mean in zip((states["a"][200:, 0, 1], states["b"][200:]), exact, strict=True):
            assert abs(x.mean() - mean) < 4 * error_of_mean(np.asarray(x))
        assert states["a"].shape == (20_000, 2, 2)


def test_a_slice_keeps_out_of_where_the_likelihood_is_not_a_number():
    z, _ = chain(mx.EllipticalSlice(), lambda z: jnp.log(1.0 - z) - z**2 / 2)
    grid = np.linspace(-9, 1, 4001)
    weight = (1 - grid) * np.exp(-(grid**2) / 2)
    assert z.max() < 1
    assert abs(z.mean() - weight @ grid / weight.sum()) < 4 * error_of_mean(z)


def test_rho_is_checked():
    for rho in (0.0, 1.5, -0.1):
        with pytest.raises(ValueError, match="rho"):
            mx.CrankNicolson(rho)
