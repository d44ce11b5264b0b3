"""The code blocks of the documentation run as they stand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [pytest.param(page, id=page.stem) for page in sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", [*PAGES, pytest.param(ROOT / "README.md", id="README", marks=pytest.mark.slow)])
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    names: dict = {"__name__": page.stem}
    found = list(BLOCK.finditer(text))
    assert found, f"{page.name} has no code"
    for block in found:
        # Blank lines in front, so that a traceback names the line of the page.
        lines = "\n" * text[: block.start(1)].count("\n")
        exec(compile(lines + block.group(1), str(page), "exec"), names)
