"""Every method against the closed form of Bayesian linear regression, and quadrature of Bayesian logistic regression."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize
from test_variational import NOISE, D, N, linear_regression

import margaux as mx
from margaux.esteps.base import AbstractEStep
from margaux.families.variational.likelihoods import Gaussian
from margaux.families.variational.model import Variational, blocks
from margaux.families.variational.networks import Network
from margaux.families.variational.posterior import GaussianPosterior
from margaux.families.variational.priors import Normal

B, EPOCHS = 10, 300
METHODS = ["adam", "adagrad", "momentum", "bbb", "sag", "saga", "misso"]


@pytest.fixture(scope="module")
def linear():
    return linear_regression()


@pytest.fixture(scope="module")
def logistic():
    """Data, and the negative ELBO of any Gaussian by 60 nodes: the predictor is Gaussian in one dimension."""
    rng = np.random.default_rng(1)
    n, d = 500, 4
    x = np.column_stack([np.ones(n), rng.normal(size=(n, d - 1))])
    w = rng.normal(size=d)
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ w))).astype(int)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)

    def loss(mu, sigma):
        sigma = np.broadcast_to(sigma, mu.shape)
        eta = (x @ mu)[:, None] + np.sqrt(x**2 @ sigma**2)[:, None] * nodes
        data = np.sum((y[:, None] * eta - np.logaddexp(0, eta)) @ (weights / weights.sum()))
        return -data + np.sum(-np.log(sigma) + (sigma**2 + mu**2) / 2 - 0.5)

    return x, y, loss


def best_sigma(precision, spread):
    return (np.trace(precision) / D) ** -0.5 if spread == "all" else np.diag(precision) ** -0.5


def decreasing(method, curvature, n_iter):
    """Steps that fall to zero (MISSO's and Adagrad's own do)."""
    falling = lambda step: optax.cosine_decay_schedule(step, n_iter)  # noqa: E731
    return {
        "adam": optax.adam(falling(0.02)), "ivon": mx.Polynomial(1.0, 0.6, 5.0), "adagrad": 1.0,
        "momentum": optax.sgd(falling(0.05 / curvature), 0.9),
        "bbb": mx.Polynomial(5 / curvature, 0.6, 20.0), "sag": mx.Polynomial(0.5 / curvature, 0.2, 20.0),
        "saga": mx.Polynomial(0.5 / curvature, 0.2, 20.0), "misso": 1 / curvature,
    }[method]  # fmt: skip


def fitted(kind, x, y, method, spread, curvature, seed, epochs=EPOCHS, **settings):
    """By draws whose number grows with the epochs."""
    return kind(
        network=lambda w, x: x @ w, weights=np.zeros(x.shape[1]), standardize=False, method=method,
        step=decreasing(method, curvature, B * epochs), spread=spread, sigma=0.3, n_draws=mx.Growth(8, 0.2, 1, epoch=B),
        antithetic=True, n_blocks=B, epochs=epochs, average=mx.PolyakRuppert(0.5), dtype="float64", verbose=False,
        random_state=seed, **settings,
    ).fit(x, y)  # fmt: skip


class Cubature(AbstractEStep):
    """2 d points of equal weight, exact for quadratic functions of standard normals."""

    def requires(self, model, latents):
        return None

    def init(self, key, model, params, y):
        return ()

    def noise(self, key, latents):
        return jnp.zeros(())

    def expect(self, f, noise, model, params, rows, batch, k):
        points = np.sqrt(D) * jnp.concatenate([jnp.eye(D), -jnp.eye(D)])
        z = jnp.broadcast_to(points[:, None], (2 * D, len(batch["weight"]), D))
        return f(z, jnp.full(z.shape[:2], 1 / (2 * D))), rows, {}


@pytest.mark.parametrize("spread", ["all", "weight"])
def test_exact_gradients_reach_the_closed_form(linear, spread):
    # Against the closed form of these very data: those of the reference are drawn through a singular value decomposition whose
    # vectors, of equal singular values, differ between processors.
    x, y, precision, mean, loss = linear
    model = Variational(Network(lambda w, x: x @ w), Gaussian(NOISE, False), Normal(1.0), GaussianPosterior(spread), N, 4)
    algorithm = mx.soul(step=optax.adam(optax.cosine_decay_schedule(0.05, 1500)), average=mx.LastIterate())
    found = mx.fit(model, blocks(x, y, 4), algorithm, Cubature(), params=model.start(np.zeros(D), 0.3), n_iter=1500,
                   progress=False)  # fmt: skip
    best = loss(mean, best_sigma(precision, spread))
    assert loss(found.params["mean"], np.exp(found.params["log_sigma"])) == pytest.approx(best, abs=1e-6)


def check_linear(linear, method, spread, seed):
    x, y, precision, mean, loss = linear
    curvature = float(np.linalg.eigvalsh(precision)[-1]) / N
    model = fitted(mx.BayesianRegressor, x, y, method, spread, curvature, seed, noise=NOISE, noise_fixed=True)
    mu, sigma, best = model.params_["weights"], model.stderr_["weights"], best_sigma(precision, spread)
    assert 0 <= loss(mu, sigma) - loss(mean, best) < 0.02
    assert np.abs(mu - mean).max() < 1e-2
    assert np.abs(sigma / best - 1).max() < 0.02


@pytest.mark.parametrize(("method", "spread"), [
    ("misso", "weight"),
    pytest.param("sag", "all", marks=pytest.mark.slow),
    pytest.param("adam", "weight", marks=pytest.mark.slow),
])  # fmt: skip
def test_linear_regression(linear, method, spread):
    check_linear(linear, method, spread, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("spread", ["all", "weight"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_linear_regression(linear, method, spread, seed):
    check_linear(linear, method, spread, seed)


def check_logistic(logistic, reference, method, spread, seed):
    x, y, loss = logistic
    split = lambda p: (p[:4], np.exp(p[4:]))  # noqa: E731
    start = np.zeros(5 if spread == "all" else 8)
    best = optimize.minimize(lambda p: loss(*split(p)), start, method="BFGS", options={"gtol": 1e-6})
    wanted = reference("bnn")["B_logistic_regression"]
    assert best.fun == pytest.approx(wanted["neg_elbo_opt_scalar" if spread == "all" else "neg_elbo_opt_per_weight"], abs=1e-5)
    curvature = float(np.linalg.eigvalsh(x.T @ x / 4 + np.eye(4))[-1]) / len(y)
    network = lambda w, x: jnp.stack([0 * (x @ w), x @ w], axis=1)  # noqa: E731  (two classes)
    model = mx.BayesianClassifier(temperature=1.0, 
        network=network, weights=np.zeros(4), standardize=False, method=method, step=decreasing(method, curvature, B * EPOCHS),
        spread=spread, sigma=0.3, n_draws=mx.Growth(8, 0.2, 1, epoch=B), antithetic=True, n_blocks=B, epochs=EPOCHS,
        average=mx.PolyakRuppert(0.5), dtype="float64", verbose=False, random_state=seed,
    ).fit(x, y)  # fmt: skip
    mu, sigma = model.params_["weights"], model.stderr_["weights"]
    assert -1e-6 <= loss(mu, sigma) - best.fun < 0.05
    assert np.abs(sigma / split(best.x)[1] - 1).max() < 0.05


def test_logistic_regression(logistic, reference):
    check_logistic(logistic, reference, "misso", "weight", 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("spread", ["all", "weight"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_logistic_regression(logistic, reference, method, spread, seed):
    check_logistic(logistic, reference, method, spread, seed)


def test_fit_variational_of_a_correlated_normal():
    """The best independent Gaussian has the precision's diagonal, not the variances'."""
    precision = np.array([[4.0, 1.5], [1.5, 1.0]])
    density = lambda w: -0.5 * (w["a"] - 1) ** 2 * 4 - 1.5 * (w["a"] - 1) * (w["b"] + 2) - 0.5 * (w["b"] + 2) ** 2  # noqa: E731
    found = mx.fit_variational(density, {"a": 0.0, "b": 0.0}, epochs=3000, progress=False)
    assert found.mean["a"] == pytest.approx(1, abs=1e-2) and found.mean["b"] == pytest.approx(-2, abs=2e-2)
    assert found.sd["a"] == pytest.approx(0.5, rel=0.04) and found.sd["b"] == pytest.approx(1.0, rel=0.04)
    # E_q log density plus the entropy: the quadratic form's mean is its trace with the variances.
    elbo = -0.5 * np.sum(np.diag(precision) * np.array([0.25, 1.0])) + np.log(2 * np.pi * np.e) + np.log(0.5)
    assert found.elbo == pytest.approx(elbo, abs=0.005 + 5 * found.elbo.se)
    assert list(found.summary().index) == ["a", "b"] and found.posterior_draws(10)["a"].shape == (1, 10)


def test_densities_that_are_refused():
    normal = jax.scipy.stats.norm.logpdf
    with pytest.raises(ValueError, match=r"log_density returns shape \(2,\); it must return a scalar"):
        mx.fit_variational(lambda w, y: normal(y, w), np.zeros(2), np.zeros((5, 2)), log_prior=lambda w: normal(w).sum())
    with pytest.raises(TypeError, match="log_prior fails at the start"):
        mx.fit_variational(lambda w, y: normal(y, w), 0.0, np.zeros(5), log_prior=lambda w: w.missing)
    with pytest.raises(ValueError, match="pass log_prior= as well"):
        mx.fit_variational(lambda w, y: normal(y, w), 0.0, np.zeros(5))


def test_the_scale_of_a_prior_is_learned(linear):
    """By a normal prior whose scale is estimated: at its maximum s^2 is the mean of mu^2 + sigma^2."""
    x, y, *_ = linear
    model = mx.BayesianRegressor(temperature=1.0, 
        network=lambda w, x: x @ w, weights=np.zeros(D), standardize=False, prior=Normal(1.0, learned=True), n_blocks=B,
        noise=NOISE, noise_fixed=True, step=optax.adam(optax.cosine_decay_schedule(0.02, 3000)), n_draws=16, antithetic=True,
        epochs=300, verbose=False, dtype="float64",
    ).fit(x, y)  # fmt: skip
    mu, sigma = model.params_["weights"], model.stderr_["weights"]
    assert model.params_["prior_scale"] == pytest.approx(np.sqrt(np.mean(mu**2 + sigma**2)), rel=5e-3)


def test_one_block_of_misso_is_gradient_descent(linear):
    """On the same draws: with one block the mean of the table is the last minimiser."""
    x, y, precision, *_ = linear
    gamma = 0.5 * N / float(np.linalg.eigvalsh(precision)[-1])
    model = Variational(Network(lambda w, x: x @ w), Gaussian(NOISE, False), Normal(1.0), GaussianPosterior("all"), N, 1)
    both = [
        mx.fit(model, blocks(x, y, 1), algorithm, mx.Noise(4), params=model.start(np.zeros(D), 0.3), n_iter=50, progress=False)
        for algorithm in (mx.misso(lipschitz=1 / gamma, average=mx.LastIterate()), mx.soul(step=gamma, average=mx.LastIterate()))
    ]
    for a, b in zip(jax.tree.leaves(both[0].params), jax.tree.leaves(both[1].params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize("method", ["misso", "sag"])
def test_a_table_of_blocks_of_one_is_that_of_observations(linear, method):
    """Blocks of one observation, against a plain model of one observation without the machinery of blocks."""
    x, y, *_ = linear
    x, y, n = x[:12], y[:12], 12
    normal = jax.scipy.stats.norm.logpdf

    class Single(mx.AbstractModel):
        def log_joint(self, params, z, unit):
            sigma = jnp.exp(params["log_sigma"])
            w = params["mean"] + sigma * z
            kl = jnp.sum(-jnp.log(sigma) + (sigma**2 + params["mean"] ** 2) / 2 - 0.5)
            return normal(unit["y"][0], unit["x"][0] @ w, NOISE) - kl / n

        def init_latents(self, key, params, unit):
            return jnp.zeros(D)

    model = Variational(Network(lambda w, x: x @ w), Gaussian(NOISE, False), Normal(1.0), GaussianPosterior("all"), n, n)
    algorithm = mx.misso(lipschitz=20.0) if method == "misso" else mx.sag(step=0.01)
    both = [
        mx.fit(one, blocks(x, y, n), algorithm, mx.Noise(4), params=model.start(np.zeros(D), 0.3), n_iter=100, batch_size=1,
               progress=False).params
        for one in (model, Single())
    ]  # fmt: skip
    for a, b in zip(jax.tree.leaves(both[0]), jax.tree.leaves(both[1]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_one_program_for_all_numbers_of_draws(linear):
    from margaux.engine.loop import batch_chunk

    x, y, *_ = linear
    model = Variational(Network(lambda w, x: x @ w), Gaussian(NOISE, False), Normal(1.0), GaussianPosterior("all"), N, B)
    programs = []
    for schedule in (mx.Growth(0, 1, 1, epoch=B), mx.Growth(0, 1e-2, 2, epoch=B), mx.Growth(0, 1, 2.1, epoch=B)):
        mx.fit(model, blocks(x, y, B), mx.misso(lipschitz=10.0), mx.Noise(schedule), params=model.start(np.zeros(D), 0.3),
               n_iter=40, batch_size=1, progress=False)  # fmt: skip
        programs.append(batch_chunk.programs())
    assert programs[0] == programs[1] == programs[2]
