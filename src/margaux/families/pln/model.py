"""PLN-PCA as a model of the engine: any algorithm and E-step can work on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from ...problem.model import AbstractModel, AbstractPointwise, AbstractPredictive
from .fitting import Design
from .variational import HIGHEST, Posterior

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class PLN(AbstractModel, AbstractPointwise, AbstractPredictive):
    r"""$y_{ij}\mid w_i\sim\mathrm{Poisson}(e^{o_{ij} + b_j^\top x_i + c_j^\top w_i})$, $w_i\sim N(0, I_q)$ (Batardiere, Chiquet,
    Kwon and Stoehr, eq. 2).

    Parameters are "B" (k, p) and "C" (p, q). A unit's data are "counts" (p,), "x" (k,) and "offset" (1,) or (p,); for
    `ConditionalSampling` also "mean" (q,) and "spread", the lower triangle of the covariance matrix of the Gaussian that its
    latents are drawn from at first.

    >>> import jax.numpy as jnp
    >>> unit = {"counts": jnp.array([0.0, 1.0]), "x": jnp.ones(1), "offset": jnp.zeros(1)}
    >>> params = {"B": jnp.zeros((1, 2)), "C": jnp.ones((2, 1))}
    >>> round(float(PLN().log_joint(params, jnp.zeros(1), unit)), 4)        # -2 - log(2 pi) / 2
    -2.9189
    """

    def log_joint(self, params, z, y):
        eta = y["offset"] + y["x"] @ params["B"] + params["C"] @ z
        counts = y["counts"].astype(eta.dtype)
        fixed = -jnp.sum(jax.scipy.special.gammaln(counts + 1)) - z.size * np.log(2 * np.pi) / 2
        return jnp.sum(counts * eta - jnp.exp(jnp.minimum(eta, HIGHEST))) - jnp.sum(z**2) / 2 + fixed

    def pointwise(self, params, z, y):
        eta = y["offset"] + y["x"] @ params["B"] + params["C"] @ z
        counts = y["counts"].astype(eta.dtype)
        return counts * eta - jnp.exp(jnp.minimum(eta, HIGHEST)) - jax.scipy.special.gammaln(counts + 1)

    def simulate(self, key, params, z, y):
        eta = y["offset"] + y["x"] @ params["B"] + params["C"] @ z
        return {"counts": jax.random.poisson(key, jnp.exp(jnp.minimum(eta, HIGHEST)))}

    def init_latents(self, key, params, y):
        return jnp.zeros(params["C"].shape[1], params["C"].dtype)


def units(design: Design, posterior: Posterior, dtype: np.dtype | type) -> dict[str, Any]:
    """The data of `PLN`; a sparse table stays one, of which the rows of a batch alone are made dense."""
    values = design.counts.values
    rows = SparseRows(values, dtype) if scipy.sparse.issparse(values) else np.asarray(values, dtype)
    mean, spread = (np.asarray(leaf, dtype) for leaf in posterior)
    x, offset = np.asarray(design.x, dtype), np.asarray(design.offset, dtype)
    return {"counts": rows, "x": x, "offset": offset, "mean": mean, "spread": spread}


class SparseRows:
    """A CSR matrix (n, p) that gives rows as dense arrays, as `margaux.fit` reads data on the host."""

    def __init__(self, values: Any, dtype: np.dtype | type) -> None:
        self._values, self.shape, self.dtype, self.ndim = values, values.shape, np.dtype(dtype), 2
        self.nbytes = self.shape[0] * self.shape[1] * self.dtype.itemsize

    def __getitem__(self, ids: slice | ArrayLike) -> np.ndarray:
        flat = ids if isinstance(ids, slice) else np.ravel(ids)
        dense = self._values[flat].toarray().astype(self.dtype, copy=False)
        return dense if isinstance(ids, slice) else dense.reshape(*np.shape(ids), self.shape[1])

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)
