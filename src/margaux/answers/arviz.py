"""What `margaux.Fit` gives to ArviZ: draws of its latents, and what its model says of data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..engine.share import alone
from ..esteps import MCMC, Exact, ImportanceSampling, Noise
from ..numerics.compiling import compiled
from ..numerics.keys import key_of
from ..numerics.naming import path_name
from ..numerics.precision import default_dtype, precision, settle
from ..problem.model import AbstractConjugate, AbstractDiscrete, AbstractPointwise, AbstractPredictive, leading
from ..showing.arviz import NO_LOG_LIKELIHOOD, NO_PREDICTIVE, Parts
from .draws import continued
from .moments import of_all_modes
from .posterior import each_unit, latent_size

if TYPE_CHECKING:
    from .fit import Fit
    from .fitted import Fitted


#: states of a chain of which one is kept, and draws by importance sampling for each that is resampled
THIN, OVER = 5, 8
#: scalars of an estimate that are told, and entries of a leaf of data that is copied
TOLD, COPIED = 512, 10_000_000


def arviz_parts(subject: Any, n_draws: int, key: int) -> Parts:
    """Of a fit of one's own model, or by the model's own `arviz_parts`; of an estimator without any, that of its fit."""
    fit = getattr(subject, "result_", subject)
    own = getattr(fit._model().model, "arviz_parts", None)
    return of_fit(fit, n_draws, key) if own is None else own(fit, n_draws, key)


def of_fit(fit: Fit, n_draws: int, key: int) -> Parts:
    """What any model gives."""
    alone(fit.share, "an ArviZ data set")
    z, stats, drawn = latents(fit, n_draws, key)
    n, model = leading(fit.data), fit._model().model
    units = [] if n == 1 else ["unit"]
    posterior = {name: leaf[:, :, 0] if n == 1 else leaf for name, leaf in named(z, "z").items()}
    data = {name: np.asarray(leaf) for name, leaf in named(fit.data, "y").items() if np.size(leaf) <= COPIED}
    outcome = "y" if "y" in data or len(data) != 1 else next(iter(data))
    parts = Parts(posterior, drawn, dims={name: list(units) for name in posterior}, sample_stats=stats, attrs=about(fit))
    pointwise = isinstance(model, AbstractPointwise)
    density = functools.partial(pointwise_of, fit, z)
    keep = _kept(density(first=True)[0, 0]) if pointwise else None
    # What has padding becomes one long list of observations; what has none keeps its shape.
    shape = _Shape(n, keep)
    for name, leaf in data.items():
        group = parts.observed if name == outcome or not pointwise and len(data) == 1 else parts.constant
        group[name] = shape.data(leaf)
        parts.dims[name] = shape.dims(leaf.shape)
    if keep is not None and not keep.all():
        parts.beside["unit_of"] = ("observation", np.argwhere(keep)[:, 0])
    if pointwise:
        parts.size = int(keep.sum()) if keep is not None else 0
        parts.dims.setdefault(outcome, shape.dims(() if keep is None else keep.shape))
        parts.log_likelihood = lambda: {outcome: shape.draws(density())}
    else:
        parts.log_likelihood = TypeError(NO_LOG_LIKELIHOOD.format(model=type(model).__name__))
    if isinstance(model, AbstractPredictive):

        def predictive() -> dict[str, np.ndarray]:
            made = named(simulated_of(fit, z, key), "y")
            # What y is conditioned on comes back as it was.
            new = {k: v for k, v in made.items() if k not in data or not np.array_equal(v[0, 0], data[k].astype(v.dtype))}
            for name, value in new.items():
                parts.dims.setdefault(name, shape.dims(value.shape[2:]))
            return {name: shape.draws(value) for name, value in new.items()}

        parts.predictive = predictive
    else:
        parts.predictive = TypeError(NO_PREDICTIVE.format(model=type(model).__name__))
    return parts


class _Shape:
    """How arrays (n, ...) of units are laid out: without the unit where there is one, as a list where there is padding."""

    def __init__(self, n: int, keep: np.ndarray | None) -> None:
        self._n, self._keep = n, keep
        self._flat = keep is not None and not keep.all()

    def _listed(self, shape: tuple[int, ...]) -> bool:
        return self._flat and self._keep is not None and shape[: self._keep.ndim] == self._keep.shape

    def data(self, leaf: np.ndarray) -> np.ndarray:
        if self._listed(leaf.shape):
            return leaf[self._keep]
        return leaf[0] if self._n == 1 else leaf

    def draws(self, values: np.ndarray) -> np.ndarray:
        if self._listed(values.shape[2:]):
            return values[:, :, self._keep]
        return values[:, :, 0] if self._n == 1 else values

    def dims(self, shape: tuple[int, ...]) -> list[str]:
        if self._listed(shape):
            return ["observation"]
        return [] if self._n == 1 else ["unit"]


def _kept(first: np.ndarray) -> np.ndarray:
    """What is no padding, of pointwise densities (n, ...)."""
    return ~np.isnan(first)


def named(tree: PyTree, alone: str) -> dict[str, Any]:
    """Leaves by their names; `alone` is that of a tree that is one array."""
    return {path_name(path) or alone: leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def about(fit: Fit) -> dict[str, Any]:
    """What the attributes tell of a fit."""
    estimate = {}
    if sum(np.size(leaf) for leaf in jax.tree.leaves(fit.params)) <= TOLD:
        estimate = {name: np.asarray(leaf, float).tolist() for name, leaf in named(fit.params, "theta").items()}
    return {"algorithm": fit.description, "seed": int(fit.seed), "message": fit.message, "estimate": estimate}


def latents(fit: Fit, n_draws: int, key: int) -> tuple[PyTree, dict[str, tuple[list[str], np.ndarray]], str]:
    """Draws with leaves (chain, draw, n, ...), their statistics, and how they were made.

    Raises:
        ValueError: a variational fit, which has no posterior of latents.
    """
    model, estep = fit._model().model, fit.estep
    if isinstance(estep, Noise):
        raise ValueError(
            "a variational fit has no posterior of latents; margaux.fit_variational's own to_arviz() has the weights"
        )

    def one_chain(leaf):
        return np.moveaxis(leaf, 1, 0)[None]

    if isinstance(estep, MCMC) and fit.rows is not None:
        z, figures = continued(fit, n_draws, THIN, key)
        z = jax.tree.map(lambda leaf: np.moveaxis(leaf, 1, 0), z)
        kernel = type(estep.kernel).__name__
        stats = {}
        if "acceptance" in figures:
            share = np.broadcast_to(figures["acceptance"], (estep.n_chains, n_draws))
            stats["acceptance_rate"] = (["chain", "draw"], share)
        bias = "" if estep.kernel.adjusted else ", whose bias they carry"
        return z, stats, f"{estep.n_chains} chain(s) of {kernel}{bias}, continued from the fit, every {THIN}th state"
    if isinstance(model, AbstractConjugate) and not isinstance(model, AbstractDiscrete):
        z, _ = each_unit(fit, _all, Exact(n_draws), key=key, width=n_draws * (latent_size(fit) + 1))
        return jax.tree.map(one_chain, z), {}, "independent draws of the exact posterior, one chain"
    if isinstance(model, AbstractDiscrete):
        z, _ = each_unit(fit, _resampling(n_draws), Exact(), key=key, width=n_draws * (latent_size(fit) + 1))
        z = shuffled(z, key)
        return jax.tree.map(one_chain, z), {}, "draws of the exact posterior of a discrete latent, one chain"
    many = OVER * max(n_draws, 250)
    # Neither lattice nor control variate: what is resampled must be draws with weights.
    importance = ImportanceSampling(many, quasi=False, control_variate=False)
    trouble = importance.requires(model, jax.tree.map(np.zeros, latent_size(fit)))
    if trouble:
        raise ValueError(f"{trouble}; draws for ArviZ come from chains then")
    importance, rows = of_all_modes(fit, importance, drawn=True)
    z, info = each_unit(fit, _resampling(n_draws), importance, key=key, width=many * (latent_size(fit) + 2), rows=rows)
    units = [] if leading(fit.data) == 1 else ["unit"]
    ess = info["ess"][0] if not units else info["ess"]
    drawn = f"importance sampling, {n_draws} of {many} draws a unit resampled by their weights, one chain"
    return jax.tree.map(one_chain, shuffled(z, key)), {"importance_ess": (units, ess)}, drawn


def _all(model, params, z, w, batch):
    return jax.tree.map(lambda leaf: leaf[:, 0], z)


@functools.cache
def _resampling(n_draws: int) -> Callable[..., PyTree]:
    """Systematic resampling of so many of the draws by their weights."""

    def resampled(model, params, z, w, batch):
        at = systematic(w[:, 0], n_draws)
        return jax.tree.map(lambda leaf: leaf[at, 0], z)

    return resampled


def systematic(weight: Array, n_draws: int) -> Array:
    """Places of so many draws, each as often as its share of the weights (m,), up to one (Kitagawa 1996)."""
    ends = jnp.cumsum(weight)
    positions = (jnp.arange(n_draws) + 0.5) / n_draws
    return jnp.minimum(jnp.searchsorted(ends / ends[-1], positions), len(weight) - 1)


def shuffled(z: PyTree, key: int) -> PyTree:
    """Draws (n, m, ...) in random order within each unit: resampled ones come in runs."""
    n, m = jax.tree.leaves(z)[0].shape[:2]
    order = np.random.default_rng(key).permuted(np.tile(np.arange(m), (n, 1)), axis=1)
    return jax.tree.map(lambda leaf: np.take_along_axis(leaf, order.reshape(n, m, *[1] * (leaf.ndim - 2)), axis=1), z)


def pointwise_of(fit: Fit, z: PyTree, first: bool = False) -> np.ndarray:
    """Pointwise densities (chain, draw, n, ...) of draws, or of the first alone."""
    some = jax.tree.map(lambda leaf: leaf[:1, :1], z) if first else z
    return over_draws(_pointwise, fit._model().model, fit.params, some, fit.data)


def simulated_of(fit: Fit, z: PyTree, key: int) -> PyTree:
    """New data (chain, draw, n, ...), one for each draw."""
    return over_draws(_simulated, fit._model().model, fit.params, z, fit.data, key)


def over_draws(function: Callable[..., Any], model: Any, params: PyTree, z: PyTree, data: PyTree, *rest: Any) -> PyTree:
    """A function of draws (m, n, ...) for draws (chain, draw, n, ...), in double precision where there is one."""
    dtype = default_dtype(None)
    with precision(dtype):
        model, params, data = settle((model, jax.tree.map(np.asarray, params), jax.tree.map(np.asarray, data)), dtype)
        shape = jax.tree.leaves(z)[0].shape[:2]
        flat = settle(jax.tree.map(lambda leaf: np.reshape(leaf, (-1, *leaf.shape[2:])), z), dtype)
        out = function(model, params, flat, data, *(jnp.asarray(one) for one in rest))
        return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(shape + leaf.shape[1:]), out)


@compiled
def _pointwise(model, params, z, data):
    each = jax.vmap(lambda z_i, y_i: model.pointwise(params, z_i, y_i))
    return jax.lax.map(lambda draw: each(draw, data), z)


@compiled
def _simulated(model, params, z, data, key):
    units = jnp.arange(leading(data))

    def draw(number, z_j):
        at = jax.random.fold_in(key_of(key), number)
        each = jax.vmap(lambda i, z_i, y_i: model.simulate(jax.random.fold_in(at, i), params, z_i, y_i))
        return each(units, z_j, data)

    return jax.lax.map(lambda pair: draw(*pair), (jnp.arange(leading(z)), z))


def of_rows(fitted: Any, n_draws: int, key: int, large: str | None) -> Parts:
    """Of a fit to one unit whose observations are rows."""
    parts = of_fit(fitted.result_, n_draws, key)
    parts.attrs = about_estimator(fitted)
    if hasattr(fitted, "classes_"):
        parts.attrs["classes"] = [str(one) for one in fitted.classes_]
    (outcome,) = parts.observed.values()
    parts.dims["y"] = ["row"] if outcome.ndim == 1 else [f"y_dim_{k}" for k in range(outcome.ndim)]
    return parts


def renamed(parts: Parts, name: str, dims: list[str], coords: dict[str, Any], others: dict[str, list[str]]) -> Parts:
    (own,) = parts.posterior
    parts.dims.pop(own)
    parts.posterior = {name: parts.posterior[own]}
    parts.dims |= others | {name: dims}
    parts.coords |= coords
    return parts


def about_estimator(fitted: Fitted) -> dict[str, Any]:
    estimate = {name: np.asarray(value, float).tolist() for name, value in fitted.params_.items() if np.size(value) <= 512}
    return about(fitted.result_) | {"estimate": estimate, "estimator": type(fitted).__name__, "message": fitted.message_}
