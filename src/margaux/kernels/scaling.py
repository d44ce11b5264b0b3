"""The scale of a gradient kernel: preconditioner and step, given or found along the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree, Scalar

from ..numerics import triangular
from ..problem.model import Latents
from ..problem.schedule import AbstractSchedule, Constant, as_schedule
from .base import AbstractKernel, LogDensity, flat_size

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


#: power iterations at the first visit, visits between two later ones, and how fast an old bound is forgotten
FIRST, EVERY, FORGET = 30, 10, 0.9
#: transitions of the first window an adapted preconditioner is learnt from; each later one is twice as long
FIRST_WINDOW = 50


class Scaling(eqx.Module):
    r"""Preconditioner P = C C^T of a flat latent, and a step relative to the curvature $\Lambda$ of the whitened target.

    Where no step size is given it is $c/\Lambda$, with $\Lambda$ the largest eigenvalue of
    $-C^\top \nabla^2\log p\, C$ at the current latents and parameters, by power iteration with
    Hessian-vector products, repeated as both move.

    Args:
        preconditioner: None; d positive numbers; a (d, d) covariance; or "diagonal" or "dense", the
            posterior variances or covariance of the chain itself, over windows that double in length.
        relative: whether steps are in units of $\Lambda^{-\text{power}}$.
    """

    cholesky: Array | np.ndarray | None
    adapted: str | None = eqx.field(static=True)
    relative: bool = eqx.field(static=True)
    power: float = eqx.field(static=True)

    def __init__(self, preconditioner: ArrayLike | None, relative: bool, power: float = 1.0) -> None:
        self.relative, self.power = relative, power
        self.adapted, self.cholesky = None, None
        if isinstance(preconditioner, str):
            if preconditioner not in ("diagonal", "dense"):
                raise ValueError(
                    f'preconditioner must be "diagonal", "dense", d positive numbers or a (d, d) matrix; got {preconditioner!r}'
                )
            self.adapted = preconditioner
        elif preconditioner is not None:
            self.cholesky = _factor(np.asarray(preconditioner, float))

    def init(self, z: Latents) -> PyTree:
        size, dtype = flat_size(z)
        state = {}
        if self.relative:
            state["direction"] = direction(size, dtype)
            state["curvature"] = jnp.zeros((), dtype)
            state["visits"] = jnp.zeros((), jnp.int32)
        if self.adapted:
            square = (size,) if self.adapted == "diagonal" else (size, size)
            state["mean"] = jnp.zeros(size, dtype)
            state["moment"] = jnp.zeros(square, dtype)
            state["root"] = jnp.ones(size, dtype) if self.adapted == "diagonal" else jnp.eye(size, dtype=dtype)
            state["count"] = jnp.zeros((), dtype)
            state["window"] = jnp.asarray(FIRST_WINDOW, dtype)
        return state

    def refresh(self, z: Latents, state: PyTree, logdensity: LogDensity) -> PyTree:
        """Renew the preconditioner where its window is full, and re-estimate the curvature at the current target."""
        state = self._renewed(state)
        if not self.relative:
            return state
        flat, unravel = ravel_pytree(z)
        gradient = jax.grad(lambda x: logdensity(unravel(x)))

        def multiply(v):
            hessian_v = jax.jvp(gradient, (flat,), (self.root(state, v),))[1]
            moved = -self.root_transposed(state, hessian_v)
            return moved, jnp.linalg.norm(moved)

        visits = state["visits"]
        v, curvature = followed(multiply, state["direction"], state["curvature"], visits)
        return state | {"direction": v, "curvature": curvature, "visits": visits + 1}

    def scale(self, state: PyTree, scale: Scalar) -> Scalar:
        """The step itself."""
        if not self.relative:
            return scale
        curvature = jnp.maximum(state["curvature"], jnp.finfo(scale.dtype).tiny ** 0.5)
        return scale * curvature**-self.power

    def root(self, state: PyTree, x: Array) -> Array:
        """C x."""
        c = self._root(state, x)
        return x if c is None else c * x if c.ndim == 1 else c @ x

    def root_transposed(self, state: PyTree, x: Array) -> Array:
        """C^T x."""
        c = self._root(state, x)
        return x if c is None else c * x if c.ndim == 1 else c.T @ x

    def _root(self, state: PyTree, x: Array) -> Array | None:
        if self.adapted:
            return state["root"]
        return None if self.cholesky is None else jnp.asarray(self.cholesky, x.dtype)

    def learn(self, state: PyTree, z: Latents) -> PyTree:
        """Let an adapted preconditioner see a state of the chain."""
        if not self.adapted:
            return state
        flat, _ = ravel_pytree(z)
        count = state["count"] + 1
        gap = flat - state["mean"]
        mean = state["mean"] + gap / count
        product = gap * (flat - mean) if self.adapted == "diagonal" else jnp.outer(gap, flat - mean)
        moment = state["moment"] + (product - state["moment"]) / count
        return state | {"count": count, "mean": mean, "moment": moment}

    def _renewed(self, state: PyTree) -> PyTree:
        """The window's covariance as preconditioner at its end; the curvature, now of another target, starts anew."""
        if not self.adapted:
            return state
        count, moment = state["count"], state["moment"]

        def renew(state):
            # Shrunk towards the average variance, as a sample covariance of few draws must be.
            weight = count / (count + 10.0)
            if self.adapted == "diagonal":
                root = jnp.sqrt(weight * moment + (1 - weight) * jnp.mean(moment))
            else:
                average = jnp.mean(jnp.diagonal(moment))
                root = triangular.cholesky(weight * moment + (1 - weight) * average * jnp.eye(len(moment), dtype=moment.dtype))
            # A window in which the chain stood still teaches nothing.
            good = jnp.all(jnp.isfinite(root)) & (jnp.max(root) > 0)
            return (
                state
                | {
                    "root": jnp.where(good, root, state["root"]),
                    "count": jnp.zeros_like(count),
                    "mean": jnp.zeros_like(state["mean"]),
                    "moment": jnp.zeros_like(moment),
                    "window": 2 * state["window"],
                }
                | ({"curvature": jnp.zeros_like(count), "visits": jnp.zeros_like(state["visits"])} if self.relative else {})
            )

        return jax.lax.cond(count >= state["window"], renew, lambda s: s, state)


