r"""MISSO, section 4.1: logistic regression with missing covariates, figures 1 and 3 and table 1.

Karimi, Wai, Moulines and Li (2022): SAEM (gain $k^{-0.6}$), MCEM and MISSO on batches of 1, 10% and 50% of the rows. Their
delta is "beta" here, their beta "mean", their Omega "covariance".

What comes out as in the paper: counted in epochs MISSO leads MCEM, the more so the smaller the batch (half batches from about
the fifth epoch on), and SAEM is last. What does not: an epoch does not take all methods the same time. Full batches work on
sums over the rows; a table needs the surrogate of every row, and batches of one an M-step a row. So in seconds MCEM leads here.

Departures:

- The registry is not public. Rows like its own are simulated: 16 correlated Gaussian measurements, an outcome of about 10%,
  a tenth of the entries missing completely at random. So the figures show how the methods converge, not the paper's values.
- The Monte Carlo size $10 + k^2$ counts epochs k and stops at 100 (errata: with k the iteration, batches of one would need
  1e14 draws). All methods have the same; the paper does not say what SAEM and MCEM have.
- Eq. 44 and the conditional covariance have the signs of the errata. The chain moves the linear predictor alone and the rest
  is integrated out. It accepts as the paper's does, but goes on from one visit to the next.
- Epochs are reshuffled. The pass that fills MISSO's table is its first epoch. Time is that of the CPU, without compilation.
- Columns are standardised and the start is the standard normal, so that beta_1 starts near its maximum and only fluctuates.
- Beside the paper's bound 1/4 on the curvature ("largest") there is that of Jaakkola and Jordan ("tight").

    margaux reproduce misso_missing [--full]
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from scipy import special

import margaux as mx
from margaux.engine.callbacks import AbstractCallback
from margaux.families.missing.families import Logistic
from margaux.families.missing.likelihood import Likelihood
from margaux.families.missing.model import MissingCovariates
from margaux.families.missing.observed import arrange
from margaux.families.missing.standard import Standard
from margaux.problem.schedule import AbstractSchedule

#: share of the rows a batch has (0: one row), epochs, the paper's seconds for 10 epochs, and why ours differ
METHODS: dict[str, tuple[float, int, float, str]] = {
    "SAEM": (1.0, 25, 2033.2, "its average keeps early surrogates; sums over the rows"),
    "MCEM": (1.0, 25, 1972.4, "sums over the rows, one M-step an epoch"),
    "MISSO": (0.0, 12, 2244.8, "an M-step a row"),
    "MISSO10": (0.1, 15, 2139.4, "10 M-steps an epoch"),
    "MISSO50": (0.5, 18, 2005.2, "2 M-steps an epoch"),
}
CURVATURES = {"largest": "bound 1/4", "tight": "Jaakkola-Jordan"}
COLOURS = dict(zip(METHODS, ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple"), strict=True))
P, CAP, EPOCHS, NEAR = 16, 100, 10, 0.02


def simulate(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Measurements with NaN where they are missing, of three common factors and noise, and outcomes."""
    rng = np.random.default_rng(seed)
    loadings = rng.normal(size=(P, 3))
    covariance = loadings @ loadings.T + np.diag(rng.uniform(0.5, 1.5, P))
    x = rng.normal(size=P) + rng.multivariate_normal(np.zeros(P), covariance, size=n)
    slopes = rng.normal(size=P) * rng.choice([0.0, 0.4], P) / np.sqrt(np.diag(covariance))
    slopes[0] = 0.6 / np.sqrt(covariance[0, 0])
    y = rng.random(n) < special.expit(-2.5 + (x - x.mean(axis=0)) @ slopes)
    return np.where(rng.random((n, P)) < 0.1, np.nan, x), y.astype(float)


class Draws(AbstractSchedule):
    """$10 + e^2$ in epoch e, at most 100. Where a full pass comes before the iterations, they begin with the second."""

    epoch: Any
    passed: Any

    def __call__(self, k):
        begun = self.passed + jnp.ceil(jnp.asarray(k, jnp.result_type(float)) / self.epoch)
        return jnp.minimum(10 + begun**2, CAP)


class Clock(AbstractCallback):
    """CPU seconds so far at the end of each chunk."""

    def __init__(self) -> None:
        self.iterations, self.seconds, self.began = [0], [0.0], time.process_time()

    def __call__(self, progress):
        self.iterations.append(progress.iteration)
        self.seconds.append(time.process_time() - self.began)
        return False

    def close(self) -> None:
        pass


class Course(NamedTuple):
    """Iterates with the epochs and CPU seconds at which they were reached, the start first."""

    epochs: np.ndarray
    seconds: np.ndarray
    beta: np.ndarray
    mean: np.ndarray
    compiling: float

    def at(self, epochs: float) -> int:
        """The last iterate of so many epochs."""
        return int(np.searchsorted(self.epochs, epochs + 1e-9, side="right")) - 1

    def errors(self, beta: np.ndarray) -> np.ndarray:
        """Largest distance of a coefficient from its exact value."""
        return np.abs(self.beta - beta).max(axis=1)

    def settled(self, beta: np.ndarray) -> str:
        """Epochs after which the distance stays below `NEAR`."""
        far = np.flatnonzero(self.errors(beta) > NEAR)[-1]
        last = len(self.epochs) - 1
        return f"> {self.epochs[last]:.0f}" if far == last else f"{self.epochs[far + 1]:.1f}"


