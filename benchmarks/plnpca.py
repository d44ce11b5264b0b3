"""What the variational fit of PLN-PCA costs, in CPU seconds of one core, beside pyPLNmodels and Adam.

Counts: the synthetic data of Batardiere, Chiquet, Kwon and Stoehr, section 6.1 (300 x 150, q = 5); simulated ones (5000 x 2000,
q = 10); and the scRNA (400 x 100) and oaks (116 x 114, two covariates, offsets) data of pyPLNmodels, where it is installed.
Every bound is the exact one in float64, log-factorials included, of the parameters and posteriors that a fit returns.

1. pyPLNmodels with its defaults: its bound, its time, and when our fit from log counts has a higher one.
2. Adam on the closed-form bound with diagonal covariances, float64, compiled in pieces of 100 steps, at each rate of a grid: when
   the best of them is within a nat of the highest that any of them reaches. Ours, restarts included: when it is within a nat of
   the best full-covariance optimum, and when it passes Adam's. Compilation is left out and told apart.
3. `PLNPCA().fit` in a fresh process without and with compiled programs of an earlier one, imports told apart: the variational
   fit alone, and with the ascent of the likelihood that is the default.
4. The variational fit at its defaults for ten seeds: ends, and the ends of all starts.

    PLNMODELS_PYTHON=PYTHON python benchmarks/plnpca.py [synthetic] [scRNA] [oaks] [simulated]
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

if hasattr(os, "sched_setaffinity"):  # one core, so that CPU seconds are of work, not of threads that wait for each other
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import gammaln

import margaux as mx
from margaux.families.pln.counts import Counts
from margaux.families.pln.fitting import Design, Sweeps
from margaux.families.pln.restarts import Search, best_of
from margaux.families.pln.start import by_log_counts
from margaux.numerics.packing import symmetric

SMALL = ("synthetic", "scRNA", "oaks")
RATES = (0.3, 0.1, 0.05, 0.03, 0.01, 0.003)
#: CPU seconds of Adam at each rate, and its steps in one call
LONG, PIECE = 6.0, 100
#: the highest bounds known with full covariance matrices
BEST = {"synthetic": -111575.22, "scRNA": -120342.83, "oaks": -71404.60}

DATA = """
import numpy as np, pyPLNmodels
oaks, cells = pyPLNmodels.load_oaks(), pyPLNmodels.load_scrna()
y, tree = np.asarray(oaks["endog"], float), np.asarray(oaks["tree"])
x = np.column_stack([np.ones(len(y)), tree == "resistant", tree == "susceptible"]).astype(float)
np.savez({folder!r} + "/oaks.npz", y=y, x=x, offset=np.asarray(oaks["offsets"], float), q=5)
y = np.asarray(cells["endog"], float)
np.savez({folder!r} + "/scRNA.npz", y=y, x=np.ones((len(y), 1)), offset=np.zeros((len(y), 1)), q=5)
"""

PEER = """
import time, torch
torch.set_num_threads(1)
import numpy as np, pyPLNmodels
case = np.load({folder!r} + "/{name}.npz")
offset = np.broadcast_to(case["offset"], case["y"].shape).copy()
spent = []
for _ in range({repeats}):
    began = time.process_time()
    model = pyPLNmodels.PlnPCA(case["y"], exog=case["x"], offsets=offset, add_const=False, rank=int(case["q"]))
    model.fit()
    spent.append(time.process_time() - began)
of = lambda value: np.asarray(value, float)
np.savez({folder!r} + "/peer.npz", B=of(model.coef), C=of(model.components), m=of(model.latent_mean),
         s=of(model.latent_variance), spent=min(spent))
"""

FRESH = """
import time
import jax, numpy as np
import margaux as mx
case = np.load({path!r})
clocks = lambda: np.array([time.perf_counter(), time.process_time()])
imported, began = time.process_time(), clocks()
mx.PLNPCA(int(case["q"]), method={method!r}, verbose=False).fit(case["y"], offsets=case["offset"], **{covariates})
print(*(clocks() - began), imported)
"""


def synthetic() -> dict[str, Any]:
    """The paper's data."""
    rng = np.random.default_rng(0)
    correlation = rng.uniform(0.6, 0.8)
    B = rng.normal(2, 1, (1, 150))
    values, vectors = np.linalg.eigh(3 * np.eye(150) + correlation ** np.abs(np.subtract.outer(np.arange(150), np.arange(150))))
    C = vectors[:, ::-1][:, :5] * np.sqrt(values[::-1][:5])
    w = rng.standard_normal((300, 5))
    y = rng.poisson(np.exp(w @ (C * np.sign(C[0])).T + B))
    return {"y": y.astype(float), "x": np.ones((300, 1)), "offset": np.zeros((300, 1)), "q": 5}


