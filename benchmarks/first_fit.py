"""The first minute, whole jobs in new processes with imports, on an idle machine: `python benchmarks/first_fit.py [JOB ...]`.

Three times of each job, a fit with standard errors and log-likelihood: the very first, with an empty cache of programs; in a new
process that finds the programs of the first; and again in the same process. Wall clock and CPU seconds, medians over `--repeats`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap

HEAD = """
import os
import warnings
warnings.simplefilter("ignore")
import numpy as np
import margaux as mx
rng = np.random.default_rng(0)
"""

TAIL = """
def clocks():
    return time.perf_counter(), time.process_time()
programs = []
import jax
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **about: programs.append(1) if event.endswith("backend_compile_duration") else None
)
job(0)
cpu = time.process_time()
wall = time.time() - START
seen = len(programs)
again = []
for seed in (0, 1, 2):
    at = clocks()
    job(seed)
    again.append([after - before for before, after in zip(at, clocks())])
print("RESULT", wall, cpu, *sorted(again)[1], seen)
"""

JOBS = {
    "theophylline": """
        from margaux.datasets import load_theophylline
        from margaux.nlme import LogNormal, oral1cpt
        table = load_theophylline()
        individual = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(0.5)}
        def job(seed):
            model = mx.NLME(structural=oral1cpt, individual=individual, random_state=seed, verbose=False)
            model.fit(table, id="Id", time="Time", y="Concentration", dose="Dose")
            return model.summary(), model.loglik_
    """,
    "missing 500 x 3": """
        x = rng.normal(size=(500, 3))
        y = (rng.random(500) < 1 / (1 + np.exp(-x @ [0.5, -0.5, 1.0]))).astype(int)
        x[rng.random(x.shape) < 0.15] = np.nan
        def job(seed):
            model = mx.MissingLogistic(random_state=seed, verbose=False).fit(x, y)
            return model.summary(), model.loglik_
    """,
    "PLN-PCA 200 x 30": """
        counts = rng.poisson(np.exp(1 + rng.normal(size=(200, 2)) @ rng.normal(0, 0.7, (2, 30))))
        def job(seed):
            model = mx.PLNPCA(rank=2, random_state=seed, verbose=False).fit(counts)
            return model.summary(), model.loglik_
    """,
    "random intercept": """
        import jax.numpy as jnp
        from jax.scipy.stats import norm
        class Intercept(mx.AbstractModel):
            def log_joint(self, params, z, y):
                eta = params["mu"] + z
                return jnp.sum(y * eta - jnp.logaddexp(0.0, eta)) + norm.logpdf(z, 0.0, jnp.exp(params["spread"]))
            def init_latents(self, key, params, y):
                return jnp.zeros((), y.dtype)
        model = Intercept()
        y = (rng.random((300, 6)) < 1 / (1 + np.exp(-(0.3 + rng.normal(size=(300, 1)))))).astype(float)
        def job(seed):
            start = {"mu": 0.0, "spread": 0.0}
            fit = mx.fit(model, y, mx.soul(), mx.MCMC(), params=start, n_iter=1000, key=seed, progress=False)
            return fit.summary(), fit.loglik()
    """,
}


def run(name: str, cache: str) -> list[float]:
    """Wall and CPU seconds of the first job of a process, of a later one, and the programs it compiled or loaded."""
    script = "import time\nSTART = time.time()\n" + HEAD + textwrap.dedent(JOBS[name]) + TAIL
    environment = os.environ | {"MARGAUX_CACHE": cache, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    return [float(word) for word in done.stdout.split("RESULT")[1].split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(f"{'job':20} {'first ever':>16} {'new process':>16} {'warm':>16} programs   (wall, CPU seconds)")
    for name in args.jobs:
        cold, cached = [], []
        for _ in range(args.repeats):
            with tempfile.TemporaryDirectory() as cache:
                cold.append(run(name, cache))
                cached.append(run(name, cache))
        columns = [[statistics.median(row[j] for row in rows) for j in range(5)] for rows in (cold, cached)]
        pairs = (columns[0][:2], columns[1][:2], columns[1][2:4])
        print(f"{name:20} " + " ".join(f"{wall:8.2f} {cpu:7.2f}" for wall, cpu in pairs) + f" {columns[0][4]:8.0f}", flush=True)


if __name__ == "__main__":
    main()
