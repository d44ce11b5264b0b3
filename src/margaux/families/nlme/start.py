"""Starting values: the pooled fit, all random effects at zero, from many places."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from ...numerics.compiling import compiled
from ...numerics.gaussian import lattice
from ...numerics.keys import key_of
from ...numerics.ladder import padded, rung
from .flipflop import mirrored
from .individual import Bounded, Individual, LogNormal, Normal
from .outcomes import DOSES, Continuous

if TYPE_CHECKING:
    from jaxtyping import Array

    from .fitting import Settings
    from .model import MixedEffects


#: places of the first search, local ones from the best of them, and turns of these
MANY, FEW, TURNS = 4096, 6, 200
#: and where a curve takes long
FEWER, FEWEST, FEWER_TURNS = 256, 3, 30
#: rows, times the doses that each is the sum of, from which curves are worth a program that takes longer to compile, and places
#: of the first search then
HEAVY, SOMEWHAT_FEWER = 10_000, 1024
#: logarithms of what a positive parameter may be, and how far one that is given may be from that where a curve takes long
LEAST, MOST, NEAR = np.log(1e-3), np.log(1e3), np.log(30.0)
#: share of a variance between subjects that the one between occasions starts from
BETWEEN_OCCASIONS = 0.5
#: subjects that starts are found and screened on, at most, and where a curve takes long
ENOUGH, SOME = 100, 25


class Point(NamedTuple):
    r"""What is wanted of a place on the way to starting values, by one program.

    Attributes:
        misfit, slope: of one curve for all subjects, N/2 log of the mean squared residual (summed over outputs) or minus the
            log-likelihood, and its derivatives on the Gaussian scale (d,). rows: predictions or log-likelihoods of rows (n, T)
            there.
        information: see `between_subjects`, of random parameters (r,).
    """

    misfit: np.ndarray
    slope: np.ndarray
    rows: np.ndarray
    information: np.ndarray


def points(model: MixedEffects, units: dict, params: dict | None = None) -> Callable[[np.ndarray], Point]:
    """What is wanted of typical individual parameters on the Gaussian scale (d,), as a function of them; the information at
    engine parameters, where they are given."""
    if params is None and not model.costly:  # one program does for both
        names = model.outcome.error_names
        params = coefficients(model, np.zeros(len(model.names))) | ({"error": np.ones(len(names))} if names else {})
    read = ("beta", "fixed", "delta", "drift", "error")
    own = None if params is None else {name: np.asarray(params[name], float) for name in read if name in params}
    program = _at_heavy_point if model.costly or _curves(units) > HEAVY else _at_point
    rough, n, more = model.rough(), len(units["mask"]), with_empty_subjects(units)

    def at(u: np.ndarray) -> Point:
        found = program(rough, np.asarray(u, float), own, more)
        return found._replace(rows=np.asarray(found.rows)[:n])

    return at


def _curves(units: dict) -> int:
    """Rows, times the doses of a subject."""
    doses = units["rows"].get(DOSES)
    return np.size(units["mask"]) * (1 if doses is None else np.shape(doses["time"])[1])


def rows_at(model: MixedEffects, units: dict, u: np.ndarray) -> np.ndarray:
    """Predictions or log-likelihoods of all rows (n, T), by the program that some subjects' starts are found by."""
    n = len(units["mask"])
    if n <= ENOUGH:
        return points(model, units)(u).rows

    def of(some: np.ndarray) -> np.ndarray:
        return points(model, jax.tree.map(lambda leaf: leaf[some], units))(u).rows

    out = np.empty(np.shape(units["mask"]))
    for first in range(0, n, ENOUGH):
        some = np.arange(ENOUGH) + min(first, n - ENOUGH)
        out[some] = of(some)
    return out


def with_empty_subjects(units: dict) -> dict:
    """With empty subjects, so that data of a similar size have the same programs."""
    n = len(units["mask"])
    more = padded({name: units[name] for name in ("rows", "mask", "design")}, rung(n))
    more["mask"] = np.where(np.arange(rung(n))[:, None] < n, more["mask"], 0)
    return more


