"""Many data sets at once, against one fit each and against exact maxima."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from scipy import optimize

import margaux as mx
from helpers import RandomIntercept, gamma_poisson, intercept_negative_loglik, random_intercept, simulate_intercepts
from margaux.answers import flock, many

PROBLEM = random_intercept(40, 3)


def one_each(fits, problems):
    for r, problem in enumerate(problems):
        for name, value in problem.mle.items():
            assert abs(fits.params[name][r] - value) < 0.01 * problem.se[name]
            assert fits.stderr[name][r] == pytest.approx(problem.se[name], rel=0.02)
        assert fits.loglik[r] == pytest.approx(problem.loglik, abs=2e-3)


def test_data_sets_of_any_sizes_reach_their_exact_maxima():
    problems = [random_intercept(n, seed) for n, seed in ((40, 3), (23, 5), (61, 8))]
    width = max(problem.data["y"].shape[1] for problem in problems)
    sets = [
        {name: np.pad(leaf, ((0, 0), (0, width - leaf.shape[1]))) for name, leaf in problem.data.items()} for problem in problems
    ]
    fits = mx.fit_many(RandomIntercept(), sets, params=PROBLEM.start, space=PROBLEM.space, progress=False)
    one_each(fits, problems)
    assert fits.converged.all() and len(fits) == 3 and fits.error.max() < 0.01 and "3 fits, 3 converged" in repr(fits)
    np.testing.assert_allclose(fits.each["mu"], fits.params["mu"])


@pytest.mark.parametrize("start", [{"rate": 1.0, "shape": 1.5}, {"rate": 3.0, "shape": 5.0}, {"rate": 0.2, "shape": 0.4}])
def test_another_family_from_starts_far_off(start):
    problems = [gamma_poisson(60, seed) for seed in (5, 6)]
    sets = [problem.data for problem in problems]
    fits = mx.fit_many(problems[0].model, sets, params=start, space=problems[0].space, progress=False)
    assert fits.converged.all()
    one_each(fits, problems)


@pytest.mark.slow
def test_weights_are_units_that_repeat():
    rng = np.random.default_rng(0)
    weights = rng.multinomial(40, np.full(40, 1 / 40), size=6)
    fits = mx.fit_many(PROBLEM.model, PROBLEM.data, weights=weights, params=PROBLEM.start, space=PROBLEM.space, progress=False)
    repeated = [{name: np.repeat(leaf, row, axis=0) for name, leaf in PROBLEM.data.items()} for row in weights]
    starts = [PROBLEM.start] * 6
    same = mx.fit_many(PROBLEM.model, repeated, params=starts, space=PROBLEM.space, progress=False)
    np.testing.assert_allclose(fits.params, same.params, rtol=1e-3)
    np.testing.assert_allclose(fits.loglik, same.loglik, atol=1e-4)
    np.testing.assert_allclose(fits.stderr, same.stderr, rtol=5e-3)


@pytest.mark.slow
def test_blocks_and_other_sets_change_nothing(monkeypatch):
    sets = [random_intercept(20, seed).data for seed in (1, 2, 3)]
    width = max(data["y"].shape[1] for data in sets)
    sets = [{name: np.pad(leaf, ((0, 0), (0, width - leaf.shape[1]))) for name, leaf in data.items()} for data in sets]
    together = mx.fit_many(PROBLEM.model, sets, params=PROBLEM.start, space=PROBLEM.space, progress=False)
    monkeypatch.setattr(flock, "MOST", 7)
    apart = [mx.fit_many(PROBLEM.model, [data], params=PROBLEM.start, space=PROBLEM.space, progress=False) for data in sets]
    np.testing.assert_allclose(together.params, np.concatenate([one.params for one in apart]), rtol=1e-9)
    np.testing.assert_allclose(together.loglik, np.concatenate([one.loglik for one in apart]), rtol=1e-11)


@pytest.mark.slow
def test_a_discrete_latent_is_enumerated():
    class Two(mx.AbstractModel, mx.AbstractDiscrete):
        def log_joint(self, params, z, y):
            return jnp.log(jnp.where(z == 1, params["p"], 1 - params["p"])) + norm.logpdf(y, 3.0 * z, 1.0)

        def init_latents(self, key, params, y):
            return jnp.zeros((), int)

        def support(self, y):
            return jnp.arange(2)

    rng = np.random.default_rng(1)
    sets = [rng.normal(3.0 * (rng.random(300) < p), 1.0) for p in (0.3, 0.6)]
    fits = mx.fit_many(Two(), sets, params={"p": 0.5}, space={"p": mx.Box(0.0, 1.0)}, progress=False)
    assert fits.converged.all() and np.all(fits.error == 0)
    for r, y in enumerate(sets):
        value = lambda p, y=y: np.sum(np.log(p * norm.pdf(y, 3.0) + (1 - p) * norm.pdf(y)))  # noqa: E731
        grid = np.linspace(0.05, 0.95, 9001)
        assert fits.params["p"].to_numpy()[r] == pytest.approx(grid[np.argmax([value(p) for p in grid])], abs=3e-4)


def test_a_data_set_that_tells_nothing_is_not_converged():
    flat = {"y": np.zeros((2, 6)), "mask": np.zeros((2, 6))}
    rows = PROBLEM.data["y"].shape[1]
    flat = {name: leaf[:, :rows] for name, leaf in flat.items()}
    fits = mx.fit_many(PROBLEM.model, [PROBLEM.data, flat], params=PROBLEM.start, space=PROBLEM.space, progress=False)
    assert fits.converged.tolist() == [True, False]
    assert np.isnan(fits.stderr.to_numpy()).any(axis=1).tolist() == [False, True]


def test_posteriors_of_two_modes_are_not_trusted():
    """A latent known up to its sign: around one mode half of the likelihood is missed, and no finer rule sees it."""

    class Sign(mx.AbstractModel):
        def log_joint(self, params, z, y):
            return jnp.sum(norm.logpdf(y, z**2, 0.1)) + norm.logpdf(z, 0.0, jnp.exp(params["s"]))

        def init_latents(self, key, params, y):
            return jnp.ones(())

    rng = np.random.default_rng(0)
    y = rng.normal(rng.normal(0, 2, (60, 1)) ** 2, 0.1, (60, 3))
    fits = mx.fit_many(Sign(), [y, y[:30]], params={"s": 0.5}, progress=False)
    assert not fits.converged.any()


def test_a_variance_that_vanishes_is_on_an_edge():
    rng = np.random.default_rng(0)
    y = rng.normal(1.0, 1.0, (30, 6))
    y = y - y.mean(axis=1, keepdims=True) + 1.0  # no spread between units at all
    data = {"y": y, "mask": np.ones_like(y)}
    fits = mx.fit_many(RandomIntercept(), [data], params=PROBLEM.start, space={"tau2": mx.Positive()}, progress=False)
    assert fits.edge.tolist() == [True] and fits.params["tau2"].to_numpy()[0] < 1e-2 and "1 on an edge" in repr(fits)
    assert np.isnan(fits.stderr["tau2"].to_numpy()[0]) and fits.stderr["mu"].to_numpy()[0] > 0


class Wide(mx.AbstractModel):
    def log_joint(self, params, z, y):
        return jnp.sum(norm.logpdf(z, params["m"])) + jnp.sum(y * z)

    def init_latents(self, key, params, y):
        return jnp.zeros(4)


Y = np.zeros((5, 4))


@pytest.mark.parametrize(("settings", "words"), [
    ({"data": Y}, "weights= (R, n)"),
    ({"data": []}, "a list of data sets"),
    ({"data": [Y, Y[:, :3]]}, "data set 1 differ"),
    ({"data": [Y, np.full((5, 4), np.nan)]}, "data set 1: data holds nan"),
    ({"data": Y, "weights": np.ones((2, 4))}, "each of the 5 units, got shape (2, 4)"),
    ({"data": Y, "weights": -np.ones((2, 5))}, "not negative"),
    ({"data": Y, "weights": np.array([[1.0] * 5, [0.0] * 5])}, "replicate 1 has no unit"),
    ({"data": [Y, Y]}, "at most three latents a unit"),
    ({"data": [Y, Y], "params": [{"m": 0.0}] * 3}, "3 starts for 2 data sets"),
    ({"data": [Y, Y], "params": {"m": 0.0}, "space": {"m": mx.Box(0.0, 1.0)}}, "edge of its space"),
])  # fmt: skip
def test_what_is_wrong_is_said(settings, words):
    given = {"params": {"m": 0.0}} | settings
    with pytest.raises((TypeError, ValueError)) as error:
        mx.fit_many(Wide(), given.pop("data"), progress=False, **given)
    assert words in str(error.value)


class Exposed(mx.AbstractModel):
    """Counts of Poisson's of rate exposure e^z, z normal about zero."""

    def log_joint(self, params, z, y):
        rate = y["exposure"] * jnp.exp(z)
        return y["count"] * jnp.log(rate) - rate + norm.logpdf(z, 0.0, jnp.exp(params["s"]))

    def init_latents(self, key, params, y):
        return jnp.zeros(())