def simulated(n: int = 5000, p: int = 2000, q: int = 10) -> dict[str, Any]:
    """A table of middle size, with size factors."""
    rng = np.random.default_rng(0)
    B, C, w = rng.normal(0, 1, (1, p)), rng.normal(0, 0.7 / np.sqrt(q), (p, q)), rng.standard_normal((n, q))
    offset = np.log(rng.gamma(5, 0.2, (n, 1)))
    return {"y": rng.poisson(np.exp(offset + B + w @ C.T)).astype(float), "x": np.ones((n, 1)), "offset": offset, "q": q}


def bound(case: Any, B: Any, C: Any, m: Any, S: Any) -> float:
    """The evidence lower bound for S (n, q, q), unit by unit in blocks."""
    total = -0.5 * float(np.sum(m**2) + np.sum(np.trace(S, axis1=1, axis2=2) - np.linalg.slogdet(S)[1] - m.shape[1]))
    for first in range(0, len(m), 500):
        part = slice(first, first + 500)
        y, eta = case["y"][part], case["offset"][part] + case["x"][part] @ B + m[part] @ C.T
        quadratic = np.einsum("jk,ikj->ij", C, np.einsum("ikl,jl->ikj", S[part], C))
        total += float(np.sum(y * eta - np.exp(eta + quadratic / 2) - gammaln(y + 1)))
    return total


def bound_of(case: Any, solution: Any) -> float:
    B, C = map(np.asarray, solution.loadings)
    return bound(case, B, C, np.asarray(solution.posterior.mean), np.asarray(symmetric(solution.posterior.spread)))


def design_of(case: Any) -> Design:
    return Design(Counts(case["y"]), case["x"], case["offset"])


