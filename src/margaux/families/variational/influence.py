r"""What single observations have made of a posterior of weights: leverages, and predictions of each by all others.

With $J_i$ (K, P) the Jacobian of the outputs of observation i in the weights, at their means, and $e_i$ and $\Lambda_i$ the mean
slope and curvature of $\log p(y_i\mid f)$ over the posterior's outputs f, the tempered ELBO curves in the means by

$$TH = \sum_iJ_i^\top\Lambda_iJ_i + T\,\nabla^2\mathrm{KL}$$

(Gauss and Newton). Newton's step from the maximum without i moves its own outputs by

$$-\tfrac1TS_i(I-\Lambda_iS_i/T)^{-1}e_i,\qquad S_i = J_iH^{-1}J_i^\top,$$

which is leave-one-out by one step (Pregibon 1981, "Logistic regression diagnostics"; Rad and Maleki 2020, "A scalable estimate of
the out-of-sample prediction error via approximate leave-one-out cross-validation"). Correlations of the weights, which the
posterior has none of, are in H: by the posterior's own variances redundant weights would count several times.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ...engine.progress import Line
from ...engine.validate import whole
from ...numerics.compiling import compiled
from ...numerics.ladder import rung
from ...numerics.precision import precision, settle
from ...showing.parts import check_fitted
from .gauss_newton import AT_ONCE, bent, jacobians, roots
from .model import Variational
from .tempering import log_scores

#: weights, or outputs of all observations, whose covariance is written out, and numbers of a Jacobian, at most
MOST, NUMBERS = 10_000, 200_000_000


class Influential:
    """Influence of observations."""

    def influence(self, n_draws: int = 100, random_state: int = 0) -> pd.DataFrame:
        r"""What each observation of the fit says of itself: its log score, and by Newton's step that without it.

        Args:
            n_draws: draws of the weights that scores are averaged over.

        Returns:
            A row an observation: "log_score"; "left_out", that without it; "leverage", $\mathrm{tr}\,\Lambda_iS_i/T$, which sums
            to the number of effective parameters; "share", the largest eigenvalue of $\Lambda_iS_i/T$: how much of what is known
            of its outputs it says itself; "distance", how far the weights move without it, $\sqrt{\Delta\mu^\top H\Delta\mu}$.

        One step of Newton's is nearly exact where "share" is small, as of a few weights. Where it is above a half, as of many
        observations of a network of low temperature, it is too long: "left_out" then still ranks observations, so that wrong
        labels are among the lowest, but is mostly too low, twice as far below zero at shares of .5 to .8 and several times beyond
        (30 fits without one digit: rank correlation .86). `forget([i])` fits without one.

        Raises:
            ValueError: the data are not there (they are not saved), weights were pruned, the prior has no curvature, or there
                are more than 10,000 both of weights and of outputs.

        >>> import numpy as np, margaux as mx
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(60, 2))
        >>> y = (X[:, 0] > 0).astype(int)
        >>> y[7] = 1 - y[7]                                         # a wrong label
        >>> model = mx.BayesianClassifier(temperature=1.0, epochs=40, verbose=False).fit(X, y)
        >>> int(model.influence()["left_out"].idxmin())
        7
        """
        me: Any = self
        x, y = observations_of(me)
        if any(np.any(leaf == 0) for leaf in jax.tree.leaves(me._deviations)):
            raise ValueError("a pruned posterior has no density; ask the one that it was made of")
        outputs = me._outputs(me._scaled(x), whole("n_draws", n_draws, 1), random_state)
        double = np.dtype(float)
        with precision(double):
            model, params = settle(me._model, double), jax.tree.map(lambda leaf: np.asarray(leaf, double), me._params)
            own = {name: value for name, value in model.natural(params).items() if name == "log_noise"}

            def scores(outputs: np.ndarray) -> np.ndarray:
                return log_scores(outputs, lambda one: model.likelihood.log_prob(own, jnp.asarray(one), jnp.asarray(y)))

            slope, curvature = (np.asarray(leaf) for leaf in bent(model.likelihood, own, outputs, y))
            temperature = float(model.temperature)
            inner = covariances(model, params, me._scaled(x), curvature / temperature, me.verbose)
            before = scores(outputs)
            share = curvature @ inner / temperature
            step = np.linalg.solve(np.eye(share.shape[-1]) - share, slope[..., None] / temperature)
            moved = (inner @ step)[..., 0]
            half = roots(inner)
            among = np.linalg.eigvalsh(half.transpose(0, 2, 1) @ curvature @ half / temperature)
            return pd.DataFrame(
                {
                    "log_score": before,
                    "left_out": scores(outputs - moved),
                    "leverage": np.trace(share, axis1=1, axis2=2),
                    "share": among[:, -1],
                    "distance": np.sqrt(np.maximum(np.sum(step[..., 0] * moved, axis=1), 0.0)),
                }
            )


def observations_of(estimator: Any) -> tuple[np.ndarray, np.ndarray]:
    """Those of the fit, not scaled, and their outcomes in its terms.

    Raises:
        ValueError: they are not there.
    """
    check_fitted(estimator)
    if estimator._data is None:
        raise ValueError("the observations of a fit are not saved with it; fit again to ask of them")
    return estimator._data


def covariances(
    model: Variational,
    params: dict[str, PyTree],
    x: PyTree,
    curvature: Float[np.ndarray, "n k k"],
    progress: bool = False,
) -> Float[np.ndarray, "n k k"]:
    r"""$S_i = J_iH^{-1}J_i^\top$ of each observation, $H = \sum_iJ_i^\top C_iJ_i + \nabla^2\mathrm{KL}$, C the given curvature.

    By the weights or by the outputs, whichever are fewer.

    Raises:
        ValueError: see `Influential.influence`.
    """
    n, k, _ = curvature.shape
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(params["mean"]))
    if min(size, n * k) > MOST or (n * k < size and n * k * size > NUMBERS):
        raise ValueError(
            f"the influence of {n:,} observations with {k} outputs on {size:,} weights takes their covariance, and that is "
            f"written out up to {MOST:,} of either; ask a smaller network, or one fitted to fewer observations"
        )
    own = np.asarray(_prior_curvature(model, params))
    if not np.all(own > 0):
        raise ValueError("influence needs a prior that holds every weight, such as a Normal one")
    rows = min(max(AT_ONCE // (k * size), 1), rung(n))
    deviations = np.sqrt(own)

    # Twice through the observations where the covariance is that of the weights.
    starts, line = range(0, n, rows), None
    if progress and n * k * size > AT_ONCE:
        line = Line("influence of observations", len(starts) * (2 if size <= n * k else 1))
    seen = itertools.count(1)

    def jacobian(first: int) -> np.ndarray:
        if line is not None:
            line.update(next(seen), "")
        ids = np.minimum(np.arange(first, first + rows), n - 1)
        part = jax.tree.map(lambda leaf: jnp.asarray(leaf[ids]), x)
        return np.asarray(jacobians(model.network, params["mean"], part))[: n - first].reshape(-1, size) / deviations

    try:
        if size <= n * k:
            return _by_weights(jacobian, starts, roots(curvature), size)
        return _by_outputs(np.concatenate([jacobian(first) for first in starts]), roots(curvature))
    finally:
        if line is not None:
            line.close()


def _by_weights(
    jacobian: Callable[[int], np.ndarray], starts: range, roots: Float[np.ndarray, "n k k"], size: int
) -> Float[np.ndarray, "n k k"]:
    """Given Jacobians (k of some observations, P) whose prior has unit variances, and R with C = R R'."""
    n, k, _ = roots.shape
    total = np.eye(size, order="F")
    for first in starts:
        bent = roots[first : first + starts.step].transpose(0, 2, 1) @ jacobian(first).reshape(-1, k, size)
        # One triangle of the product alone.
        total = scipy.linalg.blas.dsyrk(1.0, bent.reshape(-1, size).T, beta=1.0, c=total, lower=True, overwrite_c=True)
    factor = scipy.linalg.cholesky(total, lower=True, overwrite_a=True, check_finite=False)
    out = []
    for first in starts:
        white = scipy.linalg.solve_triangular(factor, jacobian(first).T, lower=True, check_finite=False).T.reshape(-1, k, size)
        out.append(white @ white.transpose(0, 2, 1))
    return np.concatenate(out)


