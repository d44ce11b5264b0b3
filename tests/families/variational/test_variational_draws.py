"""Gradient estimators: the means of all agree, the variances do not, and a biased one is caught."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import margaux as mx
from margaux.datasets import load_mnist
from margaux.families.variational.architectures import LeNet5
from margaux.families.variational.draws import AbstractByLayer, Flipout, LocalReparameterisation, PerObservation, Shared, channels
from margaux.families.variational.layers import Convolution, max_pool
from margaux.families.variational.likelihoods import Categorical
from margaux.families.variational.model import Variational
from margaux.families.variational.networks import as_network
from margaux.families.variational.posterior import GaussianPosterior
from margaux.families.variational.priors import Normal

SIGMA = 0.2


class Small(eqx.Module):
    """A convolution and a dense layer, on images of 8 x 8 pixels."""

    convolution: Convolution
    dense: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.convolution = Convolution(1, 4, kernel=3, key=first)
        self.dense = eqx.nn.Linear(36, 3, key=second)

    def __call__(self, x):
        return self.dense(jnp.ravel(max_pool(jax.nn.relu(self.convolution(jnp.moveaxis(x, 2, 0))))))


class LocalEverywhere(AbstractByLayer):
    """Outputs of convolutions drawn independently at each place, as if they shared no weights: biased, the negative control."""

    def rows(self, layer, b, dtype):
        shape = (28, 28) if channels(layer)[0] == 1 and channels(layer)[1] == 6 else (10, 10)
        shape = shape if isinstance(layer, Convolution) else ()
        return jnp.zeros((b, channels(layer)[1], *shape), dtype)

    def layer(self, mean, sigma, z, row):
        def outputs(x):
            squared = eqx.tree_at(
                lambda layer: (layer.weight, layer.bias), mean, (0 * mean.weight + SIGMA**2, 0 * mean.bias + SIGMA**2)
            )
            out, variance = mean(x), squared(x**2)
            return out + jnp.sqrt(variance) * row[tuple(slice(size) for size in out.shape)]

        return outputs


def scores(network, x, y, draws, n_draws, seed=1):
    """Scores in the means (n_draws, p) and log-likelihoods (n_draws,) of one block."""
    made, weights = as_network(network)
    model = Variational(made, Categorical(), Normal(1.0), GaussianPosterior("all"), len(y), 1, draws)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), model.start(weights, SIGMA))
    unit = {"x": jnp.asarray(x), "y": jnp.asarray(y), "weight": jnp.ones(len(y))}
    struct = model.init_latents(jax.random.key(0), params, unit)

    def single(key):
        z = jax.tree.map(lambda leaf: leaf[0], mx.Noise(1).noise(key, struct))
        value, score = jax.value_and_grad(lambda mean: model.log_likelihood(params | {"mean": mean}, z, unit))(params["mean"])
        return ravel_pytree(score)[0], value

    found = jax.jit(lambda keys: jax.lax.map(single, keys))(jax.random.split(jax.random.key(seed), n_draws))
    return tuple(np.asarray(part, float) for part in found)


def largest_gap(one, other):
    """The largest difference in standard errors, of log-likelihoods and of scores along ten fixed directions."""
    rng = np.random.default_rng(0)
    along = np.column_stack([rng.normal(size=(one[0].shape[1], 9)), one[0].mean(axis=0)])
    a, b = (np.column_stack([score @ along, value]) for score, value in (one, other))
    error = np.sqrt(a.var(axis=0, ddof=1) / len(a) + b.var(axis=0, ddof=1) / len(b))
    return np.max(np.abs(a.mean(axis=0) - b.mean(axis=0)) / error)


def spread(found):
    return found[0].var(axis=0, ddof=1).sum()


def check(network, x, y, n_draws, of_observations, ratio):
    wanted = scores(network, x, y, PerObservation(), of_observations, seed=2)
    found = {type(d).__name__: scores(network, x, y, d, n_draws) for d in (Shared(), Flipout(), LocalReparameterisation())}
    print({name: spread(value) for name, value in found.items()} | {"PerObservation": spread(wanted)})
    for name, value in found.items():
        assert largest_gap(wanted, value) < 4, name
    assert spread(found["Shared"]) / spread(found["Flipout"]) >= ratio
    assert largest_gap(wanted, scores(network, x, y, LocalEverywhere(), n_draws)) > 4


@pytest.mark.slow
def test_estimators_of_the_score():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(40, 8, 8, 1)).astype(np.float32)
    check(Small(jax.random.key(0)), x, rng.integers(3, size=40), 400, 400, 3)


@pytest.mark.slow
def test_estimators_of_the_score_of_lenet5(data_folder):
    x, y = load_mnist("train", folder=data_folder / "mnist")
    check(LeNet5(key=jax.random.key(0)), x[:128], y[:128], 200, 60, 10)
