"""PLN-PCA of rank 15 at the size of an atlas of single cells: sweeps, CPU seconds a sweep, and peak memory of the process.

Counts are simulated: 19,998 cells, 14,059 genes, 12% of entries not zero, CSR of int32. The fit is in float32 with log totals as
offsets, from one start, to a relative change of the bound of 1e-6.

    python benchmarks/atlas.py [--covariates 3] [--cells 19998] [--genes 14059] [--stderr] [--epoch]
"""

from __future__ import annotations

import argparse
import resource
import time

import jax
import jax.numpy as jnp
import numpy as np

import margaux as mx
from margaux.algorithms.base import Algorithm
from margaux.algorithms.memory import NoMemory
from margaux.families.pln.ascent import ConditionalScore, InformationAscent, two_levels
from margaux.families.pln.conditional import VARIANTS, ConditionalSampling
from margaux.families.pln.counts import Counts
from margaux.families.pln.fitting import Design
from margaux.families.pln.importance import marginal
from margaux.families.pln.inference import complete, standard_errors
from margaux.families.pln.model import PLN, units
from margaux.families.pln.proposals import Plan
from margaux.families.pln.restarts import Search, best_of
from margaux.families.pln.table import read
from margaux.families.pln.variational import Loadings, Posterior
from margaux.numerics.precision import precision
from margaux.reproduce._atlas import atlas


def peak() -> str:
    """Most memory that this process has had."""
    return f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"


class Clock:
    """CPU seconds at the ends of sweeps that were accepted, those before them that were refused included."""

    def __init__(self) -> None:
        self.began = time.process_time()
        self.ends: list[float] = []

    def __call__(self, sweep: int, bound: float) -> None:
        self.ends.append(time.process_time() - self.began)
        print(f"  sweep {sweep}: bound {bound:,.1f}, {self.ends[-1]:.1f} CPU s, {peak()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="PLN-PCA at the size of an atlas of single cells.")
    parser.add_argument("--covariates", type=int, default=0)
    parser.add_argument("--cells", type=int, default=19_998)
    parser.add_argument("--genes", type=int, default=14_059)
    parser.add_argument("--stderr", action="store_true", help="standard errors of the coefficients, too")
    parser.add_argument("--epoch", action="store_true", help="an epoch of AISGD-Hessian, too")
    args = parser.parse_args()
    counts, truth = atlas(args.cells, args.genes)
    x = np.random.default_rng(1).standard_normal((args.cells, args.covariates)) if args.covariates else None
    print(
        f"{counts.shape[0]} x {counts.shape[1]}, {counts.nnz / np.prod(counts.shape):.1%} not zero; simulated: {peak()}",
        flush=True,
    )
    table = read(counts, x, offsets="total")
    design = Design(table.counts, table.x, table.offset)
    clock = Clock()
    solution, _ = best_of(design, 15, Search(1, dtype=np.float32, relative=1e-6), clock)
    loadings, posterior, bounds = solution.loadings, solution.posterior, solution.bounds
    print(
        f"converged: {solution.converged}; {len(bounds)} sweeps, {clock.ends[0]:.1f} CPU s to the end of the first, "
        f"{np.diff(clock.ends).mean():.1f} a sweep after it, {clock.ends[-1]:.0f} in all; {peak()}",
        flush=True,
    )
    cosines = np.linalg.svd(np.linalg.qr(truth.C[table.kept_columns])[0].T @ np.linalg.qr(loadings.C)[0], compute_uv=False)
    print(f"least cosine of the angles between the spaces of true and fitted loadings: {cosines.min():.4f}", flush=True)
    if args.epoch:
        with precision(np.dtype(np.float32)):
            epoch(design, loadings, posterior)
    with precision(np.dtype(float)):
        exact = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), (loadings, posterior))
        log_likelihood(design, *exact, cells=min(200, args.cells))
        if args.stderr:
            began = time.process_time()
            errors = standard_errors(design, *exact)
            print(f"standard errors of {errors.size} coefficients: {time.process_time() - began:.0f} CPU s; {peak()}")


def epoch(design: Design, loadings: Loadings, posterior: Posterior, n_draws: int = 128, batch_size: int = 64) -> None:
    """Every unit once, through the engine, after some that compile."""
    began = time.process_time()
    c, mean = np.asarray(loadings.C), np.asarray(posterior.mean)
    information = two_levels(complete(design, loadings, posterior), c, np.asarray(design.x), mean)
    print(f"information of the features: {time.process_time() - began:.0f} CPU s; {peak()}", flush=True)
    size = len(design.x) / batch_size
    update, average = InformationAscent(mx.Polynomial(size**-0.4, 0.6, size), information), mx.PolyakRuppert()
    algorithm = Algorithm(statistic=ConditionalScore(), memory=NoMemory(), update=update, average=average, refresh_epochs=None)
    estep = ConditionalSampling(loadings.C.shape[1], n_draws, *VARIANTS["aisgd-hessian"])
    data, params = units(design, posterior, np.float32), {"B": np.asarray(loadings.B), "C": np.asarray(loadings.C)}
    settings: dict = {"params": params, "batch_size": batch_size, "rows": "host", "dtype": "float32"}
    mx.fit(PLN(), data, algorithm, estep, n_iter=4, polish=False, progress=False, **settings)
    began = time.process_time()
    found = mx.fit(PLN(), data, algorithm, estep, n_iter=int(size), **settings, polish=False)
    spent, ess = time.process_time() - began, found.trace["ess"].mean()
    print(f"an epoch of {n_draws} draws a cell: {spent:.0f} CPU s, {ess:.0f} effective draws a cell; {peak()}", flush=True)


def log_likelihood(design: Design, loadings: Loadings, posterior: Posterior, cells: int) -> None:
    """Time of importance sampling with 128 draws a cell, from some cells."""
    part = Design(Counts(design.counts.values[:cells]), design.x[:cells], design.offset[:cells])
    some = Posterior(posterior.mean[:cells], posterior.spread[:cells])
    run = lambda: marginal(part, loadings, some, plan=Plan(draws=64, replicates=2))  # noqa: E731
    run()
    began = time.process_time()
    found = run()
    each = (time.process_time() - began) / cells
    print(f"log p(y) by 128 draws: {each * 1e3:.0f} CPU ms a cell, {each * len(design.x):.0f} s for all; {peak()}")
    print(f"its error for all cells: {found.total[1] * np.sqrt(len(design.x) / cells):.2f} nats", flush=True)


if __name__ == "__main__":
    main()
