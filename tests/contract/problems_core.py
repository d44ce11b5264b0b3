"""Six models of one's own, fitted by `mx.fit` with its defaults: random intercepts, a Gamma mixing law, a mixture, two modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
from jax.scipy.special import gammaln
from jax.scipy.stats import norm

import margaux as mx
from problem import Answer, Problem

#: groups, and rows in each, from which a problem's size is drawn: few shapes, so that programs are compiled once
SIZES = ((6, 3), (40, 3), (150, 5))
VARIANTS = ("plain", "tiny", "no variance", "far start", "extreme")


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


def by_fit(model: Any, data: Any, start: dict, names: list[str], seed: int, estep: Any = None) -> Callable[[], Answer]:
    """`mx.fit` with the defaults of the algorithm and of the E-step."""

    def run() -> Answer:
        fit = mx.fit(model, data, mx.soul(), estep or mx.MCMC(mx.MALA(), n_steps=3), params=start, n_iter=1000, key=seed,
                     progress=False, throw=False)  # fmt: skip
        summary = fit.summary() if not fit.result.failed else None
        theta = np.array([float(fit.params[name]) for name in names])
        se = np.full(len(names), np.nan) if summary is None else summary["se"].loc[names].to_numpy(float)
        value = fit.loglik() if summary is not None else None
        error = 0.0 if value is None else value.se
        loglik = np.nan if value is None else float(value)
        return Answer(theta, se, loglik, error, fit.certificate.word, str(fit.certificate))

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
    return Problem("core", kind, variant, run, lambda: oracles.maximum(value, starts, logs=(1,)))


def gamma_poisson(rng: np.random.Generator, variant: str, seed: int) -> Problem:
    n, m = SIZES[0] if variant == "tiny" else SIZES[1 + rng.integers(2)]
    a, b = np.exp(rng.normal(0.7, 0.4)), np.exp(rng.normal(-0.2, 0.4)) * (20 if variant == "extreme" else 1)
    rates = np.full((n, 1), a / b) if variant == "no variance" else rng.gamma(a, 1 / b, (n, 1))
    y = rng.poisson(np.broadcast_to(rates, (n, m))).astype(float)
    off = 1.5 if variant == "far start" else 0.2
    start = {"log_rate": float(np.log(b) + off * rng.normal()), "log_shape": float(np.log(a) + off * rng.normal())}
    value, at = oracles.gamma_poisson(y), np.log([b, a])
    run = by_fit(GammaPoisson(), y, start, ["log_rate", "log_shape"], seed)
    return Problem("core", "gamma-poisson", variant, run, lambda: oracles.maximum(value, [at, at + 1, at - 1]))


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

    run = by_fit(TwoNormals(), y, start, ["logit", "a", "b", "log_s"], seed, mx.Exact())

    def in_order(found: Any) -> Any:
        """Labels are exchangeable: the lower mean comes first."""
        if found.theta[1] > found.theta[2]:
            found = found._replace(theta=found.theta[[0, 2, 1, 3]] * [-1, 1, 1, 1], se=found.se[[0, 2, 1, 3]])
        return found

    return Problem("core", "two normals", variant, lambda: in_order(run()), lambda: in_order(oracles.maximum(value, starts)))


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
    return Problem(
        "core", "squares", variant, run, lambda: oracles.maximum(value, [at, at + [0, 1], at + [1, 0], at - 1], logs=(1,))
    )


MODELS: dict[str, Callable[..., Problem]] = {
    "binomial": lambda *a: grouped("binomial", *a),
    "poisson": lambda *a: grouped("poisson", *a),
    "gaussian": lambda *a: grouped("gaussian", *a),
    "gamma-poisson": gamma_poisson,
    "two normals": two_normals,
    "squares": squares,
}
