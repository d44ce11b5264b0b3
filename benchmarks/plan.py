"""The cost model of `margaux doctor --plan` beside measured iterations: `python benchmarks/plan.py [POINT ...]`.

CPU seconds of an iteration on one core, the model's by rates that are measured before and after, and their ratio, which should
lie between a half and two. Exit code 1 if one does not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable

if hasattr(os, "sched_setaffinity"):  # one core, so that CPU seconds are of work, not of threads that wait for each other
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

import margaux as mx
from margaux.commands.plan import parsed, work
from margaux.commands.rates import Rates, measured
from margaux.families.pln.counts import Counts
from margaux.families.pln.fitting import Design, Sweeps
from margaux.families.pln.start import by_log_counts


class Intercept(mx.AbstractModel):
    """Answers of a unit; a random intercept."""

    def log_joint(self, params, z, y):
        eta = params["mu"] + z
        return jnp.sum(y * eta - jnp.logaddexp(0.0, eta)) + norm.logpdf(z, 0.0, jnp.exp(params["spread"]))

    def init_latents(self, key, params, y):
        return jnp.zeros((), y.dtype)


def of_fit(n: int, p: int, few: int, many: int, **settings) -> float:
    """CPU seconds of an iteration of SOUL."""
    rng = np.random.default_rng(0)
    data = (rng.random((n, p)) < 1 / (1 + np.exp(-(0.3 + rng.normal(size=(n, 1)))))).astype(float)
    start = {"mu": 0.0, "spread": 0.0}

    def fitted(n_iter: int) -> float:
        began = time.process_time()
        mx.fit(Intercept(), data, mx.soul(), mx.MCMC(), params=start, n_iter=n_iter, polish=False, progress=False, **settings)
        return time.process_time() - began

    return _slope(fitted, few, many)


def of_pln(n: int, p: int, q: int, few: int = 2, many: int = 6) -> float:
    """CPU seconds of a sweep of variational EM."""
    rng = np.random.default_rng(0)
    z = 0.5 * rng.normal(size=(n, q)) @ rng.normal(size=(q, p)) / q**0.5
    design = Design(Counts(rng.poisson(np.exp(z)).astype(float)), np.ones((n, 1)), np.zeros((n, 1)))
    with jax.enable_x64(True):
        start = by_log_counts(design, q)
        sweeps = Sweeps(design, np.dtype(float), tol=0.0, relative=0.0)

        def swept(count: int) -> float:
            began = time.process_time()
            run = sweeps.on(sweeps.begin(*start), count)
            jax.block_until_ready(run.state)
            return time.process_time() - began

        return _slope(swept, few, many)


def _slope(spent: Callable[[int], float], few: int, many: int) -> float:
    """Seconds of one more, the least of two."""
    spent(few)
    spent(many)
    return min((spent(many) - spent(few)) / (many - few) for _ in range(2))


POINTS: dict[str, Callable[[], float]] = {
    "soul 20,000 x 6": lambda: of_fit(20_000, 6, 10, 50),
    "soul 100,000 x 6": lambda: of_fit(100_000, 6, 3, 13),
    "soul 100,000 x 6 batch 10,000": lambda: of_fit(100_000, 6, 50, 250, batch_size=10_000),
    "soul 5,000 x 50": lambda: of_fit(5_000, 50, 10, 50),
    "pln 1,000 x 300 rank 5": lambda: of_pln(1_000, 300, 5),
    "pln 2,000 x 2,000 rank 5": lambda: of_pln(2_000, 2_000, 5),
    "pln 1,000 x 1,000 rank 20": lambda: of_pln(1_000, 1_000, 20),
    "pln 4,000 x 2,000 rank 10": lambda: of_pln(4_000, 2_000, 10),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="*", default=list(POINTS))
    wrong = 0
    print("| a plan | measured | model | ratio |\n|---|---|---|---|")
    for name in parser.parse_args().points:
        warnings.simplefilter("ignore")
        before, spent, after = measured(np.dtype(float)), POINTS[name](), measured(np.dtype(float))
        best = (max(getattr(before, what), getattr(after, what)) for what in ("flops", "specials", "draws", "bytes"))
        model = work(parsed(name)).seconds(Rates(*best), False)
        wrong += not 0.5 <= model / spent <= 2
        print(f"| {name} | {1000 * spent:.3g} ms | {1000 * model:.3g} ms | {model / spent:.2f} |", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
