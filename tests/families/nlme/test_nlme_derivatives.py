"""Closed forms of a mixed-effects model's derivatives against those of its log joint, differentiated."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from margaux.families.nlme.error import as_error
from margaux.families.nlme.individual import LogNormal, Normal
from margaux.families.nlme.model import MixedEffects
from margaux.families.nlme.outcomes import Bernoulli, Continuous
from margaux.numerics.precision import precision
from margaux.problem.model import differentiated


def line(p, row):
    return p["a"] + p["b"] * row["x"] + 0.1 * p["c"] * row["x"] ** 2


def model_of(outcome, blocks=(), random_c=True):
    individual = (("a", LogNormal(1.0)), ("b", Normal(0.5)), ("c", Normal(0.2, random=random_c)))
    return MixedEffects(outcome, individual, (0, 0, 1, 2), blocks)


CASES = {
    "constant": model_of(Continuous(line, as_error("constant"))),
    "exponential, a block": model_of(Continuous(line, as_error("exponential")), ((0, 2),)),
    "combined, a block of all": model_of(Continuous(line, as_error("combined")), ((0, 1, 2),)),
    "proportional, one without effect": model_of(Continuous(line, as_error("proportional")), random_c=False),
    "binary": model_of(Bernoulli(line), ((0, 1),)),
}


@pytest.mark.parametrize("name", CASES)
def test_two_derivatives(name):
    model, rng = CASES[name], np.random.default_rng(4)
    with precision(np.dtype(np.float64)):
        b, m, rows = 3, 4, 5
        d = len(model.random)
        mask = np.ones((b, rows))
        mask[1, 3:] = 0.0
        y = (rng.random((b, rows)) < 0.5) * 1.0 if name == "binary" else rng.uniform(0.5, 3.0, (b, rows))
        design = np.stack([np.ones(b), rng.normal(size=b), np.ones(b), np.ones(b)], axis=1)
        batch = jax.tree.map(jnp.asarray, {"rows": {"x": rng.uniform(0, 2, (b, rows)), "y": y}, "mask": mask, "design": design})
        root = np.eye(3) + 0.3 * np.tril(rng.normal(size=(3, 3)))
        params: dict[str, Any] = {"beta": rng.normal(0.3, 0.1, model.split)}
        if model.split < 4:
            params["fixed"] = np.array([0.2])
        if model.independent:
            params["omega2"] = rng.uniform(0.2, 0.6, len(model.independent))
        if model.blocks:
            params["omega"] = tuple((root @ root.T)[np.ix_(block, block)] for block in model.blocks)
        if model.outcome.error_names:
            params["error"] = rng.uniform(0.3, 0.6, len(model.outcome.error_names))
        flat, back = ravel_pytree(jax.tree.map(jnp.asarray, params))
        z = jnp.asarray(rng.normal(0.3, 0.4, (m, b, d)))
        w = jnp.asarray(rng.uniform(size=(m, b)))
        ours = jax.jit(lambda flat: model.derivatives(back(flat), z, w, batch))(flat)
        theirs = jax.jit(lambda flat: differentiated(model, back, flat, z, w, batch))(flat)
        for one, other in zip(ours, theirs, strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_effects_far_from_zero_lose_no_digits():
    """A mean of 10^5 with a standard deviation of 0.4, as of a calendar time: squares of ten digits more than their spread."""
    individual = (("a", Normal(1e5)), ("b", Normal(0.5)))
    outcome = Continuous(lambda p, row: p["a"] + p["b"] * row["x"], as_error("constant"))
    model, rng = MixedEffects(outcome, individual, (0, 1), ((0, 1),)), np.random.default_rng(5)
    with precision(np.dtype(np.float64)):
        b, m, rows = 3, 6, 5
        x = rng.uniform(0, 2, (b, rows))
        y = 1e5 + 0.5 * x + rng.normal(0, 0.4, x.shape)
        batch = {"rows": {"x": x, "y": y}, "mask": np.ones((b, rows)), "design": np.ones((b, 2))}
        params = {"beta": np.array([1e5, 0.5]), "omega": (np.array([[0.16, 0.05], [0.05, 0.2]]),), "error": np.array([0.4])}
        batch, params = jax.tree.map(jnp.asarray, (batch, params))
        flat, back = ravel_pytree(params)
        z = jnp.asarray(np.array([1e5, 0.5]) + rng.normal(0, 0.4, (m, b, 2)))
        w = jnp.asarray(rng.uniform(size=(m, b)))
        ours = jax.jit(lambda flat: model.derivatives(back(flat), z, w, batch))(flat)
        theirs = jax.jit(lambda flat: differentiated(model, back, flat, z, w, batch))(flat)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)
