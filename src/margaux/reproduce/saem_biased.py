r"""Biased SAEM: unadjusted against Metropolis-adjusted Langevin chains, four experiments over grids of the step h.

Gruffaz, Kim, Durmus and Gardner (2024), arXiv:2402.17870, their settings unless an experiment says otherwise: gain
$\gamma_t = 1/\sqrt t$, 4 + 1 transitions an iteration of which the last is averaged, a burn-in of the chain alone at the
starting parameters, estimates from the last iterate. Their h makes the move $z + (h/2)\nabla\log p + \sqrt h\,\xi$, so the
library's step is h / 2. Joint MALA accepts or rejects the whole latent vector, as theirs; MALA per unit, the library's own
way, lets every subject or row accept by itself.

    margaux reproduce saem_biased [--full]
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from scipy import special

import margaux as mx
from margaux.examples.theophylline import NAMES, Theophylline, concentration
from margaux.examples.theophylline import data as theophylline_data
from margaux.families.empirical_bayes.model import ARDPrior, MeanScalePrior
from margaux.kernels import AbstractKernel
from margaux.reproduce._saem_biased_models import (
    CurvatureScaled,
    Dispersed,
    RobustPoisson,
    SlopesAlone,
    Together,
    decades,
    laplace,
    log_score,
    poisson_density,
    standardised,
)

ULA, JOINT, PER_UNIT = "ULA", "MALA, joint", "MALA, per unit"
SAMPLERS = (ULA, JOINT, PER_UNIT)
STYLES = {ULA: ("tab:blue", "-"), JOINT: ("tab:orange", "-"), PER_UNIT: ("tab:green", "--")}
TRUTH = {"theta": 1.0, "sigma": 0.1}
PK_START = {"ka": 1.0, "V": 20.0, "CL": 2.0, "omega2_ka": 0.1, "omega2_V": 0.1, "omega2_CL": 0.1, "a": 1.0}
COUNTS = {"medpar": ("HMO", "White", "Age80", "Type2", "Type3"), "azpro": ("Procedure", "Sex", "Admit", "Age75")}
CLASSES: dict[str, tuple[str, Any]] = {
    "german": ("german_numeric.csv", 2), "phishing": ("phishing.csv.gz", 1), "caravan": ("caravan.csv.gz", "Yes"),
}  # fmt: skip
INTERCEPT_SD = 10.0
Row = tuple[str, str, str, str]


def kernel(sampler: str, h: float) -> AbstractKernel:
    """The sampler at the paper's step h."""
    return mx.ULA(h / 2) if sampler == ULA else mx.MALA(h / 2, target_acceptance=None)


def saem(model: Any, data: Any, chain: AbstractKernel, *, joint: bool = False, warm_up: int, **settings: Any) -> mx.Fit:
    """The paper's algorithm; `joint` makes one unit of all the data."""
    if joint:
        model, data = Together(model), mx.one_unit(data)
    return mx.fit(
        model, data, mx.saem(mx.Polynomial(1.0, power=0.5)), mx.MCMC(chain, n_steps=5, thin=5, warm_up=warm_up),
        polish=False, progress=False, throw=False, spread=0.0, **settings,
    )  # fmt: skip


