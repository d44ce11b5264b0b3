"""Observations of a network, checked: arrays of numbers, classes, and what standardises them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ...tables.kinds import Column, Tabular


class Scaling(NamedTuple):
    """What observations are shifted and divided by; `pixels` are left as they are, for the network to divide by 255."""

    pixels: bool
    shift: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, standardize: bool) -> Scaling:
        """By the columns of a table if it is to be standardised; constant columns are only shifted."""
        if not standardize or x.dtype == np.uint8 or x.ndim != 2:
            return cls(x.dtype == np.uint8, np.zeros(1), np.ones(1))
        varies = x.max(axis=0) > x.min(axis=0)
        # In double precision: NumPy adds the rows of a column one by one.
        return cls(False, x.mean(axis=0, dtype=float), np.where(varies, x.std(axis=0, dtype=float), 1.0))

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """Observations as the network sees them.

        Raises:
            ValueError: numbers where the fit had pixels, or the other way round.
        """
        if self.pixels != (x.dtype == np.uint8):
            have, want = ("numbers", "uint8 pixels") if self.pixels else ("uint8 pixels", "numbers")
            raise ValueError(f"X holds {have}, and the fit had {want}; convert it")
        return x if self.pixels else (x - self.shift) / self.scale


def columns(X: Any) -> list[str] | None:
    """Names of the columns of a frame."""
    return [str(name) for name in X.columns] if hasattr(X, "columns") else None


def inputs(X: Tabular, shape: tuple[int, ...] | None = None, names: list[str] | None = None) -> np.ndarray:
    """Observations (n, ...) as floats, or images as uint8 pixels.

    Args:
        shape: of one observation of the fit, which X must have. names: of its columns, which X must have if it has any.

    Raises:
        ValueError, TypeError: not numbers, not finite, no observations, or another shape.
    """
    if hasattr(X, "toarray"):
        raise TypeError("X is sparse; pass X.toarray()")
    if names is not None and columns(X) not in (None, names):
        raise ValueError(f"X has columns {columns(X)}, and the fit had {names}, in this order")
    x = np.asarray(X)
    if x.dtype == object or x.dtype.kind not in "fiub":
        try:
            x = x.astype(float)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"X must hold numbers, and has entries of type {x.dtype}: {error}; encode categories first"
            ) from error
    if x.ndim == 0 or len(x) == 0:
        raise ValueError(f"X has no observations (shape {x.shape}); pass an array (n, ...)")
    if x.ndim == 1:
        raise ValueError(f"X has shape {x.shape}; pass (n, p), or X.reshape(-1, 1) for one column")
    if x.dtype != np.uint8 or x.ndim == 2:
        x = x.astype(float) if x.dtype != np.float32 else x
        bad = ~np.isfinite(x)
        if bad.any():
            first = tuple(int(i) for i in np.argwhere(bad)[0])
            raise ValueError(
                f"X has {int(bad.sum())} entries that are not finite, the first at {first}; drop these observations, or see "
                "mx.MissingGLM for covariates with holes"
            )
    if shape is not None and x.shape[1:] != shape:
        raise ValueError(
            f"an observation of X has shape {x.shape[1:]}, and {shape} in the fit; pass the same columns or image size"
        )
    return x


def classes(y: Column, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted labels and class numbers (n,).

    Raises:
        ValueError: another length, missing labels, numbers that are no labels, or one class.
    """
    y = _column(y, n)
    if y.dtype.kind == "f" and not np.all(y == np.round(y)):
        raise ValueError(f"y holds numbers such as {y[y != np.round(y)][0]}, which are no classes; use mx.BayesianRegressor")
    labels, numbers = np.unique(y, return_inverse=True)
    if len(labels) < 2:
        raise ValueError(f"y has one class, {labels.tolist()[0]!r}; a classifier needs two at least")
    return labels, numbers


def numbers_of(y: Column, labels: np.ndarray, n: int) -> np.ndarray:
    """Class numbers of labels that the fit has seen.

    Raises:
        ValueError: an unknown label.
    """
    y = _column(y, n)
    at = np.minimum(np.searchsorted(labels, y), len(labels) - 1)
    unknown = labels[at] != y
    if unknown.any():
        raise ValueError(
            f"y[{int(np.flatnonzero(unknown)[0])}] = {y[unknown].tolist()[0]!r} is none of the classes of the fit, "
            f"{labels.tolist()}"
        )
    return at


def outcomes(y: Column, n: int, likelihood: str, fitting: bool = True) -> np.ndarray:
    """Numbers (n,); counts where the likelihood is Poisson.

    Args:
        fitting: whether they are to be learned from, and so must vary.

    Raises:
        ValueError, TypeError: another length, not finite, a constant, or no counts.
    """
    y = _column(y, n)
    if y.dtype == object:
        try:
            y = y.astype(float)
        except (TypeError, ValueError):
            pass
    if y.dtype.kind not in "fiub":
        raise TypeError(f"y must hold numbers, and has type {y.dtype}; use mx.BayesianClassifier for classes")
    y = y.astype(float)
    if not np.all(np.isfinite(y)):
        i = int(np.flatnonzero(~np.isfinite(y))[0])
        raise ValueError(f"y[{i}] = {y[i]} is not finite; drop this observation")
    if likelihood == "poisson":
        bad = (y < 0) | (y != np.round(y))
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise ValueError(f'y[{i}] = {y[i]:g} is no count; use likelihood="gaussian", or mend it')
    if fitting and np.all(y == y[0]):
        raise ValueError(f"y is constant ({y[0]:g}): there is nothing to learn")
    return y


def _column(y: Column, n: int) -> np.ndarray:
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (n,):
        raise ValueError(f"X has {n} observations and y shape {y.shape}; y must have one entry an observation")
    missing = (
        y != y if y.dtype.kind == "f" else np.array([v is None or v != v for v in y]) if y.dtype == object else np.zeros(n, bool)
    )
    if missing.any():
        raise ValueError(f"y[{int(np.flatnonzero(missing)[0])}] is missing; drop the observations without an outcome")
    return y
