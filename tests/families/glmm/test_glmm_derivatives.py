"""Closed forms of a mixed model's derivatives against those of its log joint, differentiated."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree

from margaux.families.glmm.fitting import started
from margaux.families.glmm.formula import design
from margaux.families.glmm.layout import laid_out
from margaux.families.glmm.model import Mixed
from margaux.families.glmm.responses import Hurdle, by_name
from margaux.numerics.precision import precision, settle
from margaux.problem.model import differentiated


@pytest.mark.parametrize("family, formula", [
    (by_name("poisson"), "y ~ x + (x | g)"),
    pytest.param(by_name("nbinom2"), "y ~ x + (x || g)", marks=pytest.mark.slow),
    pytest.param(Hurdle(by_name("nbinom2")), "y ~ x + (1 | h/g)", marks=pytest.mark.slow),
    pytest.param(by_name("gaussian"), "y ~ x + (1 | g) + (1 | c)", marks=pytest.mark.slow),
])  # fmt: skip
def test_two_derivatives(family, formula):
    rng = np.random.default_rng(8)
    g = np.repeat(np.arange(12), 4)
    data = pd.DataFrame({"x": rng.normal(size=48), "g": g, "h": g // 3, "c": rng.integers(0, 5, 48), "y": rng.poisson(2.0, 48)})
    found = design(formula, data, weights=rng.uniform(0.5, 2.0, 48))
    layout = laid_out(found, family)
    start = started(found, family, layout)
    model = Mixed(family, layout.factors, start.scale)
    dtype = np.dtype(np.float64)
    with precision(dtype):
        model, params, units = settle((model, start.params, layout.units), dtype)
        flat, back = ravel_pytree(params)
        flat = flat + 0.1 * jnp.asarray(rng.normal(size=flat.size))
        b = len(layout.rows)
        first = model.init_latents(None, params, jax.tree.map(lambda leaf: leaf[0], units))
        z = {name: jnp.asarray(rng.normal(size=(3, b, *one.shape))) for name, one in first.items()}
        w = jnp.asarray(rng.uniform(size=(3, b)))
        ours = jax.jit(lambda flat: model.derivatives(back(flat), z, w, units))(flat)
        theirs = jax.jit(lambda flat: differentiated(model, back, flat, z, w, units))(flat)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
