"""Sparse crossings: the same matrices, factors and estimates as dense ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from margaux import GLMM
from margaux.families.glmm import cells as sparse
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


@pytest.mark.parametrize(
    "formula", [pytest.param("y ~ x + (1 | a) + (1 | b)", marks=pytest.mark.slow), "y ~ x + (1 + x | a) + (1 + x | b) + (1 | c)"]
)
def test_factors_are_those_of_dense_edges(formula, monkeypatch):
    table, response = _table(), by_name("poisson")
    found = design(formula, table)
    dense = layouts.laid_out(found, response)
    monkeypatch.setattr(sparse, "PAIR", 0)
    few = layouts.laid_out(found, response)
    assert "cells" in few.units and "cells" not in dense.units
    start = started(found, response, dense)
    model = Mixed(response, dense.factors, start.scale, None, np.asarray(1.0))
    rng = np.random.default_rng(1)
    with precision(np.dtype("float64")):
        z, b = jnp.asarray(0.3 * rng.normal(size=dense.width)), jnp.asarray(rng.normal(size=dense.width))

        @jax.jit
        def answers(params, unit):
            structure = model.structure(params, unit)
            curvature = structure.curvature(None, z)
            factor = structure.factor(curvature, 0.25)
            change = jax.jvp(lambda c: structure.factor(c, 0.25).log_det(), (curvature,), (curvature,))[1]
            return (factor.log_det(), factor.solve(b), factor.coloured(b)), factor.slope_of_log_det(), curvature, change

        both, slopes = [], []
        for layout in (dense, few):
            unit = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), layout.units)
            numbers, slope, curvature, change = answers(jax.tree.map(jnp.asarray, start.params), unit)
            np.testing.assert_allclose(sum(np.vdot(a, b) for a, b in zip(slope, curvature, strict=True)), change, rtol=1e-10)
            both.append(numbers)
            slopes.append(slope)
        np.testing.assert_allclose(both[1][0], both[0][0], rtol=1e-12)
        np.testing.assert_allclose(both[1][1], both[0][1], atol=1e-12)
        np.testing.assert_allclose(both[1][2], both[0][2], atol=1e-12)
        np.testing.assert_allclose(slopes[1].blocks, slopes[0].blocks, atol=1e-12)
        np.testing.assert_allclose(slopes[1].rest, slopes[0].rest, atol=1e-12)
        place, group = few.units["cells"]["place"][0], few.units["cells"]["group"][0]
        np.testing.assert_allclose(slopes[1].edges, slopes[0].edges[:, group, place], atol=1e-12)


@pytest.mark.slow
def test_fits_are_the_same(monkeypatch):
    table = _table()
    dense = GLMM("y ~ x + (1 | a) + (1 | b)", family="poisson", method="laplace", verbose=False).fit(table)
    monkeypatch.setattr(sparse, "PAIR", 0)
    few = GLMM("y ~ x + (1 | a) + (1 | b)", family="poisson", method="laplace", verbose=False).fit(table)
    assert "cells" in few.layout_.units and few.certificate_.word == dense.certificate_.word
    np.testing.assert_allclose(float(few.loglik_), float(dense.loglik_), atol=1e-7)
    for name, value in dense.params_.items():
        np.testing.assert_allclose(few.params_[name], value, atol=1e-4 * dense.stderr_[name])
        np.testing.assert_allclose(few.stderr_[name], dense.stderr_[name], rtol=1e-4)


@pytest.mark.slow
def test_a_variance_without_information_ends_at_its_edge_as_by_dense_edges(monkeypatch):
    table = _table(seed=5)
    table["y"] = np.random.default_rng(5).poisson(np.exp(0.3 + 0.4 * table["x"]))
    fits = []
    for pair in (sparse.PAIR, 0):
        monkeypatch.setattr(sparse, "PAIR", pair)
        fits.append(GLMM("y ~ x + (1 | a) + (1 | b)", family="poisson", method="laplace", verbose=False).fit(table))
    dense, few = fits
    assert dense.is_singular_ and few.is_singular_ and few.certificate_.word == dense.certificate_.word
    np.testing.assert_allclose(float(few.loglik_), float(dense.loglik_), atol=1e-4)
