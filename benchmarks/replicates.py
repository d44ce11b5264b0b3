"""What many fits of one shape cost: 500 bootstraps of theophylline, and ranks times folds of PLN-PCA, in CPU seconds.

Each job runs in this process, import left out, without a cache of programs.

`python benchmarks/replicates.py [bootstrap] [folds]`; both by default.
"""

from __future__ import annotations

import os
import sys
import time

os.environ["MARGAUX_CACHE"] = "off"

import numpy as np

import margaux as mx

REPLICATES, RANKS, FOLDS = 500, (2, 4), 3


def bootstrap() -> None:
    """Subjects drawn again, as weights of one program."""
    from margaux.datasets import load_theophylline
    from margaux.families.nlme import LogNormal, oral1cpt

    individual = {"ka": LogNormal(1.5), "V": LogNormal(30.0), "CL": LogNormal(2.5)}
    model = mx.NLME(structural=oral1cpt, individual=individual, verbose=False)
    model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
    problem, fit = model.result_._model(), model.result_
    n = problem.n
    weights = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), REPLICATES)
    began, wall = time.process_time(), time.perf_counter()
    fits = mx.fit_many(problem.model, fit.data, params=fit.params, space=problem.space, weights=weights, progress=False)
    took = f"{time.process_time() - began:.1f} CPU s, {time.perf_counter() - wall:.1f} s"
    print(f"{REPLICATES} bootstraps of {n} subjects: {took}; {int(fits.converged.sum())} converged", flush=True)


def folds() -> None:
    """Fits to the rows outside each fold, for each rank."""
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(120, 3)) @ rng.normal(size=(3, 60)) / 2
    counts = rng.poisson(np.exp(1.0 + latent))
    fold = rng.permutation(len(counts)) % FOLDS
    began, wall = time.process_time(), time.perf_counter()
    for rank in RANKS:
        for left in range(FOLDS):
            mx.PLNPCA(rank=rank, verbose=False).fit(counts[fold != left])
    took = f"{time.process_time() - began:.1f} CPU s, {time.perf_counter() - wall:.1f} s"
    print(f"{len(RANKS)} ranks x {FOLDS} folds of {counts.shape[0]} x {counts.shape[1]} counts: {took}", flush=True)


JOBS = {"bootstrap": bootstrap, "folds": folds}

if __name__ == "__main__":
    if unknown := set(sys.argv[1:]) - set(JOBS):
        raise SystemExit(f"there is no job {min(unknown)!r}; they are {', '.join(JOBS)}")
    for name in sys.argv[1:] or JOBS:
        JOBS[name]()