def test_only_units_that_need_them_have_finer_rules(monkeypatch):
    """Most posteriors are all but normal, and stay with a rule that is too coarse for five without a count."""
    made = []

    class Seen(flock.Flock):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(many, "Flock", Seen)
    monkeypatch.setitem(many.AROUND_MODES, 1, ((8, 12, None), (61, 85, None)))
    rng = np.random.default_rng(0)
    exposure = np.where(np.arange(60) < 55, 1000.0, 3e4)
    count = np.where(np.arange(60) < 55, rng.poisson(exposure * np.exp(rng.normal(size=60))), 0)
    before = flock._block.programs()
    fits = mx.fit_many(Exposed(), [{"count": count.astype(float), "exposure": exposure}], params={"s": 0.5}, progress=False)
    # Information, and likelihoods: by all rules, and of however many units.
    assert flock._block.programs() == before + 2
    assert np.all(made[0].level[:55] == 1) and (made[0].level == 2).sum() >= 4

    def value(s):
        z = np.linspace(-40, 20, 60_001)[:, None]
        rate = exposure * np.exp(z)
        each = np.asarray(count * np.log(rate) - rate + norm.logpdf(z, 0.0, np.exp(s)))
        top = each.max(axis=0)
        return float(np.sum(np.log(np.sum(np.exp(each - top), axis=0) * (z[1, 0] - z[0, 0])) + top))

    best: Any = optimize.minimize_scalar(lambda s: -value(s), bounds=(-1, 3), method="bounded", options={"xatol": 1e-6})
    assert fits.converged.all() and fits.error.max() < 0.01
    assert fits.loglik[0] == pytest.approx(-best.fun, abs=2e-3)
    assert abs(fits.params["s"].to_numpy()[0] - best.x) < 0.01 * fits.stderr["s"].to_numpy()[0]


