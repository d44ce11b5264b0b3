"""How often a verdict lies: random problems with an oracle each, and what the certificates said.

    python tests/contract/verdicts.py --problems 600 --seed 0

**Silent wrong**: certified, but an estimate more than a quarter of a standard error off, or a log-likelihood more than 0.1 or
five stated errors, or a standard error off by a tenth. **False alarm**: right, but not certified. A problem without a regular
maximum (a variance of zero, separation) is right if it is not certified.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.scipy.special import gammaln
from jax.scipy.stats import norm

sys.path.insert(0, str(Path(__file__).resolve().parent))
import oracles

import margaux as mx

#: groups, and rows in each, from which a problem's size is drawn: few shapes, so that programs are compiled once
SIZES = ((6, 3), (40, 3), (150, 5))
VARIANTS = ("plain", "tiny", "no variance", "far start", "extreme")


class Problem(NamedTuple):
    """A fit to be judged: `run()` gives (theta, se, loglik, its error, word, sentence) in the oracle's coordinates."""

    model: str
    variant: str
    run: Callable[[], tuple]
    truth: Callable[[], oracles.Truth]


class Grouped(mx.AbstractModel):
    """y_ij given mu + z_i, z_i ~ N(0, exp(2 log_sd)); counts of eight trials, of events, or Gaussian."""

    kind: str

    def log_joint(self, params, z, y):
        eta = params["mu"] + z
        if self.kind == "binomial":
            log_p = gammaln(9.0) - gammaln(y + 1) - gammaln(9.0 - y) + y * eta - 8.0 * jnp.logaddexp(0.0, eta)
        elif self.kind == "poisson":
            log_p = y * eta - jnp.exp(eta) - gammaln(y + 1)
        else:
            log_p = norm.logpdf(y, eta, jnp.exp(params["log_noise"]))
        return jnp.sum(log_p) + norm.logpdf(z, 0.0, jnp.exp(params["log_sd"]))

    def init_latents(self, key, params, y):
        return 0.1 * jax.random.normal(key, (), y.dtype)


class GammaPoisson(mx.AbstractModel):
    def log_joint(self, params, z, y):
        b, a = jnp.exp(params["log_rate"]), jnp.exp(params["log_shape"])
        return jnp.sum(y * z - jnp.exp(z) - gammaln(y + 1)) + a * jnp.log(b) - gammaln(a) + a * z - b * jnp.exp(z)

    def init_latents(self, key, params, y):
        return jnp.log(jnp.mean(y) + 0.5)


class TwoNormals(mx.AbstractModel, mx.AbstractDiscrete):
    def support(self, y):
        return jnp.arange(2)

    def init_latents(self, key, params, y):
        return jnp.zeros((), int)

    def log_joint(self, params, z, y):
        mean = jnp.where(z == 0, params["a"], params["b"])
        weight = jnp.where(z == 0, jax.nn.log_sigmoid(params["logit"]), jax.nn.log_sigmoid(-params["logit"]))
        return weight + norm.logpdf(y, mean, jnp.exp(params["log_s"]))


class Squares(mx.AbstractModel):
    def log_joint(self, params, z, y):
        return norm.logpdf(y, z**2, jnp.exp(params["noise"])) + norm.logpdf(z, 0.0, jnp.exp(params["spread"]))

    def init_latents(self, key, params, y):
        return jnp.ones((), y.dtype)


def by_fit(model: Any, data: Any, start: dict, names: list[str], seed: int, estep: Any = None) -> Callable[[], tuple]:
    """`mx.fit` with the defaults of the algorithm and of the E-step."""

    def run() -> tuple:
        fit = mx.fit(model, data, mx.soul(), estep or mx.MCMC(mx.MALA(), n_steps=3), params=start, n_iter=1000, key=seed,
                     progress=False, throw=False)  # fmt: skip
        summary = fit.summary() if not fit.result.failed else None
        theta = np.array([float(fit.params[name]) for name in names])
        se = np.full(len(names), np.nan) if summary is None else summary["se"].loc[names].to_numpy(float)
        value = fit.loglik() if summary is not None else None
        error = 0.0 if value is None else value.se
        return theta, se, np.nan if value is None else float(value), error, fit.certificate.word, str(fit.certificate)

    return run


