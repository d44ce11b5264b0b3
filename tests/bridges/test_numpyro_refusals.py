"""What the NumPyro bridge refuses: the reason and the way out, read from the message."""

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints

import margaux as mx

#: whose values may be any array
param: Any = numpyro.param
sample: Any = numpyro.sample
Y = np.array([1.0, 2.0, 6.0, 0.5])


def refused(model, *args, says, **settings):
    with pytest.raises(ValueError) as caught:
        mx.from_numpyro(model, *args, **settings)
    for part in says:
        assert re.search(part, str(caught.value)), f"{part!r} is not in: {caught.value}"


def intercepts(y, prior=None, within=None, **plate):
    """y_i ~ N(z_i, 1), z_i ~ N(mu, 1), with a piece replaced."""
    mu = param("mu", 0.5)
    with numpyro.plate("units", len(y), **plate):
        z = sample("z", dist.Normal(mu, 1.0) if prior is None else prior(mu))
        sample("y", dist.Normal(z, 1.0), obs=y) if within is None else within(mu, z)


def test_no_param_site():
    def model(y):
        with numpyro.plate("units", len(y)):
            z = sample("z", dist.Normal())
            sample("y", dist.Normal(z, 1.0), obs=y)

    refused(model, Y, says=["no param site", r"numpyro\.param\(", "MCMC"])


def test_no_latent_site():
    def model(y):
        sample("y", dist.Normal(param("mu", 0.0), 1.0).expand([len(y)]), obs=y)

    refused(model, Y, says=["no latent sample site", "scipy.optimize"])


def test_nothing_observed():
    def model(y):
        intercepts(Y, within=lambda mu, z: sample("y", dist.Normal(z, 1.0), obs=y))

    refused(model, None, says=["observes nothing", r"\['z', 'y'\]", "None"])


def test_discrete_latent():
    refused(intercepts, Y, lambda mu: dist.Bernoulli(logits=mu), says=['"z" is discrete', "Bernoulli", "MixtureSameFamily"])


def test_observations_of_counts_left_out():
    def model(y):
        intercepts(Y, within=lambda mu, z: sample("y", dist.Poisson(jnp.exp(z)), obs=y))

    refused(model, None, says=['"y" is discrete', "got None"])


@pytest.mark.parametrize("shared", [False, True])
def test_improper_latent(shared):
    def model(y):
        mu = param("mu", 0.5)
        level = sample("level", dist.ImproperUniform(constraints.real, (), ())) if shared else mu
        with numpyro.plate("units", len(y)):
            z = sample("z", dist.Normal(level, 1.0) if shared else dist.ImproperUniform(constraints.real, (), ()))
            sample("y", dist.Normal(z, 1.0), obs=y)

    name = "level" if shared else "z"
    refused(model, Y, says=[f'"{name}" is ImproperUniform', "no integral", rf'numpyro\.param\("{name}"', "proper prior"])


@pytest.mark.parametrize("counts", [False, True])
def test_observations_by_obs_mask(counts):
    def model(y, seen):
        outcome = (lambda z: dist.Poisson(jnp.exp(z))) if counts else (lambda z: dist.Normal(z, 1.0))
        intercepts(y, within=lambda mu, z: sample("y", outcome(z), obs=y, obs_mask=seen))

    refused(model, np.round(Y), Y > 0.6, says=['site "y" has obs_mask=', r"handlers\.mask", "jax.numpy.where"])


def test_an_error_without_a_word():
    class Silent(dist.Normal):
        def sample(self, key=None, sample_shape=()):
            raise NotImplementedError

    refused(intercepts, Y, lambda mu: Silent(mu, 1.0), says=["the model fails on its arguments", "NotImplementedError"])


def test_subsampling_plate():
    def model(y):
        mu = param("mu", 0.0)
        with numpyro.plate("units", len(y), subsample_size=2) as ids:
            z = sample("z", dist.Normal(mu, 1.0))
            sample("y", dist.Normal(z, 1.0), obs=y[ids])

    refused(model, Y, says=['plate "units" takes 2 of 4', "batch_size=2"])


def test_latent_support_that_moves():
    prior = lambda mu: dist.Uniform(0.0, jnp.exp(mu))  # noqa: E731
    refused(intercepts, Y, prior, says=['support of latent site "z"', "moves with the parameters", r"theta \* numpyro\.sample"])


def test_observed_support_that_moves():
    within = lambda mu, z: sample("y", dist.Uniform(-10.0, 10.0 + mu + 0 * z), obs=Y)  # noqa: E731
    refused(intercepts, Y, None, within, says=['support of observed site "y"', "fixed support", "profile"])


def test_supports_that_do_not_move():
    prior = lambda mu: dist.TruncatedNormal(mu, 1.0, low=jnp.array(-3.0))  # noqa: E731
    assert mx.from_numpyro(intercepts, Y, prior).params["mu"] == 0.5


def test_control_flow_by_a_latent():
    def within(mu, z):
        if z.sum() > 0:
            sample("y", dist.Normal(z, 1.0), obs=Y)

    refused(intercepts, Y, None, within, says=["control flow is random", r"jax\.numpy\.where"])


def test_control_flow_by_a_parameter():
    def within(mu, z):
        scale = 1.0 if mu > 0 else 2.0
        sample("y", dist.Normal(z, scale), obs=Y)

    refused(intercepts, Y, None, within, says=["control flow is random", "value of a parameter"])


