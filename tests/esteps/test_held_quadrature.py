"""Quadrature piece by piece against the same sum over all points at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from margaux.esteps.held import held
from margaux.numerics.precision import precision


class Skewed(mx.AbstractModel):
    """Counts whose log means are a latent's entries, far from zero in the log density."""

    def log_joint(self, params, z, y):
        return jnp.sum(y * z - jnp.exp(z)) - jnp.sum(z**2) / 2 + params["shift"]

    def init_latents(self, key, params, y):
        return jnp.zeros_like(y)


class Broken(Skewed):
    def log_joint(self, params, z, y):
        return jnp.where(z[0] > params["shift"], jnp.nan, -jnp.inf) + 0 * jnp.sum(z)


def taken(estep, model, shift, rows, y):
    def f(z, w):
        return {"mean": jnp.einsum("mb,mbd->d", w, z), "square": jnp.einsum("mb,mbd->d", w, z**2)}

    def run(estep, params, rows, y):
        batch = jax.tree.map(lambda leaf: leaf[None], (rows, y))
        value, _, info = estep.expect(f, (), model, params, *batch, 1)
        return value, info["log_marginal"][0]

    return jax.jit(run)(estep, {"shift": jnp.asarray(shift)}, rows, y)


@pytest.mark.parametrize("d, rules", [
    (1, [(21, None), (31, None), (85, None)]),
    (2, [(9, None), (15, None), (21, None), (35, 5.5)]),
    (3, [(5, None), (9, None), (13, None)]),
])  # fmt: skip
@pytest.mark.parametrize("shift", [0.0, 5000.0, -5000.0])
def test_the_sum_of_all_points(d, rules, shift):
    # In three dimensions without the corners, where these posteriors have next to nothing.
    rtol, atol = (1e-11, 1e-13) if d < 3 else (1e-6, 1e-6)
    with precision(np.dtype(np.float64)):
        y = jnp.asarray([4.0, 0.0, 1.0][:d])
        rows = {"mean": jnp.log(y + 0.5), "cholesky": jnp.tril(0.1 * jnp.ones((d, d))) + 0.6 * jnp.eye(d)}
        for n_nodes, reach in rules:
            for widening in (1.0, 1.4):
                rule = mx.Quadrature(n_nodes, widening=widening, held=True, reach=reach)
                whole, in_pieces = (taken(estep, Skewed(), shift, rows, y) for estep in (rule, held(rule, d)))
                for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(in_pieces), strict=True):
                    np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def test_grids_of_all_sizes_are_one_program():
    shapes = {
        jax.tree.structure(rule): [leaf.shape for leaf in jax.tree.leaves(rule)]
        for rule in (held(mx.Quadrature(nodes, held=True), 3) for nodes in (5, 9, 13, 17, 21))
    }
    assert len(shapes) == 1


@pytest.mark.parametrize("bound, expected", [(np.inf, -np.inf), (1.0, np.nan)])
def test_impossible_data_and_what_is_undefined(bound, expected):
    with precision(np.dtype(np.float64)):
        rows = {"mean": jnp.zeros(1), "cholesky": jnp.eye(1)}
        _, log_marginal = taken(held(mx.Quadrature(21, held=True), 1), Broken(), bound, rows, jnp.ones(1))
        np.testing.assert_equal(float(log_marginal), expected)


def test_units_come_one_by_one():
    estep = held(mx.Quadrature(5, held=True), 1)
    rows = {"mean": jnp.zeros((2, 1)), "cholesky": jnp.ones((2, 1, 1))}
    with pytest.raises(ValueError, match="of one unit, got 2"):
        estep.expect(lambda z, w: jnp.sum(w), (), Skewed(), {"shift": 0.0}, rows, jnp.ones((2, 1)), 1)


class Peaks(mx.AbstractModel):
    """Two skewed peaks, far apart in their own scales."""

    def log_joint(self, params, z, y):
        def peak(x):
            return jnp.sum(3 * x - jnp.exp(x))

        return jnp.logaddexp(peak(z / 0.3), params["shift"] + peak(-(z - y) / 0.5))

    def init_latents(self, key, params, y):
        return jnp.zeros_like(y)


@pytest.mark.parametrize(("d", "nodes"), [(1, 31), (2, 21)])
@pytest.mark.parametrize("widening", [1.0, 1.4])
def test_several_modes_have_a_grid_each(d, nodes, widening):
    """Beside a sum over a fine grid; a component without a share, and with no place, takes no part."""
    away, shift = np.array([6.0, 5.0][:d]), -0.7
    each = [np.linspace(-3, 9, 1201)] * d
    z = np.stack(np.meshgrid(*each, indexing="ij"), axis=-1)
    logs = np.logaddexp(
        np.sum(3 * z / 0.3 - np.exp(z / 0.3), axis=-1), shift + np.sum(-3 * (z - away) / 0.5 - np.exp(-(z - away) / 0.5), axis=-1)
    )
    total = np.exp(logs).sum() * 0.01**d
    mean = np.array([np.exp(logs).ravel() @ z[..., j].ravel() for j in range(d)]) / np.exp(logs).sum()
    with precision(np.dtype(np.float64)):
        eye = np.eye(d)
        rows = {
            "mean": np.stack([np.full(d, 0.3 * np.log(3.0)), away - 0.5 * np.log(3.0), np.full(d, np.nan)]),
            "cholesky": np.stack([0.3 / np.sqrt(3) * eye, 0.5 / np.sqrt(3) * eye, np.full((d, d), np.nan)]),
            "log_share": np.array([-0.4, -1.2, -np.inf]),
        }
        rule = held(mx.Quadrature(nodes, widening=widening, held=True), d)
        value, log_marginal = taken(rule, Peaks(), shift, jax.tree.map(jnp.asarray, rows), jnp.asarray(away))
    np.testing.assert_allclose(log_marginal, np.log(total), atol=1e-5)
    np.testing.assert_allclose(value["mean"], mean, rtol=1e-5)
