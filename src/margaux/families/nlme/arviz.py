"""What a mixed-effects model gives to ArviZ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from ...answers.arviz import about_estimator, latents, pointwise_of, simulated_of
from ...numerics.precision import precision
from ...showing.arviz import Parts
from ...showing.parts import check_fitted
from .prediction import _restored

if TYPE_CHECKING:
    from .estimator import NLME


def arviz_parts(fitted: NLME, n_draws: int, key: int) -> Parts:
    """Individual parameters a subject, and the observations in the order of the data."""

    check_fitted(fitted)
    fit, model, data = fitted.result_, fitted.model_, fitted.data_
    if not (model.random or model.varying):
        raise ValueError("no random effect is left in this fit: every variance was estimated as zero, and there is no latent")
    z, stats, drawn = latents(fit, n_draws, key)
    with precision(np.dtype(float)):
        params, design = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), (fit.params, fit.data["design"]))
        psi = jax.vmap(lambda z: jax.vmap(lambda z, d: model.psi(params, z, d))(z, design))
        flat = {name: np.asarray(value) for name, value in psi(jnp.asarray(z).reshape(-1, *z.shape[2:])).items()}
    random = [model.names[j] for j in model.random]
    varying = [model.names[j] for j in model.changing]
    posterior = {name: flat[name].reshape(*z.shape[:3], *flat[name].shape[2:]) for name in dict.fromkeys(random + varying)}
    frame = data.frame.sort_index(kind="stable")
    outcome = data.roles["time"] if model.outcome.survival and "time" in data.roles else data.roles["y"]
    kept = [data.roles[role] for role in ("time", "dose") if role in data.roles]
    observed = {name: frame[name].to_numpy() for name in {data.roles["y"], outcome}}

    def restored(values):
        return _restored(data, values)

    labels = frame[data.roles["id"]].to_numpy()
    return Parts(
        posterior,
        drawn,
        dims={name: ["subject", "occasion"] if name in varying else ["subject"] for name in posterior}
        | {name: ["observation"] for name in [*observed, *kept, data.roles["y"]]},
        coords={"subject": data.labels},
        beside={"subject_of": ("observation", labels)},
        sample_stats=stats,
        observed=observed,
        constant={name: frame[name].to_numpy(float) for name in kept if name not in observed},
        size=len(data.codes),
        log_likelihood=lambda: {data.roles["y"]: restored(pointwise_of(fit, z))},
        predictive=lambda: {outcome: restored(simulated_of(fit, z, key)["y"])},
        attrs=about_estimator(fitted),
    )
