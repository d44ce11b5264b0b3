"""The first minute, whole jobs in new processes with imports, on an idle machine: `python benchmarks/first_fit.py [JOB ...]`.

Times of each job, a fit with standard errors and log-likelihood: the very first, with an empty cache of programs; in a new
process that finds the programs of ANOTHER data set of a similar size, and in one that finds its own; and again in the same
process. Wall clock and CPU seconds, medians over `--repeats`. Some read files of the folder MARGAUX_DATA. Beside some, the
same job by saemix where R has it, and by pyPLNmodels where the Python PLNMODELS_PYTHON names (or this one) has it.

Where others use the machine, too, `--idle SECONDS` waits until a fixed piece of work takes no longer than that, repeats a run
after which it does, and tells how many runs that took. What the work takes is printed first.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable

import numpy as np

DATA = os.environ.get("MARGAUX_DATA", "../shared/data")
HEAD = """
import os
import sys
import warnings
warnings.simplefilter("ignore")
import numpy as np
import margaux as mx
other = "other" in sys.argv
rng = np.random.default_rng(int(other))
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
import resource
print("RESULT", wall, cpu, *sorted(again)[1], seen, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""

#: where `other`, the data are another set of a similar size
JOBS = {
    "theophylline": """
        from margaux.datasets import load_theophylline
        from margaux.nlme import LogNormal, oral1cpt
        table = load_theophylline()
        if other:
            table = table[table["Id"] != table["Id"].iloc[-1]].iloc[:-2]
        individual = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(0.5)}
        def job(seed):
            model = mx.NLME(structural=oral1cpt, individual=individual, random_state=seed, verbose=False)
            model.fit(table, id="Id", time="Time", y="Concentration", dose="Dose")
            return model.summary(), model.loglik_
    """,
    "1000 subjects": """
        import pandas as pd
        from margaux.nlme import LogNormal, oral1cpt
        table = pd.read_csv(os.path.join(DATA, "sim_pk_1000.csv.gz"))
        if other:
            table = table[table["Id"] > 40]
        individual = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(0.5)}
        def job(seed):
            model = mx.NLME(structural=oral1cpt, individual=individual, random_state=seed, n_starts=1, verbose=False)
            model.fit(table, id="Id", time="Time", y="Concentration", dose="Dose")
            return model.summary(), model.loglik_
    """,
    "Emax with a covariate": """
        import pandas as pd
        from margaux.nlme import LogNormal
        n, dose = 100 + 4 * other, np.array([0.0, 10.0, 30.0, 90.0, 200.0])
        weight = rng.normal(70, 10, n)
        e0, emax = 10 * np.exp(0.2 * rng.normal(size=n)), 100 * np.exp(0.3 * rng.normal(size=n))
        ec50 = 20 * np.exp(0.02 * (weight - 70) + 0.4 * rng.normal(size=n))
        y = e0[:, None] + emax[:, None] * dose / (ec50[:, None] + dose) + 4 * rng.normal(size=(n, 5))
        table = pd.DataFrame({"id": np.repeat(np.arange(n), 5), "dose": np.tile(dose, n), "y": y.ravel(),
                              "weight": np.repeat(weight - 70, 5)})
        def emax_curve(p, row):
            return p["E0"] + p["Emax"] * row["dose"] / (p["EC50"] + row["dose"])
        individual = {"E0": LogNormal(8.0), "Emax": LogNormal(80.0), "EC50": LogNormal(30.0, covariates="weight")}
        def job(seed):
            model = mx.NLME(structural=emax_curve, individual=individual, random_state=seed, verbose=False)
            model.fit(table, id="id", y="y")
            return model.summary(), model.loglik_
    """,
    "toenail, two effects": """
        import pandas as pd
        from margaux.nlme import Bernoulli, Normal
        table = pd.read_csv(os.path.join(DATA, "saemix_toenail.csv"))
        if other:
            table = table[table["id"] > 15]
        def line(p, row):
            return p["intercept"] + p["slope"] * row["time"]
        individual = {"intercept": Normal(0.0), "slope": Normal(0.0, covariates="treatment")}
        def job(seed):
            model = mx.NLME(log_likelihood=Bernoulli(line), individual=individual, omega="full", random_state=seed, verbose=False)
            model.fit(table, id="id", time="time", y="y")
            return model.summary(), model.loglik_
    """,
    "PLN-PCA of oaks' size": """
        n, p = (116, 114) if not other else (112, 110)
        latent = rng.normal(size=(n, 5)) @ rng.normal(0, 0.6, (5, p))
        effort = rng.lognormal(0, 0.3, (n, 1))
        counts = rng.poisson(effort * np.exp(1 + rng.normal(0, 1.5, p) + latent))
        def job(seed):
            model = mx.PLNPCA(random_state=seed, verbose=False).fit(counts)
            return model.summary(), model.loglik_
    """,
    "missing 500 x 3": """
        x = rng.normal(size=(500 - 20 * other, 3))
        y = (rng.random(len(x)) < 1 / (1 + np.exp(-x @ [0.5, -0.5, 1.0]))).astype(int)
        x[rng.random(x.shape) < 0.15] = np.nan
        def job(seed):
            model = mx.MissingLogistic(random_state=seed, verbose=False).fit(x, y)
            return model.summary(), model.loglik_
    """,
    "missing 100,000 x 20": """
        n = 100_000
        mix = np.linalg.cholesky(0.5 * np.eye(20) + 0.5)
        x = rng.normal(size=(n, 20)) @ mix.T
        y = (rng.random(n) < 1 / (1 + np.exp(-x @ np.linspace(-0.5, 0.5, 20)))).astype(int)
        x[rng.random(x.shape) < 0.2] = np.nan
        def job(seed):
            model = mx.MissingLogistic(random_state=seed, verbose=False).fit(x, y)
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
        n = 300 - 15 * other
        y = (rng.random((n, 6)) < 1 / (1 + np.exp(-(0.3 + rng.normal(size=(n, 1)))))).astype(float)
        def job(seed):
            start = {"mu": 0.0, "spread": 0.0}
            fit = mx.fit(model, y, mx.soul(), mx.MCMC(), params=start, n_iter=1000, key=seed, progress=False)
            return fit.summary(), fit.loglik()
    """,
    "digits": """
        from margaux.datasets import load_digits
        images, labels = load_digits()
        chosen = rng.permutation(len(labels))[: 1347 - 20 * other]
        x, labels = images.reshape(len(images), 64)[chosen].astype(float), labels[chosen]
        def job(seed):
            model = mx.BayesianClassifier(temperature=1.0, epochs=40, random_state=seed, verbose=False)
            return model.fit(x, labels).predict_proba(x)
    """,
}

SAEMIX = """
suppressMessages(library(saemix))
fitted <- function(table, response, predictors, curve, psi0, names, ...) {
  data <- saemixData(name.data=table, header=TRUE, name.group=names(table)[1], name.predictors=predictors,
                     name.response=response, verbose=FALSE, ...)
  model <- saemixModel(model=curve, psi0=matrix(psi0, ncol=length(psi0), dimnames=list(NULL, names)),
                       transform.par=rep(1, length(psi0)), verbose=FALSE,
                       covariate.model=if (length(list(...))) matrix(c(0, 0, 1), nrow=1))
  saemix(model, data, list(seed=1, map=FALSE, fim=TRUE, ll.is=TRUE, save=FALSE, save.graphs=FALSE, displayProgress=FALSE,
                           print=FALSE))
}
absorbed <- function(psi, id, x) {
  ka <- psi[id, 1]; V <- psi[id, 2]; k <- psi[id, 3] / V
  x[, 1] * ka / (V * (ka - k)) * (exp(-k * x[, 2]) - exp(-ka * x[, 2]))
}
pk <- function(table) fitted(table, "Concentration", c("Dose", "Time"), absorbed, c(1, 20, 0.5), c("ka", "V", "CL"))
"""

#: a job's name to what another library is to run for it, in R or in Python
PEERS = {
    "theophylline": "data(theo.saemix); fit <- pk(theo.saemix)",
    "1000 subjects": "fit <- pk(read.csv(file.path(DATA, 'sim_pk_1000.csv.gz')))",
    "Emax with a covariate": """
        set.seed(0); n <- 100; dose <- c(0, 10, 30, 90, 200); weight <- rnorm(n, 0, 10); i <- rep(1:n, each=5)
        E0 <- 10 * exp(.2 * rnorm(n)); Emax <- 100 * exp(.3 * rnorm(n)); EC50 <- 20 * exp(.02 * weight + .4 * rnorm(n))
        dose <- rep(dose, n)
        table <- data.frame(id=i, dose=dose, weight=weight[i],
                            y=E0[i] + Emax[i] * dose / (EC50[i] + dose) + 4 * rnorm(5 * n))
        curve <- function(psi, id, x) psi[id, 1] + psi[id, 2] * x[, 1] / (psi[id, 3] + x[, 1])
        fit <- fitted(table, "y", "dose", curve, c(8, 80, 30), c("E0", "Emax", "EC50"), name.covariates="weight")
    """,
    "PLN-PCA of oaks' size": """
        import warnings
        warnings.simplefilter("ignore")
        import pyPLNmodels
        model = pyPLNmodels.PlnPCA(pyPLNmodels.load_oaks()["endog"], rank=5).fit(verbose=False)
    """,
}


def probe() -> float:
    """CPU seconds of a fixed piece of work of one thread, the least of five."""

    def once() -> float:
        at, total, numbers = time.process_time(), 0, np.linspace(0, 1, 200_000)
        for _ in range(40):
            numbers = np.exp(-numbers)
        for i in range(2_000_000):
            total += i
        return time.process_time() - at

    return min(once() for _ in range(5))


class Idle:
    """Runs while the machine is idle: a fixed piece of work takes at most `most` seconds before and after."""

    def __init__(self, most: float):
        self.most, self.kept, self.tried = most, 0, 0

    def __call__(self, job: Callable, *args):
        while True:
            while probe() > self.most:
                time.sleep(1)
            result = job(*args)
            self.tried += 1
            if probe() <= self.most:
                self.kept += 1
                return result


def peer(name: str) -> str:
    """Wall seconds of the whole job, the process's start included, by another library; or why there are none."""
    code = textwrap.dedent(PEERS[name])
    library, command = "saemix", ["Rscript", "-e", f"DATA <- {DATA!r}" + SAEMIX + code]
    if "import pyPLNmodels" in code:
        library, command = "pyPLNmodels", [os.environ.get("PLNMODELS_PYTHON", sys.executable), "-c", code]
    if not shutil.which(command[0]):
        return f"{library}: none here"
    at = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"MPLBACKEND": "Agg"})
    if done.returncode:
        return f"{library}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}"
    return f"{library}: {time.perf_counter() - at:.2f}"


