"""What the engine costs beyond the arithmetic: run on one thread by `make bench`.

1. SOUL on Wisconsin (683 x 10, one chain, float32) against a hand-written `lax.scan` and a NumPy loop
   of the same algorithm. Warm runs, CPU seconds, ratios within this run.
2. Mini-batch MISSO (batch 1) with rows of 200 floats and an E-step of next to no arithmetic, so that
   what is timed is the engine, at n = 6,384 and n = 200,000.
3. Cold compilation of the two demonstrations, in CPU seconds, each in a fresh process.
4. `import margaux` beyond `import jax`.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import margaux as mx
from margaux.examples import wisconsin
from margaux.numerics.density import bernoulli_logit

GAMMA, N = 8.34e-5, 100_000


def cpu(function, repeats: int = 5) -> float:
    """Least CPU seconds of a few runs."""
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        function()
        spent.append(time.process_time() - began)
    return min(spent)


def hand_written(X, y, n_iter: int):
    """SOUL as a bare scan, its noise drawn ahead from one key a block of 1,000 iterations."""
    X, y = jnp.asarray(X, jnp.float32), jnp.asarray(y, jnp.float32)

    def log_joint(theta, beta):
        prior = -0.5 * jnp.sum((beta - theta) ** 2) / 5 - 5 * jnp.log(2 * jnp.pi * 5)
        return jnp.sum(bernoulli_logit(y, X @ beta)) + prior

    def step(carry, inputs):
        theta, beta, weight, mean = carry
        k, noise = inputs
        beta = beta + GAMMA * jax.grad(log_joint, 1)(theta, beta) + jnp.sqrt(2 * GAMMA) * noise
        delta = 60.0 * k**-0.8
        theta = jnp.clip(theta + delta * jax.grad(log_joint, 0)(theta, beta), -100, 100)
        weight = weight + delta
        return (theta, beta, weight, mean + delta / weight * (theta - mean)), theta

    @jax.jit
    def block(carry, first, key):
        ks = (first + jnp.arange(1000)).astype(jnp.float32)
        return jax.lax.scan(step, carry, (ks, jax.random.normal(key, (1000, 10))))

    def run():
        carry = (jnp.zeros(()), jnp.zeros(10), jnp.zeros(()), jnp.zeros(()))
        key = jax.random.key(0)
        for first in range(1, n_iter, 1000):
            carry, _ = block(carry, first, jax.random.fold_in(key, first))
        carry[3].block_until_ready()

    return run


def numpy_loop(X, y, n_iter: int, dtype):
    """SOUL in NumPy, in its default precision or in float32 with a transposed copy of the design."""
    X, y = X.astype(dtype), y.astype(dtype)
    Xt = np.ascontiguousarray(X.T)

    def run():
        rng = np.random.default_rng(0)
        theta, beta, weight, mean = 0.0, np.zeros(10, dtype), 0.0, 0.0
        for k in range(1, n_iter + 1):
            gradient = Xt @ (y - 1 / (1 + np.exp(-(X @ beta)))) - (beta - theta) / 5
            beta = beta + dtype(GAMMA) * gradient + dtype(np.sqrt(2 * GAMMA)) * rng.standard_normal(10, dtype)
            delta = 60.0 * k**-0.8
            theta = min(max(theta + delta * float(np.sum(beta - theta)) / 5, -100), 100)
            weight += delta
            mean += delta / weight * (theta - mean)
        return mean

    return run


def soul_cost() -> None:
    unit = wisconsin.data()
    X, y = unit["X"][0], unit["y"][0]
    ours = lambda: wisconsin.fit(n_iter=N, progress=False)  # noqa: E731
    bare = hand_written(X, y, N)
    ours()
    bare()
    # The start and end of a fit cost the same at any length: they are taken off.
    short = cpu(lambda: wisconsin.fit(n_iter=1000, progress=False))
    a, b = (cpu(ours) - short) / (N - 1000) * 1e6, cpu(bare) / N * 1e6
    print(f"SOUL, Wisconsin: engine {a:.2f} us, bare scan {b:.2f} us (ratio {a / b:.2f})")
    for dtype in (np.float64, np.float32):
        c = cpu(numpy_loop(X, y, N // 10, dtype), 3) / (N // 10) * 1e6
        print(f"  NumPy loop in {dtype.__name__}: {c:.2f} us (engine {c / a:.2f} times faster, bare scan {c / b:.2f})")
    print(f"  set-up and end of a warm fit: {short * 1e3:.0f} ms of CPU time")


class Rows(mx.AbstractModel):
    """200 parameters a unit's score touches, with hardly any arithmetic: what is left is the engine."""

    def log_joint(self, params, z, y):
        return -0.5 * (z - y) ** 2 + 0.001 * z * jnp.sum(params["theta"])

    def init_latents(self, key, params, y):
        return jnp.zeros((), y.dtype)


def misso_cost() -> None:
    figures = {}
    for n in (6_384, 200_000):
        y = np.random.default_rng(0).normal(size=n).astype(np.float32)

        def fit(n_iter, y=y):
            return mx.fit(Rows(), y, mx.misso(10.0), mx.Noise(), params={"theta": np.zeros(200)}, n_iter=n_iter, batch_size=1,
                          sampling="uniform", dtype="float32", polish=False, progress=False)  # fmt: skip

        fit(2048)
        short, long = cpu(lambda: fit(2048), 3), cpu(lambda: fit(2048 + 20_480), 3)
        figures[n] = (long - short) / 20_480 * 1e6
    for n, figure in figures.items():
        print(f"MISSO, batch 1, n = {n:,}, rows of 200 floats: {figure:.1f} us an iteration, its one-draw E-step included")
    print(f"  ratio {figures[200_000] / figures[6_384]:.2f}")


COLD = """
import time
import margaux as mx
from margaux.examples import {name} as example
example.data()
began = time.process_time()
example.fit(n_iter=20, progress=False)
print(time.process_time() - began)
"""


def cold_cost() -> None:
    for name in ("wisconsin", "theophylline"):
        out = subprocess.run([sys.executable, "-c", COLD.format(name=name)], capture_output=True, text=True, check=True)
        print(f"cold fit of {name}: {float(out.stdout):.1f} CPU s")


def import_cost() -> None:
    def once(code: str) -> float:
        timed = f"import time; import jax; b = time.perf_counter(); {code}; print(time.perf_counter() - b)"
        out = [subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True) for _ in range(3)]
        return min(float(o.stdout) for o in out)

    print(f"import margaux beyond import jax: {once('import margaux'):.2f} s")


if __name__ == "__main__":
    soul_cost()
    misso_cost()
    cold_cost()
    import_cost()
