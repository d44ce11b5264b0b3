"""What an epoch of a Bayesian LeNet-5 on MNIST costs, beside a Bayes by Backprop written in PyTorch; MISSO's table; the start.

430 blocks of 128 of the 55,000 images, one draw an iteration, float32, Adam, one standard deviation a weight; the divergence
from the prior in closed form. PyTorch: the shared draw w = mu + exp(rho) eps, its data one tensor.

Every contestant is a process of its own and keeps its fit under way. They take turns, about a second each, so that what else
runs on the machine meets them all: a row gives the fastest and the middle turn, wall and CPU milliseconds an iteration, and the
ratios to PyTorch. 'misso' has one standard deviation, and a table of 106 MB, one row a block; 'misso without table' steps to the
minimiser of the surrogate of its block alone.

The start is the time from `mx.fit` to the end of 32 iterations, in a fresh process, without and with compiled programs of an
earlier one.

PyTorch is taken from this environment, or from the interpreter that TORCH_PYTHON names; without either it is left out.

    TORCH_PYTHON=PYTHON python benchmarks/bnn.py [turns]
"""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

BLOCKS, SIZE, N = 430, 128, 55_000
#: iterations of PyTorch in a turn
TURN = 40
OURS = ("shared", "local", "flipout", "misso", "misso without table")
#: epochs over PyTorch's, and milliseconds an iteration of the table, at most
LIMITS, TABLE = {"local": 1.3, "flipout": 2.4}, 2.0


def clocks() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


# -- contestants: each prints iterations, wall and CPU seconds of a turn for every line that it reads ------------------------


def pytorch(path: str) -> None:
    """Bayes by Backprop (Blundell, Cornebise, Kavukcuoglu and Wierstra 2015), a prior N(0, 1)."""
    import torch  # type: ignore[import-not-found]
    import torch.nn.functional as F  # type: ignore[import-not-found]

    if hasattr(os, "sched_getaffinity"):
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    held = np.load(path)
    images = torch.from_numpy(held["x"]).permute(0, 3, 1, 2).float().div(255).contiguous()
    labels = torch.from_numpy(held["y"]).long()
    shapes = [(6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 400), (120,), (84, 120), (84,), (10, 84), (10,)]
    inputs = [math.prod(shape[1:]) for shape in shapes if len(shape) > 1 for _ in range(2)]
    mean = [torch.empty(shape).uniform_(-(k**-0.5), k**-0.5).requires_grad_() for shape, k in zip(shapes, inputs, strict=True)]
    rho = [torch.full(shape, math.log(0.05)).requires_grad_() for shape in shapes]
    optimiser = torch.optim.Adam(mean + rho, lr=1e-3)

    def iteration(x: Any, y: Any) -> None:
        w, divergence = [], 0.0
        for m, r in zip(mean, rho, strict=True):
            sigma = r.exp()
            w.append(m + sigma * torch.randn_like(m))
            divergence = divergence + ((sigma * sigma + m * m) / 2 - r - 0.5).sum()
        h = F.max_pool2d(F.relu(F.conv2d(x, w[0], w[1], padding=2)), 2)
        h = F.max_pool2d(F.relu(F.conv2d(h, w[2], w[3])), 2)
        h = F.relu(F.linear(h.flatten(1), w[4], w[5]))
        h = F.linear(F.relu(F.linear(h, w[6], w[7])), w[8], w[9])
        loss = F.cross_entropy(h, y) + divergence / N
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    order = torch.randperm(N)
    batches = [order[first : first + SIZE] for first in range(0, N, SIZE)]
    k = 0
    print("ready", flush=True)
    while sys.stdin.readline():
        began = clocks()
        for _ in range(TURN):
            ids = batches[k % len(batches)]
            iteration(images[ids], labels[ids])
            k += 1
        print(TURN, *(clocks() - began), flush=True)


def ours(name: str, path: str, once: bool) -> None:
    """A fit that waits between its chunks."""
    import jax
    import optax

    import margaux as mx
    from margaux.algorithms.average import LastIterate
    from margaux.algorithms.base import Algorithm
    from margaux.algorithms.memory import NoMemory
    from margaux.algorithms.statistics import SurrogateMinimiser
    from margaux.algorithms.updates import Mean
    from margaux.families.variational.architectures import LeNet5
    from margaux.families.variational.draws import as_draws
    from margaux.families.variational.likelihoods import Categorical
    from margaux.families.variational.model import Variational, blocks
    from margaux.families.variational.networks import as_network
    from margaux.families.variational.posterior import GaussianPosterior
    from margaux.families.variational.priors import Normal
    from margaux.numerics.compiling import keep_compilations

    class Turns(mx.AbstractCallback):
        """Reports a turn, and waits to be asked for the next."""

        def __init__(self) -> None:
            self.iteration, self.began = 0, clocks()

        def __call__(self, progress: Any) -> bool:
            if self.iteration or once:
                print(progress.iteration - self.iteration, *(clocks() - self.began), flush=True)
            else:
                print("ready", flush=True)
            self.iteration, asked = progress.iteration, not once and bool(sys.stdin.readline())
            self.began = clocks()
            return not asked

        def close(self) -> None: ...

    keep_compilations()
    held = np.load(path)
    network, weights = as_network(LeNet5(key=jax.random.key(0)))
    table = name.startswith("misso")
    posterior, draws = GaussianPosterior("all" if table else "weight"), as_draws("shared" if table else name)
    model = Variational(network, Categorical(), Normal(1.0), posterior, N, BLOCKS, draws)
    algorithm: Any = mx.soul(step=optax.adam(1e-3), average=LastIterate())
    curvature = np.asarray(1e3)
    if name == "misso":
        algorithm = mx.misso(lipschitz=1e3, average=LastIterate())
    elif table:
        algorithm = Algorithm(statistic=SurrogateMinimiser(curvature), memory=NoMemory(), update=Mean(curvature),
                              average=LastIterate(), refresh_epochs=None)  # fmt: skip
    data, params = blocks(held["x"], held["y"], BLOCKS), model.start(weights, 0.05)
    hook = Turns()
    mx.fit(model, data, algorithm, mx.Noise(1), params=params, n_iter=10**6, batch_size=1, dtype="float32",
           polish=False, progress=False, callbacks=[hook])  # fmt: skip


