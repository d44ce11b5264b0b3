"""The library's programs lower for CUDA, on any machine: no step of theirs is of a CPU alone."""

import jax
import numpy as np
import pytest

import margaux as mx
from helpers import random_intercept
from margaux.answers import posterior, proposing
from margaux.engine import chunks, loop, minibatch
from margaux.families.pln import fitting
from margaux.families.pln.counts import Counts
from margaux.families.pln.fitting import Design, Sweeps
from margaux.families.pln.start import by_log_counts
from margaux.families.variational.layers import AbstractStacked, Convolution, Dense, GroupNorm
from margaux.families.variational.likelihoods import Categorical
from margaux.families.variational.model import Variational, blocks
from margaux.families.variational.networks import as_network
from margaux.families.variational.posterior import GaussianPosterior
from margaux.families.variational.priors import Normal

PROBLEM = random_intercept(20, 3)


def lowered(program, *args, **static):
    """The text of a program for CUDA, given the arguments of one call."""
    import equinox as eqx

    arrays, rest = eqx.partition((args, static), eqx.is_array)

    def whole(arrays):
        args, static = eqx.combine(arrays, rest)
        return eqx.filter(program.__wrapped__(*args, **static), eqx.is_array)

    with jax.enable_x64(True):
        return jax.jit(whole).trace(arrays).lower(lowering_platforms=("cuda",)).as_text()


def seen(module, name, call, patched=None):
    """The arguments of the first call of a program."""
    calls, program = [], getattr(module, name)

    def spy(*args, **static):
        if not calls:
            kept = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, (args, static))
            calls.append(kept)
        return program(*args, **static)

    spy.ahead = lambda *args: None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patched or module, name, spy)
        call()
    return program, *calls[0]


def fitted(polish=False, **settings):
    return mx.fit(PROBLEM.model, PROBLEM.data, mx.soul(), mx.MCMC(), params=PROBLEM.start, space=PROBLEM.space, n_iter=20,
                  polish=polish, progress=False, **settings)  # fmt: skip


@pytest.mark.parametrize(
    ("where", "name", "settings"), [(chunks, "full_chunk", {}), (minibatch, "batch_chunk", {"batch_size": 5})]
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_chunk_of_a_fit(where, name, settings, dtype):
    program, args, static = seen(loop, name, lambda: fitted(dtype=dtype, **settings), where)
    text = lowered(program, *args, **static)
    assert "stablehlo.while" in text and "f64" in text if dtype == "float64" else "f32" in text


def test_proposals_and_blocks_of_units():
    for module, name in ((proposing, "_proposals"), (posterior, "_block")):
        program, args, static = seen(module, name, lambda: fitted().loglik())
        assert "stablehlo" in lowered(program, *args, **static)


def test_a_sweep_of_pln():
    y = np.random.default_rng(0).poisson(2.0, (30, 8)).astype(float)
    design = Design(Counts(y), np.ones((30, 1)), np.zeros((30, 1)))

    def swept(block):
        with jax.enable_x64(True):
            sweeps = Sweeps(design, np.dtype(float), block=block)
            sweeps.on(sweeps.begin(*by_log_counts(design, 2)), 3)

    for name, block in (("_whole", 1 << 22), ("visit", 80), ("_judged", 80)):
        program, args, static = seen(fitting, name, lambda block=block: swept(block))
        assert "dot_general" in lowered(program, *args, **static)


class Small(AbstractStacked):
    """The layers of a residual network, each once."""

    convolution: Convolution
    norm: GroupNorm
    dense: Dense

    def __init__(self):
        keys = jax.random.split(jax.random.key(0))
        self.convolution, self.norm = Convolution(3, 4, 3, 2, 1, use_bias=False, key=keys[0]), GroupNorm(2, 4)
        self.dense = Dense(4, 4, key=keys[1])

    def __call__(self, x):
        x = jax.nn.relu(self.norm(self.convolution(jax.numpy.moveaxis(x, 2, 0))))
        return self.dense(x.mean(axis=(1, 2)))


def test_a_visit_of_a_block_of_images(monkeypatch):
    n, rng = 8, np.random.default_rng(0)
    network, weights = as_network(Small())
    model = Variational(network, Categorical(), Normal(1.0), GaussianPosterior("all"), n, 2)
    data = blocks(rng.integers(0, 256, (n, 8, 8, 3)).astype(np.uint8), rng.integers(0, 4, n), 2)

    def trained():
        mx.fit(model, data, mx.misso(lipschitz=1e3), mx.Noise(1), params=model.start(weights, 0.05), n_iter=4, batch_size=1,
               dtype="float32", polish=False, progress=False)  # fmt: skip

    program, args, static = seen(loop, "batch_chunk", trained, minibatch)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # where convolutions are the library's
    assert "stablehlo.convolution" in lowered(program, *args, **static)


@pytest.mark.gpu
def test_the_same_fit_on_the_accelerator():
    """In single precision a fit is that of the CPU to the rounding of its sums."""
    there = fitted(dtype="float32").trace["params"]
    with jax.default_device(jax.devices("cpu")[0]):
        here = fitted(dtype="float32").trace["params"]
    np.testing.assert_allclose(there, here, rtol=2e-3)
