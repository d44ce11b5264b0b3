"""Multinomial regression with missing covariates: against NumPy row by row, and the engine against the exact fit."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import margaux as mx
from margaux.families.missing.exact import moments, score
from margaux.families.missing.likelihood import Likelihood
from margaux.families.missing.multinomial import Multinomial, by_holes, factor, given_observed_each
from margaux.families.missing.multinomial_model import MissingMultinomial
from margaux.families.missing.observed import arrange


class Simulated(NamedTuple):
    """A table with holes, in its own order and arranged."""

    params: dict
    start: dict
    x: np.ndarray
    c: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    rows: Any
    groups: Any
    family: Any


def simulated(n=300, p=3, n_classes=3, seed=0, share=0.22, k=1, split=True) -> Simulated:
    """From the model, with weights where there is a covariate that is always observed (k = 2)."""
    rng = np.random.default_rng(seed)
    c = np.column_stack([np.ones(n), rng.normal(size=(n, k - 1))])
    mean = np.concatenate([np.linspace(-0.5, 0.5, p)[None], rng.normal(0, 0.4, (k - 1, p))])
    beta = np.random.default_rng(100 + n_classes).normal(0, 0.8, (n_classes - 1, k + p))
    params: dict[str, Any] = {"beta": beta, "mean": mean, "covariance": 0.5 + 0.5 * np.eye(p)}
    start = {"beta": np.zeros_like(beta), "mean": np.zeros((k, p)), "covariance": np.eye(p)}
    x = c @ mean + rng.multivariate_normal(np.zeros(p), params["covariance"], n)
    share_of = special.softmax(np.column_stack([np.zeros(n), np.column_stack([c, x]) @ beta.T]), axis=1)
    y = (rng.random(n)[:, None] > np.cumsum(share_of, axis=1)).sum(axis=1).astype(float)
    weights = rng.uniform(0.5, 2.0, n) if k > 1 else np.ones(n)
    x = np.where(rng.random((n, p)) < share, np.nan, x)
    rows, groups, _ = arrange(x, c, y, weights, np.zeros(n))
    if split:
        order, groups = by_holes(rows, groups, n_classes)
        rows = jax.tree.map(lambda leaf: leaf[order], rows)
    return Simulated(params, start, x, c, y, weights, rows, groups, Multinomial(n_classes))


def naive(params, data, nodes=40):
    """Observed log-likelihood: SciPy for the observed block, a product rule on what is missing for the outcome, row by row."""
    k = data.c.shape[1]
    u, w = np.polynomial.hermite_e.hermegauss(nodes)
    beta, sigma = params["beta"], params["covariance"]
    out = np.zeros(len(data.y))
    for i, x in enumerate(data.x):
        m, mean = np.isnan(x), data.c[i] @ params["mean"]
        o, filled, spread = ~m, np.where(np.isnan(x), mean, x), sigma
        if o.any():
            out[i] = stats.multivariate_normal.logpdf(x[o], mean[o], sigma[np.ix_(o, o)])
            push = np.linalg.solve(sigma[np.ix_(o, o)], sigma[np.ix_(o, m)])
            filled[m] += (x[o] - mean[o]) @ push
            spread = sigma[np.ix_(m, m)] - sigma[np.ix_(m, o)] @ push
        d = int(m.sum())
        points = np.stack([part.ravel() for part in np.meshgrid(*[u] * d, indexing="ij")], axis=1) if d else np.zeros((1, 0))
        log_w = sum(part.ravel() for part in np.meshgrid(*[np.log(w / w.sum())] * d, indexing="ij")) if d else np.zeros(1)
        tables = np.tile(filled, (len(points), 1))
        tables[:, m] += points @ np.linalg.cholesky(spread).T if d else 0.0
        eta = data.c[i] @ beta[:, :k].T + tables @ beta[:, k:].T
        log_p = special.log_softmax(np.column_stack([np.zeros(len(eta)), eta]), axis=1)
        out[i] += special.logsumexp(log_p[:, int(data.y[i])] + log_w)
    return data.weights @ out


@functools.cache
def maximum(n_classes=3):
    """The exact fit and standard errors of the coefficients."""
    data = simulated(n_classes=n_classes)
    with jax.enable_x64(True):
        found, information = Likelihood(data.family, data.rows, data.groups).maximise(data.start)
    size = found.params["beta"].size
    return found, np.sqrt(np.diag(np.linalg.inv(information)))[:size].reshape(found.params["beta"].shape)


@pytest.mark.parametrize(
    "n_classes, p, k, split", [(3, 3, 2, False), (5, 2, 1, False), pytest.param(4, 3, 1, True, marks=pytest.mark.slow)]
)
def test_value_and_gradient_are_those_of_the_observed_likelihood(double, n_classes, p, k, split):
    data = simulated(n=80, p=p, n_classes=n_classes, k=k, split=split, share=0.3)
    likelihood = Likelihood(data.family, data.rows, data.groups)
    flat = likelihood.pack(data.params)
    value, gradient = likelihood.objective(flat)
    # Five classes and two covariates in one group: four predictors of rank two, by five nodes an axis.
    assert -value * likelihood.size == pytest.approx(naive(data.params, data), abs=5e-3 if n_classes == 5 else 1e-3)
    h = 1e-5
    steps = [(likelihood.objective(flat + h * e)[0] - likelihood.objective(flat - h * e)[0]) / (2 * h) for e in np.eye(len(flat))]
    np.testing.assert_allclose(gradient, steps, atol=1e-3 * np.abs(gradient).max())
    np.testing.assert_allclose(likelihood.pack(likelihood.struct.params(flat)), flat, atol=1e-10)


def test_the_information_is_minus_the_second_derivative(double):
    data = simulated(n=30, p=2)
    likelihood = Likelihood(data.family, data.rows, data.groups)
    flat = likelihood.pack(data.params)
    information = likelihood.information(flat)
    value = lambda u: naive(likelihood.struct.params(u), data)  # noqa: E731
    rng, h = np.random.default_rng(0), 1e-3
    for _ in range(6):
        u = rng.normal(size=len(flat))
        u /= np.linalg.norm(u)
        second = (value(flat + h * u) - 2 * value(flat) + value(flat - h * u)) / h**2
        assert u @ information @ u == pytest.approx(-second, rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("size, at_one, at_five", [(1, 1e-9, 1e-6), (2, 2e-6, 1e-3), (3, 1e-4, 4e-3), (5, 2e-3, 8e-3)])
def test_marginals_integrate_the_predictors_out(double, size, at_one, at_five):
    rng = np.random.default_rng(size)
    n, family = 40, Multinomial(size + 1)
    variance = np.einsum("njk,nlk->njl", *[rng.normal(size=(n, size, size))] * 2)
    roots = np.linalg.cholesky(variance * (size / np.trace(variance, axis1=1, axis2=2))[:, None, None])
    mean, y = rng.normal(size=(size, n)), jnp.asarray(rng.integers(0, size + 1, n).astype(float))
    if size < 4:
        u, w = np.polynomial.hermite_e.hermegauss({1: 300, 2: 120, 3: 40}[size])
        z = np.stack([part.ravel() for part in np.meshgrid(*[u] * size, indexing="ij")])
        log_w: Any = sum(part.ravel() for part in np.meshgrid(*[np.log(w / w.sum())] * size, indexing="ij"))
    else:
        z, log_w = rng.normal(size=(size, 100_000)), np.full(100_000, -np.log(100_000))
    for scale, tolerance in ((1.0, at_one), (5.0, at_five)):
        root = np.moveaxis(roots, 0, 2) * np.sqrt(scale)
        value, first, second = jax.jit(family.marginal)(y, jnp.asarray(mean), jnp.asarray(root))
        for i in range(0, n, 8):
            eta = mean[:, i, None] + root[:, :, i] @ z
            p = special.softmax(np.concatenate([np.zeros((1, eta.shape[1])), eta]), axis=0)
            log_p = np.log(p[int(y[i])]) + log_w
            noise = 4 * np.exp(log_p - special.logsumexp(log_p)).std() * len(log_w) ** 0.5 if size > 3 else 0.0
            assert value[i] == pytest.approx(special.logsumexp(log_p), abs=tolerance + noise)
            weight = np.exp(log_p - special.logsumexp(log_p))
            slope = (np.arange(1, size + 1) == int(y[i]))[:, None] - p[1:]
            np.testing.assert_allclose(first[:, i], slope @ weight, atol=4 * tolerance + noise)
            square = (slope * weight) @ slope.T + (p[1:] * weight) @ p[1:].T - np.diag(p[1:] @ weight)
            np.testing.assert_allclose(second[:, :, i], square - np.outer(slope @ weight, slope @ weight),
                                       atol=10 * tolerance + noise)  # fmt: skip


def test_singular_predictors_are_no_trouble(double):
    # Rank one in three dimensions, a first predictor that does not vary, and nothing at all.
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(3, 4))
    columns[0, 1], columns[:, 3] = 0.0, 0.0
    tall = np.einsum("jb,lb->jlb", np.concatenate([columns, columns[:2]]), columns)
    parts = np.asarray(jax.jit(factor)(jnp.asarray(tall)))
    root, rest = parts[:3], parts[3:]
    np.testing.assert_allclose(np.einsum("jlb,klb->jkb", root, root), tall[:3], atol=1e-12)
    np.testing.assert_allclose(np.einsum("jlb,klb->jkb", rest, root), tall[3:], atol=1e-12)
    value, first, second = jax.jit(Multinomial(4).marginal)(jnp.zeros(4), jnp.asarray(columns[:, ::-1]), jnp.asarray(root))
    assert all(np.isfinite(part).all() for part in (value, first, second))
    known = special.log_softmax(np.concatenate([np.zeros(1), columns[:, 0]]))
    assert value[3] == pytest.approx(known[0], abs=1e-9)
    np.testing.assert_allclose(first[:, 3], -np.exp(known[1:]), atol=1e-9)


def test_predictors_given_the_observed_entries(double):
    data = simulated(n=60, p=3, n_classes=5, k=2, share=0.4)
    given = jax.jit(given_observed_each, static_argnums=2)
    before, known = given(jax.tree.map(jnp.asarray, data.params), data.rows, data.groups)
    slopes = data.params["beta"][:, 2:]
    for i in range(60):
        m, sigma = data.rows.observed[i] == 0, data.params["covariance"]
        spread = np.linalg.inv(np.linalg.inv(sigma)[np.ix_(m, m)])
        variance = slopes[:, m] @ spread @ slopes[:, m].T
        np.testing.assert_allclose(before.root[i] @ before.root[i].T, variance, atol=1e-10)
    for part in known:
        assert np.linalg.eigvalsh(np.moveaxis(np.asarray(part.inverse), 2, 0)).min(initial=0) > -1e-8


@pytest.mark.slow
@pytest.mark.parametrize("curvature", ["tight", "newton"])
def test_surrogates_add_up_over_rows_and_touch_the_likelihood(double, curvature):
    data = simulated(n=40, k=2)
    params, rows = jax.tree.map(jnp.asarray, (data.params, data.rows))
    u, w_one = np.polynomial.hermite_e.hermegauss(15)
    node = np.stack([part.ravel() for part in np.meshgrid(u, u, indexing="ij")], axis=1)
    log_w = np.log(np.outer(w_one, w_one).ravel())
    z = jnp.broadcast_to(jnp.asarray(node)[:, None], (225, 40, 2))
    model = MissingMultinomial(data.family, curvature, data.groups, n_columns=3)

    @jax.jit
    def both(params, rows):
        ready, known = model.prepared(params, rows)
        eta = jnp.moveaxis(known[1].mean + jnp.einsum("bjl,mbl->mbj", known[1].root, z), 2, 0)
        w = jax.nn.softmax(data.family.log_density(jnp.broadcast_to(rows.y, eta.shape[1:]), eta) + log_w[:, None], axis=0)
        sums = ready.moments(params, z, w, known)
        one = model.surrogate(params, z[7, 3], jax.tree.map(lambda leaf: leaf[3], rows))
        found, covariance = moments(data.family, data.groups, params, rows)
        slope = score(data.family, params, rows, found, covariance)
        return ready.total_surrogate(params, sums, known), ready.surrogates(params, sums, known), one, slope

    total, units, one, slope = both(params, rows)
    for part, value in total.items():
        np.testing.assert_allclose(value, jnp.sum(units[part], axis=0), atol=1e-8)
    assert jax.tree.map(jnp.shape, one) == jax.tree.map(jnp.shape, total)
    if curvature == "tight":
        push = total["target"] - params["beta"] @ total["square"]
        push = (push - push.sum(axis=0) / 3) / 2
    else:
        push = total["target"] - jnp.einsum("qrlj,lr->jq", total["information"], params["beta"])
    np.testing.assert_allclose(push, slope["beta"], atol=1e-5)
    gap = total["square"][:2, 2:] - total["square"][:2, :2] @ params["mean"]
    np.testing.assert_allclose(gap @ np.linalg.inv(params["covariance"]), slope["mean"], atol=1e-5)


def fitted(data, curvature, algorithm, estep, **settings):
    model = MissingMultinomial(data.family, curvature, data.groups, n_columns=data.x.shape[1])
    return mx.fit(model, data.rows, algorithm, estep, params=data.start, space=model.space(), dtype="float64",
                  polish=False, progress=False, **settings)  # fmt: skip


@pytest.mark.parametrize("curvature", ["tight", pytest.param("newton", marks=pytest.mark.slow)])
def test_em_reaches_the_exact_maximum(curvature):
    data, (truth, _) = simulated(), maximum()
    fit = fitted(data, curvature, mx.mcem(average=mx.LastIterate()), mx.Quadrature(15), n_iter=120)
    for part, value in truth.params.items():
        np.testing.assert_allclose(fit.params[part], value, atol=1e-3)
    if curvature == "tight":
        # A bound: the likelihood never falls.
        assert np.all(np.diff(fit.trace["log_marginal"].ravel()) > -1e-5)


@pytest.mark.parametrize("kernel", [mx.CrankNicolson(), pytest.param(mx.EllipticalSlice(), marks=pytest.mark.slow)])
def test_saem_reaches_the_exact_maximum(kernel):
    data, (truth, se) = simulated(), maximum()
    fit = fitted(data, "tight", mx.saem(), mx.MCMC(kernel, n_chains=10), n_iter=500)
    assert np.abs((fit.params["beta"] - truth.params["beta"]) / se).max() < 0.15


@pytest.mark.slow
def test_misso_reaches_the_exact_maximum():
    data, (truth, _) = simulated(), maximum()
    fit = fitted(data, "tight", mx.misso(), mx.Quadrature(11), n_iter=150, batch_size=60)
    np.testing.assert_allclose(fit.params["beta"], truth.params["beta"], atol=5e-3)
