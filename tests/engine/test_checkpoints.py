"""Checkpoints: what they refuse and name, how fits go on from them, and files that cannot be written."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import margaux as mx
from helpers import RandomIntercept, random_intercept
from margaux.engine import fingerprint, storage
from margaux.engine.job import Job

PROBLEM = random_intercept()
SHIFT = np.linspace(0.0, 1e-3, 20)


class Scaled(RandomIntercept):
    """A number in the code of `log_joint` and one in a field; a constant it closes over."""

    factor: float = 1.0

    def log_joint(self, params, z, unit):
        return RandomIntercept.log_joint(self, params, z, unit) * self.factor * CODE["factor"] + jnp.sum(CODE["shift"]) * z


CODE = {"factor": 1.0, "shift": SHIFT}


def run(path=None, algorithm=None, estep=None, model=None, data=None, **kw):
    estep = mx.MCMC(mx.MALA(0.5), n_steps=2) if estep is None else estep
    settings = {"params": PROBLEM.start, "space": PROBLEM.space, "n_iter": 60, "polish": False} | kw
    settings |= {"progress": False, "checkpoint": path}
    return mx.fit(PROBLEM.model if model is None else model, PROBLEM.data if data is None else data, algorithm or mx.soul(1.0),
                  estep, **settings)  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "fit.ckpt"
    run(path, mx.soul(mx.Polynomial(1.0, 0.6), mx.PolyakRuppert(20)), penalty=mx.L1(0.1))
    return path


def moved(unit):
    y = PROBLEM.data["y"].copy()
    y[unit, 0] = np.nextafter(y[unit, 0], 9.0)
    return PROBLEM.data | {"y": y}


def gain(scale, power=0.6):
    return mx.soul(mx.Polynomial(scale, power), mx.PolyakRuppert(20))


@pytest.mark.parametrize(("change", "told"), [
    ({"penalty": mx.L1(0.2)}, r"penalty.weight is 0.1 there and 0.2 here\."),
    ({"penalty": mx.L1(0.1, on="mu")}, "penalty.on is None there and tuple here"),
    ({"penalty": None}, r"penalty is L1 there and NoPenalty here\."),
    ({"params": {"mu": 0.5, "tau2": 0.6}}, "the starting values tau2 is 0.5 there and 0.6 here"),
    ({"estep": mx.MCMC(mx.MALA(0.4), n_steps=2)}, r"estep.kernel.step_size.value is 0.5 there and 0.4 here"),
    ({"estep": mx.MCMC(mx.ULA(0.5), n_steps=2)}, r"estep.kernel is MALA there and ULA here"),
    ({"estep": mx.MCMC(mx.MALA(0.5), n_steps=3)}, r"another fit: estep.n_steps is 2 there and 3 here\."),
    ({"algorithm": gain(0.9)}, r"algorithm.update.step.scale is 1.0 there and 0.9 here\."),
    ({"algorithm": gain(1.0, 0.7)}, r"algorithm.update.step.power is 0.6 there and 0.7 here\."),
    ({"space": {"tau2": mx.Positive(1e-2)}}, r"space.spaces.tau2.floor is 0.001 there and 0.01 here\."),
    ({"space": None}, "space.spaces is dict there and Real here"),
    ({"average": mx.PolyakRuppert(21)}, r"the burn-in is 20 iterations there and 21 here\."),
    ({"average": mx.LinearlyWeighted(20)}, "average is PolyakRuppert there and LinearlyWeighted here"),
    ({"data": moved(20)}, r"another fit: the data y holds other numbers\."),
    ({"data": {name: leaf[:39] for name, leaf in PROBLEM.data.items()}}, "units is 40 there and 39 here"),
    ({"model": Scaled()}, r"model is RandomIntercept there and Scaled here"),
    ({"key": 1}, "key is"), ({"runs": 2}, "runs is None there and 2 here"), ({"batch_size": 5}, "batch_size is None there and 5"),
    ({"n_iter": 59}, "is 60 iterations on, beyond n_iter = 59"),
])  # fmt: skip
def test_a_checkpoint_of_another_fit_is_refused_by_what_differs(saved, change, told):
    kw = {"algorithm": gain(1.0), "penalty": mx.L1(0.1)} | change
    before = saved.read_bytes()
    with pytest.raises(ValueError, match=told):
        run(saved, **kw)
    assert saved.read_bytes() == before


def test_the_same_call_ends_where_it_ended(saved):
    straight = run(None, gain(1.0), penalty=mx.L1(0.1))
    again = run(saved, gain(1.0), penalty=mx.L1(0.1))
    np.testing.assert_array_equal(again.trace["params"], straight.trace["params"])
    # Where units live and how many devices work on them is no part of a fit.
    assert run(saved, gain(1.0), penalty=mx.L1(0.1), devices=2).n_iter == 60


def test_the_code_of_a_model_is_told_by_its_jaxpr(tmp_path, monkeypatch):
    path = tmp_path / "fit.ckpt"
    run(path, model=Scaled())
    run(path, model=Scaled())
    with pytest.raises(ValueError, match=r"model.factor is 1.0 there and 1.5 here"):
        run(path, model=Scaled(1.5))
    for name, value in (("factor", 1.0 + 1e-12), ("shift", SHIFT + np.eye(20)[7] * 1e-12)):
        with monkeypatch.context() as patch:
            patch.setitem(CODE, name, value)
            with pytest.raises(ValueError, match=r"fit: the code of the model \(log_joint\) is another, or a constant in it"):
                run(path, model=Scaled())


def test_an_m_step_and_an_optimiser_are_told(tmp_path, monkeypatch):
    saem, adam = tmp_path / "saem.ckpt", tmp_path / "adam.ckpt"
    run(saem, mx.saem())
    run(adam, mx.soul(optax.adam(0.01)))
    run(adam, mx.soul(optax.adam(0.01)))
    with pytest.raises(ValueError, match="another fit: the code of an iteration is another"):
        run(adam, mx.soul(optax.adam(0.02)))
    monkeypatch.setattr(RandomIntercept, "m_step", lambda self, s: {"mu": s["z"], "tau2": 1.01 * (s["z2"] - s["z"] ** 2)})
    with pytest.raises(ValueError, match=r"another fit: the code of the model \(m_step\) is another"):
        run(saem, mx.saem())


def test_a_fingerprint_is_the_same_in_every_process(tmp_path):
    script = textwrap.dedent(f"""
        import sys
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]
        from test_checkpoints import Scaled, run
        import optax, margaux as mx
        run({str(tmp_path)!r} + "/" + sys.argv[1], mx.soul(optax.adam(0.01)), model=Scaled(), n_iter=2)
    """)
    for name in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": name, "JAX_PLATFORMS": "cpu"}
        ended = subprocess.run([sys.executable, "-c", script, name], capture_output=True, text=True, env=environment, check=False)
        assert ended.returncode == 0, ended.stderr
    one, two = (storage.read(tmp_path / name)[0]["signature"] for name in "12")
    assert one == two and "0x" not in json.dumps(one)


def test_every_entry_of_large_arrays_counts(tmp_path):
    values = np.random.default_rng(0).normal(size=(400_000, 6))  # 19 MB, in three parts
    mapped = np.memmap(tmp_path / "y", values.dtype, "w+", shape=values.shape)
    mapped[:] = values
    whole = fingerprint.of_array(values)
    assert whole == fingerprint.of_array(mapped) == fingerprint.of_array(np.asfortranarray(values))
    assert whole != fingerprint.of_array(values.reshape(800_000, 3))
    for i in (0, 64, 200_000, 399_000):
        mapped[i, 3] += 1e-12
        assert fingerprint.of_array(mapped) != whole
        mapped[i, 3] = values[i, 3]
    assert whole == fingerprint.of_array(mapped)


# -- going on ---------------------------------------------------------------------------------------

GOES_ON = {
    "full batch": lambda **kw: run(algorithm=mx.soul(1.0, mx.PolyakRuppert(kw.pop("burn", 0.5))), **kw),
    "mini-batches": lambda **kw: run(algorithm=mx.saga(0.2, of="score"), batch_size=6,
                                     average=mx.PolyakRuppert(kw.pop("burn", 0.5)), **kw),
    # Its anchor is renewed every epoch of 8, and so at iteration 40, where the first fit ends without.
    "anchor": lambda **kw: run(algorithm=mx.svrg(0.2), batch_size=5, average=mx.PolyakRuppert(kw.pop("burn", 0.5)), **kw),
    "runs": lambda **kw: run(algorithm=mx.soul(1.0, mx.PolyakRuppert(kw.pop("burn", 0.5))), runs=2, **kw),
}  # fmt: skip


@pytest.mark.parametrize("which", GOES_ON)
def test_a_finished_fit_goes_on_to_a_larger_n_iter(which, tmp_path):
    go, path = GOES_ON[which], tmp_path / "fit.ckpt"
    assert go(path=path, n_iter=40).averaged_from == 20
    with pytest.warns(UserWarning, match="from iteration 40 of a checkpoint, and averages its iterates from iteration 20 on"):
        more = go(path=path, n_iter=70)
    straight = go(n_iter=70, burn=20)
    assert more.n_iter == 70 and more.averaged_from == 20
    np.testing.assert_array_equal(more.trace["params"], straight.trace["params"])
    jax.tree.map(np.testing.assert_array_equal, more.run_params, straight.run_params)
    assert go(path=path, n_iter=70, burn=20).n_iter == 70  # the same burn-in, said in iterations


class Stop(mx.AbstractCallback):
    def __init__(self, at):
        self.at = self.period = at

    def __call__(self, progress):
        return progress.iteration >= self.at

    def close(self):
        pass


def test_an_interrupted_fit_goes_on_to_a_larger_n_iter_as_if_begun_with_it(tmp_path):
    """Nothing was averaged yet, so that the burn-in is that of the larger n_iter."""
    path = tmp_path / "fit.ckpt"
    algorithm = mx.soul(1.0, mx.PolyakRuppert(0.5))
    halted = run(path, algorithm, n_iter=60, callbacks=[Stop(20)])
    assert halted.n_iter == 20 and halted.result is mx.RESULTS.halted
    more, straight = run(path, algorithm, n_iter=100), run(None, algorithm, n_iter=100)
    assert more.averaged_from == 50
    np.testing.assert_array_equal(more.params["mu"], straight.params["mu"])
    np.testing.assert_array_equal(more.trace["params"], straight.trace["params"])


def test_a_fit_that_met_its_rule_ends_there_again(tmp_path):
    path = tmp_path / "fit.ckpt"
    settings = {"n_iter": 5000, "stop": mx.EarlyStopping(window=50, tolerance=1.0)}
    first = run(path, mx.mcem(mx.LastIterate()), mx.Quadrature(9), **settings)
    again = run(path, mx.mcem(mx.LastIterate()), mx.Quadrature(9), **settings)
    assert first.result is again.result is mx.RESULTS.stopped and first.n_iter == again.n_iter < 5000
    np.testing.assert_array_equal(first.params["mu"], again.params["mu"])


# -- files ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def full_disk(monkeypatch):
    def fsync(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


def test_a_full_disk_is_a_warning_and_the_fit_goes_on(tmp_path, monkeypatch):
    path, straight = tmp_path / "fit.ckpt", run(None)
    every = mx.Checkpoint(path, seconds=0)
    monkeypatch.setattr(Job, "_pace", lambda self, spent: setattr(self, "length", 10))
    with full_disk(monkeypatch), pytest.warns(UserWarning, match="could not be written .No space left") as said:
        out = run(every)
    assert len(said) == 1 and not list(tmp_path.iterdir())
    np.testing.assert_array_equal(out.trace["params"], straight.trace["params"])
    with full_disk(monkeypatch), pytest.warns(UserWarning, match="No space left"), pytest.raises(mx.FitError) as caught:
        run(mx.Checkpoint(path, seconds=0), mx.soul(mx.Polynomial(1e6, 0.0), mx.LastIterate()), mx.MCMC(mx.ULA(10.0)),
            space=None, n_iter=500)  # fmt: skip
    assert caught.value.fit.result is mx.RESULTS.diverged and np.isfinite(caught.value.fit.params["mu"])


def test_an_older_checkpoint_outlives_a_full_disk(tmp_path, monkeypatch):
    path = tmp_path / "fit.ckpt"
    run(path, n_iter=30, average=mx.LastIterate())
    with full_disk(monkeypatch), pytest.warns(UserWarning, match="No space left"):
        run(path, n_iter=60, average=mx.LastIterate())
    assert storage.read(path)[0]["k"] == 30 and [file.name for file in tmp_path.iterdir()] == ["fit.ckpt"]


def test_what_killed_processes_leave_is_written_over(tmp_path):
    path = tmp_path / "fit.ckpt"
    script = textwrap.dedent(f"""
        import os, sys
        import numpy as np
        from margaux import storage
        os.fsync = lambda descriptor: os._exit(9)
        storage.write({str(path)!r}, {{"kind": "test"}}, {{"x": np.zeros(100_000)}})
    """)
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    assert len(list(tmp_path.iterdir())) == 1 and not path.exists()
    storage.write(path, {"kind": "test"}, {"x": np.ones(3)})
    assert [file.name for file in tmp_path.iterdir()] == ["fit.ckpt"]
    np.testing.assert_array_equal(storage.read(path)[1]["x"], np.ones(3))


def test_two_processes_do_not_write_one_file(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "fit.ckpt"
    with open(tmp_path / "fit.ckpt.tmp", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b"half")
        other.flush()
        with pytest.raises(OSError, match="another process is writing it"):
            storage.write(path, {"kind": "test"}, {"x": np.ones(3)})
        assert (tmp_path / "fit.ckpt.tmp").read_bytes() == b"half"


@pytest.mark.parametrize("where", ["folder", "in the way"])
def test_a_place_for_no_file_is_refused_before_the_fit(where, tmp_path, monkeypatch):
    monkeypatch.setattr(Job, "prepare", lambda self: pytest.fail("too late"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a folder|no checkpoint can be written"):
        run(tmp_path if where == "folder" else tmp_path / "file" / "fit.ckpt")


def test_a_checkpoint_of_an_earlier_version_is_refused(tmp_path):
    path = tmp_path / "fit.ckpt"
    storage.write(path, {"kind": "checkpoint", "k": 3, "signature": {"n": 40}}, {})
    with pytest.raises(ValueError, match="earlier margaux"):
        run(path)


# -- within jax -------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [
    lambda: jax.jit(lambda y: run(data=PROBLEM.data | {"y": y}).params["mu"])(PROBLEM.data["y"]),
    lambda: jax.grad(lambda mu: run(params={"mu": mu, "tau2": 0.5}).params["mu"])(0.3),
    lambda: jax.vmap(lambda mu: run(params={"mu": mu, "tau2": 0.5}).params["mu"])(np.zeros(2)),
    lambda: jax.vmap(lambda key: run(key=key).params["mu"])(jax.random.split(jax.random.key(0))),
    lambda: jax.jit(lambda: run().params["mu"])(),
    lambda: jax.grad(lambda step: run(model=Scaled(step)).params["mu"])(0.3),
])  # fmt: skip
def test_a_fit_within_a_transformation_is_refused(call):
    with pytest.raises(TypeError, match="margaux.fit is called within jax.jit, jax.vmap, jax.grad"):
        call()


def test_a_progress_says_that_it_is_the_last(tmp_path):
    seen = []

    class Saving(mx.Checkpoint):
        def __call__(self, progress):
            seen.append((progress.iteration, progress.ends))
            return super().__call__(progress)

    run(Saving(tmp_path / "fit.ckpt"), callbacks=[Stop(20)])
    assert seen[-1] == (20, True) and not any(ends for _, ends in seen[:-1])
