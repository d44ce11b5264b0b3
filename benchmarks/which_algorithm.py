"""Which algorithm when: algorithms and E-steps on models whose maximum likelihood estimate is known exactly.

For each pair: the distance from the exact estimate, in standard errors of that estimate (the largest over the parameters, root
mean square over eight runs from scattered starts), and the CPU seconds of one fit, without compilation and with it.

    python benchmarks/which_algorithm.py [--out FILE.csv] [--only MODEL]

The models: `intercept`, a ragged Gaussian random intercept, 400 units; `overdispersed`, Gamma-Poisson counts, 600 units, whose
two parameters are nearly collinear; `mixture`, three Gaussians, 2000 units, a discrete latent; `theophylline`, one-compartment
pharmacokinetics, 12 subjects with three latents. Settings are those that a user would write down first, not the best of a search.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import margaux as mx
from margaux.examples import theophylline

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import helpers  # pyright: ignore[reportMissingImports]

RUNS = 8


class Row(NamedTuple):
    """One pair: what is typed for the algorithm and the E-step, iterations, units an iteration."""

    algorithm: str
    estep: str
    n_iter: int
    batch_size: int | None = None


GROWING = "n_steps=mx.Growth(4, 0.1, 1.0)"
#: gradients ask for log_joint alone
BY_SCORE = [
    Row("mx.soul()", "mx.MCMC(mx.MALA(0.5), n_steps=3)", 2000),
    Row("mx.soul()", "mx.MCMC(mx.ULA(), n_steps=3)", 2000),
    Row("mx.soul()", "mx.MCMC(mx.RandomWalk(1.0), n_steps=3)", 2000),
    Row("mx.soul()", "mx.MCMC(mx.MALA(0.5), n_steps=3)", 8000, 50),
    Row("mx.soul()", "mx.ImportanceSampling(64, quasi=True)", 1000),
    Row("mx.soul()", "mx.Quadrature(15)", 1000),
    Row("mx.aisgd()", "mx.ImportanceSampling(64, quasi=True)", 2000),
    Row("mx.saga(step=0.1)", "mx.MCMC(mx.MALA(0.5), n_steps=3)", 8000, 50),
    Row("mx.misso(lipschitz=4.0)", f"mx.MCMC(mx.MALA(0.5), {GROWING})", 2000, 50),
]
#: closed-form M-steps
BY_STATISTICS = [
    Row("mx.saem()", "mx.MCMC(mx.MALA(0.5), n_steps=3)", 1000),
    Row("mx.saem()", "mx.MCMC(mx.IndependenceMH(), n_steps=3)", 1000),
    Row("mx.mcem()", f"mx.MCMC(mx.MALA(0.5), {GROWING})", 300),
    Row("mx.mcem()", "mx.Quadrature(15)", 300),
    Row("mx.online_em()", "mx.MCMC(mx.MALA(0.5), n_steps=3)", 4000, 50),
    Row("mx.misso()", f"mx.MCMC(mx.MALA(0.5), {GROWING})", 1000, 50),
    Row('mx.saga(of="suffstats")', "mx.MCMC(mx.MALA(0.5), n_steps=3)", 4000, 50),
]
DISCRETE = [
    Row("mx.mcem()", "mx.Exact()", 500),
    Row("mx.online_em()", "mx.Exact()", 4000, 50),
    Row("mx.miso()", "mx.Exact()", 2000, 50),
    Row('mx.svrg(of="suffstats")', "mx.Exact()", 2000, 50),
    Row('mx.saga(of="suffstats")', "mx.Exact()", 2000, 50),
    Row("mx.soul()", "mx.Exact()", 1000),
]
CURVE = [
    Row("mx.saem()", "mx.MCMC(mx.RandomWalk(0.3), n_steps=10, n_chains=4)", 1000),
    Row("mx.saem()", "mx.MCMC(mx.MALA(0.1), n_steps=10, n_chains=4)", 1000),
    Row("mx.mcem()", f"mx.MCMC(mx.RandomWalk(0.3), n_chains=4, {GROWING})", 300),
    Row("mx.soul()", "mx.MCMC(mx.RandomWalk(0.3), n_steps=10, n_chains=4)", 2000),
    Row("mx.soul()", "mx.ImportanceSampling(512, quasi=True)", 300),
    Row("mx.soul()", "mx.Quadrature(7)", 300),
]


def mixture() -> helpers.Problem:
    """Exact by EM's fixed point; standard errors by Louis' identity with an exact E-step."""
    x = helpers.simulate_mixture(2000, 1)
    mle, loglik = helpers.mixture_em(x)
    fit = mx.fit(helpers.Mixture(), x, mx.mcem(mx.LastIterate()), mx.Exact(), params=mle, space=helpers.MIXTURE_SPACE, n_iter=1,
                 polish=False, progress=False)  # fmt: skip
    at = iter(fit.summary()["se"])
    errors = {name: np.array([next(at) for _ in range(np.size(mle[name]))]) for name in sorted(mle)}
    return helpers.Problem(helpers.Mixture(), x, helpers.MIXTURE_START, helpers.MIXTURE_SPACE, mle, errors, loglik)


def curve() -> helpers.Problem:
    return helpers.Problem(
        theophylline.Theophylline(), theophylline.data(), theophylline.START, mx.Positive(1e-4), theophylline.EXACT,
        theophylline.EXACT_SE, theophylline.EXACT_LOGLIK,
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], helpers.Problem], list[Row]]] = {
    "intercept": (lambda: helpers.random_intercept(400, 3), BY_SCORE + BY_STATISTICS),
    "overdispersed": (lambda: helpers.gamma_poisson(600, 5), BY_SCORE + BY_STATISTICS),
    "mixture": (mixture, DISCRETE),
    "theophylline": (curve, CURVE),
}


def distances(fit: Any, problem: helpers.Problem) -> np.ndarray:
    """Largest error of each run, in standard errors."""
    each = [np.abs(fit.run_params[name] - truth) / problem.se[name] for name, truth in problem.mle.items()]
    return np.max([one.reshape(len(one), -1).max(axis=1) for one in each], axis=0)


def measured(problem: helpers.Problem, row: Row) -> dict[str, Any]:
    def fitted(**settings: Any) -> tuple[Any, float]:
        begun = time.process_time()
        algorithm, estep = eval(row.algorithm), eval(row.estep)
        fit = mx.fit(problem.model, problem.data, algorithm, estep, params=problem.start, space=problem.space, n_iter=row.n_iter,
                     batch_size=row.batch_size, polish=False, progress=False, throw=False, **settings)  # fmt: skip
        return fit, time.process_time() - begun

    _, cold = fitted(key=0)
    _, warm = fitted(key=1)
    many, _ = fitted(key=2, runs=RUNS, spread=0.3)
    error = float(np.sqrt(np.mean(distances(many, problem) ** 2)))
    return {"error": error, "seconds": warm, "with compilation": cold, "ended": many.result.name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a CSV file to write")
    parser.add_argument("--only", choices=MODELS, help="one model")
    chosen = parser.parse_args()
    rows = []
    for name, (make, pairs) in MODELS.items():
        if chosen.only not in (None, name):
            continue
        problem = make()
        for row in pairs:
            try:
                figures = measured(problem, row)
            except TypeError as error:  # the pair cannot work on this model: its message says why
                print(f"{name}: {row.algorithm} with {row.estep}: {error}", file=sys.stderr)
                continue
            rows.append({"model": name, **row._asdict(), **figures})
            print(rows[-1], flush=True)
            frame = pd.DataFrame(rows).astype({"batch_size": "Int64"})
            if chosen.out is not None:
                frame.to_csv(chosen.out, index=False, float_format="%.3g")


if __name__ == "__main__":
    main()
