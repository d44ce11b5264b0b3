"""Fits and estimators as ArviZ's data trees."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

from ..engine.validate import whole
from .parts import part_of

#: log-likelihoods of so many observations and draws together are left out unless asked for
MOST = 50_000_000
#: what no posterior predictive draws without the capability
NO_PREDICTIVE = (
    "{model} does not say how data arise, which posterior_predictive=True needs; inherit from margaux.AbstractPredictive "
    "and write simulate(self, key, params, z, y)"
)
#: the same of log-likelihoods
NO_LOG_LIKELIHOOD = (
    "{model} does not say the density of each observation, which log_likelihood=True needs; inherit from "
    "margaux.AbstractPointwise and write pointwise(self, params, z, y)"
)


@dataclasses.dataclass
class Parts:
    """What a tree is made of. Variables are NumPy arrays by name.

    Attributes:
        posterior: (chain, draw, ...). drawn: a sentence on how.
        dims: of variables, by name, without chain and draw. coords: of dimensions; `beside`: further ones, coordinate ->
            (dimension, values).
        sample_stats: name -> (dimensions, values).
        observed, constant: data. size: observations, by which it is known how large the log-likelihood is.
        varying: coordinates of the log-likelihood alone, where not all observations depend on a latent.
        log_likelihood, predictive: functions without arguments that make these groups, (chain, draw, ...) by name;
            where there is none, the error that says why.
        attrs: what else is to be said.
    """

    posterior: dict[str, np.ndarray]
    drawn: str
    dims: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    coords: dict[str, Any] = dataclasses.field(default_factory=dict)
    beside: dict[str, tuple[str, Any]] = dataclasses.field(default_factory=dict)
    sample_stats: dict[str, tuple[list[str], np.ndarray]] = dataclasses.field(default_factory=dict)
    observed: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    constant: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    size: int = 0
    varying: dict[str, Any] = dataclasses.field(default_factory=dict)
    log_likelihood: Callable[[], dict[str, np.ndarray]] | Exception = dataclasses.field(default_factory=TypeError)
    predictive: Callable[[], dict[str, np.ndarray]] | Exception = dataclasses.field(default_factory=TypeError)
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)


def data_tree(
    subject: object,
    n_draws: int = 1000,
    random_state: int = 0,
    *,
    log_likelihood: bool | None = None,
    posterior_predictive: bool = False,
) -> Any:
    r"""The posterior of the latents, $p(z\mid y,\hat\theta)$, as an `xarray.DataTree` in ArviZ's schema.

    Parameters are held at their estimate: draws carry no uncertainty about them. Groups:

    - `posterior`: draws (chain, draw, unit, ...), or without a unit where all data share the latents. Fits by chains have as
      many chains as a unit had, each continued at the estimate, every fifth state kept; others have one chain of independent
      draws, resampled where they came by importance sampling. `tree.attrs["drawn"]` says which.
    - `sample_stats`: `acceptance_rate` of each draw, over units; or `importance_ess` of each unit, of the draws before
      resampling.
    - `log_likelihood`: $\log p(y_{ij}\mid z_i,\hat\theta)$ of each observation, where the model is an
      `margaux.AbstractPointwise`; left out of itself beyond fifty million numbers.
    - `observed_data` and `constant_data`; `posterior_predictive` if asked for, of an `margaux.AbstractPredictive`.

    `tree.attrs` tell the library's version, the algorithm, its seed, how the fit ended, and the estimate as JSON.

    Args:
        subject: a `margaux.Fit` or a fitted estimator. n_draws: draws a chain. random_state: an int.
        log_likelihood: True to insist, False to leave it out. posterior_predictive: draw new data as well.

    Raises:
        ImportError: arviz-base is not installed.
        TypeError: the model does not say what is asked for. ValueError: there is no latent, or no data any more.

    >>> import numpy as np, margaux as mx
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> y = X[:, 0] + np.random.default_rng(1).logistic(size=100) > 0
    >>> model = mx.EmpiricalBayesLogistic(n_iter=200, verbose=False).fit(X, y)
    >>> tree = data_tree(model, n_draws=50)
    >>> sorted(tree.children)
    ['constant_data', 'log_likelihood', 'observed_data', 'posterior', 'sample_stats']
    >>> dict(tree.posterior["coefficients"].sizes)
    {'chain': 1, 'draw': 50, 'coefficient': 3}
    """
    try:
        import arviz_base as base
        import xarray
    except ImportError as error:
        raise ImportError("to_arviz needs arviz-base; install it via pip install 'margaux[arviz]'") from error
    whole("n_draws", n_draws, 1)
    whole("random_state", random_state, 0)
    own = part_of(subject, "arviz")
    if own is None:
        raise TypeError(f"data_tree takes a margaux.Fit or a fitted estimator, got {type(subject).__name__}")
    parts = own.arviz_parts(subject, n_draws, random_state)
    attrs = _attrs(parts, random_state)

    def group(values: dict[str, np.ndarray], sample_dims: list[str], dims: dict[str, list[str]], **coords: Any) -> Any:
        own: Any = {name: dims[name] for name in values if name in dims}
        return base.dict_to_dataset(values, attrs=attrs, coords=parts.coords | coords, dims=own, sample_dims=sample_dims)

    draws = ["chain", "draw"]
    groups = {"posterior": group(parts.posterior, draws, parts.dims)}
    if parts.sample_stats:
        values = {name: value for name, (_, value) in parts.sample_stats.items()}
        groups["sample_stats"] = group(values, [], {name: dims for name, (dims, _) in parts.sample_stats.items()})
    told = (log_likelihood, parts.log_likelihood)
    if _wanted(told, parts.size * n_draws * len(next(iter(parts.posterior.values())))):
        groups["log_likelihood"] = group(parts.log_likelihood(), draws, parts.dims, **parts.varying)  # type: ignore[operator]
    if posterior_predictive:
        if isinstance(parts.predictive, Exception):
            raise parts.predictive
        groups["posterior_predictive"] = group(parts.predictive(), draws, parts.dims)
    for name, values in (("observed_data", parts.observed), ("constant_data", parts.constant)):
        if values:
            groups[name] = group(values, [], parts.dims)
    for name, data in groups.items():
        here = {label: pair for label, pair in parts.beside.items() if pair[0] in data.dims}
        groups[name] = data.assign_coords(here)
    tree = xarray.DataTree.from_dict(groups)
    tree.attrs = attrs
    return tree


def _wanted(told: tuple[bool | None, Any], size: int) -> bool:
    asked, made = told
    if asked and isinstance(made, Exception):
        raise made
    return not isinstance(made, Exception) and (bool(asked) or (asked is None and 0 < size <= MOST))


def _attrs(parts: Parts, random_state: int) -> dict[str, Any]:
    """Numbers and texts, which every file format of xarray's keeps."""
    own = {name: value if isinstance(value, str | int | float) else json.dumps(value) for name, value in parts.attrs.items()}
    return {
        "inference_library": "margaux",
        "inference_library_version": version("margaux"),
        "random_state": random_state,
        "drawn": f"{parts.drawn}; the parameters are held at their estimate",
        **own,
    }
