"""What a fitted nonlinear mixed-effects model answers: tables, likelihoods, individual parameters, tests."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy
from jax.flatten_util import ravel_pytree

from ...answers.certify import examined
from ...answers.information import WaldTest, information
from ...answers.posterior import each_unit
from ...answers.profile import profile, slice
from ...answers.rules import Rule, best_rule
from ...answers.scores import Coordinates
from ...engine.outcome import RESULTS
from ...numerics.compiling import compiled
from ...numerics.inverse import guarded
from ...numerics.precision import precision
from . import bounds, classes, held, shaped
from .individual import LogitNormal, LogNormal, Normal
from .linearised import check_linearisable, linearised_information
from .model import MixedEffects
from .modes import conditional_modes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .estimator import NLME


def natural_names(model: MixedEffects, labels: list[str], dropped: tuple[str, ...]) -> list[str]:
    """Names of the natural parameters; `dropped` are those of the variances that were estimated as zero."""
    out = []
    for j, name in enumerate(model.names):
        out += [f"beta_{name}[{labels[k]}]" if labels[k] else name for k in model.coefficients(j)]
        out += [f"beta_{name}[{labels[len(model.owner) + k]}]" for k in model.shifts(j)] + classes.shift_names(model, name)
    random = [model.names[j] for j in model.random]
    varying = [model.names[j] for j in model.varying]
    for kind, left in (("omega2", random), ("gamma2", varying)):
        out += [f"{kind}_{name}" for name in model.names if name in left or f"{kind}_{name}" in dropped]
    for block in model.blocks:
        out += [f"cov_{random[a]}_{random[b]}" for position, a in enumerate(block) for b in block[position + 1 :]]
    out += [*model.outcome.error_names, *shaped.names(model), *classes.share_names(model)]
    return out + [name for name in dropped if not name.startswith(("omega2_", "gamma2_"))]


def engine_names(model: MixedEffects, labels: list[str]) -> dict[str, str]:
    """What the scalar parameters of the engine, such as `omega2[1]`, are called in `natural_names`."""
    random, out = [model.names[j] for j in model.random], {}
    for j, name in enumerate(model.names):
        for k in model.coefficients(j):
            place = f"beta[{k}]" if k < model.split else f"fixed[{k - model.split}]"
            out[place] = f"beta_{name}[{labels[k]}]" if labels[k] else name
        for k in model.shifts(j):
            place = f"delta[{k}]" if k < model.followed else f"drift[{k - model.followed}]"
            out[place] = f"beta_{name}[{labels[len(model.owner) + k]}]"
    out |= {f"omega2[{place}]": f"omega2_{random[j]}" for place, j in enumerate(model.independent)}
    for number, block in enumerate(model.blocks):
        for (row, a), (column, b) in itertools.product(enumerate(block), repeat=2):
            first, last = random[min(a, b)], random[max(a, b)]
            out[f"omega.{number}[{row},{column}]"] = f"omega2_{first}" if a == b else f"cov_{first}_{last}"
    out |= {f"gamma2[{place}]": f"gamma2_{model.names[j]}" for place, j in enumerate(model.varying)}
    out |= {f"shape[{k}]": name for k, name in enumerate(shaped.names(model))} | classes.engine_names(model)
    return out | {f"error[{j}]": name for j, name in enumerate(model.outcome.error_names)}


def held_names(model: MixedEffects, labels: list[str]) -> list[str]:
    """Names, as in `natural_names`, of the parameters that are held."""
    named = engine_names(model, labels)
    return [named[f"{name}[{place}]"] for name, mask in model.held.masks for place in np.flatnonzero(mask)]


@compiled(small=True)
def natural_values(model: MixedEffects, params: dict, dropped: tuple[str, ...]) -> Any:
    """Values in the order of `natural_names`."""
    gaussian = jnp.concatenate([jnp.ravel(params[name]) for name in ("beta", "fixed") if name in params])
    shifts = [params[name][k] for name in ("delta", "drift") if name in params for k in range(len(params[name]))]
    out: list[Any] = []
    for j, (name, one) in enumerate(model.individual):
        intercept, *slopes = model.coefficients(j)
        out += [one.natural(gaussian[intercept]), *(gaussian[k] for k in slopes), *(shifts[k] for k in model.shifts(j))]
        out += classes.natural_shifts(model, params, name)
    random = [model.names[j] for j in model.random]
    omega = model.covariance(params)
    variances = {f"omega2_{name}": omega[place, place] for place, name in enumerate(random)}
    variances |= {f"gamma2_{model.names[j]}": params["gamma2"][place] for place, j in enumerate(model.varying)}
    variances |= {name: jnp.zeros(()) for name in dropped}
    every = [f"{kind}_{name}" for kind in ("omega2", "gamma2") for name in model.names]
    out += [variances[name] for name in every if name in variances]
    for block in model.blocks:
        out += [omega[a, b] for position, a in enumerate(block) for b in block[position + 1 :]]
    out += [params["error"][j] for j in range(len(model.outcome.error_names))] + shaped.natural(model, params)
    out += classes.natural_shares(model, params)
    left = {"nu": jnp.inf, "share": 0.0, "beta": jnp.nan}  # of tails and classes that the data do not ask for
    return jnp.stack(out + [jnp.full((), left[name.partition("_")[0]]) for name in dropped if name.partition("_")[0] in left])


def rule_of(fitted: NLME) -> Rule:
    """How the posterior of each subject is averaged over at the estimate."""
    fit = fitted.result_
    done = examined(fit)
    return fit.remembered("rule", lambda: best_rule(fit)) if done is None else done.rule


def _covariances(fitted: NLME) -> tuple[np.ndarray, np.ndarray, str]:
    """Covariance of the natural parameters, its replicates, and what is wrong."""
    return fitted.result_.remembered("covariances of natural parameters", lambda: _computed_covariances(fitted))


def covariance(fitted: NLME) -> pd.DataFrame:
    """Of the natural parameters, named as in `params_`."""
    names = list(fitted.params_)
    return pd.DataFrame(_covariances(fitted)[0], index=names, columns=names)


def _computed_covariances(fitted: NLME) -> tuple[np.ndarray, np.ndarray, str]:
    model, fit = fitted.model_, fitted.result_
    singular = fit.result is RESULTS.boundary and bool(model.blocks) and not classes.alone(fitted._dropped)
    if singular:
        fit = fit.at(lifted(fit.params))
    info = information(fit) if singular else fit.information()
    with precision(np.dtype(np.float64)):
        params = jax.tree.map(lambda leaf: np.asarray(leaf, float), fit.params)
        jacobian = np.asarray(natural_jacobian(model, params, fitted._dropped)[1])
    message = info.message
    lost = {*fitted._dropped, *classes.vanished(model, fit.params)}
    unknown = np.asarray([name in lost for name in fitted.params_])
    at_bound = bounds.reached(fitted)
    if singular or at_bound:
        # On the boundary the last Cholesky entry of a singular block is held: the data say nothing of it.
        unknown |= np.asarray([singular and name.startswith("cov_") for name in fitted.params_])
        unknown |= np.asarray([name in fitted.held_ or name in at_bound for name in fitted.params_])
        coordinates = Coordinates(fit)
        u = coordinates.to(params)
        inward = coordinates.jacobian(u)
        free = bounds.moving(fitted, inward, engine_names(model, fitted._design.labels))
        free &= _off_the_edge(params, model) if singular else free
        covariances = [guarded(matrix, free)[0] for matrix in (info.matrix, *info.matrices)]
        message = "correlations are on the boundary (one or minus one) and have no standard error" if singular else ""
        moved = [jacobian @ inward @ c @ inward.T @ jacobian.T for c in covariances]
    else:
        none = np.isnan(np.diagonal(info.covariance))
        # A parameter without standard error takes those that depend on it along; the others keep theirs.
        unknown |= np.abs(jacobian[:, none]).sum(axis=1) > 0
        moved = [jacobian @ np.nan_to_num(c) @ jacobian.T for c in (info.covariance, *info.replicates)]
    for covariance in moved:
        covariance[unknown], covariance[:, unknown] = np.nan, np.nan
    return moved[0], np.stack(moved[1:]), message


@compiled(small=True)
def natural_jacobian(model: MixedEffects, params: dict, dropped: tuple[str, ...]) -> tuple[Any, Any]:
    """`natural_values` (m,), and their derivatives in the engine's parameters (m, p)."""
    flat, unravel = ravel_pytree(params)

    def values(x):
        out = natural_values(model, unravel(x), dropped)
        return out, out

    jacobian, found = jax.jacobian(values, has_aux=True)(flat)
    return found, jacobian


