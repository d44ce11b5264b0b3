"""The folder of compiled programs: its place, its limits, and nothing of others deleted."""

import os

import pytest
from typer.testing import CliRunner

from margaux.cli import app
from margaux.numerics import cache


@pytest.fixture
def folder(tmp_path):
    for day, (name, size) in enumerate([("a.program", 10), ("b-cache", 20), ("b-atime", 1), ("c.program", 40), ("notes.txt", 5)]):
        path = tmp_path / name
        path.write_bytes(b"x" * size)
        os.utime(path, (day * 86_400, day * 86_400))
    return tmp_path


def left(folder):
    return {path.name for path in folder.iterdir()}


def test_all_programs_go_and_nothing_else(folder):
    assert cache.held(folder) == (4, 71)
    assert cache.clear(folder) == (4, 71) and left(folder) == {"notes.txt"} and cache.held(folder) == (0, 0)


def test_what_is_old_goes_once_a_day(folder):
    now = (cache.DAYS + 1.5) * 86_400
    assert cache.tidy(folder, now) == (2, 30)
    assert left(folder) == {"b-atime", "c.program", "notes.txt", "tidied"}
    assert cache.tidy(folder, now + 80_000) == (0, 0)
    assert cache.tidy(folder, now + 90_000) == (1, 1)


def test_the_oldest_go_where_all_are_too_large(folder, monkeypatch):
    monkeypatch.setattr(cache, "MOST", 71)
    assert cache.tidy(folder, 5 * 86_400) == (0, 0)
    monkeypatch.setattr(cache, "MOST", 70)
    monkeypatch.setattr(cache, "LEFT", 45)
    assert cache.tidy(folder, 7 * 86_400) == (2, 30) and "c.program" in left(folder)


@pytest.mark.parametrize("word", ["off", "0", "no", "OFF"])
def test_there_may_be_none(word, monkeypatch):
    monkeypatch.setenv("MARGAUX_CACHE", word)
    assert cache.place() is None
    assert CliRunner().invoke(app, ["cache", "clear"]).stdout == "off (MARGAUX_CACHE)\n"


def test_the_command_shows_and_clears(folder, monkeypatch):
    monkeypatch.setenv("MARGAUX_CACHE", str(folder))
    run = CliRunner()
    assert run.invoke(app, ["cache", "show"]).stdout == f"{folder}: 4 files, 0.0 MiB\n"
    assert "4 files, 0.0 MiB deleted" in run.invoke(app, ["cache", "clear"]).stdout and left(folder) == {"notes.txt"}
    monkeypatch.delenv("MARGAUX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "home"))
    assert cache.place() == folder / "home" / "margaux"
