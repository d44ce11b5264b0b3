"""What a mixed model gives to ArviZ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ...answers.arviz import about_estimator, latents, pointwise_of
from ...answers.posterior import each_unit, latent_size
from ...answers.rules import laplace_rule
from ...esteps import Laplace
from ...numerics.precision import precision
from ...showing.arviz import Parts
from ...showing.parts import check_fitted
from .integrated import with_all_effects
from .model import fixed_effects

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from ...answers.fit import Fit
    from .estimator import GLMM

#: effects a unit up to which weighted draws are worth trying
DENSE = 200


def arviz_parts(fitted: GLMM, n_draws: int, key: int) -> Parts:
    """Random effects by group of each factor, `b_herd` (herd, herd_effect), and the observations in the order of the table."""
    check_fitted(fitted)
    fit, design, layout = with_all_effects(fitted.result_), fitted.design_, fitted.layout_
    z, stats, drawn = latents(fit, n_draws, key) if latent_size(fit) <= DENSE else _of_approximation(fit, n_draws, key)
    effects = _by_group(fitted, z)
    posterior = {f"b_{_path(name)}": values for name, values in effects.items()}
    parts = Parts(posterior, drawn, size=len(design.y), sample_stats=stats)
    for name, term in zip(map(_path, layout.names), design.terms, strict=True):
        parts.dims[f"b_{name}"] = [name, f"{name}_effect"]
        parts.coords |= {name: term.labels.to_numpy(), f"{name}_effect": list(term.columns)}
        parts.beside[f"{name}_of"] = ("row", term.labels.to_numpy()[term.codes])
    parts.observed = {"y": design.y}
    if design.trials is not None:
        parts.constant["trials"] = design.trials
    parts.constant |= {"offset": design.offset, "weights": design.weights}
    parts.dims |= {name: ["row"] for name in ("y", *parts.constant)}
    parts.log_likelihood = lambda: {"y": _in_order(pointwise_of(fit, z), layout.rows)}
    parts.predictive = lambda: {"y": _simulated(fitted, effects, key)}
    parts.attrs = about_estimator(fitted) | {"formula": design.recipe.formula, "response": design.response}
    if design.levels:
        parts.attrs["classes"] = [str(level) for level in design.levels]
    return parts


def _path(name: str) -> str:
    """A name without the slashes that paths of trees have."""
    return name.replace("/", "|")


def _of_approximation(fit: Fit, n_draws: int, key: int) -> tuple[PyTree, dict[str, Any], str]:
    """Draws from Laplace's approximation, whose factor knows the structure of thousands of effects."""
    rule = laplace_rule(fit)
    # Draws come in pairs about the mode; one of each pair is kept, so that they are independent.
    estep = Laplace(getattr(fit.estep, "structure", None), n_draws=2 * n_draws)
    z, _ = each_unit(fit, _all, estep, key=key, width=2 * n_draws * (latent_size(fit) + 2), rows=rule.rows)
    kept = jax.tree.map(lambda leaf: np.moveaxis(leaf[:, :n_draws], 1, 0)[None], z)
    return kept, {}, "independent draws of Laplace's approximation, one chain"


def _all(model, params, z, w, batch):
    return jax.tree.map(lambda leaf: leaf[:, 0], z)


def _by_group(fitted: GLMM, z: PyTree) -> dict[str, np.ndarray]:
    """Effects (chain, draw, groups of the design, k) of latents (chain, draw, n, groups, k)."""
    out = {}
    for factor in fitted.model_.factors:
        with precision(np.dtype(np.float64)):
            root = np.asarray(factor.root(fitted.result_.params), float)
        groups = fitted.layout_.groups[factor.name]
        there = groups >= 0
        values = np.asarray(z[factor.name], float)[:, :, there] @ root.T
        out[factor.name] = np.empty_like(values)
        out[factor.name][:, :, groups[there]] = values
    return out


def _in_order(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(chain, draw, N) in the order of the table, of units (chain, draw, n, rows)."""
    there = rows >= 0
    found = values[:, :, there]
    out = np.empty_like(found)
    out[:, :, rows[there]] = found
    return out


def _simulated(fitted: GLMM, effects: dict[str, np.ndarray], key: int) -> np.ndarray:
    """New responses (chain, draw, N) of the same groups."""
    design, params = fitted.design_, fitted.result_.params
    eta = design.X @ np.asarray(fixed_effects(params), float) + design.offset
    for name, term in zip(fitted.layout_.names, design.terms, strict=True):
        eta = eta + np.sum(term.Z * effects[name][:, :, term.codes], axis=-1)
    with precision(np.dtype(np.float64)):
        trials = None if design.trials is None else jnp.asarray(design.trials)
        drawn = fitted.model_.response.simulate(jax.random.key(key), jnp.asarray(eta), params["dispersion"], trials)
        return np.asarray(drawn)
