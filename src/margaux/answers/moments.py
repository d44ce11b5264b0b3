"""Moments of each unit's latents, from all modes of their posterior that are found."""

from __future__ import annotations

import dataclasses
import warnings
from itertools import count
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..esteps import AbstractEStep, ImportanceSampling, Quadrature
from ..numerics.sampling import HEAVY
from .likelihood import beside_others
from .posterior import FEW, each_unit, latent_size, reference_estep
from .rules import best_rule

if TYPE_CHECKING:
    from .fit import Fit


#: of a unit's log-likelihood by quadratures of which moments are taken, which are then off by a hundredth or so of the spread
APART = 0.01
#: effective draws of heavy-tailed weights by which a mean is off by a fourteenth of the spread, and possibly by more
EFFECTIVE = 200


def _moments(model, params, z, w, batch):
    def weighted(leaf):
        return jnp.einsum("m,m...->...", w[:, 0], leaf[:, 0])

    return jax.tree.map(lambda leaf: (weighted(leaf), weighted(leaf**2)), z)


def latents(fit: Fit, n_draws: int = 2000, estep: AbstractEStep | None = None) -> dict[str, PyTree]:
    """Posterior mean and SD of each unit's latents: see `Fit.latents`."""
    estep, rows = of_all_modes(fit, reference_estep(fit, n_draws)) if estep is None else (estep, None)
    size = latent_size(fit)
    points = estep.n_nodes**size if isinstance(estep, Quadrature) else 0
    moments, figures = each_unit(fit, _moments, estep, width=max(n_draws, points) * (size + 1), rows=rows)
    if "pareto" in figures and (uneven := int(np.sum((figures["pareto"] > HEAVY) & (figures["ess"] < EFFECTIVE)))):
        warnings.warn(f"the weights of draws are so uneven in {uneven} units that their moments may be off", stacklevel=3)

    def is_pair(x):
        return isinstance(x, tuple) and len(x) == 2 and all(isinstance(a, np.ndarray) for a in x)

    mean = jax.tree.map(lambda pair: pair[0], moments, is_leaf=is_pair)
    sd = jax.tree.map(lambda pair: np.sqrt(np.maximum(pair[1] - pair[0] ** 2, 0)), moments, is_leaf=is_pair)
    return {"mean": mean, "sd": sd}


def of_all_modes(fit: Fit, estep: AbstractEStep, params: PyTree = None, drawn: bool = False) -> tuple[AbstractEStep, PyTree]:
    """In the place of importance sampling from one mode a unit, with rows: a quadrature that agrees with others, or draws from
    all modes that are found if there is none or they are to be `drawn`. Another E-step as it is, with none. Warns where there
    may be more modes."""
    if not isinstance(estep, ImportanceSampling) or latent_size(fit) > FEW or not isinstance(estep.n_draws, int):
        return estep, None
    rule = best_rule(fit, params, n_draws=estep.n_draws if drawn else None)
    for level in count(1):
        if not isinstance(rule.estep, Quadrature):
            break
        if np.abs(beside_others(fit, params, rule)[1]).max() <= APART:
            return rule.finely(), rule.rows
        rule = best_rule(fit, params, level=level)
    lost = 0 if rule.unseen is None else int(np.sum(rule.unseen > 0))
    if lost:
        warnings.warn(f"the posteriors of {lost} units have more modes than were found, or may have", stacklevel=3)
    if not isinstance(rule.estep, ImportanceSampling):
        return rule.estep, rule.rows
    return dataclasses.replace(rule.estep, n_draws=estep.n_draws, quasi=estep.quasi), rule.rows
