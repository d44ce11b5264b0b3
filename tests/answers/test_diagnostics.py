"""Figures of convergence against another library and against arithmetic."""

from typing import Any

import numpy as np
import pytest
from arviz_stats.base import array_stats

from margaux.answers.diagnostics import drift, rhat

#: its functions are written by name at run time
library: Any = array_stats
RNG = np.random.default_rng(0)
NOISE = RNG.normal(size=(500, 4))
CHAINS = {
    "agreeing": NOISE,
    "odd": NOISE[:333],
    "two": NOISE[:, :2],
    "shifted": NOISE + np.array([0.0, 0.0, 0.0, 0.5]),
    "trend": NOISE + np.linspace(0, 1, 500)[:, None],
    "variances": NOISE * np.array([1.0, 1.0, 1.0, 3.0]),
    "heavy tails": RNG.standard_cauchy((500, 4)) + np.array([0.0, 0.0, 0.0, 4.0]),
    "ties": np.round(NOISE),
    "autocorrelated": np.cumsum(NOISE, axis=0),
    "skewed": np.exp(2 * NOISE + np.array([0.0, 0.3, 0.0, 0.0])),
}


@pytest.mark.parametrize("name", CHAINS)
def test_rhat_is_the_rank_normalised_one_of_arviz(name):
    chains = CHAINS[name]
    assert rhat(chains[:, :, None])[0] == pytest.approx(float(library.rhat(chains.T, method="rank")), rel=1e-10)


def test_rhat_is_computed_entry_by_entry():
    together = rhat(np.stack([CHAINS["agreeing"], CHAINS["variances"], CHAINS["heavy tails"]], axis=2))
    apart = [rhat(CHAINS[name][:, :, None])[0] for name in ("agreeing", "variances", "heavy tails")]
    np.testing.assert_allclose(together, apart)


def test_rhat_sees_what_the_plain_one_is_blind_to():
    """Chains of one mean and different spreads; and of different centres, with tails so heavy that means say nothing."""
    good, spreads, centres = (rhat(CHAINS[name][:, :, None])[0] for name in ("agreeing", "variances", "heavy tails"))
    assert good < 1.01 < 1.1 < spreads and centres > 1.1
    for name in ("variances", "heavy tails"):
        assert float(library.rhat(CHAINS[name].T, method="split")) < 1.02


def test_rhat_of_chains_that_stand_still_or_break_down():
    still, apart = np.ones((20, 3)), np.ones((20, 3)) * np.arange(3.0)
    broken, infinite = NOISE[:20, :3].copy(), NOISE[:20, :3].copy()
    broken[7, 1], infinite[7, 1] = np.nan, np.inf
    figures = rhat(np.stack([still, apart, broken, infinite], axis=2))
    assert figures[0] == 1.0 and figures[1] > 1e6 and np.all(np.isnan(figures[2:]))


def test_drift_is_the_gap_of_outer_thirds_over_the_error_of_batch_means():
    trace = RNG.normal(size=(305, 2, 3)) + np.linspace(0, 2, 305)[:, None, None] * np.arange(3)
    gap, z = drift(trace)
    first, last = trace[:101], trace[204:]
    np.testing.assert_allclose(gap, np.abs(first.mean(axis=0) - last.mean(axis=0)))
    means = [np.stack([part[10 * i : 10 * (i + 1)].mean(axis=0) for i in range(10)]) for part in (first, last)]
    variances = [np.sum((m - m.mean(axis=0)) ** 2, axis=0) / 9 / 10 for m in means]
    np.testing.assert_allclose(z, gap / np.sqrt(sum(variances)))
    # A trace that stands still has no error, and no drift beyond rounding.
    gap, z = drift(np.full((60, 1, 1), 5.0))
    assert gap[0, 0] == 0.0 and z[0, 0] == 0.0
    gap, z = drift(np.where(np.arange(60) < 30, 1.0, 3.0)[:, None, None])
    assert gap[0, 0] == 2.0 and z[0, 0] == pytest.approx(2.0 / (1e-9 * 4))