def split(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the training and of the test set, 80/20."""
    order = np.random.default_rng(seed).permutation(n)
    return order[: int(0.8 * n)], order[int(0.8 * n) :]


def widths(steps: np.ndarray, scores: dict[str, np.ndarray], against: str | None = None, own: bool = False) -> str:
    """Per sampler, decades of steps whose mean score is at most 1% below the best mean of all, of one sampler, or its own."""
    means = {name: values.mean(axis=1) for name, values in scores.items()}
    best = means[against].max() if against else max(m.max() for m in means.values())
    levels = {name: m.max() if own else best for name, m in means.items()}
    found = {name: decades(steps, m, levels[name] - 0.01 * abs(levels[name])) for name, m in means.items()}
    return "; ".join(f"{name} {'never' if np.isnan(w) else f'{w:.2f}'}" for name, w in found.items())


def best_of(steps: np.ndarray, scores: dict[str, np.ndarray]) -> str:
    """Per sampler, the best mean score and its step."""
    means = {name: values.mean(axis=1) for name, values in scores.items()}
    return "; ".join(f"{name} {m.max():.3f} (h = {steps[m.argmax()]:.2g})" for name, m in means.items())


def sweep(steps: np.ndarray, samplers: tuple[str, ...], run: Callable[[str, float], Any]) -> dict[str, np.ndarray]:
    """Scores (steps, repeats, ...) of each sampler."""
    return {name: np.array([run(name, float(h)) for h in steps]) for name in samplers}


def draw(steps: np.ndarray, panels: dict[str, tuple[dict[str, np.ndarray], Any]], path: Path, middle: Any = np.mean) -> None:
    """A panel a score (title: scores, setting of its axis): thin lines the repeats, thick ones their mean or median."""
    columns, rows = min(len(panels), 2), -(-len(panels) // 2)
    figure = Figure(figsize=(4.6 * columns, 3.6 * rows), layout="constrained")
    axes = np.ravel(figure.subplots(rows, columns))[: len(panels)]
    for axis, (title, (scores, setting)) in zip(axes, panels.items(), strict=True):
        for name, values in scores.items():
            colour, style = STYLES[name]
            shown = np.where(np.isfinite(values), values, np.nan)
            axis.plot(steps, shown, color=colour, lw=0.5, alpha=0.2)
            axis.plot(steps, middle(shown, axis=1), color=colour, ls=style, marker=".", label=name)
        axis.set(title=title, xscale="log", xlabel="Langevin step h", **setting)
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)


def near(scores: dict[str, np.ndarray], share: float = 0.2, label: str = "test log predictive density") -> dict[str, Any]:
    """Limits of an axis of log densities: the best mean and a share of it below."""
    best = max(np.max(values.mean(axis=1)) for values in scores.values())
    return {"ylim": (best - share * abs(best), best + 0.3 * share * abs(best)), "ylabel": label}


def table(name: str, **reading: Any) -> pd.DataFrame | None:
    """A file of the folder MARGAUX_DATA, or None and a message."""
    path = Path(os.environ.get("MARGAUX_DATA", "")) / name
    if not path.exists():
        print(f"{name} is not in the folder MARGAUX_DATA ({os.environ.get('MARGAUX_DATA') or 'not set'}): left out")
        return None
    return pd.read_csv(path, **reading)


def simulate(seed: int = 0, n: int = 1000, d: int = 100, condition: float = 1000.0) -> dict[str, np.ndarray]:
    """Experiment 1's data: singular values of x from 100 down to 100 / sqrt(condition)."""
    rng = np.random.default_rng(seed)
    u, _, vt = np.linalg.svd(rng.normal(size=(n, d)), full_matrices=False)
    x = (u * np.linspace(100.0, 100.0 / np.sqrt(condition), d)) @ vt
    beta = TRUTH["theta"] + TRUTH["sigma"] * rng.normal(size=d)
    return {"x": x, "y": (rng.random(n) < special.expit(x @ beta)).astype(float)}


def logistic_data() -> tuple[dict[str, np.ndarray], str]:
    """The reference data set where MARGAUX_DATA has it, else our own."""
    path = Path(os.environ.get("MARGAUX_DATA", "")) / "logistic_kappa1000.npz"
    if not path.exists():
        return simulate(), "simulated here"
    held = np.load(path)
    return {"x": held["X"], "y": held["y"]}, path.name


def logistic_errors(data: dict[str, np.ndarray], sampler: str, h: float, runs: int = 32, key: int = 1) -> np.ndarray:
    """Squared errors of (mu, sigma) after T = 100, from (0, 1) and standard normal latents; infinite where it diverged."""
    fit = saem(
        Dispersed(MeanScalePrior(), 1.0), mx.one_unit(data), kernel(sampler, h), warm_up=10, n_iter=100, runs=runs, key=key,
        params={"theta": 0.0, "sigma": 1.0},
    )  # fmt: skip
    last = dict(zip(fit.names, fit.trace["params"][-1].T.astype(float), strict=True))
    error = sum(((last[name] - value) ** 2 for name, value in TRUTH.items()), np.zeros(runs))
    return np.where(np.isfinite(error), error, np.inf)


def logistic(out: Path, full: bool) -> list[Row]:
    """Experiment 1: one latent vector, so that MALA is joint whatever one does."""
    data, source = logistic_data()
    steps = np.logspace(-5, 0, 16)
    scores = sweep(steps, (ULA, JOINT), lambda name, h: logistic_errors(data, name, h, 32 if full else 16))
    setting = {"yscale": "log", "ylabel": "|theta - theta*|^2", "ylim": (1e-3, 1e2)}
    draw(steps, {f"synthetic logistic, {source}": (scores, setting)}, out / "saem_biased_logistic.png", np.median)
    medians = {name: np.median(values, axis=1) for name, values in scores.items()}
    wide = {name: decades(steps, -m, -0.1) for name, m in medians.items()}
    started = (TRUTH["theta"] - 0.0) ** 2 + (TRUTH["sigma"] - 1.0) ** 2
    worse = steps[(medians[ULA] > started) & (steps > 1e-3)]
    return [
        ("1. median error, ULA, h = 1e-2", "0.0077", f"{medians[ULA][9]:.4f}", f"mu and sigma estimated, from (0, 1); {source}"),
        ("median error, joint MALA, h = 4.6e-3", "0.043", f"{medians[JOINT][8]:.3f}", "its lowest in both"),
        ("ULA worse than its start from", "0.046", f"{min(worse, default=np.inf):.2g}", "sigma follows the bias: no overflow"),
        ("decades of h with error below 0.1", "ULA wider", "; ".join(f"{k} {v:.2f}" for k, v in wide.items()), ""),
    ]


def pk_scores(seed: int, sampler: str, h: float, n_iter: int = 1000) -> tuple[float, float]:
    """Test RMSE of the population curve, and log predictive density a test subject; infinite where the fit diverged."""
    units = theophylline_data()
    train, test = ({name: leaf[ids] for name, leaf in units.items()} for ids in split(12, seed))
    fit = saem(
        Dispersed(Theophylline(), 0.3), train, kernel(sampler, h), joint=sampler == JOINT, warm_up=100, n_iter=n_iter, key=seed,
        params=PK_START, space=mx.Positive(),
    )  # fmt: skip
    if fit.result is mx.RESULTS.diverged:
        return np.inf, -np.inf
    with jax.enable_x64(True):
        phi = np.log([fit.params[name] for name in NAMES])
        curve = np.asarray(jax.vmap(lambda u: concentration(jnp.asarray(phi), u["Dose"][0], u["Time"]))(test))
    residual = test["mask"] * (test["Concentration"] - curve)
    with np.errstate(all="ignore"):
        density = float(on_test(fit, test).loglik(n_draws=2000)) / len(curve)
    return float(np.sqrt(np.sum(residual**2) / test["mask"].sum())), density if np.isfinite(density) else -np.inf


def on_test(fit: mx.Fit, test: dict[str, np.ndarray]) -> mx.Fit:
    """The fitted parameters with other subjects as their data."""
    assert fit.problem is not None
    problem = dataclasses.replace(fit.problem, model=Theophylline(), n=len(test["mask"]))
    return dataclasses.replace(fit, data=test, problem=problem, rows=None)


def pharmacokinetics(out: Path, full: bool) -> list[Row]:
    """Experiment 2: theophylline, with a start in the usual mode."""
    steps, splits = np.logspace(-4, 0, 17)[:: 1 if full else 2], range(32 if full else 6)
    scores = sweep(steps, SAMPLERS, lambda name, h: [pk_scores(seed, name, h) for seed in splits])
    rmse = {name: values[..., 0] for name, values in scores.items()}
    density = {name: values[..., 1] for name, values in scores.items()}
    panels = {
        "theophylline": (density, near(density, 0.3)),
        "population curve": (rmse, {"ylabel": "test RMSE, mg/L", "ylim": (1, 4)}),
    }
    draw(steps, panels, out / "saem_biased_theophylline.png")
    lowest = "; ".join(f"{name} {values.mean(axis=1).min():.2f}" for name, values in rmse.items())
    return [
        ("2. theophylline: best test lpd a subject", "figure only", best_of(steps, density),
         f"{len(splits)} splits; start ka 1, V 20"),
        ("decades of h within 1% of its own best", "per unit 1.25, ULA 0.25", widths(steps, density, own=True),
         "the authors' start ends in the flip-flop mode"),
        ("decades of h at most 1% below per-unit MALA's best", "not given", widths(steps, density, PER_UNIT),
         "9 training subjects: ULA's wider variances predict better"),
        ("lowest test RMSE", "figure only", lowest, "lpd: importance sampling, Laplace proposal"),
    ]  # fmt: skip


def count_rows(frame: pd.DataFrame, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Design with an intercept (medpar's Type1 = 1 - Type2 - Type3 left out), and length of stay."""
    return np.column_stack([np.ones(len(frame)), frame[list(COUNTS[name])].to_numpy(float)]), frame["Los"].to_numpy(float)


def poisson_score(
    x: np.ndarray, y: np.ndarray, seed: int, sampler: str, h: float, kind: Any = RobustPoisson, n_iter: int = 100
) -> float:
    """Test log predictive density of one split."""
    train, test = split(len(y), seed)
    model = Dispersed(kind(x[train].T @ x[train] / len(train)), 0.1)
    fit = saem(
        model, {"x": x[train], "y": y[train]}, kernel(sampler, h), joint=sampler == JOINT, warm_up=10, n_iter=n_iter, key=seed,
        params={"beta": np.zeros(x.shape[1]), "sigma": 0.1},
    )  # fmt: skip
    if fit.result is mx.RESULTS.diverged:
        return -np.inf
    return poisson_density(fit.params, x[test], y[test])


def counts(out: Path, full: bool) -> list[Row]:
    """Experiment 3: the Poisson log-normal regressions, and the authors' M-step beside the right one."""
    steps, splits = np.logspace(-5, -1, 11)[0 if full else 5 :], range(32 if full else 2)
    panels, rows = {}, []
    for name, told in [("medpar", "-3.215 (h = 0.016)"), ("azpro", "-2.762")]:
        frame = table(f"{name}.csv")
        if frame is None:
            continue
        x, y = count_rows(frame, name)

        def one(sampler: str, h: float, kind: Any = RobustPoisson, x: np.ndarray = x, y: np.ndarray = y) -> list[float]:
            return [poisson_score(x, y, seed, sampler, h, kind) for seed in splits]

        scores = sweep(steps, SAMPLERS, one)
        panels[name] = (scores, near(scores))
        theirs = np.mean(one(ULA, 0.016, SlopesAlone))
        rows += [
            (f"3. {name}: best test lpd", told, best_of(steps, scores), f"{len(splits)} splits, which differ by 0.04"),
            ("decades of h within 1% of the best", "ULA wider than joint", widths(steps, scores), "rows that accept alone mix"),
            ("the authors' M-step", "-3.007" if name == "azpro" else "not given", f"{theirs:.3f}", "no intercept in the design"),
        ]
    if panels:
        draw(steps, panels, out / "saem_biased_poisson.png")
    return rows


def class_rows(name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Numeric covariates and 0/1 responses; some fields of the German file are separated by blanks."""
    file, positive = CLASSES[name]
    reading = {"sep": r",|\s+", "engine": "python"} if name == "german" else {}
    frame = table(file, **reading)
    return None if frame is None else (frame.iloc[:, :-1].to_numpy(float), (frame.iloc[:, -1] == positive).to_numpy(float))


def relevance_scores(
    x: np.ndarray, y: np.ndarray, seed: int, sampler: str, h: float, runs: int, n_iter: int = 2000
) -> np.ndarray:
    """Runs of one split, (runs, 3): test log predictive density, accuracy, and log p(y | sigma) a training row.

    A run that diverged has minus infinity, accuracy NaN. A split all of whose chains stand still ends early.
    """
    train, test = split(len(y), seed)
    x = standardised(x, train)
    fit = saem(
        Dispersed(ARDPrior(INTERCEPT_SD), 0.5), mx.one_unit({"x": x[train], "y": y[train]}), CurvatureScaled(kernel(sampler, h)),
        warm_up=100, n_iter=n_iter, runs=runs, key=seed, params={"sigma": np.full(x.shape[1] - 1, 0.5)}, dtype="float32",
    )  # fmt: skip
    out = np.tile([-np.inf, np.nan, -np.inf], (runs, 1))
    for r in np.flatnonzero(np.all(np.isfinite(fit.trace["params"][-1]), axis=1)):
        sigma = np.r_[INTERCEPT_SD, fit.run_params["sigma"][r].astype(float)]
        marginal, p = laplace(x[train], y[train], sigma, x[test])
        out[r] = *log_score(p, y[test]), marginal / len(train)
    return out


def lasso(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[float, float]:
    """The scores of cross-validated L1 logistic regression."""
    from sklearn.linear_model import LogisticRegressionCV

    train, test = split(len(y), seed)
    x = standardised(x, train)[:, 1:]
    settings: Any = dict(
        Cs=np.geomspace(1e-3, 1.0, 10), cv=5, l1_ratios=(1.0,), solver="liblinear", scoring="neg_log_loss", max_iter=1000,
        intercept_scaling=10.0, use_legacy_attributes=False,
    )  # fmt: skip
    model = LogisticRegressionCV(**settings)
    return log_score(model.fit(x[train], y[train]).predict_proba(x[test])[:, 1], y[test])


def relevance(out: Path, full: bool) -> list[Row]:
    """Experiment 4: one latent vector; four splits with eight runs each in full, one with two otherwise.

    The step is in units of a preconditioner that knows the data: with the prior's variances alone, sigma_j^2 + 1e-3, the
    intercept stays unscaled, and both samplers fail (ULA diverges, MALA stands still) from h = 0.01 to 0.1 on.
    """
    splits, runs = range(4 if full else 1), 8 if full else 2
    steps = np.logspace(-3, 1, 9)[0 if full else 4 :]
    panels, rows = {}, []
    for name in CLASSES:
        held = class_rows(name)
        if held is None:
            continue
        x, y = held

        def one(sampler: str, h: float, x: np.ndarray = x, y: np.ndarray = y) -> np.ndarray:
            return np.concatenate([relevance_scores(x, y, seed, sampler, h, runs) for seed in splits])

        scores = sweep(steps, (ULA, JOINT), one)
        density, share, marginal = ({key: values[..., j] for key, values in scores.items()} for j in range(3))
        at = {key: share[key][values.mean(axis=1).argmax()].mean() for key, values in density.items()}
        panels |= {name: (density, near(density)), f"{name}, training": (marginal, near(marginal, 0.1, "log p(y | sigma) a row"))}
        other, accuracy = np.mean([lasso(x, y, seed) for seed in splits], axis=0)
        rows += [
            (f"4. {name}: best test lpd", "figure only", best_of(steps, density), f"L1, cross-validated: {other:.3f}"),
            ("accuracy there", "figure only", "; ".join(f"{key} {v:.3f}" for key, v in at.items()), f"L1: {accuracy:.3f}"),
            ("decades of h within 1% of the best lpd", "ULA wider", widths(steps, density), "a stuck chain keeps its start"),
            ("best log p(y | sigma) a training row", "not given", best_of(steps, marginal), "what SAEM maximises, Laplace"),
            ("decades of h within 1% of that", "ULA wider", widths(steps, marginal), "here a stuck chain shows"),
        ]  # fmt: skip
    if panels:
        draw(steps, panels, out / "saem_biased_relevance.png")
    return rows


def main(out: Path, full: bool = False) -> None:
    """Four figures as PNG, and one table beside the paper's claims and the reference figures.

    Args:
        out: folder of the figures. full: 32 repeats and the whole grids, about an hour.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    shown = Table(title="Biased SAEM: ULA, joint MALA, MALA per unit")
    for column in ("quantity", "paper or reference", "ours", "why they differ"):
        shown.add_column(column)
    for experiment in (logistic, pharmacokinetics, counts, relevance):
        began = time.process_time()
        for row in experiment(out, full):
            shown.add_row(*row)
        shown.add_row("  CPU seconds", "", f"{time.process_time() - began:.0f}", "")
        shown.add_section()
    Console(width=150).print(shown)
