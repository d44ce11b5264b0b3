"""A fit over several processes is the fit of one, to the order of additions."""

import os
import subprocess
import sys
from pathlib import Path

import fits
import numpy as np
import pytest

from helpers import random_intercept

SCRIPT = Path(fits.__file__)
FEW = ("soul batches", "saga", "answers")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")} | {"JAX_PLATFORMS": "cpu"}


def launched(processes, script, *arguments, timeout=300, **environment):
    """`margaux launch`, in a process of its own."""
    command = [sys.executable, "-m", "margaux", "launch", "-n", str(processes), str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=ENVIRONMENT | environment, check=False)


def of_processes(processes, folder, names):
    # Each process compiles for itself: the time that all take together grows with their number.
    done = launched(processes, SCRIPT, folder / "found", *names, timeout=200 * processes)
    assert done.returncode == 0, done.stderr[-2000:]
    every = [dict(np.load(folder / f"found.{process}.npz")) for process in range(processes)]
    for other in every[1:]:
        for name, value in every[0].items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)
    return every[0]


def of_one(name):
    problem = random_intercept(fits.N, 3)
    if name == "answers":
        return fits.answered(problem, problem.data)
    fit = fits.fitted(name, problem, problem.data)
    return {"params": fits.flat(fit.params), "last": fits.flat(fit.last_params)} | {
        f"trace {key}": value for key, value in fit.trace.items()
    }


def same(found, names):
    for name in names:
        for key, value in of_one(name).items():
            if value.dtype.kind == "U":
                assert found[f"{name}/{key}"] == value
            else:
                np.testing.assert_allclose(found[f"{name}/{key}"], value, rtol=1e-8, atol=1e-10, err_msg=f"{name} {key}")


@pytest.mark.slow
def test_two_processes_find_what_one_finds(tmp_path):
    same(of_processes(2, tmp_path, FEW), FEW)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_every_algorithm_is_the_same_over_processes(processes, tmp_path):
    names = (*fits.parts(), "answers")
    same(of_processes(processes, tmp_path, names), names)
