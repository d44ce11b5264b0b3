"""Progress of a variational fit on stderr."""

from __future__ import annotations

import time
from typing import Any

from .restarts import FIRST


class SweepLine:
    """A line on stderr with start, sweep and bound, for fits over two seconds: a `watch` of `maximise` and `best_of`.

    A sweep 0 begins another start; sweeps beyond those of the first round are of the better starts.
    """

    def __init__(self, title: str, n_starts: int = 1, delay: float = 2.0, console: Any = None) -> None:
        self._title, self._n_starts, self._delay, self._console = title, n_starts, delay, console
        self._begun, self._since = 0, time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, sweep: int, bound: float) -> None:
        self._begun += sweep == 0
        if self._bar is None:
            if time.monotonic() - self._since < self._delay:
                return
            self._bar = self._opened()
        first = self._n_starts == 1 or sweep < FIRST
        which = f"start {self._begun} of {self._n_starts}" if first else "the better starts"
        self._bar.update(self._task, figures=f"{which}  sweep {sweep + 1}  bound {bound:.2f}")

    def _opened(self) -> Any:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        bar: Any = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TextColumn("{task.fields[figures]}"),
            console=self._console or Console(stderr=True), transient=True,
        )  # fmt: skip
        bar.start()
        self._task = bar.add_task(self._title, total=None, figures="")
        return bar

    def __enter__(self) -> SweepLine:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
