"""One transition of every kernel from given noise, against its formula in NumPy."""

from typing import Any

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, stats

import margaux as mx
from margaux.kernels.alternating import FIRST, LATER, MOVES
from margaux.kernels.base import accept
from margaux.kernels.coupling import Halves, halved
from margaux.kernels.underdamped import _flight
from margaux.numerics.gaussian import laplace

A = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, -0.3], [0.1, -0.3, 3.0]])
P = np.array([[0.5, 0.1, 0.0], [0.1, 0.8, 0.2], [0.0, 0.2, 0.3]])
Z = np.array([0.4, -1.1, 0.7])
XI = np.array([0.3, -0.6, 1.2])

pytestmark = pytest.mark.usefixtures("double")


def density(z):
    return -0.5 * z @ A @ z - jnp.sum(z**4) / 4


def value(z):
    return float(-0.5 * z @ A @ z - np.sum(z**4) / 4)


def slope(z):
    return -A @ z - z**3


def stepped(kernel, noise, z=Z, state=None, target=density, scale=0.05):
    """The state of the chain and the acceptance after one transition."""
    state = kernel.init(jnp.asarray(z)) if state is None else state
    state = kernel.valued(jnp.asarray(z), state, target)
    noise = jax.tree.map(jnp.asarray, noise)
    z, state, probability = eqx.filter_jit(kernel.step)(noise, jnp.asarray(z), state, target, jnp.asarray(scale))
    return np.asarray(z), state, float(probability)


SHAPES = {"none": (None, np.eye(3)), "vector": (np.diag(P), np.diag(np.diag(P))), "matrix": (P, P)}


# -- overdamped -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_leimkuhler_and_matthews_average_the_noise_of_two_steps(shape):
    given, p = SHAPES[shape]
    kernel, before = mx.LeimkuhlerMatthews(0.05, given), np.array([-0.5, 0.2, 0.9])
    state = kernel.init(jnp.asarray(Z)) | {"noise": jnp.asarray(before)}
    z, state, probability = stepped(kernel, XI, state=state)
    both = np.linalg.cholesky(p) @ (before + XI)
    np.testing.assert_allclose(z, Z + 0.05 * p @ slope(Z) + np.sqrt(0.025) * both)
    np.testing.assert_array_equal(state["noise"], XI)
    assert probability == 1.0


@pytest.mark.parametrize("shape", SHAPES)
def test_ula(shape):
    given, p = SHAPES[shape]
    z, _, probability = stepped(mx.ULA(0.05, given), XI)
    np.testing.assert_allclose(z, Z + 0.05 * p @ slope(Z) + np.sqrt(0.1) * np.linalg.cholesky(p) @ XI)
    assert probability == 1.0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [0.05, 0.4])
def test_mala_accepts_by_the_densities_of_both_proposals(shape, scale):
    given, p = SHAPES[shape]
    proposal = Z + scale * p @ slope(Z) + np.sqrt(2 * scale) * np.linalg.cholesky(p) @ XI
    q = lambda to, at: stats.multivariate_normal.logpdf(to, at + scale * p @ slope(at), 2 * scale * p)  # noqa: E731
    ratio = np.exp(min(value(proposal) - value(Z) + q(Z, proposal) - q(proposal, Z), 0.0))
    for uniform in (ratio - 1e-6, min(ratio + 1e-6, 1.0)):
        z, _, probability = stepped(mx.MALA(0.1, given), (XI, uniform), scale=scale)
        assert probability == pytest.approx(ratio)
        np.testing.assert_allclose(z, proposal if uniform < ratio else Z)


@pytest.mark.parametrize("shape", SHAPES)
def test_random_walk(shape):
    given, p = SHAPES[shape]
    proposal = Z + 0.7 * np.linalg.cholesky(p) @ XI
    ratio = np.exp(min(value(proposal) - value(Z), 0.0))
    z, _, probability = stepped(mx.RandomWalk(0.5, given), (XI, 0.5 * ratio), scale=0.7)
    assert probability == pytest.approx(ratio) and 0 < ratio < 1
    np.testing.assert_allclose(z, proposal)
    np.testing.assert_array_equal(stepped(mx.RandomWalk(0.5, given), (XI, ratio + 1e-9), scale=0.7)[0], Z)


