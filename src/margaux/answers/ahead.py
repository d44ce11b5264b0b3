"""The programs that the answers of a fit begin with, compiled on a second thread while the fit goes on."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..algorithms.updates import Problem
from ..esteps import MCMC, ImportanceSampling, ModeMixture, Quadrature
from ..kernels.base import flat_size
from ..numerics import programs
from ..numerics.compiling import shapes_of
from ..numerics.keys import key_of
from ..problem.model import AbstractDiscrete
from .certify import COMPARED, fresh_draws
from .polish import FEW_UNITS, LARGEST
from .posterior import block_ahead, nothing
from .proposing import proposals_ahead
from .rules import NODES, SAMPLE, quadratures
from .scores import evaluated_width, frozen, louis


def ahead(problem: Problem, estep: Any, params: PyTree, data: PyTree, compared: bool = True) -> None:
    """Of a fit that is likely to be polished: its proposals, and, where its posteriors are likely to be integrated by
    quadrature, what evaluates it. What is wrong with a model is said where it is met.

    Args:
        compared: whether two likelihoods are, by independent means.
    """
    known = isinstance(estep, MCMC | ImportanceSampling | Quadrature) and not isinstance(problem.model, AbstractDiscrete)
    few = sum(np.size(leaf) for leaf in jax.tree.leaves(params)) <= LARGEST
    if programs.threads() > 1 and known and few and jax.tree.leaves(data)[0].shape[0] <= FEW_UNITS:
        with contextlib.suppress(Exception):
            first = jax.tree.map(lambda leaf: np.asarray(leaf[0]), data)
            size, _ = flat_size(shapes_of(problem.model.init_latents, key_of(0), params, first))
            proposals_ahead(problem.model, params, data, size)
            _quadratures_ahead(problem, params, data, size, compared)
            programs.import_ahead("margaux.answers.information")  # with pandas, which takes a tenth of a first fit


def _quadratures_ahead(problem: Problem, params: PyTree, data: PyTree, size: int, compared: bool) -> None:
    """In the order in which they are asked for (see `margaux.answers.rules`)."""
    model, n = problem.model, jax.tree.leaves(data)[0].shape[0]
    if size not in NODES or n > SAMPLE:
        return
    nodes, _, reach = quadratures(model, size)[0]
    grid = Quadrature(nodes, held=True, reach=reach)
    mixture = ModeMixture().blank(size)
    row = {name: mixture[name][0] for name in ("mean", "cholesky")}

    def begin(estep: Quadrature | ImportanceSampling, row: PyTree, f: Any, width: int) -> None:
        block_ahead(model, estep, params, data, row, f, width)

    k = sum(leaf.size for leaf in jax.tree.leaves(shapes_of(problem.space.to_unconstrained, params)))
    width = nodes**size * (size + 2)
    begin(grid, row, nothing, width)
    begin(grid, row, louis(frozen(problem.space), True), evaluated_width(width, k))
    if compared and n <= COMPARED:
        draws: Any = fresh_draws(data, n, n)
        begin(draws, mixture, nothing, draws.n_draws * (size + 3))
