r"""Linear inverse problems $y = Ax + \varepsilon$: the operators A, the model, and its maximum a posteriori."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse as jsparse
from jaxtyping import Array, PRNGKeyArray, Scalar
from scipy import optimize, sparse
from scipy.sparse import csgraph
from threadpoolctl import threadpool_limits

from ...problem.model import AbstractLikelihood, AbstractNonSmooth, AbstractPointwise, AbstractPredictive, Params, Unit
from .priors import AbstractPrior


class AbstractOperator(eqx.Module):
    """A linear map from signals of shape `shape` to data of shape `out`."""

    shape: eqx.AbstractVar[tuple[int, ...]]
    out: eqx.AbstractVar[tuple[int, ...]]

    @abc.abstractmethod
    def __call__(self, x: Array) -> Array:
        """A x."""

    @abc.abstractmethod
    def adjoint(self, r: Array) -> Array:
        """A^T r."""


class DenseOperator(AbstractOperator):
    """A as one matrix (rows, d), of signals flattened by rows."""

    matrix: Any
    shape: tuple[int, ...] = eqx.field(static=True)
    out: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, x):
        return self.matrix @ jnp.ravel(x)

    def adjoint(self, r):
        return (r @ self.matrix).reshape(self.shape)


class SparseOperator(AbstractOperator):
    """A as coordinates and values."""

    matrix: Any
    shape: tuple[int, ...] = eqx.field(static=True)
    out: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, x):
        return self.matrix @ jnp.ravel(x)

    def adjoint(self, r):
        return (self.matrix.T @ r).reshape(self.shape)


class BlockOperator(AbstractOperator):
    """A that is block diagonal up to permutations of its rows and columns: its blocks, padded with zeros.

    Attributes:
        blocks: (B, r, c). columns: (B, c), the entry of x of each column, d where padded. rows: (p,), where each
            row of A lies among the B r padded ones, B r where it is zero. places: (d,), likewise of each column.
    """

    blocks: Array | np.ndarray
    columns: Array | np.ndarray
    rows: Array | np.ndarray
    places: Array | np.ndarray
    shape: tuple[int, ...] = eqx.field(static=True)
    out: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, x):
        inside = jnp.append(jnp.ravel(x), 0.0).astype(self.blocks.dtype)[self.columns]
        return jnp.append(jnp.ravel(jnp.einsum("brc,bc->br", self.blocks, inside)), 0.0).astype(inside.dtype)[self.rows]

    def adjoint(self, r):
        b, height, _ = self.blocks.shape
        padded = jnp.zeros(b * height, self.blocks.dtype).at[self.rows].set(r, mode="drop").reshape(b, height)
        back = jnp.ravel(jnp.einsum("brc,br->bc", self.blocks, padded))
        return jnp.append(back, 0.0).astype(back.dtype)[self.places].reshape(self.shape)


class FunctionOperator(AbstractOperator):
    """A as a pair of functions written in jax."""

    forward: Callable[[Array], Array] = eqx.field(static=True)
    backward: Callable[[Array], Array] = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    out: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, x):
        return self.forward(x)

    def adjoint(self, r):
        return self.backward(r)


def as_operator(
    A: Any, y: np.ndarray, shape: tuple[int, ...] | None, dtype: np.dtype | type, structure: str = "auto"
) -> AbstractOperator:
    """An operator from a matrix, a scipy sparse matrix or a pair (forward, adjoint) of functions.

    Args:
        structure: "auto" looks for blocks in a matrix and keeps them where that halves the work; "dense" does not.

    Raises:
        TypeError: a pair of functions jax cannot trace. ValueError: shapes that do not fit, values that are not
            finite, or functions that fail the dot-product test <A x, u> = <x, A^T u>.
    """
    if isinstance(A, AbstractOperator):
        if y.shape != A.out:
            raise ValueError(f"y has shape {y.shape}, but the operator maps to {A.out}")
        return A
    if isinstance(A, tuple | list) and len(A) == 2 and all(callable(part) for part in A):
        return _from_functions(A[0], A[1], y, shape, dtype)
    matrix: Any = sparse.csr_matrix(A) if sparse.issparse(A) else np.asarray(A, float)
    if matrix.ndim != 2:
        raise ValueError(
            f"A must be a matrix, a sparse matrix or a pair (forward, adjoint); got an array of shape {matrix.shape}"
        )
    if y.shape != (matrix.shape[0],):
        raise ValueError(f"A has {matrix.shape[0]} rows but y has shape {y.shape}; y must be ({matrix.shape[0]},)")
    shape = (matrix.shape[1],) if shape is None else tuple(int(side) for side in np.atleast_1d(shape))
    if int(np.prod(shape)) != matrix.shape[1]:
        raise ValueError(f"A has {matrix.shape[1]} columns but shape = {shape} has {int(np.prod(shape))} entries")
    values = matrix.data if sparse.issparse(matrix) else matrix
    if not np.all(np.isfinite(values)):
        raise ValueError(f"A holds {int(np.sum(~np.isfinite(values)))} values that are not finite")
    if not np.any(values):
        raise ValueError("A is zero: y says nothing of x")
    if structure == "auto":
        found = _blocks(
            sparse.csr_matrix(matrix), shape, y.shape, 8 * values.size if sparse.issparse(matrix) else values.size // 2
        )
        if found is not None:
            return found
    if sparse.issparse(matrix):
        return SparseOperator(matrix=jsparse.BCOO.from_scipy_sparse(matrix.astype(dtype)), shape=shape, out=y.shape)
    return DenseOperator(matrix=matrix, shape=shape, out=y.shape)


def _blocks(matrix: Any, shape: tuple[int, ...], out: tuple[int, ...], most: int) -> BlockOperator | None:
    """The connected components of rows and columns, unless there is one only or they hold over `most` entries."""
    p, d = matrix.shape
    matrix.eliminate_zeros()
    graph = sparse.bmat([[None, matrix], [matrix.T, None]], format="csr")
    count, labels = csgraph.connected_components(graph, directed=False)
    heights, widths = np.bincount(labels[:p], minlength=count), np.bincount(labels[p:], minlength=count)
    real = np.flatnonzero(heights * widths)
    height, width = int(heights[real].max()), int(widths[real].max())
    if len(real) < 2 or len(real) * height * width > most:
        return None
    blocks, columns = np.zeros((len(real), height, width)), np.full((len(real), width), d)
    rows, places = np.full(p, len(real) * height), np.full(d, len(real) * width)
    for b, label in enumerate(real):
        own_rows, own_columns = np.flatnonzero(labels[:p] == label), np.flatnonzero(labels[p:] == label)
        blocks[b, : len(own_rows), : len(own_columns)] = matrix[own_rows][:, own_columns].toarray()
        rows[own_rows] = b * height + np.arange(len(own_rows))
        columns[b, : len(own_columns)] = own_columns
        places[own_columns] = b * width + np.arange(len(own_columns))
    return BlockOperator(blocks=blocks, columns=columns, rows=rows, places=places, shape=shape, out=out)


def _from_functions(
    forward: Callable[[Array], Array], backward: Callable[[Array], Array], y: np.ndarray, shape: Any, dtype: np.dtype | type
) -> FunctionOperator:
    if shape is None:
        raise ValueError("with A = (forward, adjoint) pass shape=, the shape of x")
    shape = tuple(int(side) for side in np.atleast_1d(shape))
    for name, function, into, from_ in [("forward", forward, y.shape, shape), ("adjoint", backward, shape, y.shape)]:
        try:
            made = jax.eval_shape(function, jax.ShapeDtypeStruct(from_, dtype))
        except jax.errors.JAXTypeError as error:
            raise TypeError(f"{name} is not written in jax (use jax.numpy in it): {str(error).splitlines()[0]}") from error
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} fails on an array of shape {from_}: {str(error).splitlines()[0]}") from error
        if getattr(made, "shape", None) != into:
            raise ValueError(f"{name} maps shape {from_} to {getattr(made, 'shape', type(made).__name__)}; expected {into}")
    rng = np.random.default_rng(0)
    x, u = jnp.asarray(rng.normal(size=shape), dtype), jnp.asarray(rng.normal(size=y.shape), dtype)
    image, back = forward(x), backward(u)
    left, right = float(jnp.vdot(image, u)), float(jnp.vdot(x, back))
    size = float(jnp.linalg.norm(image) * jnp.linalg.norm(u) + jnp.linalg.norm(x) * jnp.linalg.norm(back))
    if not abs(left - right) <= 100 * float(jnp.finfo(dtype).eps) ** 0.75 * size:
        raise ValueError(
            f"forward and adjoint fail the dot-product test: <A x, u> = {left:.6g} but <x, A^T u> = {right:.6g}; "
            "adjoint must be the transpose of forward, and both linear"
        )
    return FunctionOperator(forward=forward, backward=backward, shape=shape, out=y.shape)


@eqx.filter_jit
def norm_squared(operator: AbstractOperator, n_iter: int = 100) -> Array:
    """The largest eigenvalue of A^T A, by power iteration."""
    dtype = jnp.result_type(float)
    size = int(np.prod(operator.shape))
    start = jnp.cos(jnp.arange(1, size + 1, dtype=dtype) ** 2).reshape(operator.shape)

    def turn(_, state):
        v, _ = state
        moved = operator.adjoint(operator(v))
        size = jnp.linalg.norm(moved)
        return moved / jnp.where(size > 0, size, 1), size

    start = start / jnp.linalg.norm(start)
    return jax.lax.fori_loop(0, n_iter, turn, (start, jnp.zeros((), start.dtype)))[1]


class AbstractLinear(AbstractPointwise, AbstractPredictive):
    r"""$y\sim N(Ax, \sigma^2 I)$ as one unit, whose data are `y` and whose latent is x; `log_sigma2` is a parameter where the
    noise level is estimated."""

    operator: eqx.AbstractVar[AbstractOperator]
    start: eqx.AbstractVar[Array | np.ndarray]
    noise_sd: eqx.AbstractVar[Array | np.ndarray | None]

    def log_likelihood(self, params: Params, z: Array, y: Unit) -> Scalar:
        """log p(y | x), with every constant."""
        log_sigma2 = self._log_sigma2(params, z)
        residual = y["y"] - self.operator(z)
        return -jnp.sum(residual**2) / (2 * jnp.exp(log_sigma2)) - residual.size / 2 * (jnp.log(2 * jnp.pi) + log_sigma2)

    def _log_sigma2(self, params: Params, z: Array) -> Any:
        return params["log_sigma2"] if self.noise_sd is None else 2 * jnp.log(jnp.asarray(self.noise_sd, z.dtype))

    def pointwise(self, params, z, y):
        log_sigma2 = self._log_sigma2(params, z)
        return -((y["y"] - self.operator(z)) ** 2) / (2 * jnp.exp(log_sigma2)) - (jnp.log(2 * jnp.pi) + log_sigma2) / 2

    def simulate(self, key, params, z, y):
        mean = self.operator(z)
        return {"y": mean + jnp.exp(self._log_sigma2(params, z) / 2) * jax.random.normal(key, mean.shape, mean.dtype)}

    def init_latents(self, key: PRNGKeyArray, params: Params, y: Unit) -> Array:
        return jnp.asarray(self.start, y["y"].dtype)


class LinearInverse(AbstractLinear, AbstractNonSmooth):
    r"""$y\sim N(Ax, \sigma^2 I)$ and $p(x\mid\theta) = e^{-\theta\phi(x)}/Z(\theta)$ (SOUL, section 4.2), as one unit.

    The parameters are `log_theta`, as in that section's code (the chain rule's factor $\theta$ is autodiff's), and
    `log_sigma2` where the noise level is estimated. The unit's data are `y`, its latent is x.

    Args:
        operator: A. prior: $\phi$ and Z. start: x to start from. noise_sd: $\sigma$; None to estimate it.
    """

    operator: AbstractOperator
    prior: AbstractPrior
    start: Array | np.ndarray
    noise_sd: Array | np.ndarray | None

    def __init__(
        self,
        operator: AbstractOperator,
        prior: AbstractPrior,
        start: Array | np.ndarray,
        noise_sd: Array | np.ndarray | None = None,
    ) -> None:
        self.operator, self.prior, self.start, self.noise_sd = operator, prior, start, noise_sd

    def log_smooth(self, params, z, y):
        return self.log_likelihood(params, z, y)

    def log_joint(self, params, z, y):
        theta = jnp.exp(params["log_theta"])
        return self.log_likelihood(params, z, y) - theta * self.prior.value(z) - self.prior.log_normaliser(theta, z)

    def prox(self, params, z, step, y):
        return self.prior.prox(z, jnp.exp(params["log_theta"]) * step)


class LinearLikelihood(AbstractLinear, AbstractLikelihood):
    r"""$y\sim N(Ax, \sigma^2 I)$ alone, for a prior that the kernel brings: see `margaux.PlugAndPlayULA`.

    Args:
        operator: A. start: x to start from. noise_sd: $\sigma$; None for a parameter `log_sigma2`.
    """

    operator: AbstractOperator
    start: Array | np.ndarray
    noise_sd: Array | np.ndarray | None = None

    def log_joint(self, params, z, y):
        return self.log_likelihood(params, z, y)


def maximum_a_posteriori(
    operator: AbstractOperator,
    prior: AbstractPrior,
    y: Array,
    weight: Array | float,
    start: Array,
    n_iter: int = 5000,
    tol: float = 1e-7,
) -> Array:
    r"""$\arg\min_x |y - Ax|^2/2 + w\phi(x)$, with $w = \theta\sigma^2$.

    L-BFGS (scipy) for a smooth prior; for others FISTA with restarts (Beck and Teboulle 2009; O'Donoghue and
    Candes 2015), the proximal map's dual warm-started, so that zeros and flat pieces are exact.

    Args:
        n_iter: at most. tol: relative change of x (FISTA) or of the objective (L-BFGS) that ends it.
    """
    tol = max(tol, float(jnp.finfo(y.dtype).eps))
    if not prior.smooth:
        return _fista(operator, prior, y, jnp.asarray(weight, y.dtype), start, norm_squared(operator), n_iter, jnp.asarray(tol))

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _objective(operator, prior, y, jnp.asarray(weight, y.dtype), jnp.asarray(flat, y.dtype))
        return float(value), np.asarray(gradient, float)

    options = {"maxiter": n_iter, "maxfun": 2 * n_iter, "ftol": tol**2, "gtol": 1e-10, "maxcor": 10}
    # Its vectors are short: the threads of a BLAS would wait for each other, ten times as long.
    with threadpool_limits(1, user_api="blas"):
        out = optimize.minimize(objective, np.ravel(start), jac=True, method="L-BFGS-B", options=options)
    return jnp.asarray(out.x, y.dtype).reshape(operator.shape)


@eqx.filter_jit
def _objective(operator: AbstractOperator, prior: AbstractPrior, y: Array, weight: Array, flat: Array) -> tuple[Array, Array]:
    def value(flat):
        x = flat.reshape(operator.shape)
        return jnp.sum((y - operator(x)) ** 2) / 2 + weight * prior.value(x)

    return jax.value_and_grad(value)(flat)


@eqx.filter_jit
def _fista(
    operator: AbstractOperator, prior: AbstractPrior, y: Array, weight: Array, start: Array, norm: Array, n_iter: int, tol: Scalar
) -> Array:
    step = 0.99 / norm

    def going(state):
        _, _, _, _, k, change = state
        return (k < n_iter) & (change > tol)

    def body(state):
        x, ahead, t, dual, k, _ = state
        new, dual = prior.prox_from(ahead - step * operator.adjoint(operator(ahead) - y), weight * step, dual)
        moved = new - x
        t = jnp.where(jnp.sum((ahead - new) * moved) > 0, 1.0, t)
        t_new = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        change = jnp.linalg.norm(moved) / jnp.maximum(jnp.linalg.norm(new), jnp.finfo(x.dtype).tiny)
        return new, new + (t - 1) / t_new * moved, t_new, dual, k + 1, change

    one = jnp.ones((), y.dtype)
    state = (start, start, one, prior.dual(start), jnp.zeros((), jnp.int32), jnp.inf * one)
    return jax.lax.while_loop(going, body, state)[0]
