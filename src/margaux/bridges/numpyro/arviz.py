"""What a fit of a NumPyro model gives to ArviZ: values by site, on their own scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, PyTree

from ...answers.arviz import COPIED, about, latents, named, over_draws, simulated_of
from ...numerics.compiling import compiled
from ...showing.arviz import Parts
from .models import BySite, NumPyroSharedModel, natural

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...answers.fit import Fit


def of_numpyro(fit: Fit, n_draws: int, key: int) -> Parts:
    """Latent and deterministic sites as the posterior, observed sites as the data; the dimension of units is named as
    their plate. Observations under a mask are left out, and the others become a list."""
    z, stats, drawn = latents(fit, n_draws, key)
    model: Any = fit._model().model
    program, plate = model.program, str(model.program.plate)
    axes: dict[str, Any] = dict((*program.latents, *program.deterministic, *program.observed))
    one = program.plate is None or isinstance(model, NumPyroSharedModel)

    def by_site(values: PyTree) -> dict[str, np.ndarray]:
        """Without the axis (2) of units where all data are one, or the value is that of all."""
        return {name: value[:, :, 0] if one or axes[name] is None else value for name, value in values.items()}

    def over(function: Callable[..., Any], z: PyTree) -> dict[str, np.ndarray]:
        return by_site(over_draws(function, model, fit.params, z, fit.data))

    first = jax.tree.map(lambda leaf: leaf[:1, :1], z)
    observed = {name: value[0, 0] for name, value in over(_observations, first).items()}
    keep = {name: ~np.isnan(value[0, 0]) for name, value in over(_densities, first).items()}
    named_units = {name: ([plate if dim == "unit" else dim for dim in dims], v) for name, (dims, v) in stats.items()}
    parts = Parts(over(natural, z), drawn, sample_stats=named_units, attrs=about(fit))
    parts.dims = {name: [] if axis is None else [plate] for name, axis in axes.items()}
    for name in [name for name, kept in keep.items() if not kept.all()]:
        listed = "observation" if len(keep) == 1 else f"{name}_observation"
        parts.dims[name] = [listed]
        if axes[name] is not None:
            parts.beside[f"{plate}_of_{listed}"] = (listed, np.argwhere(keep[name])[:, 0])

    def kept(values: dict[str, np.ndarray], lead: int) -> dict[str, np.ndarray]:
        at = (slice(None),) * lead
        return {name: v if keep[name].all() else v[*at, keep[name]] for name, v in values.items()}

    parts.observed = kept(observed, 0)
    for name, leaf in named(fit.data, "data").items():
        value = np.asarray(leaf[0] if one else leaf)
        same = any(np.array_equal(value, other) for other in observed.values())
        if name in program.arguments.names and name not in axes and not same and value.size <= COPIED:
            parts.constant[name] = value
            parts.dims[name] = [] if program.plate is None else [plate]
    parts.size = sum(int(kept.sum()) for kept in keep.values())
    parts.log_likelihood = lambda: kept(over(_densities, z), 2)
    parts.predictive = lambda: kept(by_site(simulated_of(fit, z, key)), 2)
    if not observed:
        parts.log_likelihood = parts.predictive = TypeError(
            "the model's likelihood is a numpyro.factor alone, which does not say what is observed; write it as sample "
            "sites with obs= for log_likelihood=True or posterior_predictive=True"
        )
    return parts


@compiled
def _observations(model: BySite, params: PyTree, z: PyTree, data: PyTree) -> dict[str, Array]:
    each = jax.vmap(lambda z, y: model.observations(params, z, y))
    return jax.lax.map(lambda draw: each(draw, data), z)


@compiled
def _densities(model: BySite, params: PyTree, z: PyTree, data: PyTree) -> dict[str, Array]:
    each = jax.vmap(lambda z, y: model.densities(params, z, y))
    return jax.lax.map(lambda draw: each(draw, data), z)
