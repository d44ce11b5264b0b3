"""Structures found from patterns of second derivatives, against dense factors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import margaux as mx
from margaux.numerics.precision import precision
from margaux.numerics.sparsity import Probes, Reordered, asked, joined, structured
from margaux.numerics.structures import Dense, Eliminated


def positive(pattern, seed=0):
    """A positive definite matrix with that pattern."""
    a = np.random.default_rng(seed).normal(size=pattern.shape) * pattern
    a = a + a.T
    return a + np.diag(1 + np.abs(a).sum(axis=1))


def shuffled(matrix, seed=1):
    order = np.random.default_rng(seed).permutation(len(matrix))
    return matrix[np.ix_(order, order)]


def banded(d, width):
    return np.abs(np.subtract.outer(np.arange(d), np.arange(d))) <= width


def arrow(groups, k, rest, share=0.6, seed=2):
    """Groups of k that are independent given the rest, each with a part of it."""
    own = np.repeat(np.arange(groups), k)
    out = np.ones((len(own) + rest, len(own) + rest), bool)
    out[: len(own), : len(own)] = own[:, None] == own
    met = np.random.default_rng(seed).random((groups, rest)) < share
    out[: len(own), len(own) :] = met[own]
    out[len(own) :, : len(own)] = met[own].T
    return out


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        (banded(60, 1), mx.Band), (banded(60, 3), mx.Band), (arrow(40, 1, 8), Eliminated), (arrow(30, 2, 6), Eliminated),
        (np.kron(np.eye(20), np.ones((3, 3))) > 0, Eliminated), (banded(40, 39), Dense), (banded(40, 20), Dense),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mixed", [False, True])
def test_a_pattern_gives_its_structure_in_any_order(pattern, kind, mixed):
    matrix = positive(pattern)
    matrix = shuffled(matrix) if mixed else matrix
    structure = structured(joined(scipy.sparse.csr_matrix(matrix != 0)))
    inner = structure.inner if isinstance(structure, Reordered) else structure
    if kind is Eliminated:
        assert not isinstance(inner, Dense)  # short bands are as good for few groups
    else:
        assert isinstance(inner, kind)
    with precision(np.dtype("float64")):
        H, b = jnp.asarray(matrix), jnp.asarray(np.random.default_rng(3).normal(size=len(matrix)))
        curvature = structure.curvature(lambda z: -z @ H @ z / 2, jnp.ones(len(matrix)))
        for damping in (0.0, 2.5):
            exact, factor = matrix + damping * np.eye(len(matrix)), structure.factor(curvature, damping)
            np.testing.assert_allclose(factor.solve(b), np.linalg.solve(exact, b), atol=1e-12)
            assert float(factor.log_det()) == pytest.approx(np.linalg.slogdet(exact)[1], abs=1e-10)
            drawn = np.asarray(jax.vmap(factor.coloured)(jnp.eye(len(matrix))))
            np.testing.assert_allclose(drawn.T @ drawn, np.linalg.inv(exact), atol=1e-12)
        slopes = structure.factor(curvature, 0.0).slope_of_log_det()
        change = jax.jvp(lambda c: structure.factor(c, 0.0).log_det(), (curvature,), (curvature,))[1]
        pairs = zip(jax.tree.leaves(slopes), jax.tree.leaves(curvature), strict=True)
        assert float(sum(jnp.vdot(x, y) for x, y in pairs)) == pytest.approx(float(change), rel=1e-10)


def test_most_groups_are_eliminated():
    structure = structured(joined(scipy.sparse.csr_matrix(shuffled(positive(arrow(200, 2, 60, 0.3))) != 0)))
    assert isinstance(structure, Reordered) and isinstance(structure.inner, Eliminated)
    assert (structure.inner.groups, structure.inner.k) == (200, 2)


def test_what_may_be_together_is_found_also_where_a_coefficient_is_zero():
    def log_density(z, rho):
        return -jnp.sum((z[1:] - rho * z[:-1]) ** 2) - jnp.sum(jnp.exp(z)) + z[0] * jnp.where(rho > 5, z[9], 0.0)

    with precision(np.dtype("float64")):
        probes, z = Probes(log_density), jnp.zeros(10)
        np.testing.assert_array_equal(asked(probes.dependent, z, 0.0).toarray() > 0, banded(10, 1))
        np.testing.assert_array_equal(asked(probes.curved, z, 0.0).toarray() > 0, np.eye(10) > 0)
        assert asked(probes.curved, z, 6.0)[0, 9] and not asked(probes.dependent, z, 0.0)[0, 9]
