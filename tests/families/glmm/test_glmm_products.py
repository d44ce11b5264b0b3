"""Crossings that are only multiplied by: against the same matrices, factors and estimates of dense edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from margaux import GLMM
from margaux.families.glmm import cells, products
from margaux.families.glmm import layout as layouts
from margaux.families.glmm.fitting import started
from margaux.families.glmm.formula import design
from margaux.families.glmm.model import Mixed
from margaux.families.glmm.responses import by_name
from margaux.numerics.precision import precision


def _table(n=900, q=(60, 25, 12), seed=0):
    rng = np.random.default_rng(seed)
    codes = {name: rng.integers(0, size, n) for name, size in zip("abc", q, strict=True)}
    x = rng.normal(size=n)
    eta = 0.3 + 0.4 * x + sum(0.5 * rng.normal(size=q[i])[codes[name]] for i, name in enumerate("abc"))
    return pd.DataFrame({"y": rng.poisson(np.exp(eta)), "x": x} | codes)


SLOPES = "y ~ x + (1 + x | a) + (1 + x | b) + (1 | c)"


def _both(formula, monkeypatch, table=None):
    """The layouts with dense edges and with products, the model, and its first parameters."""
    table, response = _table() if table is None else table, by_name("poisson")
    found = design(formula, table)
    dense = layouts.laid_out(found, response)
    monkeypatch.setattr(cells, "MANY", 1)
    many = layouts.laid_out(found, response)
    assert "cells" not in dense.units and "met" in many.units["cells"]
    start = started(found, response, dense)
    return (dense, many), Mixed(response, dense.factors, start.scale, None, np.asarray(1.0)), start.params


def _factors(layouts, model, params, z, damping=0.25):
    out = []
    for layout in layouts:
        unit = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), layout.units)
        structure = model.structure(jax.tree.map(jnp.asarray, params), unit)
        out.append(structure.factor(structure.curvature(None, z), damping))
    return out


@pytest.mark.parametrize("formula", ["y ~ x + (1 | a) + (1 | b)", pytest.param(SLOPES, marks=pytest.mark.slow)])
def test_factors_are_those_of_dense_edges(formula, monkeypatch):
    monkeypatch.setattr(products, "PROBES", 1000)
    monkeypatch.setattr(products, "MORE", 1000)
    pair, model, params = _both(formula, monkeypatch)
    rng, d = np.random.default_rng(1), pair[0].width
    with precision(np.dtype("float64")):
        dense, many = _factors(pair, model, params, jnp.asarray(0.3 * rng.normal(size=d)))
        b = jnp.asarray(rng.normal(size=d))
        np.testing.assert_allclose(jax.jit(lambda b: many.solve(b))(b), dense.solve(b), atol=1e-8)
        error = float(jax.jit(lambda: many.log_det_error())())
        assert 0 < error < 0.2 and abs(float(jax.jit(lambda: many.log_det())() - dense.log_det())) < 4 * error
        # The derivative along any direction, by 1000 probes: blocks and edges of the cells, the rest as pairs.
        slope, exact = jax.jit(lambda: many.slope_of_log_det())(), dense.slope_of_log_det()
        np.testing.assert_allclose(slope.blocks, exact.blocks, atol=0.03 * np.abs(exact.blocks).max())
        np.testing.assert_allclose(slope.diagonal, np.diagonal(exact.rest), rtol=0.1)
        met = {name: pair[1].units["cells"][name][0] for name in ("one", "two", "place", "group")}
        np.testing.assert_allclose(slope.beside, 2 * exact.rest[met["one"], met["two"]], atol=0.1 * np.abs(exact.rest).max())
        edges = exact.edges[:, met["group"], met["place"]]
        np.testing.assert_allclose(slope.edges, edges, atol=0.1 * np.abs(edges).max())
        # Draws have the inverse for their covariance: the root is a root, whichever it is.
        eye = jnp.eye(d)
        root = jax.jit(jax.vmap(lambda u: many.coloured(u)))(eye)
        np.testing.assert_allclose(root.T @ root, jax.jit(jax.vmap(lambda b: dense.solve(b)))(eye), atol=1e-6)
        inverse = np.asarray(jax.jit(jax.vmap(lambda b: dense.solve(b)))(eye))
        first, blocks = 0, jax.jit(lambda: many.blocks_of_inverse())()
        for factor in model.in_order:
            for g in range(factor.groups):
                at = first + factor.k * g + np.arange(factor.k)
                np.testing.assert_allclose(blocks[factor.name][g], inverse[np.ix_(at, at)], atol=0.1 * inverse[at, at].max())
            first += factor.size


def test_a_matrix_that_is_not_positive_definite_gives_no_numbers(monkeypatch):
    pair, model, params = _both("y ~ x + (1 | a) + (1 | b)", monkeypatch)
    with precision(np.dtype("float64")):
        many = _factors(pair, model, params, jnp.zeros(pair[0].width), damping=-50.0)[1]
        assert not np.isfinite(float(many.log_det()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_fits_are_the_same_within_what_probes_leave_open(seed, monkeypatch):
    table = _table(seed=seed)
    dense = GLMM("y ~ x + (1 | a) + (1 | b)", family="poisson", method="laplace", verbose=False).fit(table)
    monkeypatch.setattr(cells, "MANY", 1)
    many = GLMM("y ~ x + (1 | a) + (1 | b)", family="poisson", method="laplace", verbose=False).fit(table)
    assert "met" in many.layout_.units["cells"]
    check = next(check for check in many.certificate_.checks if check.name == "probes")
    assert 0 < check.figure < 0.2 and "others would move the estimate" in check.sentence
    for name, value in dense.params_.items():
        np.testing.assert_allclose(many.params_[name], value, atol=4 * check.figure * dense.stderr_[name])
        np.testing.assert_allclose(many.stderr_[name], dense.stderr_[name], rtol=0.05)
    assert abs(float(many.loglik_) - float(dense.loglik_)) < 4 * many.loglik_.se
    for name in ("a", "b"):
        one, other = dense.ranef()[name], many.ranef()[name]
        np.testing.assert_allclose(other["estimate"], one["estimate"], atol=0.01)
        np.testing.assert_allclose(other["se"], one["se"], rtol=0.1)


@pytest.mark.slow
def test_a_gaussian_fit_says_that_determinants_are_estimated(monkeypatch):
    table = _table(seed=2)
    table["y"] = np.log1p(table["y"]) + np.random.default_rng(3).normal(0, 0.3, len(table))
    dense = GLMM("y ~ x + (1 | a) + (1 | b)", verbose=False).fit(table)
    monkeypatch.setattr(cells, "MANY", 1)
    many = GLMM("y ~ x + (1 | a) + (1 | b)", verbose=False).fit(table)
    assert "met" in many.layout_.units["cells"] and many.loglik_.se > 0 and dense.loglik_.se == 0
    assert abs(float(many.loglik_) - float(dense.loglik_)) < 4 * many.loglik_.se
    sentence = next(check.sentence for check in many.certificate_.checks if check.name == "approximation")
    assert "determinants, which are estimated with an error of" in sentence
