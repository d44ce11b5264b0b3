"""Likelihoods by parts: which means is taken, how replicates are pooled and where more are drawn, with draws that are given."""

# Stand-ins take the place of fits, rules and models: pyright sees other types.
# pyright: reportArgumentType=false

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import special

import margaux as mx
from margaux.answers import likelihood as module
from margaux.answers.likelihood import LogLikelihood, _affordable, _by_importance, _placed, _width, agreed, loglik
from margaux.answers.rules import Rule
from margaux.esteps import ModeMixture


def fit(n=4, model=None):
    return SimpleNamespace(_model=lambda: SimpleNamespace(n=n, model=model))


IMPORTANCE = Rule(mx.ImportanceSampling(100, ModeMixture()), {"mean": np.zeros(4)}, 4, 1)


def test_a_likelihood_is_a_number_that_knows_its_error():
    value = LogLikelihood(np.array([-1.0, -2.5]), 0.0123, "by hand", "odd")
    assert value == -3.5 and value + 1 == -2.5 and repr(value) == "-3.5000 (se 0.012)"
    again = pickle.loads(pickle.dumps(value))
    assert again == value and (again.se, again.method, again.message) == (0.0123, "by hand", "odd")
    np.testing.assert_array_equal(again.per_unit, value.per_unit)
    assert LogLikelihood(np.zeros(1), 0).method == LogLikelihood(np.zeros(1), 0).message == ""


def test_the_size_of_a_block_is_that_of_the_draws_or_nodes(monkeypatch):
    monkeypatch.setattr(module, "latent_size", lambda fit: 2)
    assert _width(None, mx.Quadrature(7)) == 7**2 * 4
    assert _width(None, mx.ImportanceSampling(30)) == 30 * 5
    assert _width(None, mx.ImportanceSampling(mx.Growth(64.0, 0.5))) == _width(None, mx.MCMC(mx.MALA())) == 5000


def test_so_many_nodes_a_unit_are_affordable():
    _affordable(1414, 2)
    _affordable(2_000_000, 1)
    with pytest.raises(ValueError, match=r"1415 nodes in 2 dimensions are 10\^6.3 points"):
        _affordable(1415, 2)


def test_rows_of_some_units_are_replaced():
    old = np.arange(8.0).reshape(4, 2)
    out = _placed(old, old + 10, np.array([1, 3]))
    np.testing.assert_array_equal(out, [[0, 1], [12, 13], [4, 5], [16, 17]])
    assert old[1, 0] == 2.0


# -- quadrature -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("coarse", "wide", "error"), [
    ([0.1, 0.2], [0.0, 0.0], 0.3), ([0.0, 0.0], [0.1, 0.2], 0.3), ([0.3, -0.3], [0.0, 0.1], np.hypot(0.3, 0.3)),
    ([0.3, -0.1], [-0.1, 0.4], 0.5),
])  # fmt: skip
def test_rules_agree_up_to_their_largest_gap_and_no_better_than_independent_units(coarse, wide, error, monkeypatch):
    value = np.array([-3.0, -4.0])
    rule = Rule(mx.Quadrature(21, held=True), "rows", 1, 1, finer=31)

    def marginals(fit, params, estep, rows):
        assert rows == "rows" and params == "params" and estep.held
        if estep is rule.estep:
            return value + np.array(coarse)
        assert estep.n_nodes == 31 and float(estep.widening) in (1.0, module.WIDER)
        return value + np.array(wide) if float(estep.widening) == module.WIDER else value

    monkeypatch.setattr(module, "_marginals", marginals)
    found = agreed(None, "params", rule)
    assert found == -7.0 and found.se == pytest.approx(max(error, np.sqrt(np.sum(np.maximum(np.abs(coarse), np.abs(wide)) ** 2))))
    assert found.method == "quadrature"