def grouped(kind: str, rng: np.random.Generator, variant: str, seed: int) -> Problem:
    n, m = SIZES[0] if variant == "tiny" else SIZES[1 + rng.integers(2)]
    sd = 0.0 if variant == "no variance" else float(np.exp(rng.normal(-0.3, 0.5)))
    mu = float(rng.normal(0.3, 0.7)) + (3.0 * rng.choice([-1, 1]) if variant == "extreme" else 0.0)
    eta = mu + sd * rng.normal(size=(n, 1)) + np.zeros((n, m))
    off = 3.0 if variant == "far start" else 0.3
    start = {"mu": mu + off * rng.normal(), "log_sd": np.log(max(sd, 0.3)) + 0.5 * off * rng.normal()}
    names, starts = ["mu", "log_sd"], [np.array([mu, s]) for s in (-3.0, -1.0, 0.5)]
    if kind == "binomial":
        y = rng.binomial(8, 1 / (1 + np.exp(-eta))).astype(float)
        value = oracles.grouped_binomial(y, 8.0)
    elif kind == "poisson":
        y = rng.poisson(np.exp(np.minimum(eta, 8))).astype(float)
        value = oracles.grouped_poisson(y)
    else:
        noise = float(np.exp(rng.normal(-0.3, 0.3)))
        y = rng.normal(eta, noise)
        value = oracles.grouped_gaussian(y)
        start["log_noise"] = np.log(noise) + 0.3 * off * rng.normal()
        names, starts = [*names, "log_noise"], [np.array([mu, s, np.log(noise)]) for s in (-3.0, -1.0, 0.5)]
    run = by_fit(Grouped(kind), y, {name: float(v) for name, v in start.items()}, names, seed)
    return Problem(kind, variant, run, lambda: oracles.maximum(value, starts, logs=(1,)))


def gamma_poisson(rng: np.random.Generator, variant: str, seed: int) -> Problem:
    n, m = SIZES[0] if variant == "tiny" else SIZES[1 + rng.integers(2)]
    a, b = np.exp(rng.normal(0.7, 0.4)), np.exp(rng.normal(-0.2, 0.4)) * (20 if variant == "extreme" else 1)
    rates = np.full((n, 1), a / b) if variant == "no variance" else rng.gamma(a, 1 / b, (n, 1))
    y = rng.poisson(np.broadcast_to(rates, (n, m))).astype(float)
    off = 1.5 if variant == "far start" else 0.2
    start = {"log_rate": float(np.log(b) + off * rng.normal()), "log_shape": float(np.log(a) + off * rng.normal())}
    value, at = oracles.gamma_poisson(y), np.log([b, a])
    run = by_fit(GammaPoisson(), y, start, ["log_rate", "log_shape"], seed)
    return Problem("gamma-poisson", variant, run, lambda: oracles.maximum(value, [at, at + 1, at - 1]))


def two_normals(rng: np.random.Generator, variant: str, seed: int) -> Problem:
    n = 20 if variant == "tiny" else int(rng.choice([100, 400]))
    gap = 0.0 if variant == "no variance" else float(rng.uniform(2.5, 5))
    p = 0.05 if variant == "extreme" else float(rng.uniform(0.25, 0.75))
    y = rng.normal(np.where(rng.random(n) < p, 0.0, gap), 1.0)
    off = 1.0 if variant == "far start" else 0.2
    truth = np.array([np.log(p / (1 - p)), 0.0, gap, 0.0])
    start = dict(zip(("logit", "a", "b", "log_s"), (truth + off * rng.normal(size=4)).tolist(), strict=True))
    value = oracles.two_normals(y)
    low, high = np.quantile(y, [0.2, 0.8])
    starts = [
        truth,
        np.array([0.0, low, high, 0.0]),
        np.array([-2.0, y.min(), y.mean(), 0.0]),
        np.array([2.0, y.mean(), y.max(), 0.0]),
    ]

    def ordered() -> oracles.Truth:
        return oracles.maximum(value, starts)

    run = by_fit(TwoNormals(), y, start, ["logit", "a", "b", "log_s"], seed, mx.Exact())

    def sorted_run() -> tuple:
        theta, se, *rest = run()
        if theta[1] > theta[2]:  # labels are exchangeable; the oracle's order is kept
            theta, se = theta[[0, 2, 1, 3]] * [-1, 1, 1, 1], se[[0, 2, 1, 3]]
        return theta, se, *rest

    def sorted_truth() -> oracles.Truth:
        found = ordered()
        if found.theta[1] > found.theta[2]:
            found = found._replace(theta=found.theta[[0, 2, 1, 3]] * [-1, 1, 1, 1], se=found.se[[0, 2, 1, 3]])
        return found

    return Problem("two normals", variant, sorted_run, sorted_truth)


