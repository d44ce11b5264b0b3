"""Unadjusted kernels: the order of their bias, their own step sizes, non-smooth and subsampled targets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from scipy import integrate

import margaux as mx
from margaux.kernels.coupling import Halves, halved
from margaux.problem.target import Target

CHAINS = 4000


def second_moment(kernel, target, n_steps, seed=0):
    """E[z^2] of a one-dimensional target over many chains, the first fifth of each dropped."""

    def chain(key):
        start = jax.random.normal(key)

        def body(carry, t):
            z, state = carry
            noise = kernel.noise(jax.random.fold_in(key, t), z)
            z, state, _ = kernel.step(noise, z, state, target, kernel.step_size(1))
            return (z, state), z**2

        state = kernel.refresh(start, kernel.init(start), target)
        return jax.lax.scan(body, (start, state), jnp.arange(n_steps))[1][n_steps // 5 :].mean()

    with jax.enable_x64(True):
        values = np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(seed), CHAINS)))
    return values.mean(), values.std(ddof=1) / np.sqrt(CHAINS)


def peaked(z):
    """Not Gaussian, with curvature between 1/2 and 5/2."""
    return -(z**2) / 4 - 2 * (jnp.logaddexp(z, -z) - jnp.log(2.0))


def peaked_density(z):
    return np.exp(-(z**2) / 4) / np.cosh(z) ** 2


PEAKED = integrate.quad(lambda z: z**2 * peaked_density(z), -20, 20)[0] / integrate.quad(peaked_density, -20, 20)[0]


class Laplace(mx.problem.AbstractNonSmooth):
    """Density exp(-2|z| - z^2 / 4): a smooth part and one with a prox."""

    def log_joint(self, params, z, y):
        return -2 * jnp.abs(z) - z**2 / 4

    def log_smooth(self, params, z, y):
        return -(z**2) / 4

    def prox(self, params, z, step, y):
        return jnp.sign(z) * jnp.maximum(jnp.abs(z) - 2 * step, 0)

    def init_latents(self, key, params, y):
        return jnp.zeros(())


def laplace_density(z):
    return np.exp(-2 * abs(z) - z**2 / 4)


LAPLACE = integrate.quad(lambda z: z**2 * laplace_density(z), 0, 20)[0] / integrate.quad(laplace_density, 0, 20)[0]

#: kernel at a step, steps, time to run in units of the step, target, exact second moment, order of the bias
BIASED = {
    "ula": (mx.ULA, [0.05, 0.1, 0.2], 100, peaked, PEAKED, 1),
    "underdamped": (lambda h: mx.Underdamped(h, friction=1.0), [0.3, 0.45, 0.6], 300, peaked, PEAKED, 2),
    "uhmc": (lambda h: mx.UnadjustedHMC(h, n_leapfrog=3), [0.2, 0.3, 0.4], 200, peaked, PEAKED, 2),
    "myula": (lambda h: mx.MYULA(h, smoothing=2 * h), [0.02, 0.04, 0.08], 100, Target(Laplace(), None, None), LAPLACE, 1),
    "proximal": (mx.ProximalULA, [0.02, 0.04, 0.08], 100, Target(Laplace(), None, None), LAPLACE, 1),
}


@pytest.mark.parametrize(
    "name",
    [
        "ula",
        "uhmc",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("underdamped", "myula", "proximal")),
    ],
)
def test_bias_falls_at_its_theoretical_order(name):
    make, steps, time, target, exact, order = BIASED[name]
    found = [second_moment(make(h), target, int(time / h)) for h in steps]
    bias = np.array([mean - exact for mean, _ in found])
    errors = np.array([error for _, error in found])
    assert np.all(np.abs(bias) > 5 * errors)
    design = np.column_stack([np.ones(len(steps)), np.log(steps)])
    weights = np.abs(bias) / errors
    slope = np.linalg.lstsq(design * weights[:, None], np.log(np.abs(bias)) * weights, rcond=None)[0][1]
    assert abs(slope - order) < 0.35


@pytest.mark.parametrize("h", [0.3, 1.0, 1.7])
def test_leimkuhler_and_matthews_are_exact_for_a_gaussian_at_every_stable_step(h):
    """ULA's variance is 1 / (1 - h / 2) there: 1.18, 2 and 6.7."""
    found, error = second_moment(mx.LeimkuhlerMatthews(h), lambda z: -(z**2) / 2, 400)
    assert abs(found - 1) < 4 * error and error < 0.01


