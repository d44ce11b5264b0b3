"""The directive `shell`: commands that run while the documentation is built, shown with what they print.

The commands of a page share a folder of their own. An exit code other than `:exit:` (0 unless said) is a warning, which stops
the build.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FOLDERS: dict[str, Path] = {}
#: what keeps the output the same from one machine to the next
PLAIN = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb"}


def folder(page: str) -> Path:
    if page not in FOLDERS:
        FOLDERS[page] = Path(tempfile.mkdtemp(prefix="margaux-docs-"))
        atexit.register(shutil.rmtree, FOLDERS[page], ignore_errors=True)
    return FOLDERS[page]


class Shell(SphinxDirective):
    """Commands for a POSIX shell."""

    has_content = True
    option_spec = {"exit": directives.nonnegative_int, "lines": directives.positive_int, "hidden": directives.flag}

    def run(self) -> list[nodes.Node]:
        commands = "\n".join(self.content)
        done = subprocess.run(
            ["sh", "-e", "-c", commands],
            cwd=folder(self.env.docname),
            env=os.environ | PLAIN,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=600,
        )
        if done.returncode != self.options.get("exit", 0):
            return [self.state.document.reporter.warning(f"exit code {done.returncode} of: {commands}\n{done.stdout}")]
        if "hidden" in self.options:
            return []
        typed = nodes.literal_block(commands, commands, language="bash", classes=["typed"])
        lines = done.stdout.rstrip().splitlines()
        most = self.options.get("lines", len(lines))
        shown = "\n".join([*lines[:most], *(["..."] if most < len(lines) else [])])
        if not shown:
            return [typed]
        return [typed, nodes.literal_block(shown, shown, language="none", classes=["output"])]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("shell", Shell)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
