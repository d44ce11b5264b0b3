"""Plug-and-play Langevin steps: posteriors and estimates that are known exactly, and what is refused."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from margaux.answers import bias
from margaux.families.inverse.denoisers import GaussianDenoiser, MixtureDenoiser
from margaux.families.inverse.model import FunctionOperator, LinearLikelihood
from margaux.problem.target import Target


class Noisy(mx.AbstractLikelihood):
    """y = A z + noise of variance exp(log_sigma2)."""

    A: np.ndarray

    def log_joint(self, params, z, y):
        residual = y["y"] - jnp.asarray(self.A, z.dtype) @ z
        s = params["log_sigma2"]
        return -jnp.sum(residual**2) / (2 * jnp.exp(s)) - residual.size / 2 * (jnp.log(2 * jnp.pi) + s)

    def init_latents(self, key, params, y):
        return jnp.zeros(self.A.shape[1], y["y"].dtype)


def chains(kernel, model, params, y, n_steps, count, seed=0, step=1):
    """First and second moments of many chains after a fifth of each: (count, d) and (count, d, d)."""

    def chain(key):
        target = Target(model, params, {"y": jnp.asarray(y)})
        z = model.init_latents(key, params, target.y)

        def body(carry, t):
            z, state = carry
            z, state, _ = kernel.step(kernel.noise(jax.random.fold_in(key, t), z), z, state, target, kernel.step_size(step))
            return (z, state), (z, jnp.outer(z, z))

        state = kernel.refresh(z, kernel.init(z), target)
        found = jax.lax.scan(body, (z, state), jnp.arange(n_steps))[1]
        return jax.tree.map(lambda leaf: leaf[n_steps // 5 :].mean(axis=0), found)

    with jax.enable_x64(True):
        found = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(seed), count))
        return [np.asarray(leaf) for leaf in found]


def conjugate(seed, eps, weight, sigma2):
    """A Gaussian problem, and the posterior's mean and precision with the prior smoothed by eps and raised to a power."""
    rng = np.random.default_rng(seed)
    A, mean = rng.normal(size=(4, 3)), rng.normal(size=3)
    root = rng.normal(size=(3, 3)) / 2
    V = root @ root.T + 0.2 * np.eye(3)
    y = A @ rng.normal(size=3) + rng.normal(size=4)
    prior = weight * np.linalg.inv(V + eps * np.eye(3))
    precision = A.T @ A / sigma2 + prior
    return A, y, mean, V, precision, np.linalg.solve(precision, A.T @ y / sigma2 + prior @ mean)


@pytest.mark.parametrize("averaged", [True, False])
@pytest.mark.parametrize(("seed", "eps", "weight"), [(0, 0.3, 1.0), (1, 0.05, 2.0), (2, 1.0, 0.5)])
def test_the_posterior_of_a_gaussian_prior(seed, eps, weight, averaged):
    """Its mean whatever the step; its covariance H^-1, or (H - delta H^2 / 2)^-1 by the paper's noise: the law of the chain."""
    A, y, mean, V, H, exact = conjugate(seed, eps, weight, 0.7)
    step = 0.5 / np.linalg.eigvalsh(H)[-1]
    kernel = mx.PlugAndPlayULA(GaussianDenoiser(mean, V, eps), eps, weight=weight, step_size=step, averaged=averaged)
    first, second = chains(kernel, Noisy(A), {"log_sigma2": np.log(0.7)}, y, 2000, 300, seed)
    error = first.std(axis=0, ddof=1) / np.sqrt(len(first))
    assert np.all(np.abs(first.mean(axis=0) - exact) < 4.5 * error)
    law = np.linalg.inv(H if averaged else H - step / 2 * H @ H)
    crossed = np.einsum("ci,j->cij", first, exact)
    gap = second - crossed - crossed.transpose(0, 2, 1) + np.outer(exact, exact) - law
    scale = gap.std(axis=0, ddof=1) / np.sqrt(len(gap))
    assert np.all(np.abs(gap.mean(axis=0)) < 4.5 * scale) and np.all(scale < 0.05 * np.abs(np.diag(law)).max())
    if not averaged:  # what the step does is seen: a third of the variance of the stiffest direction
        stiff = np.linalg.eigh(H)[1][:, -1]
        seen = np.einsum("i,cij,j->c", stiff, gap + law, stiff) * (stiff @ H @ stiff)
        assert seen.mean() - 5 * seen.std(ddof=1) / np.sqrt(len(seen)) > 1.2


