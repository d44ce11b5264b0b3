"""The log density that a chain of one unit's latents moves by."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Scalar

from .model import Latents, Params, Unit, leading


class Target(eqx.Module):
    """The log density of one unit's latents at given parameters, as kernels see it."""

    model: Any
    params: Params
    y: Unit

    def __call__(self, z: Latents) -> Scalar:
        return self.model.log_joint(self.params, z, self.y)

    def smooth(self, z: Latents) -> Scalar:
        return self.model.log_smooth(self.params, z, self.y)

    def prox(self, z: Latents, step: Scalar) -> Latents:
        return self.model.prox(self.params, z, step, self.y)

    def prior(self, z: Latents) -> Scalar:
        return self.model.log_prior(self.params, z)

    def unit(self, shared: Latents, z: Latents, y: Unit) -> Scalar:
        return self.model.log_unit(self.params, shared, z, y)

    def likelihood(self, z: Latents, ids: Array | None) -> Scalar:
        """Of the given rows, or of all of them."""
        rows = self.y if ids is None else jax.tree.map(lambda leaf: leaf[ids], self.y)
        return self.model.log_likelihood(self.params, z, rows)

    @property
    def n_rows(self) -> int:
        return leading(self.y)