def coefficients(model: MixedEffects, u: np.ndarray) -> dict[str, np.ndarray]:
    """Engine parameters of typical individual parameters on the Gaussian scale (d,): covariates without effect."""
    values = np.zeros(len(model.owner))
    for j, typical in enumerate(u):
        values[model.coefficients(j)[0]] = typical
    out = {"beta": values[: model.split]} if model.random else {}
    out |= {"delta": np.zeros(model.followed)} if model.followed else {}
    out |= {"drift": np.zeros(model.drifting)} if model.drifting else {}
    out |= {"shape": np.array(model.first_shapes)} if model.shaped else {}
    return out | ({"fixed": values[model.split :]} if model.split < len(model.owner) else {})


def intercepts(model: MixedEffects, params: dict) -> np.ndarray:
    """Typical individual parameters on the Gaussian scale, (d,)."""
    values = np.concatenate([np.ravel(params[name]) for name in ("beta", "fixed") if name in params])
    return np.asarray([values[model.coefficients(j)[0]] for j in range(len(model.names))], float)


def _point(model: MixedEffects, u: Array | np.ndarray, params: dict | None, units: dict) -> Point:
    (misfit, rows), slope = jax.value_and_grad(lambda u: _pooled(model, u, units), has_aux=True)(u)
    information: Any = jnp.zeros(0) if params is None else _information(model, params, units)
    return Point(misfit, slope, rows, information)


_at_point, _at_heavy_point = compiled(small=True)(_point), compiled(_point)


def _pooled(model: MixedEffects, u: Array | np.ndarray, units: dict) -> tuple[jax.Array, jax.Array]:
    outcome, mask = model.outcome, units["mask"]
    psi = {name: one.natural(u[j]) for j, (name, one) in enumerate(model.individual)}
    if isinstance(outcome, Continuous):
        rows = jax.vmap(lambda row: outcome.prediction(psi, row))(units["rows"])
        scale, of_each = outcome.error.at(units["rows"]).transformed, outcome.error.of_each
        square = of_each(jnp.where(mask > 0, (scale(units["rows"]["y"]) - scale(rows)) ** 2, 0.0), units["rows"])
        count = of_each(mask, units["rows"])
        some = count > 0
        each = count / 2 * jnp.log(jnp.where(some, square, 1.0) / jnp.where(some, count, 1.0))
        return jnp.sum(each), rows
    rows = jax.vmap(lambda row: outcome.log_density(jnp.zeros(0), psi, row))(units["rows"])
    return -jnp.sum(jnp.where(mask > 0, rows, 0.0)), rows


def find_starts(model: MixedEffects, units: dict, seed: int, most: int) -> list[tuple[str, dict[str, float]]]:
    """Places to start from, on the natural scale, each with where it comes from; the best pooled minimum first.

    What a user gives is one of them (completed from the data where it names some parameters only) and hides no other:
    "pooled" minima of the misfit of one curve for all subjects, at most `most`; the "given" values; and the "mirror" of each,
    other parameters of the same curve. At most 2 `most` + 2.

    Raises:
        ValueError: the model is finite nowhere.
    """
    individual, outcome = dict(model.individual), model.outcome
    data = {name: units[name] for name in ("rows", "mask", "design")}
    grid = spread(individual, FEWER if model.costly else MANY if _curves(data) <= HEAVY else SOMEWHAT_FEWER, seed)
    given = {j: one.gaussian(model.typical[j]) for j, one in enumerate(individual.values()) if np.isfinite(model.typical[j])}
    if model.costly:  # wild places take longest
        for j in (j for j, one in enumerate(individual.values()) if j in given and isinstance(one, LogNormal)):
            grid[:, j] = given[j] + (2 * (grid[:, j] - LEAST) / (MOST - LEAST) - 1) * NEAR
    fixed = fixed_typical(model)
    grid[:, fixed] = [given[j] for j in np.flatnonzero(fixed).tolist()]
    out = [("pooled", u) for u in _minima(model, data, grid, fixed)[:most]]
    if given:
        held = np.isin(np.arange(len(individual)), list(given))
        grid[:, list(given)] = list(given.values())
        own = [grid[0]] if held.all() else _minima(model, data, grid, held)[:1]
        out += [("given", u) for u in own]
    places = [(kind, _natural(individual, u)) for kind, u in out]
    for _, psi in tuple(places):
        other = mirrored(getattr(outcome, "structural", None), psi)
        if other is not None and _allowed(model, psi | other):
            places.append(("mirror", {name: float(value) for name, value in (psi | other).items()}))
    if not places:
        raise ValueError("no starting values were found: the model is not finite anywhere tried; give start= to each parameter")
    return _different(individual, places)


