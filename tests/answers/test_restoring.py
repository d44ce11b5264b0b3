"""Penalties and spaces in files: what is written comes back as it was, and what is not ours is refused."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportArgumentType=false

import json
from typing import Any

import numpy as np
import pytest

import margaux as mx
from helpers import Cubed
from margaux.answers.restoring import _read, _written, described, restored
from margaux.problem.space import as_space


@pytest.mark.parametrize("value", [
    np.arange(6.0).reshape(2, 3), np.array([1, 2], np.int32), np.float32(0.5), np.array(True), None, True, 3, 0.25, "a",
    [1, 2.5, None], (1, (2, "b")), {"x": np.zeros(2), "y": [1, {"z": 2}]}, [], (), {}, np.array([-np.inf, np.inf]),
])  # fmt: skip
def test_values_come_back_as_they_were(value):
    back = _read(json.loads(json.dumps(_written(value))))
    if isinstance(value, np.ndarray | np.generic):
        assert back.dtype == value.dtype and back.shape == value.shape
        np.testing.assert_array_equal(back, value)
    else:
        assert type(back) is type(value) and str(back) == str(value)


def test_arrays_of_jax_come_back_as_those_of_numpy():
    import jax.numpy as jnp

    back = _read(_written(jnp.arange(3.0)))
    assert type(back) is np.ndarray
    np.testing.assert_array_equal(back, [0.0, 1.0, 2.0])


@pytest.mark.parametrize("value", [{1: 2}, {1, 2}, Cubed(), [1, Cubed()], {"a": (object(),)}, lambda x: x, 1j])
def test_what_has_no_name_in_a_file_is_not_written(value):
    assert _written(value) is None


class Mine(dict):
    """Not a dict that could be told from one."""


def test_a_class_of_ones_own_is_not_taken_for_its_base():
    assert _written(Mine(a=1)) is None


PARAMS = {"a": np.zeros(2), "b": (np.array([0.2, 0.8]), np.eye(2))}
PARTS = [
    as_space({"a": mx.Box(np.array([-1.0, -np.inf]), 3.0), "b": (mx.Simplex(), mx.PositiveDefinite(1e-3))}, PARAMS),
    as_space({"a": mx.Ball(2.0, np.ones(2))}, PARAMS),
    mx.L1(0.1),
    mx.L2(0.1, on=("a",)),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_parts_of_the_library_come_back(part):
    held = json.loads(json.dumps(described(part)))
    back = restored("space", held, None, np.dtype(float), "file")
    assert type(back) is type(part) and described(back) == held and held["kind"] == type(part).__name__
    assert restored("space", held, part, np.dtype(float), "file") is part


def test_a_restored_space_projects_and_a_restored_penalty_weighs_as_before():
    space = _read(_written(PARTS[0]))
    projected = space.project({"a": np.array([-5.0, 9.0]), "b": (np.array([2.0, 1.0]), np.eye(2))})
    np.testing.assert_allclose(projected["a"], [-1.0, 3.0])
    np.testing.assert_allclose(projected["b"][0], [1.0, 0.0], atol=1e-6)
    assert _read(_written(mx.L1(0.5))).value({"a": np.array([1.0, -3.0])}) == pytest.approx(2.0)


@pytest.mark.parametrize("kind", ["os:path", "margaux.problem.penalty:np", "margaux.problem.model:AbstractModel", "builtins:int",
                                  "marga:L1"])  # fmt: skip
def test_names_of_anything_else_in_a_file_are_refused(kind):
    with pytest.raises(ValueError, match=f"{kind} is no penalty or space of margaux"):
        _read({"kind": kind, "inside": {}})


def test_what_the_file_does_not_hold_is_asked_for_and_what_differs_is_refused():
    double: Any = np.dtype(float)
    with pytest.raises(ValueError, match="file does not hold the penalty of its fit; pass penalty= as at the fit"):
        restored("penalty", None, None, double, "file")
    own = described(Cubed())
    assert own["made"] is None and own["kind"] == "Cubed"
    with pytest.raises(ValueError, match="cannot hold the penalty Cubed, which is not of margaux; pass penalty="):
        restored("penalty", own, None, double, "file")
    given = Cubed()
    assert restored("penalty", own, given, double, "file") is given
    assert restored("penalty", None, given, double, "file") is given
    with pytest.raises(ValueError, match=r"penalty= is not that of the fit in file: Cubed.weight is 1.0 there and 2.0 here"):
        restored("penalty", own, Cubed(2.0), double, "file")
    more = described(Cubed())
    more["settings"] |= {"Cubed.more": "2"}
    with pytest.raises(ValueError, match="Cubed.more is 2 there and nothing here"):
        restored("penalty", more, given, double, "file")
    del own["settings"]["Cubed.weight"]
    with pytest.raises(ValueError, match="Cubed.weight is nothing there and 1.0 here"):
        restored("penalty", own, given, double, "file")
    with pytest.raises(ValueError, match="is L1 there and nothing here"):
        restored("penalty", described(mx.L1(1.0)), mx.NoPenalty(), double, "file")
    with pytest.raises(ValueError, match="is NoPenalty there and nothing here"):
        restored("penalty", described(mx.NoPenalty()), mx.L1(1.0), double, "file")


def test_settings_are_compared_in_the_precision_of_the_fit():
    held = described(mx.L1(np.float32(0.1)))
    assert restored("penalty", held, mx.L1(0.1), np.dtype(np.float32), "file")
