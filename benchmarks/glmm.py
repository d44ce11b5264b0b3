"""What mixed models cost, in CPU seconds, beside glmer and glmmTMB in the same run where R has them.

Tables of the folder MARGAUX_DATA (cbpp, VerbAgg, sim_logit_100k), and crossed counts that are simulated
here: 100,000 rows of 3,000 and 1,000 levels, and 1,000,000 of 50,000 and 2,000. Each model is fitted, with its standard errors,
in a fresh process without a cache, in one that finds the programs of an earlier one, and a second time in the same process
(warm). Import is left out of warm, and part of the others.

20,000 responses of 60 rows in 12 groups, Poisson and negative binomial, by one call of `fit_many`, compilation included.

`python benchmarks/glmm.py [names] [--without-peers]`; names: cbpp verbagg logit logit-laplace crossed million many.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

SLOPES = "r2 ~ (anger + gender + btype + situ)**2 + (1 | id) + (1 | item)"


class Case(NamedTuple):
    """Attributes: table: a file, or rows and levels of a simulated one. formula, family, method: of `margaux.GLMM`. peers: calls
    in R by name.
    """

    table: str | tuple[int, int, int]
    formula: str
    family: str
    method: str
    peers: dict[str, str]


def _peers(formula: str, family: str, more: str = "") -> dict[str, str]:
    given = f"{formula}, data=d, family={family}"
    return {
        "glmer": f"m <- glmer({given})",
        "glmer, nAGQ=0": f"m <- glmer({given}, nAGQ=0)",
        "glmmTMB": f"m <- glmmTMB({given})",
    }


LOGIT = _peers("y ~ x1 + x2 + (1|g)", "binomial")
CASES = {
    "cbpp": Case(
        "cbpp.csv",
        "incidence/size ~ C(period) + (1 | herd)",
        "binomial",
        "auto",
        _peers("cbind(Incidence, Size - Incidence) ~ factor(Period) + (1|Herd)", "binomial"),
    ),
    "verbagg": Case(
        "verbagg.csv.gz",
        SLOPES,
        "binomial",
        "laplace",
        _peers("factor(R2) ~ (Anger + Gender + BType + Situ)^2 + (1|Id) + (1|Item)", "binomial"),
    ),
    "logit": Case("sim_logit_100k.csv.gz", "y ~ x1 + x2 + (1 | g)", "binomial", "auto", LOGIT),
    "logit-laplace": Case("sim_logit_100k.csv.gz", "y ~ x1 + x2 + (1 | g)", "binomial", "laplace", {}),
    "crossed": Case(
        (100_000, 3000, 1000), "y ~ x + (1 | g1) + (1 | g2)", "poisson", "laplace", _peers("y ~ x + (1|g1) + (1|g2)", "poisson")
    ),
    "million": Case((1_000_000, 50_000, 2000), "y ~ x + (1 | g1) + (1 | g2)", "poisson", "laplace", {}),
}

FIT = """
import time
start = time.perf_counter()
import resource, sys
import pandas as pd
table, formula, family, method, turns = sys.argv[1:]
data = pd.read_csv(table).rename(columns=str.lower)
import margaux as mx
for turn in range(int(turns)):
    began, start = (time.process_time(), time.perf_counter()) if turn else (0.0, start)
    model = mx.GLMM(formula, family=family, method=method, verbose=False).fit(data)
    fitted = time.process_time() - began
    information = model.cov_params()
    print(fitted, time.process_time() - began, time.perf_counter() - start)
