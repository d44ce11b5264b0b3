"""The list of tests that are left to studies."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_line_is_a_test_of_its_file():
    lines = (ROOT / "tests" / "slow.txt").read_text().splitlines()
    assert lines == sorted(set(lines))
    for line in lines:
        path, name = line.split("::")
        assert f"def {name.split('[')[0]}(" in (ROOT / path).read_text(), line
