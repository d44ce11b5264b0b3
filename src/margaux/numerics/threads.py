"""Threads: how many there may be, and the parts of some work side by side on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np

from .precision import precision

T = TypeVar("T")


def usable_cores() -> int:
    """Cores that this process may use, which a container makes fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """How many there may be: MARGAUX_THREADS, or as many as there are cores."""
    wanted = os.environ.get("MARGAUX_THREADS", "")
    return int(wanted) if wanted.isdigit() else usable_cores()


def side_by_side(visit: Callable[[Any], T], parts: Sequence[Any], dtype: np.dtype, most: int | None = None) -> list[T]:
    """What `visit` says of each part, in order. The first is visited on this thread, which compiles what the others find; those
    on as many threads as there may be, `most` at most, where programs run on a CPU. `dtype` is that of the scope (see
    `precision`), which other threads do not inherit.
    """
    first = [visit(part) for part in parts[:1]]
    count = min(threads(), len(parts) - 1, most or len(parts))
    # Nor do they inherit a device, or a wish to look into programs.
    inherited = any(getattr(jax.config, name) for name in ("jax_disable_jit", "jax_debug_nans", "jax_default_device"))
    if count < 2 or inherited or jax.default_backend() != "cpu":
        return first + [visit(part) for part in parts[1:]]

    def there(part: Any) -> T:
        with precision(dtype):
            return visit(part)

    with ThreadPoolExecutor(count, "margaux") as pool:
        return first + list(pool.map(there, parts[1:]))