def in_peer(code: str) -> str | None:
    """Run in the Python that has pyPLNmodels; what went wrong, or None."""
    python = os.environ.get("PLNMODELS_PYTHON", sys.executable)
    out = subprocess.run([python, "-W", "ignore", "-c", code], capture_output=True, text=True,
                         env=os.environ | {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"})  # fmt: skip
    return None if out.returncode == 0 else "; ".join(out.stderr.strip().splitlines()[-1:])


def until(case: Any, wanted: float, step: int = 1) -> tuple[float, int, float]:
    """CPU seconds and sweeps of the fit from log counts until its bound is that high, looked at every few sweeps, and the bound
    there."""
    design, began = design_of(case), time.process_time()
    sweeps = Sweeps(design, np.dtype(float))
    run = sweeps.begin(*by_log_counts(design, int(case["q"])))
    while not run.bounds or (run.bounds[-1] < wanted and not run.converged):
        run = sweeps.on(run, step)
    spent = time.process_time() - began
    return spent, run.sweeps, bound_of(case, run.solution())


def against_peer(cases: dict[str, Any], folder: str) -> None:
    print("1. pyPLNmodels, 400 iterations, and ours until it has a higher bound")
    for name, case in cases.items():
        large = case["y"].size > 1_000_000
        fault = in_peer(PEER.format(folder=folder, name=name, repeats=1 if large else 3))
        if fault:
            print(f"  {name}: not measured ({fault})")
            continue
        found = np.load(folder + "/peer.npz")
        S = found["s"][:, :, None] * np.eye(found["s"].shape[1])
        theirs, spent = bound(case, found["B"], found["C"], found["m"], S), float(found["spent"])
        first, sweeps, _ = until(case, theirs)
        ours, sweeps, there = min(until(case, theirs, sweeps) for _ in range(1 if large else 3))
        higher = "higher" if there > theirs else "NOT higher"
        print(f"  {name:9s}  theirs {theirs:14.2f} in {spent:7.2f} s; ours {there:14.2f} ({higher}) in {ours:6.3f} s,"
              f" {sweeps} sweeps: {spent / ours:6.1f} times less; compilation {first - ours:.2f} s", flush=True)  # fmt: skip


def adam(case: Any, rate: float) -> tuple[float, list[tuple[float, float]]]:
    """CPU seconds of compilation; the highest bound so far at the end of each piece, with its time. Its start is ours."""
    y, x, offset = (jnp.asarray(case[name]) for name in ("y", "x", "offset"))
    constant = design_of(case).constant()
    optimiser = optax.adam(rate)

    def loss(t: dict) -> Any:
        eta, s = x @ t["B"] + t["m"] @ t["C"].T, jnp.exp(t["log_s"])
        expected = jnp.sum(y * eta) - jnp.sum(jnp.exp(offset + eta + s @ (t["C"] ** 2).T / 2))
        return jnp.sum(t["m"] ** 2 + s - t["log_s"] - 1) / 2 - expected

    def step(carried: tuple, _: None) -> tuple:
        t, state = carried
        value, gradient = jax.value_and_grad(loss)(t)
        update, state = optimiser.update(gradient, state)
        return (optax.apply_updates(t, update), state), -value

    piece = jax.jit(lambda carried: jax.lax.scan(step, carried, length=PIECE))
    (B, C), posterior = by_log_counts(design_of(case), int(case["q"]))
    t: Any = {"B": B, "C": C, "m": posterior.mean, "log_s": jnp.full_like(posterior.mean, np.log(0.1))}
    carried = (t, optimiser.init(t))
    began = time.process_time()
    jax.block_until_ready(piece(carried))
    compilation, path, highest = time.process_time() - began, [], -np.inf
    began = time.process_time()
    while time.process_time() - began < LONG:
        carried, values = piece(carried)
        highest = max(highest, float(np.nanmax(values)) + constant)
        path.append((time.process_time() - began, highest))
    return compilation, path


def against_adam(cases: dict[str, Any]) -> None:
    print("2. Adam with diagonal covariances, and ours with full ones and all restarts")
    first_at = lambda path, wanted: next((spent for spent, value in path if value > wanted), np.inf)  # noqa: E731
    for name, case in cases.items():
        runs = {rate: adam(case, rate) for rate in RATES}
        top = max(path[-1][1] for _, path in runs.values())
        rate = min(runs, key=lambda rate: first_at(runs[rate][1], top - 1))
        within = first_at(runs[rate][1], top - 1)
        print(f"  {name:9s}  Adam: within a nat of {top:.2f} in {within:.3f} s at its best rate {rate}"
              f" (compilation {runs[rate][0]:.2f} s)")  # fmt: skip
        reached, passed, ends = [], [], []
        for seed in range(-1, 5):  # the first compiles
            path: list[tuple[float, float]] = []
            began = time.process_time()
            watch = lambda _, value, path=path, began=began: path.append((time.process_time() - began, value))  # noqa: E731
            solution, _ = best_of(design_of(case), int(case["q"]), Search(seed=max(seed, 0)), watch)
            reached.append(first_at(path, BEST[name] - 1))
            passed.append(first_at(path, top))
            ends.append(bound_of(case, solution))
        for text, spent in ((f"within a nat of {BEST[name]:.2f}", reached[1:]), (f"above {top:.2f}", passed[1:])):
            ratio = within / np.median(spent)
            print(
                f"{'':13s}ours: {text} in {np.median(spent):.3f} s ({min(spent):.3f} to {max(spent):.3f}), {ratio:.1f} times less"
            )
        print(f"{'':13s}ends {min(ends):.2f} to {max(ends):.2f}", flush=True)


def fresh(cases: dict[str, Any], folder: str) -> None:
    print("3. PLNPCA().fit in a fresh process, seconds")
    for (name, case), method in itertools.product(cases.items(), ("variational", "auto")):
        covariates = '{"covariates": case["x"][:, 1:]}' if case["x"].shape[1] > 1 else "{}"
        code = FRESH.format(path=f"{folder}/{name}.npz", covariates=covariates, method=method)
        with tempfile.TemporaryDirectory() as cache:
            for programs in ("none compiled", "found compiled"):
                out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=os.environ | {"MARGAUX_CACHE": cache},
                                     capture_output=True, text=True, check=True)  # fmt: skip
                wall, spent, imported = map(float, out.stdout.split())
                print(f"  {name:9s} {method:11s} {programs:14s}: wall {wall:5.2f}, CPU {spent:5.2f};"
                      f" imports before it {imported:5.2f}", flush=True)  # fmt: skip


def ends(cases: dict[str, Any]) -> None:
    print("4. The variational fit at its defaults, seeds 0 to 9")
    warnings.filterwarnings("ignore", r"\d+ features have no counts in some level")
    for name, case in cases.items():
        given = {"covariates": case["x"][:, 1:]} if case["x"].shape[1] > 1 else {}
        found, starts = [], []
        for seed in range(10):
            model = mx.PLNPCA(int(case["q"]), method="variational", random_state=seed, verbose=False)
            model.fit(case["y"], offsets=case["offset"], **given)
            found.append(bound_of(case, model.variational_))
            starts += model.starts_.loc[model.starts_["converged"], "bound"].tolist()
        close = sum(value > BEST[name] - 1 for value in found)
        print(f"  {name:9s}  {close} of 10 within a nat of {BEST[name]:.2f} or above: {min(found):.2f} to {max(found):.2f};"
              f" starts that went to an end: {min(starts):.2f} to {max(starts):.2f}", flush=True)  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, jax.enable_x64(True):
        for name, case in (("synthetic", synthetic()), ("simulated", simulated())):
            np.savez(f"{folder}/{name}.npz", **case)
        fault = in_peer(DATA.format(folder=folder))
        if fault:
            print(f"scRNA and oaks: not measured ({fault})")
        asked = sys.argv[1:] or [*SMALL, "simulated"]
        names = [name for name in asked if Path(f"{folder}/{name}.npz").exists()]
        cases = {name: dict(np.load(f"{folder}/{name}.npz")) for name in names}
        against_peer(cases, folder)
        small = {name: cases[name] for name in names if name in SMALL}
        against_adam(small)
        fresh(small, folder)
        ends(small)


if __name__ == "__main__":
    main()
