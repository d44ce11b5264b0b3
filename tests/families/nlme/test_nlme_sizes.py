"""Subjects of unequal size: padded to a few widths, with the same fit."""

import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.datasets import load_theophylline
from margaux.families.nlme import LogNormal, oral1cpt, sizes


def uneven(n):
    """Theophylline-like curves: two rows in the first half of the subjects, eleven in the others."""
    rng = np.random.default_rng(0)
    parts = []
    for i in range(n):
        ka, V, CL = np.exp(np.log([1.6, 32.0, 2.8]) + rng.normal(size=3) * [0.5, 0.2, 0.3])
        times = np.array([1.0, 6.0]) if i < n // 2 else np.geomspace(0.25, 24, 11)
        curve = [float(oral1cpt({"ka": ka, "V": V, "CL": CL}, {"time": t, "dose": 320.0})) for t in times]
        parts.append(pd.DataFrame({"Id": i, "Time": times, "Dose": 320.0, "Concentration": curve}))
    frame = pd.concat(parts, ignore_index=True)
    return frame.assign(Concentration=frame["Concentration"] + 0.5 * rng.normal(size=len(frame)))


@pytest.mark.slow
def test_groups_leave_the_fit_as_it_is(monkeypatch):
    frame = uneven(20)
    individual = {"ka": LogNormal(1.5), "V": LogNormal(30.0), "CL": LogNormal(3.0)}
    fits = []
    for worth in (1, 10**9):
        monkeypatch.setattr(sizes, "WORTH", worth)
        model = mx.NLME(
            structural=oral1cpt, individual=individual, n_iter=80, n_burn=40, n_starts=1, stop=False, polish=False, verbose=False
        )
        fits.append(model.fit(frame, id="Id", time="Time", y="Concentration", dose="Dose"))
    assert fits[0].params_ == pytest.approx(fits[1].params_, rel=1e-6)
    shuffled = frame.sample(frac=1.0, random_state=1)
    monkeypatch.setattr(sizes, "WORTH", 1)
    other = mx.NLME(
        structural=oral1cpt, individual=individual, n_iter=80, n_burn=40, n_starts=1, stop=False, polish=False, verbose=False
    )
    other.fit(shuffled, id="Id", time="Time", y="Concentration", dose="Dose")
    # Everything a subject has must still be its own: the modes depend on the data and hardly on the draws.
    modes = [fit.individual_["mode_V"].sort_index().to_numpy() for fit in (fits[0], other)]
    np.testing.assert_allclose(modes[0], modes[1], rtol=0.05)
    assert list(other.individual_.index) == list(dict.fromkeys(shuffled["Id"]))
    # The chains too: their last states, on the scale of the modes.
    chains = np.exp(np.asarray(other.result_.rows["z"])[0, :, :, 1].mean(axis=1))
    assert np.corrcoef(chains, other.individual_["mode_V"])[0, 1] > 0.5


def test_the_fewest_padded_cells():
    mask = np.arange(16) < np.repeat([2, 7, 16], [30_000, 20_000, 10_000])[:, None]
    order, groups = sizes.by_size(mask, 1)
    assert groups == ((30_000, 2), (20_000, 8), (10_000, 16))
    np.testing.assert_array_equal(order, np.arange(60_000))
    assert sizes.by_size(mask[::1000], 1)[1] == ()
    order, groups = sizes.by_size(mask[::-1], 1)
    assert groups[0] == (30_000, 2) and set(order[:30_000]) == set(range(30_000, 60_000))


def test_subjects_that_take_longest_are_apart_however_few_rows_they_have():
    mask = np.arange(8) < np.array([4, 8, 4, 2] * 100)[:, None]
    lengths = np.where(np.arange(400) % 100 == 3, 500.0, 5.0)
    order, groups = sizes.by_size(mask, 1, 1000, lengths)
    assert groups == ((396, 8), (4, 8))  # of the rows that subjects before have, which may move up
    assert sorted(order[396:]) == [3, 103, 203, 303]
    assert sizes.by_size(mask, 1, 1000, np.full(400, 5.0))[1] == ()


def test_a_fixed_parameter_by_a_vanishing_effect_stops_by_its_own_parameters():
    individual = {"ka": LogNormal(1.5), "V": LogNormal(30.0), "CL": LogNormal(2.5, random=False)}
    model = mx.NLME(structural=oral1cpt, individual=individual, fixed_effects="exponentialised", n_burn=40, n_iter=200,
                    n_starts=1, polish=False, verbose=False)  # fmt: skip
    model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
    assert list(model.params_)[:3] == ["ka", "V", "CL"] and "omega2_CL" not in model.params_
    assert abs(np.log(model.params_["CL"] / 2.7)) < 0.3