def test_a_ratio_that_is_not_a_number_rejects():
    z, probability = accept(jnp.asarray(1.0), jnp.asarray(2.0), jnp.asarray(np.nan), jnp.asarray(1e-12))
    assert float(z) == 1.0 and float(probability) == 0.0
    assert float(accept(jnp.asarray(1.0), jnp.asarray(2.0), jnp.asarray(5.0), jnp.asarray(0.999))[1]) == 1.0


@pytest.mark.parametrize(
    ("kernel", "goal"), [(mx.MALA(), 0.574), (mx.RandomWalk(), 0.35), (mx.MALA(target_acceptance=None), None)]
)
def test_goals_and_first_steps(kernel, goal):
    assert kernel.target_acceptance == goal and kernel.adjusted
    assert float(kernel.step_size(7)) == (0.1 if isinstance(kernel, mx.MALA) else 0.5)


# -- independence and several moves -----------------------------------------------------------------

ROOT = np.linalg.cholesky(np.linalg.inv(A + 0.5 * np.eye(3)))
MODE = np.array([0.1, -0.2, 0.05])


def independent(inflation):
    """Proposal and acceptance of an independence move from N(MODE, inflation ROOT ROOT^T)."""
    proposal = MODE + np.sqrt(inflation) * ROOT @ XI
    q = lambda x: stats.multivariate_normal.logpdf(x, MODE, inflation * ROOT @ ROOT.T)  # noqa: E731
    return proposal, np.exp(min(value(proposal) - value(Z) + q(Z) - q(proposal), 0.0))


@pytest.mark.parametrize("inflation", [1.2, 3.0])
def test_independence(inflation):
    proposal, ratio = independent(inflation)
    state = {"mode": jnp.asarray(MODE), "cholesky": jnp.asarray(ROOT)}
    z, _, probability = stepped(mx.IndependenceMH(inflation), (XI, 0.9 * ratio), state=state)
    assert probability == pytest.approx(ratio)
    np.testing.assert_allclose(z, proposal)
    refreshed = mx.IndependenceMH(n_newton=30).refresh(jnp.asarray(Z), state, density)
    np.testing.assert_allclose(refreshed["mode"], np.zeros(3), atol=1e-10)
    np.testing.assert_allclose(refreshed["cholesky"] @ refreshed["cholesky"].T, np.linalg.inv(A), atol=1e-9)
    bad: Any
    for bad in ({"inflation": 0.0}, {"n_newton": 0}):
        with pytest.raises(ValueError, match="must be"):
            mx.IndependenceMH(**bad)


SCALES = np.array([1.0, 0.8, 1.1, 0.3, 0.2])


def moved(move, uniform, pattern=None, turn=0, scale=1.0, taken=None):
    kernel = mx.Alternating(pattern or (move,), inflation=1.7)
    state = kernel.init(jnp.asarray(Z)) | {
        "mode": jnp.asarray(MODE), "root": jnp.asarray(ROOT), "log_scale": jnp.log(jnp.asarray(SCALES)),
        "turn": jnp.asarray(turn), "value": jnp.asarray(value(Z)),
        "taken": jnp.asarray(np.full(5, 4.0) if taken is None else taken),
    }  # fmt: skip
    if "gradient" in state:
        state["gradient"] = jnp.asarray(slope(Z))
    return stepped(kernel, (XI, uniform), state=state, scale=scale)


def alternating(move, s):
    """Proposal and acceptance of a move, by its own formula."""
    cov = ROOT @ ROOT.T
    if move == "independence":
        return independent(1.7)
    if move == "joint":
        proposal = Z + s * ROOT @ XI
    elif move == "component":
        j = 4 % 3
        proposal = Z + s * np.eye(3)[j] * np.sqrt(cov[j, j]) * XI[j]
    else:
        proposal = Z + s * cov @ slope(Z) + np.sqrt(2 * s) * ROOT @ XI
    log_ratio = value(proposal) - value(Z)
    if move == "mala":
        q = lambda to, at: stats.multivariate_normal.logpdf(to, at + s * cov @ slope(at), 2 * s * cov)  # noqa: E731
        log_ratio += q(Z, proposal) - q(proposal, Z)
    return proposal, 1.0 if move == "ula" else np.exp(min(log_ratio, 0.0))


