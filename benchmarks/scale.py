"""One fit over several processes beside one process on as many cores: `python benchmarks/scale.py [JOB ...] [--processes 1 2]`.

Wall-clock and CPU seconds (the most of a process) of the iterations alone, peak memory, and the estimates, which must agree. One
process uses all cores, several share them; the last job is one whole fit, compilation and all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap

HEAD = """
import json
import os
import resource
import sys
import time
import warnings
warnings.simplefilter("ignore")
import margaux as mx
mx.distributed.initialize()
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.stats import norm

class Intercept(mx.AbstractModel):
    '''Six answers of a unit; a random intercept.'''
    def log_joint(self, params, z, y):
        eta = params["mu"] + z
        return jnp.sum(y * eta - jnp.logaddexp(0.0, eta)) + norm.logpdf(z, 0.0, jnp.exp(params["spread"]))
    def init_latents(self, key, params, y):
        return jnp.zeros((), y.dtype)

def simulated(n):
    rng = np.random.default_rng(0)
    return (rng.random((n, 6)) < 1 / (1 + np.exp(-(0.3 + rng.normal(size=(n, 1)))))).astype(float)

def timed(n_iter, **settings):
    fit = mx.fit(Intercept(), data, mx.soul(), mx.MCMC(), params={"mu": 0.0, "spread": 0.0}, n_iter=n_iter, key=1, polish=False,
                 progress=False, **settings)
    return fit

def report(short, long, **settings):
    beyond(lambda n: timed(n, **settings), short, long, lambda fit: [float(fit.params[name]) for name in ("mu", "spread")])

def beyond(run, short, long, told):
    '''What so many more iterations cost.'''
    run(short)
    at = time.perf_counter(), time.process_time()
    run(short)
    middle = time.perf_counter(), time.process_time()
    fit = run(long)
    wall, cpu = (time.perf_counter() - 2 * middle[0] + at[0], time.process_time() - 2 * middle[1] + at[1])
    said = {"process": jax.process_index(), "wall": wall, "cpu": cpu, "found": told(fit), "peak": peak()}
    sys.stdout.write("RESULT" + json.dumps(said) + "\\n")
    sys.stdout.flush()

def peak():
    '''Memory that this process has had at once, in MiB.'''
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def cells(n, p, at_once=500):
    '''Sparse counts of the cells of a process and the logarithms of their depth; whichever process has a cell, it is the same.'''
    C = np.random.default_rng(1).normal(0, 0.5, (p, 5))
    level = np.random.default_rng(2).normal(-3.3, 1.2, p)
    first, last = (n * (jax.process_index() + more) // jax.process_count() // at_once * at_once for more in (0, 1))
    blocks, depths = [], []
    for begin in range(first, last, at_once):
        rng = np.random.default_rng([3, begin])
        depth = rng.normal(0, 0.4, (at_once, 1))
        rates = np.exp(level + depth + rng.normal(size=(at_once, 5)) @ C.T)
        blocks.append(scipy.sparse.csr_array(rng.poisson(rates).astype(np.uint16)))
        depths.append(depth)
    counts = scipy.sparse.vstack(blocks, format="csr")
    return mx.shard(counts, local=True), mx.shard(np.concatenate(depths), local=True)

def whole_fit():
    began = time.perf_counter(), time.process_time()
    model = plnpca(100, dtype="float32")
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    found = [model.elbo_, f"{model.n_sweeps_} sweeps", counts.data.nnz if hasattr(counts, "share") else counts.nnz]
    said = {"process": jax.process_index(), "wall": wall, "cpu": cpu, "found": found, "peak": peak()}
    sys.stdout.write("RESULT" + json.dumps(said) + "\\n")
    sys.stdout.flush()

def plnpca(sweeps, **settings):
    model = mx.PLNPCA(rank=5, method="variational", n_starts=1, max_sweeps=sweeps, verbose=False, **settings)
    return model.fit(counts, offsets=depths)
"""

JOBS = {
    "SOUL, 100,000 units, all of them": """
        data = mx.shard(simulated(100_000))
        report(20, 120)
    """,
    "PLN-PCA, 20,000 x 2,000": """
        counts, depths = cells(20_000, 2_000)
        beyond(plnpca, 3, 23, lambda model: [model.elbo_])
    """,
    "PLN-PCA, 20,000 x 10,000": """
        counts, depths = cells(20_000, 10_000)
        whole_fit()
    """,
    "PLN-PCA, 60,000 x 20,000": """
        counts, depths = cells(60_000, 20_000, 250)
        whole_fit()
    """,
}


def run(job: str, processes: int) -> list[dict]:
    """What each process reports."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(HEAD + textwrap.dedent(JOBS[job]))
        script.flush()
        command = [sys.executable, "-m", "margaux", "launch", "-n", str(processes), script.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    if done.returncode:
        raise SystemExit(f"{job} failed:\n{done.stderr[-3000:]}")
    return [json.loads(line.split("RESULT")[1]) for line in done.stdout.splitlines() if "RESULT" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    for job in args.jobs:
        print(job)
        for processes in args.processes:
            every = run(job, processes)
            wall, cpu = (max(one[name] for one in every) for name in ("wall", "cpu"))
            most = max(one["peak"] for one in every)
            told = f"{wall:7.2f} s, {cpu:7.2f} CPU s and {most:5.0f} MiB a process; found {every[0]['found']}"
            print(f"  {processes} processes: {told}", flush=True)


if __name__ == "__main__":
    main()
