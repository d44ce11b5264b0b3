"""What PLN-PCA gives to ArviZ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from ...answers.arviz import OVER, _pointwise, _simulated, over_draws, shuffled, systematic
from ...numerics.precision import precision
from ...showing.arviz import Parts
from ...showing.parts import check_fitted
from .frames import components
from .importance import BLOCK as RATES
from .importance import blocks, drawn
from .model import PLN, units
from .proposals import PROPOSALS, Plan, nets

if TYPE_CHECKING:
    from .estimator import PLNPCA


#: numbers of a block of units' draws
BLOCK = 1 << 24


def arviz_parts(fitted: PLNPCA, n_draws: int, key: int) -> Parts:
    """Scores of the units, by importance sampling from their variational posteriors."""
    check_fitted(fitted)
    share = fitted.table_.counts.share
    if not share.alone:
        raise TypeError(
            f"ArviZ data of a fit over several processes would have the {share.size} units of this one alone, of {share.n}; look "
            "at scores_ and importance_, or fit a sample of the units in one process"
        )
    table, design = fitted.table_, fitted._design(fitted.table_)
    p, q = fitted.loadings_.shape
    plan = Plan(1 << int(np.ceil(np.log2(OVER * max(n_draws, 250)))), 1, True, key)
    proposal, parts, ess = PROPOSALS["vem mixture"], [], []
    with precision(np.dtype(float)):
        loadings, posterior = fitted._double()
        net = nets(plan, proposal, q)[0]
        resampled = jax.jit(jax.vmap(lambda w, v: v[systematic(w, n_draws)]))
        for block in blocks(design, loadings, posterior, proposal, min(RATES // p, BLOCK // (plan.draws * (q + 2)))):
            found = drawn(block, proposal, plan, net)
            weight = jax.nn.softmax(found.log_ratio, axis=1)
            ess.append(np.asarray(1 / jnp.sum(weight**2, axis=1)))
            parts.append(np.asarray(resampled(weight, found.v)))
        data = units(design, fitted._posterior, float)
    scores = np.moveaxis(shuffled(np.concatenate(parts), key), 1, 0)[None]
    params = {"B": fitted._loadings.B, "C": fitted._loadings.C}
    counts = np.asarray(data["counts"])
    return Parts(
        {"scores": scores},
        f"importance sampling from the variational posteriors, {n_draws} of {plan.draws} draws a unit resampled by their "
        "weights, one chain",
        dims={"scores": ["unit", "component"], "counts": ["unit", "feature"], "x": ["unit", "covariate"]},
        coords={
            "unit": np.asarray(table.units),
            "feature": np.asarray(table.features),
            "component": components(q),
            "covariate": table.covariate_names,
        },
        sample_stats={"importance_ess": (["unit"], np.concatenate(ess))},
        observed={"counts": counts.astype(int)},
        constant={"x": np.asarray(table.x, float), "offset": np.asarray(table.offset, float)},
        size=counts.size,
        log_likelihood=lambda: {"counts": over_draws(_pointwise, PLN(), params, scores, data)},
        predictive=lambda: {"counts": over_draws(_simulated, PLN(), params, scores, data, key)["counts"]},
        attrs={"algorithm": f"PLNPCA, method {fitted.method}", "seed": fitted.random_state, "message": fitted.ascent_},
    )
