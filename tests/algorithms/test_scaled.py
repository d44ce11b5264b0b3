"""What the scaled ascent keeps: a matrix of up to 32 coordinates, a direction of more."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportArgumentType=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from margaux.algorithms.scaled import ScaledAscent
from margaux.algorithms.updates import Problem
from margaux.problem.space import as_space


@pytest.mark.parametrize(("size", "dense"), [(32, True), (33, False)])
def test_the_information_is_a_matrix_as_long_as_that_is_small(size, dense):
    with jax.enable_x64(True):
        params = {"a": jnp.ones(size)}
        algorithm = ScaledAscent(gain=mx.Constant(0.5), average=mx.LastIterate())
        state = algorithm.init(Problem(None, as_space(None, params), mx.NoPenalty(), 3), params, None)
        if dense:
            assert state["information"].shape == (32, 32) and not np.any(state["information"])
        else:
            start = np.cos(np.arange(1, 34) ** 2)
            np.testing.assert_allclose(state["direction"], start / np.linalg.norm(start))
            assert float(state["largest"]) == 0.0
