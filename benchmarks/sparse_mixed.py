"""What SOUL costs on 500 rows, 1000 columns and 5 random effects: run on one thread, CPU seconds.

1. SparseMixedLogistic with its defaults and with the paper's settings: cold, warm, and microseconds an iteration.
2. A NumPy loop of the same algorithm in float32.
3. A selection path of ten penalties, warm.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import time

import numpy as np
from scipy.special import expit

import margaux as mx
from margaux.families.sparse_mixed.estimator import SparseMixedLogistic

ROWS, COLUMNS, GROUPS, N = 500, 1000, 5, 60_000


def data(seed: int = 0):
    rng = np.random.default_rng(seed)
    X, beta = rng.normal(size=(ROWS, COLUMNS)), np.zeros(COLUMNS)
    beta[rng.choice(COLUMNS, 20, replace=False)] = rng.uniform(1, 5, 20)
    group = np.repeat(np.arange(GROUPS), ROWS // GROUPS)
    return X, (rng.random(ROWS) < expit(X @ beta)).astype(float), group


def spent(function) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def numpy_loop(X, y, group, n_iter: int):
    X, y, f = X.astype(np.float32), y.astype(np.float32), np.float32

    def run():
        rng = np.random.default_rng(0)
        beta, sigma, x = np.ones(COLUMNS, np.float32), f(1), np.zeros(GROUPS, np.float32)
        for n in range(1, n_iter + 1):
            eta, delta = X @ beta, f(0.2 * n**-0.95)
            slope = sigma * np.bincount(group, weights=y - expit(eta + sigma * x[group])) - x
            x = (x + 0.01 * slope + np.sqrt(0.02) * rng.standard_normal(GROUPS)).astype(np.float32)
            rest = y - expit(eta + sigma * x[group])
            beta = beta + delta * (rest @ X)
            beta = np.sign(beta) * np.maximum(np.abs(beta) - 30 * delta, 0)
            sigma = max(sigma + delta * f(rest @ x[group]), f(1e-5))

    return run


def main() -> None:
    X, y, group = data()
    paper = {"step": mx.Polynomial(0.2, 0.95), "kernel": mx.ULA(0.01), "start": {"beta": np.ones(COLUMNS)}, "warm_up": 10_000}
    for name, settings in [("defaults", {}), ("the paper's settings", paper)]:
        fit = lambda n, settings=settings: SparseMixedLogistic(n_iter=n, verbose=False, **settings).fit(X, y, group)  # noqa: E731
        cold = spent(lambda fit=fit: fit(2000))
        short, long = spent(lambda fit=fit: fit(2000)), spent(lambda fit=fit: fit(N))
        each = (long - short) / (N - 2000) * 1e6
        print(
            f"{name}: {N:,} iterations {long:.2f} s warm ({each:.1f} us each); 2,000 iterations {short:.2f} s, cold {cold:.2f} s"
        )
    loop = spent(numpy_loop(X, y, group, 3000)) / 3000 * 1e6
    print(f"NumPy loop: {loop:.1f} us an iteration")
    model = SparseMixedLogistic(verbose=False)
    weights = np.geomspace(60, 15, 10)
    model.path(X, y, group, weights[:2], n_iter=2000)
    print(f"path of 10 penalties, 2,000 iterations each: {spent(lambda: model.path(X, y, group, weights, n_iter=2000)):.2f} s")


if __name__ == "__main__":
    main()