@pytest.mark.parametrize("pattern", [None, ("ula", "component", "mala", "independence", "joint")], ids=["alone", "in turn"])
@pytest.mark.parametrize("move", MOVES)
def test_moves_of_alternating(move, pattern):
    k, turn = list(MOVES).index(move), 0 if pattern is None else 5 + pattern.index(move)
    proposal, ratio = alternating(move, SCALES[k] * 1.3)
    goal = {"joint": 0.30, "component": 0.44, "mala": 0.574}.get(move)
    for uniform, where in ((0.99 * ratio, proposal), (min(1.01 * ratio, 1.1), Z)):
        if uniform > 1:
            continue
        z, state, probability = moved(move, uniform, pattern, turn, scale=1.3)
        assert probability == pytest.approx(ratio)
        np.testing.assert_allclose(z, where)
        assert float(state["value"]) == pytest.approx(value(where))
        if "gradient" in state:
            np.testing.assert_allclose(state["gradient"], slope(where))
        scales = SCALES.copy()
        scales[k] *= np.exp(0.0 if goal is None else 4.0**-0.6 * (ratio - goal))
        np.testing.assert_allclose(np.exp(state["log_scale"]), scales)
        np.testing.assert_array_equal(state["taken"], 4 + (np.arange(5) == k))
        assert int(state["turn"]) == turn + 1


def test_components_come_in_their_turn():
    for count in (3.0, 4.0, 5.0):
        z, _, _ = moved("component", 0.0, taken=np.full(5, count))
        assert np.flatnonzero(z != Z).tolist() == [int(count) % 3]


def test_first_scales_of_alternating():
    first = np.exp(mx.Alternating().init(jnp.asarray(Z))["log_scale"])
    np.testing.assert_allclose(first, [1.0, 2.38 / np.sqrt(3), 2.38, 0.6 / 3 ** (1 / 3), 0.1])
    assert mx.Alternating().every == 20 and mx.Alternating().inflation == 1.3
    bad: Any
    for bad in ({"pattern": ()}, {"pattern": ("nuts",)}, {"every": 0}, {"inflation": 0.0}):
        with pytest.raises(ValueError, match="must be"):
            mx.Alternating(**bad)


def test_the_approximation_is_renewed_when_it_is_due_and_shared_by_chains():
    kernel = mx.Alternating(("mala",), every=2)
    chains = jnp.asarray(np.stack([Z, -Z]))
    state = jax.vmap(kernel.init)(chains)
    refresh = eqx.filter_jit(lambda state, shift: kernel.refresh_unit(chains, state, lambda z: density(z - shift), 2))
    state = refresh(state, jnp.zeros(3))
    cov = state["root"][0] @ state["root"][0].T
    expected = laplace(density, jnp.asarray(Z), FIRST)
    np.testing.assert_allclose(state["mode"], np.stack([expected[0]] * 2), atol=1e-10)
    np.testing.assert_allclose(cov, expected[1] @ expected[1].T, atol=1e-10)
    np.testing.assert_allclose(state["value"], [value(Z), value(-Z)])
    np.testing.assert_allclose(state["gradient"], [slope(Z), slope(-Z)])
    other = lambda z: density(z - 1.0)  # noqa: E731
    kept = refresh(state, jnp.ones(3))
    np.testing.assert_array_equal(kept["mode"], state["mode"])
    np.testing.assert_array_equal(kept["root"], state["root"])
    np.testing.assert_allclose(kept["value"], [value(Z - 1.0), value(-Z - 1.0)])
    due = refresh(kept, jnp.ones(3))
    # Newton's steps start where the first chain is.
    np.testing.assert_allclose(due["mode"][1], laplace(other, jnp.asarray(Z), LATER)[0])
    assert np.abs(due["mode"][1] - laplace(other, jnp.asarray(Z), LATER - 1)[0]).max() > 1e-4
    single = kernel.refresh(chains[0], jax.tree.map(lambda leaf: leaf[0], kept), other)
    np.testing.assert_allclose(single["mode"], due["mode"][0])


