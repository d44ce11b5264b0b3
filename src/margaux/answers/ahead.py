"""Programs that the answers of a fit will need, compiled on a second thread while the fit goes on."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..esteps import MCMC, ImportanceSampling, Quadrature
from ..kernels.base import flat_size
from ..numerics.compiling import shapes_of
from ..numerics.keys import key_of
from ..numerics.precision import default_dtype, precision
from ..problem.model import AbstractDiscrete, AbstractModel
from .certify import COMPARED, other_means
from .polish import FEW_UNITS, LARGEST
from .posterior import block_ahead, nothing, proposals_ahead
from .rules import NODES


def ahead(model: AbstractModel, estep: Any, params: PyTree, data: PyTree) -> None:
    """Of a fit that is likely to be polished: the proposals that the polish begins with, and the second likelihood of the
    certificate, where the first is by quadrature. What is wrong with a model is said where it is met."""
    n = len(jax.tree.leaves(data)[0])
    known = isinstance(estep, MCMC | ImportanceSampling | Quadrature) and not isinstance(model, AbstractDiscrete)
    few = sum(np.size(leaf) for leaf in jax.tree.leaves(params)) <= LARGEST
    if not known or not few or n > FEW_UNITS:
        return
    with contextlib.suppress(Exception):
        proposals_ahead(model, params, data)
        with precision(default_dtype(None)):
            unit = jax.tree.map(lambda leaf: np.asarray(leaf[0]), data)
            size = flat_size(shapes_of(model.init_latents, key_of(0), params, unit))[0]
        if size in NODES:
            second = other_means(min(n, COMPARED))
            draws: Any = second.n_draws
            block_ahead(model, nothing, second, params, data, draws * (size + 3))
