"""Mini-batch iterations over several processes beside those of one: `python benchmarks/batches.py [--processes 1 2] [--cores 1]`.

SOUL on 1,000,000 units of six answers in mini-batches of 10,000, five transitions a unit. Printed are wall-clock and CPU
milliseconds an iteration (the most of a process) once programs are compiled, CPU seconds before that, the share of time in which
the device waited, and the estimate, which must agree. One process has all cores unless `--cores` gives each process so many of
its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

HEAD = """
import json
import os
import sys
import time
import warnings
warnings.simplefilter("ignore")
if os.environ.get("CORES"):
    index, count = int(os.environ.get("JAX_PROCESS_ID", "0")), int(os.environ["CORES"])
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [usable[(index * count + i) % len(usable)] for i in range(count)])
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

class Clock(mx.AbstractCallback):
    '''Wall-clock and CPU seconds at the ends of chunks.'''
    def __init__(self):
        self.seen = []
    def __call__(self, progress):
        self.seen.append((progress.iteration, time.perf_counter(), time.process_time()))
        return False
    def close(self):
        return None

def report(first, n_iter, **settings):
    '''Of the iterations after the first ones, in which programs are compiled and chunks grow.'''
    clock = Clock()
    began = time.process_time()
    fit = mx.fit(Intercept(), data, mx.soul(), mx.MCMC(mx.MALA(), n_steps=5), params={"mu": 0.0, "spread": 0.0}, n_iter=n_iter,
                 key=1, polish=False, progress=False, callbacks=[clock], **settings)
    start = next(one for one in clock.seen if one[0] >= first)
    count, wall, cpu = (last - then for last, then in zip(clock.seen[-1], start))
    found = [float(fit.params[name]) for name in ("mu", "spread")]
    wait = fit.timings["wait"] / (fit.timings["wait"] + fit.timings["run"])
    print("RESULT" + json.dumps({"process": jax.process_index(), "wall": 1e3 * wall / count, "cpu": 1e3 * cpu / count,
                                 "before": start[2] - began, "wait": wait, "found": found}), flush=True)
"""

JOB = """
data = mx.shard(simulated(1_000_000))
report(100, 600, batch_size=10_000)
"""


def run(processes: int, cores: int) -> list[dict]:
    """What each process reports."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(HEAD + JOB)
        script.flush()
        command = [sys.executable, "-m", "margaux", "launch", "-n", str(processes), script.name]
        env = os.environ | {"JAX_PLATFORMS": "cpu"} | ({"CORES": str(cores)} if cores else {})
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise SystemExit(f"{processes} processes failed:\n{done.stderr[-3000:]}")
    return [json.loads(line.split("RESULT")[1]) for line in done.stdout.splitlines() if "RESULT" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cores", type=int, default=0)
    args = parser.parse_args()
    for processes in args.processes:
        every = run(processes, args.cores)
        wall, cpu, before, wait = (max(one[name] for one in every) for name in ("wall", "cpu", "before", "wait"))
        print(
            f"{processes} processes: {wall:6.2f} ms, {cpu:6.2f} CPU ms a process and iteration; {before:5.1f} CPU s before; "
            f"waited {wait:.1%}; estimate {every[0]['found']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
