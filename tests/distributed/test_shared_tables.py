"""Estimators over several processes find what one finds, to the order of additions."""

import estimators
import numpy as np
import pytest
from test_processes import launched

import margaux as mx
from margaux.families.sharing import equal, pooled


def compared(processes, folder, names, rtol=1e-7):
    done = launched(processes, estimators.__file__, folder / "found", *names, timeout=540)
    assert done.returncode == 0, done.stderr[-2000:]
    every = [dict(np.load(folder / f"found.{process}.npz")) for process in range(processes)]
    for name in names:
        for key, value in estimators.JOBS[name](lambda table: table).items():
            value, label = np.asarray(value), f"{name}/{key}"
            for other in every:
                np.testing.assert_array_equal(other[label], every[0][label], err_msg=label)
            if value.dtype.kind == "U":
                assert every[0][label] == value, label
            else:
                scale = np.max(np.abs(value), initial=1e-300)
                np.testing.assert_allclose(every[0][label], value, rtol=rtol, atol=rtol * scale, err_msg=label)


@pytest.mark.slow
def test_two_processes_find_a_regression_with_missing_covariates(tmp_path):
    compared(2, tmp_path, ["logistic"])


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("names", [
    ("poisson", "multinomial", "large", "discrete"), ("saem", "misso", "mcem"), ("curves", "curves in batches"),
    ("a fixed effect",), ("network by misso", "network by adam"),
])  # fmt: skip
def test_every_family_is_the_same_over_processes(processes, names, tmp_path):
    compared(processes, tmp_path, names)


def test_tables_of_one_process_are_as_they_are():
    x = np.ones((3, 2))
    tables = pooled(x, "y ~ x", None)
    assert tables[0] is x and tables[1:] == ("y ~ x", None, False)
    assert equal(5, False).alone and mx.shard(x) is x