class AbstractScaledKernel(AbstractKernel):
    """A kernel whose state is that of its scaling."""

    scaling: eqx.AbstractVar[Scaling]

    def init(self, z):
        return self.scaling.init(z)

    def refresh(self, z, kstate, logdensity):
        return self.scaling.refresh(z, kstate, logdensity)


def direction(size: int, dtype: Any) -> Array:
    """An arbitrary start of a power iteration, a unit vector that is orthogonal to no eigenvector in practice."""
    start = jnp.cos(jnp.arange(1, size + 1, dtype=dtype) ** 2)
    return start / jnp.linalg.norm(start)


def followed(
    multiply: Callable[[Array], tuple[Array, Scalar]], vector: Array, old: Scalar, visits: Scalar
) -> tuple[Array, Scalar]:
    """The leading eigenvector and the value told with it, by power iteration from the vector and value of the last visit: long at
    the first visit, short at every tenth.

    Args:
        multiply: v -> its image, and the value at v.
    """

    def turn(_, pair):
        v, _ = pair
        moved, value = multiply(v)
        size = jnp.linalg.norm(moved)
        return jnp.where(size > 0, moved / jnp.where(size > 0, size, 1.0), v), value

    # A loop of no turns costs nothing, under vmap too, where a conditional would evaluate both branches.
    due = visits % EVERY == 0
    turns = jnp.where(due, jnp.where(visits == 0, FIRST, 2), 0)
    vector, found = jax.lax.fori_loop(0, turns, turn, (vector, old))
    return vector, jnp.where(due, jnp.maximum(found, FORGET * old), old)


def step_schedule(step_size: Any, relative_default: float) -> tuple[AbstractSchedule, bool]:
    """The schedule of a step size, and whether it is relative to the curvature (nothing was given)."""
    if step_size is None:
        return Constant(relative_default), True
    return as_schedule(step_size, name="step_size"), False


def _factor(matrix: np.ndarray) -> np.ndarray:
    if matrix.ndim == 1 and bool(np.all(matrix > 0)):
        return np.sqrt(matrix)
    if matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]:
        try:
            return np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError as error:
            raise ValueError("preconditioner is not positive definite; pass a covariance estimate of the latent") from error
    raise ValueError(f"preconditioner must be d positive numbers or a (d, d) covariance; got shape {matrix.shape}")
