"""Units that pad a full batch change no result, and let data of a similar size share their programs."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from helpers import GammaPoisson, RandomIntercept, gamma_poisson, random_intercept, simulate_intercepts
from margaux.algorithms.base import Algorithm
from margaux.algorithms.memory import Table
from margaux.engine import chunks, loop
from margaux.esteps.base import AbstractEStep, Present
from margaux.numerics.arrays import reshaped, resized, taken
from margaux.numerics.ladder import padded, rung, rung_below

N = 11
PROBLEM = random_intercept(N, 3)
CHAINS = mx.MCMC(mx.MALA(0.5), n_steps=2)
FITS = {
    "soul": (mx.soul(mx.Polynomial(1.0, 0.8)), CHAINS),
    "soul scaled": (mx.soul(), mx.MCMC(n_chains=2)),
    "saem": (mx.saem(), CHAINS),
    "incremental": (mx.incremental_em(), CHAINS),
    "saga": (mx.saga(0.2), CHAINS),
    "svrg": (mx.svrg(0.2), CHAINS),
    "misso": (mx.misso(lipschitz=5.0), CHAINS),
    "particles": (mx.ipla(0.01), mx.MCMC(mx.ULA(0.05), n_chains=3)),
    "quadrature": (mx.soul(), mx.Quadrature(7)),
    "importance": (mx.isgd(0.1), mx.ImportanceSampling(16)),
    "growing": (mx.isgd(0.1), mx.ImportanceSampling(mx.Growth(64, 0.5))),
    "restarted": (mx.saem(), mx.MCMC(mx.RandomWalk(1.0), n_steps=3, thin=3, warm_start=False)),
}


#: those whose programs are another's with another update
AKIN = ("soul", "incremental", "saga", "svrg", "growing")


def run(algorithm, estep, **kw):
    return mx.fit(PROBLEM.model, PROBLEM.data, algorithm, estep, params=PROBLEM.start, space=PROBLEM.space, n_iter=30,
                  polish=False, progress=False, **kw)  # fmt: skip


def seeing(seen, inputs, carry, **static):
    seen.append(inputs)
    return loop.full_chunk(inputs, carry, **static)


def as_they_are(patch):
    patch.setattr(chunks, "rung", lambda size: size)
    patch.setattr("margaux.engine.passes.rung", lambda size: size)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in AKIN else []) for name in FITS])
@pytest.mark.parametrize("runs", [pytest.param(None, marks=pytest.mark.slow), 2])
def test_padding_changes_nothing(name, runs, monkeypatch):
    algorithm, estep = FITS[name]
    seen = []
    original = chunks.full_chunk
    monkeypatch.setattr(chunks, "full_chunk", lambda inputs, carry, **kw: seen.append(inputs) or original(inputs, carry, **kw))
    with_others = run(algorithm, estep, runs=runs)
    assert {leaf.shape[0] for inputs in seen for leaf in jax.tree.leaves(inputs[2])} == {rung(N)}
    as_they_are(monkeypatch)
    alone = run(algorithm, estep, runs=runs)
    assert seen[-1][2]["y"].shape[0] == N
    assert with_others.trace.keys() == alone.trace.keys()
    for figure in alone.trace:
        np.testing.assert_allclose(with_others.trace[figure], alone.trace[figure], rtol=1e-9, atol=1e-11, err_msg=figure)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9), with_others.rows, alone.rows)
    assert all(leaf.shape[1] == N for leaf in jax.tree.leaves(with_others.rows))


def test_padding_changes_nothing_by_exact_draws_and_by_fixed_noise(monkeypatch):
    problem = gamma_poisson(13, 5)

    class Bound(mx.AbstractModel):
        def log_joint(self, params, z, y):
            return -jnp.sum((y - params["m"] - jnp.exp(params["s"]) * z) ** 2) + params["s"]

        def init_latents(self, key, params, y):
            return jnp.zeros(())

    y = np.random.default_rng(0).normal(size=(13, 2))

    def both():
        exact = mx.fit(GammaPoisson(), problem.data, mx.saem(), mx.Exact(3), params=problem.start, space=problem.space, n_iter=20,
                       polish=False, progress=False)  # fmt: skip
        bound = mx.fit(Bound(), y, mx.soul(0.05), mx.Noise(2), params={"m": 0.0, "s": 0.0}, n_iter=20, progress=False)
        return exact, bound

    padded_fits = both()
    as_they_are(monkeypatch)
    for one, other in zip(padded_fits, both(), strict=True):
        assert one.trace.keys() == other.trace.keys()
        for figure in other.trace:
            np.testing.assert_allclose(one.trace[figure], other.trace[figure], rtol=1e-9, atol=1e-11)


def test_similar_data_share_every_program():
    def whole(n):
        problem = random_intercept(n, 3)
        _, units = simulate_intercepts(n, 4)
        fit = mx.fit(RandomIntercept(), units, mx.saem(), mx.MCMC(n_chains=2), params=problem.start, space=problem.space,
                     n_iter=200, progress=False)  # fmt: skip
        return fit.summary(), fit.loglik(), fit.certificate

    whole(57)
    compiled = []

    def listen(event, duration_secs, **about):
        if event.endswith("backend_compile_duration"):
            compiled.append(about.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    whole(62)
    assert compiled == []


def test_parts_that_do_not_say_so_are_not_padded():
    class Own(AbstractEStep):
        def requires(self, model, latents):
            return None

        def init(self, key, model, params, y):
            return ()

        def noise(self, key, latents):
            return jax.random.normal(key)

        def expect(self, f, noise, model, params, rows, batch, k):
            # It knows its whole batch.
            mean = jnp.mean(batch["y"])
            return f((mean + noise)[None], jnp.ones((1, len(noise)))), rows, {}

    class Counting(Table):
        """A memory that counts the visits of every unit of its batch."""

    class Stepping(Algorithm):
        pass

    parts: dict[str, Any] = dict(vars(mx.incremental_em()))
    fits = [
        (mx.soul(0.05), Own()),
        (Stepping(**parts), CHAINS),
        (mx.Algorithm(**(parts | dict[str, Any](memory=Counting()))), CHAINS),
    ]
    for algorithm, estep in fits:
        seen = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chunks, "full_chunk", functools.partial(seeing, seen))
            run(algorithm, estep)
        assert seen[0][2]["y"].shape[0] == N


def test_units_that_are_not_present_have_no_weight(double):
    present = Present(mx.Quadrature(5), jnp.asarray([1.0, 0.0, 1.0]))
    problem = random_intercept(3, 0)
    rows = jax.vmap(lambda y: present.init(jax.random.key(0), problem.model, problem.start, y))(problem.data)
    w, _, info = present.expect(lambda z, w: w, (), problem.model, problem.start, rows, problem.data, 1)
    np.testing.assert_allclose(np.sum(w, axis=0), [1, 0, 1], atol=1e-12)
    assert info["log_marginal"][1] == 0 and np.all(info["log_marginal"][::2] != 0)
    assert not present.averages_objective and Present(mx.Noise(), jnp.ones(1)).averages_objective


def test_the_ladder():
    rungs = sorted({rung(size) for size in range(70_000)})
    assert rungs[:14] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20]
    for size in (*range(3000), 4095, 4096, 4097, 65_535, 65_536, 65_537, 10**6):
        up, down = rung(size), rung_below(size)
        assert down <= size <= up <= max(1.25 * size, size) and rung(up) == up == rung_below(up) and rung(down) == down
    assert rung(int(np.int64(9))) == 10


@pytest.mark.parametrize("kind", ["numpy", "jax", "key"])
@pytest.mark.parametrize("axis", [0, 1])
def test_sizes_are_changed_by_repeating_or_cutting(kind, axis):
    values = np.arange(6).reshape(2, 3)
    leaf = {"numpy": values, "jax": jnp.asarray(values), "key": jax.random.split(jax.random.key(0), (2, 3))}[kind]
    read = jax.random.key_data if kind == "key" else np.asarray
    for size in (1, values.shape[axis], 5):
        ids = np.minimum(np.arange(size), values.shape[axis] - 1)
        out = resized(leaf, size, axis)
        np.testing.assert_array_equal(read(out), np.take(np.asarray(read(leaf)), ids, axis))
        assert isinstance(out, type(leaf)) or kind != "numpy"
    np.testing.assert_array_equal(read(taken(leaf, np.array([0, 0]))), np.asarray(read(leaf))[[0, 0]])
    np.testing.assert_array_equal(read(reshaped(leaf, (6,))), np.asarray(read(leaf)).reshape(6, *read(leaf).shape[2:]))
    if kind == "numpy":
        np.testing.assert_array_equal(padded({"a": leaf}, 4)["a"], leaf[[0, 1, 1, 1]])
