"""Proximal particles on Laplace priors: the envelope's gradients, the tables, a regression beside Metropolis chains."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from margaux.reproduce import _proximal, successors


def test_gradients_of_the_envelope_are_those_of_its_definition():
    """In x, (x - prox) / lambda; in a place, of which the prior is a function of the distance alone, minus the same."""
    x, y, theta, smoothing = np.array([-1.0, 0.45, 0.55, 2.0]), np.array([0.3, 0.1, -1.0, 1.0]), 0.5, 0.2
    with jax.enable_x64(True):
        params, unit = {"theta": jnp.asarray(theta)}, jnp.asarray(y)
        for model in (_proximal.Location(), _proximal.Scale()):
            envelope = _proximal.Envelope(model, smoothing)
            slope = jax.vmap(jax.grad(envelope.log_joint, argnums=1), in_axes=(None, 0, 0))(params, jnp.asarray(x), unit)
            near = model.prox(params, jnp.asarray(x), jnp.asarray(smoothing), unit)
            np.testing.assert_allclose(slope, y - x - (x - near) / smoothing, atol=1e-12)
        score = jax.vmap(jax.grad(envelope.log_joint), in_axes=(None, 0, 0))(params, jnp.asarray(x), unit)["theta"]
        np.testing.assert_allclose(score, np.abs(near) * np.exp(-theta) - 1, atol=1e-12)
        score = jax.vmap(jax.grad(_proximal.Envelope(_proximal.Location(), smoothing).log_joint), in_axes=(None, 0, 0))
        expected = np.clip((x - theta) / smoothing, -1, 1)
        np.testing.assert_allclose(score(params, jnp.asarray(x), unit)["theta"], expected, atol=1e-12)


def test_the_place_of_a_laplace_prior_is_found_by_all():
    """Errors of three runs from a start at three times the maximum."""
    problem = _proximal.problems()["Laplace place"]
    chosen = {name: problem.methods[name] for name in ("MYPGD", "MYPGD of the envelope", "PIPGLA", "SOUL, MALA")}
    found: Any = successors.errors(problem._replace(methods=chosen, n_iter=2000), 3)
    assert list(found.index) == list(chosen)
    assert (found["rmse"] < 0.05).all()  # the standard error is 0.2


def metropolis(X, y, steps, seed, groups=8, each=8, start=-5.5):
    """Robbins and Monro's steps along signs of x - theta, x by random-walk Metropolis: mean of groups, and its standard error."""
    rng, d = np.random.default_rng(seed), X.shape[1]
    signed = (2 * y - 1)[:, None] * X

    def loglik(x):
        return -np.logaddexp(0, -x @ signed.T).sum(axis=1)

    theta = start + rng.normal(size=(groups, 1))
    x = np.repeat(theta, each, axis=0) + rng.normal(size=(groups * each, d))
    value, root, seen, kept = loglik(x), 0.3 * np.eye(d), [], []
    for k in range(1, steps + 1):
        place, proposal = np.repeat(theta, each, axis=0), x + 2.38 / d**0.5 * rng.normal(size=x.shape) @ root.T
        new = loglik(proposal)
        ratio = new - np.abs(proposal - place).sum(axis=1) - value + np.abs(x - place).sum(axis=1)
        taken = np.log(rng.uniform(size=len(x))) < ratio
        x, value = np.where(taken[:, None], proposal, x), np.where(taken, new, value)
        score = np.sign(x - place).sum(axis=1).reshape(groups, each).mean(axis=1, keepdims=True)
        theta = theta + min(0.1, 2 * k**-0.6) * score / d
        if k % 10 == 0 and k <= steps // 4:
            seen.append(x.copy())
        if k in (steps // 16, steps // 8, steps // 4):
            root = np.linalg.cholesky(np.cov(np.concatenate(seen[len(seen) // 2 :]).T) + 1e-6 * np.eye(d))
        if k > steps // 3:
            kept.append(theta[:, 0])
    means = np.mean(kept, axis=0)
    return means.mean(), means.std(ddof=1) / groups**0.5


@pytest.mark.slow
def test_the_regression_s_maximum_is_that_of_metropolis_chains():
    data = _proximal.regression()
    found, se = metropolis(data["X"][0], data["y"][0], 16_000, seed=2)
    assert se < 0.05 and abs(found - _proximal.LOGISTIC) < 4 * se
