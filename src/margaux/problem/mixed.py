"""Latents from a mixture: a capability of models."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import equinox as eqx

if TYPE_CHECKING:
    from jaxtyping import Array

    from .model import Params, Unit


class AbstractMixed(eqx.Module):
    r"""Capability: a population of latents that is a mixture, $p(z_i\mid\theta)=\sum_k p_k\,p_k(z_i\mid\theta)$, so that the
    posterior of a unit may have a mode for each component. Inherit it beside a model class."""

    @property
    @abc.abstractmethod
    def components(self) -> int:
        """How many there are; one where the population is no mixture."""

    @abc.abstractmethod
    def component_means(self, params: Params, y: Unit) -> Array:
        """Where each component has its latents, (K, d), flattened: modes of posteriors are searched for from there, too."""


def mixed(model: Any) -> bool:
    """Whether the latents of a model are from a mixture: see `AbstractMixed`."""
    return isinstance(model, AbstractMixed) and model.components > 1
