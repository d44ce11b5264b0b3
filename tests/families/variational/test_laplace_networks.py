"""Laplace's approximation of networks beside exact answers in NumPy: conjugate regressions, Newton's logistic regression,
curvatures by their definitions, and grids of the evidence."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_softmax
from scipy.stats import multivariate_normal, norm

import margaux as mx
from linear_networks import linear, regression
from margaux.answers.certificate import Certificate
from margaux.families.variational.approximation import Found
from margaux.families.variational.laplace_verdict import checks_of, converged
from margaux.families.variational.priors import Laplace, Normal

QUIET: dict = {"method": "laplace", "epochs": 20, "verbose": False}


def rows(x):
    return np.hstack([x, np.ones((len(x), 1))])


def evidence_of(design, y, deviation, noise):
    """log N(y; 0, s^2 I + d^2 X X')."""
    return multivariate_normal.logpdf(y, cov=noise**2 * np.eye(len(y)) + deviation**2 * design @ design.T)


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
@pytest.mark.parametrize("seed", [0, 1])
def test_of_a_linear_regression_it_is_bayes_rule(structure, seed):
    x, y = regression(seed=seed)
    if structure == "diagonal":  # exact where columns are orthogonal
        x = np.linalg.qr(rows(x)[:, [3, 0, 1, 2]])[0][:, 1:] * 6
    deviation, noise, new = 2.0, 0.5, regression(7, seed + 9)[0]
    model = mx.BayesianRegressor(network=linear(1), prior=deviation, noise=noise, noise_fixed=True, standardize=False,
                                 structure=structure, **QUIET).fit(x, y)  # fmt: skip
    design = rows(x)
    covariance = np.linalg.inv(design.T @ design / noise**2 + np.eye(4) / deviation**2)
    mean = covariance @ design.T @ y / noise**2
    np.testing.assert_allclose(np.append(model.params_["weight"], model.params_["bias"]), mean, atol=1e-6)
    draws = model.posterior_draws(20_000)
    flat = np.hstack([draws["weight"][0, :, 0], draws["bias"][0]])
    np.testing.assert_allclose(np.cov(flat.T), covariance, atol=5 * covariance.max() / np.sqrt(20_000))
    sd = np.append(model.stderr_["weight"], model.stderr_["bias"])
    np.testing.assert_allclose(sd, np.sqrt(np.diag(covariance)), rtol=1e-6)
    np.testing.assert_allclose(model.log_evidence_, evidence_of(design, y, deviation, noise), atol=1e-6)
    np.testing.assert_allclose(model.predict(new), rows(new) @ mean, atol=1e-6)
    variance = np.einsum("ij,jk,ik->i", rows(new), covariance, rows(new)) + noise**2
    np.testing.assert_allclose(model.predict_std(new), np.sqrt(variance), rtol=1e-6)
    outcomes = regression(7, seed + 9)[1]
    exact = norm.logpdf(outcomes, rows(new) @ mean, np.sqrt(variance)).mean()
    np.testing.assert_allclose(model.evaluate(new, outcomes)["log_score"], exact, rtol=1e-6)
    assert model.converged_ and model.certificate_.word == "certified"


def test_scales_are_those_of_the_highest_evidence():
    x, y = regression(30, 3)
    model = mx.BayesianRegressor(network=linear(1), prior=Normal(learned=True), **QUIET).fit(x, y)
    z, own = rows((x - x.mean(axis=0)) / x.std(axis=0)), (y - y.mean()) / y.std()
    factor, noise = float(model._scales.factors[0]), float(model._scales.noise)

    def exact(log_factor, log_noise):
        return evidence_of(z, own, np.exp(-log_factor / 2), np.exp(log_noise)) - len(y) * np.log(y.std())

    grid = [(a, b) for a in np.log(factor) + np.linspace(-3, 3, 61) for b in np.log(noise) + np.linspace(-1, 1, 41)]
    values = [exact(*one) for one in grid]
    best = grid[int(np.argmax(values))]
    np.testing.assert_allclose(model.log_evidence_, max(values), atol=2e-3)
    np.testing.assert_allclose(model.log_evidence_, exact(np.log(factor), np.log(noise)), atol=1e-8)
    assert abs(best[0] - np.log(factor)) <= 0.11 and abs(best[1] - np.log(noise)) <= 0.051


def test_of_a_logistic_regression_it_is_newtons_mode_and_hessian():
    rng = np.random.default_rng(2)
    x, _ = regression(80, 2)
    y = (rng.random(80) < expit(x @ [1.5, -1.0, 0.5])).astype(int)
    model = mx.BayesianClassifier(network=linear(2), prior=1.5, standardize=False, **QUIET).fit(x, y)
    # Two outputs, each with N(0, s^2) weights: their difference has N(0, 2 s^2), and their sum the prior.
    design, w, precision = rows(x), np.zeros(4), 1 / (2 * 1.5**2)
    for _ in range(50):
        p = expit(design @ w)
        hessian = design.T @ (design * (p * (1 - p))[:, None]) + precision * np.eye(4)
        w = w - np.linalg.solve(hessian, design.T @ (p - y) + precision * w)
    weight, bias = model.params_["weight"], model.params_["bias"]
    np.testing.assert_allclose(np.append(weight[1] - weight[0], bias[1] - bias[0]), w, atol=1e-6)
    p = expit(design @ w)
    value = np.sum(np.log(np.where(y == 1, p, 1 - p))) - precision * w @ w / 2 + 2 * np.log(precision)
    np.testing.assert_allclose(model.log_evidence_, value - np.linalg.slogdet(hessian)[1] / 2, atol=1e-6)
    new = regression(6, 5)[0]
    spread = np.sqrt(np.einsum("ij,jk,ik->i", rows(new), np.linalg.inv(hessian), rows(new)))
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    exact = expit((rows(new) @ w)[:, None] + spread[:, None] * nodes) @ weights / weights.sum()
    np.testing.assert_allclose(model.predict_proba(new, n_draws=4096)[:, 1], exact, atol=2e-3)
    np.testing.assert_allclose(model.predict_proba(new)[:, 1], exact, atol=0.02)
    assert np.all(model.predict_proba(new[:2]) == model.predict_proba(new)[:2])  # whatever else is predicted


class Tiny(eqx.Module):
    """Two layers by hand, the second without a bias."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __init__(self, inputs=2, outputs=3):
        a, b = jax.random.split(jax.random.key(3))
        self.first, self.second = eqx.nn.Linear(inputs, 3, key=a), eqx.nn.Linear(3, outputs, use_bias=False, key=b)

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x)))


@pytest.fixture(scope="module")
def three():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(60, 2))
    return x, np.digitize(x[:, 0] + x[:, 1] ** 2 + 0.5 * rng.normal(size=60), [0.0, 1.5])


def by_hand(model, x):
    """Hidden units, and Jacobians (n, 3, 18) in NumPy: first weight (3, 2), its bias, second weight (3, 3)."""
    params = model.params_
    v, b, w = params["first.weight"], params["first.bias"], params["second.weight"]
    hidden = np.tanh(x @ v.T + b)
    by_hidden = w[None] * (1 - hidden**2)[:, None, :]
    first = by_hidden[:, :, :, None] * x[:, None, None, :]
    second = np.einsum("kl,nj->nklj", np.eye(3), hidden)
    n = len(x)
    return hidden, by_hidden, np.concatenate([first.reshape(n, 3, 6), by_hidden, second.reshape(n, 3, 9)], axis=2), hidden @ w.T


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
def test_structures_are_by_their_definitions(three, structure):
    x, y = three
    model = mx.BayesianClassifier(network=Tiny(), prior=1.0, standardize=False, structure=structure, **QUIET).fit(x, y)
    hidden, by_hidden, jacobian, outputs = by_hand(model, x)
    p = np.exp(log_softmax(outputs, axis=1))
    bend = p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None, :]
    full = np.einsum("nkp,nkl,nlq->pq", jacobian, bend, jacobian)
    if structure == "diagonal":
        full = np.diag(np.diag(full))
    if structure == "kronecker":
        inner = rows(x).T @ rows(x) / len(x)
        outer = np.einsum("nko,nkl,nlp->op", by_hidden, bend, by_hidden)
        one = np.kron(outer, inner)  # weights (3, 2) and a bias column
        order = np.concatenate([np.arange(9).reshape(3, 3)[:, :2].ravel(), np.arange(9).reshape(3, 3)[:, 2]])
        full = np.zeros((18, 18))
        full[:9, :9] = one[np.ix_(order, order)]
        full[9:, 9:] = np.kron(bend.sum(axis=0), hidden.T @ hidden / len(x))
    precision = full + np.eye(18)
    w = np.concatenate([np.ravel(leaf) for leaf in model.params_.values()])
    value = np.sum(np.log(p[np.arange(60), y])) - w @ w / 2 - np.linalg.slogdet(precision)[1] / 2
    np.testing.assert_allclose(model.log_evidence_, value, atol=1e-8)
    sd = np.concatenate([np.ravel(leaf) for leaf in model.stderr_.values()])
    np.testing.assert_allclose(sd, np.sqrt(np.diag(np.linalg.inv(precision))), rtol=1e-8)
    _, _, new, _ = by_hand(model, x[:5] + 1)
    covariance = np.einsum("nkp,pq,nlq->nkl", new, np.linalg.inv(precision), new)
    np.testing.assert_allclose(model._moments(x[:5] + 1)[1], covariance, atol=1e-10)
    # It is a mode: the log posterior has no slope.
    slope = np.einsum("nkp,nk->p", jacobian, np.eye(3)[y] - p) - w
    assert np.sqrt(slope @ np.linalg.solve(precision, slope)) < 1e-4
    draws = model.posterior_draws(20_000)
    flat = np.concatenate([leaf[0].reshape(20_000, -1) for leaf in draws.values()], axis=1)
    np.testing.assert_allclose(np.cov(flat.T), np.linalg.inv(precision), atol=0.05)


def test_of_the_last_layer_alone_the_others_are_held(three):
    x, y = three
    model = mx.BayesianClassifier(network=Tiny(), prior=1.0, standardize=False, layers="last", **QUIET).fit(x, y)
    _, _, jacobian, outputs = by_hand(model, x)
    p, jacobian = np.exp(log_softmax(outputs, axis=1)), jacobian[:, :, 9:]
    bend = p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None, :]
    precision = np.einsum("nkp,nkl,nlq->pq", jacobian, bend, jacobian) + np.eye(9)
    w = np.ravel(model.params_["second.weight"])
    value = np.sum(np.log(p[np.arange(60), y])) - w @ w / 2 - np.linalg.slogdet(precision)[1] / 2
    np.testing.assert_allclose(model.log_evidence_, value, atol=1e-8)
    assert np.all(model.stderr_["first.weight"] == 0) and np.all(model.stderr_["second.weight"] > 0)
    assert np.ptp(model.posterior_draws(10)["first.weight"], axis=1).max() == 0
    with pytest.raises(ValueError, match="all"):
        model.influence()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_last_layer_alone_predicts_nearly_as_all_layers_do(seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.5, 1.5, size=(340, 2))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=340)
    settings: dict = QUIET | {"network": Tiny(2, 1)}
    every, last = (mx.BayesianRegressor(layers=which, **settings).fit(x[:80], y[:80]) for which in ("all", "last"))
    found = {which: model.evaluate(x[80:], y[80:]) for which, model in (("all", every), ("last", last))}
    assert found["last"]["r2"] > 0.9 and abs(found["last"]["r2"] - found["all"]["r2"]) < 0.01
    assert abs(found["last"]["log_score"] - found["all"]["log_score"]) < 0.1
    np.testing.assert_allclose(last.params_["noise"], every.params_["noise"], rtol=0.1)
    assert "of the last layer" in last.message_ and "given the layers before it" in last.message_
    assert last.predict_std(x[80:]).mean() < every.predict_std(x[80:]).mean()  # doubts of the layers before it are left out


def test_what_is_said_of_mode_and_scales():
    def found(**other):
        return Found(
            **({"approximation": None, "scales": None, "log_evidence": 0.0, "away": 0.0, "settled": True, "said": []} | other)
        )

    def ended(one):
        return converged(one), Certificate(checks_of(one)).word

    assert ended(found()) == ended(found(settled=None)) == (True, "certified")
    assert ended(found(said=["At a bound."])) == (True, "careful")  # what was asked for, and nothing would change it
    assert ended(found(settled=False)) == ended(found(away=1.0)) == (False, "careful")
    fell = found(settled=False, fell=3.2)
    assert ended(fell) == (False, "careful") and "fell by 3.2" in str(Certificate(checks_of(fell)))
    assert "trained" in str(Certificate(checks_of(found(), unseen=True)))


def test_an_outcome_without_noise_is_careful():
    x, _ = regression(40, 1)
    model = mx.BayesianRegressor(network=linear(1), **QUIET).fit(x, x @ [1.0, -1.0, 0.5])
    assert "no noise at all" in model.message_ and model.certificate_.word == "careful" and model.converged_
    assert model.score(x, x @ [1.0, -1.0, 0.5]) > 0.999


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
def test_it_is_saved_to_the_bit(three, structure, tmp_path):
    x, y = three
    model = mx.BayesianClassifier(network="relu", structure=structure, layers="last", prior=1.0, **QUIET).fit(x, y)
    model.save(tmp_path / "model.npz")
    loaded = mx.BayesianClassifier.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict_proba(x), model.predict_proba(x))
    np.testing.assert_array_equal(loaded.posterior_draws(3)["layers.1.weight"], model.posterior_draws(3)["layers.1.weight"])
    assert loaded.log_evidence_ == model.log_evidence_ and loaded.structure_ == structure and loaded.layers == "last"
    assert loaded.summary().equals(model.summary())


def test_what_else_it_answers(three):
    x, y = three
    model = mx.BayesianClassifier(network=Tiny(), **QUIET).fit(x, y)
    assert set(model.evaluate(x, y).index) == {"accuracy", "log_score", "brier", "ece"}
    with pytest.raises(ValueError, match="log_evidence_"):
        _ = model.elbo_
    with pytest.raises(ValueError, match="variational"):
        model.pruned(0.5)
    table = model.influence(50)
    assert 1 < table["leverage"].sum() < 18
    again = model.forget([0, 1])
    assert again.n_observations_ == 58 and again.structure_ == "full"
    found = model.to_arviz(n_draws=400)
    likelihood = found.log_likelihood["y"].to_numpy()[0]
    drawn = np.log(np.mean(np.exp(likelihood), axis=0))
    exact = np.log(model.predict_proba(x, 2048)[np.arange(60), y])
    np.testing.assert_allclose(drawn, exact, atol=0.15)  # of the linearised network, as predictions are
    assert found.posterior.attrs["algorithm"] == "Laplace (full, layers: all)"
    told = str(found.attrs) + str(found.posterior.attrs)
    assert "Laplace's approximation at the mode" in told and "ELBO" not in told and "log_sigma" not in told
    assert "log evidence" in model._repr_html_()
    plain = model.set_params(method=None, temperature=1.0).fit(x, y)
    assert plain._approximation is None and np.isfinite(plain.elbo_)


def test_a_linear_regression_forgets_exactly():
    x, y = regression()
    settings: dict = QUIET | {"network": linear(1), "prior": 2.0, "noise": 0.5, "noise_fixed": True, "standardize": False}
    forgot = mx.BayesianRegressor(**settings).fit(x, y).forget([0, 5])
    alone = mx.BayesianRegressor(**settings).fit(np.delete(x, [0, 5], axis=0), np.delete(y, [0, 5]))
    np.testing.assert_allclose(forgot.params_["weight"], alone.params_["weight"], atol=1e-8)
    np.testing.assert_allclose(forgot.log_evidence_, alone.log_evidence_, atol=1e-8)


def test_counts_have_the_mode_of_a_poisson_regression():
    x, eta = regression(60, 6)
    y = np.random.default_rng(7).poisson(np.exp(0.5 * eta))
    model = mx.BayesianRegressor(likelihood="poisson", network=linear(1), prior=1.0, standardize=False, **QUIET).fit(x, y)
    design, w = rows(x), np.zeros(4)
    for _ in range(100):
        rate = np.exp(design @ w)
        hessian = design.T @ (design * rate[:, None]) + np.eye(4)
        w = w - np.linalg.solve(hessian, design.T @ (rate - y) + w)
    np.testing.assert_allclose(np.append(model.params_["weight"], model.params_["bias"]), w, atol=1e-6)
    spread = np.einsum("ij,jk,ik->i", design, np.linalg.inv(hessian), design)
    np.testing.assert_allclose(model.predict(x, 4096), np.exp(design @ w + spread / 2), rtol=0.01)


def test_bad_settings_are_refused(three):
    x, y = three

    def fails(match, error: type[Exception] = ValueError, **settings):
        every: dict = QUIET | settings
        with pytest.raises(error, match=match):
            mx.BayesianClassifier(**every).fit(x, y)

    fails("structure must", structure="block")
    fails("layers must", layers="first")
    fails("temperature", temperature=0.1)
    fails("n_draws", n_draws=2)
    fails("early_stopping", early_stopping=True)
    fails("Gaussian prior", TypeError, prior=Laplace(0.1))
    fails("method", method="ivon", structure="full")
    weights = {"a": np.zeros((3, 2)), "b": np.zeros(3)}
    own: dict = QUIET | {"network": lambda w, x: x @ w["a"].T + w["b"], "weights": weights}
    fails("layers are known", layers="last", **own)
    fails("dense layers", structure="kronecker", **own)
    found = mx.BayesianClassifier(**own).fit(x, y)
    assert found.structure_ == "full" and found.converged_

    class Twice(Tiny):
        def __call__(self, x):
            return self.second(jnp.tanh(self.second(jnp.tanh(self.first(x)))))

    twice: Any = Twice
    fails("several times", network=twice(), structure="kronecker")
    with pytest.raises(ValueError, match="too large"):
        large: dict = QUIET | {"structure": "full"}
        mx.BayesianClassifier(**large).fit(np.ones((5, 200)), [0, 1, 2, 0, 1])


@pytest.mark.parametrize("kind", ["separated", "zeros", "wide", "constant column"])
def test_poor_data_give_finite_and_honest_answers(kind):
    rng = np.random.default_rng(8)
    n, p = (12, 30) if kind == "wide" else (40, 2)
    x = rng.normal(size=(n, p))
    y = (x[:, 0] > 0).astype(int)
    if kind == "zeros":
        x = np.zeros_like(x)
    if kind == "constant column":
        x[:, 1] = 3.0
    model = mx.BayesianClassifier(network=Tiny(p, 2), **QUIET).fit(x, y)
    found = model.predict_proba(x)
    assert np.all(np.isfinite(found)) and np.isfinite(model.log_evidence_) and model.log_evidence_ < 0
    if kind == "zeros":  # there is nothing to know but the shares
        np.testing.assert_allclose(found[:, 1], y.mean(), atol=0.1)
    elif kind != "wide":
        assert model.score(x, y) > 0.95 and found.max() < 1 - 1e-6
    with pytest.raises(ValueError, match="one class"):
        mx.BayesianClassifier(**QUIET).fit(x, np.zeros(n))
    if kind == "wide":
        numbers = mx.BayesianRegressor(network=Tiny(p, 1), **QUIET).fit(x, x[:, 0] + rng.normal(size=n))
        assert np.all(np.isfinite(numbers.predict_std(x))) and np.isfinite(numbers.log_evidence_)