began = time.process_time()
loglik = model.loglik_
print(float(loglik), time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""

MANY = """
import time
import numpy as np, pandas as pd
import margaux as mx
rng = np.random.default_rng(20)
groups, R = np.repeat(np.arange(12), 5), 20_000
x = rng.normal(size=60)
effects = rng.uniform(0.0, 0.8, R) * rng.normal(size=(12, R))
mean = np.exp(rng.normal(1, 0.7, R) + np.outer(x, rng.normal(0, 0.5, R)) + effects[groups])
data = pd.DataFrame({"x": x, "g": groups})
for family, noise in (("poisson", 1.0), ("nbinom2", rng.gamma(3.0, 1 / 3.0, mean.shape))):
    Y = rng.poisson(mean * noise).astype(float)
    began, start = time.process_time(), time.perf_counter()
    fits = mx.GLMM("~ x + (1 | g)", family=family, verbose=False).fit_many(Y, data)
    took = time.process_time() - began, time.perf_counter() - start
    print(f"many: 20,000 responses ({family}): {took[0]:.1f} CPU s ({took[1]:.1f} s); converged {fits.converged_.mean():.4%}")
"""

PEER = """
suppressMessages({{library({package}); d <- read.csv("{table}")}})
for (name in c("Period", "Herd", "Id", "Item", "g", "g1", "g2")) if (name %in% names(d)) d[[name]] <- factor(d[[name]])
s <- system.time({call})
cat(sum(s[1:2]), as.numeric(logLik(m)))
"""


def simulated(folder: str, n: int, q1: int, q2: int) -> Path:
    """Counts of two crossed factors."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(0)
    g1, g2, x = np.sort(rng.integers(0, q1, n)), rng.integers(0, q2, n), rng.normal(size=n)
    u1, u2 = 0.5 * rng.normal(size=q1), 0.4 * rng.normal(size=q2)
    path = Path(folder) / f"crossed{n}.csv"
    y = rng.poisson(np.exp(0.2 + 0.3 * x + u1[g1] + u2[g2]))
    pd.DataFrame({"y": y, "x": x, "g1": g1, "g2": g2}).to_csv(path, index=False)
    return path


def fresh(case: Case, table: Path, cache: str, turns: int) -> list[list[float]]:
    """Of a new process: CPU seconds of the fit, and with its standard errors, and seconds of both, a turn each; log-likelihood,
    its CPU seconds, and memory.
    """
    given = [str(table), case.formula, case.family, case.method, str(turns)]
    out = subprocess.run([sys.executable, "-c", FIT, *given], env=os.environ | {"MARGAUX_CACHE": cache}, capture_output=True,
                         text=True)  # fmt: skip
    if out.returncode:
        raise RuntimeError(out.stderr[-2000:])
    return [[float(part) for part in line.split()] for line in out.stdout.splitlines()]


def measured(name: str, case: Case, table: Path, folder: str, with_peers: bool) -> None:
    """One model in every way."""
    cold = fresh(case, table, "off", 1)
    cache = str(Path(folder) / f"cache-{name}")
    fresh(case, table, cache, 1)
    cached, *_, (loglik, seconds, memory) = fresh(case, table, cache, 2)
    warm = fresh(case, table, cache, 2)[1]
    print(
        f"{name}: {case.formula} ({case.family}, {case.method}); log-likelihood {loglik:.3f} ({seconds:.2f} CPU s more); "
        f"{memory:.1f} GiB at most"
    )
    print(
        f"  margaux: warm {warm[0]:.2f} CPU s, {warm[1]:.2f} with standard errors ({warm[2]:.2f} s); new process {cached[1]:.2f} "
        f"({cached[2]:.2f} s) with its programs cached, {cold[0][1]:.2f} ({cold[0][2]:.2f} s) without",
        flush=True,
    )
    for peer, call in case.peers.items() if with_peers and shutil.which("Rscript") else ():
        script = PEER.format(package="glmmTMB" if peer == "glmmTMB" else "lme4", table=table, call=call)
        out = subprocess.run(["Rscript", "-e", script], capture_output=True, text=True)
        if out.returncode:
            print(f"  {peer}: R does not have it", flush=True)
            continue
        took, value = map(float, out.stdout.split()[-2:])
        print(f"  {peer}: {took:.2f} CPU s, {took / warm[1]:.2g} times margaux warm; log-likelihood {value:.3f}", flush=True)


def main(asked: list[str]) -> None:
    """The cases that are asked for, or all."""
    known = [*CASES, "many"]
    names = [name for name in asked if not name.startswith("--")] or known
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"there is no case {unknown[0]!r}; they are {', '.join(known)}")
    if "many" in names:
        names.remove("many")
        subprocess.run([sys.executable, "-c", MANY], env=os.environ | {"MARGAUX_CACHE": "off"}, check=True)
    data = Path(os.environ.get("MARGAUX_DATA", ""))
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            case = CASES[name]
            table = data / case.table if isinstance(case.table, str) else simulated(folder, *case.table)
            if not table.exists():
                print(f"{name}: no {case.table}; set MARGAUX_DATA")
                continue
            measured(name, case, table, folder, "--without-peers" not in asked)


if __name__ == "__main__":
    main(sys.argv[1:])
