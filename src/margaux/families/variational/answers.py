"""What a fitted posterior of weights answers, whatever the outcome is."""

from __future__ import annotations

import copy
from typing import Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import PyTree

from ...numerics.compiling import compiled
from ...numerics.naming import path_name
from ...numerics.precision import precision, settle
from ...numerics.wald import interval
from ...showing.cards import Shown
from .bound import Bound, at_one, bound
from .evaluation import outputs_of_draws
from .model import Variational
from .posterior import GaussianPosterior


class WeightPosterior(Shown):
    """Answers of a posterior of weights. `_keep` takes what a fit found; the rest follows from `_means` and `_deviations`."""

    _model: Variational
    _dtype: np.dtype
    _params: dict[str, PyTree]
    _means: PyTree
    _deviations: PyTree

    def _keep(self, model: Variational, params: dict[str, PyTree], dtype: np.dtype) -> None:
        """Take a model and the parameters of its posterior."""
        self._model, self._dtype = model, dtype
        self._params = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), params)
        self._means = self._params["mean"]
        self._deviations = deviations(model, self._params, dtype)

    @property
    def params_(self) -> dict[str, Any]:
        """Posterior means of the weights by tensor, and "noise" and "prior_scale" where they are estimated."""
        logs = self._model.natural(self._params)
        own = {"noise": "log_noise", "prior_scale": "log_scale"}
        return self._named(self._means) | {name: float(np.exp(logs[log])) for name, log in own.items() if log in logs}

    @property
    def stderr_(self) -> dict[str, np.ndarray]:
        """Posterior standard deviations by tensor; NaN of parameters that have none, such as the noise of a regression."""
        own = self._spreads()
        return {name: own.get(name, np.full(np.shape(value), np.nan)) for name, value in getattr(self, "params_", own).items()}

    def _spreads(self) -> dict[str, np.ndarray]:
        return self._named(self._deviations)

    def _named(self, tree: PyTree) -> dict[str, Any]:
        return {path_name(path) or "weights": leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}

    def summary(self) -> pd.DataFrame:
        """One row a tensor of weights: shape, number, root mean square of the means, median standard deviation, the share of
        weights whose mean is more than one and two standard deviations from zero, and the temperature of the posterior."""
        rows: dict[str, dict[str, Any]] = {}
        for (name, mean), deviation in zip(self._named(self._means).items(), self._spreads().values(), strict=True):
            ratio = np.abs(mean) / np.maximum(deviation, np.finfo(float).tiny)
            rows[name] = {
                "shape": " x ".join(map(str, mean.shape)) or "1",
                "weights": mean.size,
                "rms_mean": float(np.sqrt(np.mean(mean**2))),
                "median_sd": float(np.median(deviation)),
                "beyond_1_sd": float(np.mean(ratio > 1)),
                "beyond_2_sd": float(np.mean(ratio > 2)),
                "temperature": float(self._model.temperature),
            }
        out = pd.DataFrame.from_dict(rows, orient="index")
        return out

    def conf_int(self, level: float = 0.95) -> dict[str, np.ndarray]:
        """Credible intervals of the weights by tensor, (..., 2)."""
        pairs = zip(self._named(self._means).items(), self._spreads().values(), strict=True)
        return {name: np.stack(interval(mean, sd, level), axis=-1) for (name, mean), sd in pairs}

    def signal_to_noise(self) -> np.ndarray:
        """|mean| / standard deviation of all weights, in the order of the network's tree."""
        pairs = zip(jax.tree.leaves(self._means), jax.tree.leaves(self._deviations), strict=True)
        return np.concatenate([np.ravel(np.abs(m) / np.maximum(s, np.finfo(float).tiny)) for m, s in pairs])

    def pruned(self, share: float) -> Any:
        """A copy whose `share` of the weights with the smallest signal-to-noise ratios is zero, without error.

        Blundell, Cornebise, Kavukcuoglu and Wierstra (2015), section 5.1. Of an ensemble, each member's own.

        Raises:
            ValueError: a share outside [0, 1).
        """
        if not 0 <= share < 1:
            raise ValueError(f"share must be in [0, 1), got {share}")
        ratios, out, at = self.signal_to_noise(), copy.copy(self), 0
        order = np.argsort(ratios, kind="stable")
        kept = np.ones(ratios.size, bool)
        kept[order[: round(share * ratios.size)]] = False
        leaves, structure = jax.tree.flatten(self._means)
        masks = []
        for leaf in leaves:
            masks.append(kept[at : at + leaf.size].reshape(leaf.shape))
            at += leaf.size
        mask = jax.tree.unflatten(structure, masks)
        out._means = jax.tree.map(np.multiply, self._means, mask)
        out._deviations = jax.tree.map(np.multiply, self._deviations, mask)
        return out

    def posterior_draws(self, n_draws: int = 1000, random_state: int = 0) -> dict[str, np.ndarray]:
        """Draws of the weights by tensor, (1 chain, n_draws, ...), as ArviZ has them; of an ensemble, member after member."""
        rng = np.random.default_rng(random_state)
        pairs = zip(self._named(self._means).items(), self._spreads().values(), strict=True)
        return {name: mean + deviation * rng.normal(size=(1, n_draws, *mean.shape)) for (name, mean), deviation in pairs}

    # -- on observations ------------------------------------------------------------------------

    def _outputs(self, x: PyTree, n_draws: int, random_state: int) -> np.ndarray:
        """Outputs (n_draws, n, o), in double precision."""
        with precision(self._dtype):
            network = self._model.network
            return outputs_of_draws(network, self._means, self._deviations, x, n_draws, random_state, self._dtype).astype(float)

    def _elbo_of(self, x: PyTree, y: np.ndarray, random_state: int = 0) -> Bound:
        """Expected log-likelihood an observation, less the divergence over the observations of the fit: a bound of the evidence
        whatever temperature the posterior has been fitted at."""
        if any(np.any(leaf == 0) for leaf in jax.tree.leaves(self._deviations)):
            return Bound(np.nan, np.nan, "")  # a pruned posterior has no density
        with precision(self._dtype):
            return bound(at_one(self._model), self._params, x, y, random_state, self._dtype)


def deviations(model: Variational, params: dict[str, PyTree], dtype: np.dtype) -> PyTree:
    """Standard deviations of all weights, in the shapes of the means."""
    with precision(dtype):
        sigma = jax.tree.map(np.asarray, _sigma(settle(model.posterior, dtype), settle(params, dtype)))
    return jax.tree.map(lambda s, m: np.array(np.broadcast_to(s, m.shape), dtype), sigma, params["mean"])


@compiled
def _sigma(posterior: GaussianPosterior, params: dict[str, PyTree]) -> PyTree:
    return posterior.sigma(params)
