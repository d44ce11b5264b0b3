"""SOUL and its successors on shared problems, at equal numbers of gradients.

Particle gradient descent, quasi-Newton and marginal gradient descent (Kuntz, Lim and Johansen 2023), interacting particle
Langevin (Akyildiz et al. 2023), kinetic particles (Oliva and Akyildiz 2024), coins (Sharrock, Dodd and Nemeth 2024) and
Jarzynski's weights (Cuin, Carbone and Akyildiz 2025), beside SOUL with nothing chosen. Problems: a Gaussian hierarchy and the
Wisconsin regression, whose maxima are known, and a network with 31,440 weights that tells 4 from 9 on 1000 images.
Of Laplace priors, the proximal particles of Cordero Encinar, Crucinio and Akyildiz (2025) beside SOUL: the place and the scale of
50 numbers, whose maxima are known, a regression with 50 coefficients, and the network.

    margaux reproduce successors [--full]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import margaux as mx
from margaux.algorithms.base import AbstractAlgorithm
from margaux.datasets.images import load_mnist
from margaux.examples import wisconsin
from margaux.problem.model import AbstractExponentialFamily

from . import _proximal
from ._successors import CoinEM, Kinetic, ParticleNewton, Problem, evidence

#: particles, or chains
N = 20
LAST = mx.LastIterate()
#: weights of the layers of the network
SIZES = {"hidden": 784 * 40, "output": 80}
#: published, on a set of 1000 images: log score of new images, and their share in error; of Laplace priors in the notebooks of
#: the proximal methods' authors, MYPGD with 10 particles and PIPGLA with 50 on one split
PUBLISHED = {"SOUL": "-0.394, 5.85%", "PGD": "-0.095, 2.35%"}
PUBLISHED_SPARSE = {"MYPGD": "-0.125, 3.15%", "PIPGLA": "-0.089, 2.00%"}


class Hierarchy(AbstractExponentialFamily):
    """y_i ~ N(z_i, 1), z_i ~ N(theta, 1): the maximum is the mean of y."""

    def log_joint(self, params, z, y):
        return -0.5 * ((y - z) ** 2 + (z - params["theta"]) ** 2) - jnp.log(2 * jnp.pi)

    def suffstats(self, z, y):
        return {"z": z}

    def m_step(self, mean_stats):
        return {"theta": mean_stats["z"]}

    def init_latents(self, key, params, y):
        return jnp.zeros_like(y)


class Regression(AbstractExponentialFamily, wisconsin.EmpiricalBayesLogistic):
    """The Wisconsin regression, whose complete data have a maximum in closed form."""

    def suffstats(self, z, y):
        return {"mean": jnp.mean(z)}

    def m_step(self, mean_stats):
        return {"theta": mean_stats["mean"]}


class Network(AbstractExponentialFamily):
    """Two classes by 40 tanh units; weights of layer l are N(0, e^(2 a_l)).

    Args:
        by_number: whether parameters are a_l times the square root of the number of weights, the scale in which a step of 0.1 is
            published.
    """

    by_number: bool = False

    def _unit(self, size: int) -> float:
        return size**0.5 if self.by_number else 1.0

    def log_joint(self, params, z, images):
        own = jax.nn.log_softmax(jnp.tanh(images["x"] @ z["hidden"]) @ z["output"])
        total = jnp.sum(jnp.take_along_axis(own, images["y"][:, None], axis=1))
        for name, weights in z.items():
            a = params[name] / self._unit(weights.size)
            total += -0.5 * jnp.sum(weights**2) * jnp.exp(-2 * a) - weights.size * (a + 0.5 * jnp.log(2 * jnp.pi))
        return total

    def suffstats(self, z, y):
        return {name: jnp.mean(weights**2) * jnp.ones(1) for name, weights in z.items()}

    def m_step(self, mean_stats):
        return {name: jnp.log(square[0]) / 2 * self._unit(SIZES[name]) for name, square in mean_stats.items()}

    def init_latents(self, key, params, images):
        keys: dict[str, Any] = dict(zip(SIZES, jax.random.split(key), strict=True))
        return {
            name: jax.random.normal(keys[name], shape, images["x"].dtype)
            for name, shape in {"hidden": (images["x"].shape[1], 40), "output": (40, 2)}.items()
        }


def methods(h: float, friction: float, size: int) -> dict[str, tuple[AbstractAlgorithm, mx.MCMC]]:
    """Algorithm and E-step by name, for so many latents: by Langevin steps of h, the kinetic ones of its square root."""
    particles, root = mx.MCMC(mx.ULA(h), n_chains=N), h**0.5
    chains = mx.MCMC(mx.LeimkuhlerMatthews(), n_chains=N)
    return {
        "PGD": (mx.pgd(h), particles),
        "PQN": (ParticleNewton(step_size=h, average=LAST), particles),
        "PMGD": (mx.mcem(), particles),
        "IPLA": (mx.ipla(h), particles),
        "KIPLMC": (
            Kinetic(step_size=root, friction=friction, n_particles=N, average=LAST),
            mx.MCMC(mx.Underdamped(root, friction), n_chains=N),
        ),
        "CoinEM": (CoinEM(n_particles=N, size=size, average=LAST), particles),
        "SOUL, same steps": (mx.soul(expanded=False), particles),
        "SOUL": (mx.soul(), chains),
    }


def problems() -> dict[str, Problem]:
    y = np.random.default_rng(0).normal(1.0, 2**0.5, 100)
    hierarchy = Problem(Hierarchy(), y, 10.0, float(y.mean()), 500, methods(0.01, 2.0, 100))
    exact = wisconsin.EXACT["theta"]
    return {
        "hierarchy": hierarchy,
        "Wisconsin": Problem(Regression(), wisconsin.data(), 0.0, exact, 4000, methods(0.005, 2.0, 10)),
    }


def errors(problem: Problem, runs: int) -> pd.DataFrame:
    """Root mean squared error of theta, of the mean over the second half and of the last one, and CPU seconds a run."""
    rows = {}
    for name, (algorithm, estep, *other) in problem.methods.items():
        began, model = time.process_time(), other[0] if other else problem.model
        fit = mx.fit(
            model, problem.data, algorithm, estep, params={"theta": problem.start}, n_iter=problem.n_iter, runs=runs,
            spread=0.0, polish=False, progress=False, throw=False,
        )  # fmt: skip
        spent = (time.process_time() - began) / runs
        trace = np.asarray(fit.trace["params"], float)[..., 0] - problem.exact
        later = trace[len(trace) // 2 :].mean(axis=0)
        # SOUL's estimate is its own average.
        averaged = later if "SOUL" not in name else np.asarray(fit.run_params["theta"], float) - problem.exact
        rows[name] = {
            "rmse": np.sqrt(np.mean(averaged**2)), "bias": averaged.mean(), "rmse_last": np.sqrt(np.mean(trace[-1] ** 2)),
            "cpu_seconds": spent,
        }  # fmt: skip
    return pd.DataFrame(rows).T


def images(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """800 and 200 of the first 1000 fours and nines of MNIST, features standardised."""
    pixels, labels = load_mnist()
    chosen = np.flatnonzero((labels == 4) | (labels == 9))[:1000]
    x = pixels[chosen].reshape(1000, -1) / 255.0
    scale = x.std(axis=0)
    x, y = ((x - x.mean(axis=0)) / np.where(scale > 0, scale, 1.0)).astype(np.float32), (labels[chosen] == 9).astype(int)
    order = np.random.default_rng(seed).permutation(1000)
    return {"x": x[order[:800]], "y": y[order[:800]]}, {"x": x[order[800:]], "y": y[order[800:]]}


def predicted(fit: mx.Fit, new: dict[str, np.ndarray]) -> tuple[float, float]:
    """Mean logarithm of the probabilities of new images, and their share in error."""
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32).reshape(-1, *np.shape(leaf)[-2:]), fit.rows["z"])
    logits = np.tanh(new["x"] @ weights["hidden"]) @ weights["output"]
    odds = np.exp(logits - logits.max(axis=2, keepdims=True))
    p = np.mean(odds / odds.sum(axis=2, keepdims=True), axis=0)
    with np.errstate(divide="ignore"):
        return float(np.mean(np.log(p[np.arange(len(p)), new["y"]]))), float(np.mean(p.argmax(axis=1) != new["y"]))


def network(splits: int, n_iter: int, sparse: bool = False, chosen: Callable[[str], bool] = lambda _: True) -> pd.DataFrame:
    """Log score and error of each method over splits, with seconds of a fit; of Laplace priors by the proximal methods."""
    if sparse:
        model: Any = _proximal.SparseNetwork()
        ways = {name: (model, *way) for name, way in _proximal.methods(0.05, 0.5, 0.05, 0.5, N, model).items()}
    else:
        ways = {name: (Network(by_number=name != "SOUL"), *way) for name, way in methods(0.1, 2.0, sum(SIZES.values())).items()}
    rows = []
    for seed in range(splits):
        own, new = images(seed)
        for name, (model, algorithm, estep, *other) in ways.items():
            if not chosen(name):
                continue
            began, cpu = time.perf_counter(), time.process_time()
            start, model = dict.fromkeys(SIZES, 0.0), other[0] if other else model
            fit = mx.fit(
                model, mx.one_unit(own), algorithm, estep, params=start, n_iter=n_iter, key=seed,
                dtype="float32", polish=False, progress=False, throw=False,
            )  # fmt: skip
            spent = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
            score, wrong = predicted(fit, new)
            unit = {layer: 1.0 if name == "SOUL" else size**0.5 for layer, size in SIZES.items()}
            last = {f"a_{layer}": float(a) / unit[layer] for layer, a in fit.last_params.items()}
            rows.append({"method": name, "log_score": score, "error": wrong} | spent | last)
    table: Any = pd.DataFrame(rows).groupby("method", sort=False)
    return table.mean().join(table.std(ddof=1)[["log_score", "error"]], rsuffix="_sd")


def evidences(runs: int, steps: int = 2000, n: int = 200) -> np.ndarray:
    """Of Wisconsin by Jarzynski's weights, (runs, 2): theta and log p(y | theta)."""
    with jax.enable_x64(True):
        data = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[0], float), wisconsin.data())
        sd = wisconsin.EmpiricalBayesLogistic.variance**0.5

        def log_prior(theta, x):
            return jnp.sum(jax.scipy.stats.norm.logpdf(x, theta, sd))

        def log_likelihood(x):
            eta = data["X"] @ x
            return jnp.sum(data["y"] * eta - jnp.logaddexp(0.0, eta))

        def prior(key, theta):
            return theta + sd * jax.random.normal(key, (data["X"].shape[1],))

        one = jax.jit(lambda key: evidence(log_prior, log_likelihood, prior, 0.0, key, n, steps, steps // 2, 0.01, 0.02))
        return np.asarray([one(jax.random.key(run)) for run in range(runs)], float)


def figure(tables: dict[str, pd.DataFrame]) -> plt.Figure:
    drawn, axes = plt.subplots(-(-len(tables) // 4), 4, figsize=(18.4, 3.6 * -(-len(tables) // 4)), squeeze=False)
    for axis in axes.flat[len(tables) :]:
        axis.set_visible(False)
    for axis, (name, table) in zip(axes.flat, tables.items(), strict=False):
        what = "rmse" if "rmse" in table else "error"
        table = table[table[what].notna()]
        values = 100 * table[what] if what == "error" else table[what]
        axis.scatter(table["cpu_seconds"], values, s=18)
        for label, x, y in zip(table.index, table["cpu_seconds"], values, strict=True):
            axis.annotate(label, (x, y), fontsize=7, xytext=(3, 3), textcoords="offset points")
        axis.set(title=name, xlabel="CPU seconds a run", xscale="log", yscale="linear" if what == "error" else "log")
        axis.set_ylabel("new images in error, %" if what == "error" else "root mean squared error of theta")
    drawn.tight_layout()
    return drawn


def main(out: Path, full: bool = False) -> None:
    """A table a problem, as CSV and printed, and a figure of error against time."""
    out.mkdir(parents=True, exist_ok=True)
    tables = {name: errors(problem, 40 if full else 10) for name, problem in problems().items()}
    tables["4 against 9"] = network(10 if full else 2, 500 if full else 150)
    tables["4 against 9"]["published"] = tables["4 against 9"].index.map(PUBLISHED).fillna("")
    for name, problem in _proximal.problems().items():
        tables[name] = errors(problem, (40 if full else 10) if problem.n_iter < 5000 else 10 if full else 2)
    tables["Laplace 4 against 9"] = network(10 if full else 2, 500 if full else 150, sparse=True)
    tables["Laplace 4 against 9"]["published"] = tables["Laplace 4 against 9"].index.map(PUBLISHED_SPARSE).fillna("")
    for name, table in tables.items():
        print(f"\n{name}\n{table.round(4).to_string()}", flush=True)
        table.to_csv(out / f"successors_{name.replace(',', '').replace(' ', '_')}.csv")
    figure(tables).savefig(out / "successors.png", dpi=120)
    found = evidences(20 if full else 5)
    mean, sd = found.mean(axis=0), found.std(axis=0, ddof=1)
    print(
        f"\nWisconsin, Jarzynski's weights: theta {mean[0]:.3f} (SD {sd[0]:.3f}, exact {wisconsin.EXACT['theta']}), "
        f"log-likelihood {mean[1]:.2f} (SD {sd[1]:.2f}, exact {wisconsin.EXACT_LOGLIK})"
    )
