"""What must not change a result: chunk length, padding, unit order, devices, a kill and a resume; and no recompilation."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import margaux as mx
from helpers import RandomIntercept, random_intercept, simulate_intercepts
from margaux.engine import loop
from margaux.engine.batches import plan_chunk, visits
from margaux.engine.job import Job
from margaux.numerics import compiling

PROBLEM = random_intercept()


def run(algorithm, estep, *, data=None, n_iter=40, **kw):
    return mx.fit(PROBLEM.model, PROBLEM.data if data is None else data, algorithm, estep, params=PROBLEM.start,
                  space=PROBLEM.space, n_iter=n_iter, polish=False, progress=False, **kw)  # fmt: skip


ALGORITHMS = {"saem": lambda: mx.saem(), "soul": lambda: mx.soul(), "incremental": lambda: mx.incremental_em(),
              "saga": lambda: mx.saga(0.2), "svrg": lambda: mx.svrg(0.2)}  # fmt: skip


@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_chunk_length_changes_nothing(algorithm, batch_size, monkeypatch):
    estep = mx.MCMC(mx.MALA(0.5), n_steps=2)
    whole = run(ALGORITHMS[algorithm](), estep, batch_size=batch_size)
    monkeypatch.setattr(Job, "_pace", lambda self, spent: setattr(self, "length", 3))
    pieces = run(ALGORITHMS[algorithm](), estep, batch_size=batch_size)
    np.testing.assert_array_equal(whole.trace["params"], pieces.trace["params"])


@pytest.mark.parametrize("sampling", ["uniform", "reshuffled"])
def test_rows_in_host_memory_or_a_memmap_give_the_same_fit(sampling, tmp_path):
    estep = mx.MCMC(mx.RandomWalk(1.0), n_steps=2)
    device = run(mx.incremental_em(), estep, batch_size=6, sampling=sampling)
    host = run(mx.incremental_em(), estep, batch_size=6, sampling=sampling, rows="host")
    mapped = {}
    for name, leaf in PROBLEM.data.items():
        mapped[name] = np.memmap(tmp_path / name, leaf.dtype, "w+", shape=leaf.shape)
        mapped[name][:] = leaf
    disk = run(mx.incremental_em(), estep, batch_size=6, sampling=sampling, data=mapped)
    np.testing.assert_array_equal(device.trace["params"], host.trace["params"])
    np.testing.assert_array_equal(device.trace["params"], disk.trace["params"])


def test_a_small_buffer_changes_nothing(monkeypatch):
    """Uniform draws repeat units within a chunk: cutting chunks short must give the same numbers."""
    estep = mx.MCMC(mx.RandomWalk(1.0), n_steps=2)
    ample = run(mx.incremental_em(), estep, batch_size=5, sampling="uniform")
    monkeypatch.setattr("margaux.engine.batches.BUFFER_BYTES", 1)
    scarce = run(mx.incremental_em(), estep, batch_size=5, sampling="uniform")
    np.testing.assert_array_equal(ample.trace["params"], scarce.trace["params"])


@given(st.integers(0, 5), st.floats(-5, 5))
@settings(max_examples=4, deadline=None)
def test_padding_changes_nothing(extra, junk):
    padded = {
        "y": np.pad(PROBLEM.data["y"], ((0, 0), (0, extra)), constant_values=junk),
        "mask": np.pad(PROBLEM.data["mask"], ((0, 0), (0, extra))),
    }
    plain = run(mx.saem(), mx.Quadrature(7), n_iter=20)
    wide = run(mx.saem(), mx.Quadrature(7), n_iter=20, data=padded)
    np.testing.assert_allclose(plain.trace["params"], wide.trace["params"], rtol=1e-10)


@given(st.integers(0, 1000))
@settings(max_examples=4, deadline=None)
def test_unit_order_changes_nothing_beyond_addition(seed):
    order = np.random.default_rng(seed).permutation(40)
    shuffled = {name: leaf[order] for name, leaf in PROBLEM.data.items()}
    plain = run(mx.soul(), mx.Quadrature(7), n_iter=20)
    other = run(mx.soul(), mx.Quadrature(7), n_iter=20, data=shuffled)
    np.testing.assert_allclose(plain.trace["params"], other.trace["params"], rtol=1e-9)


@pytest.mark.parametrize("algorithm", ["soul", "saem", pytest.param("incremental", marks=pytest.mark.slow)])
def test_devices_change_nothing_beyond_addition(algorithm):
    estep = mx.MCMC(mx.MALA(0.5), n_steps=2)
    one = run(ALGORITHMS[algorithm](), estep)
    for devices in (2, 4):
        several = run(ALGORITHMS[algorithm](), estep, devices=devices)
        np.testing.assert_allclose(one.trace["params"], several.trace["params"], rtol=1e-9, atol=1e-12)


def test_sharded_program_holds_one_all_reduce_and_no_all_gather():
    captured = {}
    original = loop.full_chunk

    def spy(inputs, carry, **static):
        captured["text"] = original.lower(inputs, carry, **static).compile().compiled.as_text()
        return original(inputs, carry, **static)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("margaux.engine.chunks.full_chunk", spy)
        run(mx.incremental_em(), mx.MCMC(mx.MALA(0.5), n_steps=2), n_iter=5, devices=4)
    lines = captured["text"].splitlines()
    reduces = [line for line in lines if " all-reduce(" in line or " all-reduce-start(" in line]
    assert len(reduces) == 1
    assert not [line for line in lines if "all-gather" in line or "all-to-all" in line or "collective-permute" in line]


def test_numbers_do_not_recompile():
    estep = lambda s: mx.MCMC(mx.ULA(s), n_steps=2)  # noqa: E731
    traces = 0

    class Counting(RandomIntercept):
        def log_joint(self, params, z, unit):
            nonlocal traces
            traces += 1
            return RandomIntercept.log_joint(self, params, z, unit)

    def go(step, size, weight, key, n_iter, start):
        mx.fit(Counting(), PROBLEM.data, mx.soul(mx.Polynomial(step, 0.8)), estep(size), params={"mu": start, "tau2": 0.5},
               space={"tau2": mx.Positive(1e-3)}, penalty=mx.L1(weight), key=key, n_iter=n_iter,
               polish=False, progress=False)  # fmt: skip

    chunk = loop.full_chunk
    compiled = []

    def counting(inputs, carry, **static):
        before = traces
        out = chunk(inputs, carry, **static)
        compiled.append(traces - before)
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("margaux.engine.chunks.full_chunk", counting)
        go(1.0, 0.02, 0.1, 0, 40, 0.0)
        assert compiled[0] > 0
        first = len(compiled)
        go(0.5, 0.01, 0.2, 1, 70, 0.3)
    assert sum(compiled[first:]) == 0


@given(st.integers(1, 30), st.integers(0, 100), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_plan_chunk(n, seed, count):
    rng = np.random.default_rng(seed)
    b = int(rng.integers(1, n + 1))
    ids = np.stack([rng.choice(n, b, replace=False) for _ in range(count)])
    capacity = int(rng.integers(b, n + 1))
    length, slot, owners = plan_chunk(ids, capacity)
    assert 1 <= length <= count
    seen, times = np.unique(ids[:length], return_counts=True)
    assert set(owners[owners >= 0]) == set(seen[times > 1])
    for t in range(length):
        for j in range(b):
            repeated = times[seen == ids[t, j]][0] > 1
            assert (slot[t, j] < capacity) == repeated
            assert not repeated or owners[slot[t, j]] == ids[t, j]


@pytest.mark.parametrize("reshuffled", [True, False])
@pytest.mark.parametrize(("n", "b", "seed"), [(2, 1, 0), (7, 7, 1), (13, 5, 2), (50, 3, 3), (50, 45, 4), (2100, 2090, 5)])
def test_visits_depend_on_iteration_alone(n, b, seed, reshuffled):
    keys = jax.random.split(jax.random.key(seed), 2)
    whole = visits(keys, n, b, 1, 12, 12, reshuffled)
    assert whole.shape == (2, 12, b)
    parts = np.concatenate([visits(keys, n, b, 1, 5, 12, reshuffled), visits(keys, n, b, 6, 7, 12, reshuffled)], axis=1)
    np.testing.assert_array_equal(whole, parts)
    np.testing.assert_array_equal(whole[:1], visits(keys[:1], n, b, 1, 12, 12, reshuffled))
    assert all(np.unique(row).size == b for row in whole.reshape(-1, b))
    assert whole.min() >= 0 and whole.max() < n


def test_uniform_draws_are_uniform():
    ids = visits(jax.random.key(0)[None], 20, 5, 1, 4000, 4000, False)[0]
    counts = np.bincount(ids.ravel(), minlength=20)
    chi2 = np.sum((counts - 1000) ** 2 / (1000 * 0.75))  # without replacement: variance n p (1 - p)
    assert chi2 < 43.8  # 99.9% point of chi-squared with 19 degrees of freedom


@pytest.mark.parametrize("batch_size", [pytest.param(None, marks=pytest.mark.slow), 5])
def test_kill_and_resume_is_bit_exact(tmp_path, batch_size):
    path = tmp_path / "fit.ckpt"
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, sys
        sys.path.insert(0, {str(__file__).rsplit("/", 2)[0]!r})
        import margaux as mx
        from helpers import random_intercept
        from margaux.numerics import compiling
        compiling.CPU_OPTIONS.update({compiling.CPU_OPTIONS!r})  # other options, other roundings
        P = random_intercept()
        class Kill(mx.AbstractCallback):
            def __call__(self, progress):
                if progress.iteration >= 100:
                    os._exit(9)
                return False
            def close(self): pass
        mx.fit(P.model, P.data, mx.incremental_em(), mx.MCMC(mx.MALA(0.5), n_steps=2), params=P.start, space=P.space,
               n_iter=3000, batch_size={batch_size}, checkpoint=mx.Checkpoint({str(path)!r}, seconds=0), stop=Kill(),
               polish=False, progress=False)
    """)
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ended.returncode == 9, ended.stderr
    assert path.exists()
    estep = mx.MCMC(mx.MALA(0.5), n_steps=2)
    resumed = run(mx.incremental_em(), estep, n_iter=3000, batch_size=batch_size, checkpoint=path)
    straight = run(mx.incremental_em(), estep, n_iter=3000, batch_size=batch_size)
    np.testing.assert_array_equal(resumed.trace["params"], straight.trace["params"])
    np.testing.assert_array_equal(resumed.params["mu"], straight.params["mu"])
    with pytest.raises(ValueError, match="belongs to another fit"):
        run(mx.incremental_em(), estep, n_iter=3000, batch_size=batch_size, checkpoint=path, key=5)


def test_float32_and_the_global_flag_stay_apart():
    fit = run(mx.saem(), mx.Quadrature(5), n_iter=5, dtype="float32")
    assert fit.params["mu"].dtype == np.float32
    assert run(mx.saem(), mx.Quadrature(5), n_iter=5).params["mu"].dtype == np.float64
    assert jnp.zeros(1).dtype == jnp.float32


def test_ragged_padding_keeps_every_row():
    groups, units = simulate_intercepts(12, seed=0)
    for i, group in enumerate(groups):
        np.testing.assert_array_equal(units["y"][i][units["mask"][i] == 1], group)
