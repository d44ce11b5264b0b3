"""NumPyro models through the bridge reach the exact maximum likelihood estimate; densities, sites and draws agree."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import constraints
from numpyro.infer.util import log_density
from scipy import stats

import margaux as mx
from margaux.algorithms.memory import RobbinsMonro
from margaux.algorithms.statistics import Score
from margaux.algorithms.updates import Optax
from margaux.bridges.numpyro.normals import by_inverse
from margaux.numerics.compiling import compiled
from margaux.numerics.naming import scalar_names
from margaux.problem.schedule import Constant
from numpyro_examples import (
    SCHOOLS,
    Logistic,
    Radon,
    centred,
    gamma_poisson,
    logistic,
    network_data,
    network_loglik,
    network_maximum,
    network_model,
    network_reading,
    non_centred,
    radon,
    radon_model,
    sharper_schools,
)

#: whose values may be any array
param: Any = numpyro.param
sample: Any = numpyro.sample
RUNS = 8
#: example, its unit plate, iterations
EXAMPLES = {
    "gamma-poisson": (gamma_poisson, "units", 4000),
    "schools": (sharper_schools, "schools", 3000),
    "logistic": (logistic, "units", 2500),
    "radon": (radon, "counties", 2500),
}


def stochastic_approximation(step):
    """The score averaged with a memory of a few iterations, as SAEM averages statistics, and an optimiser.

    The memory is a momentum: with a second one in the optimiser, large steps oscillate.
    """
    optimiser = optax.adam(step, b1=0.0)
    return mx.Algorithm(
        statistic=Score(), memory=RobbinsMonro(Constant(0.3)), update=Optax(optimiser, Constant(1.0)),
        average=mx.PolyakRuppert(0.75), refresh_epochs=None,
    )  # fmt: skip


def chains(name):
    kernel, n_chains = (mx.Blocked(), 8) if name == "radon" else (mx.MALA(), 4)
    return mx.MCMC(kernel, n_steps=4, n_chains=n_chains, warm_up=100)


METHODS = {
    "soul": lambda name, n_iter: (mx.soul(), chains(name)),
    "saem-like": lambda name, n_iter: (stochastic_approximation(optax.cosine_decay_schedule(0.05, n_iter)), chains(name)),
    "aisgd": lambda name, n_iter: (
        mx.aisgd(optax.adam(optax.cosine_decay_schedule(0.05, n_iter)), mx.PolyakRuppert(0.75)),
        mx.ImportanceSampling(64, quasi=True),  # the bias of self-normalised weights goes like 1 / draws
    ),
}


def flat(params):
    """Scalars by name."""
    return dict(zip(scalar_names(params), np.concatenate([np.ravel(p) for p in jax.tree.leaves(params)]), strict=True))


def slow_but(fast):
    pairs = [(e, m) for e in EXAMPLES for m in METHODS]
    return [pytest.param(e, m, marks=() if (e, m) in fast else pytest.mark.slow, id=f"{e}-{m}") for e, m in pairs]


def assert_within_monte_carlo_error(values, truth, se, name):
    """The mean of runs is the maximum to three Monte Carlo errors and a hundredth of a standard error."""
    spread = values.std(ddof=1)
    assert spread < 0.2 * se, f"{name}: SD over runs {spread / se:.3f} standard errors"
    error = abs(values.mean() - truth)
    bound = 3 * spread / np.sqrt(len(values)) + 0.01 * se
    assert error <= bound, f"{name}: {error / se:.4f} standard errors from the maximum, more than {bound / se:.4f}"


@pytest.mark.parametrize(("name", "method"), slow_but([("schools", "soul")]))
def test_exact_maximum(name, method):
    make, plate, n_iter = EXAMPLES[name]
    example = make()
    bridged = mx.from_numpyro(example.model, *example.args, unit_plate=plate)
    algorithm, estep = METHODS[method](name, n_iter)
    fit = mx.fit(bridged.model, bridged.data, algorithm, estep, params=bridged.params, space=bridged.space, n_iter=n_iter,
                 runs=RUNS, spread=0.2, key=7, progress=False)  # fmt: skip
    by_run = [flat(jax.tree.map(lambda leaf, r=r: leaf[r], fit.run_params)) for r in range(RUNS)]
    for scalar, truth in example.mle.items():
        assert_within_monte_carlo_error(np.array([run[scalar] for run in by_run]), truth, example.se[scalar], scalar)


@pytest.mark.slow
@pytest.mark.parametrize("model", [non_centred, centred])
def test_eight_schools_are_on_the_boundary(model):
    y, sigma = SCHOOLS
    fit = mx.fit_numpyro(model, y, sigma, unit_plate="schools", n_iter=1000, progress=False)
    assert "boundary" in fit.message
    assert fit.params["tau"] < 1e-6
    # At tau = 0 the marginal is N(mu, sigma_j^2), whose maximum is the mean weighted by precision.
    assert abs(fit.params["mu"] - np.average(y, weights=sigma**-2)) < 1e-3
    summary = fit.summary()
    assert np.isnan(summary.loc["tau", "se"])


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_network(method):
    y, x = network_data()
    bridged = mx.from_numpyro(network_model, y, x)
    n_iter = 60_000 if method == "saem-like" else 8000
    algorithm, estep = METHODS[method]("network", n_iter)
    if method == "saem-like":
        # Noise across a valley pushes the estimate along it, in proportion to the step; a step that falls fast freezes it there.
        algorithm = stochastic_approximation(optax.exponential_decay(0.02, n_iter, 0.005))
    fit = mx.fit(bridged.model, bridged.data, algorithm, estep, params=bridged.params, space=bridged.space, n_iter=n_iter,
                 runs=4, spread=0.0, key=3, progress=False)  # fmt: skip
    best = network_maximum(y, x, bridged.params)
    with jax.enable_x64(True):
        runs = [jax.tree.map(lambda leaf, r=r: jnp.asarray(leaf[r], float), fit.run_params) for r in range(4)]
        short = np.array([best.loglik - float(network_loglik(y, x, run)) for run in runs])
        readings = np.array([network_reading(run) for run in runs])
        mean = float(network_loglik(y, x, jax.tree.map(jnp.asarray, fit.params)))
    assert abs(float(fit.loglik()) - mean) < 0.05
    # A run in eight of SOUL's stays on a ridge a nat below the maximum: several runs are told apart, or the best has been taken.
    arrived = short < 0.1
    assert arrived.sum() >= 3
    assert arrived.all() or not fit.diagnostics().loc["rhat", "ok"] or best.loglik - mean < 0.1
    for place, values, truth, se in zip(range(10), readings[arrived].T, best.reading, best.se, strict=True):
        assert_within_monte_carlo_error(values, truth, se, f"reading {place}")


def test_density_is_numpyro_s():
    """Jacobians apart, the log joint of all units is NumPyro's own log density."""
    y, x, mask = logistic(12).args
    bridged = mx.from_numpyro(logistic(12).model, y, x, mask)
    params = {"beta": jnp.array([0.3, -0.2]), "tau": 0.7}
    with jax.enable_x64(True):
        a = np.linspace(-1, 1, 12)
        each = jax.jit(jax.vmap(lambda z, unit: bridged.model.log_joint(params, {"a": z[None]}, unit)))
        ours = each(a, bridged.data)
        theirs = jax.jit(lambda z: log_density(logistic(12).model, (y, x, mask), {}, params | {"a": z})[0])(a[:, None])
        by_hand = jax.jit(jax.vmap(lambda z, unit: Logistic().log_joint(params, z, unit)))(a, bridged.data)
        np.testing.assert_allclose(np.sum(ours), theirs, rtol=1e-10)
        np.testing.assert_allclose(ours, by_hand, rtol=1e-6)


