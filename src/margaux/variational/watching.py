"""The epochs of a variational fit: its ELBO as it goes, that of observations held out, and when to stop."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import PyTree

from ..callbacks import AbstractCallback, Progress
from ..naming import precision
from .evaluation import divergence, expected_log_likelihood
from .model import Variational

#: iterations between two looks at the observations held out, at least
LEAST = 20


class Watch(AbstractCallback):
    """Follows the ELBO of observations held out, after each epoch (or as many as have `LEAST` iterations).

    Args:
        params: in the structure of the model's. validation: blocks of observations that are held out, or None.
        patience: stop when their ELBO has not risen for so many epochs; the best parameters are kept.
    """

    def __init__(
        self, model: Variational, params: PyTree, validation: PyTree, patience: int | None, seed: int, dtype: Any
    ) -> None:
        self._model, self._params, self._validation = model, params, validation
        self._patience, self._seed, self._dtype = patience, seed, dtype
        epochs = math.ceil(LEAST / model.n_blocks)
        self.period = None if validation is None else epochs * model.n_blocks
        #: the ELBO of validation an observation, by epoch
        self.validation: dict[int, float] = {}
        #: the parameters where it was highest
        self.best: PyTree = None

    def __call__(self, progress: Progress) -> bool:
        if self.period is None or progress.iteration % self.period:
            return False
        params = self._unflattened(progress.params[0])
        epoch = progress.iteration // self._model.n_blocks
        with precision(self._dtype):
            data = expected_log_likelihood(self._model, params, self._validation, self._seed, self._dtype)
            value = data - divergence(self._model, params, self._seed, self._dtype) / self._model.n
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

    def history(self, log_joint: np.ndarray) -> pd.DataFrame:
        """One row an epoch: "elbo", the mean over its draws (iterations,), and "validation" where there is one."""
        size = self._model.n_blocks
        whole = len(log_joint) // size
        elbo = np.asarray(log_joint, float).ravel()[: whole * size].reshape(whole, size).mean(axis=1)
        frame = pd.DataFrame({"epoch": np.arange(1, whole + 1), "elbo": elbo})
        if self._validation is not None:
            frame["validation"] = [self.validation.get(epoch, np.nan) for epoch in frame["epoch"]]
        return frame