@pytest.mark.parametrize("choose", ["sites", "distributions"])
def test_control_flow_by_chance(choose):
    turns = iter(range(100))

    def within(mu, z):
        odd = next(turns) % 2
        kind = dist.StudentT(3.0, z, 1.0) if odd and choose == "distributions" else dist.Normal(z, 1.0)
        sample(f"y{odd}" if choose == "sites" else "y", kind, obs=Y)

    refused(intercepts, Y, None, within, says=["control flow is random", "y" if choose == "distributions" else "y0"])


def test_control_flow_of_numpyro():
    def model(y):
        mu = param("mu", 0.0)
        scan(lambda z, y: (sample("z", dist.Normal(mu + z, 1.0)), sample("y", dist.Normal(), obs=y)), 0.0, y)

    refused(model, Y, says=["scan or cond", "innovations"])


def test_unknown_unit_plate():
    refused(intercepts, Y, unit_plate="schools", says=['no plate "schools"', "'units'", "unit_plate=None"])


def test_size_that_does_not_follow_the_data():
    def model(y):
        mu = param("mu", 0.0)
        with numpyro.plate("units", 4):
            z = sample("z", dist.Normal(mu, 1.0))
            sample("y", dist.Normal(z, 1.0), obs=y)

    refused(model, Y, says=["4 units whatever the data", r'numpyro\.plate\("units", len\(y\)\)'])


def test_data_of_another_length():
    def model(y):
        mu = param("mu", 0.0)
        with numpyro.plate("units", 2):
            z = sample("z", dist.Normal(mu, 1.0))
            sample("y", dist.Normal(z.sum(), 1.0).expand([4]), obs=y)

    refused(model, Y, says=["fails on its arguments", r"y \(4,\)", "plate.s length"])


def test_unit_args_of_another_length():
    refused(intercepts, Y, unit_args="x", says=['"x", which is no argument', "'y'"])
    refused(lambda y, x: intercepts(y), Y, Y[:3], unit_args=("y", "x"), says=[r'"x", which has shape \(3,\)', "4 units"])


def test_data_of_a_closure():
    within = lambda mu, z: sample("y", dist.Normal(z, 1.0), obs=Y)  # noqa: E731
    refused(intercepts, np.zeros(4), None, within, says=['site "y" has 4 entries for one unit', "closure"])


def test_lookup_in_a_closure():
    def model(y):
        mu = param("mu", 0.0)
        with numpyro.plate("units", len(y)) as ids:
            z = sample("z", dist.Normal(mu, 1.0))
            sample("y", dist.Normal(z + jnp.asarray(Y)[ids], 1.0), obs=y)

    refused(model, Y, says=["not independent", "closure"])


def test_mean_over_the_data():
    def model(y):
        intercepts(y, within=lambda mu, z: sample("y", dist.Normal(z, 1.0), obs=y - y.mean()))

    refused(model, Y, says=["not independent", "pass them as arguments"])


def test_factor_outside_the_plate():
    def model(y):
        intercepts(y)
        numpyro.factor("penalty", -1.0)

    refused(model, Y, says=['numpyro.factor "penalty" is outside', "penalty="])


def test_observations_outside_the_plate():
    def model(y, group):
        mu = param("mu", 0.0)
        with numpyro.plate("units", 2):
            z = sample("z", dist.Normal(mu, 1.0))
        with numpyro.plate("rows", len(y)):
            sample("y", dist.Normal(z[group], 1.0), obs=y)

    group = np.array([0, 0, 1, 1])
    refused(model, Y, group, says=['"y" is outside the unit plate', "pad_ragged", "unit_plate=None"])
    # The way out that the message names.
    data = mx.from_numpyro(model, Y, group, unit_plate=None).data
    assert {name: leaf.shape for name, leaf in data.items()} == {"y": (1, 4), "group": (1, 4)}


def test_masked_latent():
    prior = lambda mu: dist.Normal(mu, 1.0).mask(np.array([True, True, False, True]))  # noqa: E731
    refused(intercepts, Y, prior, says=['latent site "z" is under a mask', "observed sites alone"])


def test_constraint_without_a_projection():
    def model(y):
        param("cuts", jnp.array([0.0, 1.0]), constraint=constraints.ordered_vector)
        intercepts(y)

    refused(model, Y, says=['"cuts" has the constraint OrderedVector', "biject_to"])


def test_parameter_of_each_unit():
    within = lambda mu, z: sample("y", dist.Normal(z + param("b", jnp.zeros(4)), 1.0), obs=Y)  # noqa: E731
    refused(intercepts, Y, None, within, says=["4 entries for one unit", "no unit a param of its own"])


def test_params_of_another_name():
    with pytest.raises(ValueError, match='params gives "tau", which is no param site'):
        mx.fit_numpyro(intercepts, Y, params={"tau": 1.0})


def test_bad_blocks():
    with pytest.raises(ValueError, match="units is ULA, which never rejects"):
        mx.Blocked(units=mx.ULA())
    with pytest.raises(TypeError, match="shared must be a margaux kernel"):
        mx.Blocked(shared=0.1)  # type: ignore[arg-type]
    bridged = mx.from_numpyro(intercepts, Y)
    with pytest.raises(TypeError, match="Blocked needs log_shared and log_unit"):
        mx.fit(bridged.model, bridged.data, mx.soul(), mx.MCMC(mx.Blocked()), params=bridged.params, n_iter=5)
