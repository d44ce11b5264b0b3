"""What NLME costs, in CPU seconds; beside saemix, in the same run, where R has it.

1. Theophylline, 12 subjects, 400 iterations, 5 chains: warm; in a fresh process (import and compilation included); in a
   fresh process that finds the programs of an earlier one in the cache folder.
2. 1000 subjects (`sim_pk_1000.csv.gz` of the folder MARGAUX_DATA): 400 iterations, one chain; then with standard errors and
   the importance-sampling likelihood.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

THEOPHYLLINE = """
import time
import margaux as mx
from margaux.datasets import load_theophylline
from margaux.families.nlme import LogNormal, oral1cpt
def fit():
    individual = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(0.5)}
    model = mx.NLME(structural=oral1cpt, individual=individual, n_iter=400, n_chains=5, n_starts=1, stop=False, verbose=False)
    return model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
fit()
print(time.process_time())
"""

SAEMIX = """
suppressMessages(library(saemix))
data(theo.saemix)
d <- saemixData(name.data=theo.saemix, header=TRUE, name.group="Id", name.predictors=c("Dose", "Time"),
                name.response="Concentration", verbose=FALSE)
f <- function(psi, id, x) { ka <- psi[id, 1]; V <- psi[id, 2]; k <- psi[id, 3] / V
  x[, 1] * ka / (V * (ka - k)) * (exp(-k * x[, 2]) - exp(-ka * x[, 2])) }
m <- saemixModel(model=f, psi0=matrix(c(1, 20, 0.5), ncol=3, dimnames=list(NULL, c("ka", "V", "CL"))),
                 transform.par=c(1, 1, 1), verbose=FALSE)
o <- list(seed=1, nb.chains=5, map=FALSE, fim=FALSE, ll.is=FALSE, save=FALSE, save.graphs=FALSE, displayProgress=FALSE,
          print=FALSE)
cat(sum(system.time(saemix(m, d, o))[1:2]))
"""


def fresh(cache: str) -> float:
    """CPU seconds of a new process."""
    out = subprocess.run([sys.executable, "-c", THEOPHYLLINE], env=os.environ | {"MARGAUX_CACHE": cache}, capture_output=True,
                         text=True, check=True)  # fmt: skip
    return float(out.stdout.split()[-1])


def main() -> None:
    scope: dict = {}
    exec(THEOPHYLLINE, scope)
    warm = []
    for _ in range(3):
        began = time.process_time()
        scope["fit"]()
        warm.append(time.process_time() - began)
    print(
        f"theophylline, 400 iterations, 5 chains, warm: {min(warm):.2f} CPU s (of three: {', '.join(f'{w:.2f}' for w in warm)})"
    )
    print(f"  fresh process, no cache: {fresh('off'):.2f} CPU s, import included")
    with tempfile.TemporaryDirectory() as folder:
        fresh(folder)
        print(f"  fresh process, programs cached: {fresh(folder):.2f} CPU s, import included")
    if shutil.which("Rscript"):
        out = subprocess.run(["Rscript", "-e", SAEMIX], capture_output=True, text=True)
        found = out.returncode == 0
        print(f"  saemix, 400 iterations, 5 chains: {out.stdout.strip()} CPU s" if found else "  saemix: R does not have it")
    else:
        print("  saemix: no R here")
    thousand(Path(os.environ.get("MARGAUX_DATA", "")) / "sim_pk_1000.csv.gz")


def thousand(path: Path) -> None:
    """The larger data set."""
    if not path.exists():
        print(f"1000 subjects: no {path.name}; set MARGAUX_DATA")
        return
    import pandas as pd

    import margaux as mx
    from margaux.families.nlme import LogNormal, oral1cpt

    frame = pd.read_csv(path)
    for turn in ("cold", "warm"):
        individual = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(0.5)}
        model = mx.NLME(structural=oral1cpt, individual=individual, n_iter=400, stop=False, n_starts=1, verbose=False)
        marks = [time.process_time()]
        model.fit(frame, id="Id", time="Time", y="Concentration", dose="Dose")
        marks.append(time.process_time())
        errors = model.stderr_
        marks.append(time.process_time())
        loglik = model.loglik_
        marks.append(time.process_time())
        parts = [b - a for a, b in zip(marks, marks[1:], strict=False)]
        print(f"1000 subjects, 400 iterations, {turn}: {parts[0]:.2f} CPU s; standard errors {parts[1]:.2f}, "
              f"likelihood {parts[2]:.2f}; in all {sum(parts):.2f}")  # fmt: skip
    print("  " + ", ".join(f"{name} {value:.4g} ({errors[name]:.2g})" for name, value in model.params_.items()), loglik)


if __name__ == "__main__":
    main()
