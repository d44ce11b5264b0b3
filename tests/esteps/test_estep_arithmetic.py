"""What E-steps average, how often they move, and what they adapt, against NumPy."""

# Stand-ins take the place of fits, rules and models: pyright sees other types.
# pyright: reportArgumentType=false

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import margaux as mx
from helpers import Mixture, normal
from margaux.esteps.mcmc import _reader
from margaux.numerics.gaussian import laplace, normals

Y = np.array([0.5, -1.0, 3.0])
PARAMS = {"mu": 0.2, "tau2": 0.7}

pytestmark = pytest.mark.usefixtures("double")


class Gaussian(mx.AbstractModel, mx.AbstractConjugate):
    """y_i ~ N(z_i, 1), z_i ~ N(mu, tau2); exact draws are the posterior mean plus a number from the key."""

    def log_joint(self, params, z, y):
        return normal(y, z) + normal(z, params["mu"], jnp.sqrt(params["tau2"]))

    def init_latents(self, key, params, y):
        return y + jax.random.normal(key, ())

    def sample_posterior(self, key, params, y):
        return y + jax.random.normal(key, ())


class Counter(mx.RandomWalk):
    """A kernel whose chain counts: state z + 1 at each transition, and acceptance that tells the state it left."""

    def init(self, z):
        return jnp.zeros((), jnp.int32)

    def refresh(self, z, kstate, logdensity):
        return kstate + 100

    def step(self, noise, z, kstate, logdensity, scale):
        return z + scale, kstate + 1, jnp.asarray(0.1)


def counter(step: float, **settings: Any) -> Any:
    kind: Any = Counter
    return kind(step, **settings)


def parts(estep, units=Y, seed=0, params=PARAMS, model=None):
    model = Gaussian() if model is None else model
    params, batch = jax.tree.map(jnp.asarray, params), jnp.asarray(units)
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(jnp.arange(len(units)))
    latents = jnp.zeros(())
    rows = jax.vmap(lambda key, y: estep.init(key, model, params, y))(keys, batch)
    noise = jax.vmap(lambda key: estep.noise(jax.random.fold_in(key, 9), latents))(keys)
    return model, params, batch, rows, noise


def moments(z, w):
    """What E-steps are asked for here: weights, mean and square of each unit."""
    return jnp.sum(w, axis=0), jnp.sum(w * z, axis=0), jnp.sum(w * z**2, axis=0)


def expectation(estep, k=1, rows=None, **settings):
    model, params, batch, first, noise = parts(estep, **settings)
    rows = first if rows is None else rows
    out = eqx.filter_jit(lambda noise, rows: estep.expect(moments, noise, model, params, rows, batch, k))(noise, rows)
    value, rows, info = jax.tree.map(np.asarray, out)
    assert all(figure.shape == (len(Y),) for figure in info.values())  # one a unit
    return (value, rows, {name: figure.sum() for name, figure in info.items()}), first


# -- chains -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"n_steps": 1}, [1]),
        ({"n_steps": 4}, [1, 2, 3, 4]),
        ({"n_steps": 4, "burn_in": 2}, [3, 4, 5, 6]),
        ({"n_steps": 7, "thin": 3}, [3, 6]),
        ({"n_steps": 7, "thin": 2, "burn_in": 3}, [5, 7, 9]),
        ({"n_steps": 5, "thin": 5}, [5]),
        ({"n_steps": 3, "thin": 3, "burn_in": 4, "n_chains": 2}, [7]),
        ({"n_steps": 4, "n_chains": 3}, [1, 2, 3, 4]),
        ({"n_steps": mx.Growth(3, 0.0)}, [1, 2, 3]),
        ({"n_steps": mx.Growth(6, 0.0), "thin": 2, "burn_in": 1}, [3, 5, 7]),
        ({"n_steps": mx.Growth(1, 0.0), "thin": 4}, [4]),
    ],
)
def test_chains_average_the_states_after_the_burn_in_that_thinning_keeps(settings, kept):
    estep = mx.MCMC(counter(1.0, target_acceptance=None), **settings)
    ((total, mean, square), rows, info), first = expectation(estep)
    z = np.asarray(first["z"])
    np.testing.assert_allclose(total, 1.0)
    np.testing.assert_allclose(mean, np.mean([z + t for t in kept], axis=(0, 2)))
    np.testing.assert_allclose(square, np.mean([(z + t) ** 2 for t in kept], axis=(0, 2)))
    np.testing.assert_allclose(rows["z"], z + kept[-1])
    np.testing.assert_array_equal(rows["kernel"], 100 + kept[-1])
    # The acceptance a transition, summed over units.
    assert info["acceptance"] == pytest.approx(0.1 * len(Y))


