"""Preconditioners and steps that kernels find, gradients that they estimate, and blocks, against NumPy."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_kernel_steps import XI, A, P, Z

import margaux as mx
from margaux.kernels.scaling import EVERY, FIRST_WINDOW, FORGET, Scaling
from margaux.problem.target import Target

pytestmark = pytest.mark.usefixtures("double")


def quadratic(matrix):
    return lambda z: -0.5 * z @ matrix @ z


def top(matrix):
    return np.linalg.eigvalsh(matrix)[-1]


# -- the curvature ----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, np.diag(P), P], ids=["none", "vector", "matrix"])
def test_curvature_is_the_largest_eigenvalue_of_the_whitened_target(given):
    scaling = Scaling(given, relative=True, power=0.5)
    c = np.eye(3) if given is None else np.diag(np.sqrt(given)) if given.ndim == 1 else np.linalg.cholesky(given)
    state = scaling.refresh(jnp.asarray(Z), scaling.init(jnp.asarray(Z)), quadratic(A))
    # Thirty turns of the power iteration.
    assert float(state["curvature"]) == pytest.approx(top(c.T @ A @ c), rel=1e-4)
    assert float(scaling.scale(state, jnp.asarray(0.3))) == pytest.approx(0.3 * float(state["curvature"]) ** -0.5)
    np.testing.assert_allclose(scaling.root(state, jnp.asarray(XI)), c @ XI)
    np.testing.assert_allclose(scaling.root_transposed(state, jnp.asarray(XI)), c.T @ XI)


def test_curvature_is_looked_at_again_every_ten_visits_and_forgotten_slowly():
    scaling, z = Scaling(None, relative=True), jnp.asarray(Z)
    refresh = eqx.filter_jit(lambda state, matrix: scaling.refresh(z, state, quadratic(matrix)))
    state = refresh(scaling.init(z), A)
    first, found, directions = float(state["curvature"]), [], [state["direction"]]
    for _ in range(EVERY):
        state = refresh(state, A / 100)
        found.append(float(state["curvature"]))
        directions.append(state["direction"])
    assert np.all(np.asarray(directions[:-1]) == directions[0]) and np.any(directions[-1] != directions[0])
    assert found[:-1] == [first] * (EVERY - 1) and found[-1] == pytest.approx(FORGET * first)
    # A larger one is taken as it is, to what two more turns say of it.
    for _ in range(EVERY):
        state = refresh(state, 7 * A)
    assert float(state["curvature"]) == pytest.approx(7 * top(A), rel=1e-3)


def test_a_flat_target_keeps_the_direction_and_a_given_step_is_as_it_is():
    scaling, z = Scaling(None, relative=True), jnp.asarray(Z)
    start = scaling.init(z)
    state = scaling.refresh(z, start, lambda z: jnp.sum(z))
    np.testing.assert_array_equal(state["direction"], start["direction"])
    assert np.isfinite(scaling.scale(state, jnp.asarray(1.0)))
    assert float(Scaling(None, relative=False).scale({}, jnp.asarray(0.3))) == 0.3


@pytest.mark.parametrize(
    ("kernel", "factor", "power"), [(mx.ULA(), 0.2, 1), (mx.ProximalULA(), 0.5, 1), (mx.SGLD(2), 0.2, 1),
                                    (mx.LeimkuhlerMatthews(), 0.5, 1), (mx.Underdamped(), 0.5, 0.5),
                                    (mx.UnadjustedHMC(), 0.5, 0.5)]
)  # fmt: skip
def test_steps_that_nothing_was_said_of_are_relative(kernel, factor, power):
    assert float(kernel.step_size(3)) == factor and kernel.scaling.relative and kernel.scaling.power == power
    assert not kernel.adjusted and kernel.target_acceptance is None


# -- preconditioners --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["diagonal", "dense"])
def test_preconditioners_are_the_shrunk_covariance_of_their_window(kind):
    scaling = Scaling(kind, relative=True)
    draws = np.random.default_rng(0).normal(size=(FIRST_WINDOW, 3)) @ P
    learn, renewed = eqx.filter_jit(scaling.learn), eqx.filter_jit(scaling._renewed)
    state = scaling.init(jnp.asarray(Z)) | {"curvature": jnp.asarray(5.0), "visits": jnp.asarray(3)}
    for j, draw in enumerate(draws):
        before = renewed(state)
        assert float(before["count"]) == j and float(before["window"]) == FIRST_WINDOW
        state = learn(state, jnp.asarray(draw))
    covariance = np.cov(draws.T, bias=True)
    state = renewed(state)
    weight = FIRST_WINDOW / (FIRST_WINDOW + 10)
    shrunk = weight * covariance + (1 - weight) * np.mean(np.diag(covariance)) * np.eye(3)
    root = state["root"]
    if kind == "diagonal":
        np.testing.assert_allclose(root**2, np.diag(shrunk))
    else:
        np.testing.assert_allclose(root @ root.T, shrunk)
    for name in ("count", "mean", "moment", "curvature", "visits"):
        assert not np.any(state[name])
    assert float(state["window"]) == 2 * FIRST_WINDOW


@pytest.mark.parametrize("kind", ["diagonal", "dense"])
def test_a_window_of_one_state_teaches_nothing(kind):
    scaling = Scaling(kind, relative=False)
    start = scaling.init(jnp.asarray(Z))
    state = start
    for _ in range(FIRST_WINDOW):
        state = scaling.learn(state, jnp.asarray(Z))
    np.testing.assert_array_equal(scaling._renewed(state)["root"], start["root"])


def test_bad_preconditioners():
    for bad, words in (([1.0, 0.0], r"got shape \(2,\)"), (-np.eye(2), "not positive definite"),
                       (np.ones((2, 3)), r"got shape \(2, 3\)"), ("full", "got 'full'")):  # fmt: skip
        with pytest.raises(ValueError, match=f"preconditioner .*{words}"):
            Scaling(bad, relative=False)


# -- proximal kernels -------------------------------------------------------------------------------


class Lasso(mx.problem.AbstractNonSmooth):
    def log_joint(self, params, z, y):
        return self.log_smooth(params, z, y) - 2 * jnp.sum(jnp.abs(z))

    def log_smooth(self, params, z, y):
        return -0.5 * z @ jnp.asarray(A) @ z

    def prox(self, params, z, step, y):
        return jnp.sign(z) * jnp.maximum(jnp.abs(z) - 2 * step, 0)

    def init_latents(self, key, params, y):
        return jnp.zeros(3)


def soft(x, threshold):
    return np.sign(x) * np.maximum(np.abs(x) - threshold, 0)


@pytest.mark.parametrize("step", [0.05, None])
@pytest.mark.parametrize("smoothing", [0.3, None])
def test_myula_is_ula_on_the_envelope(step, smoothing):
    kernel, target = mx.MYULA(step, smoothing), Target(Lasso(), None, None)
    z = jnp.asarray(Z)
    state = kernel.refresh(z, kernel.init(z), target)
    bound = float(state["curvature"]) if "curvature" in state else np.nan
    smooth = 1 / bound if smoothing is None else smoothing
    gamma = 0.5 / (bound + 1 / smooth) if step is None else step
    moved, _, probability = kernel.step(jnp.asarray(XI), z, state, target, kernel.step_size(1))
    expected = Z - gamma * A @ Z - gamma / smooth * (Z - soft(Z, 2 * smooth)) + np.sqrt(2 * gamma) * XI
    np.testing.assert_allclose(moved, expected)
    assert float(probability) == 1.0
    with pytest.raises(ValueError, match="smoothing"):
        mx.MYULA(smoothing=0.0)


@pytest.mark.parametrize("step", [0.05, None])
def test_proximal_ula_ends_with_the_proximal_map(step):
    kernel, target = mx.ProximalULA(step), Target(Lasso(), None, None)
    z = jnp.asarray(Z)
    state = kernel.refresh(z, kernel.init(z), target)
    gamma = step or 0.5 / float(state["curvature"])
    moved, _, _ = kernel.step(jnp.asarray(XI), z, state, target, kernel.step_size(1))
    np.testing.assert_allclose(moved, soft(Z - gamma * A @ Z + np.sqrt(2 * gamma) * XI, 2 * gamma))


# -- subsampled gradients ---------------------------------------------------------------------------

X, Y = np.random.default_rng(1).normal(size=(7, 3)), np.random.default_rng(2).normal(size=7)


class Rows(mx.problem.AbstractFactorised):
    def log_prior(self, params, z):
        return -jnp.sum(z**2)

    def log_likelihood(self, params, z, rows):
        # Not quadratic, so that a control variate leaves noise.
        return -jnp.sum(jnp.cosh(rows["y"] - rows["x"] @ z))

    def init_latents(self, key, params, y):
        return jnp.zeros(3)


UNIFORMS, PICKED = np.array([0.0, 0.999999, 0.5]), np.array([0, 6, 3])


def of_rows():
    return Target(Rows(), None, {"x": jnp.asarray(X), "y": jnp.asarray(Y)})


def pull(z, ids):
    return X[ids].T @ np.sinh(Y[ids] - X[ids] @ z)


@pytest.mark.parametrize("control", [True, False])
def test_sgld_estimates_the_gradient_from_its_rows(control):
    kernel, z, anchor = mx.SGLD(3, 0.02, control), jnp.asarray(Z), np.array([0.1, 0.2, -0.3])
    state = kernel.refresh(jnp.asarray(anchor), kernel.init(z), of_rows())
    moved, _, _ = kernel.step((jnp.asarray(XI), jnp.asarray(UNIFORMS)), z, state, of_rows(), jnp.asarray(0.02))
    gradient = 7 / 3 * pull(Z, PICKED)
    if control:
        np.testing.assert_allclose(state["gradient"], pull(anchor, np.arange(7)))
        gradient += pull(anchor, np.arange(7)) - 7 / 3 * pull(anchor, PICKED)
    np.testing.assert_allclose(moved, Z + 0.02 * (gradient - 2 * Z) + np.sqrt(0.04) * XI)


@pytest.mark.parametrize("every", [1, 3])
def test_sgld_moves_its_anchor_every_so_many_visits(every):
    kernel = mx.SGLD(3, 0.02, refresh_every=every)
    state = kernel.init(jnp.asarray(Z))
    refresh = eqx.filter_jit(lambda z, state: kernel.refresh(z, state, of_rows()))
    for visit in range(7):
        here = Z + visit
        state = refresh(jnp.asarray(here), state)
        anchor = Z + visit // every * every
        np.testing.assert_allclose(state["anchor"], anchor)
        np.testing.assert_allclose(state["gradient"], pull(anchor, np.arange(7)))
    assert int(state["visits"]) == 7
    assert "anchor" not in mx.SGLD(3, control_variate=False).init(jnp.asarray(Z))
    with pytest.raises(ValueError, match="at least 1"):
        mx.SGLD(3, refresh_every=0)


# -- blocks -----------------------------------------------------------------------------------------

OBSERVED = np.array([0.3, -1.0, 2.0, 0.8])


class Shared(mx.problem.AbstractShared):
    """y_i ~ N(z_i, 1), z_i ~ N(s, 1), s ~ N(0, 1)."""

    def log_shared(self, params, shared, y):
        return -(shared**2) / 2

    def log_unit(self, params, shared, z, y):
        return -((y - z) ** 2) / 2 - (z - shared) ** 2 / 2

    def init_latents(self, key, params, y):
        return {"shared": jnp.zeros(()), "units": jnp.zeros(4)}


def test_blocks_move_the_units_then_the_shared_and_adapt_each():
    kernel = mx.Blocked(units=mx.RandomWalk(0.8), shared=mx.RandomWalk(0.3, target_acceptance=None))
    target = Target(Shared(), None, jnp.asarray(OBSERVED))
    s, z = 0.4, np.array([0.0, 0.5, 1.0, -0.5])
    latents = {"shared": jnp.asarray(s), "units": jnp.asarray(z)}
    scales = np.array([1.0, 0.5, 2.0, 1.5])
    state = kernel.init(latents)
    state["log_scale"] = {"units": jnp.log(scales), "shared": jnp.log(1.2)}
    state["n_transitions"] = jnp.asarray(9.0)
    xi, uniforms = np.array([1.0, -1.0, 0.5, 2.0]), np.array([0.1, 0.9, 0.99, 0.2])
    noise = {"units": (jnp.asarray(xi[:, None]), jnp.asarray(uniforms)), "shared": (jnp.asarray([1.5]), jnp.asarray(0.3))}
    moved, after, acceptance = kernel.step(noise, latents, state, target, jnp.asarray(1.0))

    of_unit = lambda z: -((OBSERVED - z) ** 2) / 2 - (z - s) ** 2 / 2  # noqa: E731
    proposal = z + 0.8 * scales * xi
    taken = np.exp(np.minimum(of_unit(proposal) - of_unit(z), 0.0))
    units = np.where(uniforms < taken, proposal, z)
    assert 0 < np.sum(units == z) < 4
    of_shared = lambda s: -(s**2) / 2 - np.sum((units - s) ** 2) / 2  # noqa: E731
    there = s + 0.3 * 1.2 * 1.5
    share = np.exp(min(of_shared(there) - of_shared(s), 0.0))
    np.testing.assert_allclose(moved["units"], units)
    assert float(moved["shared"]) == pytest.approx(there if share > 0.3 else s)
    np.testing.assert_allclose(after["log_scale"]["units"], np.log(scales) + 9**-0.6 * (taken - 0.35))
    assert float(after["log_scale"]["shared"]) == pytest.approx(np.log(1.2))
    assert float(after["n_transitions"]) == 10 and float(acceptance) == pytest.approx(min(taken.mean(), share))


@pytest.mark.parametrize(
    "kernel", [mx.RandomWalk(0.8), mx.MALA(0.3), mx.Alternating(("joint", "mala"))], ids=["walk", "mala", "turns"]
)
def test_blocks_know_the_densities_that_the_others_have_changed(kernel):
    """A second transition is that of a chain which is told all anew, though the first has moved what each block is given."""
    blocked, target = mx.Blocked(kernel, kernel), Target(Shared(), None, jnp.asarray(OBSERVED))
    latents = {"shared": jnp.asarray(0.4), "units": jnp.asarray([0.0, 0.5, 1.0, -0.5])}
    state = blocked.refresh(latents, blocked.init(latents), target)
    for turn in range(4):
        noise = blocked.noise(jax.random.key(turn), latents)
        forgotten = jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaf * jnp.nan if path[-1].key in ("value", "gradient") else leaf, state
        )
        there, _, expected = blocked.step(noise, latents, forgotten, target, jnp.asarray(1.0))
        latents, state, probability = blocked.step(noise, latents, state, target, jnp.asarray(1.0))
        jax.tree.map(np.testing.assert_array_equal, latents, there)
        assert float(probability) == float(expected) > 0


def test_a_chain_that_is_not_told_its_density_stands_still():
    z = jnp.asarray([0.3, -0.2])
    for kernel in (mx.MALA(0.1), mx.RandomWalk(0.5), mx.IndependenceMH(), mx.CrankNicolson()):
        moved, _, probability = kernel.step(
            kernel.noise(jax.random.key(0), z), z, kernel.init(z), lambda x: -x @ x, jnp.asarray(0.5)
        )
        np.testing.assert_array_equal(moved, z)
        assert float(probability) == 0


def test_blocks_draw_noise_of_their_own_and_refuse_kernels_that_never_reject():
    kernel = mx.Blocked()
    model: Any = Shared()
    latents = model.init_latents(None, None, None)
    noise = kernel.noise(jax.random.key(0), latents)
    numbers = np.r_[np.ravel(noise["units"][0]), np.ravel(noise["shared"][0])]
    assert len(np.unique(numbers)) == 5 and noise["units"][1].shape == (4,)
    start = kernel.init(latents)
    assert not np.any(start["log_scale"]["units"]) and float(start["n_transitions"]) == 1
    blocked: Any = mx.Blocked
    for name in ("units", "shared"):
        with pytest.raises(ValueError, match=f"{name} is ULA, which never rejects"):
            mx.Blocked(**{name: mx.ULA()})
        with pytest.raises(TypeError, match=f"{name} must be a margaux kernel"):
            blocked(**{name: "mala"})