def every_kind(y, scale=1.0):
    """Latents of several shapes and supports, shared and by unit, a deterministic site, an array that all units read."""
    mu = param("mu", jnp.zeros(3))
    root = param("root", jnp.eye(2), constraint=constraints.corr_cholesky)
    gain = sample("gain", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("units", y.shape[0], dim=-2):
        share = sample("share", dist.Beta(2.0, 3.0))
        pair = sample("pair", dist.MultivariateNormal(jnp.zeros(2), scale_tril=root))
        with numpyro.plate("parts", 3, dim=-1):
            each = sample("each", dist.Gamma(2.0, 1.0))
            mean = numpyro.deterministic("mean", mu + gain * each + share + pair.sum(-1))
            sample("y", dist.Normal(mean, scale), obs=y)


def test_every_kind_of_site():
    y = np.random.default_rng(0).normal(size=(4, 3))
    bridged = mx.from_numpyro(every_kind, y, scale=0.5)
    model, params = bridged.model, jax.tree.map(jnp.asarray, bridged.params)
    with jax.enable_x64(True):
        unit = {"y": jnp.asarray(y)}
        z = compiled(model.init_latents)(jax.random.key(1), params, unit)
        shapes = jax.tree.map(np.shape, z)
        assert shapes == {"shared": {"gain": ()}, "units": {"share": (4, 1), "pair": (4, 1, 2), "each": (4, 3)}}

        @compiled
        def answers(z):
            values = model.constrained(params, z, unit)
            theirs, _ = log_density(every_kind, (y,), {"scale": 0.5}, params | values)
            # log |dx / du|: exp for the positive sites, logistic for the share.
            share = values["share"]
            jacobian = jnp.log(values["gain"]) + jnp.log(values["each"]).sum() + jnp.log(share * (1 - share)).sum()
            mean = params["mu"] + values["gain"] * values["each"] + share + values["pair"].sum(-1)
            keys = jax.random.split(jax.random.key(0), 4000)
            new = jax.vmap(lambda key: model.simulate(key, params, z, unit)["y"])(keys).mean(axis=0)
            pairs = {
                "density": (model.log_joint(params, z, unit), theirs + jacobian),
                "deterministic": (model.deterministic(params, z, unit)["mean"], mean),
                "pointwise": (model.pointwise(params, z, unit), dist.Normal(mean, 0.5).log_prob(y)),
            }
            return pairs, (new, mean)

        pairs, (new, mean) = answers(z)
        for what, (ours, theirs) in pairs.items():
            np.testing.assert_allclose(ours, theirs, rtol=1e-8, err_msg=what)
        np.testing.assert_allclose(new, mean, atol=5 * 0.5 / np.sqrt(4000))


def test_masked_observations_have_no_density():
    y, x, mask = logistic(12).args
    model, data, params, _ = mx.from_numpyro(logistic(12).model, y, x, mask)
    with jax.enable_x64(True):
        z = {"a": jnp.zeros((12, 1))}
        each = jax.vmap(lambda z, unit: model.pointwise(params, z, unit))(z, jax.tree.map(jnp.asarray, data))
    assert np.array_equal(np.isnan(each), ~mask)


def test_sizes_as_arguments_and_conditioned_arrays():
    """NumPyro's own eight schools: the number of schools is an argument."""

    def model(J, sigma, y=None):
        mu = param("mu", 0.0)
        with numpyro.plate("J", J):
            theta = sample("theta", dist.Normal(mu, 5.0))
            sample("obs", dist.Normal(theta, sigma), obs=y)

    y, sigma = SCHOOLS
    bridged = mx.from_numpyro(model, 8, sigma, y=y, unit_plate="J")
    assert {name: leaf.shape for name, leaf in bridged.data.items()} == {"sigma": (8,), "y": (8,)}
    fit = mx.fit(bridged.model, bridged.data, mx.soul(step=20.0, average=mx.LastIterate()), mx.Quadrature(5),
                 params=bridged.params, n_iter=500, progress=False)  # fmt: skip
    assert abs(fit.params["mu"] - np.average(y, weights=1 / (sigma**2 + 25))) < 1e-6


@pytest.mark.slow
def test_mini_batches():
    example = gamma_poisson()
    fit = mx.fit_numpyro(example.model, *example.args, batch_size=20, n_iter=3000, progress=False, edges=False)
    for name, truth in example.mle.items():
        assert abs(fit.params[name] - truth) < 0.35 * example.se[name]


def test_shared_by_hand_is_the_bridged_one():
    example = radon(8)
    bridged = mx.from_numpyro(radon_model, *example.args, unit_plate="counties")
    params = {"mu": 1.2, "tau": 0.6, "sigma": 0.8}
    with jax.enable_x64(True):
        unit = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), bridged.data)
        levels = jnp.linspace(0, 2, 8)
        z = {"shared": {"slope": jnp.array(0.3)}, "units": {"level": levels[:, None]}}
        ours = jax.jit(bridged.model.log_joint)(params, z, unit)
        by_hand = Radon().log_joint(params, {"shared": jnp.array(0.3), "units": levels}, unit)
        np.testing.assert_allclose(ours, by_hand, rtol=1e-12)


