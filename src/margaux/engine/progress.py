"""One line of progress: a bar on stderr in terminals, an HTML line in notebooks."""

from __future__ import annotations

import html
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


class Line:
    """A line with a title, how far something is, and figures. It goes away when closed.

    Args:
        total: of the steps; None where nobody knows, and the time that has passed stands for it.
        console: of rich; by default one on stderr.
    """

    def __init__(self, title: str, total: int | None = None, console: Console | None = None) -> None:
        self._line: Any = _NotebookLine(title, total) if in_notebook() else _TerminalLine(title, total, console)

    def update(self, completed: int | None, figures: str) -> None:
        """Show that so many steps are done, and figures beside it."""
        self._line.update(completed, figures)

    def close(self) -> None:
        """Take the line away."""
        self._line.close()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and getattr(running, "kernel", None) is not None


class _TerminalLine:
    def __init__(self, title: str, total: int | None, console: Console | None) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        name, figures = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[figures]}", markup=False)
        columns: Any = [SpinnerColumn(), name, TimeElapsedColumn(), figures]
        if total is not None:
            columns = [name, BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn(), figures]
        console = console or Console(stderr=True)
        # Where nothing can be rewritten a bar is an empty line.
        self._bar: Any = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bar.start()
        self._task = self._bar.add_task(title, total=total, figures="")

    def update(self, completed: int | None, figures: str) -> None:
        self._bar.update(self._task, completed=completed, figures=figures)

    def close(self) -> None:
        self._bar.stop()


class _NotebookLine:
    """HTML that is replaced in place. Rich's own needs ipywidgets, which few installations have."""

    def __init__(self, title: str, total: int | None) -> None:
        from IPython.display import HTML, display

        self._title, self._total, self._begun, self._html = title, total, time.monotonic(), HTML
        self._handle: Any = display(HTML(self._text(0, "")), display_id=True)

    def update(self, completed: int | None, figures: str) -> None:
        self._handle.update(self._html(self._text(completed, figures)))

    def _text(self, completed: int | None, figures: str) -> str:
        seconds = time.monotonic() - self._begun
        bar, far = "", f"{seconds:.0f} s"
        if self._total is not None and completed is not None:
            left = seconds * (self._total - completed) / completed if completed else None
            bar = f'<progress max="{self._total}" value="{completed}"></progress> '
            far = f"{completed} of {self._total}" + ("" if left is None else f", {left:.0f} s left")
        return f"<div>{html.escape(self._title)} {bar}{far} <code>{html.escape(figures)}</code></div>"

    def close(self) -> None:
        self._handle.update(self._html(""))