def squares(rng: np.random.Generator, variant: str, seed: int) -> Problem:
    n = 8 if variant == "tiny" else int(rng.choice([50, 200]))
    spread = 0.1 if variant == "no variance" else float(np.exp(rng.normal(0.5, 0.3)))
    noise = float(np.exp(rng.normal(-0.5, 0.3))) * (4 if variant == "extreme" else 1)
    y = rng.normal(0, spread, n) ** 2 + rng.normal(0, noise, n)
    off = 1.0 if variant == "far start" else 0.2
    at = np.log([noise, spread])
    start = {"noise": float(at[0] + off * rng.normal()), "spread": float(at[1] + off * rng.normal())}
    value = oracles.squares(y)
    run = by_fit(Squares(), y, start, ["noise", "spread"], seed)
    return Problem("squares", variant, run, lambda: oracles.maximum(value, [at, at + [0, 1], at + [1, 0], at - 1], logs=(1,)))


MODELS: dict[str, Callable[..., Problem]] = {
    "binomial": lambda *a: grouped("binomial", *a),
    "poisson": lambda *a: grouped("poisson", *a),
    "gaussian": lambda *a: grouped("gaussian", *a),
    "gamma-poisson": gamma_poisson,
    "two normals": two_normals,
    "squares": squares,
}


def judge(problem: Problem) -> dict[str, Any]:
    """What came of one problem."""
    truth = problem.truth()
    began = time.process_time()
    theta, se, loglik, error, word, said = problem.run()
    spent = time.process_time() - began
    with np.errstate(all="ignore"):
        away = float(np.max(np.abs(theta - truth.theta) / truth.se))
        se_off = float(np.max(np.abs(se / truth.se - 1)))
    gap = abs(loglik - truth.loglik)
    # A search that ends higher than the oracle's has found the better maximum.
    higher = loglik > truth.loglik + 0.05
    right = truth.regular and away <= 0.25 and gap <= max(0.1, 5 * error) and se_off <= 0.1
    certified = word == "certified"
    kind = (
        "right, certified" if right and certified else "false alarm" if right else "silent wrong" if certified else "wrong, said"
    )
    if not truth.regular or higher:
        kind = "no regular maximum" if not certified else "beyond the oracle" if higher else "silent wrong"
    figures = {"away": away, "gap": gap, "se_off": se_off, "seconds": spent}
    return {"model": problem.model, "variant": problem.variant, "kind": kind, "word": word, **figures, "said": said}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--problems", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    options = parser.parse_args()
    rows = []
    for i in range(options.problems):
        name = options.models[i % len(options.models)]
        variant = VARIANTS[(i // len(options.models)) % len(VARIANTS)]
        rng = np.random.default_rng([options.seed, i])
        try:
            rows.append(judge(MODELS[name](rng, variant, options.seed + i)))
        except Exception as error:
            traceback.print_exc()
            rows.append({"model": name, "variant": variant, "kind": "raised", "said": repr(error)})
        row = rows[-1]
        if row["kind"] not in ("right, certified", "no regular maximum"):
            print(i, {key: value for key, value in row.items() if key != "seconds"}, flush=True)
    frame = pd.DataFrame(rows)
    table = pd.crosstab(frame["model"], frame["kind"], margins=True)
    print(table.to_string())
    print(pd.crosstab(frame["variant"], frame["kind"]).to_string())
    judged = frame.loc[frame["kind"] != "beyond the oracle"]
    right = pd.Series(judged["kind"]).isin(["right, certified", "false alarm"])
    share = lambda some, kind: f"{np.mean(some['kind'] == kind):.1%}"  # noqa: E731
    regular = judged[judged["kind"] != "no regular maximum"]
    print(f"silent wrong: {share(judged, 'silent wrong')} of all")
    print(f"false alarms: {share(judged[right], 'false alarm')} of what is right")
    print(f"right and certified: {share(regular, 'right, certified')} of those with a regular maximum")
    print(f"CPU seconds a fit with its answers, median: {frame['seconds'].median():.2f}")


if __name__ == "__main__":
    main()
