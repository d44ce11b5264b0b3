r"""Incremental and stochastic EM on three models: error against epochs and against CPU seconds.

- A mixture of three Gaussians, n = 2000: exact E-step, every algorithm on sufficient statistics.
- Logistic regression with a fifth of its covariates missing, n = 1000: surrogates, $\min(10 + e^2, 50)$ draws in epoch e.
- A probit model with a random intercept, 500 groups of 8: surrogates or scores (SAGA and SVRG have both), 10 draws a visit.

Errors are the largest over all parameters, in standard errors of the exact maximum; means over three runs. They are of what
the recipe reports, the iterate or the mean of the second half of those so far; "last" and "mean" are of both at the end. A
pass over all units is an epoch, so tables begin at 1. CPU seconds are of one thread, with what a warm fit takes to begin and
without compilation. "tuned" is SAEM's number of constant gains, the power of online EM's gain, the weight or step of SAGA and
SVRG: the best of a grid on other data of the same kind (`--tune`).

    python benchmarks/incremental.py [--out FOLDER] [--full] [--tune]

Mixture: after 20 epochs SVRG is within 6e-5 on batches of 1 and 2e-4 on 10%, SAGA 6e-4 and 0.1, MISSO 1.2 and 1.7, EM 6.5.
But an epoch takes EM 0.1 ms and batches of one 11 to 35 ms, so by CPU EM wins: 1e-13 in 0.1 s, where SVRG and MISSO on 10% are
between 0.3 and 6. Online EM leads for five epochs (1%: 0.5) and ends near 0.03.

Missing covariates: at 5 epochs MISSO (0.3) and online EM (0.3 to 0.4) lead MCEM (1.1). Then Monte Carlo error is all: iterates
of MISSO and MCEM stop at 0.1, of SAGA and SVRG at 0.2, and only gains and means go on, to 0.02 to 0.04 at 50 epochs. By CPU
full batches and 10% are alike, batches of one a few times slower.

Probit: EM is slow (MCEM 6.1 after 10 epochs, MISSO 3.1 on batches of 1); scores (0.4 to 0.65), SAGA on statistics (0.5, 0.7)
and online EM on batches of 1 (0.6) are fast. After 0.1 s score SAGA on 10% leads (0.7), after 1 s most are between 0.2 and 0.6.

Single units: online EM waits for twice as many units as parameters before its first M-step; still it wanders at first (23
standard errors off after an epoch of the mixture, 0.7 after five) and its last iterate stays noisy (0.6 to 1.1), so its mean
counts. The weights tuned for SAGA and SVRG on statistics lie near the library's own, min(1, b / n^(2/3)): 0.006, 0.01 and 0.016
on one unit of the three problems, one on 10%. On reshuffled epochs SAGA visits the oldest rows, so its statistics overshoot,
and on the mixture it diverges from a weight between 1.5 and 1.8 b / n on (b = 1: 1 and 2): it samples uniformly by itself.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.special import log_ndtr, logsumexp
from jax.scipy.stats import norm
from matplotlib.figure import Figure
from scipy import optimize

import margaux as mx
from margaux.families.missing.families import Logistic
from margaux.families.missing.likelihood import Likelihood
from margaux.families.missing.model import MissingCovariates
from margaux.families.missing.observed import arrange
from margaux.families.missing.standard import Standard
from margaux.problem.schedule import AbstractSchedule
from margaux.reproduce.misso_missing import Clock

EPOCHS, SECONDS = (1, 2, 5, 10, 20, 50), (0.03, 0.1, 0.3, 1.0, 3.0)


class Problem(NamedTuple):
    """A model, its data and start; where the maximum is and its standard errors, flat; how a unit is visited."""

    title: str
    model: Any
    data: Any
    n: int
    start: dict
    space: Any
    exact: np.ndarray
    se: np.ndarray
    estep: Callable[[AbstractSchedule], Any]
    draws: Callable[[Any], Any]


class Mixture(mx.AbstractExponentialFamily, mx.AbstractDiscrete):
    """x_i ~ sum_k weight_k N(mean_k, variance_k), three components; the latent is the label."""

    def support(self, y):
        return jnp.arange(3)

    def init_latents(self, key, params, y):
        return jnp.zeros((), int)

    def log_joint(self, params, z, y):
        return (jnp.log(params["weights"]) + norm.logpdf(y, params["means"], jnp.sqrt(params["variances"])))[z]

    def suffstats(self, z, y):
        hot = jax.nn.one_hot(z, 3, dtype=y.dtype)
        return {"n": hot, "x": hot * y, "x2": hot * y**2}

    def m_step(self, mean_stats):
        s = mean_stats
        means = s["x"] / s["n"]
        return {"weights": s["n"], "means": means, "variances": s["x2"] / s["n"] - means**2}


def mixture(full: bool, seed: int) -> Problem:
    file = Path(os.environ.get("MARGAUX_DATA", "")) / "gmm1d_n2000.csv"
    if seed == 0 and not full and file.exists():
        y = np.genfromtxt(file, skip_header=1)
    else:
        rng = np.random.default_rng(seed)
        label = rng.choice(3, 20_000 if full else 2000, p=[0.5, 0.3, 0.2])
        y = rng.normal(np.array([-2.0, 0.5, 3.0])[label], np.sqrt(np.array([0.5, 0.3, 1.0]))[label])
    start = {"weights": np.full(3, 1 / 3), "means": np.array([-1.0, 0.0, 1.0]), "variances": np.ones(3)}

    def natural(free):
        weights = jax.nn.softmax(jnp.append(free[:2], 0.0))
        return {"weights": weights, "means": free[2:5], "variances": jnp.exp(free[5:])}

    def loglik(free):
        p = natural(free)
        return jnp.sum(logsumexp(jnp.log(p["weights"]) + norm.logpdf(y[:, None], p["means"], jnp.sqrt(p["variances"])), axis=1))

    exact, se = maximum(loglik, natural, np.array([0.0, 0.0, -1.0, 0.0, 1.0, 0.0, 0.0, 0.0]))
    space = {"weights": mx.Simplex(), "variances": mx.Positive(1e-3)}
    return Problem("Gaussian mixture", Mixture(), y, len(y), start, space, exact, se, lambda draws: mx.Exact(), np.ones_like)


def maximum(loglik: Callable, natural: Callable, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximum likelihood and standard errors of the natural parameters, flat, by Newton steps in free coordinates."""
    value, gradient, hessian = (jax.jit(f) for f in (lambda x: -loglik(x), jax.grad(lambda x: -loglik(x)), jax.hessian(loglik)))
    free = optimize.minimize(value, start, jac=gradient, method="BFGS").x
    for _ in range(5):
        free = free - np.linalg.solve(hessian(free), -gradient(free))
    return np.asarray(ravel_pytree(natural(free))[0]), deviations(natural, free, -np.asarray(hessian(free)))


