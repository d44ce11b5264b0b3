r"""The curvature L of the negative ELBO per observation in the means, which tells the step of methods with one step size."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ...esteps import Noise
from ...numerics.compiling import compiled, is_large
from ...numerics.precision import settle
from .model import Variational

#: of the differences, in lengths of the weights
DISTANCE = 1e-2


def largest_curvature(
    model: Variational, params: dict[str, PyTree], data: PyTree, seed: int, dtype: np.dtype, n_blocks: int = 4, n_steps: int = 10
) -> float:
    r"""The largest eigenvalue in size of $\nabla^2_{\mu\mu}(-\mathrm{ELBO}/n)$ at the starting parameters.

    By power iteration on the average over some blocks and one draw each, products with the Hessian by differences of scores
    over a hundredth of the weights' length: kinks of ReLU units count, and no more memory is needed than by a fit.

    Args:
        data: blocks. n_blocks: at most so many of them.

    Raises:
        ValueError: it is not finite, or zero.
    """
    chosen = np.random.default_rng(seed).permutation(int(model.n_blocks))[:n_blocks]

    def part(leaf: Array) -> Any:
        some = np.asarray(leaf[np.sort(chosen)])
        return jnp.asarray(some, dtype if np.issubdtype(some.dtype, np.floating) else None)

    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), params)
    value = float(_power_iteration(settle(model, dtype), params, jax.tree.map(part, data), jax.random.key(seed), n_steps))
    if not (np.isfinite(value) and value > 0):
        raise ValueError(
            f"the curvature of the loss at the start is {value}; pass step=, or start from smaller weights or a smaller sigma"
        )
    return value


@compiled(large=lambda model, params, *rest: is_large(params))
def _power_iteration(model: Variational, params: dict[str, PyTree], data: PyTree, key: Array, n_steps: int) -> Array:
    keys = jax.random.split(key, jax.tree.leaves(data)[0].shape[0])
    flat, unravel = ravel_pytree(params["mean"])

    def loss(flat: Array, unit: PyTree, key: Array) -> Array:
        here = params | {"mean": unravel(flat)}
        z = Noise(1).noise(key, model.init_latents(key, here, unit))
        return -model.log_joint(here, jax.tree.map(lambda leaf: leaf[0], z), unit)

    def score(flat: Array) -> Array:
        def add(sum: Array, one: Any) -> tuple[Array, None]:
            return sum + jax.grad(loss)(flat, *one), None

        return jax.lax.scan(add, jnp.zeros_like(flat), (data, keys))[0] / keys.shape[0]

    here, length = score(flat), DISTANCE * jnp.linalg.norm(flat) + DISTANCE

    def step(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        v, _ = state
        moved = (score(flat + length * v) - here) / length
        size = jnp.linalg.norm(moved)
        return moved / size, size

    start = jax.random.normal(key, flat.shape, flat.dtype)
    return jax.lax.fori_loop(0, n_steps, step, (start / jnp.linalg.norm(start), jnp.zeros((), flat.dtype)))[1]
