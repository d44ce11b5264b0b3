"""Verdicts on variational posteriors: whether the ELBO is at its highest, against closed forms and by fits cut short."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx

normal = jax.scipy.stats.norm.logpdf


def regression(n=100, d=3, seed=0, share=0.3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) @ np.linalg.cholesky((1 - share) * np.eye(d) + share).T
    return x, x @ rng.normal(size=d) + rng.normal(size=n)


def by_density(x, y, **settings):
    return mx.fit_variational(lambda w, row: normal(row["y"], row["x"] @ w), np.zeros(x.shape[1]), {"x": x, "y": y},
                              log_prior=lambda w: jnp.sum(normal(w)), progress=False, **settings)  # fmt: skip


def test_a_density_fitted_to_the_end_is_certified_and_one_cut_short_is_not():
    x, y = regression()
    found = by_density(x, y)
    precision = x.T @ x + np.eye(3)
    np.testing.assert_allclose(found.mean, np.linalg.solve(precision, x.T @ y), atol=0.02 * np.diag(precision).min() ** -0.5)
    assert found.certificate.word == "certified" and found.certificate["gradient"].figure < 0.05
    # The figure is how far the closed form is, in posterior standard deviations, whatever the posterior is.
    short = by_density(x, y, epochs=8)
    check = short.certificate["gradient"]
    assert short.certificate.word == "failed" and "raise epochs=" in check.sentence


def test_an_elbo_without_an_end_is_not_certified():
    # Minus the ELBO curves upwards nowhere: the density has no mode.
    found = mx.fit_variational(lambda w: jnp.sum(0.5 * w**2 - 0.4 * jnp.cos(w)), np.zeros(2), epochs=20, progress=False)
    assert found.certificate.word != "certified" and "curves upwards" in str(found.certificate)


@pytest.mark.parametrize("kind", ["gaussian", "poisson", "classes"])
def test_one_layer_ends_at_the_highest_elbo_by_default(kind):
    x, y = regression(share=0.97)
    layer = eqx.nn.Linear(3, 2 if kind == "classes" else 1, key=jax.random.key(0))
    if kind == "classes":
        model = mx.BayesianClassifier(temperature=1.0, network=layer, verbose=False).fit(x, (y > 0).astype(int))
    else:
        outcome = y if kind == "gaussian" else np.random.default_rng(0).poisson(np.exp(np.clip(y, -3, 3)))
        model = mx.BayesianRegressor(temperature=1.0, network=layer, likelihood=kind, verbose=False).fit(x, outcome)
    assert model.converged_ and model.certificate_.word == "certified" and model.certificate_["gradient"].figure < 0.02
    if kind == "gaussian":
        # Of a Gaussian outcome the means are those of the exact posterior, at the noise that was found.
        z = np.column_stack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones(len(x))])
        noise = model.params_["noise"] / y.std()
        precision = z.T @ z / noise**2 + np.eye(4)
        mean = np.linalg.solve(precision, z.T @ ((y - y.mean()) / y.std()) / noise**2)
        np.testing.assert_allclose(np.append(model.params_["weight"], model.params_["bias"]), mean, atol=1e-4)
        sd = np.append(model.stderr_["weight"], model.stderr_["bias"])
        np.testing.assert_allclose(sd, np.diag(precision) ** -0.5, rtol=1e-4)


def test_many_weights_are_told_by_scores_and_a_method_of_ones_own_is_left_as_it_is():
    x, y = regression()
    wide = mx.BayesianRegressor(temperature=1.0, epochs=2, verbose=False).fit(x, y)
    assert wide.certificate_.word == "careful" and "raise epochs= to come closer" in str(wide.certificate_)
    wide = mx.BayesianRegressor(temperature=1.0, spread="all", epochs=2, verbose=False).fit(x, y)
    assert wide.certificate_.word == "careful" and "too many weights" in str(wide.certificate_)
    layer = eqx.nn.Linear(3, 1, key=jax.random.key(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = mx.BayesianRegressor(temperature=1.0, network=layer, method="bbb", epochs=3, verbose=False).fit(x, y)
    assert own.certificate_.word != "certified" and not own.converged_
