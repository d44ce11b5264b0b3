"""What logistic regression with missing covariates costs, in CPU seconds of one core; beside misaem where it is found.

`missing_mcar10.csv.gz` (6384 x 16, 10% missing) and `missing_mcar30.csv.gz` (30%, 4732 patterns) of the folder MARGAUX_DATA:

1. An iteration of SAEM with one and with two transitions of every row (misaem's default is two), and of MISSO on one row with
   one and with ten transitions; warm, compilation left out.
2. `MissingLogistic().fit`, the exact likelihood, with standard errors and the log-likelihood: in a fresh process that finds no
   compiled programs, in one that finds those of an earlier one, and again in the same process.
3. 500 iterations of SAEM in such processes, and how much more than warm iterations that is.
4. An iteration of misaem: its R package through Rscript, and its Python port, whichever is installed.

    MARGAUX_DATA=DIR python benchmarks/missing.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

if hasattr(os, "sched_setaffinity"):  # one core, so that CPU seconds are of work, not of threads that wait for each other
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import margaux as mx
from margaux.engine.callbacks import AbstractCallback
from margaux.families.missing.families import Logistic
from margaux.families.missing.model import MissingCovariates
from margaux.families.missing.observed import arrange
from margaux.families.missing.standard import Standard

FILES = {"10%": "missing_mcar10.csv.gz", "30%": "missing_mcar30.csv.gz"}

FRESH = """
import time
import pandas as pd
import margaux as mx
table = pd.read_csv({path!r})
X, y = table.drop(columns="y").to_numpy(float), table["y"].to_numpy()
def fit():
    began = time.process_time()
    model = mx.MissingLogistic(verbose=False, {settings}).fit(X, y)
    {rest}
    return time.process_time() - began
print(fit(), fit(), time.process_time())
"""

R = """
suppressMessages(library(misaem))
d <- read.csv(gzfile({path!r})); x <- as.matrix(d[, names(d) != "y"]); y <- d$y
spent <- function(runs) sum(system.time(miss.saem(x, y, maxruns=runs, tol_em=1e-30, nmcmc=2, var_cal=TRUE, ll_obs_cal=FALSE,
                                                  print_iter=FALSE))[1:2])
cat((spent(12) - spent(2)) / 10)
"""

PYTHON = """
import time
import numpy as np
from misaem import SAEMLogisticRegression
table = np.genfromtxt({path!r}, delimiter=",", names=True)
X, y = np.stack([table[name] for name in table.dtype.names if name != "y"], axis=1), table["y"]
def spent(runs):
    began = time.process_time()
    SAEMLogisticRegression(maxruns=runs, tol_em=1e-30, nmcmc=2, var_cal=False, ll_obs_cal=False, random_state=0).fit(X, y)
    return time.process_time() - began
print((spent(12) - spent(2)) / 10)
"""


class Clock(AbstractCallback):
    """CPU seconds at the ends of chunks."""

    def __init__(self) -> None:
        self.at: list[tuple[int, float]] = []

    def __call__(self, progress):
        self.at.append((progress.iteration, time.process_time()))
        return False

    def close(self) -> None:
        pass

    def an_iteration(self) -> float:
        """The first chunk compiles."""
        (first, began), (last, ended) = self.at[0], self.at[-1]
        return (ended - began) / (last - first)


def iterations(path: Path) -> None:
    """SAEM on all rows and MISSO row by row."""
    table = pd.read_csv(path)
    x, y = table.drop(columns="y").to_numpy(float), table["y"].to_numpy(float)
    n, p = x.shape
    rows, groups, _ = arrange(Standard.of(x).apply(x), np.ones((n, 1)), y, np.ones(n), np.zeros(n))
    model = MissingCovariates(Logistic(), "tight", groups)
    start = {"beta": np.zeros(p + 1), "mean": np.zeros((1, p)), "covariance": np.eye(p)}

    def measured(algorithm, n_steps: int, n_iter: int, **settings) -> float:
        best = np.inf
        for key in range(3):
            estep = mx.MCMC(mx.CrankNicolson(), n_steps=n_steps, thin=n_steps)
            mx.fit(model, rows, algorithm, estep, params=start, space=model.space(), n_iter=n_iter, key=key, dtype="float64",
                   polish=False, progress=False, callbacks=[clock := Clock()], **settings)  # fmt: skip
            best = min(best, clock.an_iteration())
        return best

    for n_steps in (1, 2):
        print(f"  SAEM, {n_steps} transitions: {1e3 * measured(mx.saem(), n_steps, 400):6.2f} ms an iteration")
    for n_steps in (1, 10):
        spent = measured(mx.misso(), n_steps, 6000, batch_size=1)
        print(f"  MISSO, one row, {n_steps:2d} transitions: {1e6 * spent:6.1f} us an iteration")


def fresh(path: Path, settings: str, rest: str) -> None:
    """Processes without and with the compiled programs of an earlier one."""
    cache = tempfile.mkdtemp()
    code = FRESH.format(path=str(path), settings=settings, rest=rest)
    try:
        for name in ("no compiled programs", "compiled programs found"):
            out = subprocess.run([sys.executable, "-c", code], env=os.environ | {"MARGAUX_CACHE": cache}, capture_output=True,
                                 text=True, check=True)  # fmt: skip
            first, again, whole = map(float, out.stdout.split())
            print(f"  {name:24s} first {first:6.2f}  again {again:6.2f}  more {first - again:6.2f}"
                  f"  imports and reading {whole - first - again:5.2f}")  # fmt: skip
    finally:
        shutil.rmtree(cache)


def peer(name: str, command: list[str]) -> None:
    """misaem, if it is there."""
    out = subprocess.run(command, capture_output=True, text=True)
    fault = out.stderr.strip().splitlines()[-1:]
    said = f"{float(out.stdout):6.2f} s an iteration" if out.returncode == 0 else f"not measured ({'; '.join(fault)})"
    print(f"  {name}: {said}")


def main() -> None:
    if "MARGAUX_DATA" not in os.environ:
        sys.exit("set MARGAUX_DATA to the folder with missing_mcar10.csv.gz and missing_mcar30.csv.gz")
    folder = Path(os.environ["MARGAUX_DATA"])
    for share, file in FILES.items():
        print(f"{share} missing")
        iterations(folder / file)
        if shutil.which("Rscript"):
            peer("misaem (R), 2 transitions", ["Rscript", "-e", R.format(path=str(folder / file))])
        peer("misaem (Python), 2 transitions", [os.environ.get("MISAEM_PYTHON", sys.executable), "-c",
                                                PYTHON.format(path=str(folder / file))])  # fmt: skip
    ten = folder / FILES["10%"]
    print("10% missing: MissingLogistic().fit, standard errors, log-likelihood; CPU s")
    fresh(ten, "", "model.stderr_, model.loglik_")
    print('10% missing: MissingLogistic(method="saem").fit, 500 iterations; CPU s')
    fresh(ten, 'method="saem"', "")


if __name__ == "__main__":
    main()
