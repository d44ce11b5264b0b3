"""Predictions, simulations and draws of individual parameters."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from ...answers.posterior import as_numpy
from ...numerics.compiling import compiled
from ...numerics.keys import key_of
from ...numerics.precision import precision, settle
from . import answers, by_occasion, membership
from .data import LongData, group
from .dosing import with_regimen
from .events import recognised
from .outcomes import PRESENT

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .estimator import NLME
    from .model import MixedEffects


def _data(fitted: NLME, frame: pd.DataFrame | None) -> LongData:
    if frame is None:
        return fitted.data_
    roles = {"id": None, "time": None, "y": None, "dose": None} | fitted.data_.roles
    data = group(frame, roles, fitted.model_.outcome, observed=False, columns=_columns(fitted, frame))
    data = by_occasion.placed(data) if fitted.model_.changing else data
    fitted._design.check(data)
    return data


def _columns(fitted: NLME, frame: pd.DataFrame) -> dict[str, str] | None:
    """Of an event table, where the fit had one."""
    known = fitted.data_.columns
    return None if known is None else recognised(frame, {role: name for role, name in known.items() if name in frame.columns})


def _model(fitted: NLME, data: LongData) -> MixedEffects:
    """The model for the doses of these data."""
    model = fitted.model_
    changed: dict[str, Any] = {"most": data.units[PRESENT].shape[1]} if model.changing else {}
    return dataclasses.replace(model, outcome=with_regimen(model.outcome, data.regimen), **changed)


def _restored(data: LongData, padded: ArrayLike) -> np.ndarray:
    """(..., n, T) to (..., N) in the order of the user's rows."""
    flat = data.flat(padded)
    order = np.argsort(data.frame.index.to_numpy(), kind="stable")
    return flat[..., order]


def predict(fitted: NLME, frame: pd.DataFrame | None, level: str) -> np.ndarray:
    """See `NLME.predict`."""
    more = membership.levels(fitted)
    if level not in ("individual", "population", *more):
        told = "".join(f' or "{own}"' for own in more)
        raise ValueError(f'level must be "individual" or "population"{told}, got {level!r}')
    data = _data(fitted, frame)
    model, units = _model(fitted, data), fitted._units(data)
    if model.classes > 1:
        return _restored(data, membership.predicted(fitted, model, data, units, level))
    parts, dtype = [np.zeros((len(data.labels), 0))], fitted.result_.dtype
    if level == "individual":
        # A known subject's random effects, added to the mean its new covariates give.
        if model.random:
            eta = answers.effects(fitted).to_numpy()
            at = {label: eta[i] for i, label in enumerate(fitted.data_.labels)}
            parts.append(np.stack([at.get(label, np.zeros(eta.shape[1])) for label in data.labels]))
        if model.varying:
            parts.append(by_occasion.for_these(fitted, data).reshape(len(data.labels), -1))
    with precision(dtype):
        effects, params = as_numpy((np.concatenate(parts, axis=1), fitted.result_.params), dtype)
        return _restored(data, _predicted(settle(model, dtype), params, effects, units))


@compiled
def _predicted(model, params, effects, units):
    def unit(eta, y):
        mean = model.init_latents(key_of(0), params, y)
        psi = model.psi(params, mean + eta if eta.size else mean, y["design"])
        return model.outcome.prediction(psi, y["rows"])

    return jax.vmap(unit)(effects, units)


def drawn(fitted: NLME, data: LongData, n_draws: int, key: int) -> np.ndarray:
    """Outcomes of new subjects with the designs of `data`: (n_draws, n, T)."""
    model, units, fit = _model(fitted, data), fitted._units(data), fitted.result_
    with precision(fit.dtype):
        params = as_numpy(fit.params, fit.dtype)
        return np.asarray(_drawn(settle(model, fit.dtype), params, units, key_of(key), n_draws))


@compiled
def _drawn(model, params, units, key, n_draws):
    error, root = params.get("error", jnp.zeros(0)), _root(model, params)

    def unit(key, y):
        effect_key, noise_key = jax.random.split(key)
        phi = model.init_latents(effect_key, params, y) + root @ jax.random.normal(effect_key, (len(root),), root.dtype)
        return model.outcome.simulate(noise_key, error, model.psi(params, phi, y["design"]), y["rows"])

    def once(key):
        return jax.vmap(unit)(jax.random.split(key, len(units["mask"])), units)

    return jax.lax.map(once, jax.random.split(key, n_draws))


def _root(model: MixedEffects, params: dict) -> Any:
    """A square root of the covariance of a subject's effects, singular or not."""
    between = jnp.diag(jnp.repeat(jnp.sqrt(params["gamma2"]), model.most)) if model.varying else None
    if not model.random:
        return jnp.zeros((1, 1)) if between is None else between
    values, vectors = jnp.linalg.eigh(model.covariance(params))
    root = vectors * jnp.sqrt(jnp.maximum(values, 0.0))
    return root if between is None else jax.scipy.linalg.block_diag(root, between)


def simulate(fitted: NLME, frame: pd.DataFrame | None, n_draws: int, key: int) -> np.ndarray:
    """See `NLME.simulate`."""
    if n_draws < 1:
        raise ValueError(f"n_draws must be at least 1, got {n_draws}")
    data = _data(fitted, frame)
    return _restored(data, drawn(fitted, data, n_draws, key))


def conditional(fitted: NLME, n_draws: int, key: int) -> dict[str, np.ndarray]:
    """See `NLME.sample_individual`."""
    model, fit = fitted.model_, fitted.result_
    phi = fit.draws(n_draws, thin=5, key=key)[:, 0] if model.classes == 1 else membership.draws(fitted, n_draws, key)
    with precision(fit.dtype):
        params, design = jax.tree.map(jnp.asarray, (fit.params, fit.data["design"]))
        each = jax.vmap(jax.vmap(lambda z, d: model.psi(params, z, d)), in_axes=(0, None))
        return {name: np.asarray(value) for name, value in each(jnp.asarray(phi), jnp.asarray(design)).items()}
