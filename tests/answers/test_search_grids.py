"""When the polish takes finer quadratures, for all units or for few of them, or draws."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import numpy as np
import pytest
from test_search import Toy, parabola

from margaux.answers import search as module
from margaux.answers.rules import Rule
from margaux.answers.search import NEAR
from margaux.esteps import ImportanceSampling, Quadrature


def off(*errors):
    """Of `beside_others`, units that are so far off."""
    return lambda *_: (np.zeros(len(errors)), np.stack([np.asarray(errors), np.zeros(len(errors))]))


def test_proposals_of_the_end_are_made_where_they_came_from_afar(monkeypatch):
    far = Toy(parabola([[1.0]], [0.0]), [0.0], estep=Quadrature(5))
    monkeypatch.setattr(module, "beside_others", off(0.0))
    monkeypatch.setattr(module, "evaluate", lambda fit, rule, params, keys: far.evaluated(params))
    for since, made in ((1.1 * NEAR, 1), (0.9 * NEAR, 0)):
        far.since, far.rules = since, []
        far.look_closer(50)
        assert len(far.rules) == made and far.level == 0


@pytest.mark.parametrize(("errors", "level"), [([0.011, 0.009], 1), ([0.009], 0), ([0.5, 0.5, 0.001], 2)])
def test_a_quadrature_that_others_disagree_with_is_made_finer(errors, level, monkeypatch):
    left = iter(errors)
    monkeypatch.setattr(module, "beside_others", lambda *_: off(next(left))())
    monkeypatch.setattr(module, "evaluate", lambda fit, rule, params, keys: search.evaluated(params))
    search = Toy(parabola([[1.0]], [0.5]), [0.0], estep=Quadrature(5))
    search.look_closer(50)
    assert search.level == level and len(search.rules) == level and next(left, None) is None
    assert search.params[0] == pytest.approx(0.5 if level else 0.0)  # and climbed by


@pytest.mark.parametrize(
    ("push", "times", "level"), [(0.0, 1.0, 0), (0.06, 1.0, 1), (0.04, 1.0, 0), (0.0, 1.2, 1), (0.0, 0.95, 0)]
)
def test_a_quadrature_whose_score_or_information_a_wider_one_contradicts_is_made_finer(push, times, level, monkeypatch):
    def other(fit, rule, params, keys):
        assert rule.estep.widening > 1
        if search.level:
            return search.evaluated(params)
        return Toy(lambda u: (0.0, -4.0 * u + 2.0 * push, np.array([[4.0 * times]])), params).at

    monkeypatch.setattr(module, "beside_others", off(0.0))
    monkeypatch.setattr(module, "evaluate", other)
    search = Toy(parabola([[4.0]], [0.0]), [0.0], estep=Quadrature(5))
    search.look_closer(50)
    assert search.level == level


GRIDS = ((5, 7, None), (9, 13, None), (17, 21, 5.5))


@pytest.mark.parametrize(("slow", "first", "needed", "levels", "level"), [
    (True, 0, [0, 1, 0, 0], [0, 1, 0, 0], 0),  # one unit alone
    (True, 0, [0, 2, 0, 1], [0, 2, 0, 1], 0),  # and one of them once more
    (True, 1, [0, 2, 0, 0], [0, 1, 0, 0], 1),  # from the second grid
    (True, 0, [1, 1, 1, 0], [0, 0, 0, 0], 1),  # most of them: all
    (False, 0, [0, 1, 0, 0], [0, 0, 0, 0], 1),
    (True, 0, [0, 9, 0, 0], [0, 0, 0, 0], 3),  # no grid will do
])  # fmt: skip
def test_of_densities_that_take_long_few_units_have_finer_grids(slow, first, needed, levels, level, monkeypatch):
    used = []

    def beside_others(fit, params, rule, coarse):
        used.append(rule)
        own = rule.rows.get("level", np.zeros(4, int)) + search.level
        return off(*np.where(own < needed, 0.5, 0.001))()

    class Levelled(Toy):
        def rule_at(self, params, nearby=False):
            self.rules.append(params)
            nodes = GRIDS[self.level][0] if self.level < 3 else 0
            estep = Quadrature(nodes, held=True) if nodes else ImportanceSampling(100)
            return self._with_levels(Rule(estep, {"mean": "theirs"}, 1, 1, finer=7))

    monkeypatch.setattr(module, "costly", lambda model: slow)
    monkeypatch.setattr(module, "latent_size", lambda fit: 3)
    monkeypatch.setattr(module, "quadratures", lambda model, size: GRIDS)
    monkeypatch.setattr(module, "grid_of", lambda problem, size, level: (*GRIDS, None)[level])
    monkeypatch.setattr(module, "beside_others", beside_others)
    monkeypatch.setattr(module, "evaluate", lambda fit, rule, params, keys: search.evaluated(params))
    search = Levelled(parabola([[4.0]], [0.0]), [0.0], n=4, estep=Quadrature(5, held=True), rows={"mean": "theirs"})
    search.level = first
    search.look_closer(50)
    assert search.level == level and (level == 3 or search.levels.tolist() == levels)
    if any(levels):
        last, beyond = used[-1], GRIDS[level + 1 :]
        assert last.rows == {"mean": "theirs", "level": pytest.approx(np.array(levels))}
        assert last.estep.closer == tuple((nodes, reach) for nodes, _, reach in beyond)
        assert last.closer == tuple((finer, reach) for _, finer, reach in beyond)
    # Proposals that take long are made anew for draws alone, and where they are not those of the place.
    assert len(search.rules) == (2 if level == 3 else 0 if slow else 1)
