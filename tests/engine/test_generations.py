"""A checkpoint of several processes is whole or not used, and any number of processes reads its own rows of it."""

import errno
import os

import numpy as np
import pytest

from margaux.engine import generations, storage
from margaux.engine.share import Share

N, RUNS = 7, 2
EVERY = np.arange(RUNS * N * 3.0).reshape(RUNS, N, 3)


@pytest.fixture
def alone(monkeypatch):
    """One process after the other plays its part: none hears of another, and all draw the same number."""
    monkeypatch.setattr(generations, "everyones", lambda value: np.asarray(value)[None])
    monkeypatch.setattr("margaux.engine.share.everyones", lambda value: np.asarray(value)[None])
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))


def rows_of(share):
    return EVERY[:, share.first : share.first + share.size].reshape(-1, 3)


def written(path, sizes, k=10):
    """All processes write, the first the last: it is the first that commits."""
    for index in reversed(range(len(sizes))):
        share = Share(sizes, index)
        generations.write(path, {"kind": "checkpoint", "k": k}, {"state/0": np.ones(2)}, {"rows/0": rows_of(share)}, share)


def read(path, share):
    header, _ = generations.read(path)
    size = N if share is None else share.size
    out = np.full((RUNS * size, 3), np.nan)
    for ids, part in generations.read_rows(path, header, "rows/0", out, RUNS, N, share):
        out[ids] = part
    return out


@pytest.mark.parametrize("sizes", [(3, 1, 3), (1, 1, 5), (5, 1, 1)])
@pytest.mark.parametrize("later", [(7,), (3, 1, 3), (4, 3), (1, 6), (2, 2, 2, 1), (1,) * 7])
def test_any_number_of_processes_reads_its_own_rows(sizes, later, tmp_path, alone):
    path = tmp_path / "fit"
    written(path, sizes)
    for index in range(len(later)):
        share = Share(later, index) if len(later) > 1 else None
        expected = EVERY.reshape(-1, 3) if share is None else rows_of(share)
        np.testing.assert_array_equal(read(path, share), expected)


def test_several_go_on_from_the_file_of_one(tmp_path):
    path = tmp_path / "fit"
    generations.write(path, {"kind": "checkpoint", "k": 3}, {}, {"rows/0": EVERY.reshape(-1, 3)}, None)
    assert [file.name for file in tmp_path.iterdir()] == ["fit"]
    for index in range(2):
        np.testing.assert_array_equal(read(path, Share((2, 5), index)), rows_of(Share((2, 5), index)))


def test_what_came_before_and_what_kills_left_is_removed_and_nothing_else(tmp_path, alone):
    path = tmp_path / "fit"
    for name in (
        "fit.5-0000abcd.1-of-3",
        "fit.5-0000abcd.2-of-3.tmp",
        "fit.more",
        "fit.5-0000abcd.notes",
        "other.5-0000abcd.1-of-3",
    ):
        (tmp_path / name).write_text("x")
    written(path, (3, 1, 3))
    written(path, (3, 1, 3), k=20)
    header, _ = generations.read(path)
    assert header["k"] == 20 and header["generation"].startswith("20-")
    shards = {f"fit.{header['generation']}.{index}-of-3" for index in (1, 2)}
    kept = {"fit", "fit.more", "fit.5-0000abcd.notes", "other.5-0000abcd.1-of-3"}
    assert {file.name for file in tmp_path.iterdir()} == shards | kept
    generations.write(path, {"kind": "checkpoint", "k": 30}, {}, {"rows/0": EVERY.reshape(-1, 3)}, None)
    assert {file.name for file in tmp_path.iterdir()} == kept


def test_a_generation_that_is_not_whole_is_not_used(tmp_path, alone, monkeypatch):
    path = tmp_path / "fit"
    written(path, (3, 4))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with monkeypatch.context() as patch:

        def full(descriptor):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "fsync", full)
        for index in (1, 0):
            with pytest.raises(OSError, match="No space left"):
                share = Share((3, 4), index)
                generations.write(path, {"kind": "checkpoint", "k": 20}, {}, {"rows/0": rows_of(share)}, share)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    # The second has written, and the first is killed before it commits.
    share = Share((3, 4), 1)
    generations.write(path, {"kind": "checkpoint", "k": 20}, {}, {"rows/0": 9 + rows_of(share)}, share)
    for index in range(2):
        np.testing.assert_array_equal(read(path, Share((3, 4), index)), rows_of(Share((3, 4), index)))


def test_a_shard_of_another_checkpoint_is_refused(tmp_path, alone):
    written(tmp_path / "fit", (3, 4))
    written(tmp_path / "other", (3, 4), k=11)
    (own,), (other,) = tmp_path.glob("fit.*"), tmp_path.glob("other.*")
    own.write_bytes(other.read_bytes())
    with pytest.raises(ValueError, match="is of another checkpoint than .*; put the file back as it was written, or delete"):
        read(tmp_path / "fit", None)
    own.unlink()
    with pytest.raises(ValueError, match="written by 2 processes, and the file fit.* of process 1 is not beside it"):
        read(tmp_path / "fit", None)
    np.testing.assert_array_equal(read(tmp_path / "fit", Share((3, 4), 0)), rows_of(Share((3, 4), 0)))  # needs its own alone


def test_processes_that_found_different_generations_are_told(monkeypatch):
    monkeypatch.setattr(generations, "everyones", lambda value: np.stack([value, value + 1]))
    with pytest.raises(ValueError, match="found different generations"):
        generations.check_agreed(storage.Path("fit"), {"k": 3, "generation": "3-000000ff"}, Share((3, 4), 0))
