"""The program that the polish of a fit begins with, compiled on a second thread while the fit goes on."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..esteps import MCMC, ImportanceSampling, Quadrature
from ..numerics import programs
from ..problem.model import AbstractDiscrete, AbstractModel
from .polish import FEW_UNITS, LARGEST
from .posterior import proposals_ahead


def ahead(model: AbstractModel, estep: Any, params: PyTree, data: PyTree) -> None:
    """Of a fit that is likely to be polished: its proposals. What is wrong with a model is said where it is met."""
    known = isinstance(estep, MCMC | ImportanceSampling | Quadrature) and not isinstance(model, AbstractDiscrete)
    few = sum(np.size(leaf) for leaf in jax.tree.leaves(params)) <= LARGEST
    if programs.threads() > 1 and known and few and jax.tree.leaves(data)[0].shape[0] <= FEW_UNITS:
        with contextlib.suppress(Exception):
            proposals_ahead(model, params, data)
