"""The way from the variational estimate of PLN-PCA to a maximum that is certified: steps, likelihoods, counts, and the word."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

import margaux as mx
from margaux.families.pln.basis import orthonormal
from margaux.families.pln.goodness import goodness
from margaux.families.pln.growth import precise
from margaux.families.pln.importance import curvature
from margaux.families.pln.polish import polish
from margaux.families.pln.variational import Loadings, Posterior, Units
from margaux.numerics.precision import precision

DOUBLE = np.dtype(float)


def drawn(seed, n, p, q, scale=0.7, mean=1.0, kind="poisson"):
    rng = np.random.default_rng(seed)
    rates = np.exp(rng.normal(mean, 0.5, p) + rng.standard_normal((n, q)) @ rng.normal(0, scale, (q, p)))
    rates = rates * rng.gamma(3.0, 1 / 3, rates.shape) if kind == "negative binomial" else rates
    counts = rng.poisson(rates)
    counts = counts * (rng.random(counts.shape) > 0.15) if kind == "excess zeros" else counts
    return counts[:, counts.sum(axis=0) > 0]


def exact(model: Any, points: int = 161) -> float:
    """The log-likelihood by the trapezoidal rule, in the axes of the curvature at the modes, until densities fall by e^-35."""
    table, C = model.table_, model._loadings.C
    fixed = table.offset + table.x @ model._loadings.B
    return sum(_unit(y, rate, C, points) for y, rate in zip(table.counts.values.astype(float), fixed, strict=True))


def _unit(y, fixed, C, points):
    q = C.shape[1]

    def log_joint(w):
        return w @ (C.T @ y) - np.exp(fixed + w @ C.T).sum(-1) - (w**2).sum(-1) / 2

    gradient = lambda w: w - C.T @ (y - np.exp(fixed + C @ w))  # noqa: E731
    w = scipy.optimize.minimize(lambda w: -log_joint(w), np.zeros(q), jac=gradient, tol=1e-10).x
    turn = np.linalg.eigh(np.eye(q) + (C.T * np.exp(fixed + C @ w)) @ C)[1]

    def end(way):
        return 1.15 * scipy.optimize.brentq(lambda t: log_joint(w) - log_joint(w + t * way) - 35, 0, 60)

    axes = [np.linspace(-end(-way), end(way), points) for way in turn.T]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, q) @ turn.T + w
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    constant = y @ fixed - scipy.special.gammaln(y + 1).sum() - q / 2 * np.log(2 * np.pi)
    return scipy.special.logsumexp(log_joint(grid)) + np.log(cell) + constant


def by_grid(counts, params):
    """Minus the log-likelihood of one component, and its gradient in (b, c), on a fixed grid."""
    b, c = np.split(params, 2)
    w = np.linspace(-9, 9, 3001)
    eta = b + w[:, None] * c
    rates = np.exp(eta)
    logs = counts @ eta.T - rates.sum(axis=1) - w**2 / 2 - np.log(2 * np.pi) / 2 + np.log(w[1] - w[0])
    each = scipy.special.logsumexp(logs, axis=1)
    weight = np.exp(logs - each[:, None])
    expected = weight @ rates
    slope = counts.T @ (weight @ w) - (weight @ (rates * w[:, None])).sum(axis=0)
    return -(each - scipy.special.gammaln(counts + 1).sum(axis=1)).sum(), -np.concatenate(
        [(counts - expected).sum(axis=0), slope]
    )


def quick(counts, rank, **settings):
    return mx.PLNPCA(rank, n_starts=2, verbose=False, **settings).fit(counts)


def test_modes_are_iterated_to_convergence():
    # From far away, with counts in the thousands, a dozen Newton steps of bounded length do not arrive.
    C = np.array([[3.0, 0.0], [2.0, 1.0], [-2.0, 2.0]])
    counts = np.array([[60_000.0, 9_000.0, 0.0], [0.0, 0.0, 0.0]])
    with jax.enable_x64(True):
        loadings = Loadings(jnp.zeros((1, 3)), jnp.asarray(C))
        units = Units(jnp.ones((2, 1)), jnp.zeros((2, 1)), jnp.asarray(counts @ C))
        start = Posterior(jnp.full((2, 2), -8.0), jnp.tile(jnp.array([1.0, 0.0, 1.0]), (2, 1)))
        w = np.asarray(curvature(loadings, start, units, 200).mean)
    gradient = (counts - np.exp(w @ C.T)) @ C - w
    size = np.einsum("bj,pj,pk,bp->bk", gradient, C, C, np.exp(w @ C.T))
    assert np.abs(gradient).max() < 1e-4 * (1 + counts.max()) and np.isfinite(size).all()


@pytest.mark.parametrize("seed, scale", [(1, 0.7), (2, 1.4), (3, 1.0)])
def test_steps_end_at_the_maximum_of_quadrature(seed, scale):
    counts = drawn(seed, 60, 6, 1, scale, -0.5)
    model, before = quick(counts, 1), quick(counts, 1, method="variational")
    here, there = (np.concatenate([one._loadings.B[0], one._loadings.C[:, 0]]) for one in (model, before))
    best = scipy.optimize.minimize(lambda at: by_grid(counts, at), here, jac=True, method="BFGS", options={"gtol": 1e-6}).x
    hessian = np.array([by_grid(counts, best + h)[1] - by_grid(counts, best - h)[1] for h in 1e-4 * np.eye(len(best))]) / 2e-4
    se = np.sqrt(np.diag(np.linalg.inv(hessian)))
    assert (np.abs(here - best) / se).max() < 0.02 < (np.abs(there - best) / se).max()
    assert model._polished is not None and model._polished.off < 0.02 and model._polished.error < 0.01
    assert model.certificate_["gradient"].level == model.certificate_["information"].level == "pass"


def test_a_distance_is_measured_without_a_step():
    model = quick(drawn(2, 80, 6, 1, 1.4, -0.5), 1, method="variational")
    design = model._design(model.table_)
    x, R = orthonormal(design.x)
    with precision(DOUBLE):
        loadings, posterior = model._double()
        turned = loadings._replace(B=jnp.asarray(R @ np.asarray(loadings.B)))
        found = polish(design._replace(x=x), turned, posterior, steps=0)
    assert found.end.steps == 0 and found.end.off > 0.03 > 2 * found.end.error
    np.testing.assert_array_equal(found.loadings.C, loadings.C)
    # An estimator that took no steps looks at the distance for its certificate.
    assert model.certificate_["gradient"].figure == pytest.approx(found.end.off, rel=1e-6)
    assert model.certificate_.word == ("careful" if found.end.off > 0.1 else "certified")


@pytest.mark.slow
def test_certificates_tell_what_is_wrong():
    good = quick(drawn(3, 100, 8, 2), 2)
    assert str(good.certificate_) == "certified: every check passed." == good.message_
    names = {"gradient", "information", "log-likelihood", "second log-likelihood", "weights", "dispersion", "zeros", "starts"}
    assert names <= set(good.certificate_.table().index)
    one, two = (good.certificate_[name] for name in ("log-likelihood", "second log-likelihood"))
    assert one.figure == pytest.approx(float(good.loglik_)) and abs(two.figure) < 4 * two.error < 0.2
    for kind, name in (("negative binomial", "dispersion"), ("excess zeros", "zeros")):
        model = quick(drawn(4, 100, 8, 2, kind=kind), 2)
        assert model.certificate_.word == "careful" and model.certificate_[name].level == "careful"
        assert 'summary(errors="robust")' in model.message_
    separated = drawn(5, 60, 6, 1)
    depth = np.linspace(1, 2, 60)
    separated[1:, 2] = 0
    separated[0, 2] = 3
    with pytest.warns(UserWarning, match=r"no finite estimate there: y2 \(Intercept, x0\)"):
        model = mx.PLNPCA(1, n_starts=1, verbose=False).fit(separated, depth)
    assert model.certificate_["separation"].level == "careful" and np.isnan(model.coef_[:, 2]).all()


def test_residuals_of_the_model_are_standard_normal():
    z = []
    for seed in range(6):
        model = quick(drawn(seed, 80, 10, 1, 0.7, 0.5), 1, method="variational")
        with precision(DOUBLE):
            found = goodness(model._design(model.table_), *model._double(), seed=seed)
        z += [(found.dispersion - 1) / found.dispersion_error, (found.zeros - 1) / found.zeros_error]
        assert found.by_feature[:, 1].sum() == pytest.approx((model.table_.counts.values == 0).sum())
    assert np.abs(z).max() < 3.5


def test_robust_errors_hold_where_counts_vary_more():
    good = quick(drawn(6, 400, 6, 1), 1, method="variational")
    ratio = (good.summary(errors="robust")["se"] / good.summary()["se"]).to_numpy()
    assert 0.85 < ratio.mean() < 1.15
    wild = quick(drawn(6, 400, 6, 1, kind="negative binomial"), 1, method="variational")
    assert (wild.summary(errors="robust")["se"] / wild.summary()["se"]).mean() > 1.1
    np.testing.assert_allclose(wild.conf_int(errors="robust"), wild.summary(errors="robust")[["ci_low", "ci_high"]])
    with pytest.raises(ValueError, match='errors must be "model" or "robust"'):
        wild.summary(errors="sandwich")


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed, n, p, q, scale, mean, settings",
    [
        (4, 40, 3, 1, 4.0, -1.0, {}),  # a rank above the truth, large loadings and few features
        (2, 40, 6, 2, 2.0, -4.0, {}),  # two units of three have no counts
        (2, 30, 5, 2, 1.5, 1.0, {"posterior_covariance": "diagonal"}),  # proposals that miss the correlation
    ],
)
def test_the_stated_error_of_the_likelihood_is_true(seed, n, p, q, scale, mean, settings):
    model = quick(drawn(seed, n, p, q, scale, mean), 2, method="variational", **settings)
    truth, inside, count = exact(model), 0, 200
    with precision(DOUBLE):
        for draw in range(count):
            found = precise(model._design(model.table_), *model._double(), seed=1000 + draw)
            value, error = found.total
            assert error < 0.02 and found.pareto.max() < 0.7
            inside += abs(value - truth) < 2 * error
    assert 0.9 <= inside / count <= 0.995
