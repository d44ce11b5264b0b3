"""The folder of compiled programs: where it is, how large and how old it may get, and how to empty it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

#: bytes that programs may take, what is left of them once they take more, and days that one may lie there unused
MOST, LEFT, DAYS = 2 << 30, 1 << 30, 90
#: how programs of this library are called, and those that jax keeps
SUFFIX = ".program"
PATTERNS = (f"*{SUFFIX}", f"*{SUFFIX}.part", "*-cache", "*-atime", "tidied")


class Held(NamedTuple):
    """Files and their bytes."""

    files: int
    size: int

    def __str__(self) -> str:
        return f"{self.files} files, {self.size / (1 << 20):.1f} MiB"


def place() -> Path | None:
    """The folder, None where there is to be none: MARGAUX_CACHE, or `margaux` in the user's cache folder."""
    wanted = os.environ.get("MARGAUX_CACHE", "")
    if wanted.lower() in ("off", "0", "no"):
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    return Path(wanted) if wanted else Path(base) / "margaux"


def held(folder: Path) -> Held:
    """What is there."""
    sizes = [size for _, size, _ in _files(folder)]
    return Held(len(sizes), sum(sizes))


def clear(folder: Path) -> Held:
    """Delete all programs, and nothing else: what there was."""
    there = _files(folder)
    for _, _, path in there:
        path.unlink(missing_ok=True)
    return Held(len(there), sum(size for _, size, _ in there))


def tidy(folder: Path, now: float | None = None) -> Held:
    """Delete what has not been used for `DAYS`, and the oldest where all take more than `MOST`; once a day. What is gone."""
    now, mark = time.time() if now is None else now, folder / "tidied"
    if mark.exists() and now - mark.stat().st_mtime < 86_400:
        return Held(0, 0)
    gone, there = [], _files(folder)
    left = sum(size for _, size, _ in there)
    enough = LEFT if left > MOST else left
    for used, size, path in there:
        if left > enough or now - used > DAYS * 86_400:
            path.unlink(missing_ok=True)
            left -= size
            gone.append(size)
    mark.touch()
    os.utime(mark, (now, now))
    return Held(len(gone), sum(gone))


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """When they were last used, their bytes, and their paths, the oldest first. Another process may be at work too."""
    found = []
    for pattern in PATTERNS:
        for path in folder.glob(pattern):
            try:
                about = path.stat()
            except OSError:
                continue
            found.append((about.st_mtime, about.st_size, path))
    return sorted(found)