def run(method: str, model: MissingCovariates, rows: Any, start: dict[str, np.ndarray]) -> Course:
    """One method; a first iteration by itself compiles, so that the clock shows none of it."""
    n, (share, epochs, _, _) = len(rows.y), METHODS[method]
    size = max(int(share * n), 1)
    table = size < n
    per_epoch = n // size
    algorithm = {"SAEM": mx.saem(mx.Polynomial(1.0, power=0.6)), "MCEM": mx.mcem(mx.LastIterate())}.get(method, mx.misso())
    sizes = Draws(np.asarray(float(per_epoch)), np.asarray(float(table)))
    estep = mx.MCMC(mx.CrankNicolson(), n_steps=sizes)
    n_iter = (epochs - table) * per_epoch

    def fitted(count: int, clock: Clock) -> mx.Fit:
        return mx.fit(
            model,
            rows,
            algorithm,
            estep,
            params=start,
            space=model.space(),
            n_iter=count,
            batch_size=size if table else None,
            callbacks=[clock],
            key=1,
            dtype="float64",
            polish=False,
            progress=False,
        )

    fitted(1, cold := Clock())
    fit = fitted(n_iter, clock := Clock())
    k = np.arange(n_iter + 1)
    # Between ends of chunks time goes by draws.
    draws = np.concatenate([[0.0], np.cumsum(sizes(k[1:]))])
    seconds = np.interp(draws, draws[clock.iterations], clock.seconds)
    first, _ = ravel_pytree(start)
    course = np.concatenate([first[None], fit.trace["params"][:, 0]])

    def of(name):
        return course[:, [entry.split("[")[0] == name for entry in fit.names]]

    return Course(table + k / per_epoch, seconds, of("beta"), of("mean"), cold.seconds[-1])


def draw(courses: dict[tuple[str, str], Course], exact: dict[str, np.ndarray], by: str, label: str) -> Figure:
    """delta_1 and beta_1, a row a curvature; the maximum of the exact likelihood dashed."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    for axes, (curvature, called) in zip(figure.subplots(len(CURVATURES), 2), CURVATURES.items(), strict=True):
        for axis, (symbol, name, j) in zip(axes, [("delta_1", "beta", 1), ("beta_1", "mean", 0)], strict=True):
            for method in METHODS:
                course = courses[method, curvature]
                x, values = getattr(course, by), getattr(course, name)[:, j]
                stride = max(len(x) // 4000, 1)
                marker = "." if len(x) < 50 else None
                axis.plot(x[::stride], values[::stride], color=COLOURS[method], lw=1, marker=marker, ms=3, label=method)
            axis.axhline(np.ravel(exact[name])[j], color="black", ls="--", lw=1, label="exact")
            axis.set(title=f"{symbol}, {called}", xlabel=label, ylabel=symbol)
            if by == "seconds":
                axis.set_xscale("symlog", linthresh=0.1)
                axis.set_xlim(left=0)
    figure.axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def main(out: Path, full: bool = False) -> None:
    """Figures 1 and 3 as PNG, and table 1 beside ours.

    Args:
        out: a folder for the figures. full: the paper's 6384 rows.
    """
    out.mkdir(parents=True, exist_ok=True)
    x, y = simulate(6384 if full else 1500)
    n = len(y)
    x = Standard.of(x).apply(x)
    rows, groups, _ = arrange(x, np.ones((n, 1)), y, np.ones(n), np.zeros(n))
    start = {"beta": np.zeros(P + 1), "mean": np.zeros((1, P)), "covariance": np.eye(P)}
    with jax.enable_x64(True):
        maximum, _ = Likelihood(Logistic(), rows, groups).maximise(start)
    exact = maximum.params

    courses = {
        (method, curvature): run(method, MissingCovariates(Logistic(), curvature, groups), rows, start)
        for method in METHODS
        for curvature in CURVATURES
    }
    for number, by, label in [(1, "seconds", "CPU seconds"), (3, "epochs", "epochs")]:
        draw(courses, exact, by, label).savefig(out / f"misso_missing_{number}.png", dpi=120)

    table = Table(
        title=f"MISSO, section 4.1: {n} rows (the paper: 6384), {EPOCHS} epochs",
        caption=f"CPU seconds, compilation left out ({sum(c.compiling for c in courses.values()):.0f} s in all); the "
        "paper's: wall-clock, in R. Error: largest |beta - exact|.",
    )
    for column in ("method", "surrogate", "paper, s", "ours, s", "error", f"epochs to {NEAR}", "why they differ"):
        table.add_column(column)
    for (method, curvature), course in courses.items():
        at, first = course.at(EPOCHS), curvature == next(iter(CURVATURES))
        table.add_row(
            method if first else "",
            CURVATURES[curvature],
            str(METHODS[method][2]) if first else "not tried",
            f"{course.seconds[at]:.1f}",
            f"{course.errors(exact['beta'])[at]:.4f}",
            course.settled(exact["beta"]),
            METHODS[method][3] if first else "",
        )
    Console(width=130).print(table)
