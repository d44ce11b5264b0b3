"""The host's loop by parts: pace, traces, pauses, failures, endings and the figures of an outcome."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from helpers import random_intercept
from margaux.engine.callbacks import AbstractCallback
from margaux.engine.job import Job, run_alone
from margaux.engine.loop import Carry
from margaux.engine.outcome import RESULTS
from margaux.engine.settings import FitSettings
from margaux.engine.traces import joined, record
from margaux.problem.space import as_space

PROBLEM = random_intercept()


def asked(**given):
    known = {"params": PROBLEM.start, "n_iter": 50, "dtype": np.dtype(float), "space": PROBLEM.space}
    return FitSettings(**(known | given))


def job(algorithm=None, estep=None, data=None, **given):
    return Job(
        PROBLEM.model, PROBLEM.data if data is None else data, algorithm or mx.soul(), estep or mx.Quadrature(5), asked(**given)
    )


# -- between chunks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("spent", "compiled", "length", "after"), [
    (0.2, False, 32, 32), (9.0, False, 32, 32), (0.249, True, 32, 128), (0.25, True, 32, 32), (1.0, True, 32, 32),
    (1.01, True, 32, 16), (1.01, True, 1, 1), (0.1, True, 200, 512),
])  # fmt: skip
def test_chunks_take_about_half_a_second(spent, compiled, length, after):
    stub = SimpleNamespace(compiled=compiled, length=length, chunks=SimpleNamespace(total=512))
    Job._pace(stub, spent)
    assert stub.length == after and stub.compiled


def test_traces_of_chunks_are_joined_the_shorter_with_the_next():
    parts, at, counts = [], 0, []
    for length in (4, 2, 1, 1, 8, 3):
        record(parts, {"a": np.arange(at, at + length), "b": -np.arange(at, at + length)})
        at += length
        counts.append([len(part["a"]) for part in parts])
    assert counts == [[4], [4, 2], [4, 2, 1], [8], [16], [16, 3]]
    np.testing.assert_array_equal(joined(parts)["a"], np.arange(19))
    np.testing.assert_array_equal(joined(parts)["b"], -np.arange(19))


@pytest.mark.parametrize(("k", "period", "pauses", "left"), [
    (0, None, [], 50), (0, 7, [], 7), (7, 7, [], 7), (9, 7, [], 5), (9, None, [10], 1), (9, 7, [4, 20], 3), (10, None, [10], 10),
])  # fmt: skip
def test_a_chunk_ends_where_a_refresh_or_a_hook_is_due(k, period, pauses, left):
    stub = SimpleNamespace(k=k, pauses=pauses, n_iter=50, _period=lambda: period)
    assert Job._until_pause(stub) == left


def test_a_refresh_is_due_every_so_many_epochs():
    stub = SimpleNamespace(algorithm=SimpleNamespace(refresh_epochs=3), chunks=SimpleNamespace(period=8))
    assert Job._period(stub) == 24
    stub.algorithm.refresh_epochs = None
    assert Job._period(stub) is None


@pytest.mark.parametrize(("k", "period", "refreshed"), [(8, 4, True), (9, 4, False), (50, 10, False), (8, None, False)])
def test_a_refresh_visits_every_unit_for_each_run(k, period, refreshed):
    carry = Carry({"a": jnp.arange(2.0)}, {"s": jnp.arange(2.0) + 10}, (), ())
    kept, visited = [], []

    def visit(params, store, k):
        visited.append(([float(p["a"]) for p in params], store, k))
        return "fresh", [100.0, 200.0]

    stub = SimpleNamespace(
        k=k, n_iter=50, _period=lambda: period, _passes=lambda: SimpleNamespace(visit=visit),
        chunks=SimpleNamespace(carry=carry, store="store", keep=kept.append),
        algorithm=SimpleNamespace(refreshed=lambda s, t: {"s": s["s"] + t}),
    )  # fmt: skip
    Job.refresh(stub)
    assert visited == ([([0.0, 1.0], "store", k)] if refreshed else []) and kept == (["fresh"] if refreshed else [])
    np.testing.assert_array_equal(stub.chunks.carry.state["s"], [110.0, 211.0] if refreshed else [10.0, 11.0])


# -- failures ---------------------------------------------------------------------------------------


def trace(length=250, **figures):
    known = {"params": np.zeros((length, 2, 3)), "acceptance": np.full((length, 2), 0.5), "ess": np.full((length, 2), 9.0),
             "log_marginal": np.zeros((length, 2))}  # fmt: skip
    return known | {
        name: np.broadcast_to(value, known.get(name, np.zeros((length, 1, 1))).shape) for name, value in figures.items()
    }


@pytest.mark.parametrize(("k", "figures", "failure"), [
    (500, {}, None),
    (1, {"params": [0, np.nan, 0]}, RESULTS.diverged), (1, {"params": [np.inf, 0, 0]}, RESULTS.diverged),
    (1, {"log_marginal": [0, np.nan]}, RESULTS.undefined), (1, {"log_marginal": [0, -np.inf]}, None),
    (1, {"log_marginal": [0, np.nan], "params": [0, np.nan, 0]}, RESULTS.undefined),
    (200, {"acceptance": [0.5, 9e-4]}, RESULTS.stuck), (199, {"acceptance": [0.5, 9e-4]}, None),
    (200, {"acceptance": [0.5, 1e-3]}, None),
    (20, {"ess": [9.0, 1.04]}, RESULTS.ess_collapse), (19, {"ess": [9.0, 1.04]}, None), (20, {"ess": [9.0, 1.05]}, None),
])  # fmt: skip
def test_failures_are_seen_in_the_trace(k, figures, failure):
    assert Job._failure(SimpleNamespace(k=k), trace(**figures)) is failure


def test_only_the_last_two_hundred_iterations_tell_that_chains_are_stuck():
    early = trace(acceptance=np.where(np.arange(250) < 50, 0.0, 0.5)[:, None])
    late = trace(acceptance=np.where(np.arange(250) < 50, 0.5, 0.0)[:, None])
    assert Job._failure(SimpleNamespace(k=250), early) is None and Job._failure(SimpleNamespace(k=250), late) is RESULTS.stuck


def test_of_very_many_parameters_the_norm_is_looked_at():
    for value, failure in ((1.0, None), (np.nan, RESULTS.diverged)):
        assert Job._failure(SimpleNamespace(k=5), {"norm": np.full((3, 1, 1), value)}) is failure


# -- the loop ---------------------------------------------------------------------------------------


class Rule(AbstractCallback):
    def __init__(self, at=10**9, period=None):
        self.at, self.period, self.seen = at, period, []

    def __call__(self, progress):
        self.seen.append((progress.iteration, progress.ends, len(progress.latest["params"]), len(progress.trace["params"])))
        return progress.iteration >= self.at

    def close(self):
        pass


def running(n_iter=10, failure=None, interrupt=None, traces=()):
    """A job whose chunks are of three iterations, each a value of the parameter."""
    stub = object.__new__(Job)
    stub.k, stub.n_iter, stub.length, stub.traces, stub.names = 0, n_iter, 3, list(traces), ["a"]
    stub.timings, stub.compiled, stub.key = {"compile": 0.0, "run": 0.0, "wait": 0.0}, False, None
    stub.algorithm = SimpleNamespace(refresh_epochs=None)

    def run(job, length):
        if interrupt is not None and job.k >= interrupt:
            raise KeyboardInterrupt
        values = np.full((8, 1, 1), 7.0)
        values[:length, 0, 0] = job.k + 1 + np.arange(length)
        stub.chunks.carry = Carry({"a": np.array([job.k + length])}, "state", (None, {"a": np.array([job.k + 0.5])}), ())
        return length, {"params": values}

    carry = Carry({"a": np.array([0])}, "state", (None, {"a": np.array([0.0])}), ())
    stub.chunks = SimpleNamespace(total=8, run=run, period=1, carry=carry, waited=0.0, close=lambda: None)
    stub._pace = lambda spent: setattr(stub, "compiled", True)
    stub._failure = lambda latest: failure if failure is not None and stub.k >= 6 else None
    return stub


def test_chunks_run_until_all_iterations_are_done():
    stub, hook = running(), Rule()
    assert stub.run([hook], None) is RESULTS.successful
    assert stub.k == 10 and [seen[0] for seen in hook.seen] == [3, 6, 9, 10]
    assert [seen[2:] for seen in hook.seen] == [(3, 3), (3, 6), (3, 9), (1, 10)]
    np.testing.assert_array_equal(np.concatenate([t["params"] for t in stub.traces]).ravel(), np.arange(1.0, 11.0))
    assert stub.timings["compile"] > 0 and stub.timings["run"] > 0
    long = running(20)
    long.length = 50
    long.run([hook], None)
    assert [seen[0] for seen in hook.seen[4:]] == [8, 16, 20]  # no chunk is longer than its program


def test_a_hook_halts_a_fit_and_a_rule_stops_it():
    assert running().run([Rule(), Rule(4)], None) is RESULTS.halted
    assert running().run([Rule(4)], Rule(4)) is RESULTS.stopped
    assert running().run([], Rule()) is RESULTS.max_iterations
    stub, other = running(), Rule()
    assert stub.run([Rule(4), other], None) is RESULTS.halted and stub.k == 6 and len(other.seen) == 2  # all are told


def test_hooks_and_rules_have_chunks_end_where_they_asked_for_it():
    hook, rule = Rule(), Rule(period=4)
    running().run([hook], rule)
    assert [seen[0] for seen in hook.seen] == [3, 4, 7, 8, 10]
    hook.seen.clear()
    hook.period = 5
    running().run([hook], None)
    assert [seen[0] for seen in hook.seen] == [3, 5, 8, 10]


def test_a_checkpoint_is_told_when_nothing_comes_after():
    checkpoint = Rule()
    running().run([], None, checkpoint)
    assert [seen[:2] for seen in checkpoint.seen] == [(3, False), (6, False), (9, False), (10, True)]
    for hooks, stop in (([Rule(6)], None), ([], Rule(6))):
        checkpoint = Rule()
        running().run(hooks, stop, checkpoint)
        assert [seen[:2] for seen in checkpoint.seen] == [(3, False), (6, True)]


def test_a_rule_that_was_met_when_the_checkpoint_was_saved_stops_at_once():
    parts = [{"params": np.zeros((5, 1, 1))}, {"params": np.ones((2, 1, 1))}]
    stub, rule = running(traces=parts), Rule(0)
    assert stub.run([], rule) is RESULTS.stopped and stub.k == 0 and rule.seen == [(0, False, 2, 7)]
    stub = running(traces=parts)
    assert stub.run([], Rule(4)) is RESULTS.stopped and stub.k == 6
    assert running().run([], Rule(0)) is RESULTS.stopped


@pytest.mark.parametrize("failure", [RESULTS.diverged, RESULTS.undefined, RESULTS.stuck])
def test_what_is_kept_of_a_fit_that_diverges_is_from_before(failure):
    stub = running(failure=failure)
    assert stub.run([], None) is failure and stub.k == 6
    broken = failure is not RESULTS.stuck
    assert stub.chunks.carry.params["a"] == (3 if broken else 6)
    assert stub.chunks.carry.average[1]["a"] == (0.5 if broken else 3.5)


def test_an_interrupt_keeps_what_there_is():
    stub = running(interrupt=6)
    assert stub.run([], None) is RESULTS.interrupted and stub.k == 6 and len(stub.traces) > 0


# -- before and after -------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "error", "says"), [
    ({"batch_size": 41}, ValueError, "batch_size 41 exceeds the 40 units"), ({"batch_size": 0}, ValueError, "batch_size"),
    ({"sampling": "sorted"}, ValueError, "reshuffled"), ({"penalty": 0.1}, TypeError, "mx.L1"),
    ({"penalty": mx.L1(0.1, on="nu")}, ValueError, "nu"),
    ({"spread": -0.1}, ValueError, "spread"), ({"spread": np.nan}, ValueError, "spread"), ({"n_iter": 0}, ValueError, "n_iter"),
    ({"devices": 2, "batch_size": 10}, ValueError, "drop batch_size"), ({"devices": 3}, ValueError, "do not divide"),
    ({"devices": 0}, ValueError, "devices"), ({"runs": 0}, ValueError, "runs"),
])  # fmt: skip
def test_bad_settings_are_refused(given, error, says):
    with pytest.raises(error, match=says):
        job(**given)


def test_settings_become_those_of_a_job(tmp_path):
    plain = job()
    assert (
        plain.batch_size is None and plain.place == "device" and not plain.on_host and plain.mesh is None and plain.runs is None
    )
    assert plain.reshuffled == (mx.soul().sampling == "reshuffled") and plain.starts is None and plain.n == 40
    assert job(batch_size=40).batch_size is None and job(batch_size=39).batch_size == 39 and job(spread=0.0).spread == 0.0
    assert job(sampling="uniform").reshuffled is False and job(sampling="reshuffled").reshuffled is True
    assert job(batch_size=10, rows="host").place == "host" and job(rows="host").place == "device"
    assert job(devices=2).mesh.size == 2 and job(runs=3).runs == 3
    several = job(runs=[PROBLEM.start, PROBLEM.start | {"mu": 1.0}])
    assert several.runs == 2 and len(several.starts) == 2
    mapped = {}
    for name, leaf in PROBLEM.data.items():
        mapped[name] = np.memmap(tmp_path / name, leaf.dtype, "w+", shape=leaf.shape)
        mapped[name][:] = leaf
    assert job(data=mapped, batch_size=10).place == "host" and not job(data=mapped).on_host
    average = mx.LastIterate()
    assert job(average=average).average is average and type(job().average) is type(mx.soul().average)


@pytest.mark.parametrize(("burn_in", "count"), [(0.5, 25), (0.25, 12), (7, 7), (1, 1), (0, 0)])
def test_a_burn_in_is_a_share_or_a_number(burn_in, count):
    with jax.enable_x64(True):
        one = job(average=mx.PolyakRuppert(burn_in))
        one.prepare()
        assert one.burn_in == count and one.length == 32 and one.names == ["mu", "tau2"]


def test_starts_are_spread_in_unconstrained_coordinates_but_for_the_first():
    with jax.enable_x64(True):
        several = job(runs=3, spread=0.5)
        several.prepare()
        starts = np.stack([several.chunks.carry.params["mu"], np.log(several.chunks.carry.params["tau2"])], axis=1)
        first = [PROBLEM.start["mu"], np.log(PROBLEM.start["tau2"])]
        np.testing.assert_allclose(starts[0], first)
        same = job(runs=3, spread=0.25)
        same.prepare()
        closer = np.stack([same.chunks.carry.params["mu"], np.log(same.chunks.carry.params["tau2"])], axis=1)
        np.testing.assert_allclose(starts[1:] - first, 2 * (closer[1:] - first))
        assert np.all(np.abs(starts[1:] - first) > 0) and np.any(starts[1] != starts[2])
        given = job(runs=[{"mu": 3.0, "tau2": 0.7}, {"mu": -1.0, "tau2": 0.2}])
        given.prepare()
        np.testing.assert_allclose(given.chunks.carry.params["mu"], [3.0, -1.0])


def test_units_are_handed_out_in_the_precision_of_the_fit():
    with jax.enable_x64(True):
        one = job(dtype=np.dtype(np.float32))
        one.data = {"y": np.arange(40.0), "k": np.arange(40)}
        one.raw_data = one.data
        some = one.units(np.array([3, 5]))
        assert some["y"].dtype == jnp.float32 and jnp.issubdtype(some["k"].dtype, jnp.integer)
        np.testing.assert_array_equal(some["y"], [3.0, 5.0])
        np.testing.assert_array_equal(one.units(np.arange(40))["k"], np.arange(40))
        np.testing.assert_array_equal(one.units(np.arange(40)[::-1])["k"], np.arange(40)[::-1])
        assert one.units(np.array([0]), first=True)["y"].shape == ()


@pytest.mark.parametrize(("result", "edge", "settled", "ends"), [
    (RESULTS.successful, False, True, RESULTS.successful), (RESULTS.stopped, True, True, RESULTS.boundary),
    (RESULTS.max_iterations, False, False, RESULTS.max_iterations), (RESULTS.stuck, True, False, RESULTS.stuck),
])  # fmt: skip
def test_an_outcome_averages_over_runs_and_says_where_it_ended(result, edge, settled, ends):
    stub = object.__new__(Job)
    low = np.array([0.0, 0.0]) if edge else np.array([1.0, 3.0])
    carry = Carry({"a": np.array([2.0, 6.0])}, None, (None, {"a": low}), ())
    stub.chunks = SimpleNamespace(carry=carry, store=SimpleNamespace(tree=({"z": jnp.arange(6.0)}, ())))
    stub.keys, stub.n, stub.k, stub.timings, stub.dtype, stub.seed = [0, 1], 3, 4, {}, np.dtype(float), 9
    space = as_space({"a": mx.Positive()}, {"a": np.array(1.0)})
    stub.problem, stub.burn_in = SimpleNamespace(space=space, model=PROBLEM.model), 1
    stub.algorithm, stub.estep, stub.data, stub.batch_size = mx.soul(), mx.Quadrature(3), "data", None
    still = np.repeat(np.array([[1.0, 5.0]]), 60, axis=0)[:, :, None]
    still[0] = 0.0
    stub.traces = [
        {"params": still[:40], "log_marginal": np.ones((40, 2))},
        {"params": still[40:], "log_marginal": np.ones((20, 2))},
    ]
    out = stub.finish(result)
    assert out.result is ends and out.settled == settled and out.n_iter == 4 and out.averaged_from == 1 and out.seed == 9
    np.testing.assert_allclose(out.params["a"], low.mean())
    np.testing.assert_allclose(out.last_params["a"], 4.0)
    np.testing.assert_array_equal(out.rows["z"], np.arange(6.0).reshape(2, 3))
    assert out.trace["params"].shape == (60, 2, 1) and np.all(out.trace["log_marginal"] == 3.0)


def test_a_fit_alone_is_that_of_the_public_function():
    fit = mx.fit(PROBLEM.model, PROBLEM.data, mx.soul(), mx.Quadrature(5), params=PROBLEM.start, space=PROBLEM.space, n_iter=50,
                 polish=False, progress=False)  # fmt: skip
    alone = run_alone(PROBLEM.model, PROBLEM.data, mx.soul(), mx.Quadrature(5), asked())
    np.testing.assert_array_equal(alone.trace["params"], fit.trace["params"])
    assert alone.params == fit.params and alone.result is fit.result
