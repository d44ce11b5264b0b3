"""Modes that no search from a unit's own neighbourhood meets."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import margaux as mx
from helpers import normal
from margaux.answers.hidden import WIDE, missed, suspects, with_hidden
from margaux.answers.likelihood import loglik
from margaux.answers.proposing import proposals
from margaux.answers.rules import best_rule
from margaux.esteps import ModeMixture
from margaux.esteps.elsewhere import TOLD, against, places, surroundings, told
from margaux.problem.model import AbstractConcave, AbstractCostly

TIMES, POPULATION = np.arange(1, 6), 6.0


class Frequency(mx.AbstractModel):
    """y_t = cos(z t) + noise of a scale, z ~ N(mu, 6): narrow lobes all over the population."""

    scale: float

    def log_joint(self, params, z, y):
        return jnp.sum(normal(y, jnp.cos(z * TIMES), self.scale)) + normal(z, params["mu"], POPULATION)

    def init_latents(self, key, params, y):
        return jnp.asarray(0.5)


class Line(Frequency):
    """The same with a straight line, whose posteriors are Gaussians."""

    def log_joint(self, params, z, y):
        return jnp.sum(normal(y, z * TIMES, self.scale)) + normal(z, params["mu"], POPULATION)


class Concave(Line, AbstractConcave):
    @property
    def concave(self):
        return True


def data(scale, seed, n=8):
    rng = np.random.default_rng(seed)
    z = rng.normal(0, POPULATION, (n, 1))
    return np.cos(z * TIMES) + scale * rng.normal(size=(n, len(TIMES)))


def at_zero(model, y):
    params = {"mu": 0.0}
    return mx.fit(model, y, mx.soul(), mx.MCMC(mx.ULA(1e-3)), params=params, n_iter=1, progress=False, throw=False).at(params)


def exact(y, scale):
    """By a fine grid."""
    grid = np.linspace(-45, 45, 400_001)
    prior = stats.norm.logpdf(grid, 0.0, POPULATION) + np.log(grid[1] - grid[0])
    return np.array(
        [special.logsumexp(stats.norm.logpdf(own, np.cos(grid[:, None] * TIMES), scale).sum(axis=1) + prior) for own in y]
    )


def spread(y, scale):
    """Posterior standard deviations, by the same grid."""
    grid = np.linspace(-45, 45, 400_001)
    logs = [stats.norm.logpdf(own, np.cos(grid[:, None] * TIMES), scale).sum(axis=1) for own in y]
    weights = [special.softmax(log + stats.norm.logpdf(grid, 0.0, POPULATION)) for log in logs]
    return np.array([np.sqrt(w @ grid**2 - (w @ grid) ** 2) for w in weights])


@pytest.mark.parametrize(("scale", "seed"), [(0.02, 0), (0.02, 1), (0.05, 0), (0.1, 2)])
def test_a_side_lobe_is_not_taken_for_the_posterior(scale, seed):
    """Searches from a unit's own start end up to 8,000 log units below its mode."""
    y = data(scale, seed)
    fit = at_zero(Frequency(scale), y)
    rows = proposals(fit, mx.ImportanceSampling(2, ModeMixture()))
    assert np.all(rows["against"] > 0)
    found = loglik(fit)
    error = found.per_unit - exact(y, scale)
    assert np.abs(error).max() < 0.3 and np.median(np.abs(error)) < 0.05
    assert "more modes than were found" in found.message
    with pytest.warns(UserWarning, match="more modes than were found"):
        moments = fit.latents(n_draws=1000)
    # Where only one lobe was seen the posterior standard deviation was thousandths.
    assert np.median(np.abs(moments["sd"] - spread(y, scale))) < 0.5


def test_nothing_is_searched_for_where_one_mode_is_all():
    y = data(0.3, 0)
    for model in (Line(0.3), Concave(0.3)):
        fit = at_zero(model, y)
        rows = proposals(fit, mx.ImportanceSampling(2, ModeMixture()))
        assert not rows["against"].any() and np.isinf(rows["hints"]).all()
        assert with_hidden(fit, rows, fit.params, 0) is rows


@pytest.mark.parametrize("seed", range(4))
def test_a_unit_alone_has_its_surroundings_looked_at(seed):
    """It has no others to be compared with."""
    y = data(0.1, seed, 1)
    fit = at_zero(Frequency(0.1), y)
    assert np.isfinite(proposals(fit, mx.ImportanceSampling(2, ModeMixture()))["hints"]).all()
    found = loglik(fit)
    assert float(found) == pytest.approx(exact(y, 0.1)[0], abs=0.3) or "more modes than were found" in found.message
    line = proposals(at_zero(Line(0.1), y), mx.ImportanceSampling(2, ModeMixture()))
    assert np.isinf(line["hints"]).all()


