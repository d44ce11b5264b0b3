r"""The Gauss-Newton curvature of a network's log-likelihood, and the mode of its weights.

With $J_i$ (K, P) the Jacobian of the outputs of observation i in the weights and $\Lambda_i$ the curvature of
$-\log p(y_i\mid f)$, it is $C = \sum_iJ_i^\top\Lambda_iJ_i$ (Schraudolph 2002, "Fast curvature matrix-vector products for
second-order gradient descent"): positive, and the Hessian itself where outputs are linear in the weights. Sums over observations
are taken part by part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ...numerics.compiling import compiled
from ...numerics.ladder import rung
from ...numerics.precision import settle
from .evaluation import outputs_of_draws, slice_size
from .likelihoods import AbstractLikelihood
from .model import blocks
from .networks import ModuleNetwork, Network

#: numbers of a Jacobian that are made at a time
AT_ONCE = 20_000_000
#: steps to a mode, halvings of one, and products of a step, at most; the share of the slope that a step leaves
STEPS, HALVINGS, PRODUCTS, LEFT = 40, 20, 60, 1e-2
#: weights up to which the Hessian is written out, and the least curvature of a direction, in units of the prior's
WRITTEN, FLAT = 300, 1e-3
#: weights times observations that all products of a search for a mode may pass through
PASSED = 1_000_000_000


class Part(Network):
    """A network as a function of some of its weights, the others being held.

    Args:
        network: the whole. held: its weights, None where they are free.
    """

    function: None
    network: Network
    held: PyTree

    def __init__(self, network: Network, held: PyTree) -> None:
        self.function, self.network, self.held = None, network, held

    def outputs(self, weights, x):
        return self.network.outputs(eqx.combine(weights, self.held), x)

    @property
    def stacked(self) -> bool:
        return isinstance(self.network, ModuleNetwork) and self.network.stacked

    def module(self, weights: PyTree) -> Any:
        """The module with these weights; of a callable, the tree of all of them."""
        every = eqx.combine(weights, self.held)
        return self.network.module(every) if isinstance(self.network, ModuleNetwork) else every


class Linearised(Network):
    """A network as a linear function of its weights, that of its slope at `mode`."""

    function: None
    network: Network
    mode: PyTree

    def __init__(self, network: Network, mode: PyTree) -> None:
        self.function, self.network, self.mode = None, network, mode

    def outputs(self, weights, x):
        away = jax.tree.map(jnp.subtract, weights, self.mode)
        return sum(jax.jvp(lambda w: self.network.outputs(w, x), (self.mode,), (away,)))


@compiled
def jacobians(network: Network, weights: PyTree, x: PyTree) -> Array:
    """(n, k, P) of the outputs in the weights."""
    flat, unravel = ravel_pytree(weights)

    def one(x):
        return jax.jacrev(lambda w: network.outputs(unravel(w), jax.tree.map(lambda leaf: leaf[None], x))[0])(flat)

    return jax.vmap(one)(x)


def parts_of_jacobian(
    network: Network, weights: PyTree, x: np.ndarray, outputs: int
) -> Iterator[tuple[slice, Float[np.ndarray, "b k p"]]]:
    """Jacobians of some observations after the other, in double precision."""
    n, size = len(x), sum(np.size(leaf) for leaf in jax.tree.leaves(weights))
    rows = min(max(AT_ONCE // (outputs * size), 1), rung(n))
    for first in range(0, n, rows):
        ids = np.minimum(np.arange(first, first + rows), n - 1)
        found = np.asarray(jacobians(network, weights, settle(x[ids], np.dtype(float))))
        yield slice(first, min(first + rows, n)), found[: n - first]


@compiled
def bent(likelihood: AbstractLikelihood, own: dict[str, Any], outputs: Array, y: Array) -> tuple[Array, Array]:
    """Slopes (n, k) and curvatures (n, k, k) of the log-likelihood of outputs (m, n, k), averaged over draws."""

    def log_prob(f, y):
        return likelihood.log_prob(own, f[None], y[None])[0]

    def draw(total, f):
        slope, hessian = jax.vmap(jax.grad(log_prob))(f, y), jax.vmap(jax.hessian(log_prob))(f, y)
        return (total[0] + slope, total[1] - hessian), None

    m, n, k = outputs.shape
    total, _ = jax.lax.scan(draw, (jnp.zeros((n, k)), jnp.zeros((n, k, k))), outputs)
    return total[0] / m, total[1] / m


def roots(matrices: Float[np.ndarray, "n k k"]) -> Float[np.ndarray, "n k k"]:
    """R of each matrix, with R R' = it."""
    values, vectors = np.linalg.eigh(matrices)
    return vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]