def test_chains_warm_up_and_start_apart():
    estep = mx.MCMC(counter(1.0, target_acceptance=None), warm_up=7, n_chains=2)
    cold = parts(mx.MCMC(counter(1.0, target_acceptance=None), n_chains=2))[3]
    warm = parts(estep)[3]
    np.testing.assert_allclose(warm["z"], np.asarray(cold["z"]) + 7)
    # Refreshed before the first and the sixth.
    np.testing.assert_array_equal(warm["kernel"], 207)
    assert len(np.unique(cold["z"])) == 6


def test_chains_that_restart_start_from_new_latents_of_each_chain():
    estep = mx.MCMC(counter(1.0, target_acceptance=None), n_steps=2, n_chains=2, warm_start=False)
    (_, rows, _), first = expectation(estep)
    again, _ = expectation(estep, rows=jax.tree.map(lambda leaf: leaf + 7, first))
    np.testing.assert_array_equal(again[1]["z"], rows["z"])
    assert np.all(np.asarray(rows["z"]) != np.asarray(first["z"]) + 2) and len(np.unique(rows["z"])) == 6


def test_scales_are_adapted_with_a_falling_gain_towards_the_goal():
    estep = mx.MCMC(counter(0.5, target_acceptance=0.35), n_steps=3)
    (_, rows, _), first = expectation(estep)
    assert np.all(np.asarray(first["log_scale"]) == 0) and np.all(np.asarray(first["n_transitions"]) == 1)
    log_scales = np.r_[0.0, np.cumsum([t**-0.6 * (0.1 - 0.35) for t in (1, 2, 3)])]
    np.testing.assert_allclose(rows["log_scale"], log_scales[-1])
    np.testing.assert_allclose(rows["n_transitions"], 4.0)
    np.testing.assert_allclose(rows["z"] - np.asarray(first["z"]), 0.5 * np.exp(log_scales[:3]).sum())
    kept = mx.MCMC(counter(0.5, target_acceptance=None), n_steps=3)
    assert set(parts(kept)[3]) == {"z", "kernel"}


def test_the_noise_of_chains_transitions_and_iterations_differs():
    estep = mx.MCMC(mx.RandomWalk(), n_steps=3, burn_in=2, n_chains=2)
    noise = parts(estep)[4]["steps"]
    assert noise[0].shape == (3, 5, 2, 1) and len(np.unique(noise[0])) == 30
    # A growing number of steps draws as it goes.
    growing = mx.MCMC(mx.RandomWalk(target_acceptance=None), n_steps=mx.Growth(3, 0.0), burn_in=2, n_chains=2)
    noise, first = parts(growing)[4], parts(growing)[3]
    drawn = np.stack([_reader(growing, noise, first)(t)[0] for t in range(5)])
    assert drawn.shape == (5, 3, 2, 1) and len(np.unique(drawn)) == 30


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_steps": 0}, "n_steps must be at least 1"), ({"n_steps": 2, "thin": 3}, "keeps no state"),
        ({"n_chains": 0}, "n_chains must be"), ({"thin": 0}, "thin must be"), ({"burn_in": -1}, "burn_in must be"),
        ({"warm_up": -1}, "warm_up must be"), ({"burn_in": 1.5}, "whole number"),
    ],
)  # fmt: skip
def test_bad_chains(settings, words):
    with pytest.raises(ValueError, match=words):
        mx.MCMC(mx.RandomWalk(), **settings)
    mx.MCMC(mx.RandomWalk(), n_steps=2, thin=2)


# -- exact, noise, quadrature -----------------------------------------------------------------------