def _off_the_edge(params: dict, model: MixedEffects) -> np.ndarray:
    """Which unconstrained coordinates are not the last Cholesky entry of a covariance matrix."""
    sizes: dict[str, Any] = {name: np.zeros(np.size(params[name])) for name in params if name != "omega"}
    sizes = {name: part[~model.held.mask(name, len(part))] for name, part in sizes.items()}
    sizes["omega"] = [np.r_[np.zeros(d * (d + 1) // 2 - 1), 1.0] for d in map(len, params["omega"])]
    return np.concatenate(jax.tree.leaves(sizes)) < 0.5


def lifted(params: dict) -> dict:
    """Parameters whose covariance matrices are a little inside the cone: correlations with eigenvalues of at least 0.01."""

    def lift(matrix: np.ndarray) -> np.ndarray:
        sd = np.sqrt(np.diagonal(matrix))
        values, vectors = np.linalg.eigh(matrix / np.outer(sd, sd))
        return (vectors * np.maximum(values, 0.01)) @ vectors.T * np.outer(sd, sd)

    return params | {"omega": tuple(lift(np.asarray(matrix)) for matrix in params["omega"])}


def _linearised(fitted: NLME) -> tuple[np.ndarray, np.ndarray, str]:
    """As `_covariances`, from the linearised model."""
    check_linearisable(fitted)
    model, fit = fitted.model_, fitted.result_
    with precision(fit.dtype):
        space = fit._model().space
        params = jax.tree.map(jnp.asarray, fit.params)
        matrix = linearised_information(model, space, params, modes(fitted), fitted._units(fitted.data_))
        u, back = ravel_pytree(space.to_unconstrained(params))

        def natural(v):
            return natural_values(model, space.from_unconstrained(back(v)), fitted._dropped)

        jacobian = np.asarray(jax.jacobian(natural)(u), float)
    covariance = jacobian @ guarded(np.asarray(matrix, float))[0] @ jacobian.T
    without = np.asarray([name in fitted.held_ for name in fitted.params_])
    covariance[without], covariance[:, without] = np.nan, np.nan
    return covariance, np.stack([covariance, covariance]), "standard errors are from the linearised model"


def table(fitted: NLME, method: str = "louis") -> pd.DataFrame:
    """Estimate, standard error and its Monte Carlo error, relative standard error in %, natural scale.

    Raises:
        ValueError: an unknown method, or one that the model does not allow.
    """
    if method not in ("louis", "linearised"):
        raise ValueError(f'method must be "louis" or "linearised", got {method!r}')
    covariance, replicates, message = _covariances(fitted) if method == "louis" else _linearised(fitted)
    estimate = np.asarray(list(fitted.params_.values()), float)
    with np.errstate(all="ignore"):
        se = np.sqrt(np.diagonal(covariance))
        each = np.sqrt(np.diagonal(replicates, axis1=1, axis2=2))
        out = pd.DataFrame(
            {
                "estimate": estimate,
                "se": se,
                "se_error": each.std(axis=0, ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.where(np.isnan(se), se, 0.0),
                "rse": 100 * se / np.abs(estimate),
            },
            index=list(fitted.params_),
        )
    told = held.told(fitted.held_)
    out.attrs["message"] = "; ".join(part.rstrip(".") for part in (fitted.message_, message, told) if part) + "."
    return out


def correlations(fitted: NLME) -> pd.DataFrame:
    """See `NLME.correlations`."""
    covariance = _covariances(fitted)[0]
    with np.errstate(all="ignore"):
        sd = np.sqrt(np.diagonal(covariance))
        return pd.DataFrame(covariance / np.outer(sd, sd), index=list(fitted.params_), columns=list(fitted.params_))


def loglik(fitted: NLME, method: str, n_draws: int | None, n_nodes: int) -> Any:
    """See `NLME.loglik`."""
    if method == "quadrature":
        return fitted.result_.loglik(method="quadrature", n_nodes=n_nodes)
    return fitted.result_.loglik(method=method, n_draws=n_draws)


def carried_by_observations(fitted: NLME) -> int:
    """Parameters whose information grows with observations, not subjects: fixed effects without random ones, and errors."""
    params, known = fitted.result_.params, fitted.model_.held
    return sum(int(np.sum(~known.mask(name, np.size(params[name])))) for name in ("fixed", "drift", "error") if name in params)


def _moments(model, params, z, w, batch):
    psi = jax.vmap(lambda z_j: _of_subject(model, params, z_j, batch["design"][0]))(z[:, 0])
    return {name: (w[:, 0] @ value, w[:, 0] @ value**2) for name, value in psi.items()}


def _of_subject(model: MixedEffects, params: dict, z: Any, design: Any) -> dict[str, Any]:
    """Individual parameters on the natural scale, whatever the occasion."""
    gaussian = model.of_subject(params, z, design)
    return {name: one.natural(gaussian[name]) for name, one in model.individual}


def modes(fitted: NLME) -> np.ndarray:
    """Conditional modes of phi (n, d)."""

    def computed() -> np.ndarray:
        with precision(fitted.result_.dtype):
            return np.asarray(conditional_modes(fitted.model_, fitted.result_.params, fitted._units(fitted.data_))[0])

    return fitted.result_.remembered("conditional modes", computed)


def individual(fitted: NLME) -> pd.DataFrame:
    """See `NLME.individual_`."""
    fit, model = fitted.result_, fitted.model_
    rule = rule_of(fitted)
    moments, _ = each_unit(fit, _moments, rule.estep, width=rule.width, rows=rule.rows)
    with precision(fit.dtype):
        params = jax.tree.map(jnp.asarray, fit.params)
        design = jnp.asarray(fit.data["design"])
        mode = jax.vmap(lambda z, d: _of_subject(model, params, z, d))(jnp.asarray(modes(fitted)), design)
        mode = {name: np.asarray(value) for name, value in mode.items()}
    out: dict[str, np.ndarray] = {}
    for name in model.names:
        mean, square = (np.asarray(part, float) for part in moments[name])
        out |= {f"mode_{name}": mode[name], f"mean_{name}": mean, f"sd_{name}": np.sqrt(np.maximum(square - mean**2, 0))}
    return pd.DataFrame(out, index=pd.Index(fitted.data_.labels, name=fitted.data_.roles["id"]))


def effects(fitted: NLME) -> pd.DataFrame:
    """Conditional modes of the random effects eta, one row a subject, a column a random parameter; where there are classes from
    the mean of the class that is most likely there."""
    fit, model = fitted.result_, fitted.model_
    names = [model.names[j] for j in model.random]
    if not names:
        return pd.DataFrame(index=fitted.data_.labels)
    means = model.means(fit.params, np.asarray(fit.data["design"]))
    means = means if model.classes == 1 else means + classes.likeliest_shifts(model, fit, modes(fitted))
    return pd.DataFrame(modes(fitted)[:, : len(names)] - means, columns=names, index=fitted.data_.labels)


def shrinkage(fitted: NLME) -> pd.Series:
    """See `NLME.shrinkage`."""
    eta = effects(fitted)
    variances = np.asarray([fitted.params_[f"omega2_{name}"] for name in eta.columns])
    return pd.Series(1 - eta.var(axis=0, ddof=1).to_numpy() / variances, index=eta.columns, name="shrinkage")


def along(fitted: NLME, name: str, grid: ArrayLike, maximised: bool, level: float = 0.95) -> pd.DataFrame:
    """See `NLME.profile` and `NLME.slice`."""
    places = {own: place for place, own in engine_names(fitted.model_, fitted._design.labels).items()}
    if name not in places:
        raise ValueError(f"no estimated parameter is called {name!r}; they are {list(places)}")
    held.refuse([name], fitted.held_)
    classes.refuse_profile(fitted.model_, name)
    scales = dict.fromkeys(shaped.scales(fitted), LogNormal()) | dict.fromkeys(classes.share_names(fitted.model_), LogitNormal())
    one = (dict(fitted.model_.individual) | scales).get(name, Normal())
    values = np.asarray(one.gaussian(np.unique(np.asarray(grid, float))), float)
    if not np.all(np.isfinite(values)):
        raise ValueError(f"the grid leaves the range of {type(one).__name__}{one._range}, the distribution of {name}")
    fit = fitted.result_
    frame = profile(fit, places[name], values, level=level) if maximised else slice(fit, places[name], values)

    natural = one.values
    with precision(np.dtype(np.float64)):
        frame.index = pd.Index(natural(values), name=name)
        frame.attrs["maximiser"] = float(natural(frame.attrs["maximiser"]))
        if maximised:
            frame.attrs["interval"] = tuple(natural(np.asarray(frame.attrs["interval"])).tolist())
            unravel = ravel_pytree(jax.tree.map(jnp.asarray, fit.params))[1]
            flat = frame[fit.names].to_numpy()
            rows = [natural_values(fitted.model_, unravel(jnp.asarray(row)), fitted._dropped) for row in flat]
            frame = frame[["loglik", "mc_error", "away"]].assign(**dict(zip(fitted.params_, np.asarray(rows).T, strict=True)))
    return frame


def wald_test(fitted: NLME, names: str | list[str], value: ArrayLike = 0.0) -> WaldTest:
    """See `NLME.wald_test`."""
    wanted = [names] if isinstance(names, str) else list(names)
    known = list(fitted.params_)
    for name in wanted:
        if name not in known:
            raise ValueError(f"no parameter is called {name!r}; they are {known}")
    held.refuse(wanted, fitted.held_)
    shaped.refuse(wanted, fitted)
    classes.refuse_test(wanted, fitted.model_)
    at = [known.index(name) for name in wanted]
    variance = _covariances(fitted)[0][np.ix_(at, at)]
    if not np.all(np.isfinite(variance)):
        raise ValueError(f"{wanted} have no usable standard errors: {fitted.summary().attrs['message']}")
    gap = np.asarray([fitted.params_[name] for name in wanted]) - value
    statistic = float(gap @ np.linalg.solve(variance, gap))
    return WaldTest(statistic, len(wanted), float(scipy.special.chdtrc(len(wanted), statistic)))
