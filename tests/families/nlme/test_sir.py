"""Sampling importance resampling: weights and intervals by exact likelihoods, a proposal that is too narrow is told."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.families.nlme import Normal, sir
from margaux.families.nlme.places import logliks
from margaux.families.nlme.sir import without_replacement

N, ROWS = 12, 3


def _level(psi, row):
    return psi["m"] + 0.0 * row["t"]


def _table(seed: int = 0, omega: float = 0.8) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"id": np.repeat(np.arange(N), ROWS), "t": np.tile(np.arange(float(ROWS)), N)})
    return table.assign(y=2.0 + np.repeat(omega * rng.normal(size=N), ROWS) + 0.5 * rng.normal(size=N * ROWS))


def _fitted(table: pd.DataFrame) -> Any:
    model = mx.NLME(structural=_level, individual={"m": Normal(1.0)}, n_starts=1, verbose=False)
    return model.fit(table, id="id", time="t", y="y")


def _exact(table: pd.DataFrame, mean: Any, omega2: Any, noise: Any) -> np.ndarray:
    """The Gaussian log-likelihood at any parameters, from sums of squares."""
    y = table["y"].to_numpy().reshape(N, ROWS)
    means = y.mean(axis=1)
    within = ((y - means[:, None]) ** 2).sum()
    between = ROWS * ((means - np.asarray(mean)[..., None]) ** 2).sum(axis=-1)
    error, total = np.asarray(noise) ** 2, np.asarray(noise) ** 2 + ROWS * np.asarray(omega2)
    logs = N * (ROWS - 1) * np.log(error) + N * np.log(total) + N * ROWS * np.log(2 * np.pi)
    return -(logs + within / error + between / total) / 2


@pytest.fixture(scope="module")
def fitted():
    return _fitted(_table())


@pytest.fixture(scope="module")
def found(fitted):
    return fitted.sir(4000, inflate=1.4, key=1)


def test_log_likelihoods_at_many_places_are_exact(fitted):
    rng = np.random.default_rng(0)
    u = np.stack([rng.normal(2, 1, 30), rng.normal(-1, 1, 30), rng.normal(-0.5, 2, 30)], axis=1)
    values, error = logliks(fitted.result_, u)
    exact = _exact(_table(), u[:, 0], np.exp(u[:, 2]), np.exp(u[:, 1]))
    near = exact > exact.max() - 20
    np.testing.assert_allclose(values[near], exact[near], atol=max(2 * error, 1e-6))
    np.testing.assert_allclose(values, exact, rtol=1e-3)


def test_weights_are_likelihoods_over_densities_of_proposals(fitted, found):
    table, k = found.proposals, 3
    exact = _exact(_table(), table["m"], table["omega2_m"], table["a"])
    top = _exact(_table(), *(fitted.params_[name] for name in ("m", "omega2_m", "a")))
    np.testing.assert_allclose(table["drop"], 2 * (top - exact), atol=0.02)
    u = np.stack([table["m"], np.log(table["a"]), np.log(table["omega2_m"])], axis=1)
    covariance = np.cov(u.T)
    # In the information of the exact likelihood: at a maximum its curvature is known.
    gap = u - np.array([fitted.params_["m"], np.log(fitted.params_["a"]), np.log(fitted.params_["omega2_m"])])
    log_q = np.log(table["weight"]) - exact
    distance = np.einsum("ni,ij,nj->n", gap, np.linalg.inv(covariance), gap)
    slope, _ = np.polyfit(distance, log_q, 1)
    assert slope == pytest.approx(0.5, abs=0.02) and np.corrcoef(distance, log_q)[0, 1] > 0.99
    assert table["weight"].sum() == pytest.approx(1.0) and found.ess == pytest.approx(1 / np.sum(table["weight"] ** 2))
    expected = np.sqrt(np.diagonal(fitted.result_.cov_params())[0]) * found.inflation
    assert u[:, 0].std() == pytest.approx(expected, rel=0.05) and len(covariance) == k


def test_intervals_are_those_of_the_likelihood(found):
    """As a density of the mean and the logarithms, on a grid."""
    axes = np.linspace(0.5, 3.5, 91), np.linspace(-1.6, 0.4, 61), np.linspace(-6.0, 4.0, 161)
    mean, error, log_omega2 = np.meshgrid(*axes, indexing="ij")
    logs = _exact(_table(), mean, np.exp(log_omega2), np.exp(error))
    density = np.exp(logs - logs.max())
    density /= density.sum()
    frame = found.summary()
    for name, axis, others, back in (("m", 0, (1, 2), float), ("a", 1, (0, 2), np.exp), ("omega2_m", 2, (0, 1), np.exp)):
        share = np.cumsum(density.sum(axis=others))
        ends = [back(np.interp(q, share, axes[axis] + np.diff(axes[axis])[0] / 2)) for q in (0.025, 0.5, 0.975)]
        values = frame.loc[name, ["ci_low", "median", "ci_high"]].to_numpy(float)
        np.testing.assert_allclose(values, ends, atol=0.2 * frame.loc[name, "sd"])
        assert abs(values[1] - ends[1]) < 0.08 * frame.loc[name, "sd"]
        drawn = np.quantile(found.resamples[name], [0.025, 0.5, 0.975])
        np.testing.assert_allclose(drawn, ends, atol=0.4 * frame.loc[name, "sd"])
    assert found.trusted and found.message.startswith("800 resamples of 4000 proposals")


def test_resamples_are_proposals_once_each(found):
    taken = found.proposals[found.proposals["resampled"]]
    assert len(found) == len(taken) == 800
    np.testing.assert_array_equal(taken[list(found.resamples.columns)], found.resamples)


def test_draws_without_replacement_have_their_probabilities():
    """Of two draws out of four, by all orders."""
    w = np.array([0.5, 0.25, 0.2, 0.05])
    exact = np.zeros(4)
    for a, b in product(range(4), repeat=2):
        if a != b:
            exact[[a, b]] += w[a] * w[b] / (1 - w[a])
    rng = np.random.default_rng(0)
    drawn = np.mean([without_replacement(np.log(w), rng.gumbel(size=4), 2) for _ in range(20_000)], axis=0)
    np.testing.assert_allclose(drawn, exact, atol=0.012)
    none = without_replacement(np.array([0.0, -np.inf, 0.0]), rng.gumbel(size=3), 3)
    assert list(none) == [True, False, True]


def test_the_same_key_is_the_same(fitted):
    one, same, other = (fitted.sir(60, key=key).proposals for key in (3, 3, 4))
    pd.testing.assert_frame_equal(one, same)
    assert not np.allclose(one["m"], other["m"])


def test_a_narrow_proposal_is_told_and_widened(fitted):
    narrow = fitted.sir(1000, inflate=0.3)
    assert set(narrow.narrow) == {"m", "omega2_m", "a"} and not narrow.trusted
    assert "the proposal is too narrow: weighted, it is wider than it was drawn in m (" in narrow.message
    assert narrow.inflation == 0.3 and fitted.sir(1000, inflate=1.5).narrow == {}
    widened = _fitted(_table(omega=0.35)).sir(1000)
    assert widened.inflation > 1 and f"{widened.inflation:.2g} times as wide" in widened.message


def test_few_effective_draws_are_told(fitted):
    wide = fitted.sir(200, 100, inflate=4.0)
    assert wide.ess < 100 and "that is too few for so many resamples" in wide.message and not wide.trusted


def test_more_latents_than_a_grid_has(fitted, monkeypatch):
    """By draws the weights are the same, within their error."""
    grid = fitted.sir(60, inflate=1.0)
    monkeypatch.setattr("margaux.families.nlme.places.NODES", {})
    draws = fitted.sir(60, inflate=1.0)
    np.testing.assert_allclose(draws.proposals["drop"], grid.proposals["drop"], atol=0.05)
    assert draws.error < 0.05


def test_an_estimate_that_is_no_maximum_is_told():
    fitted = _fitted(_table())
    moved = {name: np.array(leaf) for name, leaf in fitted.result_.params.items()}
    moved["beta"] += 0.3
    fitted._keep(fitted.result_.at(moved))
    found = fitted.sir(200)
    best = np.array([2.06, 0.2604, 0.4229])
    rise = _exact(_table(), *best) - _exact(_table(), *(fitted.params_[name] for name in ("m", "omega2_m", "a")))
    assert rise > 1 and "above the estimate's, which is then not the maximum" in found.message
    assert -found.proposals["drop"].min() / 2 == pytest.approx(rise, abs=0.3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"n": 20}, "n must be at least 50 proposals, got 20"),
        ({"n": 100.0}, "n must be a whole number, at least 2, got 100.0"),
        ({"resamples": 1}, "resamples must be a whole number, at least 2, got 1"),
        ({"n": 100, "resamples": 60}, "60 resamples of 100 proposals would be drawn towards the proposal; take 120"),
        ({"inflate": 0.0}, "inflate must be positive, got 0.0"),
        ({"level": 0.0}, "level must be between 0 and 1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(fitted, arguments, said, monkeypatch):
    monkeypatch.setattr(sir, "logliks", None)
    with pytest.raises(ValueError, match=said):
        fitted.sir(**arguments)
