r"""Kronecker factors of the Gauss-Newton curvature of dense layers.

A layer gives $Wa_i$ of what it receives, $a_i$ (one below it where it has a bias), and $G_i$ (K, o) is the Jacobian of the
outputs in what it gives. Its curvature $\sum_i(G_i^\top\Lambda_iG_i)\otimes(a_ia_i^\top)$ is taken for

$$\Big(\sum_iG_i^\top\Lambda_iG_i\Big)\otimes\Big(\frac1n\sum_ia_ia_i^\top\Big)$$

(Martens and Grosse 2015, "Optimizing neural networks with Kronecker-factored approximate curvature", section 3; Botev, Ritter and
Barber 2017): exact where one of the two is the same of all observations, as in a linear regression.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ...numerics.compiling import compiled
from ...numerics.ladder import rung
from ...numerics.precision import settle
from .draws import is_linear, layers
from .gauss_newton import AT_ONCE, Part
from .layers import Dense, over_channels
from .networks import floating

ONCE = (
    'Kronecker factors are of dense layers that a network calls once for each observation, and this one {what}; use '
    'structure="diagonal", layers="last", or structure="full" of a small network'
)  # fmt: skip


def dense_layers(network: Part, indices: PyTree) -> dict[int, Any]:
    """Dense layers whose weights are free, by their number among all layers; their weights are the indices of a tree."""
    module = network.module(indices)
    found = layers(module) if isinstance(module, eqx.Module) else []
    return {
        j: layer for j, layer in enumerate(found)
        if isinstance(layer, eqx.nn.Linear | Dense) and np.issubdtype(np.asarray(layer.weight).dtype, np.integer)
    }  # fmt: skip


def index_of(layer: Any) -> np.ndarray:
    """(o, i) of the weights of such a layer, with the bias as a last column."""
    weight = np.reshape(layer.weight, (-1, np.shape(layer.weight)[-1]))
    return weight if layer.bias is None else np.column_stack([weight, np.ravel(layer.bias)])


def factors(
    network: Part, weights: PyTree, which: tuple[int, ...], x: np.ndarray, curvature: Float[np.ndarray, "n k k"]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Outer (o, o) and inner (i, i) factor of each layer.

    Args:
        which: numbers of the layers. curvature: of the log-likelihood in the outputs.

    Raises:
        ValueError: a layer is called several times for an observation, or not at all.
    """
    n, double = len(x), np.dtype(float)
    chosen = [layer for j, layer in enumerate(layers(network.module(weights))) if j in which]
    numbers = sum(np.size(layer.weight) / np.shape(layer.weight)[-1] * (curvature.shape[1] + 1) for layer in chosen)
    rows, total = min(max(int(AT_ONCE // numbers), 1), rung(n)), None
    for first in range(0, n, rows):
        ids = np.minimum(np.arange(first, first + rows), n - 1)
        inside = np.arange(first, first + rows) < n
        data = settle((x[ids], curvature[ids] * inside[:, None, None], inside.astype(float)), double)
        try:
            found = jax.tree.map(np.asarray, _factors(network, weights, which, *data))
        except jax.errors.UnexpectedTracerError as error:
            raise ValueError(ONCE.format(what="calls one inside of a loop or a map")) from error
        total = found if total is None else jax.tree.map(np.add, total, found)
    assert total is not None
    return [(outer, inner / n) for outer, inner in total]


def factorises(network: Part, weights: PyTree, x: np.ndarray, outputs: int) -> bool:
    """Whether its dense layers have such factors."""
    indices = jax.tree.map(lambda leaf: np.zeros(np.shape(leaf), int), weights)
    try:
        factors(network, weights, tuple(dense_layers(network, indices)), x[:1], np.zeros((1, outputs, outputs)))
    except ValueError:
        return False
    return True


class _Listening(eqx.Module):
    """A layer that notes what it receives, and adds numbers to what it gives."""

    layer: Any
    more: Array
    heard: Any = eqx.field(static=True)

    def __call__(self, x, *, key=None):
        if self.heard.noted is not None:
            raise ValueError(ONCE.format(what="calls one several times"))
        self.heard.noted = x
        out = self.layer(x)
        return out + jnp.reshape(self.more, out.shape) if self.more.ndim == 1 else out + over_channels(self.more, out)


class _Note:
    noted: Any = None


@compiled
def _factors(
    network: Part, weights: PyTree, which: tuple[int, ...], x: Array, curvature: Array, inside: Array
) -> list[tuple[Array, Array]]:
    module, n, k = network.module(weights), x.shape[0], curvature.shape[1]
    chosen = [layer for j, layer in enumerate(layers(module)) if j in which]

    def single(more, x):
        notes, numbers = [_Note() for _ in which], iter(range(len(layers(module))))
        ordered = iter(zip(more, notes, strict=True))

        def part(layer):
            if not is_linear(layer):
                return layer
            return _Listening(layer, *next(ordered)) if next(numbers) in which else layer

        out = jax.tree.map(part, module, is_leaf=is_linear)(x)
        if any(note.noted is None for note in notes):
            raise ValueError(ONCE.format(what="does not call one"))
        return out, [note.noted for note in notes]

    def outputs(more):
        rows = floating(x, weights)
        if network.stacked:
            out, heard = single([leaf.T for leaf in more], jnp.moveaxis(rows, 0, -1))
            return out.T, [jnp.moveaxis(one, -1, 0) for one in heard]
        out, heard = jax.vmap(single)(more, rows)
        return out.reshape(n, -1), heard

    zeros = [jnp.zeros((n, layer.weight.size // layer.weight.shape[-1])) for layer in chosen]
    _, back, heard = jax.vjp(outputs, zeros, has_aux=True)
    given = jax.vmap(lambda one: back(jnp.broadcast_to(one, (n, k)))[0])(jnp.eye(k))
    out = []
    for layer, received, slopes in zip(chosen, heard, given, strict=True):
        if received.size != n * layer.weight.shape[-1]:
            raise ValueError(ONCE.format(what="calls one for several parts of it"))
        rows = received.reshape(n, -1)
        rows = rows if layer.bias is None else jnp.column_stack([rows, jnp.ones(n)])
        bent = jnp.einsum("nkl,lno->nko", curvature, slopes)
        out.append((jnp.einsum("kno,nkp->op", slopes, bent), (rows * inside[:, None]).T @ rows))
    return out
