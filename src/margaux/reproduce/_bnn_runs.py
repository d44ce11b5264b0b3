"""Runs behind `misso_bnn`: data, methods at the paper's settings and at their best step, and what is recorded of each."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import margaux as mx
from margaux.datasets import load_cifar10, load_digits, load_mnist
from margaux.engine.callbacks import AbstractCallback
from margaux.families.variational.draws import as_draws
from margaux.families.variational.likelihoods import Categorical
from margaux.families.variational.networks import as_network
from margaux.families.variational.priors import Normal
from margaux.families.variational.training import Settings, Trained, train

#: the paper's step of every method, and its coefficient of momentum
PAPER_STEP, PAPER_MOMENTUM = 1e-3, 1e-3
METHODS = {"adam": "MC-Adam", "momentum": "MC-Momentum", "bbb": "BBB", "sag": "MC-SAG", "misso": "MISSO"}


class Course(NamedTuple):
    """Negative ELBO an observation at the end of each epoch, and the CPU seconds until there, without compilation."""

    loss: np.ndarray
    seconds: np.ndarray
    failed: bool


def mnist(n: int) -> tuple[np.ndarray, np.ndarray, str]:
    """The first n training images, of the folder `mnist` in MARGAUX_DATA or by download, and where they are from: scikit-learn's
    digits, enlarged, where MNIST is not at hand."""
    folder = Path(os.environ.get("MARGAUX_DATA", "")) / "mnist"
    try:
        x, y = load_mnist("train", folder=folder if folder.is_dir() else None)
        return x[:n], y[:n], "MNIST"
    except (OSError, ImportError, RuntimeError):
        x, y = load_digits()
        large = np.pad(np.kron(x, np.ones((1, 3, 3, 1), np.uint8)), ((0, 0), (2, 2), (2, 2), (0, 0)))
        return large[:n], y[:n], "scikit-learn's digits"


def cifar(n: int) -> tuple[np.ndarray, np.ndarray, str]:
    """The first n training images; noise of their shape where CIFAR-10 is not at hand, which tells the time all the same."""
    try:
        x, y = load_cifar10("train")
        return x[:n], y[:n], "CIFAR-10"
    except (OSError, ImportError, RuntimeError):
        rng = np.random.default_rng(0)
        return rng.integers(0, 256, (n, 32, 32, 3)).astype(np.uint8), rng.integers(0, 10, n), "noise"


def literal(method: str, step: float = PAPER_STEP) -> Any:
    """The paper's settings: one step for means and for the scalar log standard deviation."""
    last = mx.LastIterate()
    return {
        "adam": mx.soul(step=optax.adam(step), average=last),
        "adagrad": mx.soul(step=optax.adagrad(step), average=last),
        "momentum": mx.soul(step=optax.sgd(step, PAPER_MOMENTUM), average=last),
        "bbb": mx.soul(step=step, average=last),
        "sag": mx.sag(step=step, average=last),
        "misso": mx.misso(lipschitz=1 / step, average=last),
    }[method]


class Clock(AbstractCallback):
    """CPU seconds at the end of each epoch; those of the first chunk, which compiles, are put at the rate of the others."""

    def __init__(self, epoch: int) -> None:
        self.period, self.iterations, self.seconds = epoch, [], []

    def __call__(self, progress):
        self.iterations.append(progress.iteration)
        self.seconds.append(time.process_time())
        return False

    def close(self) -> None:
        pass

    def times(self, draws: np.ndarray) -> np.ndarray:
        """Seconds by the end of each epoch, where the epochs have so many draws."""
        if min(len(self.seconds), len(draws)) < 2:
            return np.full(len(draws), np.nan)
        rate = (self.seconds[-1] - self.seconds[0]) / draws[1:].sum()
        first = rate * draws[0]
        return first + np.array(self.seconds) - self.seconds[0]


def run(
    network: Any, x: np.ndarray, y: np.ndarray, method: Any, step: Any, epochs: int, batch: int, seed: int, growing: bool = True
) -> tuple[Course, Trained]:
    """One fit with a scalar standard deviation, M_k = k draws in epoch k (or one), by Flipout."""
    blocks = -(-len(x) // batch)
    made, weights = as_network(network)
    settings = Settings(
        method=method,
        step=step,
        spread="all",
        sigma=0.05,
        n_draws=mx.Growth(0, 1, 1, epoch=blocks) if growing else 1,
        n_blocks=blocks,
        epochs=epochs,
        seed=seed,
        progress=False,
    )
    clock = Clock(blocks)
    trained = train(made, weights, Categorical(), Normal(1.0), as_draws("flipout"), x, y, settings, callbacks=[clock])
    draws = np.arange(1, epochs + 1) if growing else np.ones(epochs)
    loss = -trained.history["elbo"].to_numpy()
    failed = trained.fit.result.failed or not np.all(np.isfinite(loss))
    return Course(loss, clock.times(draws)[: len(loss)], bool(failed)), trained


def best_step(
    network: Any, x: np.ndarray, y: np.ndarray, method: str, batch: int, epochs: int = 4
) -> tuple[float, dict[float, float]]:
    """The step of the lowest negative ELBO over the last two of a few epochs, and what each reached: the default one times 1/4,
    1/2 to 4, and on as long as the longest is the best. Two, for with too long a step SAG swings from one to the next."""
    _, first = run(network, x, y, method, None, 1, batch, 0, growing=False)
    tried: dict[float, float] = {}
    step = longest = first.step / 4
    while len(tried) < 5 or (len(tried) < 9 and min(tried, key=lambda one: tried[one]) == longest):
        course, _ = run(network, x, y, method, step, epochs, batch, 0, growing=False)
        tried[step] = np.inf if course.failed or len(course.loss) < epochs else float(course.loss[-2:].mean())
        step, longest = 2 * step, step
    return min(tried, key=lambda step: tried[step]), tried


def on_gpu() -> bool:
    """Whether the computation runs on an accelerator."""
    return jax.default_backend() != "cpu"