# -- the race --------------------------------------------------------------------------------------------------------------


def torch_python() -> str | None:
    if os.environ.get("TORCH_PYTHON"):
        return os.environ["TORCH_PYTHON"]
    return sys.executable if importlib.util.find_spec("torch") else None


def started(python: str, name: str, path: str, *more: str, cache: str = "off") -> subprocess.Popen:
    environment = dict(os.environ) | {"MARGAUX_CACHE": cache, "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [python, __file__, "contestant", name, path, *more]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def answer(process: subprocess.Popen) -> list[str]:
    assert process.stdout is not None
    words = process.stdout.readline().split()
    if not words:
        raise SystemExit(f"a contestant ended: {process.args}")
    return words


def race(path: str, turns: int) -> dict[str, np.ndarray]:
    """Milliseconds an iteration of each contestant, wall and CPU, (turns, 2)."""
    python = torch_python()
    if python is None:
        print("PyTorch is not installed here, and is left out: set TORCH_PYTHON to an interpreter that has it")
    running: dict[str, subprocess.Popen] = {} if python is None else {"PyTorch": started(python, "PyTorch", path)}
    try:
        for name, process in running.items():
            assert answer(process) == ["ready"], name
        for name in OURS:  # one after the other: compiling is not what is measured here
            running[name] = started(sys.executable, name, path)
            assert answer(running[name]) == ["ready"], name
        found: dict[str, list[np.ndarray]] = {name: [] for name in running}
        for turn in range(turns + 3):  # the first turns grow the chunks of a fit
            for name, process in running.items():
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
                count, wall, cpu = map(float, answer(process))
                if turn >= 3:
                    found[name].append(1e3 * np.array([wall, cpu]) / count)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return {name: np.array(value) for name, value in found.items()}


def report(found: dict[str, np.ndarray]) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"milliseconds an iteration on {cores} cores, over {len(next(iter(found.values())))} turns")
    print(f"{'':22}{'wall':>8}{'middle':>8}{'CPU':>8}{'middle':>8}   epoch, s   over PyTorch: wall, middle, CPU, middle")
    figures = {name: np.ravel([value.min(axis=0), np.median(value, axis=0)], order="F") for name, value in found.items()}
    base = figures.get("PyTorch")
    for name, figure in figures.items():
        ratios = "" if base is None else "".join(f"{ratio:8.2f}" for ratio in figure / base)
        print(f"{name:22}" + "".join(f"{x:8.2f}" for x in figure) + f"{figure[1] * BLOCKS / 1e3:11.1f}   {ratios}")
    for name, limit in LIMITS.items():
        if base is None:
            continue
        ratios = figures[name][:2] / base[:2]
        print(f"{name}: {ratios[0]:.2f} of PyTorch's wall time by fastest turns, {ratios[1]:.2f} by middle ones; at most {limit}")
    cost = figures["misso"] - figures["misso without table"]
    print(f"MISSO's table: {cost[2]:.2f} ms of CPU by fastest turns, {cost[3]:.2f} by middle ones; at most {TABLE}")


def starts(path: str) -> None:
    """Cold and warm."""
    print("start: seconds to the end of 32 iterations, in a fresh process (wall, CPU)")
    for name in ("local", "flipout"):
        with tempfile.TemporaryDirectory() as cache:
            for kind in ("cold", "warm"):
                process = started(sys.executable, name, path, "once", cache=cache)
                count, wall, cpu = map(float, answer(process))
                process.wait()
                print(f"{name:10}{kind:6}{wall:8.1f}{cpu:8.1f}   ({count:.0f} iterations)")


def main() -> None:
    if sys.argv[1:2] == ["contestant"]:
        name, path, *more = sys.argv[2:]
        pytorch(path) if name == "PyTorch" else ours(name, path, more == ["once"])
        return
    from margaux.datasets import load_mnist

    x, y = load_mnist("train")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "images.npz")
        np.savez(path, x=x[:N].reshape(N, 28, 28, 1), y=y[:N].astype(np.int64))
        report(race(path, int(sys.argv[1]) if len(sys.argv) > 1 else 12))
        starts(path)


if __name__ == "__main__":
    main()