def run(name: str, cache: str, other: bool = False) -> list[float]:
    """Wall and CPU seconds of the first job of a process, of a later one, its programs, and its peak GiB."""
    script = f"import time\nSTART = time.time()\nDATA = {DATA!r}\n" + HEAD + textwrap.dedent(JOBS[name]) + TAIL
    # An installed library has its byte code.
    environment = os.environ | {"MARGAUX_CACHE": cache, "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", script, *(["other"] if other else [])]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return [float(word) for word in done.stdout.split("RESULT")[1].split()]


def anew(name: str) -> list[float]:
    """A job whose programs are not there yet."""
    with tempfile.TemporaryDirectory() as cache:
        return run(name, cache)


def after_another(name: str) -> tuple[list[float], list[float]]:
    """A job that finds the programs of another data set, and in one more process its own."""
    with tempfile.TemporaryDirectory() as cache:
        run(name, cache, other=True)
        return run(name, cache), run(name, cache)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--idle", type=float, default=math.inf, help="seconds that a fixed piece of work may take")
    args = parser.parse_args()
    alone = Idle(args.idle)
    print(f"A fixed piece of work takes {probe():.3f} s")
    titles = "".join(f"{title:>18}" for title in ("first ever", "others' programs", "own programs", "warm"))
    print(f"{'job':22}{titles} programs  GiB   (wall, CPU seconds)")
    for name in args.jobs:
        first = [alone(anew, name) for _ in range(args.repeats)]
        later = [alone(after_another, name) for _ in range(args.repeats)]
        kinds = first, [pair[0] for pair in later], [pair[1] for pair in later]
        cold, others, own = ([statistics.median(row[j] for row in rows) for j in range(6)] for rows in kinds)
        pairs = (cold[:2], others[:2], own[:2], own[2:4])
        figures = "".join(f"{wall:10.2f}{cpu:8.2f}" for wall, cpu in pairs)
        print(f"{name:22}{figures} {cold[4]:8.0f} {cold[5]:5.1f}  {peer(name) if name in PEERS else ''}", flush=True)
    if math.isfinite(args.idle):
        print(f"{alone.kept} of {alone.tried} runs were on an idle machine, and count")


if __name__ == "__main__":
    main()