@pytest.mark.slow
def test_blocked_draws_have_the_exact_posterior():
    """Of the linear mixed model at fixed parameters, by the hand-written model."""
    from margaux.answers.draws import draws

    y, x = radon(8).args
    params = {"mu": 1.2, "tau": 0.6, "sigma": 0.8}
    fit = mx.fit(Radon(), mx.one_unit({"y": y, "x": x}), mx.soul(step=1e-9), mx.MCMC(mx.Blocked(), n_chains=4, warm_up=300),
                 params=params, n_iter=5, progress=False, polish=False)  # fmt: skip
    found = draws(fit, 3000, thin=2)
    design = np.column_stack([x.ravel(), np.repeat(np.eye(8), x.shape[1], axis=0)])
    prior = np.diag([1.0, *[0.6**2] * 8])
    precision = np.linalg.inv(prior) + design.T @ design / 0.64
    mean = np.linalg.solve(precision, np.linalg.solve(prior, [0.0, *[1.2] * 8]) + design.T @ y.ravel() / 0.64)
    sd = np.sqrt(np.diagonal(np.linalg.inv(precision)))
    z = np.concatenate([found["shared"][:, :, :, None], found["units"]], axis=-1)[:, :, 0]
    # 12,000 draws, of which a tenth at least are worth independent ones.
    assert np.all(np.abs(z.mean(axis=(0, 1)) - mean) < 4 * sd / np.sqrt(1200))
    np.testing.assert_allclose(z.std(axis=(0, 1)), sd, rtol=4 / np.sqrt(2 * 1200))


