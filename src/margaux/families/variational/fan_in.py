r"""A prior under which what a unit receives varies as much whatever the number of its inputs: $N(0, 1/d)$ for the d weights that
a unit of a linear layer has, $N(0, 1)$ for biases and what else there is (Neal 1996, "Bayesian Learning for Neural Networks",
section 2.1)."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from .draws import channels, is_linear
from .priors import ByTensor


def fan_in(weights: PyTree, narrower: float = 1.0) -> ByTensor:
    """The prior of a network's weights. Of a callable, whose layers are not known, all scales are one.

    Args:
        narrower: what all scales are divided by.

    >>> import equinox as eqx
    >>> layer = eqx.nn.Linear(64, 10, key=jax.random.key(0))
    >>> [float(scale) for scale in fan_in(eqx.filter(layer, eqx.is_inexact_array)).scales]
    [0.125, 1.0]
    """
    scales = jax.tree.leaves(jax.tree.map(_scales, weights, is_leaf=is_linear))
    return ByTensor([scale / narrower for scale in scales])


def _scales(part: Any) -> Any:
    ones = jax.tree.map(lambda _: 1.0, part)
    if not is_linear(part):
        return ones
    # A layer named "scalar" has one unit.
    outputs = channels(part)[1]
    return eqx.tree_at(lambda layer: layer.weight, ones, (part.weight.size / outputs) ** -0.5)
