"""Progress of a variational fit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ...engine.progress import Line
from .restarts import FIRST

if TYPE_CHECKING:
    from rich.console import Console


class SweepLine:
    """A line with start, sweep and bound, for fits over two seconds: a `watch` of `maximise` and `best_of`.

    A sweep 0 begins another start; sweeps beyond those of the first round are of the better starts.
    """

    def __init__(self, title: str, n_starts: int = 1, delay: float = 2.0, console: Console | None = None) -> None:
        self._title, self._n_starts, self._delay, self._console = title, n_starts, delay, console
        self._begun, self._since = 0, time.monotonic()
        self._line: Line | None = None

    def __call__(self, sweep: int, bound: float) -> None:
        self._begun += sweep == 0
        if self._line is None:
            if time.monotonic() - self._since < self._delay:
                return
            self._line = Line(self._title, console=self._console)
        first = self._n_starts == 1 or sweep < FIRST
        which = f"start {self._begun} of {self._n_starts}" if first else "the better starts"
        self._line.update(None, f"{which}  sweep {sweep + 1}  bound {bound:.2f}")

    def __enter__(self) -> SweepLine:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._line is not None:
            self._line.close()
