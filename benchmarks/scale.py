"""One fit over several processes beside one process on as many cores: `python benchmarks/scale.py [JOB ...] [--processes 1 2]`.

Wall-clock and CPU seconds (the most of a process) of the iterations alone, and the estimates, which must agree.
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
import sys
import time
import warnings
warnings.simplefilter("ignore")
import margaux as mx
mx.distributed.initialize()
import jax
import jax.numpy as jnp
import numpy as np
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
    timed(short, **settings)
    at = time.perf_counter(), time.process_time()
    timed(short, **settings)
    middle = time.perf_counter(), time.process_time()
    fit = timed(long, **settings)
    wall, cpu = (time.perf_counter() - 2 * middle[0] + at[0], time.process_time() - 2 * middle[1] + at[1])
    found = [float(fit.params[name]) for name in ("mu", "spread")]
    print("RESULT" + json.dumps({"process": jax.process_index(), "wall": wall, "cpu": cpu, "found": found}), flush=True)
"""

JOBS = {
    "SOUL, 1,000,000 units, batches of 10,000": """
        data = mx.shard(simulated(1_000_000))
        report(100, 600, batch_size=10_000)
    """,
    "SOUL, 100,000 units, all of them": """
        data = mx.shard(simulated(100_000))
        report(20, 120)
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
            print(f"  {processes} processes: {wall:7.2f} s, {cpu:7.2f} CPU s a process; estimate {every[0]['found']}", flush=True)


if __name__ == "__main__":
    main()