def deviations(natural: Callable, free: np.ndarray, information: np.ndarray) -> np.ndarray:
    """Delta method."""
    slopes = np.asarray(jax.jacobian(lambda x: ravel_pytree(natural(x))[0])(jnp.asarray(free)))
    return np.sqrt(np.einsum("ij,ji->i", slopes, np.linalg.solve(information, slopes.T)))


def missing(full: bool, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    n, p = (5000, 10) if full else (1000, 5)
    x = rng.multivariate_normal(np.zeros(p), 0.5 * np.eye(p) + 0.5, size=n)
    y = rng.random(n) < 1 / (1 + np.exp(0.5 - x @ np.linspace(-1.0, 1.0, p)))
    x = np.where(rng.random(x.shape) < 0.2, np.nan, x)
    rows, groups, _ = arrange(Standard.of(x).apply(x), np.ones((n, 1)), y.astype(float), np.ones(n), np.zeros(n))
    start = {"beta": np.zeros(p + 1), "mean": np.zeros((1, p)), "covariance": np.eye(p)}
    likelihood = Likelihood(Logistic(), rows, groups)
    found, information = likelihood.maximise(start)
    se = deviations(likelihood.struct.natural, likelihood.pack(found.params), information)
    model = MissingCovariates(Logistic(), "tight", groups)
    exact = np.asarray(ravel_pytree(found.params)[0])
    return Problem("missing covariates", model, rows, n, start, model.space(), exact, se,
                   lambda draws: mx.MCMC(mx.CrankNicolson(), n_steps=draws), lambda e: jnp.minimum(10 + e**2, 50))  # fmt: skip


class Probit(mx.problem.AbstractSurrogate):
    r"""$y_{ij} = 1\{u_{ij} > 0\}$, $u_{ij} \sim N(\beta^\top x_{ij} + \tau z_i, 1)$, $z_i \sim N(0, 1)$.

    Given z the utilities have means in closed form, so the surrogate is that of EM with u and z missing: least squares of
    E[u | z, y] on (x, z). Its curvature is the bound 1 on that of -log Phi.
    """

    def log_joint(self, params, z, y):
        return jnp.sum(log_ndtr(y["sign"] * (y["x"] @ params["beta"] + params["tau"] * z))) + norm.logpdf(z)

    def init_latents(self, key, params, y):
        return jax.random.normal(key, (), y["sign"].dtype)

    def surrogate(self, params, z, y):
        design = jnp.column_stack([y["x"], jnp.full(y["sign"].shape, z)])
        eta = design @ jnp.append(params["beta"], params["tau"])
        utility = eta + y["sign"] * jnp.exp(norm.logpdf(eta) - log_ndtr(y["sign"] * eta))
        return {"square": design.T @ design, "product": design.T @ utility}

    def m_step(self, mean_surrogate):
        coefficients = jnp.linalg.solve(mean_surrogate["square"], mean_surrogate["product"])
        return {"beta": coefficients[:-1], "tau": coefficients[-1]}


def probit(full: bool, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    n, rows, beta = 5000 if full else 500, 8, np.array([-0.5, 1.0, -0.5])
    x = np.concatenate([np.ones((n, rows, 1)), rng.normal(size=(n, rows, 2))], axis=2)
    sign = np.sign(x @ beta + 1.0 * rng.normal(size=(n, 1)) + rng.normal(size=(n, rows)))
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)

    def natural(free):
        return {"beta": free[:3], "tau": free[3]}

    def loglik(free):
        each = jax.lax.map(lambda node: jnp.sum(log_ndtr(sign * (x @ free[:3] + free[3] * node)), axis=1), jnp.asarray(nodes))
        return jnp.sum(logsumexp(each, axis=0, b=weights[:, None] / np.sqrt(2 * np.pi)))

    exact, se = maximum(loglik, natural, np.array([0.0, 0.0, 0.0, 0.5]))
    start = {"beta": np.zeros(3), "tau": np.asarray(0.5)}
    return Problem("probit mixed model", Probit(), {"x": x, "sign": sign}, n, start, {"tau": mx.Positive(1e-3)}, exact, se,
                   lambda draws: mx.MCMC(mx.CrankNicolson(), n_steps=draws), lambda epoch: 10.0 + 0 * epoch)  # fmt: skip


class Method(NamedTuple):
    """An algorithm of one number, which may be tuned, and the shares of the units that its batches have (0: one unit)."""

    make: Callable[[float], Any]
    shares: tuple[float, ...]
    grid: tuple[float, ...] = ()
    sampling: str = "reshuffled"


WEIGHTS, POWERS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001), (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
STATISTICS = {
    "MCEM": Method(lambda _: mx.mcem(), (1.0,)),
    "SAEM": Method(lambda first: mx.saem(mx.ConstantThenDecay(1.0, int(first), 0.8)), (1.0,), (5, 10, 20, 50, 100)),
    "online EM": Method(lambda power: mx.online_em(mx.Polynomial(1.0, power)), (0.0, 0.01, 0.1), POWERS),
    "MISSO": Method(lambda _: mx.misso(), (0.0, 0.1)),
    "SAGA": Method(lambda weight: mx.saga(of="suffstats", weight=weight), (0.0, 0.1), WEIGHTS, "uniform"),
    "SVRG": Method(lambda weight: mx.svrg(of="suffstats", weight=weight), (0.0, 0.1), WEIGHTS),
}
SCORES = {
    "SAGA, score": Method(lambda step: mx.saga(step), (0.0, 0.1), WEIGHTS, "uniform"),
    "SVRG, score": Method(lambda step: mx.svrg(step), (0.0, 0.1), WEIGHTS),
}
#: what --tune found best: the smallest geometric mean of the errors
TUNED: dict[str, dict[tuple[str, float], float]] = {
    "mixture": {
        ("SAEM", 1.0): 100, ("online EM", 0.0): 0.6, ("online EM", 0.01): 0.4, ("online EM", 0.1): 0.3,
        ("SAGA", 0.0): 0.003, ("SAGA", 0.1): 1.0, ("SVRG", 0.0): 0.01, ("SVRG", 0.1): 1.0,
    },
    "missing": {
        ("SAEM", 1.0): 10, ("online EM", 0.0): 0.6, ("online EM", 0.01): 0.8, ("online EM", 0.1): 0.6,
        ("SAGA", 0.0): 0.003, ("SAGA", 0.1): 0.3, ("SVRG", 0.0): 0.003, ("SVRG", 0.1): 0.3,
    },
    "probit": {
        ("SAEM", 1.0): 100, ("online EM", 0.0): 0.5, ("online EM", 0.01): 0.5, ("online EM", 0.1): 0.3,
        ("SAGA", 0.0): 0.01, ("SAGA", 0.1): 1.0, ("SVRG", 0.0): 0.03, ("SVRG", 0.1): 1.0,
        ("SAGA, score", 0.0): 0.01, ("SAGA, score", 0.1): 0.3, ("SVRG, score", 0.0): 0.01, ("SVRG, score", 0.1): 0.3,
    },
}  # fmt: skip
#: epochs of each problem by share: what takes about as many seconds
HORIZONS = {
    "mixture": {0.0: 50, 0.01: 200, 0.1: 200, 1.0: 1000},
    "missing": {0.0: 20, 0.01: 50, 0.1: 50, 1.0: 50},
    "probit": {0.0: 50, 0.01: 100, 0.1: 100, 1.0: 200},
}
LINES, SEEDS = {0.0: "-", 0.01: "-.", 0.1: "--", 1.0: ":"}, 3
#: with an exact E-step MCEM is EM, whose iterates need no mean
EXACT = STATISTICS | {"MCEM": Method(lambda _: mx.mcem(mx.LastIterate()), (1.0,))}
PROBLEMS = {mixture: EXACT, missing: STATISTICS, probit: STATISTICS | SCORES}


class Draws(AbstractSchedule):
    """A Monte Carlo size of the epoch that iteration k is in; passes over all units are epochs too."""

    size: Callable[[Any], Any]
    epoch: Any
    passes: Any
    refreshes: Any

    def __call__(self, k):
        k = jnp.asarray(k, jnp.result_type(float))
        rounds = jnp.ceil(k / self.epoch)
        return self.size(self.passes + rounds + self.refreshes * (rounds - 1))


class Course(NamedTuple):
    """Errors in standard errors, and the epochs and CPU seconds at which they were reached; at the end those of the last
    iterate and of the mean of the second half."""

    epochs: np.ndarray
    seconds: np.ndarray
    errors: np.ndarray
    ends: np.ndarray
    compiling: float

    def at(self, by: str, values: tuple[float, ...]) -> np.ndarray:
        """Errors when so many epochs or seconds had been spent; not a number before the start and after the end."""
        x = getattr(self, by)
        places = np.searchsorted(x, np.asarray(values) * (1 + 1e-9), side="right") - 1
        inside = (places >= 0) & (np.asarray(values) <= x[-1] * (1 + 1e-9))
        return np.where(inside, self.errors[places], np.nan)


def run(problem: Problem, method: Method, share: float, value: float, horizon: int, seeds: int) -> Course:
    """Mean over seeds."""
    size = max(round(share * problem.n), 1)
    algorithm, per_epoch = method.make(value), problem.n // size
    passes, refreshes = float(algorithm.has_rows), float(algorithm.refresh_epochs or 0)
    sizes = Draws(problem.draws, *(np.asarray(float(x)) for x in (per_epoch, passes, refreshes)))
    n_iter = int((horizon - passes + refreshes) // (1 + refreshes)) * per_epoch

    def fitted(count: int, key: int) -> tuple[mx.Fit, Clock]:
        clock = Clock()
        fit = mx.fit(problem.model, problem.data, algorithm, problem.estep(sizes), params=problem.start, space=problem.space,
                     n_iter=count, batch_size=size, sampling=method.sampling, key=key, dtype="float64", callbacks=[clock],
                     polish=False, progress=False, throw=False)  # fmt: skip
        return fit, clock

    compiling = fitted(per_epoch + 1, 0)[1].seconds[-1]
    preparing = fitted(1, 0)[1].seconds[-1]
    visited = np.full(n_iter, 1 / per_epoch)
    visited[per_epoch::per_epoch] += refreshes
    draws = np.asarray(sizes(np.arange(n_iter) + 1.0))
    epochs, work = (np.cumsum(np.append(passes * x[0], visited * x)) for x in (np.ones(n_iter), draws))
    far = lambda theta: (np.abs(theta - problem.exact) / problem.se).max(axis=1)  # noqa: E731
    seconds, errors, ends = [], [], []
    for key in range(seeds):
        fit, clock = fitted(n_iter, key)
        clock.seconds[0] = min([preparing, *clock.seconds[1:]])
        seconds.append(np.interp(work, work[clock.iterations], clock.seconds))
        iterates = np.concatenate([ravel_pytree(problem.start)[0][None], fit.trace["params"][:, 0]])
        sums, k = np.cumsum(iterates, axis=0), np.arange(1, len(iterates))
        means = np.concatenate([iterates[:1], (sums[k] - sums[k // 2]) / (k - k // 2)[:, None]])
        errors.append(np.full(n_iter + 1, np.inf))
        errors[-1][: len(iterates)] = far(means if isinstance(algorithm.average, mx.PolyakRuppert) else iterates)
        ends.append([far(iterates)[-1], far(means)[-1]])
    seconds, errors, ends = (np.mean(each, axis=0) for each in (seconds, errors, ends))
    return Course(epochs, seconds, errors, ends, compiling)


def name(share: float) -> str:
    """The size of a batch in words."""
    return "1" if share == 0 else "full" if share == 1 else f"{share:.0%}"


def tune() -> None:
    """Geometric mean of the errors at the epochs of the table, two runs each, for the numbers of the grids."""
    for make, methods in PROBLEMS.items():
        problem = make(False, 1)
        for label, method in methods.items():
            for share in method.shares if method.grid else ():
                print(f"{problem.title:19s} {label:12s} {name(share):>4s}", end="", flush=True)
                for value in method.grid:
                    course = run(problem, method, share, value, HORIZONS[make.__name__][share], 2)
                    print(f"  {value:g}: {np.exp(np.nanmean(np.log(course.at('epochs', EPOCHS[1:])))):.2g}", end="", flush=True)
                print()


def report(problem: Problem, courses: dict[tuple[str, float], Course], values: dict[tuple[str, float], float]) -> None:
    """The table of a problem."""
    print(f"\n{problem.title}, {problem.n} units: largest error in standard errors after so many epochs | CPU seconds")
    columns = "".join(f"{e:>8d}" for e in EPOCHS) + " |" + "".join(f"{s:>8g}" for s in SECONDS)
    ending = f"{'last':>7s} {'mean':>7s} | {'ms/epoch':>8s} {'compiling':>9s}"
    print(f"{'algorithm':12s} {'batch':>5s} {'tuned':>6s}{columns} | {ending}")
    show = lambda x: "-" if np.isnan(x) else "fails" if x > 1e4 else f"{x:.0f}" if x >= 10 else f"{x:.2g}"  # noqa: E731
    for (label, share), course in courses.items():
        cells = ["".join(f"{show(x):>8s}" for x in course.at(by, at)) for by, at in (("epochs", EPOCHS), ("seconds", SECONDS))]
        cost = 1000 * (course.seconds[-1] - course.seconds[0]) / (course.epochs[-1] - course.epochs[0])
        last = f"{cost:8.1f} {course.compiling:9.1f}" if cost else f"{'-':>8s} {'-':>9s}"
        ends = " ".join(f"{show(x):>7s}" for x in course.ends)
        number = f"{values[label, share]:g}" if (label, share) in values else ""
        print(f"{label:12s} {name(share):>5s} {number:>6s}{' |'.join(cells)} | {ends} | {last}")


def draw(results: dict[str, dict[tuple[str, float], Course]], by: str, xlabel: str) -> Figure:
    """A panel a problem."""
    figure = Figure(figsize=(15, 5.5), layout="constrained")
    axes: Any = figure.subplots(1, len(results))
    colours = {label: f"C{j}" for j, label in enumerate(STATISTICS | SCORES)}
    for axis, (title, courses) in zip(axes, results.items(), strict=True):
        for (label, share), course in courses.items():
            x = getattr(course, by)
            if not np.isfinite(course.errors).all():
                continue
            kept = np.unique(np.searchsorted(x, np.geomspace(max(x[0], x[-1] * 1e-3), x[-1], 400)).clip(0, len(x) - 1))
            y, called = course.errors[kept], f"{label}, {name(share)}"
            axis.plot(x[kept], y, color=colours[label], ls=LINES[share], lw=1.2, label=called)
        axis.set(title=title, xlabel=xlabel, ylabel="largest error / standard error", xscale="log", yscale="log")
        axis.set_ylim(max(min(np.min(course.errors) for course in courses.values()) / 2, 1e-12), 300)
    axes[-1].legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("incremental"), help="folder of the two figures")
    parser.add_argument("--full", action="store_true", help="ten (mixture, probit) and five times the units")
    parser.add_argument("--tune", action="store_true", help="show how the tuned numbers were found, and stop")
    asked = parser.parse_args()
    if asked.tune:
        return tune()
    results = {}
    for make, methods in PROBLEMS.items():
        problem, values = make(asked.full, 0), TUNED[make.__name__]
        courses = {
            (label, share): run(problem, method, share, values.get((label, share), 0.0), HORIZONS[make.__name__][share], SEEDS)
            for label, method in methods.items() for share in method.shares
        }  # fmt: skip
        report(problem, courses, values)
        results[problem.title] = courses
    asked.out.mkdir(parents=True, exist_ok=True)
    for by, xlabel in [("epochs", "epochs"), ("seconds", "CPU seconds")]:
        draw(results, by, xlabel).savefig(asked.out / f"incremental_{by}.png", dpi=120)


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