def test_enumeration_weighs_by_the_joint_density():
    params = {"weights": np.array([0.5, 0.3, 0.2]), "means": np.array([-1.0, 0.0, 2.0]), "variances": np.array([1.0, 0.5, 2.0])}
    ((total, mean, square), _, info), _ = expectation(mx.Exact(), params=params, model=Mixture())
    joint = params["weights"] * stats.norm.pdf(Y[:, None], params["means"], np.sqrt(params["variances"]))
    share = joint / joint.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(total, 1.0)
    np.testing.assert_allclose(mean, share @ np.arange(3))
    np.testing.assert_allclose(square, share @ np.arange(3) ** 2)
    assert info["log_marginal"] == pytest.approx(np.log(joint.sum(axis=1)).sum())


def test_exact_draws_weigh_the_same_and_differ():
    estep = mx.Exact(4)
    ((total, mean, square), _, info), _ = expectation(estep)
    draws = np.array(
        [[y + float(jax.random.normal(key, ())) for key in keys] for y, keys in zip(Y, parts(estep)[4], strict=True)]
    )
    assert info == {} and len(np.unique(draws)) == 12
    np.testing.assert_allclose(total, 1.0)
    np.testing.assert_allclose(mean, draws.mean(axis=1))
    np.testing.assert_allclose(square, (draws**2).mean(axis=1))
    assert mx.Exact().n_draws == 1
    with pytest.raises(ValueError, match="n_draws"):
        mx.Exact(0)


@pytest.mark.parametrize("antithetic", [False, True])
def test_noise_is_standard_normal_with_signs_for_integers(antithetic):
    estep = mx.Noise(6, antithetic)
    latents = {"a": jnp.zeros(2), "b": jnp.zeros((3, 2)), "s": jnp.zeros(4, jnp.int32)}
    drawn = estep.noise(jax.random.key(1), latents)
    assert drawn["b"].shape == (6, 3, 2) and len(np.unique(np.abs(drawn["a"]))) == (6 if antithetic else 12)
    assert drawn["s"].dtype == jnp.int32 and set(np.unique(drawn["s"])) == {-1, 1}
    if antithetic:
        np.testing.assert_array_equal(drawn["b"][:3], -drawn["b"][3:])
        np.testing.assert_array_equal(drawn["s"][:3], drawn["s"][3:])
    many = mx.Noise(20_000).noise(jax.random.key(2), latents)
    assert stats.kstest(np.ravel(many["a"]), "norm").pvalue > 1e-3
    assert abs(np.mean(many["s"])) < 4 / np.sqrt(80_000)
    bad: Any
    for bad in ({"n_draws": 0}, {"n_draws": 3, "antithetic": True}):
        with pytest.raises(ValueError, match="n_draws"):
            mx.Noise(**bad)


def test_signs_of_one_word_do_not_depend_on_each_other_nor_on_how_many_there_are():
    def signs(count, draws=1):
        return np.asarray(mx.Noise(draws).noise(jax.random.key(3), jnp.zeros(count, jnp.int8)), float)

    many = signs(70, 20_000)
    correlations = many.T @ many / 20_000 - np.eye(70)
    assert np.abs(correlations).max() < 5 / np.sqrt(20_000) and np.abs(many.mean(axis=0)).max() < 5 / np.sqrt(20_000)
    # So are draws of the next word, and of the next draw.
    assert abs(np.mean(many[:-1] * many[1:])) < 4 / np.sqrt(many.size)
    np.testing.assert_array_equal(signs(33)[0], signs(200)[0, :33])


@pytest.mark.parametrize(("antithetic", "n"), [(False, 3), (True, 6)])
def test_noise_in_a_growing_number_averages_as_many_draws(antithetic, n):
    """Five draws are asked for: five one by one, or three pairs."""
    growing, seen = mx.Noise(mx.Growth(5, 0.0), antithetic), []
    ((total, mean, square), _, _), _ = expectation(growing)
    for key in parts(growing)[4]:
        rounds = 3 if antithetic else 5
        one = [growing._draw(jax.random.fold_in(key, r), jnp.zeros(()), 2 if antithetic else 1) for r in range(rounds)]
        seen.append(np.concatenate(one))
    assert len(seen[0]) == (6 if antithetic else 5)
    np.testing.assert_allclose(total, 1.0)
    np.testing.assert_allclose(mean, np.mean(seen, axis=1), atol=1e-12)
    np.testing.assert_allclose(square, np.mean(np.square(seen), axis=1))