# -- prior kernels ----------------------------------------------------------------------------------


def test_crank_nicolson_accepts_by_the_likelihood():
    target = lambda z: density(z) - jnp.sum(z**2) / 2  # noqa: E731
    proposal = np.sqrt(1 - 0.36) * Z + 0.6 * XI
    ratio = np.exp(min(value(proposal) - value(Z), 0.0))
    z, _, probability = stepped(mx.CrankNicolson(0.6), (XI, 0.5 * ratio), target=target)
    assert probability == pytest.approx(ratio) and ratio < 1
    np.testing.assert_allclose(z, proposal)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_elliptical_slice_shrinks_its_bracket_towards_the_state(seed):
    """Murray, Adams and MacKay (2010), figure 2, with the numbers that its key draws."""
    sharp = lambda z: -40 * (z[0] - 0.5) ** 2  # noqa: E731
    target = lambda z: sharp(z) - jnp.sum(z**2) / 2  # noqa: E731
    key = jax.random.key(seed)
    draw = lambda j: float(jax.random.uniform(jax.random.fold_in(key, j), (), float))  # noqa: E731
    level, count = sharp(Z) + np.log(0.7), 0
    angle = 2 * np.pi * draw(0)
    low, high = angle - 2 * np.pi, angle
    while sharp(np.cos(angle) * Z + np.sin(angle) * XI) < level:
        low, high = (angle, high) if angle < 0 else (low, angle)
        count += 1
        angle = low + (high - low) * draw(count)
    assert count > 0
    z, _, probability = mx.EllipticalSlice().step((XI, jnp.asarray(0.7), key), jnp.asarray(Z), (), target, jnp.asarray(1.0))
    np.testing.assert_allclose(z, np.cos(angle) * Z + np.sin(angle) * XI)
    assert float(probability) == 1.0


def test_elliptical_slice_ends_where_nothing_is_a_number():
    z, _, _ = mx.EllipticalSlice().step((jnp.asarray(XI), jnp.asarray(0.5), jax.random.key(0)), jnp.asarray(Z), (),
                                        lambda z: jnp.nan * z[0], jnp.asarray(1.0))  # fmt: skip
    np.testing.assert_array_equal(z, Z)


def test_samplers_of_blackjax_take_their_step_and_settings():
    kernel, key = mx.BlackJAX("hmc", 0.4, num_integration_steps=3), jax.random.key(0)
    hmc: Any = blackjax.hmc
    sampler = hmc(density, step_size=0.3, inverse_mass_matrix=jnp.ones(3), num_integration_steps=3)
    state, info = sampler.step(key, sampler.init(jnp.asarray(Z)))
    z, _, probability = kernel.step(key, jnp.asarray(Z), (), density, jnp.asarray(0.3))
    np.testing.assert_array_equal(z, state.position)
    assert float(probability) == float(info.acceptance_rate) and kernel.target_acceptance == 0.8
    with pytest.raises(ValueError, match='no sampler "gibbs"'):
        mx.BlackJAX("gibbs")


@pytest.mark.parametrize("kernel", [mx.CrankNicolson(), mx.MALA(), mx.RandomWalk(), mx.Alternating(), mx.IndependenceMH()])
def test_noise_is_normal_and_uniform_and_independent(kernel):
    normals, uniforms = jax.vmap(lambda k: kernel.noise(k, jnp.zeros(2)))(jax.random.split(jax.random.key(0), 4000))
    assert all(stats.kstest(x, "norm").pvalue > 1e-3 for x in np.asarray(normals).T)
    assert stats.kstest(np.asarray(uniforms), "uniform").pvalue > 1e-3
    correlation = np.corrcoef(np.column_stack([normals, uniforms]).T)
    assert np.abs(correlation - np.eye(3)).max() < 4 / np.sqrt(4000)


