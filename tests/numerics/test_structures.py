"""Factors of precision matrices by their structure, against dense ones of NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from margaux.numerics.precision import precision
from margaux.numerics.structures import Dense


def compare(structure, matrix, shapes=None):
    """Read from a quadratic form, then solved, measured and drawn from."""
    structure = structure.ready(shapes)
    with precision(np.dtype("float64")):
        H = jnp.asarray(matrix)
        curvature = structure.curvature(lambda z: -z @ H @ z / 2, jnp.ones(len(matrix)))
        b = jnp.asarray(np.random.default_rng(1).normal(size=len(matrix)))
        for damping in (0.0, 2.5):
            exact = matrix + damping * np.eye(len(matrix))
            factor = structure.factor(curvature, damping)
            np.testing.assert_allclose(factor.solve(b), np.linalg.solve(exact, b), atol=1e-12)
            assert float(factor.log_det()) == pytest.approx(np.linalg.slogdet(exact)[1], abs=1e-11)
            drawn = np.asarray(jax.vmap(factor.coloured)(jnp.eye(len(matrix))))
            np.testing.assert_allclose(drawn.T @ drawn, np.linalg.inv(exact), atol=1e-12)


def symmetric(d, seed=0):
    a = np.random.default_rng(seed).normal(size=(d, d))
    return (a + a.T) / 2


@pytest.mark.parametrize("d", [1, 6])
def test_dense(d):
    compare(Dense(), symmetric(d) + 8 * np.eye(d))


@pytest.mark.parametrize("width, d", [(1, 1), (1, 7), (2, 1), (3, 2), (3, 7)])
def test_bands_longer_and_shorter_than_their_width(width, d):
    far = np.abs(np.subtract.outer(np.arange(d), np.arange(d))) > width
    compare(mx.Band(width), np.where(far, 0.0, symmetric(d)) + 10 * np.eye(d))


@pytest.mark.parametrize("k", [1, 2])
def test_groups_between_other_latents(k):
    groups, apart = 5, jax.ShapeDtypeStruct
    shapes = {"a": apart((2,), float), "b": apart((groups, k), float), "c": apart((), float)}
    matrix = symmetric(groups * k + 3)
    own = np.repeat(np.arange(groups), k)
    matrix[2:-1, 2:-1] *= own[:, None] == own[None]
    compare(mx.Blocks("b"), matrix + 12 * np.eye(len(matrix)), shapes)


@pytest.mark.parametrize("structure, shapes", [(Dense(), None), (mx.Band(2), None), (mx.Blocks("b"), {"b": jnp.zeros((3, 1))})])
def test_what_is_not_positive_definite_is_told(structure, shapes):
    with precision(np.dtype("float64")):
        structure = structure.ready(shapes)
        curvature = structure.curvature(lambda z: jnp.sum(z**2) / 2, jnp.ones(3))
        factor = structure.factor(curvature, 0.0)
        assert not np.isfinite(factor.log_det() + np.sum(np.asarray(factor.coloured(jnp.ones(3)))))
        assert np.isfinite(structure.factor(curvature, 2.0).solve(jnp.ones(3))).all()


def test_refusals():
    with pytest.raises(ValueError, match="width of a band must be at least 1"):
        mx.Band(0)
    assert 'no groups "b" among the latents, which are a' in str(mx.Blocks("b").trouble({"a": jnp.zeros(3)}))
    assert "an array without names" in str(mx.Blocks("b").trouble(jnp.zeros(3)))
