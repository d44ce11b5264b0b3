"""What goes into a bridged fit (tables, numbers of any kind, settings of a fit) and what comes out of it, by site."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro import handlers
from numpyro.contrib.module import eqx_module
from numpyro.distributions import constraints
from numpyro.infer.reparam import LocScaleReparam
from scipy import stats

import margaux as mx
from margaux.engine.callbacks import AbstractCallback
from numpyro_examples import SCHOOLS, centred, gamma_poisson, radon

#: whose values may be any array
param: Any = numpyro.param
sample: Any = numpyro.sample
Y = np.array([1.0, 2.0, 6.0, 0.5])
COUNTS = np.array([0, 3, 1, 7, 2])


def intercepts(y, n=None, sd=1.0, labels=None):
    mu = param("mu", 0.0)
    with numpyro.plate("units", len(y) if n is None else n):
        z = sample("z", dist.Normal(mu, 1.0))
        sample("y", dist.Normal(z, sd), obs=y)


def rates(counts):
    """Its posterior is Gamma(shape + count, rate + 1)."""
    shape = param("shape", 2.0, constraint=constraints.positive)
    rate = param("rate", 1.0, constraint=constraints.positive)
    with numpyro.plate("hospitals", len(counts)):
        mean = sample("mean", dist.Gamma(shape, rate))
        numpyro.deterministic("double", 2 * mean)
        sample("deaths", dist.Poisson(mean), obs=counts)


def ran(model, *args, estep=None, n_iter=2, **settings):
    """A short run, whose estimate does not matter."""
    return mx.fit_numpyro(model, *args, estep=estep or mx.ImportanceSampling(64), algorithm=mx.soul(step=0.01), n_iter=n_iter,
                          edges=False, progress=False, **settings)  # fmt: skip


def test_series_are_arrays():
    data = mx.from_numpyro(intercepts, pd.Series(Y, index=[9, 8, 7, 6])).data
    assert isinstance(data["y"], np.ndarray)
    np.testing.assert_array_equal(data["y"], Y)


@pytest.mark.parametrize("number", [np.int64(4), np.asarray(4), jnp.asarray(4)])
def test_a_number_of_units_of_numpy(number):
    assert [*mx.from_numpyro(intercepts, Y, number).data] == ["y"]


@pytest.mark.parametrize("number", [np.float64(0.5), np.asarray(0.5), jnp.asarray(0.5)])
def test_arrays_without_an_axis_are_numbers(number):
    bridged = mx.from_numpyro(intercepts, Y, sd=number)
    found = bridged.model.pointwise(bridged.params, {"z": 0.0}, {"y": jnp.asarray(1.0)})
    np.testing.assert_allclose(found, dist.Normal(0.0, 0.5).log_prob(1.0), rtol=1e-6)


def test_tables_and_names_are_refused():
    with pytest.raises(ValueError, match=r"is a DataFrame.*frame\[\"y\"\]\.to_numpy\(\)"):
        mx.from_numpyro(intercepts, pd.DataFrame({"y": Y}))
    with pytest.raises(ValueError, match='"labels" is an array of <U1; pass numbers, such as codes'):
        mx.from_numpyro(intercepts, Y, labels=np.array(["a", "b", "a", "b"]))
    with pytest.raises(ValueError, match="arguments that are NumPy arrays"):
        mx.from_numpyro(intercepts, [*Y])


def test_settings_of_fit_go_to_fit():
    with pytest.raises(ValueError, match="float32 or float64"):
        ran(intercepts, Y, dtype="int8")
    with pytest.raises(ValueError, match="unexpected keyword argument 'iterations'"):
        ran(intercepts, Y, iterations=3)

    def model(y, dtype):
        intercepts(y, sd=dtype)

    # The model's own names stay its own.
    assert float(ran(model, Y, dtype=0.5).params["mu"]) > 0


def test_reparametrised_models_reach_the_same_maximum():
    """The marginal is N(mu, 2) however z is written."""
    model = handlers.reparam(intercepts, config={"z": LocScaleReparam(0)})
    bridged = mx.from_numpyro(model, Y)
    assert [site.name for site in bridged.model.program.latents] == ["z_decentered"]
    fit = mx.fit(bridged.model, bridged.data, mx.soul(step=1.0, average=mx.LastIterate()), mx.Quadrature(5),
                 params=bridged.params, n_iter=60, progress=False)  # fmt: skip
    assert abs(fit.params["mu"] - Y.mean()) < 1e-6


def test_arviz_has_sites_on_their_own_scale():
    fit = ran(rates, COUNTS, unit_plate="hospitals")
    tree = fit.to_arviz(n_draws=2000, posterior_predictive=True)
    assert tree.posterior["mean"].dims == ("chain", "draw", "hospitals")
    shape, rate = fit.params["shape"] + COUNTS, fit.params["rate"] + 1
    mean, sd = shape / rate, np.sqrt(shape) / rate
    found = tree.posterior["mean"].to_numpy()[0]
    assert np.all(np.abs(found.mean(axis=0) - mean) < 4 * sd / np.sqrt(2000))
    np.testing.assert_allclose(tree.posterior["double"].to_numpy()[0], 2 * found, rtol=1e-6)
    np.testing.assert_array_equal(tree.observed_data["deaths"], COUNTS)
    assert "constant_data" not in tree
    density = dist.Poisson(found).log_prob(COUNTS)
    np.testing.assert_allclose(tree.log_likelihood["deaths"].to_numpy()[0], density, rtol=1e-4, atol=1e-5)
    new = tree.posterior_predictive["deaths"].to_numpy()[0]
    assert np.all(np.abs(new.mean(axis=0) - mean) < 4 * np.sqrt(mean + sd**2) / np.sqrt(2000))
    assert tree.sample_stats["importance_ess"].dims == ("hospitals",)
    # Fits without chains have draws by site too.
    by_site = fit.problem.model.posterior(fit, n_draws=2000)  # type: ignore
    assert by_site["mean"].shape == (2000, 1, 5)
    np.testing.assert_array_equal(np.sort(by_site["mean"][:, 0], axis=0), np.sort(found, axis=0))


@pytest.mark.slow
def test_arviz_of_shared_sites_padding_and_several_outcomes():
    def model(y, counts, mask, age):
        mu = param("mu", 0.0)
        slope = sample("slope", dist.Normal())
        with numpyro.plate("clinics", len(y), dim=-2):
            level = sample("level", dist.Normal(mu + slope * age[:, None], 1.0))
            with numpyro.plate("visits", y.shape[1], dim=-1), handlers.mask(mask=mask):
                sample("pain", dist.Normal(level, 1.0), obs=y)
            with numpyro.plate("years", 2, dim=-1):
                sample("stays", dist.Poisson(jnp.exp(level)), obs=counts)

    rng = np.random.default_rng(0)
    y, counts, age = rng.normal(size=(4, 3)), rng.poisson(1.0, (4, 2)), rng.normal(size=4)
    mask = np.ones((4, 3), bool)
    mask[1, 1:] = False
    chains = mx.MCMC(mx.Blocked(), n_chains=2)
    fit = ran(model, y, counts, mask, age, unit_plate="clinics", estep=chains, batch_size=None)
    tree = fit.to_arviz(n_draws=10, posterior_predictive=True)
    sizes = {name: tuple(tree.posterior[name].sizes.values()) for name in tree.posterior.data_vars}
    assert sizes == {"slope": (2, 10), "level": (2, 10, 4, 1)}
    np.testing.assert_array_equal(tree.observed_data["pain"], y[mask])
    np.testing.assert_array_equal(tree.observed_data["stays"], counts)
    np.testing.assert_array_equal(tree.observed_data["clinics_of_pain_observation"], np.nonzero(mask)[0])
    level = tree.posterior["level"].to_numpy()
    pain = dist.Normal(np.broadcast_to(level, (2, 10, 4, 3))[..., mask], 1.0).log_prob(y[mask])
    np.testing.assert_allclose(tree.log_likelihood["pain"], pain, rtol=1e-4, atol=1e-5)
    assert tree.posterior_predictive["pain"].shape == (2, 10, 10)
    assert tree.constant_data["age"].dims == ("clinics",)


@pytest.mark.slow
def test_a_factor_says_no_observations():
    def model(y):
        mu = param("mu", 0.0)
        with numpyro.plate("units", len(y)):
            z = sample("z", dist.Normal(mu, 1.0))
            numpyro.factor("likelihood", -((y - z) ** 2) / 2)

    fit = ran(model, Y)
    tree = fit.to_arviz(n_draws=5)
    assert "log_likelihood" not in tree
    np.testing.assert_array_equal(tree.constant_data["y"], Y)
    with pytest.raises(TypeError, match=r"numpyro\.factor alone.*obs="):
        fit.to_arviz(n_draws=5, posterior_predictive=True)


@pytest.mark.slow
def test_draws_on_the_edge_are_of_the_posterior():
    """At tau = 0 every school is at mu; chains that came from elsewhere would stay where they were."""
    y, sigma = SCHOOLS
    start = {"mu": np.average(y, weights=sigma**-2.0), "tau": 0.02}
    fit = mx.fit_numpyro(centred, y, sigma, unit_plate="schools", params=start, n_iter=3, progress=False,
                         algorithm=mx.soul(step=1e-9))  # fmt: skip
    assert "boundary" in fit.message
    found = fit.problem.model.posterior(fit, n_draws=50)  # type: ignore
    latent = next(iter(found.values()))
    np.testing.assert_allclose(latent, fit.params["mu"], atol=1e-5)
    with pytest.raises(ValueError, match="no chains are left of this fit"):
        fit.draws()


def test_equinox_modules_and_fits_saved(tmp_path):
    """A network held in a class of its own: its density, its names, and the way to a file and back."""
    net = eqx.nn.MLP(1, 1, 3, 1, activation=jnp.tanh, key=jax.random.key(0))
    module: Any = eqx_module  # typed as what `param` returns
    x = np.linspace(-1, 1, 4)[:, None]

    def model(y, x):
        mean = jax.vmap(module("net", net))(x)[:, 0]
        with numpyro.plate("units", len(y)):
            z = sample("z", dist.Normal(mean, 1.0))
            sample("y", dist.Normal(z, 1.0), obs=y)

    bridged = mx.from_numpyro(model, Y, x)
    fit = mx.fit(
        bridged.model,
        bridged.data,
        mx.soul(step=1e-9),
        mx.Quadrature(9),
        params=bridged.params,
        n_iter=2,
        polish=False,
        progress=False,
    )
    assert {"net$params.layers.0.weight[2,0]", "net$params.layers.1.bias[0]"} <= set(fit.names) and len(fit.names) == 10
    mean = np.asarray(jax.vmap(net)(jnp.asarray(x)))[:, 0]
    exact = stats.norm.logpdf(Y, mean, np.sqrt(2)).sum()
    assert float(fit.loglik("quadrature")) == pytest.approx(exact, abs=1e-4)
    fit.save(tmp_path / "fit.npz")
    again = mx.load(tmp_path / "fit.npz", bridged.model, bridged.data, params=bridged.params)
    assert again.names == fit.names and float(again.loglik("quadrature")) == float(fit.loglik("quadrature"))
    bare = mx.load(tmp_path / "fit.npz")
    assert bare.params["net$params"]["layers"][1]["bias"] == fit.params["net$params"].layers[1].bias
    assert bare.names == fit.names  # in this order: it is that of the trace
    with pytest.raises(ValueError, match="shapes"):
        mx.load(tmp_path / "fit.npz", params={"net": np.zeros(3)})


@pytest.mark.slow
@pytest.mark.parametrize(("make", "plate"), [(gamma_poisson, "units"), (radon, "counties")])
def test_a_bridged_fit_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path, make, plate):
    class Stop(AbstractCallback):
        def __call__(self, progress):
            return True

        def close(self):
            pass

    path, example = tmp_path / "fit.npz", make()
    settings = {"unit_plate": plate, "n_iter": 400, "progress": False, "edges": False}
    whole = mx.fit_numpyro(example.model, *example.args, **settings)
    part = mx.fit_numpyro(example.model, *example.args, checkpoint=mx.Checkpoint(path, seconds=0), stop=Stop(), **settings)
    assert part.n_iter < 400
    rest = mx.fit_numpyro(example.model, *example.args, checkpoint=path, **settings)
    assert rest.n_iter == 400 and rest.params == whole.params