# -- kinetic ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("a", [0.01, 0.049, 0.051, 2.0])
def test_flight_is_the_exact_ornstein_uhlenbeck_path(a):
    """Moments by the matrix exponential of the linear system (Van Loan 1978)."""
    friction, t = 0.7, a / 0.7
    drift, noise = np.array([[0.0, 1.0], [0.0, -friction]]), np.diag([0.0, 2 * friction])
    block = linalg.expm(np.block([[-drift, noise], [np.zeros((2, 2)), drift.T]]) * t)
    transition = block[2:, 2:].T
    covariance = transition @ block[:2, 2:]
    at = lambda v, e: np.array(_flight(*(jnp.asarray(x) for x in (v, e, t, friction))))  # noqa: E731
    np.testing.assert_allclose(at(1.0, [0.0, 0.0]), transition[:, 1], rtol=1e-10)
    root = np.stack([at(0.0, [1.0, 0.0]), at(0.0, [0.0, 1.0])], axis=1)
    np.testing.assert_allclose(root @ root.T, covariance, rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_underdamped_is_flight_kick_flight(shape):
    given, p = SHAPES[shape]
    kernel, c = mx.Underdamped(0.3, friction=1.4, preconditioner=given), np.linalg.cholesky(p)
    noise, v = np.random.default_rng(0).normal(size=(4, 3)), np.array([0.2, -0.4, 0.9])
    state = kernel.init(jnp.asarray(Z)) | {"velocity": jnp.asarray(v)}
    z, state, probability = stepped(kernel, noise, state=state, scale=0.3)
    fly = lambda v, e: map(np.asarray, _flight(*map(jnp.asarray, (v, e, 0.15, 1.4))))  # noqa: E731
    moved, v = fly(v, noise[:2])
    middle = Z + c @ moved
    moved, v = fly(v + 0.3 * c.T @ slope(middle), noise[2:])
    np.testing.assert_allclose(z, middle + c @ moved)
    np.testing.assert_allclose(state["velocity"], v)
    assert probability == 1.0


@pytest.mark.parametrize("leaps", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_unadjusted_hmc_is_the_leapfrog(shape, leaps):
    given, p = SHAPES[shape]
    c, h = np.linalg.cholesky(p), 0.2
    x, momentum = Z.copy(), XI.copy()
    for _ in range(leaps):
        momentum = momentum + h / 2 * c.T @ slope(x)
        x = x + h * c @ momentum
        momentum = momentum + h / 2 * c.T @ slope(x)
    z, _, probability = stepped(mx.UnadjustedHMC(0.1, leaps, given), XI, scale=h)
    np.testing.assert_allclose(z, x)
    assert probability == 1.0


def test_halves_halve_the_step_and_join_the_noise():
    first, second = XI, np.array([1.0, 0.2, -0.5])
    coarse, fine, order = halved(mx.ULA(0.1))
    assert order == 1 and isinstance(coarse, Halves)
    whole = Z + 0.1 * slope(Z) + np.sqrt(0.2) * (first + second) / np.sqrt(2)
    np.testing.assert_allclose(stepped(coarse, (first, second), scale=0.1)[0], whole)
    middle = Z + 0.05 * slope(Z) + np.sqrt(0.1) * first
    expected = middle + 0.05 * slope(middle) + np.sqrt(0.1) * second
    np.testing.assert_allclose(stepped(fine, (first, second), scale=0.1)[0], expected)
    assert halved(mx.Underdamped(0.1))[2] == halved(mx.LeimkuhlerMatthews(0.1))[2] == 2
    kernel = mx.UnadjustedHMC(0.1, 3, P)
    same, half, order = halved(kernel)
    assert same is kernel and order == 2 and isinstance(half, mx.UnadjustedHMC) and half.n_leapfrog == 6
    assert float(half.step_size(5)) == 0.05
    np.testing.assert_array_equal(half.scaling.cholesky, kernel.scaling.cholesky)
