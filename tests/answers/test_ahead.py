"""What is compiled while a fit goes on is what its answers ask for, and nothing else."""

import threading
import time
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from margaux.algorithms.updates import Problem
from margaux.answers import ahead as module
from margaux.answers.ahead import ahead
from margaux.answers.posterior import _block
from margaux.answers.proposing import _proposals
from margaux.numerics import compiling, programs
from margaux.problem.penalty import NoPenalty
from margaux.problem.space import Real

Y = np.random.default_rng(0).normal(1.0, 1.5, size=(30, 1))


class Plain(mx.AbstractModel):
    """y ~ N(mu + z, 1), z ~ N(0, e^s), in so many dimensions."""

    size: int = 1

    def log_joint(self, params, z, y):
        prior = -0.5 * jnp.sum(z**2) / jnp.exp(2 * params["s"]) - self.size * params["s"]
        return -0.5 * jnp.sum((y - params["mu"] - jnp.sum(z)) ** 2) + prior - 0.5 * (1 + self.size) * jnp.log(2 * jnp.pi)

    def init_latents(self, key, params, y):
        return jnp.zeros(self.size)


def problem(size):
    return Problem(Plain(size), Real(), NoPenalty(), len(Y))


def fitted(size, **settings):
    start = {"mu": 0.0, "s": 0.0}
    fit = mx.fit(Plain(size), Y, mx.soul(), mx.MCMC(), params=start, n_iter=200, progress=False, **settings)
    return fit, fit.certificate


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_same_programs_are_compiled_ahead_as_without(size, monkeypatch):
    counts = []
    for threads in (1, 2):
        compiling.forget()
        monkeypatch.setattr(programs, "threads", lambda threads=threads: threads)
        before = _proposals.programs(), _block.programs()
        fit, certificate = fitted(size)
        counts.append(
            (_proposals.programs() - before[0], _block.programs() - before[1], float(fit.params["mu"]), str(certificate))
        )
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("few", "first"), [(64, "full_chunk"), (1, "begin")])
def test_what_the_polish_asks_for_is_begun_while_a_long_program_compiles(few, first, monkeypatch):
    compiling.forget()
    monkeypatch.setattr(compiling, "FEW_UNITS", few)
    monkeypatch.setattr(programs, "threads", lambda: 2)
    before, here = _proposals.programs(), threading.get_ident()
    compilers, begun = [], []
    build, begin = programs._traced, programs.begin

    def traced(*args):
        compile = build(*args)
        return lambda: (compilers.append((args[0].name.split(".")[-1], threading.get_ident())), compile())[1]

    monkeypatch.setattr(programs, "_traced", traced)
    monkeypatch.setattr(programs, "begin", lambda request: (begun.append(request.name.split(".")[-1]), begin(request)))
    fitted(2)
    # Everything that evaluates by quadrature, and the likelihood that is compared with it.
    assert begun == ["_proposals", *["_block"] * 3] and _proposals.programs() == before + 1
    assert sorted(name for name, _ in compilers if name in begun) == sorted(begun)
    # The other thread compiles what is asked for first, so that this one is free to trace those.
    assert [thread != here for name, thread in compilers if name == first] == [True]


def test_a_program_is_compiled_here_while_the_other_thread_is_busy():
    released, made = threading.Event(), []

    def slow() -> Any:
        released.wait(10)
        return "slow"

    def quick(name):
        def build() -> Any:
            made.append((name, threading.get_ident()))
            released.set()
            return name

        return build

    busy = programs._begun(slow)
    while busy in programs._waiting:
        time.sleep(0.001)
    first, second = programs._begun(quick("first")), programs._begun(quick("second"))
    assert programs._awaited(second) == "second" and programs._awaited(busy) == "slow" and programs._awaited(first) == "first"
    assert made[0] == ("second", threading.get_ident())


def test_a_program_that_does_not_compile_says_so_where_it_is_asked_for():
    def wrong():
        raise RuntimeError("no such instruction")

    with pytest.raises(RuntimeError, match="no such instruction"):
        programs._awaited(programs._begun(wrong))


def test_an_interrupt_while_another_program_is_compiled_is_no_fault_of_that_program():
    released, calls = threading.Event(), []

    def slow() -> Any:
        released.wait(10)
        return "slow"

    def interrupted() -> Any:
        calls.append(1)
        released.set()
        if len(calls) == 1:
            raise KeyboardInterrupt
        return "other"

    busy = programs._begun(slow)
    while busy in programs._waiting:
        time.sleep(0.001)
    other = programs._begun(interrupted)
    with pytest.raises(KeyboardInterrupt):
        programs._awaited(busy)
    assert programs._awaited(busy) == "slow" and programs._awaited(other) == "other"


def test_only_fits_that_may_be_polished(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "proposals_ahead", lambda *args: calls.append("proposals"))
    monkeypatch.setattr(module, "block_ahead", lambda *args: calls.append("block"))
    monkeypatch.setattr(programs, "threads", lambda: 2)
    params = {"mu": np.zeros(()), "s": np.zeros(())}
    for size, blocks in ((1, 3), (2, 3), (4, 0)):
        ahead(problem(size), mx.MCMC(), params, Y)
        assert calls == ["proposals", *["block"] * blocks]
        calls.clear()
    ahead(problem(1), mx.MCMC(), params, Y, compared=False)
    assert calls == ["proposals", "block", "block"]
    calls.clear()
    monkeypatch.setattr(programs, "threads", lambda: 1)
    ahead(problem(1), mx.MCMC(), params, Y)
    assert calls == []
    monkeypatch.setattr(programs, "threads", lambda: 2)
    calls.clear()
    ahead(problem(1), mx.Noise(1), params, Y)
    ahead(problem(1), mx.MCMC(), {"mu": np.zeros(200)}, Y)
    ahead(problem(1), mx.MCMC(), params, np.broadcast_to(Y[:1], (20_001, 1)))
    assert calls == []
    fitted(1, polish=False)
    assert calls == []


def test_what_is_wrong_with_a_model_is_said_by_the_fit(monkeypatch):
    monkeypatch.setattr(programs, "threads", lambda: 2)

    class Wrong(Plain):
        def log_joint(self, params, z, y):
            return params["nowhere"]

    with pytest.raises(KeyError, match="log_joint fails"):
        mx.fit(Wrong(), Y, mx.soul(), mx.MCMC(), params={"mu": 0.0, "s": 0.0}, n_iter=10, progress=False)
