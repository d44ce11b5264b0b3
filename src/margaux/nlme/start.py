"""Starting values: the pooled fit, all random effects at zero, from many places."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from ..compiling import compiled
from .individual import Bounded, Individual, LogNormal, Normal
from .outcomes import Continuous

#: places of the first search, and of the local ones
MANY, FEW = 4096, 6


@compiled
def pooled(outcome: Any, psi: dict, units: dict) -> jax.Array:
    r"""Misfit of one curve for all subjects: N/2 log of the mean squared residual, or minus the log-likelihood."""

    def unit(rows):
        if isinstance(outcome, Continuous):
            scale = outcome.error.transformed
            return (scale(rows["y"]) - scale(outcome.prediction(psi, rows))) ** 2
        return -outcome.log_density(jnp.zeros(0), psi, rows)

    mask = units["mask"]
    values = jnp.sum(jnp.where(mask > 0, jax.vmap(unit)(units["rows"]), 0.0))
    return jnp.sum(mask) / 2 * jnp.log(values / jnp.sum(mask)) if isinstance(outcome, Continuous) else values


def find_starts(outcome: Any, individual: dict[str, Individual], units: dict, seed: int) -> list[dict[str, float]]:
    """Local minima of the pooled misfit, best first, on the natural scale; given starting values are kept.

    Raises:
        ValueError: the model is finite nowhere.
    """
    names = list(individual)
    given = {name: one.start for name, one in individual.items() if one.start is not None}
    free = [name for name in names if name not in given]
    if not free:
        return [{name: float(given[name]) for name in names}]
    units = jax.tree.map(jnp.asarray, {name: units[name] for name in ("rows", "mask")})

    def natural(u):
        out = {name: individual[name].natural(u[j]) for j, name in enumerate(free)}
        return out | {name: jnp.asarray(value, u.dtype) for name, value in given.items()}

    value = jax.jit(lambda us: jax.lax.map(lambda u: pooled(outcome, natural(u), units), us, batch_size=64))
    slope = jax.jit(jax.value_and_grad(lambda u: pooled(outcome, natural(u), units)))
    grid = np.stack([_spread(individual[name], q) for name, q in zip(free, _lattice(len(free), seed).T, strict=True)], axis=1)
    misfit = np.asarray(value(jnp.asarray(grid)), float)
    misfit = np.where(np.isfinite(misfit), misfit, np.inf)
    if not np.isfinite(misfit).any():
        raise ValueError("no starting values were found: the model is not finite anywhere tried; give start= to each parameter")
    minima: list[tuple[float, np.ndarray]] = []
    for place in _apart(grid, misfit):
        with np.errstate(all="ignore"):
            found = scipy.optimize.minimize(lambda u: _safe(slope(jnp.asarray(u))), place, jac=True, method="BFGS",
                                      options={"maxiter": 200})  # fmt: skip
        if np.isfinite(found.fun):
            minima.append((float(found.fun), found.x))
    minima.sort(key=lambda pair: pair[0])
    out: list[dict[str, float]] = []
    kept: list[np.ndarray] = []
    for _, u in minima:
        if all(np.linalg.norm(u - other) > 0.05 * (1 + np.linalg.norm(other)) for other in kept):
            kept.append(u)
            psi = {name: float(x) for name, x in natural(jnp.asarray(u)).items()}
            out.append({name: psi[name] for name in names})
    return out


def _lattice(d: int, seed: int) -> np.ndarray:
    """Points that fill the unit cube evenly: a shifted Kronecker lattice, as in `margaux.gaussian.normals`."""
    root = 2.0
    for _ in range(40):
        root = (1.0 + root) ** (1.0 / (d + 1))
    shift = np.random.default_rng(seed).random(d)
    return (shift + np.arange(1, MANY + 1)[:, None] * root ** -np.arange(1, d + 1)) % 1.0


def _spread(one: Individual, q: np.ndarray) -> np.ndarray:
    """Gaussian-scale values that cover what such a parameter may be."""
    if isinstance(one, LogNormal):
        return np.log(1e-3) + q * np.log(1e6)
    if isinstance(one, Bounded):
        return 6 * q - 3
    size = np.abs(2 * q - 1)
    return np.sign(2 * q - 1) * (10 ** (5 * size - 2) - 1e-2)


def _apart(grid: np.ndarray, misfit: np.ndarray) -> list[np.ndarray]:
    """The best places, no two of them neighbours."""
    spread = grid.std(axis=0) + 1e-12
    out: list[np.ndarray] = []
    for at in np.argsort(misfit)[:400]:
        if np.isfinite(misfit[at]) and all(np.linalg.norm((grid[at] - other) / spread) > 0.4 for other in out):
            out.append(grid[at])
        if len(out) == FEW:
            break
    return out


def _safe(pair: Any) -> tuple[float, np.ndarray]:
    value, slope = float(pair[0]), np.asarray(pair[1], float)
    return (value, slope) if np.isfinite(value) and np.all(np.isfinite(slope)) else (1e300, np.zeros_like(slope))


def between_subjects(model: Any, units: dict, params: dict) -> np.ndarray:
    r"""Plausible SDs of the random effects, (d,): twice the precision that one subject's data alone would give.

    With $J_j$ the mean over subjects of the information $\sum_t(\partial f_{it}/\partial\phi_j)^2/g_{it}^2$ (of discrete
    outcomes, of $\sum_t(\partial\log p(y_{it}\mid\phi)/\partial\phi_j)^2$) it is $2/\sqrt{J_j}$: much smaller effects could
    not be seen, and EM leaves much smaller variances slowly. Held to [0.3, 1] on a logarithmic or logit scale.
    """
    information = np.asarray(_information(model, params, {n: units[n] for n in ("rows", "mask", "design")}), float)
    with np.errstate(all="ignore"):
        sd = 2 / np.sqrt(information)
    out = []
    for j, value in zip(model.random, sd, strict=True):
        one, typical = model.individual[j][1], float(params["beta"][model.coefficients(j)[0]])
        if isinstance(one, Normal):
            out.append(value if np.isfinite(value) else max(abs(typical), 1.0))
        else:
            out.append(np.clip(value if np.isfinite(value) else 1.0, 0.3, 1.0))
    return np.asarray(out)


@compiled
def _information(model: Any, params: dict, units: dict) -> jax.Array:
    outcome = model.outcome

    def unit(y):
        phi = model.mean(params, y["design"])
        if not isinstance(outcome, Continuous):
            return jnp.sum(jax.jacfwd(lambda z: model.log_likelihoods(params, z, y))(phi) ** 2, axis=0)
        curve = lambda z: outcome.prediction(model.psi(params, z, y["design"]), y["rows"])  # noqa: E731
        slope = jax.jacfwd(lambda z: outcome.error.transformed(curve(z)))(phi)
        kept = y["mask"] / outcome.error.sd(params["error"], curve(phi)) ** 2
        return kept @ slope**2

    return jnp.mean(jax.vmap(unit)(units), axis=0)


def first_guess(model: Any, units: dict, psi: dict[str, float]) -> dict[str, Any]:
    """Engine parameters around typical individual parameters: wide random effects, covariates without effect."""
    coefficients = np.zeros(len(model.owner))
    for k, j in enumerate(model.owner):
        if model.owner.index(j) == k:
            name, one = model.individual[j]
            coefficients[k] = one.gaussian(psi[name])
    out: dict[str, Any] = {}
    if model.random:
        out["beta"] = coefficients[: model.split]
    if model.split < len(model.owner):
        out["fixed"] = coefficients[model.split :]
    if isinstance(model.outcome, Continuous):
        error, kept = model.outcome.error, units["mask"] > 0
        y = units["rows"]["y"][kept]
        y = np.log(y) if error.positive else y
        plain = {"rows": units["rows"], "mask": units["mask"]}
        misfit = pooled(model.outcome, {n: np.asarray(v) for n, v in psi.items()}, plain)
        sd = float(np.exp(np.clip(float(misfit) / kept.sum(), -50, 50)))
        spread = float(np.std(y))
        sd = min(sd, spread) if np.isfinite(sd) else spread
        out["error"] = np.asarray(error.start(max(sd, 1e-3 * spread), float(np.mean(np.abs(y)))))
    variances = between_subjects(model, units, out) ** 2
    if model.independent:
        out["omega2"] = variances[model.independent]
    if model.blocks:
        out["omega"] = tuple(np.diag(variances[list(block)]) for block in model.blocks)
    return out
