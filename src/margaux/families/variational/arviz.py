"""What Gaussian posteriors of weights give to ArviZ: Bayesian networks, and fits of one's own density."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import PyTree

from ...answers.arviz import COPIED, TOLD, about, named
from ...numerics.precision import precision, settle
from ...showing.arviz import Parts
from ...showing.parts import check_fitted
from .evaluation import outputs_at
from .methods import SGMCMC

if TYPE_CHECKING:
    from .answers import WeightPosterior


#: numbers that are drawn at once, at most
LARGEST = 500_000_000
HOW = "independent draws of the Gaussian that maximises the ELBO, one chain"
BY_CHAINS = "draws kept along chains of stochastic gradients, one after the other as one chain"
BY_SWAG = "independent draws of the Gaussians of SWAG, member after member, one chain"
AT_MODE = "independent draws of the Gaussian of Laplace's approximation at the mode, one chain"


def arviz_parts(fitted: WeightPosterior, n_draws: int, key: int) -> Parts:
    """Of a network, or of a density of one's own."""
    return (of_network if hasattr(fitted, "history_") or hasattr(fitted, "get_params") else of_density)(fitted, n_draws, key)


def of_network(fitted: Any, n_draws: int, key: int) -> Parts:
    """Weights by tensor; outcomes are class numbers, or in the units of y."""
    check_fitted(fitted)
    size = sum(leaf.size for leaf in jax.tree.leaves(fitted._means))
    if n_draws * size > LARGEST:
        raise ValueError(f"{n_draws} draws of {size:,} weights do not fit into memory; pass n_draws={max(LARGEST // size, 1)}")
    draws = fitted.posterior_draws(n_draws, key)
    attrs, how = about(fitted.result_) | {"estimator": type(fitted).__name__, "message": fitted.message_}, HOW
    if getattr(fitted, "_approximation", None) is not None:
        how = AT_MODE if fitted.layers == "all" else f"{AT_MODE}, of the weights of the last layer; the others are held"
        told = {name: np.asarray(leaf, float).tolist() for name, leaf in fitted.params_.items()} if size <= TOLD else {}
        attrs["estimate"] = told  # not that of the training, which ended near the mode
        attrs["algorithm"] = f"Laplace ({fitted.structure_}, layers: {fitted.layers})"
        attrs["log_evidence"] = fitted.log_evidence_
    elif fitted._kept is not None:
        how = BY_CHAINS if fitted.method == SGMCMC else BY_SWAG
        attrs["estimate"] = {}
    parts = Parts(draws, how, attrs=attrs)
    if fitted._data is None:
        parts.log_likelihood = parts.predictive = ValueError(
            "the observations of a fit are not saved with it; call to_arviz() before saving, or with log_likelihood=False"
        )
        return parts
    x, y = fitted._data
    shift, width = getattr(fitted, "_y_scale", (0.0, 1.0))
    is_classifier = hasattr(fitted, "classes_")
    if is_classifier:
        parts.attrs["classes"] = [str(one) for one in fitted.classes_]
    parts.observed, parts.size = {"y": y if is_classifier else shift + width * y}, len(y)
    parts.dims |= {"y": ["observation"], "x": ["observation"]}
    parts.constant = {"x": x} if x.size <= COPIED else {}

    def outputs():
        return outputs_of(fitted, draws, fitted._scaled(x))

    def density() -> dict[str, np.ndarray]:
        model, dtype = fitted._model, np.dtype(float)
        with precision(dtype):
            likelihood = settle(model.likelihood, dtype)
            learned, out = "noise" in fitted.params_, outputs()
            own = {"log_noise": jnp.log(fitted._noises(len(out)) / width)} if learned else {}
            each = jax.lax.map(lambda one: likelihood.log_prob(*one, jnp.asarray(y, float)), (own, jnp.asarray(out)))
            return {"y": np.asarray(each)[None] - np.log(width)}

    def predictive() -> dict[str, np.ndarray]:
        rng, out = np.random.default_rng(key), outputs()
        if is_classifier:
            odds = scipy.special.softmax(out, axis=2)
            drawn = (rng.random(out.shape[:2])[..., None] > odds.cumsum(axis=2)).sum(axis=2)
            return {"y": np.minimum(drawn, out.shape[2] - 1)[None]}
        mean = out[:, :, 0]
        if fitted.likelihood == "poisson":
            return {"y": rng.poisson(np.exp(mean))[None]}
        return {"y": (shift + width * mean + fitted._noises(len(mean))[:, None] * rng.normal(size=mean.shape))[None]}

    parts.log_likelihood, parts.predictive = density, predictive
    return parts


def of_density(fitted: Any, n_draws: int, key: int) -> Parts:
    """The variables of one's own density, and its value at each observation where it had data."""
    draws = fitted.posterior_draws(n_draws, key)
    parts = Parts(draws, HOW, attrs=about(fitted.result) | {"estimator": "VariationalFit"})
    parts.predictive = TypeError("a density of one's own does not say how data arise; draw them from the posterior group")
    if fitted._data is None:
        parts.log_likelihood = TypeError(
            "log_density is one number for all data; pass data= to fit_variational, and log_density(w, row) of one observation"
        )
        return parts
    x, y = fitted._data
    parts.size = len(y)
    parts.observed = {name: leaf for name, leaf in named(x, "y").items() if leaf.size <= COPIED}
    parts.dims = {name: ["observation"] for name in [*parts.observed, "y"]}
    parts.log_likelihood = lambda: {"y": outputs_of(fitted, draws, x)[None, :, :, 0]}
    return parts


def outputs_of(fitted: WeightPosterior, draws: dict[str, np.ndarray], x: PyTree) -> np.ndarray:
    """Outputs (draws, n, o) of the network at drawn weights, in double precision."""
    structure = jax.tree.structure(fitted._means)
    dtype = fitted._dtype
    with precision(dtype):
        weights = jax.tree.unflatten(structure, [leaf[0] for leaf in draws.values()])
        return outputs_at(getattr(fitted, "_network_of_draws", fitted._model.network), weights, x, dtype).astype(float)
