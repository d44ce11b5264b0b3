"""The documentation: its code compiles and its links lead somewhere; every public name is in the reference.

`make docs` runs the code of every page. Here runs only what stands outside it: the blocks of the README, and "start here", typed
in a fresh clone.
"""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import margaux as mx

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {str(page.relative_to(ROOT)): page for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]}
FENCE = re.compile(r"^(`{3,})(\{[\w-]+\}|\w*)[^\n]*\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
#: pages whose plain python blocks run in the tests below; everywhere else code is in cells, which the build runs
RUN_HERE = {"README.md", "docs/start.md"}


def blocks(page: Path, *kinds: str) -> list[str]:
    """Code of some kinds, on the lines it has in the page, so that a traceback names them."""
    text = page.read_text()
    return ["\n" * text[: found.start(3)].count("\n") + found[3] for found in FENCE.finditer(text) if found[2] in kinds]


def code(cell: str) -> str:
    """A cell without its options, and without the semicolons that keep a notebook from showing a value."""
    cell = re.sub(r"\A(\n*)---\n(.*?)^---$", lambda m: m[1] + "\n" * (m[2].count("\n") + 1), cell, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^:[\w-]+:.*$", "", cell, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_code_compiles_and_runs_somewhere(page):
    for block in [*blocks(PAGES[page], "python"), *map(code, blocks(PAGES[page], "{code-cell}"))]:
        compile(block, page, "exec")
    assert page in RUN_HERE or not blocks(PAGES[page], "python"), f"{page}: make ```python blocks ```{{code-cell}}, which run"
    cells = blocks(PAGES[page], "{code-cell}")
    assert not cells or "file_format: mystnb" in PAGES[page].read_text(), f"{page} has cells but no kernel in its front matter"


@pytest.mark.parametrize("page", PAGES)
def test_local_links_of_the_sources(page):
    text = FENCE.sub("", PAGES[page].read_text())
    for link in LINK.findall(text):
        file, _, _ = link.partition("#")
        if re.match(r"\w+:", link) or not file:
            continue
        assert (PAGES[page].parent / file).exists(), f"{page} links to {link}, which is no file"


def test_every_page_is_in_a_table_of_contents():
    listed = {DOCS / "index.md"}
    for page in DOCS.rglob("*.md"):
        for contents in blocks(page, "{toctree}"):
            listed |= {
                page.parent / f"{entry.strip()}.md" for entry in contents.splitlines() if re.match(r"[\w/]+$", entry.strip())
            }
    assert listed == set(DOCS.rglob("*.md"))


def test_every_public_name_is_in_the_reference():
    described = set(
        re.findall(r"^\.\. auto\w+:: (\w+)$", "".join(page.read_text() for page in DOCS.glob("api/*.md")), re.MULTILINE)
    )
    public = {name for name in mx.__all__ if not inspect.ismodule(getattr(mx, name))}
    assert public - described == set()


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "there.html").write_text('<h1 id="here">Here</h1><a href="#here">here</a>')
    (tmp_path / "page.html").write_text('<a href="there.html#here">yes</a><a href="there.html#gone">no</a><img src="no.png">')
    done = subprocess.run([sys.executable, DOCS / "check_links.py", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "page.html: the image no.png has no alternative text",
        "page.html: there.html#gone has no such anchor",
        "page.html: no.png is no file",
    ]


@pytest.mark.slow
def test_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "README"}
    found = blocks(ROOT / "README.md", "python")
    assert found
    for block in found:
        exec(compile(block, "README.md", "exec"), names)


@pytest.mark.slow
def test_start_here_typed_in_a_fresh_clone(tmp_path):
    """What the page says and nothing else: its shell commands in one shell, its Python saved as the file it names."""
    page = DOCS / "start.md"
    (program,) = blocks(page, "python")
    name = re.search(r"Save this as `(\w+\.py)`", page.read_text())
    assert name
    commands = "".join(block.strip() + "\n" for block in blocks(page, "bash"))
    # The page saves the file after the clone is there: it is written as soon as the shell is in it.
    saved = f"cat > {name[1]} <<'END-OF-FILE'\n{program.strip()}\nEND-OF-FILE\n"
    assert "\ncd margaux\n" in commands
    typed = commands.replace("\ncd margaux\n", f"\ncd margaux\n{saved}")
    clean = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "PIP_INDEX_URL", "PIP_CONFIG_FILE") if key in os.environ}
    done = subprocess.run(
        ["bash", "-e", "-c", typed], cwd=tmp_path, env=clean | {"REPOSITORY": str(ROOT)}, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    for path in ("demo-output", "theophylline/report.html"):
        assert (tmp_path / "margaux" / path).exists(), done.stdout[-3000:]
    assert "log_tau" in done.stdout and "The chains move." in done.stdout
