"""One replicate, wherever it runs. Nothing here imports jax, which is to find its settings when it is first imported."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

#: of processes that share a machine: one thread each, and no GPU for the first of them alone. A user's own settings stay.
QUIET = {"MARGAUX_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


class Outcome(NamedTuple):
    """What became of a replicate: its pickled result, or None and the text of what was raised."""

    index: int
    pickled: bytes | None
    error: str = ""


class Work(NamedTuple):
    """What every replicate is made of.

    `function` is itself, or for other processes its pickle as an array of bytes, which joblib hands to all of them but once.
    `process` is the caller's; `environment` and `double` are what other processes and threads do not inherit of jax's settings;
    `elsewhere` is whether it may not run in the caller's process, as it kills its own.
    """

    function: Callable[[int, np.random.Generator], Any] | np.ndarray
    seed: int
    process: int
    environment: dict[str, str]
    double: bool
    elsewhere: bool = False

    @classmethod
    def of(cls, function: Callable[[int, np.random.Generator], Any], seed: int, shipped: bool) -> Work:
        """Raises: TypeError: a function that has to be pickled and cannot."""
        jax = sys.modules.get("jax")
        platforms = None if jax is None else jax.config.jax_platforms
        environment = QUIET | ({"JAX_PLATFORMS": platforms} if platforms else {})
        whole = _shipped(function) if shipped else function
        return cls(whole, seed, os.getpid(), environment, jax is not None and bool(jax.config.jax_enable_x64))


def generator(seed: int, index: int) -> np.random.Generator:
    """The random numbers of a replicate, which depend on the seed and its index alone."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(index,)))


def outcome(work: Work, index: int) -> Outcome:
    """Run one replicate. What it raises, and a result that cannot be pickled, is told and not raised."""
    if os.getpid() != work.process:
        for name, value in work.environment.items():
            os.environ.setdefault(name, value)
    elif work.elsewhere:
        return Outcome(index, None, "its worker process died, and there was no other process in which to run it again")
    try:
        function = work.function if callable(work.function) else _unpacked(work.function.tobytes())
        with _precision(work.double):
            result = function(index, generator(work.seed, index))
    except (Exception, SystemExit):
        return Outcome(index, None, traceback.format_exc())
    try:
        return Outcome(index, cloudpickle.dumps(result))
    except Exception as error:
        kind = type(result).__name__
        told = f"its result, a {kind}, cannot be pickled ({error}); return numbers, arrays, or a dict of them"
        return Outcome(index, None, told)


def _precision(double: bool) -> contextlib.AbstractContextManager:
    if not double:
        return contextlib.nullcontext()
    import jax

    return jax.enable_x64(True)


def _shipped(function: Callable[..., Any]) -> np.ndarray:
    try:
        return np.frombuffer(cloudpickle.dumps(function), np.uint8)
    except Exception as error:
        raise TypeError(
            f"the function cannot be sent to other processes ({error}); open files, locks and the like inside it, or pass "
            "backend='threading'"
        ) from error


@functools.lru_cache(maxsize=1)
def _unpacked(pickled: bytes) -> Callable[..., Any]:
    """Once a process, so that what it compiles serves all replicates there."""
    return pickle.loads(pickled)
