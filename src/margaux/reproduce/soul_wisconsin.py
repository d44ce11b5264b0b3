"""SOUL, section 4.1: empirical-Bayes logistic regression on the Wisconsin data, figures 1 to 4.

De Bortoli, Durmus, Pereyra and Vidal (2021). Set-up: intercept and nine standardised columns, prior N(theta 1, 5 I).

    margaux reproduce soul_wisconsin [--full]
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

import margaux as mx
from margaux.answers.draws import draws
from margaux.datasets import load_wisconsin
from margaux.examples import wisconsin
from margaux.families.empirical_bayes.plots import histograms

STEP = mx.Polynomial(60.0, power=0.8)
GAMMA, EXACT = 8.34e-5, 0.729


def soul(data: Any, n_iter: int, runs: int | None = None, key: int = 1, gamma: float = GAMMA) -> mx.Fit:
    """The paper's settings; the average starts at a tenth of the run, at 20,000 where the run allows."""
    burn_in = min(20_000, n_iter // 2)
    return mx.fit(
        wisconsin.EmpiricalBayesLogistic(),
        data,
        mx.soul(STEP, average=mx.StepWeighted(STEP, burn_in=burn_in)),
        mx.MCMC(mx.ULA(gamma), warm_up=100),
        params={"theta": 0.0},
        space={"theta": mx.Box(-100.0, 100.0)},
        n_iter=n_iter,
        runs=runs,
        spread=0.0,
        key=key,
        dtype="float32",
        polish=False,
        progress=False,
    )


def trajectories(fit: mx.Fit) -> plt.Figure:
    """Figure 1: iterates and their average, early and late."""
    values = fit.trace["params"][:, 0, 0].astype(float)
    k = np.arange(1, len(values) + 1)
    weights = k**-0.8
    late = k > fit.averaged_from
    average = np.cumsum(weights * values * late) / np.maximum(np.cumsum(weights * late), 1e-300)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5))
    left.plot(k[:100], values[:100], lw=1)
    stride = max(len(values) // 4000, 1)
    right.plot(k[late][::stride], values[late][::stride], lw=0.4, alpha=0.6, label="iterate")
    right.plot(k[late][::stride], average[late][::stride], lw=1.5, label="weighted average")
    right.xaxis.set_major_locator(plt.MaxNLocator(5))
    for axis, title in [(left, "first 100 iterations"), (right, "after the burn-in")]:
        axis.axhline(EXACT, color="tab:red", ls="--", lw=1, label="exact")
        axis.set(title=title, xlabel="n", ylabel="theta")
    right.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


def replicates(values: np.ndarray, p: float) -> plt.Figure:
    """Figure 3b: the estimates over replicates, and the Gaussian of their mean and SD."""
    figure, axis = plt.subplots(figsize=(5, 3.5))
    axis.hist(values, bins=20, density=True, alpha=0.6)
    grid = np.linspace(values.min(), values.max(), 200)
    axis.plot(grid, stats.norm.pdf(grid, values.mean(), values.std(ddof=1)), color="black", lw=1)
    axis.axvline(EXACT, color="tab:red", ls="--", lw=1)
    axis.set(title=f"{len(values)} replicates, Kolmogorov-Smirnov p = {p:.2f}", xlabel="estimate of theta")
    figure.tight_layout()
    return figure


def splits(count: int) -> np.ndarray:
    """Share of mislabelled test rows over 80/20 splits, by the posterior predictive mode."""
    X, y = load_wisconsin(return_X_y=True)
    X, y, errors = np.asarray(X, float), np.asarray(y), []
    for seed in range(count):
        order = np.random.default_rng(seed).permutation(len(y))
        train, test = order[:546], order[546:]
        centre, scale = X[train].mean(axis=0), X[train].std(axis=0, ddof=1)
        model = mx.EmpiricalBayesLogistic(n_iter=4000, verbose=False, random_state=seed)
        model.fit((X[train] - centre) / scale, y[train])
        errors.append(1 - model.score((X[test] - centre) / scale, y[test]))
    return np.array(errors)


def errors_by_theta(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Figure 4: test error of one split against theta, each theta with its own posterior."""
    X, y = load_wisconsin(return_X_y=True)
    X, y = np.asarray(X, float), np.asarray(y, float)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:546], order[546:]
    X = (X - X[train].mean(axis=0)) / X[train].std(axis=0, ddof=1)
    X = np.column_stack([np.ones(len(X)), X])
    fit = mx.fit(
        wisconsin.EmpiricalBayesLogistic(),
        mx.one_unit({"X": X[train], "y": y[train]}),
        mx.soul(),
        mx.MCMC(mx.ULA(preconditioner="dense")),
        params={"theta": 0.0},
        n_iter=5000,
        polish=False,
        progress=False,
    )
    grid = np.linspace(-10, 10, count)
    found = []
    for theta in grid:
        beta = draws(fit, 2000, thin=5, params={"theta": np.asarray(theta)})[500:, 0, 0]
        p = (1 / (1 + np.exp(-(X[test] @ beta.T)))).mean(axis=1)
        found.append(np.mean((p > 0.5) != y[test]))
    return grid, np.array(found)


def main(out: Path, full: bool = False) -> None:
    """Figures 1 to 4 as PNG, and the table beside the paper's figures."""
    out.mkdir(parents=True, exist_ok=True)
    data = wisconsin.data()
    n_iter = 1_000_000 if full else 400_000
    began = time.process_time()
    fit = soul(data, n_iter)
    spent = time.process_time() - began
    trajectories(fit).savefig(out / "soul_wisconsin_1.png", dpi=120)

    coefficients = fit.draws(4000 if not full else 20_000, thin=100)[:, 0, 0]
    histograms(coefficients, [f"beta{j}" for j in range(10)]).figure.savefig(out / "soul_wisconsin_2.png", dpi=120)

    grid = np.linspace(-0.75, 2.25, 13)
    profile = fit.slice("theta", grid, method="harmonic", n_draws=600_000 if full else 60_000)
    fit.plot.profile(profile, truth=EXACT).figure.savefig(out / "soul_wisconsin_3a.png", dpi=120)

    many = soul(data, n_iter, runs=1000 if full else 200, key=2).run_params["theta"].astype(float)
    p = stats.kstest((many - many.mean()) / many.std(ddof=1), "norm").pvalue
    replicates(many, p).savefig(out / "soul_wisconsin_3b.png", dpi=120)

    thetas, errors = errors_by_theta(41 if full else 21)
    figure, axis = plt.subplots(figsize=(5, 3.5))
    axis.plot(thetas, 100 * errors, marker="o", ms=3)
    axis.axvline(float(fit.params["theta"]), color="tab:blue", ls="--", lw=1, label="estimate")
    axis.set(xlabel="theta", ylabel="mislabelled test rows, %")
    axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(out / "soul_wisconsin_4.png", dpi=120)
    predicted = splits(20)
    probe = fit.bias_probe().loc["theta"]

    rows = [
        ("estimate of theta", "figure only", f"{float(fit.params['theta']):.3f}", f"exact {EXACT}; the paper kept an id column"),
        (
            f"{len(many)} replicates, mean and SD",
            "3% bias",
            f"{many.mean():.3f}, {many.std(ddof=1):.4f}",
            "averaged from n = 20,000, past the transient of 10,000 steps",
        ),
        ("Gaussian, KS p value", "by eye", f"{p:.2f}", ""),
        ("harmonic-mean maximiser", "figure only", f"{profile.attrs['maximiser']:.3f}", "ellipsoid instead of a ball"),
        (
            "test error, 20 splits",
            "2.2% (one split)",
            f"{100 * predicted.mean():.1f}% (SD {100 * predicted.std(ddof=1):.1f}%)",
            "one split of 137 rows has a standard error of 1.3%",
        ),
        ("bias probe, shift in SE", "none", f"{probe['shift_in_se']:.5f} (MC {probe['mc_error_in_se']:.5f})", "gamma / 2"),
        ("CPU seconds", "not given", f"{spent:.1f} for {n_iter:,} iterations", "cold, compilation included"),
    ]
    from rich.console import Console
    from rich.table import Table

    table = Table(title="SOUL, section 4.1: Wisconsin")
    for column in ("quantity", "paper", "ours", "why they differ"):
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    Console(width=130).print(table)
