"""Ctrl-C in one process of several: it is noted, and ends the fit in all of them between two chunks."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

#: seconds within which a second signal is taken for the first again: a terminal and a launcher both send it
SAME = 1.0


class Interrupts:
    """Within it an interrupt is noted, as a process that left the others in the middle of a sum would have them wait in vain.

    One that comes `SAME` seconds later or more is raised: whoever asks twice does not want to wait for the chunk. Outside the
    main thread, which alone is sent signals, nothing is done.

    Attributes:
        asked: whether an interrupt was noted. active: whether they are noted at all.
    """

    def __init__(self, active: bool) -> None:
        self.active, self.asked = active, False
        self._since = 0.0

    def __enter__(self) -> Interrupts:
        self.active = self.active and threading.current_thread() is threading.main_thread()
        if self.active:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self.active:
            signal.signal(signal.SIGINT, signal.default_int_handler if self._before is None else self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked, self._since = True, time.monotonic()
        elif time.monotonic() - self._since >= SAME:
            before = self._before if callable(self._before) else signal.default_int_handler
            before(number, frame)
