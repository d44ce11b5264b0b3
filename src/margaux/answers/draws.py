"""Posterior draws of the latents at the estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..engine.share import alone
from ..esteps import MCMC
from ..esteps.mcmc import lacks_prior
from ..kernels import AbstractKernel
from ..numerics.compiling import compiled
from ..numerics.keys import key_of
from ..numerics.precision import default_dtype, precision, settle

if TYPE_CHECKING:
    from .fit import Fit


def draws(
    fit: Fit, n_draws: int = 1000, thin: int = 1, key: int = 0, params: PyTree = None, kernel: AbstractKernel | None = None
) -> PyTree:
    """States of the fit's chains continued at the estimate (or at `params`), every `thin`-th kept.

    They carry the kernel's own bias: look at `Fit.bias_probe`, or pass an adjusted `kernel`, which then
    starts from where the fit's chains stand.

    Returns:
        Latents with leaves (n_draws, chains, n, ...).

    Raises:
        TypeError: the fit was not made with `margaux.MCMC`. ValueError: its chains are not there any more.
    """
    return continued(fit, n_draws, thin, key, params, kernel)[0]


def continued(
    fit: Fit, n_draws: int, thin: int = 1, key: int = 0, params: PyTree = None, kernel: AbstractKernel | None = None
) -> tuple[PyTree, dict[str, np.ndarray]]:
    """`draws`, and figures of each by name, (n_draws,), such as the acceptance averaged over units and chains."""
    if not isinstance(fit.estep, MCMC):
        raise TypeError(f"draws continue Markov chains; this fit used {type(fit.estep).__name__}, see fit.latents()")
    if fit.rows is None:
        raise ValueError(
            "no chains are left of this fit (it was loaded, or put on the edge of its space); fit.latents() and fit.to_arviz() "
            "draw by other means"
        )
    if n_draws < 1 or thin < 1:
        raise ValueError(f"n_draws and thin must be at least 1, got {n_draws} and {thin}")
    dtype = default_dtype(None)
    with precision(dtype):
        at = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), fit.params if params is None else params)
        estep = MCMC(kernel or fit.estep.kernel, n_steps=1, burn_in=thin - 1, n_chains=fit.estep.n_chains)
        if (trouble := lacks_prior(fit._model().model, estep)) is not None:
            raise TypeError(trouble)
        model, estep = settle((fit._model().model, estep), dtype)
        alone(fit.share, "draws")
        data = settle(jax.tree.map(np.asarray, fit.data), dtype)
        rows = jax.tree.map(lambda leaf: _cast(leaf[0], dtype), fit.rows)
        if kernel is not None:
            z = rows["z"]
            rows = jax.vmap(lambda y: estep.init(key_of(key), model, at, y))(data) | {"z": z}
        z, info = _continued(model, estep, at, rows, data, key_of(key), n_draws)
        return jax.tree.map(np.asarray, z), {name: np.asarray(figure) for name, figure in info.items()}


def _cast(leaf: np.ndarray, dtype: np.dtype) -> Any:
    return jnp.asarray(leaf, dtype if np.issubdtype(leaf.dtype, np.floating) else None)


@compiled
def _continued(model, estep, params, rows, data, key, n_draws):
    n = jax.tree.leaves(data)[0].shape[0]
    latents = jax.tree.map(lambda leaf: leaf[0, 0], rows["z"])

    def body(rows, t):
        at = jax.random.fold_in(key, t)
        noise = jax.vmap(lambda i: estep.noise(jax.random.fold_in(at, i), latents))(jnp.arange(n))
        z, rows, info = estep.expect(lambda z, w: z, noise, model, params, rows, data, 1)
        return rows, (z, {name: jnp.mean(figure) for name, figure in info.items()})

    return jax.lax.scan(body, rows, jnp.arange(n_draws))[1]