def test_a_quadrature_is_compared_with_one_of_four_nodes_less(monkeypatch):
    seen = []
    monkeypatch.setattr(module, "latent_size", lambda fit: 1)
    monkeypatch.setattr(
        module, "_marginals", lambda fit, params, estep: (seen.append(estep.n_nodes), -np.ones(3) / estep.n_nodes)[1]
    )
    found = loglik(fit(), "quadrature", n_nodes=9)
    assert seen == [9, 5] and found == pytest.approx(-3 / 9) and found.se == pytest.approx(3 / 5 - 3 / 9)
    loglik(fit(), "quadrature", n_nodes=3)
    assert seen[2:] == [3, 1]
    one = loglik(fit(), "laplace")
    assert one == -3.0 and np.isnan(one.se) and one.method == "Laplace approximation" and seen[4:] == [1]


# -- which means ------------------------------------------------------------------------------------


@pytest.fixture
def means(monkeypatch):
    state = SimpleNamespace(rule=IMPORTANCE, agreed=LogLikelihood(np.array([-1.0]), 0.0, "agreed"), calls=[])
    monkeypatch.setattr(module, "best_rule", lambda fit, params: state.rule)
    monkeypatch.setattr(module, "agreed", lambda fit, params, rule: state.agreed)
    monkeypatch.setattr(module, "_enumerated", lambda fit, params: "enumerated")
    monkeypatch.setattr(module, "_by_importance", lambda fit, params, *rest: state.calls.append(rest) or "importance")
    return state


def test_what_is_most_accurate_is_taken(means):
    assert loglik(fit(), tol=0.5, n_draws=70, replicates=3) == "importance" and means.calls == [(IMPORTANCE, 70, 3, 0.5, 1)]
    own = Rule(mx.ImportanceSampling(5), None, 4, 1)
    loglik(fit(), "importance", rule=own, first_key=9)
    assert means.calls[1] == (own, None, 8, 0.02, 9)
    means.rule = Rule(mx.Exact(), None, 1, 1)
    assert loglik(fit()) == loglik(fit(), "exact") == "enumerated"
    means.rule = Rule(mx.Exact(50), None, 4, 1)
    assert loglik(fit()) == "importance"


def test_a_quadrature_is_taken_where_it_agrees_to_half_the_tolerance(means):
    means.rule = Rule(mx.Quadrature(5), None, 1, 1)
    assert loglik(fit()) is means.agreed
    assert loglik(fit(), "importance") == loglik(fit(), n_draws=100) == "importance"
    for se, taken in ((0.01, True), (0.011, False)):
        means.agreed = LogLikelihood(np.array([-1.0]), se)
        assert (loglik(fit()) is means.agreed) == taken
    assert loglik(fit(), tol=0.03) is means.agreed


@pytest.mark.parametrize("trouble", [None, "only what is discrete is enumerated"])
def test_what_cannot_be_enumerated_is_refused(trouble, monkeypatch):
    monkeypatch.setattr(module.Exact, "requires", lambda self, model, latents: trouble)
    monkeypatch.setattr(module, "each_unit", lambda fit, f, estep, params: (None, {}))
    with pytest.raises(TypeError, match=trouble or "exact draws give no likelihood"):
        loglik(fit(), "exact")
    monkeypatch.setattr(module.Exact, "requires", lambda self, model, latents: None)
    monkeypatch.setattr(module, "each_unit", lambda fit, f, estep, params: (None, {"log_marginal": np.array([-1.0, -2.0])}))
    found = loglik(fit(), "exact")
    assert (found, found.se, found.method) == (-3.0, 0.0, "enumeration")


def test_other_methods_have_draws_of_their_own_number(means, monkeypatch):
    calls = []

    def harmonic(fit, params, n_draws):
        calls.append(n_draws)
        return np.array([-1.0, -2.0]), np.array([0.3, 0.4])

    monkeypatch.setitem(module.EVIDENCE, "harmonic", (harmonic, 1000))
    found = loglik(fit(), "harmonic")
    loglik(fit(), "harmonic", n_draws=7)
    assert calls == [1000, 7] and found == -3.0 and found.se == pytest.approx(0.5) and found.method == "harmonic"
    with pytest.raises(ValueError, match="must be one of .*'laplace'.*'annealed'.*got 'magic'"):
        loglik(fit(), "magic")


