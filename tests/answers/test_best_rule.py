"""Which rule is best for which model, and how its nodes or draws are counted."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportOptionalMemberAccess=false, reportOptionalSubscript=false

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import margaux as mx
from margaux.answers import rules as module
from margaux.answers.rules import Rule, _by_draws, _even, best_rule, sample, thorough
from margaux.esteps import ModeMixture
from margaux.problem.model import AbstractConcave, AbstractConjugate, AbstractCostly, AbstractDiscrete


class Discrete(AbstractDiscrete):
    def log_joint(self, params, z, y): ...
    def init_latents(self, key, params, y): ...
    def support(self, y): ...


class Conjugate(AbstractConjugate):
    def log_joint(self, params, z, y): ...
    def init_latents(self, key, params, y): ...
    def sample_posterior(self, key, params, y): ...


class Concave(AbstractConcave):
    concave: bool = True

    def log_joint(self, params, z, y): ...
    def init_latents(self, key, params, y): ...


class Costly(AbstractCostly):
    costly: bool = True

    def lengths(self, data):
        return np.ones(len(data))

    def for_searches(self):
        return self


def fit(n=100, model=None, estep=None):
    problem = SimpleNamespace(n=n, model=model)
    return SimpleNamespace(_model=lambda: problem, estep=estep)


@pytest.fixture
def found(monkeypatch):
    """Latents a unit, modes that are found, and what proposals are asked for."""
    state = SimpleNamespace(size=1, modes=1.0, unseen=0.0, even=True, trouble=False, calls=[], suspects=0)

    def proposals(fit, estep, params=None, units=None, key=0):
        state.calls.append((type(estep).__name__, params, None if units is None else len(units), key))
        n = fit._model().n
        if isinstance(estep, mx.Quadrature):
            return {"mean": "of the quadrature", "cholesky": "of the quadrature"}
        modes = np.ones(n)
        modes[7] = state.modes
        return rows(n, modes)

    def rows(n, modes):
        return {"modes": modes, "away": np.arange(n) / 10, "mean": np.arange(3.0 * n).reshape(n, 3), "cholesky": np.ones((n, 3)),
                "unseen": np.full(n, state.unseen),
                "log_share": np.where(np.arange(3)[::-1] < modes[:, None], np.arange(3.0), -np.inf)}  # fmt: skip

    def widely(fit, rows, params, key, units):
        state.calls.append(("widely", params, len(units), key))
        return rows | {"mean": np.zeros((len(rows["mean"]), module.WIDE.n_modes))}

    def with_hidden(fit, rows, params, key):
        return widely(fit, rows, params, key, np.arange(state.suspects)) if state.suspects else rows

    monkeypatch.setattr(module, "latent_size", lambda fit: state.size)
    monkeypatch.setattr(module, "proposals", proposals)
    monkeypatch.setattr(module, "with_hidden", with_hidden)
    monkeypatch.setattr(module, "suspects", lambda fit, rows, params, key, units: np.arange(state.suspects))
    monkeypatch.setattr(module, "widely", widely)
    monkeypatch.setattr(module, "_even", lambda fit, rule, params: state.even)
    monkeypatch.setattr(module, "continuous_trouble", lambda fit: state.trouble)
    return state


def test_a_discrete_latent_is_enumerated():
    rule = best_rule(fit(model=Discrete()))
    assert isinstance(rule.estep, mx.Exact) and rule.deterministic and rule.has_likelihood and rule.width == 100
    with pytest.raises(ValueError, match="variational"):
        best_rule(fit(model=Discrete(), estep=mx.Noise(4)))


@pytest.mark.parametrize(("size", "level", "nodes", "finer"), [
    (1, 0, 21, 31), (1, 1, 61, 85), (2, 0, 15, 21), (2, 1, 35, 45), (3, 0, 9, 13), (3, 1, 17, 21),
])  # fmt: skip
def test_few_latents_of_one_mode_are_integrated_by_quadrature(size, level, nodes, finer, found):
    found.size = size
    rule = best_rule(fit(), params="there", level=level, key=3)
    assert (rule.estep.n_nodes, rule.finer, rule.replicates) == (nodes, finer, 1) and rule.estep.held
    assert rule.width == nodes**size * (size + 2) and rule.has_likelihood and rule.deterministic
    # Centred where the draws are, without a search of its own.
    assert found.calls == [("ImportanceSampling", "there", None, 3)]
    np.testing.assert_array_equal(rule.rows["mean"], 3.0 * np.arange(100))
    assert set(rule.rows) == {"mean", "cholesky"} and rule.modes.max() == 1 and rule.away[5] == 0.5


@pytest.mark.parametrize("why", ["modes", "level", "size", "n_draws", "points"])
def test_others_are_sampled_from_a_mixture(why, found):
    found.size, found.modes = 4 if why == "size" else 1, 2.0 if why == "modes" else 1.0
    many = why == "points"
    rule = best_rule(fit(2_000_000 if many else 100), level=2 if why == "level" else 0, n_draws=50 if why == "n_draws" else None)
    assert isinstance(rule.estep, mx.ImportanceSampling) and isinstance(rule.estep.proposal, ModeMixture) and rule.estep.quasi
    draws = {"n_draws": 50, "points": 100}.get(why, 446)
    assert rule.estep.n_draws == draws and rule.replicates == 4 and rule.width == draws * (found.size + 3)
    assert rule.has_likelihood and not rule.deterministic
    assert len(rule.modes) == (5000 if many else 100) and len(rule.rows["modes"]) == (2_000_000 if many else 100)
    # What need not be known of each is learned of some, before proposals are made for all.
    assert [call[2] for call in found.calls] == ([5000, None] if many else [None])


def test_many_modes_are_searched_for_widely(found):
    found.modes, found.unseen = 3.0, 0.1
    rule: Any = best_rule(fit())
    assert rule.estep.proposal.n_modes == 24 and len(found.calls) == 2
    assert rule.unseen is rule.rows["unseen"] and rule.unseen[0] == 0.1
    found.unseen = 0.0
    rule = best_rule(fit())
    assert rule.estep.proposal.n_modes == 3 and len(found.calls) == 3


@pytest.mark.parametrize("modes", [1.0, 2.0, 3.0, 4.0])
def test_a_few_modes_of_a_density_that_takes_long_have_a_grid_each(modes, found, monkeypatch):
    monkeypatch.setattr(module, "costly", lambda model: True)
    found.modes, found.unseen = modes, 0.1
    rule: Any = best_rule(fit())
    assert len(found.calls) == 1
    if modes > 3:
        assert rule.estep.proposal.n_modes == 3 and rule.unseen[0] == 0.1
        return
    assert isinstance(rule.estep, mx.Quadrature) and rule.deterministic and rule.modes.max() == modes
    if modes > 1:
        assert rule.unseen[0] == 0.1
        # The seventh unit has so many, in the last places; those of most mass are first.
        assert rule.rows["mean"].shape == (100, modes) and rule.rows["mean"][7, 0] == 23.0
        np.testing.assert_array_equal(rule.rows["log_share"][7], np.arange(2.0, 2.0 - modes, -1.0))


@pytest.mark.parametrize(("n", "calls"), [
    (100, [("ImportanceSampling", None), ("widely", 2)]),
    (10_000, [("ImportanceSampling", 5000), ("ImportanceSampling", None), ("widely", 2)]),
])  # fmt: skip
@pytest.mark.parametrize("modes", [1.0, 3.0])
def test_modes_may_be_where_other_units_have_theirs(n, calls, modes, found):
    """Looked for once: what was searched widely is not searched again, and one mode is for a quadrature."""
    found.suspects, found.modes, found.unseen = 2, modes, 0.1
    rule: Any = best_rule(fit(n))
    assert [call[:3:2] for call in found.calls] == calls
    if modes == 1:
        assert isinstance(rule.estep, mx.Quadrature)
    else:
        assert rule.estep.proposal is module.WIDE and rule.unseen is rule.rows["unseen"]
    found.calls.clear()
    best_rule(fit(n), proposal=ModeMixture(n_modes=2))
    assert ("widely", 2) not in [call[:3:2] for call in found.calls]


@pytest.mark.parametrize(("n", "draws"), [(10, 4000), (20, 2500), (100, 446), (600, 100)])
def test_units_share_the_draws(n, draws, found):
    found.size = 5
    assert best_rule(fit(n)).estep.n_draws == draws


@pytest.mark.parametrize(("size", "points", "quadrature"), [(1, 31, True), (2, 21**2, True), (3, 13**3, True)])
def test_a_quadrature_is_taken_as_long_as_the_finer_one_is_affordable(size, points, quadrature, found):
    found.size = size
    for n, kind in ((50_000_000 // points, mx.Quadrature), (50_000_000 // points + 1, mx.ImportanceSampling)):
        assert isinstance(best_rule(fit(n)).estep, kind)
        # Of a sample there are no rows to take over.
        found.calls.clear()
    large = best_rule(fit(20_000))
    assert large.rows["mean"] == "of the quadrature" and [call[:3:2] for call in found.calls] == [
        ("ImportanceSampling", 5000), ("Quadrature", None)]  # fmt: skip
    assert len(large.modes) == len(large.away) == 5000


@pytest.mark.parametrize(
    ("size", "even", "sampled"), [(20, False, True), (21, False, False), (200, True, True), (201, True, False)]
)
def test_uneven_weights_of_many_latents_leave_chains(size, even, sampled, found):
    found.size, found.even = size, even
    rule = best_rule(fit())
    assert isinstance(rule.estep, mx.ImportanceSampling if sampled else mx.MCMC) and rule.has_likelihood == sampled


def test_exact_draws_of_latents_that_are_not_continuous_stay(found):
    found.trouble = True
    assert isinstance(best_rule(fit(model=Conjugate(), estep=mx.Exact())).estep, mx.Exact)
    assert isinstance(best_rule(fit(model=Conjugate(), estep=mx.Quadrature(5))).estep, mx.Quadrature)
    found.trouble = False
    assert isinstance(best_rule(fit(model=Conjugate(), estep=mx.Exact())).estep, mx.Quadrature)


def test_draws_are_of_the_model_or_of_the_kernel_of_the_fit():
    exact = _by_draws(fit(model=Conjugate()), 7, 300)
    assert isinstance(exact.estep, mx.Exact) and exact.estep.n_draws == 300
    assert (exact.rows, exact.replicates, exact.width) == (None, 4, 3000) and not exact.has_likelihood
    kernel = mx.RandomWalk(0.5)
    for draws, steps in ((300, 300), (900, 500)):
        chains = _by_draws(fit(estep=mx.MCMC(kernel)), 7, draws)
        assert chains.estep.kernel is kernel and (chains.estep.n_steps, chains.estep.burn_in) == (steps, steps // 4)
        assert (chains.replicates, chains.width) == (4, steps * 10) and not chains.has_likelihood
    assert isinstance(_by_draws(fit(estep=mx.Quadrature(3)), 7, 300).estep.kernel, mx.MALA)
    several = _by_draws(fit(estep=mx.MCMC(kernel, n_chains=4)), 7, 300).estep
    assert (several.n_chains, several.n_steps, several.burn_in) == (4, 75, 18)


@pytest.mark.parametrize(("ess", "pareto", "even"), [
    ([3, 2.1, 90], [0.1, 0.69, 2.0], True), ([3, 1.9, 90], [0.1, 0.69, 2.0], True), ([1, 2.0, 90], [0.1] * 3, False),
    ([3, 2.1, 90], [0.1, 0.7, 2.0], False),
])  # fmt: skip
def test_weights_are_even_by_their_medians(ess, pareto, even, monkeypatch):
    from margaux.answers import posterior

    def each_unit(fit, f, estep, params, width, rows):
        assert (params, width, rows) == ("params", 77, "rows")
        return None, {"ess": np.array(ess), "pareto": np.array(pareto)}

    monkeypatch.setattr(posterior, "each_unit", each_unit)
    assert _even(None, Rule(mx.ImportanceSampling(100), "rows", 4, 77), "params") == even


def test_a_sample_of_units_is_always_the_same_and_in_order():
    assert sample(5000) is None and sample(10, 10) is None
    some = sample(5001)
    assert len(some) == len(set(some)) == 5000 and np.all(np.diff(some) > 0) and some.min() >= 0 and some.max() <= 5000
    np.testing.assert_array_equal(some, sample(5001))
    assert len(sample(100, 7)) == 7 and sample(100, 7).max() < 100


@pytest.mark.parametrize("concave", [True, False])
def test_no_further_modes_are_looked_for_where_the_log_density_is_concave(found, concave):
    rule = best_rule(fit(model=Concave(concave)))
    assert [name for name, *_ in found.calls] == ["Quadrature" if concave else "ImportanceSampling"]
    assert isinstance(rule.estep, mx.Quadrature) and (rule.estep.n_nodes, rule.finer, rule.width) == (21, 31, 63)
    assert (rule.modes is None) is concave


def test_draws_take_over_beyond_the_finest_quadrature_also_of_a_concave_log_density(found):
    assert isinstance(best_rule(fit(model=Concave()), level=2).estep, mx.ImportanceSampling)


def test_where_a_density_takes_long_few_nodes_come_first(found, monkeypatch):
    found.size = 3
    nodes = [best_rule(fit(model=Costly()), level=level).estep.n_nodes for level in range(3)]
    assert nodes == [5, 9, 17] and best_rule(fit()).estep.n_nodes == 9
    assert isinstance(best_rule(fit(model=Costly()), level=3).estep, mx.ImportanceSampling)
    assert int(thorough(Costly()).searches) < int(thorough(None).searches)
