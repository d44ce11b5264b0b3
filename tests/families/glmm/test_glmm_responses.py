"""Response distributions against scipy's, their derivatives against differences, their draws against their own moments."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from scipy import stats

from margaux.families.glmm import responses
from margaux.families.glmm.factor import Factor
from margaux.families.glmm.model import Mixed, is_concave
from margaux.families.glmm.responses import RESPONSES, AbstractCount, Beta, Gamma, Hurdle, ZeroInflated, by_name

pytestmark = pytest.mark.usefixtures("double")

THRESHOLDS = np.array([-1.0, 0.2, 2.0])
#: parameters beside the predictor
DISPERSION = {"sigma": 0.7, "df": 4.5, "theta": 2.5, "alpha": 1.4, "phi": 6.0, "thresholds": THRESHOLDS, "zero": -0.4}
PAIRS = [(name, link) for name in RESPONSES for link in by_name(name).links]
MEANS = {
    "identity": lambda eta: eta, "log": np.exp, "inverse": lambda eta: 1 / eta, "sqrt": np.square,
    "logit": scipy.special.expit, "probit": stats.norm.cdf, "cloglog": lambda eta: -np.expm1(-np.exp(eta)),
}  # fmt: skip


def of(response):
    return {name: DISPERSION[name] for name in (*response.dispersion, *response.predictors)}


def values(name):
    """Values of y, within the range of the family."""
    return np.array({
        "gaussian": [-2.0, 0.1, 3.0], "student": [-2.0, 0.1, 9.0], "gamma": [1e-3, 0.5, 9.0], "beta": [0.01, 0.5, 0.97],
        "binomial": [0.0, 3.0, 7.0], "ordinal": [0.0, 1.0, 2.0, 3.0],
    }.get(name, [0.0, 1.0, 12.0]))  # fmt: skip


def predictors(link):
    return np.array([0.2, 0.9, 1.7] if link in ("identity", "inverse", "sqrt") else [-1.5, 0.3, 1.2])


def grid(name, link) -> tuple[np.ndarray, np.ndarray, Any]:
    y, eta = np.meshgrid(values(name), predictors(link))
    trials = np.full(y.size, 7.0) if name == "binomial" else None
    return y.ravel(), eta.ravel(), trials


def oracle(name, link, eta) -> Any:
    """scipy's frozen distribution of the same parameters."""
    mu = MEANS[link](eta)
    sigma, phi = DISPERSION["sigma"], DISPERSION["phi"]
    match name:
        case "gaussian":
            return stats.norm(mu, sigma)
        case "student":
            return stats.t(DISPERSION["df"], mu, sigma)
        case "gamma":
            return stats.gamma(1 / sigma**2, scale=mu * sigma**2)
        case "beta":
            return stats.beta(mu * phi, (1 - mu) * phi)
        case "binomial":
            return stats.binom(7, mu)
        case "poisson":
            return stats.poisson(mu)
        case "nbinom2":
            return stats.nbinom(DISPERSION["theta"], DISPERSION["theta"] / (DISPERSION["theta"] + mu))
        case _:
            return stats.nbinom(mu / DISPERSION["alpha"], 1 / (1 + DISPERSION["alpha"]))


SIMPLE = [pair for pair in PAIRS if pair[0] != "ordinal"]