class Objective:
    """The log-likelihood of observations as a function of weights, in double precision.

    Args:
        network: of the weights that are free. weights: a tree of them. x, y: observations.
    """

    def __init__(self, network: Network, weights: PyTree, likelihood: AbstractLikelihood, x: np.ndarray, y: np.ndarray) -> None:
        double = np.dtype(float)
        self.network, self.likelihood = settle(network, double), settle(likelihood, double)
        self.x, self.y = x, settle(np.asarray(y), double)
        self.size = sum(np.size(leaf) for leaf in jax.tree.leaves(weights))
        self._leaves, self._structure = jax.tree.flatten(weights)
        self.start = np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in self._leaves])
        slices = math.ceil(len(y) / slice_size(network, self.tree(np.zeros(self.size)), x[:1], double))
        self._data = settle(blocks(x, np.asarray(y), slices), double)

    def tree(self, flat: Array | np.ndarray) -> PyTree:
        """Weights in their tree."""
        ends = np.cumsum([np.size(leaf) for leaf in self._leaves])[:-1]
        parts = zip(np.split(np.asarray(flat), ends), self._leaves, strict=True)
        return jax.tree.unflatten(self._structure, [part.reshape(np.shape(leaf)) for part, leaf in parts])

    def outputs(self, flat: np.ndarray) -> Float[np.ndarray, "n k"]:
        means = self.tree(flat)
        return outputs_of_draws(self.network, means, jax.tree.map(np.zeros_like, means), self.x, 1, 0, np.dtype(float))[0]

    def slope(self, flat: np.ndarray, own: dict[str, Any]) -> tuple[float, Float[np.ndarray, " p"]]:
        """Value and gradient."""
        value, slope = _slope(self.network, self.likelihood, settle(own, np.dtype(float)), self._placed(flat), self._data)
        return float(value), np.asarray(slope)

    def curved(self, flat: np.ndarray, own: dict[str, Any], along: np.ndarray) -> Float[np.ndarray, " p"]:
        """Minus the Hessian times a vector."""
        weights, own = self._placed(flat), settle(own, np.dtype(float))
        return np.asarray(_curved(self.network, self.likelihood, own, weights, self._data, self._placed(along)))

    def hessian(self, flat: np.ndarray, own: dict[str, Any]) -> Float[np.ndarray, "p p"]:
        """Minus the Hessian."""
        weights, own = self._placed(flat), settle(own, np.dtype(float))
        return np.asarray(_hessian(self.network, self.likelihood, own, weights, self._data))

    def _placed(self, flat: np.ndarray) -> PyTree:
        return settle(self.tree(np.asarray(flat, float)), np.dtype(float))


@compiled
def _slope(network: Network, likelihood: AbstractLikelihood, own: dict, weights: PyTree, data: PyTree) -> tuple[Array, Array]:
    def value(weights, unit):
        return jnp.sum(unit["weight"] * likelihood.log_prob(own, network.outputs(weights, unit["x"]), unit["y"]))

    def add(total, unit):
        return jax.tree.map(jnp.add, total, jax.value_and_grad(value)(weights, unit)), None

    zero = jnp.zeros(()), jax.tree.map(jnp.zeros_like, weights)
    total, slope = jax.lax.scan(add, zero, data)[0]
    return total, ravel_pytree(slope)[0]


