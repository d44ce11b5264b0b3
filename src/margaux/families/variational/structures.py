r"""Curvatures of many weights in structures that can be inverted, and the Gaussians that these are the precisions of.

The precision of the weights is $H = \beta C + \Lambda$, C the curvature of the data and $\Lambda = D^{-2}$ diagonal, that of the
prior. All is in units of the prior's standard deviations D: $\tilde H = \beta\,DCD + I$. A curvature is kept in the units of a
prior $D_0$ whose precisions are multiplied by `factors`. Of $C = A\otimes B$ the eigenvectors are those of A and B, whatever the
factor is (Ritter, Botev and Barber 2018, "A scalable Laplace approximation for neural networks", section 3).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
import scipy
from jaxtyping import Float, Int


class AbstractGaussian(eqx.Module):
    r"""A Gaussian of the weights at `index`, with a root W of their covariance, $\Sigma = WW^\top$; `scale` is the prior's."""

    index: eqx.AbstractVar[np.ndarray]
    scale: eqx.AbstractVar[np.ndarray]

    @abc.abstractmethod
    def white(self, rows: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m d"]:
        """Rows, of all weights, times the root."""

    @abc.abstractmethod
    def coloured(self, z: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m ..."]:
        """The root times each row, in the shape of the index."""

    @abc.abstractmethod
    def shares(self) -> Float[np.ndarray, " ..."]:
        """Variances over those of the prior."""

    @property
    @abc.abstractmethod
    def log_det(self) -> float:
        r"""$\log\det\tilde H$."""


class Dense(AbstractGaussian):
    r"""With all correlations: `root` is lower triangular, $\tilde H^{-1} = $ root' root."""

    index: Int[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]
    root: Float[np.ndarray, "d d"]

    def white(self, rows):
        return (rows[:, self.index] * self.scale) @ self.root.T

    def coloured(self, z):
        return z @ self.root * self.scale

    def shares(self):
        return np.sum(self.root**2, axis=0)

    @property
    def log_det(self):
        return -2 * float(np.sum(np.log(np.diag(self.root))))


class Kronecker(AbstractGaussian):
    r"""Of the weights (o, i) of a layer: $\tilde H = (U\otimes V)\,\mathrm{diag}(e)\,(U\otimes V)^\top$."""

    index: Int[np.ndarray, "o i"]
    scale: Float[np.ndarray, "o i"]
    outer: Float[np.ndarray, "o o"]
    inner: Float[np.ndarray, "i i"]
    values: Float[np.ndarray, "o i"]

    def white(self, rows):
        turned = self.outer.T @ (rows[:, self.index] * self.scale) @ self.inner
        return (turned / np.sqrt(self.values)).reshape(len(rows), -1)

    def coloured(self, z):
        return self.scale * (self.outer @ (z.reshape(-1, *self.index.shape) / np.sqrt(self.values)) @ self.inner.T)

    def shares(self):
        return self.outer**2 @ (1 / self.values) @ self.inner.T**2

    @property
    def log_det(self):
        return float(np.sum(np.log(self.values)))


class Diagonal(AbstractGaussian):
    """Without correlations."""

    index: Int[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]
    values: Float[np.ndarray, " d"]

    def white(self, rows):
        return rows[:, self.index] * (self.scale / np.sqrt(self.values))

    def coloured(self, z):
        return z * (self.scale / np.sqrt(self.values))

    def shares(self):
        return 1 / self.values

    @property
    def log_det(self):
        return float(np.sum(np.log(self.values)))


#: by the names that files have
KINDS: dict[str, type[AbstractGaussian]] = {"dense": Dense, "kronecker": Kronecker, "diagonal": Diagonal}


class Joint(NamedTuple):
    """Independent parts, which together have all the weights."""

    parts: tuple[AbstractGaussian, ...]

    @property
    def log_det(self) -> float:
        r"""$\log\det\tilde H$."""
        return sum(part.log_det for part in self.parts)

    def shares(self) -> Float[np.ndarray, " p"]:
        """Variances over those of the prior."""
        return self._joined([part.shares() for part in self.parts])

    def variances(self) -> Float[np.ndarray, " p"]:
        return self._joined([part.shares() * part.scale**2 for part in self.parts])

    def white(self, rows: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m p"]:
        r"""Rows J times a root of the covariance: white(J) white(J)' is $J\Sigma J^\top$."""
        return np.concatenate([part.white(rows) for part in self.parts], axis=1)

    def coloured(self, z: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m p"]:
        """Draws with mean zero, of rows of standard normals."""
        out, at = np.empty_like(z), 0
        for part in self.parts:
            out[:, part.index] = part.coloured(z[:, at : at + part.index.size])
            at += part.index.size
        return out

    def times(self, vector: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """The covariance times a vector."""
        return self.coloured(self.white(vector[None]))[0]

    def _joined(self, values: Sequence[np.ndarray]) -> np.ndarray:
        out = np.empty(sum(part.index.size for part in self.parts))
        for part, own in zip(self.parts, values, strict=True):
            out[part.index] = own
        return out


class DenseCurvature(NamedTuple):
    """In units of the prior's deviations `scale`, as all curvatures."""

    index: Int[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]
    matrix: Float[np.ndarray, "d d"]

    def at(self, factors: Float[np.ndarray, " p"], beta: float) -> Dense:
        own = factors[self.index] ** -0.5
        precision = beta * self.matrix * np.outer(own, own)
        precision[np.diag_indices_from(precision)] += 1
        factor = scipy.linalg.cholesky(precision, lower=True, overwrite_a=True, check_finite=False)
        root = scipy.linalg.lapack.dtrtri(factor, lower=1)[0]
        return Dense(self.index, self.scale * own, np.tril(root))


class KroneckerCurvature(NamedTuple):
    """By eigenvectors and the products of eigenvalues."""

    index: Int[np.ndarray, "o i"]
    scale: Float[np.ndarray, "o i"]
    outer: Float[np.ndarray, "o o"]
    inner: Float[np.ndarray, "i i"]
    values: Float[np.ndarray, "o i"]

    @classmethod
    def of(cls, index: np.ndarray, scale: np.ndarray, outer: np.ndarray, inner: np.ndarray) -> KroneckerCurvature:
        """Of the two factors; the scale of a weight is that of its input."""
        by_outer, u = np.linalg.eigh(outer)
        by_inner, v = np.linalg.eigh(inner * np.outer(scale[0], scale[0]))
        return cls(index, scale, u, v, np.outer(np.maximum(by_outer, 0), np.maximum(by_inner, 0)))

    def at(self, factors: Float[np.ndarray, " p"], beta: float) -> Kronecker:
        own = factors[self.index[0, 0]]  # a layer has one
        return Kronecker(self.index, self.scale * own**-0.5, self.outer, self.inner, beta * self.values / own + 1)


class DiagonalCurvature(NamedTuple):
    """Of each weight."""

    index: Int[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]
    values: Float[np.ndarray, " d"]

    def at(self, factors: Float[np.ndarray, " p"], beta: float) -> Diagonal:
        own = factors[self.index]
        return Diagonal(self.index, self.scale * own**-0.5, beta * self.values / own + 1)


def at(curvatures: Sequence[Any], factors: Float[np.ndarray, " p"], beta: float = 1.0) -> Joint:
    """The Gaussian whose precision is beta times the curvature, and that of the prior times the factors."""
    return Joint(tuple(one.at(factors, beta) for one in curvatures))