def test_smoothing_of_the_prior_is_what_eps_does():
    """The posterior's variance for the prior N(0, V) itself is smaller by a known part, of the order of eps."""
    A, y, mean, V, H, _ = conjugate(3, 0.3, 1.0, 0.7)
    own = np.linalg.inv(A.T @ A / 0.7 + np.linalg.inv(V))
    smoothed = np.linalg.inv(H)
    for eps in (0.3, 0.003):
        nearer = np.linalg.inv(A.T @ A / 0.7 + np.linalg.inv(V + eps * np.eye(3)))
        assert np.trace(nearer) >= np.trace(own)
    assert np.trace(nearer - own) < 0.03 * np.trace(smoothed - own)


def test_the_posterior_of_a_mixture():
    """Two modes in two dimensions, beside the exact mixture; the bias of the step, .008 of a variance, is below the bound."""
    eps, sigma2, shares = 0.1, 0.5, np.array([0.3, 0.7])
    means, variances = np.array([[-1.0, 0.5], [1.0, 0.0]]), np.array([0.3, 0.2])
    y = np.array([0.1, 0.4])
    noisy = variances + eps
    logs = np.log(shares) - np.sum((y - means) ** 2, axis=1) / (2 * (noisy + sigma2)) - np.log(noisy + sigma2)
    own = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    centres = (means / noisy[:, None] + y / sigma2) / (1 / noisy + 1 / sigma2)[:, None]
    exact = own @ centres
    square = np.einsum("k,ki,kj->ij", own, centres, centres) + own @ (1 / (1 / noisy + 1 / sigma2)) * np.eye(2)
    kernel = mx.PlugAndPlayULA(MixtureDenoiser(shares, means, variances, eps), eps, step_size=0.03)
    first, second = chains(kernel, Noisy(np.eye(2)), {"log_sigma2": np.log(sigma2)}, y, 4000, 300)
    for found, wanted in ((first, exact), (second, square)):
        error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
        assert np.all(np.abs(found.mean(axis=0) - wanted) < 4.5 * error + 0.005) and np.all(error < 0.01)


def test_the_tail_beyond_bounds_is_that_of_the_envelope():
    """log p - d(z, C)^2 / (2 lambda), by quadrature."""
    low, high, smoothing, eps = -0.2, 0.3, 0.2, 0.5
    kernel = mx.PlugAndPlayULA(GaussianDenoiser(0.0, 1.0, eps), eps, bounds=(low, high), smoothing=smoothing, step_size=0.01)
    first, second = chains(kernel, Noisy(np.eye(1)), {"log_sigma2": 0.0}, np.array([2.0]), 8000, 300)
    z = np.linspace(-4, 5, 20_001)
    away = z - np.clip(z, low, high)
    density = np.exp(-((2 - z) ** 2) / 2 - z**2 / (2 * (1 + eps)) - away**2 / (2 * smoothing))
    for found, power in ((first.ravel(), 1), (second.ravel(), 2)):
        exact = np.sum(z**power * density) / density.sum()
        assert abs(found.mean() - exact) < 4.5 * found.std(ddof=1) / np.sqrt(len(found)) + 0.002


def noise_fit(y, eps, seed, averaged=True, **settings):
    kernel = mx.PlugAndPlayULA(GaussianDenoiser(0.0, 1.0, eps), eps, averaged=averaged)
    return mx.fit(Noisy(np.eye(len(y))), mx.one_unit({"y": y}), mx.soul(), mx.MCMC(kernel, n_steps=3, warm_up=200),
                  params={"log_sigma2": 0.5}, n_iter=1500, key=seed, polish=False, progress=False, **settings)  # fmt: skip


def data_of(seed, sigma2=2.0, d=100):
    """y ~ N(0, (1 + .1 + sigma^2) I): sigma^2 is best at mean(y^2) - 1.1, and the error of its logarithm is known too."""
    y = np.random.default_rng(seed).normal(size=d) * np.sqrt(1.1 + sigma2)
    exact = np.mean(y**2) - 1.1
    return y, exact, np.sqrt(2 / d) * np.mean(y**2) / exact