def test_leimkuhler_and_matthews_have_a_small_part_of_the_bias_of_ula():
    """Of a target that is not Gaussian, at a step of .3, where both are stable: 0 within .001 beside .25 of .53."""
    (small, _), (large, error) = (second_moment(kernel(0.3), peaked, 600) for kernel in (mx.LeimkuhlerMatthews, mx.ULA))
    assert abs(large - PEAKED) > 20 * error and abs(small - PEAKED) < 0.1 * abs(large - PEAKED)


class Ridge(mx.problem.AbstractFactorised):
    """Linear regression with unit noise and a N(0, tau2) prior: every posterior is Gaussian and known."""

    def log_prior(self, params, z):
        return jnp.sum(norm.logpdf(z, 0.0, jnp.sqrt(params["tau2"])))

    def log_likelihood(self, params, z, rows):
        return jnp.sum(norm.logpdf(rows["y"], rows["x"] @ z, 1.0))

    def init_latents(self, key, params, y):
        return jnp.zeros(y["x"].shape[1], y["x"].dtype)


@pytest.fixture(scope="module")
def ridge():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 5)) * np.array([0.2, 0.4, 0.6, 1.0, 2.0])
    y = x @ rng.normal(size=5) + rng.normal(size=400)
    precision = x.T @ x + np.eye(5) / 0.8
    covariance = np.linalg.inv(precision)
    return mx.one_unit({"x": x, "y": y}), precision, covariance @ x.T @ y, covariance


def fit_at(data, kernel, n_steps=4, **settings):
    """Chains at a fixed parameter: a fit whose theta does not move."""
    return mx.fit(Ridge(), data, mx.soul(1e-12, mx.LastIterate()), mx.MCMC(kernel, n_steps=n_steps, warm_up=2000, **settings),
                  params={"tau2": 0.8}, n_iter=200, polish=False, progress=False)  # fmt: skip


@pytest.mark.parametrize(
    "make", [mx.ULA, mx.Underdamped, mx.UnadjustedHMC, lambda: mx.SGLD(100)], ids=["ula", "ud", "uhmc", "sgld"]
)
def test_default_steps_come_from_the_curvature(ridge, make):
    data, precision, mean, covariance = ridge
    fit = fit_at(data, make())
    state = fit.rows["kernel"]
    found = float(np.squeeze((state["scaling"] if "scaling" in state else state)["curvature"]))
    assert found == pytest.approx(np.linalg.eigvalsh(precision)[-1], rel=0.01)
    z = fit.draws(10_000, thin=4)[:, 0, 0]
    # 40,000 steps of a tenth of the stiff scale are about 70 independent draws of the slow one: an SD of 8%.
    assert np.abs((z.mean(axis=0) - mean) / np.sqrt(np.diag(covariance))).max() < 0.5
    assert np.abs(z.std(axis=0) / np.sqrt(np.diag(covariance)) - 1).max() < 0.3


@pytest.mark.parametrize("kind", ["diagonal", "dense"])
def test_preconditioners_learn_the_posterior_covariance(ridge, kind):
    data, _, _, covariance = ridge
    state = fit_at(data, mx.ULA(preconditioner=kind), n_steps=20).rows["kernel"]
    root = np.squeeze(state["root"])
    found = root @ root.T if kind == "dense" else np.diag(root**2)
    sd = np.sqrt(np.diag(covariance))
    expected = covariance / np.outer(sd, sd) if kind == "dense" else np.eye(5)
    assert np.abs(found / np.outer(sd, sd) - expected).max() < 0.35
    assert float(np.squeeze(state["curvature"])) < 2.5  # of the whitened target; it was above 1,600 before


