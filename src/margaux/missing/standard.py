"""Standardised columns, in which fits are made, and the way back to the units of the data."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..compiling import compiled
from .exact import Struct
from .observed import Params


@dataclasses.dataclass(frozen=True)
class Standard:
    """x = centre + width * standardised x, column by column; the intercept is the first of the k fixed columns."""

    centre: np.ndarray
    width: np.ndarray

    @staticmethod
    def of(x: np.ndarray) -> Standard:
        """By mean and standard deviation of what is observed."""
        return Standard(np.nanmean(x, axis=0), np.nanstd(x, axis=0))

    def apply(self, x: np.ndarray) -> np.ndarray:
        return (x - self.centre) / self.width

    def restore(self, x: np.ndarray) -> np.ndarray:
        return self.centre + self.width * x

    def natural(self, params: Params) -> dict[str, Array]:
        """Parameters in the units of the data."""
        k = params["mean"].shape[0]
        slopes = params["beta"][..., k:] / self.width
        fixed = params["beta"][..., :k]
        intercept = jnp.arange(k) == 0
        mean = params["mean"] * self.width + intercept[:, None] * self.centre
        covariance = params["covariance"] * self.width[:, None] * self.width
        beta = jnp.concatenate([fixed - intercept * (slopes @ self.centre)[..., None], slopes], axis=-1)
        out = {"beta": beta, "mean": mean, "covariance": covariance}
        return out | ({"scale": params["scale"]} if "scale" in params else {})

    def internal(self, params: Params) -> Params:
        """The other way round."""
        k = params["mean"].shape[0]
        slopes = params["beta"][..., k:] * self.width
        intercept = np.arange(k) == 0
        shift = params["beta"][..., k:] @ self.centre
        beta = np.concatenate([params["beta"][..., :k] + intercept * shift[..., None], slopes], axis=-1)
        mean = (params["mean"] - intercept[:, None] * self.centre) / self.width
        covariance = params["covariance"] / self.width[:, None] / self.width
        return params | {"beta": beta, "mean": mean, "covariance": covariance}

    def log_jacobian(self, x: np.ndarray, weights: np.ndarray) -> float:
        """What a log density of standardised entries is too large by."""
        return float(weights @ (~np.isnan(x) @ np.log(self.width)))

    def covariance(self, struct: Struct, flat: np.ndarray, information: np.ndarray, free: np.ndarray) -> dict[str, np.ndarray]:
        """Covariance matrices of the estimates of beta, mean, ... in natural units, by the delta method."""
        jacobians = _jacobians(self.centre, self.width, struct, jnp.asarray(flat))
        inverse = np.linalg.inv(information)
        out = {}
        for name, jacobian in jacobians.items():
            j = np.asarray(jacobian).reshape(-1, len(flat))[:, free]
            out[name] = j @ inverse @ j.T
        return out


@compiled
def _jacobians(centre: Array, width: Array, struct: Struct, flat: Array) -> dict[str, Array]:
    return jax.jacfwd(lambda u: Standard(centre, width).natural(struct.natural(u)))(flat)  # type: ignore[arg-type]