def _by_outputs(every: Float[np.ndarray, "nk p"], roots: Float[np.ndarray, "n k k"]) -> Float[np.ndarray, "n k k"]:
    """As `_by_weights`, of all Jacobians, by the identity of Sherman, Morrison and Woodbury."""
    n, k, _ = roots.shape
    gram = every @ every.T
    across = (roots.transpose(0, 2, 1) @ gram.reshape(n, k, n * k)).reshape(n * k, n * k)
    both = np.eye(n * k) + (across.reshape(n * k, n, k).transpose(1, 0, 2) @ roots).transpose(1, 0, 2).reshape(n * k, n * k)
    factor = scipy.linalg.cholesky(both, lower=True, overwrite_a=True, check_finite=False)
    white = scipy.linalg.solve_triangular(factor, across, lower=True, check_finite=False).T.reshape(n, k, n * k)
    blocks = gram.reshape(n, k, n, k)[np.arange(n), :, np.arange(n)]
    return blocks - white @ white.transpose(0, 2, 1)


@compiled
def _prior_curvature(model: Variational, params: dict[str, PyTree]) -> Array:
    """Second derivatives (P,) of the divergence in the means of independent weights."""
    flat, unravel = ravel_pytree(params["mean"])
    noise = jax.tree.map(jnp.zeros_like, params["mean"])

    def divergence(flat):
        return model.prior.divergence(model.posterior, model.natural(params) | {"mean": unravel(flat)}, noise)

    return jax.jvp(jax.grad(divergence), (flat,), (jnp.ones_like(flat),))[1]