def test_the_noise_level_is_the_maximum_of_the_marginal_likelihood():
    """Over data sets and keys, within the Monte Carlo error of the keys."""
    gaps = []
    for seed in range(4):
        y, exact, _ = data_of(seed)
        gaps.append([noise_fit(y, 0.1, key).params["log_sigma2"] - np.log(exact) for key in range(4)])
    gaps = np.array(gaps, float)
    spread = np.sqrt(gaps.var(axis=1, ddof=1).mean())
    assert np.all(np.abs(gaps.mean(axis=1)) < 4.5 * spread / 2) and spread < 0.15 * data_of(0)[2]


def test_what_a_fit_answers():
    """Standard error, posterior means and variances, and what it refuses."""
    y, exact, se = data_of(0)
    fit = noise_fit(y, 0.1, 0)
    table = fit.summary()
    assert table["se"].iloc[0] == pytest.approx(se, abs=4 * table["se_error"].iloc[0] + 0.01)
    assert [check.level for check in fit.certificate.checks if check.name in ("step", "kernel bias")] == ["pass", "pass"]
    with pytest.raises(TypeError, match="score alone"):
        fit.loglik()
    with pytest.raises(TypeError, match="brings no prior"):
        fit.latents(estep=mx.MCMC(mx.MALA()))
    gain = 1.1 / (1.1 + exact)
    moments = fit.latents(n_draws=4000)
    assert np.mean((moments["mean"][0] - gain * y) ** 2) < 0.02 * gain * exact
    assert np.mean(moments["sd"] ** 2) == pytest.approx(gain * exact, rel=0.05)


def test_what_the_noise_of_the_paper_does_to_the_noise_level_is_told():
    """E|y - z|^2 is larger by what the step adds: the fixed point is known, far from the maximum, and the certificate sees it."""
    eps = 0.1
    y, exact, _ = data_of(0)
    fit = noise_fit(y, eps, 0, averaged=False)
    found = np.exp(fit.params["log_sigma2"])

    def gap(s):  # of sigma^2 = mean (y - m)^2 + v / (1 - delta H / 2), the step being .33 of 1 / H
        gain = (1 + eps) / (1 + eps + s)
        return (1 - gain) ** 2 * np.mean(y**2) + gain * s / (1 - 0.33 / 2) - s

    from scipy import optimize

    assert found == pytest.approx(optimize.brentq(gap, 0.3, 20.0), rel=0.05) and found > 1.1 * exact
    assert "kernel bias" in [check.name for check in fit.certificate.checks if check.level == "careful"]


class Net(eqx.Module):
    weights: np.ndarray

    def __call__(self, z):
        return jnp.asarray(self.weights, z.dtype) @ z


def test_constants_are_measured():
    """A residual that is not symmetric: its norm is a singular value; and the default step follows both."""
    W = np.array([[0.2, 0.9, 0.0], [-0.3, 0.1, 0.4], [0.0, 0.2, 0.5]])
    A, eps = np.random.default_rng(0).normal(size=(4, 3)), 0.2
    kernel, z = mx.PlugAndPlayULA(Net(W), eps, weight=2.0), jnp.zeros(3)
    target = Target(Noisy(A), {"log_sigma2": 0.0}, {"y": jnp.zeros(4)})
    state = kernel.refresh(z, kernel.init(z), target)
    assert float(state["lipschitz"]) == pytest.approx(np.linalg.norm(W - np.eye(3), 2), rel=1e-3)
    assert float(state["scaling"]["curvature"]) == pytest.approx(np.linalg.norm(A, 2) ** 2, rel=1e-3)
    moved = kernel.step(jnp.zeros(3), jnp.ones(3), state, target, kernel.step_size(1))[0]
    total = np.linalg.norm(A, 2) ** 2 + 2 / eps * np.linalg.norm(W - np.eye(3), 2)
    drift = -A.T @ A @ np.ones(3) + 2 / eps * (W @ np.ones(3) - 1)
    np.testing.assert_allclose(moved, 1 + 0.33 / total * drift, rtol=2e-3)