def test_units_that_are_not_suspected_keep_their_rows():
    y = data(0.05, 0)
    fit = at_zero(Frequency(0.05), y)
    rows = proposals(fit, mx.ImportanceSampling(2, ModeMixture()))
    rows |= {"unseen": np.zeros(8), "hints": np.where(np.arange(8)[:, None, None] == 5, rows["hints"], np.inf)}
    wide = with_hidden(fit, rows, fit.params, 0)
    assert wide["mean"].shape == (8, WIDE.n_modes, 1) and wide["cholesky"].shape == (8, WIDE.n_modes, 1, 1)
    others = np.delete(np.arange(8), 5)
    for name, old in rows.items():
        kept = wide[name][others]
        np.testing.assert_array_equal(kept[:, : old.shape[1]] if old.ndim > 1 else kept, old[others])
    assert np.all(np.isneginf(wide["log_share"][others, 3:])) and np.all(np.isfinite(wide["mean"]))
    assert wide["modes"][5] > rows["modes"][5]


def test_surroundings_reach_as_far_as_they_are_to():
    for d in (1, 3):
        near, alone = surroundings(d, False), surroundings(d, True)
        np.testing.assert_allclose(np.linalg.norm(near, axis=1)[[0, -1]], [5.0, 30.0])
        np.testing.assert_allclose(np.linalg.norm(alone, axis=1)[[0, -1]], [5.0, 1000.0])
        assert len(near) == len(np.unique(near, axis=0)) and np.all(np.abs(np.sign(near).mean(axis=0)) < 0.4)


def test_places_are_spread_as_modes_are():
    rng = np.random.default_rng(0)
    modes = rng.normal([0.0, 100.0], [1.0, 10.0], (500, 2))
    near, far = places(modes, 2000), places(modes, 2000, 64.0)
    np.testing.assert_allclose(near.mean(axis=0), [0, 100], atol=1.0)
    # The variances of a mode, and of a share of the difference of two: 1 + 2 / 3.
    np.testing.assert_allclose(near.var(axis=0), [5 / 3, 500 / 3], rtol=0.15)
    assert np.all(far.std(axis=0) > 4 * near.std(axis=0))


def test_a_look_elsewhere_against_densities_of_known_shape():
    def looked(logdensity, x):
        return int(against(logdensity, jnp.zeros(2), 0.1 * jnp.eye(2), jnp.asarray(x)).sum())

    far = np.random.default_rng(1).normal(0, 5, (16, 2))
    assert looked(lambda z: -50 * z @ z, far) == 0  # a Gaussian
    assert looked(lambda z: -jnp.log1p(100 * z @ z), far) == 0  # heavy tails
    assert looked(lambda z: jnp.where(z @ z < 1, -50 * z @ z, jnp.nan), far) == 0
    assert looked(lambda z: -50 * z @ z + 1e-3 * z[0], 0.01 * far) == 0  # close by
    assert looked(lambda z: jnp.logaddexp(-50 * z @ z, -50 * (z - 9) @ (z - 9)), [[8.0, 8.5], [1.0, 0.0]]) == 1
    assert looked(lambda z: -jnp.abs(z[0] - 3), [[9.0, 0.0]]) == 0 and looked(lambda z: -jnp.abs(z[0] - 3), [[4.0, 0.0]]) == 1


def test_a_false_alarm_leaves_rows_as_they_are():
    y = data(0.3, 0)
    fit = at_zero(Line(0.3), y)
    rows = proposals(fit, mx.ImportanceSampling(2, ModeMixture()))
    rows |= {"hints": np.where(np.arange(8)[:, None, None] % 3 == 0, 2.0, rows["hints"])}
    assert with_hidden(fit, rows, fit.params, 0) is rows


class Lobes(Line):
    """Two Gaussian lobes a unit: one at its datum, one of any share and scale elsewhere."""

    def log_joint(self, params, z, y):
        return jnp.logaddexp(normal(z, y[0], 1.0), y[2] + normal(z, y[1], y[3]))