@compiled
def _curved(network: Network, likelihood: AbstractLikelihood, own: dict, weights: PyTree, data: PyTree, along: PyTree) -> Array:
    def value(weights, unit):
        return jnp.sum(unit["weight"] * likelihood.log_prob(own, network.outputs(weights, unit["x"]), unit["y"]))

    def add(total, unit):
        bent = jax.jvp(lambda w: jax.grad(value)(w, unit), (weights,), (along,))[1]
        return jax.tree.map(jnp.subtract, total, bent), None

    return ravel_pytree(jax.lax.scan(add, jax.tree.map(jnp.zeros_like, weights), data)[0])[0]


@compiled
def _hessian(network: Network, likelihood: AbstractLikelihood, own: dict, weights: PyTree, data: PyTree) -> Array:
    flat, unravel = ravel_pytree(weights)

    def value(flat, unit):
        outputs = network.outputs(unravel(flat), unit["x"])
        return jnp.sum(unit["weight"] * likelihood.log_prob(own, outputs, unit["y"]))

    def add(total, unit):
        return total - jax.hessian(value)(flat, unit), None

    return jax.lax.scan(add, jnp.zeros((flat.size, flat.size)), data)[0]


class Mode(NamedTuple):
    """Where steps ended, and half the square of the last step's length by the curvature: how much higher the log posterior is at
    the maximum."""

    flat: Float[np.ndarray, " p"]
    away: float


def mode(
    objective: Objective,
    flat: Float[np.ndarray, " p"],
    own: dict[str, Any],
    precision: Float[np.ndarray, " p"],
    inverse: Callable[[np.ndarray], np.ndarray],
    close: float,
) -> Mode:
    r"""The maximum of $\log p(y\mid w) - \tfrac12w^\top\Lambda w$ by Newton's steps: of few weights with the eigenvalues of the
    curvature by their modulus, of more by conjugate gradients that end where it is not positive (Steihaug 1983).

    Args:
        precision: the diagonal of the prior's. inverse: about that of the curvature of all. close: where `Mode.away` ends.
    """

    def at(flat):
        value, slope = objective.slope(flat, own)
        return precision @ flat**2 / 2 - value, precision * flat - slope

    value, slope = at(flat)
    away, left = np.inf, max(PASSED // (objective.size * len(objective.y)), 10)
    for _ in range(STEPS):
        if left < 1:
            break
        if objective.size <= WRITTEN:
            step, used = _by_modulus(objective.hessian(flat, own), precision, slope), objective.size
        else:
            step, used = _solved(
                lambda v, flat=flat: objective.curved(flat, own, v) + precision * v, slope, inverse, min(PRODUCTS, left)
            )
        step, left = -step, left - used
        away = float(-slope @ step) / 2
        if not away > close:
            break
        for halvings in range(HALVINGS):
            there = flat + 0.5**halvings * step
            found, own_slope = at(there)
            if found <= value - 1e-4 * 0.5**halvings * away + 1e-13 * abs(value):
                break
        else:
            break  # no step is too short: rounding
        flat, value, slope = there, found, own_slope
    return Mode(flat, max(away, 0.0))


def _by_modulus(
    curvature: Float[np.ndarray, "p p"], precision: Float[np.ndarray, " p"], slope: Float[np.ndarray, " p"]
) -> Float[np.ndarray, " p"]:
    """|C + Lambda|^-1 times the slope, in units of the prior's scales."""
    scales = precision**-0.5
    values, vectors = np.linalg.eigh(scales[:, None] * curvature * scales + np.eye(len(slope)))
    return scales * (vectors @ (vectors.T @ (scales * slope) / np.maximum(np.abs(values), FLAT)))


def _solved(product: Callable, right: np.ndarray, inverse: Callable, most: int) -> tuple[np.ndarray, int]:
    """Of product(x) = right, by conjugate gradients in the metric of an approximate inverse, and how many products it took."""
    x, left = np.zeros_like(right), right.copy()
    along = close = inverse(left)
    size = start = left @ close
    for count in range(most):
        if not size > LEFT**2 * start:
            return x, count
        image = product(along)
        curvature = along @ image
        if not curvature > 0:
            return x if count else along, count + 1
        length = size / curvature
        x, left = x + length * along, left - length * image
        close = inverse(left)
        size, before = left @ close, size
        along = close + size / before * along
    return x, most