def test_what_the_denoiser_knows_is_taken():
    D = GaussianDenoiser(0.0, 0.4, 0.1)
    for kernel in (mx.PlugAndPlayULA(D), mx.PlugAndPlayULA(D, float(np.float32(0.1)))):
        assert float(kernel.eps) == pytest.approx(0.1, rel=1e-6) and kernel.lipschitz == pytest.approx(0.1 / 0.5)
        assert "lipschitz" not in kernel.init(jnp.zeros(3))
    assert mx.PlugAndPlayULA(D, lipschitz=0.5).lipschitz == 0.5
    assert mx.PlugAndPlayULA(MixtureDenoiser([1.0], [[0.0]], [1.0], 0.1)).lipschitz is None


class Scaled(Noisy):
    """Each unit with an operator of its own size."""

    def log_joint(self, params, z, y):
        return super().log_joint(params, y["g"] * z, {"y": y["y"]})


@pytest.mark.parametrize("place", [0, 11])
def test_the_step_is_held_to_the_steepest_unit(place, monkeypatch):
    """Of twelve units one bears a hundredth of the step that the others do: the noise level settles where it is just stable."""
    rng = np.random.default_rng(0)
    A, g = rng.normal(size=(6, 3)), np.full(12, 0.3)
    g[place] = 3.0
    y = g[:, None] * rng.normal(size=(12, 3)) @ A.T + 0.2 * rng.normal(size=(12, 6))
    kernel = mx.PlugAndPlayULA(GaussianDenoiser(0.0, 1.0, 0.1), step_size=0.02)
    fit = mx.fit(Scaled(A), {"y": y, "g": g}, mx.soul(), mx.MCMC(kernel, n_steps=2, n_chains=2, warm_up=100),
                 params={"log_sigma2": 0.0}, n_iter=1000, progress=False, throw=False)  # fmt: skip
    check = bias.stable_step(fit)
    assert check is not None and check.level == "failed" and f"unit {place}, the steepest of 12" in check.sentence
    steepest = 9 * np.linalg.norm(A, 2) ** 2 / np.exp(fit.params["log_sigma2"])
    assert f"L_y = {steepest:.3g} " in check.sentence
    monkeypatch.setattr(bias, "LOOKED", 5)
    some = bias.stable_step(fit)
    assert some is not None and "of 5 units drawn at random" in some.sentence


def bad(change):
    def fit(kernel=None, model=None):
        return mx.fit(model or Noisy(np.eye(3)), mx.one_unit({"y": np.ones(3)}), mx.soul(), mx.MCMC(kernel),
                      params={"log_sigma2": 0.0}, n_iter=3, progress=False)  # fmt: skip

    return lambda: change(fit)


def halve(z):
    return z / 2


def on_the_host(z) -> Any:
    return np.asarray(z) / 2


WRONG: Any = "tv"


