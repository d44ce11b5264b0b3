"""The epochs of a variational fit: its ELBO as it goes, that of observations held out, and when to stop."""

from __future__ import annotations

import math

import jax
import numpy as np
import pandas as pd
from jaxtyping import PyTree

from ...engine.callbacks import AbstractCallback, Progress
from ...numerics.precision import precision
from .bound import bound
from .model import Variational

#: iterations between two looks at the observations held out, at least
LEAST = 20


#: share of its size that the ELBO of an epoch may fall by
FALL = 0.25

#: what a fit says of its course
FELL = "The ELBO of the last epoch is below that of the first: the step is too large for this network. Pass a smaller step=."
ROSE = "The ELBO still rose by more than 1% in the last tenth of the fit: raise epochs= (or the step) for a better one."


def course(log_joint: np.ndarray, n_blocks: int) -> str | None:
    """What is to be said of ELBOs by iteration: they fell, or they still rise; both beyond three standard errors."""
    n = len(log_joint)
    if n < 2 * max(n_blocks, 10):
        return None
    first, last = log_joint[: max(n_blocks, 10)], log_joint[-max(n_blocks, 10) :]
    if _rise(first, last) < 0:
        return FELL
    tenth = max(n // 10, min(n_blocks, n // 2))
    before, after = log_joint[-2 * tenth : -tenth], log_joint[-tenth:]
    return ROSE if _rise(before, after) > 0.01 * abs(after.mean()) else None


def _rise(before: np.ndarray, after: np.ndarray) -> float:
    """Difference of means, zero within three standard errors."""
    rise = float(after.mean() - before.mean())
    error = float(np.sqrt(before.var() / len(before) + after.var() / len(after)))
    return rise if abs(rise) > 3 * error else 0.0


class Watch(AbstractCallback):
    """Follows the ELBO of observations held out, after each epoch (or as many as have `LEAST` iterations).

    Args:
        params: in the structure of the model's. validation: observations that are held out, (x, y), or None.
        patience: stop when their ELBO has not risen for so many epochs; the best parameters are kept.
        guard: stop when the ELBO of an epoch is `FALL` of its size below the best one, or the ELBO twice as far below zero as in
            the first iterations.
    """

    def __init__(
        self,
        model: Variational,
        params: PyTree,
        validation: tuple[PyTree, np.ndarray] | None,
        patience: int | None,
        seed: int,
        dtype: np.dtype,
        guard: bool,
    ) -> None:
        self._model, self._params, self._validation = model, params, validation
        self._patience, self._seed, self._dtype = patience, seed, dtype
        epochs = math.ceil(LEAST / int(model.n_blocks))
        self.period = None if validation is None else epochs * int(model.n_blocks)
        self._guard, self._floor = guard, -np.inf
        #: whether the guard has stopped the fit
        self.fell = False
        #: the ELBO of validation an observation, by epoch
        self.validation: dict[int, float] = {}
        #: the parameters where it was highest
        self.best: PyTree = None

    def __call__(self, progress: Progress) -> bool:
        if self._guard:
            if self._floor == -np.inf:
                first = float(progress.trace["log_joint"][:10].mean())
                self._floor = first - abs(first)
            epochs = self.history(progress.trace["log_joint"], max(int(self._model.n_blocks), LEAST))["elbo"].to_numpy()
            best = epochs.max(initial=-np.inf)
            self.fell = float(progress.latest["log_joint"].mean()) < self._floor or (
                len(epochs) > 1 and bool(epochs[-1] < best - FALL * abs(best))
            )
            if self.fell:
                return True
        if self._validation is None or self.period is None:
            return False
        if progress.iteration % self.period and progress.iteration < progress.n_iter:
            return False
        params = self._unflattened(progress.params[0])
        epoch = progress.iteration // int(self._model.n_blocks)
        with precision(self._dtype):
            value = float(bound(self._model, params, *self._validation, self._seed, self._dtype))
        if value > max(self.validation.values(), default=-np.inf):
            self.best = params
        self.validation[epoch] = value
        best = max(self.validation, key=lambda epoch: self.validation[epoch])
        return self._patience is not None and epoch - best >= self._patience

    def _unflattened(self, flat: np.ndarray) -> PyTree:
        leaves, structure = jax.tree.flatten(self._params)
        ends = np.cumsum([np.size(leaf) for leaf in leaves])
        parts = np.split(flat, ends[:-1])
        return jax.tree.unflatten(structure, [p.reshape(np.shape(leaf)) for p, leaf in zip(parts, leaves, strict=True)])

    def close(self) -> None:
        return None

    def history(self, log_joint: np.ndarray, size: int | None = None) -> pd.DataFrame:
        """One row an epoch (or so many iterations): "elbo", the mean over its draws, and "validation" where there is one."""
        size = int(self._model.n_blocks) if size is None else size
        whole = len(log_joint) // size
        elbo = np.asarray(log_joint, float).ravel()[: whole * size].reshape(whole, size).mean(axis=1)
        frame = pd.DataFrame({"epoch": np.arange(1, whole + 1), "elbo": elbo})
        if self._validation is not None:
            frame["validation"] = [self.validation.get(epoch, np.nan) for epoch in frame["epoch"]]
        return frame