def test_control_variates_cut_the_noise_of_sgld(ridge):
    data, _, _, covariance = ridge
    sd = np.sqrt(np.diag(covariance))
    plain, controlled = (
        fit_at(data, mx.SGLD(10, step_size=5e-5, control_variate=cv)).draws(20_000, thin=2)[:, 0, 0].std(axis=0) / sd - 1
        for cv in (False, True)
    )
    # Subsampling noise inflates the posterior; anchored differences hardly do.
    assert plain[-1] > 0.3
    assert abs(controlled[-1]) < 0.15


def test_mala_under_moving_parameters_has_no_stale_cache(ridge):
    """A step at new parameters from a chain run at old ones equals that of a chain made afresh there."""
    data, _, _, _ = ridge
    unit = jax.tree.map(lambda leaf: jnp.asarray(leaf[0], jnp.float32), data)
    targets = [Target(Ridge(), {"tau2": jnp.float32(t)}, unit) for t in (0.8, 0.1)]
    for kernel in (mx.MALA(0.001), mx.BlackJAX("mala", 0.001, target_acceptance=None), mx.BlackJAX("nuts", 0.05),
                   mx.BlackJAX("hmc", 0.05, num_integration_steps=3), mx.BlackJAX("barker", 0.01)):  # fmt: skip
        z = jnp.full(5, 0.3, jnp.float32)
        noises = [kernel.noise(jax.random.key(i), z) for i in (1, 2)]
        scale = kernel.step_size(1)
        z, state, _ = kernel.step(noises[0], z, kernel.refresh(z, kernel.init(z), targets[0]), targets[0], scale)
        moved = kernel.step(noises[1], z, kernel.refresh(z, state, targets[1]), targets[1], scale)
        afresh = kernel.step(noises[1], z, kernel.refresh(z, kernel.init(z), targets[1]), targets[1], scale)
        np.testing.assert_array_equal(moved[0], afresh[0])
        assert moved[2] == afresh[2]


def test_halves_share_a_brownian_path():
    """As the step vanishes the whole step and its two halves agree to the order of the scheme."""
    gaps = []
    for h in (1e-2, 1e-4):
        coarse, fine, _ = halved(mx.ULA(h))
        assert isinstance(coarse, Halves)
        z = jnp.asarray(0.7)
        noise = coarse.noise(jax.random.key(0), z)
        ends = [kernel.step(noise, z, kernel.init(z), peaked, jnp.asarray(h))[0] for kernel in (coarse, fine)]
        gaps.append(abs(float(ends[0] - ends[1])))
    assert gaps[0] > 0 and gaps[1] < gaps[0] / 100
    with pytest.raises(ValueError, match="exact"):
        halved(mx.MALA(0.1))


@pytest.mark.parametrize(
    ("kernel", "missing"), [(mx.MYULA(), "log_smooth and prox"), (mx.SGLD(10), "log_likelihood and log_prior")]
)
def test_kernels_say_what_the_model_lacks(kernel, missing):
    class Plain(mx.AbstractModel):
        def log_joint(self, params, z, y):
            return -(z**2) * params["a"]

        def init_latents(self, key, params, y):
            return jnp.zeros(())

    with pytest.raises(TypeError, match=missing):
        mx.fit(Plain(), np.zeros(3), mx.soul(), mx.MCMC(kernel), params={"a": 1.0}, n_iter=3, polish=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: mx.ULA(preconditioner="full"),
        lambda: mx.ULA(preconditioner=[1.0, -1.0]),
        lambda: mx.Underdamped(friction=0.0),
        lambda: mx.UnadjustedHMC(n_leapfrog=0),
        lambda: mx.MYULA(smoothing=-1.0),
        lambda: mx.SGLD(0),
        lambda: mx.SGLD(10, step_size=-1.0),
    ],
)
def test_bad_kernel_settings(make):
    with pytest.raises(ValueError, match="must be|positive"):
        make()