def fixed_typical(model: MixedEffects) -> np.ndarray:
    """Which parameters have a typical value that is held, (d,)."""
    return np.asarray([model.held_coefficients[model.coefficients(j)[0]] for j in range(len(model.names))], bool)


def _allowed(model: MixedEffects, psi: dict[str, float]) -> bool:
    """Whether typical values are in the ranges of their distributions, and those that are held are what they are held at."""
    inside = all(np.isfinite(one.gaussian(psi[name])) for name, one in model.individual)
    fixed = fixed_typical(model)
    return inside and bool(np.allclose(np.asarray([psi[name] for name in model.names])[fixed], model.typical[fixed]))


def _natural(individual: dict[str, Individual], u: np.ndarray) -> dict[str, float]:
    return {name: float(one.values(x)) for (name, one), x in zip(individual.items(), u, strict=True)}


def _different(individual: dict[str, Individual], places: list) -> list:
    """The places that are not near an earlier one, on the Gaussian scale."""
    kept: list[np.ndarray] = []
    out = []
    for kind, psi in places:
        u = np.asarray([individual[name].gaussian(value) for name, value in psi.items()])
        if all(np.linalg.norm(u - other) > 0.05 * (1 + np.linalg.norm(other)) for other in kept):
            kept.append(u)
            out.append((kind, psi))
    return out


def _minima(model: MixedEffects, data: dict, grid: np.ndarray, held: np.ndarray) -> list[np.ndarray]:
    """Local minima of the pooled misfit from the best places of a grid, coordinates that are held as they are; best first."""
    data = with_empty_subjects(data)
    misfit = np.asarray(_misfits(model.rough(), grid, data), float)
    misfit = np.where(np.isfinite(misfit), misfit, np.inf)
    at = points(model, data)

    def value(u: np.ndarray) -> tuple[float, np.ndarray]:
        point = at(u)
        value, slope = float(point.misfit), np.where(held, 0.0, np.asarray(point.slope, float))
        return (value, slope) if np.isfinite(value) and np.all(np.isfinite(slope)) else (1e300, np.zeros_like(slope))

    minima = []
    for place in _apart(grid, misfit)[: FEWEST if model.costly else FEW]:
        with np.errstate(all="ignore"):
            turns = {"maxiter": FEWER_TURNS if model.costly else TURNS}
            minimum = scipy.optimize.minimize(value, place, jac=True, method="BFGS", options=turns)
        if np.isfinite(minimum.fun) and minimum.fun < 1e300:
            minima.append((float(minimum.fun), minimum.x))
    return [u for _, u in sorted(minima, key=lambda pair: pair[0])]


@compiled
def _misfits(model: MixedEffects, grid: Array, data: dict) -> jax.Array:
    return jax.lax.map(lambda u: _pooled(model, u, data)[0], grid, batch_size=64)


def spread(individual: dict[str, Individual], count: int, seed: int) -> np.ndarray:
    """Places (count, d) on the Gaussian scale, over all that such parameters may be."""
    points = lattice(np.random.default_rng(seed).random(len(individual)), count)
    return np.stack([_spread(one, q) for one, q in zip(individual.values(), points.T, strict=True)], axis=1)


def _spread(one: Individual, q: np.ndarray) -> np.ndarray:
    """Gaussian-scale values that cover what such a parameter may be."""
    if isinstance(one, LogNormal):
        return LEAST + q * (MOST - LEAST)
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


def between_subjects(model: MixedEffects, units: dict, params: dict) -> np.ndarray:
    r"""Plausible SDs of the random effects, (d,): twice the precision that one subject's data alone would give.

    With $J_j$ the mean over subjects of the information $\sum_t(\partial f_{it}/\partial\phi_j)^2/g_{it}^2$ (of discrete
    outcomes, of $\sum_t(\partial\log p(y_{it}\mid\phi)/\partial\phi_j)^2$) it is $2/\sqrt{J_j}$: much smaller effects could
    not be seen, and EM leaves much smaller variances slowly. Held to [0.3, 1] on a logarithmic or logit scale.
    """
    information = np.asarray(points(model, units, params)(intercepts(model, params)).information, float)
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

    d = len(model.random)

    def unit(y):
        phi = model.init_latents(key_of(0), params, y)
        if not isinstance(outcome, Continuous):
            return jnp.sum(jax.jacfwd(lambda z: model.log_likelihoods(params, z, y))(phi)[:, :d] ** 2, axis=0)

        def curve(z):
            return outcome.prediction(model.psi(params, z, y["design"]), y["rows"])

        error = outcome.error.at(y["rows"])
        slope = jax.jacfwd(lambda z: error.transformed(curve(z)))(phi)[:, :d]
        kept = y["mask"] / error.sd(params["error"], curve(phi)) ** 2
        return kept @ slope**2

    return jnp.sum(jax.vmap(unit)(units), axis=0) / jnp.sum(jnp.any(units["mask"] > 0, axis=1))


