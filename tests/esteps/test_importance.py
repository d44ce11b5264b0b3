"""Self-normalised importance sampling: its weights, figures, control variate and growing rounds, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import margaux as mx
from helpers import normal
from margaux.esteps import ModeMixture
from margaux.numerics.gaussian import find_mode, normals

Y = np.array([0.5, -1.0, 3.0])

pytestmark = pytest.mark.usefixtures("double")


class Counts(mx.AbstractModel):
    """y_i ~ Poisson(exp(z_1 + z_2 / 2)), z ~ N(0, I): not Gaussian, in two dimensions."""

    def log_joint(self, params, z, y):
        rate = z[0] + z[1] / 2
        return jnp.abs(y) * rate - jnp.exp(rate) + jnp.sum(normal(z, 0.0))

    def init_latents(self, key, params, y):
        return jnp.zeros(2)


MODEL = Counts()


def set_up(estep, seed=0):
    batch = jnp.asarray(Y)
    keys = jax.random.split(jax.random.key(seed), 3)
    rows = jax.vmap(lambda key, y: estep.init(key, MODEL, {}, y))(keys, batch)
    return batch, keys, rows


def features(z, w):
    """Sums of weights, of each latent and of their squares, by unit."""
    return jnp.sum(w, axis=0), jnp.einsum("mb,mbd->bd", w, z), jnp.einsum("mb,mbd->bd", w, z**2)


@pytest.mark.parametrize("defensive", [0.0, 0.25])
def test_weights_and_figures_are_those_of_the_draws(defensive):
    estep = mx.ImportanceSampling(40, defensive=defensive, widening=3.0, control_variate=False)
    batch, keys, rows = set_up(estep)
    noise = jax.vmap(lambda key: estep.noise(key, jnp.zeros(2)))(keys)
    (total, mean, square), kept, info = jax.jit(lambda: estep.expect(features, noise, MODEL, {}, rows, batch, 1))()
    logs, joint = [], jax.jit(jax.vmap(lambda z, y: MODEL.log_joint({}, z, y), (0, None)))
    for i in range(3):
        row = jax.tree.map(lambda leaf, i=i: leaf[i], kept)
        x, log_q, _ = estep.proposal.draw(noise[i], MODEL, {}, row, batch[i])
        log_w = np.asarray(joint(x, batch[i]) - log_q)
        w = special.softmax(log_w)
        np.testing.assert_allclose(mean[i], w @ x)
        np.testing.assert_allclose(square[i], w @ x**2)
        logs.append((special.logsumexp(log_w) - np.log(40), 1 / np.sum(w**2)))
    np.testing.assert_allclose(total, 1.0)
    np.testing.assert_allclose(np.stack([info["log_marginal"], info["ess"]], axis=1), logs)


@pytest.mark.parametrize("defensive", [0.0, 0.25])
def test_the_control_variate_adds_what_a_quadratic_is_short_of(defensive):
    """Signed points: the moments under the proposal less those of its draws, exact for what is quadratic by coordinate."""
    estep = mx.ImportanceSampling(8, defensive=defensive, widening=3.0)
    batch, _, rows = set_up(estep)
    u = np.random.default_rng(0).normal(size=(8, 3, 2))
    z, w = jnp.zeros((8, 3, 2)), jnp.full((8, 3), 0.125)
    points, weights = estep._with_control_variate(z, w, jnp.asarray(u), MODEL, {}, rows, batch)
    np.testing.assert_array_equal(points[:8], z)
    np.testing.assert_array_equal(weights[:8], w)
    assert points.shape == (13, 3, 2) and weights.shape == (13, 3)
    variance = 1 - defensive + defensive * 9
    for i in range(3):
        back = np.linalg.inv(rows["cholesky"][i])
        whitened, signed = (np.asarray(points[8:, i]) - rows["mean"][i]) @ back.T, np.asarray(weights[8:, i])
        assert signed.sum() == pytest.approx(0.0, abs=1e-12)
        np.testing.assert_allclose(signed @ whitened, -u[:, i].mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(signed @ whitened**2, variance - np.mean(u[:, i] ** 2, axis=0), atol=1e-12)


@pytest.mark.parametrize(("wanted", "rounds"), [(64.0, 1), (65.0, 2), (190.0, 3)])
def test_growing_rounds_are_one_large_sample(wanted, rounds):
    growing = mx.ImportanceSampling(mx.Growth(wanted, 0.0), control_variate=True)
    batch, keys, rows = set_up(growing)
    (total, mean, square), _, info = jax.jit(lambda: growing.expect(features, keys, MODEL, {}, rows, batch, 1))()
    draw = jax.jit(lambda noise: growing._draws(noise, MODEL, {}, rows, batch))
    drawn = []
    for r in range(rounds):
        noise = jax.vmap(lambda key, r=r: normals(jax.random.fold_in(key, r), 64, 2, jnp.dtype(float), False))(keys)
        drawn.append(draw(noise))
    z, log_w, _ = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    w = special.softmax(log_w, axis=0)
    np.testing.assert_allclose(total, 1.0)
    np.testing.assert_allclose(info["log_marginal"], special.logsumexp(log_w, axis=0) - np.log(64 * rounds))
    np.testing.assert_allclose(info["ess"], 1 / np.sum(w**2, axis=0))
    # Each round has a control variate of its own.
    control = jax.jit(lambda z, u: growing._with_control_variate(z, jnp.zeros((64, 3)), u, MODEL, {}, rows, batch))
    signed = [features(*control(z, u)) for z, _, u in drawn]
    np.testing.assert_allclose(mean, np.einsum("mb,mbd->bd", w, z) + np.mean([one[1] for one in signed], axis=0))
    np.testing.assert_allclose(square, np.einsum("mb,mbd->bd", w, z**2) + np.mean([one[2] for one in signed], axis=0))


def test_a_search_for_a_mode_says_how_far_it_is():
    """Before the first step: Newton's decrement at the start. Then no more steps than asked for, or as many as it takes."""
    density = lambda z: 2 * z[0] - jnp.exp(z[0]) - 3 * (z[1] - z[0]) ** 2  # noqa: E731
    start = jnp.array([1.5, 0.0])
    slope, curvature = (np.asarray(f(density)(start)) for f in (jax.grad, lambda f: lambda z: -jax.hessian(f)(z)))
    search = jax.jit(lambda start, most: find_mode(density, start, most))
    none = search(start, 0)
    np.testing.assert_array_equal(none.at, start)
    assert none.away == pytest.approx(np.sqrt(slope @ np.linalg.solve(curvature, slope)))
    one = search(start, 1)
    np.testing.assert_allclose(one.at, start + np.linalg.solve(curvature, slope))
    found = search(start, 200)
    np.testing.assert_allclose(found.at, np.log(2.0), atol=1e-4)
    assert found.away < 1e-4 < one.away and found.value == pytest.approx(2 * np.log(2) - 2)
    np.testing.assert_allclose(found.root @ found.root.T, np.linalg.inv([[8.0, -6.0], [-6.0, 6.0]]), rtol=1e-3)
    # Where it is found it stays, though more steps would bring it closer.
    np.testing.assert_array_equal(search(found.at, 200).at, found.at)


@pytest.mark.parametrize(
    "bad", [{"n_draws": 1}, {"defensive": 1.0}, {"defensive": -0.1}, {"widening": 0.9}, {"n_newton": 0}, {"proposal": "flat"}]
)
def test_bad_settings(bad):
    with pytest.raises(ValueError):
        mx.ImportanceSampling(**bad)
    mx.ImportanceSampling(2, defensive=0.0, widening=1.0, n_newton=1)


def test_too_many_latents_for_a_dense_gaussian():
    assert mx.ImportanceSampling().requires(MODEL, jnp.zeros(200)) is None
    assert "hopeless for 201" in (mx.ImportanceSampling().requires(MODEL, jnp.zeros(201)) or "")


def test_a_control_variate_is_one_of_gaussian_proposals():
    for proposal, gaussian in (("laplace", True), ("adapted", True), ("mixture", False), (ModeMixture(), False)):
        assert mx.ImportanceSampling(10, proposal).control_variate == gaussian
        assert not mx.ImportanceSampling(10, proposal, control_variate=False).control_variate
    for proposal in ("mixture", ModeMixture()):
        with pytest.raises(ValueError, match="control variate"):
            mx.ImportanceSampling(10, proposal, control_variate=True)