@pytest.mark.parametrize("n_nodes", [1, 2, 5])
def test_quadrature_is_the_rule_of_gauss_and_hermite_at_the_mode(n_nodes):
    """A Gaussian posterior is integrated exactly, its square from two nodes on, and the marginal with any number."""
    ((total, mean, square), rows, info), _ = expectation(mx.Quadrature(n_nodes))
    variance = 1 / (1 + 1 / 0.7)
    centre = variance * (Y + 0.2 / 0.7)
    np.testing.assert_allclose(total, 1.0)
    np.testing.assert_allclose(mean, centre)
    np.testing.assert_allclose(square, centre**2 + (variance if n_nodes > 1 else 0))
    np.testing.assert_allclose(rows["mean"][:, 0], centre)
    np.testing.assert_allclose(rows["cholesky"][:, 0, 0], np.sqrt(variance))
    assert info["log_marginal"] == pytest.approx(stats.norm.logpdf(Y, 0.2, np.sqrt(1.7)).sum())


def test_quadrature_in_two_dimensions_and_what_it_refuses():
    nodes, log_w = mx.Quadrature(4).points(2)
    square = np.exp(log_w - np.sum(np.asarray(nodes) ** 2, axis=1) / 2) / (2 * np.pi)
    assert nodes.shape == (16, 2) and square.sum() == pytest.approx(1.0)
    assert np.sum(square * nodes[:, 0] ** 2 * nodes[:, 1] ** 4) == pytest.approx(3.0)
    refusal = mx.Quadrature(20).requires(Gaussian(), jnp.zeros(4))
    assert refusal is not None and "20 nodes in 4 dimensions has 10^5.2 points" in refusal
    assert mx.Quadrature(20).requires(Gaussian(), jnp.zeros(3)) is None
    bad: Any
    for bad in ({"n_nodes": 0}, {"n_nodes": 101}, {"n_newton": 0}):
        with pytest.raises(ValueError):
            mx.Quadrature(**bad)


# -- Gaussian approximations ------------------------------------------------------------------------


def test_laplace_finds_the_mode_where_newton_alone_would_not():
    """A logistic posterior from far away, an indefinite start, and a start where nothing is finite."""
    skewed = lambda z: jnp.sum(3 * z - 8 * jax.nn.softplus(z)) - jnp.sum(z**2) / 50  # noqa: E731
    for d in (1, 2):
        mode, root = jax.jit(lambda start: laplace(skewed, start, 40))(jnp.full(d, 25.0))
        p = special.expit(np.asarray(mode))
        np.testing.assert_allclose(3 - 8 * p - np.asarray(mode) / 25, 0, atol=1e-8)
        np.testing.assert_allclose(root @ root.T, np.diag(1 / (8 * p * (1 - p) + 1 / 25)), rtol=1e-8)
    double_well = lambda z: -jnp.sum((z**2 - 1) ** 2) - 0.3 * z[0] * z[1]  # noqa: E731
    mode, root = jax.jit(lambda start: laplace(double_well, start, 60))(jnp.array([0.05, -0.1]))
    assert float(jnp.linalg.norm(jax.grad(double_well)(mode))) < 1e-6
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(-jax.hessian(double_well)(mode)), rtol=1e-6)


def test_laplace_holds_flat_directions_to_a_unit_scale():
    _, root = laplace(lambda z: -2.0 * z[0] ** 2, jnp.array([1.0, 3.0]), 10)
    np.testing.assert_allclose(root @ root.T, np.diag([0.25, 1.0]), atol=1e-7)
    _, root = laplace(lambda z: 0.0 * jnp.sum(z), jnp.array([1.0]), 3)
    np.testing.assert_allclose(root, [[1.0]])