def first_guess(model: MixedEffects, units: dict, psi: dict[str, float]) -> dict[str, Any]:
    """Engine parameters around typical individual parameters: wide random effects, covariates without effect."""
    u = np.asarray([one.gaussian(psi[name]) for name, one in model.individual], float)
    out: dict[str, Any] = coefficients(model, u)
    if isinstance(model.outcome, Continuous):
        out["error"] = _first_error(model.outcome, units, points(model, units)(u).rows)
    return model.held.imposed(out | plausible(model, units, out))


def _first_error(outcome: Continuous, units: dict, predictions: np.ndarray) -> np.ndarray:
    """Error parameters by the residuals of one curve for all subjects, output by output."""
    out: list[float] = []
    for error, own in outcome.error.parts(units["rows"]):
        kept = own & (units["mask"] > 0)
        if not kept.any():  # of these subjects none has the output
            out += error.start(1.0, 1.0)
            continue
        y, f = units["rows"]["y"][kept], np.asarray(predictions, float)[kept]
        with np.errstate(all="ignore"):
            y, f = (np.log(y), np.log(np.maximum(f, 1e-300))) if error.positive else (y, f)
            sd, spread = float(np.sqrt(np.mean((y - f) ** 2))), float(np.std(y))
        sd = min(sd, spread) if np.isfinite(sd) else spread
        out += error.start(max(sd, 1e-3 * spread), float(np.mean(np.abs(y))))
    return np.asarray(out)


def plausible(model: MixedEffects, units: dict, params: dict) -> dict[str, Any]:
    """Variances that effects can have, by `between_subjects`."""
    variances, out = between_subjects(model, units, params) ** 2, {}
    if model.independent:
        out["omega2"] = variances[model.independent]
    if model.blocks:
        out["omega"] = tuple(np.diag(variances[list(block)]) for block in model.blocks)
    if model.varying:
        between = dict(zip(model.random, variances, strict=True))
        out["gamma2"] = np.asarray([BETWEEN_OCCASIONS * between.get(j, 1.0) for j in model.varying])
    return out


def first_parameters(model: MixedEffects, units: dict, settings: Settings) -> list[tuple[str, dict]]:
    """Where starts come from, and their engine parameters: what `find_starts` finds, then random moves around it until there are
    `n_starts`. One start alone is the user's, if there is one."""
    rng = np.random.default_rng(settings.seed)
    individual = dict(model.individual)
    units = some_subjects(units, settings.seed, SOME if model.costly else ENOUGH)
    places = find_starts(model, units, settings.seed, -(-settings.n_starts // 2))
    if settings.n_starts == 1:
        places = [pair for pair in places if pair[0] == "given"][:1] or places[:1]
        return [(kind, first_guess(model, units, psi)) for kind, psi in places]
    out = [(kind, first_guess(model, units, psi)) for kind, psi in places]
    widths = np.full(len(individual), 1.0)
    widths[model.random] = between_subjects(model, units, out[0][1])
    while len(out) < settings.n_starts:
        moved = {}
        near = places[len(out) % len(places)][1]
        for (name, value), width, fixed in zip(near.items(), widths, fixed_typical(model), strict=True):
            one = individual[name]
            scale = 0.0 if fixed else width if one.random else max(0.5 * abs(float(one.gaussian(value))), 0.1)
            moved[name] = float(one.values(one.gaussian(value) + 0.5 * rng.normal() * scale))
        out.append(("random", first_guess(model, units, moved)))
    return out


def some_subjects(units: dict, seed: int, most: int = ENOUGH) -> dict:
    """At most so many subjects."""
    n = len(units["mask"])
    if n <= most:
        return units
    some = np.sort(np.random.default_rng(seed).choice(n, most, replace=False))
    return jax.tree.map(lambda leaf: leaf[some], units)
