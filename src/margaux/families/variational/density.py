"""`fit_variational`: a Gaussian for one's own density."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from jaxtyping import Array, PyTree

from ...answers.certificate import Certificate
from ...answers.fit import Fit
from ...engine.outcome import FitError
from ...engine.validate import whole
from ...numerics.naming import scalar_names
from ...numerics.precision import default_dtype
from ...numerics.wald import interval
from ...showing.cards import Card, flat_table
from .answers import WeightPosterior
from .draws import Shared
from .likelihoods import Given
from .networks import as_network
from .posterior import Spread
from .priors import Density
from .training import Settings, train
from .verdict import certificate, distance

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import DTypeLike

    from ...algorithms.average import AbstractAverage
    from ...algorithms.base import AbstractAlgorithm
    from ...algorithms.recipes import Step
    from ...problem.schedule import AbstractSchedule
    from .model import Variational


#: scalars up to which a notebook shows their intervals
LARGE = 10_000


class VariationalFit(WeightPosterior):
    """A fitted Gaussian: `mean` and `sd` (like `start`), `elbo` (a float with `.se`, its Monte Carlo error), `history`, `result`
    (the `margaux.Fit`), `certificate`."""

    def __init__(
        self, model: Variational, fit: Fit, history: pd.DataFrame, data: tuple[PyTree, np.ndarray], by_row: bool = True
    ) -> None:
        params: Any = fit.params
        self._keep(model, params, fit.dtype)
        self.result, self.history, self.message, self.converged = fit, history, fit.message, fit.converged
        self.mean, self.sd = self._means, self._deviations
        self.elbo = self._elbo_of(*data).times(float(model.n))
        self._data = data if by_row else None
        self._whole = data

    @functools.cached_property
    def certificate(self) -> Certificate:
        """Whether the ELBO is at its highest, and with what error it is known; computed when first asked for."""
        away = None if self.result.result.failed else distance(self._model, self._params, *self._whole)
        return certificate(self.result, self.message, self.converged, away, self.elbo)

    def _card(self) -> Card:
        few, count = flat_table(self._named(self.mean))
        table = self.summary() if count <= LARGE else few.rename(columns={"estimate": "mean"})
        figures = {"ELBO": f"{self.elbo:.6g} +- {self.elbo.se:.1g}", "iterations": self.result.n_iter}
        return Card("VariationalFit", self.message, self.converged, table, count, figures)

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Mean, standard deviation and credible interval, a row a scalar."""

        def flat(tree):
            return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])

        mean, sd = flat(self.mean), flat(self.sd)
        low, high = interval(mean, sd, level)
        columns = {"mean": mean, "sd": sd, "ci_low": low, "ci_high": high}
        return pd.DataFrame(columns, index=pd.Index(scalar_names(self.mean)))

    def __repr__(self) -> str:
        return f"VariationalFit(elbo {self.elbo:.6g} +- {self.elbo.se:.1g}; {self.result.n_iter} iterations; {self.message})"


def fit_variational(
    log_density: Callable[..., Array],
    start: PyTree,
    data: PyTree = None,
    *,
    log_prior: Callable[[PyTree], Array] | None = None,
    spread: Spread = "weight",
    sigma: float = 0.1,
    method: str | AbstractAlgorithm = "adam",
    step: Step | None = None,
    n_draws: int | AbstractSchedule = 32,
    antithetic: bool = True,
    n_blocks: int = 1,
    epochs: int = 2000,
    average: AbstractAverage | None = None,
    rows: str | Path = "device",
    key: int = 0,
    dtype: DTypeLike | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    throw: bool = True,
) -> VariationalFit:
    r"""The independent Gaussians $q$ nearest to a density: maximise $E_q\log p(y, w) + H[q]$ (MISSO, example 2).

    Args:
        log_density: $w\mapsto\log p(y, w)$, up to a constant; or with `data` $(w, y_i)\mapsto\log p(y_i\mid w)$, one
            observation, to which `log_prior` $w\mapsto\log p(w)$ is added.
        start: where the means begin, a pytree of floats in $R^d$. sigma: where the standard deviations begin.
        data: a pytree of arrays with a row an observation.
        spread: "weight", "tensor" or "all": what shares a standard deviation.
        method, step: as in `margaux.BayesianClassifier`; by default Adam, whose step falls from 0.05 to zero along a cosine.
        n_draws, antithetic: draws an iteration; pairs z, -z. n_blocks: blocks of observations, one an iteration.
        epochs: passes over them. average: of the iterates; by default the last one. rows, key, dtype, checkpoint, progress,
            throw: as in `margaux.fit`.

    Raises:
        ValueError, TypeError: bad input, before anything is compiled. FitError: the fit failed, unless `throw` is false.

    >>> import jax, numpy as np, margaux as mx
    >>> normal = jax.scipy.stats.norm.logpdf
    >>> y = np.array([1.0, 2.0, 6.0])                       # y_i ~ N(w, 1), w ~ N(0, 1): w | y ~ N(9/4, 1/4)
    >>> found = mx.fit_variational(normal, 0.0, y, log_prior=lambda w: normal(w), epochs=500)
    >>> bool(abs(found.mean - 2.25) < 0.001), bool(abs(found.sd - 0.5) < 0.02)
    (True, True)
    """
    dtype = default_dtype(dtype)
    start = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), start)
    if data is None:
        if log_prior is not None:
            raise ValueError("log_prior belongs to data=; without data, log_density is the whole log p(y, w)")
        x, n = np.zeros((1, 1)), 1
        density, each = log_density, lambda w, x: jnp.zeros(1, dtype)
    else:
        if log_prior is None:
            raise ValueError("with data, log_density(w, row) is the log-likelihood of one observation; pass log_prior= as well")
        x = jax.tree.map(np.asarray, data)
        n = len(jax.tree.leaves(x)[0])
        density, each = log_prior, lambda w, x: jax.vmap(lambda row: log_density(w, row))(x)
    _check_scalars(log_density, log_prior, start, None if data is None else x)
    network, weights = as_network(each, start)
    epochs, n_blocks = whole("epochs", epochs, 1), whole("n_blocks", n_blocks, 1)
    if method == "adam" and step is None:
        step = optax.adam(optax.cosine_decay_schedule(0.05, epochs * n_blocks))
    settings = Settings(
        method=method,
        step=step,
        spread=spread,
        sigma=sigma,
        n_draws=n_draws,
        antithetic=antithetic,
        n_blocks=n_blocks,
        epochs=epochs,
        average=average,
        bounded=False,
        rows=rows,
        seed=key,
        dtype=dtype,
        progress=progress,
        checkpoint=checkpoint,
    )
    y = np.zeros(n)
    trained = train(network, weights, Given(), Density(density), Shared(), x, y, settings)
    if throw and trained.fit.result.failed:
        raise FitError(trained.fit)
    return VariationalFit(trained.model, trained.fit, trained.history, (x, y), by_row=data is not None)


def _check_scalars(log_density: Callable[..., Any], log_prior: Callable[..., Any] | None, start: PyTree, x: PyTree) -> None:
    """Raises: TypeError, ValueError: a density that fails at the start, or is no scalar."""
    row = () if x is None else (jax.tree.map(lambda leaf: leaf[0], x),)
    for name, density, given in (("log_density", log_density, (start, *row)), ("log_prior", log_prior, (start,))):
        if density is None:
            continue
        try:
            shape = jax.eval_shape(density, *given).shape
        except Exception as error:
            raise TypeError(f"{name} fails at the start: {error}") from error
        if shape != ():
            raise ValueError(f"{name} returns shape {shape}; it must return a scalar: sum over the entries of an observation")