@pytest.mark.slow
def test_posterior_by_site():
    example = gamma_poisson()
    fit = mx.fit_numpyro(example.model, *example.args, n_iter=300, progress=False, edges=False)
    model: Any = fit.problem and fit.problem.model
    found = model.posterior(fit, n_draws=2000)["mean"]
    shape, rate = fit.params["shape"] + example.args[0], fit.params["rate"] + 1
    # Gamma given the counts; the mean over units of 4,000 autocorrelated draws each.
    np.testing.assert_allclose(found.mean(axis=(0, 1)).mean(), (shape / rate).mean(), rtol=0.02)


@pytest.mark.parametrize("student", [False, True])
@pytest.mark.parametrize("factors", [(), (1,), (7,)])
def test_multivariate_normals_by_the_inverse_of_their_factor(student, factors):
    rng = np.random.default_rng(0)
    L = np.tril(rng.normal(size=(*factors, 3, 3))) + 3 * np.eye(3)
    x, loc, df = rng.normal(size=(7, 3)), rng.normal(size=3), 4
    fn: Any = dist.MultivariateStudentT(df, loc, L) if student else dist.MultivariateNormal(loc, scale_tril=L)
    covariances = np.broadcast_to(L @ np.swapaxes(L, -1, -2), (7, 3, 3))
    law = (lambda c: stats.multivariate_t(loc, c, df)) if student else (lambda c: stats.multivariate_normal(loc, c))
    wanted = [law(c).logpdf(row) for c, row in zip(covariances, x, strict=True)]
    np.testing.assert_allclose(by_inverse(fn).log_prob(x), wanted, rtol=1e-5)
    masked = by_inverse(dist.MaskedDistribution(fn.expand((7,)), np.arange(7) < 3))
    np.testing.assert_allclose(masked.log_prob(x), np.where(np.arange(7) < 3, wanted, 0.0), rtol=1e-5)


def test_rows_of_one_factor_are_not_solved_for_one_by_one():
    """A triangular solve with a column a unit is a hundred times slower on CPU from some hundred of them, or never returns."""

    def model(y):
        tau = param("tau", np.ones(3), constraint=constraints.positive)
        L = sample("L", dist.LKJCholesky(3, 2.0))
        with numpyro.plate("units", len(y)):
            sample("y", dist.MultivariateNormal(jnp.zeros(3), scale_tril=tau[:, None] * L), obs=y)

    bridged = mx.from_numpyro(model, np.ones((1000, 3)))
    one = jax.tree.map(lambda leaf: leaf[0], bridged.data)
    chains = {"L": jnp.zeros((4, 3))}
    value = jax.vmap(lambda z: bridged.model.log_joint(bridged.params, z, one))
    program = jax.make_jaxpr(jax.grad(lambda z: jnp.sum(value(z))))(chains)
    columns = re.findall(r"f(?:32|64)\[4,3,(\d+)\] = triangular_solve", str(program))
    assert columns
    assert {*columns} == {"3"}