def test_draws_by_a_given_estep_are_pooled_over_keys(monkeypatch):
    logs = {key: np.array([-1.0 - key, -2.0]) for key in range(20)}
    calls = []

    def each_unit(fit, f, estep, params, key, width, rows, units):
        calls.append((key, width, rows, params))
        return None, {"log_marginal": logs[key]}

    monkeypatch.setattr(module, "each_unit", each_unit)
    monkeypatch.setattr(module, "latent_size", lambda fit: 1)
    found = loglik(fit(), estep=mx.ImportanceSampling(10), params="there", replicates=3, first_key=5, rows="rows")
    assert calls == [(key, 40, "rows", "there") for key in (5, 6, 7)]
    densities = np.exp([-6.0, -7.0, -8.0])
    assert found.per_unit[0] == pytest.approx(np.log(densities.mean())) and found.per_unit[1] == pytest.approx(-2.0)
    assert found.se == pytest.approx(densities.std(ddof=1) / np.sqrt(3) / densities.mean())
    assert found.method == "importance sampling"
    calls.clear()
    loglik(fit(), estep=mx.ImportanceSampling(10))
    assert [call[0] for call in calls] == list(range(1, 9))


# -- importance sampling ----------------------------------------------------------------------------


@pytest.fixture
def draws(monkeypatch):
    """Log densities of units by key: a level and a spread of each unit; what is asked for is kept."""
    state = SimpleNamespace(level=np.array([-3.0, -5.0, -2.0, -4.0]), spread=np.array([0.001, 0.3, 0.2, 0.0]),
                            pareto=np.full(4, 0.1), ess=np.array([90.0, 50.0, 60.0, 99.0]), visits=[], proposals=[],
                            fresh_pareto=None)  # fmt: skip

    def logs(key, units):
        noise = np.random.default_rng(key).normal(size=len(state.level))
        return (state.level + state.spread * noise)[units]

    def each_unit(fit, f, estep, params, key, width, rows, units):
        state.visits.append((key, units.tolist(), rows["mean"].copy(), estep.n_draws, width))
        state.estep = estep
        pareto = state.pareto if state.fresh_pareto is None or len(state.visits) <= 8 else state.fresh_pareto
        return None, {"log_marginal": logs(key, units), "ess": state.ess[units], "pareto": pareto[units]}

    def proposals(fit, estep, params, units=None, key=0):
        state.proposals.append((None if units is None else units.tolist(), key))
        return {"mean": np.full(4, 1.0 + len(state.proposals))}

    state.logs = logs
    monkeypatch.setattr(module, "each_unit", each_unit)
    monkeypatch.setattr(module, "proposals", proposals)
    monkeypatch.setattr(module, "latent_size", lambda fit: 1)
    return state


def pooled(logs):
    densities = np.exp(logs - logs.max())
    error = densities.std(ddof=1) / densities.mean() / np.sqrt(len(logs))
    return special.logsumexp(logs) - np.log(len(logs)), error


def test_replicates_are_pooled_unit_by_unit(draws):
    draws.spread = draws.spread / 100
    found = _by_importance(fit(), None, IMPORTANCE, None, 8, 0.02)
    each = [pooled(np.array([draws.logs(1 + r, np.array([i]))[0] for r in range(8)])) for i in range(4)]
    np.testing.assert_allclose(found.per_unit, [value for value, _ in each])
    assert found.se == pytest.approx(np.sqrt(sum(error**2 for _, error in each)))
    assert found.method == "importance sampling" and found.message == "" and draws.proposals == []
    assert [v[:2] for v in draws.visits] == [(key, [0, 1, 2, 3]) for key in range(1, 9)]
    assert draws.estep.quasi and isinstance(draws.estep.proposal, ModeMixture)


@pytest.mark.parametrize(("n", "asked", "replicates", "each"), [
    (4, None, 8, 4000), (100, None, 8, 2232), (100_000, None, 8, 250), (4, 800, 4, 200), (4, 100, 8, 20),
])  # fmt: skip
def test_draws_are_shared_by_the_replicates(n, asked, replicates, each, draws):
    draws.level, draws.spread, draws.ess, draws.pareto = np.zeros(n), np.zeros(n), np.ones(n), np.zeros(n)
    _by_importance(fit(n), None, IMPORTANCE, asked, replicates, 0.02)
    assert {v[3] for v in draws.visits} == {each} and {v[4] for v in draws.visits} == {each * 4}
    assert len(draws.visits) == replicates