@pytest.mark.parametrize("seed", range(4))
def test_what_hints_lead_to_is_what_there_is(seed):
    """Of 40 units every second has another lobe, of a thousandth of the mass to a thousand times as much."""
    rng = np.random.default_rng(seed)
    n = 40
    there = np.arange(n) % 2 == 1
    share = np.where(there, rng.uniform(-7, 7, n), -40.0)
    y = np.stack([rng.normal(0, 3, n), rng.normal(0, 300, n), share, np.exp(rng.uniform(-2, 2, n))], axis=1)
    close = there & (np.abs(y[:, 0] - y[:, 1]) < 8 * (1 + y[:, 3]))  # may be one mode, which is no matter here
    fit = at_zero(Lobes(1.0), y)
    rows = proposals(fit, mx.ImportanceSampling(2, ModeMixture()))
    hinted = np.isfinite(rows["hints"][:, 0, 0])
    found = (rows["modes"] > 1) | (with_hidden(fit, rows, fit.params, 0)["modes"] > 1)
    assert not np.any(found & ~there)
    everyone = suspects(fit, rows, fit.params, 0, np.arange(n))
    assert len(everyone) and np.all(there[everyone])
    assert suspects(fit, rows, fit.params, 0, np.arange(0, n, 3)).tolist() == [u for u in everyone if u % 3 == 0]
    # A hint is where a log density falls towards its mode: searches from there meet another, if there is one.
    assert np.all(found[hinted & there & ~close])
    hints = np.tile(y[:, None, :1], (1, TOLD, 1))
    hints[:, 7, 0] = y[:, 1] + rng.normal(0, 3, n) * y[:, 3]
    one = {"mean": np.repeat(y[:, None, :1], 3, axis=1), "hints": hints, "modes": np.ones(n)}
    told = missed(fit, one, fit.params, 0, np.arange(n))
    assert not np.any(told & ~there) and np.all(told[there & ~close])


def test_hints_are_some_of_the_places_that_speak_against_one_mode():
    x = jnp.arange(80.0)[:, None]
    for few in ([3], [5, 40, 79], list(range(10, 70))):
        falls = jnp.zeros(80, bool).at[np.asarray(few)].set(True)
        found = np.asarray(told(x, falls))[:, 0]
        assert set(found) <= set(few) and {found[0], found[-1]} >= {few[0]} and len(set(found)) == min(len(few), TOLD)
    assert np.isinf(told(x, jnp.zeros(80, bool))).all() and told(x, falls).shape == (TOLD, 1)


class Balls(Line):
    """The same of three latents: two Gaussian balls a unit."""

    def log_joint(self, params, z, y):
        first, second, share, scale = y[:3], y[3:6], y[6], y[7]
        return jnp.logaddexp(jnp.sum(normal(z, first, 1.0)), share + jnp.sum(normal(z, second, scale))) + 0 * params["mu"]

    def init_latents(self, key, params, y):
        return y[:3]


def test_a_ball_that_no_other_unit_resembles_is_found_more_often_than_not():
    """As it lies in a direction of its own, searches from the first one's neighbourhood or the others' may all pass it."""
    rng, n, found, there = np.random.default_rng(0), 60, 0, np.arange(60) % 3 == 1
    for _ in range(3):
        share, scale = np.where(there, rng.uniform(-5, 5, n), -60.0), np.exp(rng.uniform(-1, 1, n))
        y = np.column_stack([rng.normal(0, 3, (n, 3)), rng.normal(0, 15, (n, 3)), share, scale])
        fit = at_zero(Balls(1.0), y)
        rows = proposals(fit, mx.ImportanceSampling(2, ModeMixture()))
        more = with_hidden(fit, rows, fit.params, 0)["modes"] > 1
        assert not np.any(more & ~there)
        found += np.sum(more)
    assert found >= 0.65 * 60


class Slow(Lobes, AbstractCostly):
    @property
    def costly(self):
        return True

    def lengths(self, data):
        return np.ones(len(data))

    def for_searches(self):
        return self


def test_two_modes_of_a_density_that_takes_long_have_a_grid_each():
    """Whatever the other units: draws would be many times as many points."""
    y = np.stack([np.linspace(-3, 3, 8), np.full(8, 12.0), np.full(8, -60.0), np.ones(8)], axis=1)
    y[[2, 5], 1:] = [[14.0, 0.5, 2.0], [-9.0, -2.0, 2.0]]
    fit = at_zero(Slow(1.0), y)
    rule: Any = best_rule(fit)
    assert isinstance(rule.estep, mx.Quadrature) and rule.rows["mean"].shape == (8, 2, 1)
    assert np.flatnonzero(rule.modes > 1).tolist() == [2, 5]
    grid = np.linspace(-40, 40, 200_001)[:, None]
    density = np.logaddexp(stats.norm.logpdf(grid, y[:, 0]), y[:, 2] + stats.norm.logpdf(grid, y[:, 1], y[:, 3]))
    exact = special.logsumexp(density, axis=0) + np.log(grid[1, 0] - grid[0, 0])
    found = loglik(fit)
    assert found.method == "quadrature"
    np.testing.assert_allclose(found.per_unit, exact, atol=2e-3)
