"""Fits over the processes that run this script, in which something goes wrong: `python faults.py FOLDER FAULT ...`.

What each process found of a fault goes to FOLDER/FAULT.PROCESSES.PROCESS.npz.
"""

import contextlib
import errno
import itertools
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import numpy as np

import margaux as mx
from helpers import random_intercept
from margaux.engine.share import everyones

#: fits whose checkpoint is a later one's
KEPT = ("kill", "resume")


class Fault(mx.AbstractCallback):
    """Does something in process 1, once, in the middle."""

    def __init__(self, action):
        self.action, self.done = action, False

    def __call__(self, progress):
        if jax.process_index() == 1 and progress.iteration > 100 and not self.done:
            self.done = True
            self.action()
        return False

    def close(self):
        return None


def refuse():
    raise ZeroDivisionError("a callback's own")


def interrupt_inside():
    raise KeyboardInterrupt


ACTIONS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "interrupt inside": interrupt_inside,
    "callback": refuse,
}


@contextlib.contextmanager
def disk(kind):
    """Process 1's disk is full from its third file on, or takes its time."""
    count, real = itertools.count(), os.fsync

    def fsync(descriptor):
        if kind == "full" and next(count) >= 4:  # a file and its folder count one each
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if kind == "slow":
            time.sleep(0.5)
        real(descriptor)

    with mock.patch("os.fsync", fsync) if jax.process_index() == 1 else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def jumping_clocks():
    """The time of day goes backwards by years now and then, and process 1's clock since its start jumps by a day."""
    real, days = time.monotonic, itertools.count()
    jumps = mock.patch("time.monotonic", lambda: real() + 86400.0 * (next(days) // 7))
    with (
        mock.patch("time.time", lambda: -1e9 * np.random.default_rng().random()),
        jumps if jax.process_index() == 1 else contextlib.nullcontext(),
    ):
        yield


SURROUNDINGS = {"full disk": lambda: disk("full"), "slow disk": lambda: disk("slow"), "clocks": jumping_clocks}


def units(fault, problem):
    """What a process fits, of the 41 units of a table."""
    data, index = {name: np.array(leaf) for name, leaf in problem.data.items()}, jax.process_index()
    if fault == "nan":
        data["y"][30] = np.nan
    if fault == "shapes" and index == 1:
        data = {name: leaf[:, None] if leaf.ndim == 1 else leaf[:, :1] for name, leaf in data.items()}
    if fault == "local":
        cut = slice(0, 20) if index == 0 else slice(20, 41)
        return mx.shard({name: leaf[cut] for name, leaf in data.items()}, local=True)
    if fault == "one":  # process 1 has a unit and the others the rest of them
        counts = [len(part) for part in np.array_split(np.arange(40), jax.process_count() - 1)]
        counts.insert(1, 1)
        end = sum(counts[: index + 1])
        return mx.shard({name: leaf[end - counts[index] : end] for name, leaf in data.items()}, local=True)
    return mx.shard(data)


def fitted(fault, folder, problem, path=None, n_iter=400):
    callbacks = [Fault(ACTIONS[fault])] if fault in ACTIONS else []
    saved = mx.Checkpoint(path or folder / ("checkpoint" if fault in KEPT else fault), seconds=3600.0 * (fault == "clocks"))
    return mx.fit(problem.model, units(fault, problem), mx.saga(0.1), mx.MCMC(), params=problem.start, space=problem.space,
                  key=1, n_iter=n_iter, batch_size=8, polish=False, progress=False, callbacks=callbacks,
                  checkpoint=saved)  # fmt: skip


def spoilt(fault, folder, problem):
    """A fit goes on from a checkpoint of which the file of process 1 is not as it was."""
    path = folder / fault
    fitted("resume", folder, problem, path, n_iter=200)
    everyones(np.zeros(1))  # what came before is removed
    (file,) = folder.glob(f"{fault}.*.1-of-{jax.process_count()}")
    everyones(np.zeros(1))  # nobody touches it before all have seen it
    if jax.process_index() == 0 and fault == "missing shard":
        file.unlink()
    if jax.process_index() == 0 and fault == "truncated shard":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    if jax.process_index() == 0 and fault == "changed shard":
        content = bytearray(file.read_bytes())
        content[content.index(b"rows/0.npy") + 200] ^= 1
        file.write_bytes(content)
    everyones(np.zeros(1))
    return fitted("resume", folder, problem, path)


def main():
    mx.distributed.initialize(heartbeat_timeout_seconds=20)
    folder, faults = Path(sys.argv[1]), sys.argv[2:]
    index, problem = jax.process_index(), random_intercept(41, 3)
    for fault in faults:
        found: dict[str, Any] = {}
        with SURROUNDINGS.get(fault, contextlib.nullcontext)(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                fit = spoilt(fault, folder, problem) if fault.endswith("shard") else fitted(fault, folder, problem)
                found = {"trace": fit.trace["params"], "rows": len(fit.data["y"]), "result": fit.result.name}
            except (ValueError, OSError, RuntimeError, ArithmeticError) as error:
                if len(faults) == 1:
                    raise
                found = {"error": f"{type(error).__name__}: {error}"}
        found["said"] = "\n".join(str(one.message) for one in said)
        np.savez(folder / f"{fault}.{jax.process_count()}.{index}.npz", **found)


if __name__ == "__main__":
    main()