def test_units_with_most_of_the_variance_have_more_replicates_until_the_error_is_small(draws):
    found = _by_importance(fit(), None, IMPORTANCE, None, 8, 0.05)
    rounds = len(draws.visits) // 8
    assert rounds > 1 and found.se <= 0.05 and found.message == ""
    # Units 1 and 2 have nearly all of it; keys are never used again; proposals are held.
    assert all(units == [1, 2] for _, units, *_ in draws.visits[8:])
    assert [key for key, *_ in draws.visits] == list(range(1, 8 * rounds + 1)) and draws.proposals == []
    logs = np.array([draws.logs(1 + r, np.arange(4)) for r in range(8 * rounds)])
    for i in (1, 2):
        assert found.per_unit[i] == pytest.approx(pooled(logs[:, i])[0])
    assert found.per_unit[0] == pytest.approx(pooled(logs[:8, 0])[0])
    assert found.se == pytest.approx(np.sqrt(sum(pooled(logs[: 8 if i in (0, 3) else None, i])[1] ** 2 for i in range(4))))


def test_patience_ends_and_what_is_left_is_said(draws):
    draws.spread = np.array([0.0, 2.0, 0.5, 0.0])
    found = _by_importance(fit(), None, IMPORTANCE, None, 8, 0.01)
    assert len(draws.visits) == 8 * module.PATIENCE
    assert f"its standard error of {found.se:.2g} is above 0.01, most of it from unit 1" == found.message


def test_proposals_of_heavy_weights_are_learned_anew(draws):
    draws.pareto = np.array([0.9, 0.71, 0.69, 0.1])
    found = _by_importance(fit(), None, IMPORTANCE, None, 8, 0.07)
    assert draws.proposals[0] == ([1], 8) and all(units == [1] for units, _ in draws.proposals)
    assert draws.proposals[-1][1] == len(draws.visits) - 8
    np.testing.assert_array_equal(draws.visits[8][2], [0.0, 2.0, 0.0, 0.0])
    assert found.message == "" or "uneven" in found.message


def test_weights_that_stay_heavy_are_said_where_they_matter(draws):
    draws.pareto = np.array([0.9, 0.8, 0.1, 0.1])
    found = _by_importance(fit(), None, IMPORTANCE, None, 8, 0.2)
    assert found.se < 0.2 and len(draws.visits) == 8
    assert found.message.startswith("the weights of 2 units are so uneven (Pareto k up to 0.90, effective size 50.0)")
    draws.spread = np.array([0.3, 2.0, 0.5, 0.0])
    both = _by_importance(fit(), None, IMPORTANCE, None, 8, 0.01)
    assert "is above 0.01, most of it from unit 1; the weights of 2 units" in both.message
    # Of a unit whose error is small it is of no matter.
    draws.pareto, draws.spread = np.array([0.9, 0.1, 0.1, 0.1]), np.array([0.001, 0.3, 0.2, 0.0])
    assert _by_importance(fit(), None, IMPORTANCE, None, 8, 0.2).message == ""
    # Nor where fresh proposals are even.
    draws.pareto, draws.fresh_pareto = np.array([0.1, 0.9, 0.9, 0.1]), np.full(4, 0.2)
    draws.visits.clear()
    assert _by_importance(fit(), None, IMPORTANCE, None, 8, 0.05).message == ""


def test_other_rules_rows_are_not_those_of_a_mixture(draws, monkeypatch):
    draws.spread = np.zeros(4)
    for rule in (None, Rule(mx.Quadrature(5), {"mean": np.zeros(4)}, 1, 1)):
        draws.proposals.clear()
        _by_importance(fit(), None, rule, None, 8, 0.02)
        assert draws.proposals == [(None, 0)]
    monkeypatch.setattr(module, "latent_size", lambda fit: 201)
    with pytest.raises(TypeError, match="201 latents a unit"):
        _by_importance(fit(), None, IMPORTANCE, None, 8, 0.02)
    monkeypatch.setattr(module, "latent_size", lambda fit: 200)
    assert _by_importance(fit(), None, IMPORTANCE, None, 8, 0.02) == -14.0
