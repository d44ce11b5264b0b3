"""The free coordinates of a fit, and its parameters at them."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from .observed import Params


class Struct(NamedTuple):
    """How free coordinates are laid out; hashable, so that it is no reason to compile again.

    With k fixed columns, s of discrete covariates and p Gaussian ones: "beta" (k + s + p,), "mean" (k + w, p) with w dummies of
    the discrete covariates, "cells" (k, m) log odds of m features of their cells. `lead` is (j,) with several predictors.
    """

    k: int
    p: int
    scale: bool
    lead: tuple[int, ...] = ()
    s: int = 0
    w: int = 0
    m: int = 0

    @property
    def sizes(self) -> list[int]:
        """Of beta, mean, the root of the precision, the cells and the scale."""
        n_beta = math.prod(self.lead) * (self.k + self.s + self.p)
        return [n_beta, (self.k + self.w) * self.p, self.p * (self.p + 1) // 2, self.k * self.m, int(self.scale)]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def pack(self, params: Params) -> np.ndarray:
        """Free coordinates: beta, mean, the Cholesky factor of the precision with log diagonal, cells, log scale."""
        factor = np.linalg.cholesky(np.linalg.inv(params["covariance"]))
        factor[np.diag_indices(self.p)] = np.log(np.diagonal(factor))
        parts = [np.ravel(params["beta"]), np.ravel(params["mean"]), factor[np.tril_indices(self.p)]]
        return np.concatenate(
            [*parts, *([np.ravel(params["cells"])] if self.m else []), *([[np.log(params["scale"])]] if self.scale else [])]
        )

    def natural(self, flat: Array) -> dict[str, Array]:
        """Parameters at free coordinates, differentiable."""
        p, cuts = self.p, np.cumsum(self.sizes)
        beta, mean, _, cells, log_scale = (flat[a:b] for a, b in zip([0, *cuts], cuts, strict=False))
        factor = self.root(flat)
        # Two triangular inverses would be as good; that of the product is singular long before the factor is.
        inverse = jax.scipy.linalg.solve_triangular(factor, jnp.eye(p, dtype=flat.dtype), lower=True)
        out = {"beta": beta.reshape(*self.lead, -1), "mean": mean.reshape(self.k + self.w, p), "covariance": inverse.T @ inverse}
        out |= {"cells": cells.reshape(self.k, self.m)} if self.m else {}
        return out | ({"scale": jnp.exp(log_scale[0])} if self.scale else {})

    def root(self, flat: Array) -> Float[Array, "p p"]:
        """Cholesky factor of the precision at free coordinates."""
        p, (low, high) = self.p, np.cumsum(self.sizes)[1:3]
        root = jnp.zeros((p, p), flat.dtype).at[np.tril_indices(p)].set(flat[low:high])
        return jnp.tril(root, -1) + jnp.diag(jnp.exp(jnp.diagonal(root)))

    def params(self, flat: np.ndarray) -> Params:
        """The same as NumPy arrays."""
        beta, mean, root, cells, log_scale = np.split(np.asarray(flat), np.cumsum(self.sizes)[:-1])
        factor = np.zeros((self.p, self.p))
        factor[np.tril_indices(self.p)] = root
        factor[np.diag_indices(self.p)] = np.exp(np.diagonal(factor))
        inverse = scipy.linalg.solve_triangular(factor, np.eye(self.p), lower=True)
        out = {"beta": beta.reshape(*self.lead, -1), "mean": mean.reshape(self.k + self.w, self.p)}
        out |= {"covariance": inverse.T @ inverse} | ({"cells": cells.reshape(self.k, self.m)} if self.m else {})
        return out | ({"scale": np.exp(log_scale[0])} if self.scale else {})