@pytest.mark.parametrize("d", [1, 3])
def test_lattices_are_normal_and_spread_evenly(d):
    points = np.asarray(normals(jax.random.key(3), 1000, d, jnp.dtype(float), True))
    # Steps by powers of the inverse of the root of x^(d + 1) = x + 1.
    root = np.roots([1.0, *[0.0] * (d - 1), -1.0, -1.0])
    root = root[np.isreal(root) & (root.real > 1)].real[0]
    steps = np.diff(stats.norm.cdf(points), axis=0) % 1.0
    np.testing.assert_allclose(steps, np.broadcast_to(root ** -np.arange(1.0, d + 1), steps.shape), atol=1e-9)
    for column in points.T:
        # Far below the discrepancy of independent draws, which is about 0.03.
        assert stats.kstest(column, "norm").statistic < 0.006
    plain = np.asarray(normals(jax.random.key(3), 1000, d, jnp.dtype(float), False))
    assert stats.kstest(plain[:, 0], "norm").pvalue > 1e-3
    assert not np.array_equal(points, normals(jax.random.key(4), 1000, d, jnp.dtype(float), True))


# -- importance sampling ----------------------------------------------------------------------------


def test_an_adapted_proposal_moves_a_tenth_of_the_way_to_the_weighted_moments():
    rng = np.random.default_rng(0)
    u, w = rng.normal(size=(50, 2)), rng.dirichlet(np.ones(50))
    row = {"mean": np.array([1.0, -2.0]), "cholesky": np.linalg.cholesky(np.array([[2.0, 0.3], [0.3, 0.5]]))}
    learn = mx.ImportanceSampling(50, proposal="adapted").proposal.learn
    moved = learn(jax.tree.map(jnp.asarray, row), jnp.asarray(u), jnp.asarray(w))
    x = row["mean"] + u @ row["cholesky"].T
    mean = w @ x
    covariance = (x - mean).T @ ((x - mean) * w[:, None])
    old = row["cholesky"] @ row["cholesky"].T
    np.testing.assert_allclose(moved["mean"], row["mean"] + 0.1 * (mean - row["mean"]))
    np.testing.assert_allclose(moved["cholesky"] @ moved["cholesky"].T, 0.9 * old + 0.1 * covariance)


def test_an_adapted_proposal_ends_at_the_posterior():
    estep = mx.ImportanceSampling(400, proposal="adapted", quasi=True)
    model, params, batch, rows, noise = parts(estep)
    # From a proposal of another place and scale.
    rows = jax.tree.map(lambda leaf: leaf * 0 + 2.0, rows)
    variance = 1 / (1 + 1 / 0.7)

    @jax.jit
    def turn(k, rows):
        drawn = jax.vmap(lambda i: estep.noise(jax.random.fold_in(jax.random.key(k), i), jnp.zeros(())))(jnp.arange(3))
        return estep.expect(moments, drawn, model, params, rows, batch, k)

    for k in range(80):
        (_, mean, _), rows, info = turn(k, rows)
    np.testing.assert_allclose(rows["mean"][:, 0], variance * (Y + 0.2 / 0.7), atol=0.02)
    np.testing.assert_allclose(rows["cholesky"][:, 0, 0], np.sqrt(variance), rtol=0.02)
    np.testing.assert_allclose(mean, variance * (Y + 0.2 / 0.7), atol=0.01)
    # A tenth of wide draws leaves this much of the 400 at the best of proposals.
    assert 350 < float(np.mean(info["ess"])) < 400


@pytest.mark.parametrize("defensive", [0.0, 0.2])
def test_gaussian_proposals_know_their_density(defensive):
    estep = mx.ImportanceSampling(10, defensive=defensive, widening=3.0)
    row = {"mean": np.array([1.0, -2.0]), "cholesky": np.linalg.cholesky(np.array([[2.0, 0.3], [0.3, 0.5]]))}
    e = np.random.default_rng(0).normal(size=(10, 2))
    x, log_q, u = estep.proposal.draw(jnp.asarray(e), None, None, jax.tree.map(jnp.asarray, row), None)
    wide = round(10 * defensive)
    stretched = e * np.where(np.arange(10) < wide, 3.0, 1.0)[:, None]
    covariance = row["cholesky"] @ row["cholesky"].T
    of = lambda factor: stats.multivariate_normal.pdf(x, row["mean"], factor * covariance)  # noqa: E731
    np.testing.assert_allclose(u, stretched)
    np.testing.assert_allclose(x, row["mean"] + stretched @ row["cholesky"].T)
    np.testing.assert_allclose(np.exp(log_q), (1 - wide / 10) * of(1.0) + wide / 10 * of(9.0))
