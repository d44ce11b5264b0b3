"""Standardised columns, in which fits are made, and the way back to the units of the data."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...numerics.compiling import compiled
from .coordinates import Struct
from .observed import Params


@dataclasses.dataclass(frozen=True)
class Standard:
    """x = centre + width * standardised x, column by column; the intercept is the first of the k fixed columns.

    `scored`: (2, s), centres and widths of the columns of discrete covariates, which stand before x in beta.
    """

    centre: np.ndarray
    width: np.ndarray
    scored: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((2, 0)))

    @staticmethod
    def of(x: np.ndarray, scores: np.ndarray | None = None) -> Standard:
        """By mean and standard deviation of what is observed; of scores, columns of discrete covariates, too."""
        scored = np.zeros((2, 0)) if scores is None else np.stack([np.nanmean(scores, axis=0), np.nanstd(scores, axis=0)])
        return Standard(np.nanmean(x, axis=0), np.nanstd(x, axis=0), scored)

    def apply(self, x: np.ndarray) -> np.ndarray:
        return (x - self.centre) / self.width

    def restore(self, x: np.ndarray) -> np.ndarray:
        return self.centre + self.width * x

    def _sloped(self, beta: np.ndarray) -> tuple[int, Any, Any]:
        """The number of fixed columns, and centres and widths of those that follow."""
        joined = np.concatenate if isinstance(self.centre, np.ndarray) else jnp.concatenate
        centre, width = (joined([a, b]) for a, b in zip(self.scored, (self.centre, self.width), strict=True))
        return beta.shape[-1] - len(centre), centre, width

    def natural(self, params: Params) -> dict[str, Array]:
        """Parameters in the units of the data."""
        k, centre, width = self._sloped(params["beta"])
        slopes = params["beta"][..., k:] / width
        fixed = params["beta"][..., :k]
        mean = params["mean"] * self.width + _first(len(params["mean"]))[:, None] * self.centre
        covariance = params["covariance"] * self.width[:, None] * self.width
        joined = np.concatenate if isinstance(slopes, np.ndarray) else jnp.concatenate
        beta = joined([fixed - _first(k) * (slopes @ centre)[..., None], slopes], axis=-1)
        return dict(params) | {"beta": beta, "mean": mean, "covariance": covariance}

    def internal(self, params: Params) -> Params:
        """The other way round."""
        k, centre, width = (np.asarray(part) for part in self._sloped(params["beta"]))
        slopes = params["beta"][..., k:] * width
        shift = params["beta"][..., k:] @ centre
        beta = np.concatenate([params["beta"][..., :k] + _first(int(k)) * shift[..., None], slopes], axis=-1)
        mean = (params["mean"] - _first(len(params["mean"]))[:, None] * self.centre) / self.width
        covariance = params["covariance"] / self.width[:, None] / self.width
        return params | {"beta": beta, "mean": mean, "covariance": covariance}

    def log_jacobian(self, x: np.ndarray, weights: np.ndarray) -> float:
        """What a log density of standardised entries is too large by."""
        return float(weights @ (~np.isnan(x) @ np.log(self.width)))

    def jacobians(self, struct: Struct, flat: np.ndarray) -> dict[str, np.ndarray]:
        """Derivatives of beta, mean, ... in natural units in the free coordinates, (entries, size)."""
        found = _jacobians(self.centre, self.width, self.scored, struct, np.asarray(flat))
        return {name: np.asarray(jacobian).reshape(-1, len(flat)) for name, jacobian in found.items()}


def _first(count: int) -> np.ndarray:
    return np.arange(count) == 0


@compiled
def _jacobians(centre: Array, width: Array, scored: Array, struct: Struct, flat: Array) -> dict[str, Array]:
    return jax.jacfwd(lambda u: Standard(centre, width, scored).natural(struct.natural(u)))(flat)  # type: ignore[arg-type]
