"""The last values of a callback's settings that are allowed, and the first that are not."""

import numpy as np
import pytest

import margaux as mx


@pytest.mark.parametrize(("name", "allowed", "refused"), [
    ("window", [10, 11], [9, 0]), ("tolerance", [1e-9, 0.5], [0.0, -1.0, np.nan]), ("absolute", [0.0, 1e-9], [-1e-9]),
])  # fmt: skip
def test_early_stopping(name, allowed, refused):
    for value in allowed:
        assert getattr(mx.EarlyStopping(**{name: value}), name) == value
    for value in refused:
        with pytest.raises(ValueError, match=name):
            mx.EarlyStopping(**{name: value})
    plain = mx.EarlyStopping()
    assert (plain.window, plain.tolerance, plain.absolute, plain.floor, plain.period) == (500, 0.1, 1e-8, 0, None)


def test_checkpoints(tmp_path):
    assert [mx.Checkpoint(tmp_path / "a", seconds).seconds for seconds in (0, 0.5)] == [0, 0.5]
    assert mx.Checkpoint(tmp_path / "a").seconds == 30.0
    with pytest.raises(ValueError, match="seconds must not be negative"):
        mx.Checkpoint(tmp_path / "a", -1e-3)
