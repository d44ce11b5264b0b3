"""Virtual subjects: covariates, parameters drawn from the population, curves and exposure after a regimen."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree

from ...answers.scores import Coordinates
from ...numerics.compiling import compiled
from ...numerics.inverse import guarded
from ...numerics.ladder import padded, rung
from ...numerics.precision import precision
from . import prediction
from .dosing import FIRST, LAST, administered, with_regimen
from .dynamics import PART, Dynamics
from .exposure import Exposure, breaks_of, exposure
from .kinds import OUTPUT
from .outcomes import DOSES

if TYPE_CHECKING:
    from .course import Course
    from .estimator import NLME
    from .receiving import Receiving

#: responses to single doses that are held at once
HELD = 1_000_000


def sampled(subjects: pd.DataFrame, n: int | None, key: int) -> pd.DataFrame:
    """Subjects drawn with replacement, n of them; without n each of them once."""
    if n is None:
        return subjects.reset_index(drop=True)
    rows = np.random.default_rng([key, 1]).integers(len(subjects), size=int(n))
    return pd.DataFrame(subjects.iloc[rows]).reset_index(drop=True)


def covariates(fitted: NLME, receiving: Receiving, subjects: pd.DataFrame | None, per: str | None) -> pd.DataFrame:
    """What the model needs of subjects, those of the data by default, and the column that doses are per, checked.

    Raises:
        TypeError: no frame.
        ValueError: no rows, a column that is not there, has holes, is of another kind than in the data, or a category it has not.
    """
    import formulaic

    known = fitted.data_.frame
    if subjects is None:
        subjects = fitted.data_.subjects
    if not isinstance(subjects, pd.DataFrame):
        raise TypeError(f"subjects is a data frame with a row a subject, got {type(subjects).__name__}")
    if len(subjects) == 0:
        raise ValueError("subjects has no rows")
    parse: Any = formulaic.Formula
    needed: dict[str, str] = {}
    for name, one in fitted.model_.individual:
        for column in sorted(parse(one.covariates).required_variables) if one.covariates else ():
            if column in known.columns:
                needed.setdefault(str(column), f"a covariate of {name}")
    needed |= {name: "read by the curve" for name in receiving.columns}
    needed |= {} if per is None else {per: "what doses are multiplied by"}
    for column, why in needed.items():
        if column not in subjects.columns:
            raise ValueError(f"subjects has no column {column}, {why}; it has {', '.join(map(str, subjects.columns)) or 'none'}")
        values = subjects[column]
        if bool(np.any(np.asarray(values.isna()))):
            raise ValueError(f"{column}, {why}, is missing in row {subjects.index[int(np.argmax(values.isna()))]} of subjects")
        numeric = pd.api.types.is_numeric_dtype(values)
        if column in known.columns and numeric != pd.api.types.is_numeric_dtype(known[column]):
            kinds = {True: "numbers", False: "categories"}
            raise ValueError(f"{column} holds {kinds[numeric]} in subjects, and {kinds[not numeric]} in the data of the fit")
        if numeric and not np.all(np.isfinite(values.to_numpy(float))):
            raise ValueError(f"{column}, {why}, is infinite in subjects")
        if not numeric and column in known.columns and (new := set(values) - set(known[column])):
            seen = ", ".join(map(str, sorted(set(known[column]), key=str)))
            raise ValueError(f"{column} = {sorted(new, key=str)[0]!r} was not seen by the fit, which knows {seen}")
    if per is not None and not (pd.api.types.is_numeric_dtype(subjects[per]) and np.all(subjects[per].to_numpy(float) > 0)):
        raise ValueError(f"{per}, what doses are multiplied by, must be a positive number for each subject")
    return pd.DataFrame(subjects[list(needed)])


def parameters(fitted: NLME, n: int, uncertainty: bool, key: int) -> Any:
    r"""The estimates, once for each of n subjects, or with `uncertainty` n draws from their asymptotic distribution.

    Draws are normal with the inverse of Louis' information on unbounded scales: logarithms of variances, the log-Cholesky factor
    of covariances, so that every draw is a parameter.

    Raises:
        ValueError: estimates without standard errors.
    """
    fit = fitted.result_
    if not uncertainty:
        return jax.tree.map(lambda leaf: np.broadcast_to(np.asarray(leaf, float), (n, *np.shape(leaf))), fit.params)
    se = pd.Series(fitted.stderr_).drop([*fitted._dropped, *fitted.held_])
    if lost := [str(name) for name in se.index[~np.isfinite(se)]]:
        raise ValueError(
            f"{', '.join(lost)} have no usable standard error, so their uncertainty is unknown; pass uncertainty=False, or see "
            "summary().attrs['message']"
        )
    covariance, trouble = guarded(np.asarray(fit.information().matrix, float))
    if trouble:
        raise ValueError(f"the uncertainty of the estimates is unknown: {trouble}; pass uncertainty=False")
    coordinates = Coordinates(fit)
    centre = coordinates.to(fit.params)
    draws = np.random.default_rng([key, 2]).multivariate_normal(centre, covariance, size=n, method="cholesky")
    with precision(np.dtype(float)):
        space = fit._model().space
        template = space.to_unconstrained(jax.tree.map(lambda leaf: jnp.asarray(leaf, float), fit.params))
        back = ravel_pytree(template)[1]
        return jax.tree.map(np.asarray, jax.vmap(lambda u: space.from_unconstrained(back(u)))(jnp.asarray(draws)))


def simulated(
    fitted: NLME,
    receiving: Receiving,
    course: Course,
    subjects: pd.DataFrame,
    scale: np.ndarray,
    times: np.ndarray,
    params: Any,
    key: int,
) -> tuple[dict[str, np.ndarray], Exposure, np.ndarray, np.ndarray]:
    """Individual parameters by name (n,), exposure, and at the times (T,) curves and observations (n, T).

    Args:
        subjects: n rows. scale: what amounts are multiplied by (n,). params: of the engine, each (n, ...).
    """
    n = len(subjects)
    outcome = with_regimen(receiving.outcome, None if receiving.superposed else course.regimen)
    model = dataclasses.replace(fitted.model_, outcome=outcome, **({"most": 1} if fitted.model_.changing else {}))
    points = 80 * (len(course.clock) * (2 if course.regimen.infusions else 1) + 2) + len(times)
    at_once = 1 << max(int(np.log2(max(HELD // (points * len(course.clock)), 1))), 0)
    size = -(-rung(n) // at_once) * at_once
    units = {
        "design": fitted._design.on_one_occasion(subjects),
        "rows": {name: subjects[name].to_numpy(float) for name in receiving.columns}
        | ({} if receiving.output is None else {OUTPUT: np.full(n, float(receiving.output[1]))}),
        "scale": scale,
        "params": params,
        "keys": np.asarray(np.random.default_rng([key, 3]).integers(2**32, size=(n, 2, 2)), np.uint32),
    }
    grid = padded(times, rung(len(times)))
    with precision(np.dtype(float)):
        shared = jax.tree.map(
            jnp.asarray,
            {"doses": course.doses, "clock": course.clock, "first": course.first, "times": grid}
            | {name: float(getattr(course, name)) for name in ("begin", "last", "end")},
        )
        found = _simulated(model, shared, jax.tree.map(jnp.asarray, padded(units, size)), at_once)
        psi, exposed, curves, observed = jax.tree.map(lambda leaf: np.asarray(leaf)[:n], found)
    return psi, exposed, curves[:, : len(times)], observed[:, : len(times)]


@compiled
def _simulated(model: Any, shared: dict, units: dict, at_once: int) -> Any:
    return jax.lax.map(lambda unit: _of_one(model, shared, unit), units, batch_size=at_once)


def _of_one(model: Any, shared: dict, unit: dict) -> Any:
    effect_key, noise_key = (jax.random.wrap_key_data(words) for words in unit["keys"])
    params, doses = unit["params"], shared["doses"] | {"amount": shared["doses"]["amount"] * unit["scale"]}
    root = prediction._root(model, params)
    phi = model.init_latents(effect_key, params, unit) + root @ jax.random.normal(effect_key, (len(root),), root.dtype)
    psi = model.psi(params, phi, unit["design"])
    psi = {name: jnp.reshape(value, ()) for name, value in psi.items()}
    dynamic = isinstance(administered(model.outcome), Dynamics)

    def rows(t):
        last = jnp.searchsorted(shared["clock"], t, side="right")
        first = jnp.where(last > 0, shared["first"][jnp.maximum(last - 1, 0)], 0.0)
        own = {name: jnp.broadcast_to(value, t.shape) for name, value in unit["rows"].items()}
        own |= {PART: jnp.zeros_like(t)} if dynamic else {}
        return own | {"time": t, "y": jnp.zeros_like(t), FIRST: first, LAST: last.astype(t.dtype), DOSES: doses}

    def at(t):
        return model.outcome.prediction(psi, rows(t))

    breaks = breaks_of(model.outcome.structural, psi, doses)
    exposed = exposure(at, breaks, shared["begin"], shared["last"], shared["end"], not dynamic)
    at_times = rows(shared["times"])
    curve = model.outcome.prediction(psi, at_times)
    error = params.get("error", jnp.zeros(0))
    return psi, exposed, curve, model.outcome.simulate(noise_key, error, psi, at_times)