class Whole(mx.AbstractModel):
    def log_joint(self, params, z, y):
        return -jnp.sum((y["y"] - z) ** 2 + z**2) / 2 + params["log_sigma2"]

    def init_latents(self, key, params, y):
        return jnp.zeros(3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: mx.PlugAndPlayULA(halve, 0.0), ValueError, "eps must be a positive number"),
        (lambda: mx.PlugAndPlayULA(halve, np.nan), ValueError, "eps"),
        (lambda: mx.PlugAndPlayULA(halve, WRONG), ValueError, "eps must be a positive number, got 'tv'"),
        (lambda: mx.PlugAndPlayULA(halve), TypeError, "pass eps="),
        (lambda: mx.PlugAndPlayULA(GaussianDenoiser(0.0, 1.0, 0.1), 0.01), ValueError, r"variance 0\.1, eps = 0\.01"),
        (
            lambda: mx.PlugAndPlayULA(MixtureDenoiser([1.0], [[0.0]], [1.0], 0.1), 0.101),
            ValueError,
            r"variance 0\.1, eps = 0\.101",
        ),
        (lambda: mx.PlugAndPlayULA(Net(np.eye(3))), TypeError, "no attribute eps"),
        (lambda: mx.PlugAndPlayULA(halve, 0.1, weight=-1.0), ValueError, "weight"),
        (lambda: mx.PlugAndPlayULA(halve, 0.1, lipschitz=0.0), ValueError, "lipschitz"),
        (lambda: mx.PlugAndPlayULA(halve, 0.1, step_size=-1.0), ValueError, "step_size"),
        (lambda: mx.PlugAndPlayULA(halve, 0.1, bounds=(1.0, 0.0)), ValueError, "bounds"),
        (lambda: mx.PlugAndPlayULA(halve, 0.1, smoothing=1.0), ValueError, "bounds"),
        (lambda: mx.PlugAndPlayULA(WRONG, 0.1), TypeError, "function"),
        (bad(lambda fit: fit(mx.PlugAndPlayULA(lambda z: z[:2], 0.1))), ValueError, r"maps shape \(3,\) to \(2,\)"),
        (bad(lambda fit: fit(mx.PlugAndPlayULA(lambda z: z * jnp.nan, 0.1))), ValueError, "not finite"),
        (bad(lambda fit: fit(mx.PlugAndPlayULA(on_the_host, 0.1))), ValueError, "denoiser fails"),
        # L_y = 1, L = 1/2, eps = 0.1: 2 / 6 is the limit, 1 / 18 the theorem's.
        (
            bad(lambda fit: fit(mx.PlugAndPlayULA(halve, 0.1, step_size=0.4))),
            ValueError,
            r"beyond 0\.333 .* less than 0\.0556.*first unit",
        ),
        (bad(lambda fit: fit(mx.PlugAndPlayULA(halve, 0.1), Whole())), TypeError, "count beside it"),
        (bad(lambda fit: fit(mx.MALA())), TypeError, "brings no prior"),
    ],
)
def test_bad_input_is_told(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_other_esteps_are_refused_for_a_likelihood():
    for estep in (mx.Quadrature(5), mx.ImportanceSampling(10), mx.Laplace()):
        with pytest.raises(TypeError, match="brings no prior"):
            mx.fit(Noisy(np.eye(2)), mx.one_unit({"y": np.ones(2)}), mx.soul(), estep, params={"log_sigma2": 0.0}, n_iter=2)
    with pytest.raises(TypeError, match="leave expanded out"):
        mx.fit(Noisy(np.eye(2)), mx.one_unit({"y": np.ones(2)}), mx.soul(expanded=True),
               mx.MCMC(mx.PlugAndPlayULA(halve, 0.1)), params={"log_sigma2": 0.0}, n_iter=2)  # fmt: skip


def test_a_step_at_the_edge_of_stability_is_told():
    """The step is stable at the start. The noise level would fall to zero, and settles where the chain is just stable instead."""
    y = 0.05 * np.random.default_rng(0).normal(size=50)
    kernel = mx.PlugAndPlayULA(GaussianDenoiser(0.0, 1.0, 0.1), 0.1, step_size=0.5)
    fit = mx.fit(Noisy(np.eye(50)), mx.one_unit({"y": y}), mx.soul(), mx.MCMC(kernel, n_steps=5),
                 params={"log_sigma2": 0.0}, n_iter=1500, progress=False)  # fmt: skip
    assert np.exp(-fit.params["log_sigma2"]) + 1 / 1.1 == pytest.approx(2 / 0.5, rel=0.1)
    assert fit.certificate.word == "failed" and "step_size = 0.5 is too long" in str(fit.certificate)


def test_a_chain_that_diverges_says_so():
    """The denoiser pushes away from the origin, the more the further: nothing is wrong with it at the start."""
    kernel = mx.PlugAndPlayULA(lambda z: z * (1 + z**2), 0.1)
    with pytest.raises(mx.FitError, match="diverged"):
        mx.fit(Noisy(np.eye(3)), mx.one_unit({"y": np.ones(3)}), mx.soul(), mx.MCMC(kernel, n_steps=5),
               params={"log_sigma2": 0.0}, n_iter=500, progress=False)  # fmt: skip


def test_the_linear_likelihood_is_that_of_the_inverse_problem():
    operator = FunctionOperator(forward=lambda x: 2 * x, backward=lambda r: 2 * r, shape=(3,), out=(3,))
    model, y = LinearLikelihood(operator, np.zeros(3), np.asarray(0.5)), {"y": jnp.ones(3)}
    z = jnp.array([0.1, -0.4, 0.7])
    exact = -np.sum((1 - 2 * np.asarray(z)) ** 2) / (2 * 0.25) - 1.5 * np.log(2 * np.pi * 0.25)
    assert float(model.log_joint({}, z, y)) == pytest.approx(exact, rel=1e-5)
    assert float(jnp.sum(model.pointwise({}, z, y))) == pytest.approx(exact, rel=1e-5)