def test_rules_are_those_of_the_answers():
    assert [finer for _, finer in many._rules(PROBLEM.model, 3)] == [0, 15, 21]
    assert [rule.n_nodes for rule, _ in many._rules(PROBLEM.model, 1)] == [11, 21, 61]


def test_coordinates_that_are_held_stay_where_they_begin():
    """The maximum over the others is the one where that parameter is a constant; it has no error of its own."""
    held = np.array([[False, False], [True, False], [False, True]])
    starts = [PROBLEM.start, {"mu": 0.3, "tau2": 0.5}, {"mu": 0.5, "tau2": 1.5}]
    fits: Any = mx.fit_many(
        PROBLEM.model, PROBLEM.data, weights=np.ones((3, 40)), params=starts, space=PROBLEM.space, held=held, progress=False
    )
    assert fits.converged.all() and not fits.edge.any()
    one_each(SimpleNamespace(params=fits.params, stderr=fits.stderr, loglik=fits.loglik), [PROBLEM])
    groups, _ = simulate_intercepts(40, 3)
    for r, name, other, value in ((1, "mu", "tau2", 0.3), (2, "tau2", "mu", 1.5)):
        assert fits.params[name][r] == pytest.approx(value, rel=1e-12) and fits.stderr[name][r] == 0.0
        best: Any = optimize.minimize_scalar(
            lambda x, name=name, other=other, value=value: intercept_negative_loglik(groups, {name: value, other: x}),
            bounds=(0.01, 3.0), method="bounded", options={"xatol": 1e-9},
        )  # fmt: skip
        assert fits.params[other][r] == pytest.approx(best.x, abs=0.01 * fits.stderr[other][r])
        assert fits.loglik[r] == pytest.approx(-best.fun, abs=2e-3)


@pytest.mark.parametrize("held", [np.zeros((1, 3), bool), np.zeros((1, 2)), True])
def test_what_is_held_is_one_flag_a_coordinate(held):
    with pytest.raises(ValueError, match="held must be true or false for each of 1 data sets and 2 unconstrained coordinates"):
        mx.fit_many(
            PROBLEM.model, PROBLEM.data, weights=np.ones((1, 40)), params=PROBLEM.start, space=PROBLEM.space, held=held,
            progress=False,
        )  # fmt: skip
