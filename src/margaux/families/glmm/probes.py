"""What the probes of determinants leave open: how far other ones would move an estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ...algorithms.objective import coordinates
from ...answers.certificate import Check, Level
from ...answers.certify import AT_MAXIMUM
from ...answers.rules import laplace_rule
from ...numerics.compiling import compiled
from ...numerics.precision import default_dtype, precision, settle
from .products import PROBES

if TYPE_CHECKING:
    from ...answers.fit import Fit

#: sets of probes that are compared
SETS = 4


def probed(fit: Fit) -> Check | None:
    """Whether other probes would give the same estimate; None where there are none."""
    if "met" not in fit.data.get("cells", {}):
        return None
    matrix = fit.information().matrix
    if not np.all(np.isfinite(matrix)) or np.linalg.eigvalsh(matrix)[0] <= 0:
        return None
    rule, dtype = laplace_rule(fit), default_dtype(None)
    scores = []
    for seed in range(SETS):
        cells = fit.data["cells"] | {"seed": np.full((1,), seed, np.int32)}
        with precision(dtype):
            at = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), fit.params)
            data: Any = jax.tree.map(np.asarray, fit.data | {"cells": cells})
            problem, estep, data = settle((fit._model(), rule.estep, data), dtype)
            scores.append(np.asarray(_score(problem, estep, at, rule.rows, data), float))
    apart = np.stack(scores) - np.mean(scores, axis=0)
    error = float(np.sqrt(np.einsum("si,ij,sj->", apart, np.linalg.inv(matrix), apart) / (SETS - 1)))
    level: Level = "pass" if error < AT_MAXIMUM else "careful"
    sentence = f"Determinants are estimated by {PROBES} probes; others would move the estimate by {error:.2g} standard errors."
    return Check("probes", error, float("nan"), AT_MAXIMUM, level, sentence)


@compiled
def _score(problem, estep, params, rows, data):
    u, back = coordinates(problem, params)

    def height(u):
        return jnp.sum(estep.log_marginals(jnp.zeros((1, 1)), problem.model, back(u), rows, data, 1))

    return jax.grad(height)(u)