@pytest.mark.parametrize(("name", "link"), SIMPLE)
def test_density_moments_and_distribution_function_are_scipys(name, link):
    response = by_name(name, link)
    y, eta, trials = grid(name, link)
    them = oracle(name, link, eta)
    expected = them.logpmf(y) if response.discrete else them.logpdf(y)
    np.testing.assert_allclose(response.log_density(jnp.asarray(y), jnp.asarray(eta), of(response), trials), expected, rtol=1e-10)
    np.testing.assert_allclose(response.mean(jnp.asarray(eta), of(response), trials), them.mean(), rtol=1e-10)
    np.testing.assert_allclose(response.variance(jnp.asarray(eta), of(response), trials), them.var(), rtol=1e-10)
    upto, below = response.cdf(y, eta, of(response), trials)
    np.testing.assert_allclose(upto, them.cdf(y), rtol=1e-9)
    np.testing.assert_allclose(below, them.cdf(y - 1) if response.discrete else upto, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_ordered_categories_are_differences_of_distribution_functions(link):
    response = by_name("ordinal", link)
    eta = np.array([-1.5, 0.3, 1.2])
    ends = np.concatenate([[-np.inf], THRESHOLDS, [np.inf]])
    below = MEANS[link](ends[None] - eta[:, None])
    expected = np.diff(below, axis=1)
    found = response.probabilities(jnp.asarray(eta), of(response))
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_allclose(response.mean(jnp.asarray(eta), of(response)), expected @ np.arange(4), rtol=1e-10)
    square = expected @ np.arange(4) ** 2 - (expected @ np.arange(4)) ** 2
    np.testing.assert_allclose(response.variance(jnp.asarray(eta), of(response)), square, rtol=1e-10)
    for k in range(4):
        upto, strictly = response.cdf(np.full(3, k), eta, of(response))
        np.testing.assert_allclose(upto, below[:, k + 1], rtol=1e-12)
        np.testing.assert_allclose(strictly, below[:, k], rtol=1e-12)


COUNTS = [(name, link) for name, link in SIMPLE if isinstance(by_name(name), AbstractCount)]


@pytest.mark.parametrize(("name", "link"), COUNTS)
def test_zero_inflation_and_hurdle_of_counts(name, link):
    inner = by_name(name, link)
    y, eta, trials = grid(name, link)
    them, zero = oracle(name, link, eta), scipy.special.expit(DISPERSION["zero"])
    none = them.pmf(0)
    inflated = np.where(y == 0, zero + (1 - zero) * none, (1 - zero) * them.pmf(y))
    hurdle = np.where(y == 0, zero, (1 - zero) * them.pmf(y) / (1 - none))
    upto = zero + (1 - zero) * them.cdf(y), zero + (1 - zero) * (them.cdf(y) - none) / (1 - none)
    below = [np.where(y == 0, 0.0, zero + (1 - zero) * p) for p in (them.cdf(y - 1), (them.cdf(y - 1) - none) / (1 - none))]
    whole = np.arange(4000.0)[:, None]
    for response, expected, u, b in zip((ZeroInflated(inner), Hurdle(inner)), (inflated, hurdle), upto, below, strict=True):
        found = response.log_density(jnp.asarray(y), jnp.asarray(eta), of(response), trials)
        np.testing.assert_allclose(found, np.log(expected), rtol=1e-9)
        np.testing.assert_allclose(response.cdf(y, eta, of(response), trials), [u, b], rtol=1e-8, atol=1e-14)
        top = 7 if name == "binomial" else 3999
        p = np.exp(response.log_density(jnp.asarray(whole[: top + 1]), jnp.asarray(eta), of(response), trials))
        mean = np.sum(whole[: top + 1] * p, axis=0)
        np.testing.assert_allclose(p.sum(axis=0), 1, rtol=1e-9)
        np.testing.assert_allclose(response.mean(jnp.asarray(eta), of(response), trials), mean, rtol=1e-9)
        var = np.sum((whole[: top + 1] - mean) ** 2 * p, axis=0)
        np.testing.assert_allclose(response.variance(jnp.asarray(eta), of(response), trials), var, rtol=1e-8)


@pytest.mark.parametrize("name", ["gamma", "beta"])
def test_hurdle_of_measurements(name):
    inner = by_name(name)
    response = Hurdle(inner)
    eta = np.array([-0.3, 0.4, 0.1])
    y = np.array([0.0, 0.3, 0.8])
    them, zero = oracle(name, inner.links[0], eta), scipy.special.expit(DISPERSION["zero"])
    expected = np.where(y == 0, np.log(zero), np.log(1 - zero) + them.logpdf(np.where(y == 0, 0.5, y)))
    np.testing.assert_allclose(response.log_density(jnp.asarray(y), jnp.asarray(eta), of(response)), expected, rtol=1e-10)
    upto, below = response.cdf(y, eta, of(response))
    np.testing.assert_allclose(upto, zero + (1 - zero) * them.cdf(y), rtol=1e-10)
    np.testing.assert_allclose(below, [0.0, *upto[1:]], rtol=1e-10)
    np.testing.assert_allclose(response.mean(jnp.asarray(eta), of(response)), (1 - zero) * them.mean(), rtol=1e-10)
    square = (1 - zero) * (them.var() + them.mean() ** 2) - ((1 - zero) * them.mean()) ** 2
    np.testing.assert_allclose(response.variance(jnp.asarray(eta), of(response)), square, rtol=1e-10)


def wrapped(name, link):
    response = by_name(name, link)
    yield response
    if isinstance(response, AbstractCount):
        yield ZeroInflated(response)
    if isinstance(response, (AbstractCount, Gamma, Beta)):
        yield Hurdle(response)


@pytest.mark.parametrize(("name", "link"), PAIRS)
@pytest.mark.slow
def test_three_derivatives_are_differences_and_finite_far_out(name, link):
    positive = link in ("identity", "inverse", "sqrt") and name not in ("gaussian", "student")
    near = np.linspace(0.3, 3, 7) if positive else np.linspace(-4.05, 4.15, 9)
    far = np.array([1e-4, 20.0, 40.0]) if positive else np.array([-40.0, -25.0, -7.0, 7.0, 25.0, 40.0])
    if link == "inverse" and not positive:
        near, far = near[np.abs(near) > 0.3], far
    h = 1e-4
    for response in wrapped(name, link):
        y = values(name) if not isinstance(response, Hurdle) or name in ("binomial", "poisson") else np.append(values(name), 0.0)
        trials: Any = 7.0 if name == "binomial" else None

        def density(e, v, response=response, trials=trials):
            return response.log_density(v, e, of(response), trials)

        orders = [density, jax.grad(density), jax.hessian(density), jax.jacfwd(jax.hessian(density))]
        points = jnp.concatenate([near - h, near, near + h, far])
        all_orders = jax.jit(jax.vmap(jax.vmap(lambda e, v: jnp.stack([f(e, v) for f in orders]), (None, 0)), (0, None)))  # noqa: B023
        found = np.asarray(all_orders(points, jnp.asarray(y)))
        assert np.isfinite(found).all(), (response.name, link)
        low, mid, high = (found[k * len(near) : (k + 1) * len(near)] for k in range(3))
        slope = (high[..., :3] - low[..., :3]) / (2 * h)
        scale = np.maximum(np.abs(mid).max(axis=-1, keepdims=True), 1.0)
        np.testing.assert_allclose(mid[..., 1:] / scale, slope / scale, atol=3e-6)


@pytest.mark.parametrize("eta", [-40.0, -25.0, -8.0, 8.0, 30.0])
def test_the_tails_keep_their_curvature(eta):
    """Second derivatives where a formula through the mean would say zero or NaN."""
    one = jnp.asarray(1.0)
    for link, curvature in (("logit", -np.exp(-abs(eta) - 2 * np.log1p(np.exp(-abs(eta))))), ("probit", None)):
        second = jax.grad(jax.grad(lambda e, link=link: by_name("binomial", link).log_density(one, e, {})))(eta)
        if curvature is None and eta < 0:
            t = -eta
            gap = stats.norm.pdf(t) / stats.norm.sf(t) - t if t < 12 else 1 / t - 2 / t**3 + 10 / t**5 - 74 / t**7 + 706 / t**9
            np.testing.assert_allclose(second, -(t + gap) * gap, rtol=1e-8)
        elif curvature is not None:
            np.testing.assert_allclose(second, curvature, rtol=1e-10)


def test_large_sizes_go_to_the_poisson_distribution():
    y, eta = jnp.asarray([0.0, 3.0, 40.0]), jnp.asarray([0.1, 1.0, 3.5])
    poisson = by_name("poisson").log_density(y, eta, {})
    np.testing.assert_allclose(by_name("nbinom2").log_density(y, eta, {"theta": 1e12}), poisson, rtol=1e-9)
    np.testing.assert_allclose(by_name("nbinom1").log_density(y, eta, {"alpha": 1e-12}), poisson, rtol=1e-9)
    gaussian = by_name("gaussian").log_density(y, eta, {"sigma": 2.0})
    np.testing.assert_allclose(by_name("student").log_density(y, eta, {"sigma": 2.0, "df": 1e12}), gaussian, rtol=1e-8)


def test_a_predictor_without_a_mean_has_no_density():
    for name, link in (("poisson", "identity"), ("gamma", "inverse"), ("nbinom2", "sqrt")):
        response = by_name(name, link)
        found, slope = jax.value_and_grad(lambda e, r=response: r.log_density(jnp.asarray(2.0), e, of(r)))(-1.0)
        assert found == -np.inf
        assert slope == 0.0


@pytest.mark.parametrize(("name", "link"), PAIRS)
@pytest.mark.slow
def test_draws_have_the_moments_and_the_distribution_function(name, link):
    count = 20_000
    for response in wrapped(name, link):
        eta = jnp.full(count, 0.4)
        trials = jnp.full(count, 7.0) if name == "binomial" else None
        draws = np.asarray(jax.jit(response.simulate)(jax.random.key(3), eta, of(response), trials))
        mean, variance = (float(f(eta[:1], of(response), None if trials is None else trials[:1])[0]) for f in (
            response.mean, response.variance
        ))  # fmt: skip
        assert abs(draws.mean() - mean) < 4.5 * np.sqrt(variance / count), response.name
        # The error of a variance is by the fourth moment, which Student's draws hardly show: its spread is left to what follows.
        if name != "student":
            error = np.std((draws - mean) ** 2) / np.sqrt(count)
            assert abs(draws.var() - variance) < 4.5 * error, response.name
        upto, below = response.cdf(draws, np.full(count, 0.4), of(response), None if trials is None else np.asarray(trials))
        u = below + np.random.default_rng(1).random(count) * (upto - below)
        assert stats.kstest(u, "uniform").pvalue > 1e-4, response.name


@pytest.mark.parametrize("name", ["poisson", "nbinom1", "nbinom2", "binomial"])
@pytest.mark.slow
def test_positive_counts_of_small_means_are_ones(name):
    response = Hurdle(by_name(name))
    trials = jnp.full(200, 7.0) if name == "binomial" else None
    draws = response.simulate(jax.random.key(0), jnp.full(200, -25.0), {**of(response), "zero": -50.0}, trials)
    assert (np.asarray(draws) == 1).all() if name != "nbinom1" else (np.asarray(draws) >= 1).all()


@pytest.mark.parametrize(("name", "link"), PAIRS)
def test_starts_are_finite_and_near(name, link):
    rng = np.random.default_rng(5)
    n = 400
    X = np.column_stack([np.ones(n), rng.normal(size=n)])
    beta = np.array([1.2, 0.15])
    response = by_name(name, link)
    trials: Any = np.full(n, 20.0) if name == "binomial" else None
    if name == "ordinal":
        X, beta = X[:, 1:], np.array([0.8])
    y = np.asarray(response.simulate(jax.random.key(2), jnp.asarray(X @ beta), of(response), trials))
    found = response.start(y, X, trials=trials)
    assert np.isfinite(found).all()
    assert np.abs(found - beta).max() < 0.3
    dispersion = response.start_dispersion(y, X @ found, trials)
    assert set(dispersion) == set(response.dispersion)
    free = responses.unconstrained(response, dispersion)
    back = responses.constrained(response, {key: jnp.asarray(value) for key, value in free.items()})
    for key, value in dispersion.items():
        np.testing.assert_allclose(back[key], value, rtol=1e-12)
        ratio = np.asarray(value) / np.asarray(DISPERSION[key])
        assert np.isfinite(value).all() and (key == "thresholds" or (ratio > 0.2).all() and (ratio < 5).all()), (key, value)


def test_starts_are_bounded_under_separation():
    x = np.linspace(-1, 1, 40)
    X = np.column_stack([np.ones(40), x])
    for link in ("logit", "probit", "cloglog"):
        found = by_name("binomial", link).start((x > 0).astype(float), X)
        assert np.isfinite(found).all() and np.abs(X @ found).max() < 60
    assert np.isfinite(by_name("poisson").start(np.where(x > 0, 5.0, 0.0), X)).all()


def test_an_offset_and_weights_count_in_starts():
    rng = np.random.default_rng(0)
    exposure = rng.uniform(1, 50, 500)
    y = rng.poisson(0.5 * exposure).astype(float)
    found = by_name("poisson").start(y, np.ones((500, 1)), np.log(exposure))
    assert abs(found[0] - np.log(0.5)) < 0.05
    y, w = np.array([0.0, 0.0, 1.0, 1.0]), np.array([1.0, 1.0, 8.0, 8.0])
    found = by_name("gaussian").start(y, np.ones((4, 1)), weights=w)
    assert abs(found[0] - 16 / 18) < 1e-3


def test_starts_of_zeros():
    rng = np.random.default_rng(0)
    y = np.where(rng.random(2000) < 0.3, 0.0, rng.poisson(4.0, 2000))
    eta = np.full(2000, np.log(4.0))
    assert abs(scipy.special.expit(ZeroInflated(by_name("poisson")).start_dispersion(y, eta)["zero"]) - 0.3) < 0.05
    hurdle = Hurdle(by_name("poisson"))
    assert abs(scipy.special.expit(hurdle.start_dispersion(y, eta)["zero"]) - np.mean(y == 0)) < 1e-9
    assert abs(hurdle.start(y, np.ones((2000, 1)))[0] - np.log(y[y > 0].mean())) < 0.01


@pytest.mark.parametrize(("make", "y", "trials", "told"), [
    (lambda: by_name("poisson"), [0, 1.5, 2], None, ["1.5 at row 1", "whole"]),
    (lambda: by_name("nbinom2"), [0, 1, -2], None, ["-2 at row 2", "not negative"]),
    (lambda: by_name("gamma"), [1, 0, 2], None, ["0 at row 1", "positive", "hurdle"]),
    (lambda: by_name("beta"), [0.5, 1, 0.2], None, ["1 at row 1", "strictly between 0 and 1"]),
    (lambda: by_name("binomial"), [0, 1, 2], None, ["2 at row 2", "successes/trials"]),
    (lambda: by_name("binomial"), [0, 8, 2], [7, 7, 7], ["8 at row 1", "more than there are trials"]),
    (lambda: by_name("binomial"), [0, 1, 2], [7, 7.5, 7], ["7.5 trials at row 1", "whole"]),
    (lambda: by_name("ordinal"), [0, 2, 2], None, ["never holds category 1"]),
    (lambda: by_name("gaussian", "log"), [-1, -2, 0], None, ["no positive value", "identity"]),
    (lambda: ZeroInflated(by_name("poisson")), [1, 2, 3], None, ["never zero"]),
    (lambda: Hurdle(by_name("gamma")), [0, -1, 3], None, ["-1 at row 1"]),
    (lambda: Hurdle(by_name("gamma")), [1, 2, 3], None, ["never zero"]),
    (lambda: Hurdle(by_name("poisson")), [0, 0, 0], None, ["zero in every row"]),
])  # fmt: skip
def test_a_response_out_of_range_is_told_with_its_row(make, y, trials, told):
    with pytest.raises(ValueError) as caught:
        make().check(np.array(y, float), None if trials is None else np.array(trials, float))
    for words in told:
        assert words in str(caught.value)


@pytest.mark.parametrize(("make", "told"), [
    (lambda: by_name("poison"), ['no family "poison"', 'did you mean "poisson"']),
    (lambda: by_name("poisson", "logit"), ['no link "logit"', "log, identity, sqrt"]),
    (lambda: ZeroInflated(by_name("gamma")), ["no zeros to inflate", "Hurdle"]),
    (lambda: Hurdle(by_name("gaussian")), ["not positive"]),
])  # fmt: skip
def test_what_there_is_not_is_told(make, told):
    with pytest.raises(ValueError) as caught:
        make()
    for words in told:
        assert words in str(caught.value)


@pytest.mark.parametrize(("name", "link"), PAIRS)
def test_what_is_said_to_be_concave_is(name, link):
    response, trials = by_name(name, link), 7.0 if name == "binomial" else None
    if is_concave(response):
        eta = np.linspace(-9.0, 9.0, 400)
        for y in (0.0, 1.0, 5.0):
            logs = np.asarray(response.log_density(y + 0 * eta, jnp.asarray(eta), {}, trials))
            assert np.diff(logs, 2).max() < 1e-9 * np.abs(logs).max()
    assert is_concave(response) == (name == "binomial" or (name, link) == ("poisson", "log"))


@pytest.mark.parametrize("link", ["logit", "probit", "cloglog"])
def test_one_answer_is_one_trial(link):
    response, eta = by_name("binomial", link), jnp.linspace(-45.0, 45.0, 91)
    for y in (0.0, 1.0):

        def alone(eta, y=y):
            return response.log_kernel(y + 0 * eta, eta, {})

        def one(eta, y=y):
            return response.log_kernel(y + 0 * eta, eta, {}, 1.0)

        for turn in range(4):
            np.testing.assert_allclose(alone(eta), one(eta), rtol=1e-12, atol=1e-300, err_msg=f"derivative {turn}")
            alone, one = _slope(alone), _slope(one)


def _slope(function):
    return jax.grad(lambda eta: jnp.sum(function(eta)))


def test_padding_counts_nothing_where_a_predictor_is_impossible_and_a_row_makes_its_unit_so():
    response = by_name("poisson", "identity")
    model = Mixed(response, (Factor("g", 1, 1, "us"),), np.ones(1))
    params = {"beta": jnp.ones(1), "dispersion": {}, "root": {"g": jnp.ones(1)}}
    unit = {"X": jnp.asarray([[1.0], [-1.0]]), "y": jnp.asarray([2.0, 1.0]), "base": jnp.zeros(2), "offset": jnp.zeros(2)}
    unit |= {"Z": {"g": jnp.zeros((2, 1))}, "code": {"g": jnp.zeros(2, int)}}

    def value(weight):
        return model.log_joint(params, {"g": jnp.zeros((1, 1))}, unit | {"weight": jnp.asarray(weight)})

    np.testing.assert_allclose(value([1.0, 0.0]), 2 * np.log(1.0) - 1.0 - np.log(2 * np.pi) / 2, rtol=1e-14)
    assert value([1.0, 1.0]) == -np.inf and value([1.0, 1e-9]) == -np.inf
