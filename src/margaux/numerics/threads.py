"""Threads: how many there may be, and the parts of some work side by side on them."""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
    return list(in_turn(visit, parts, dtype, min(most or len(parts), len(parts) - 1)))


def in_turn(visit: Callable[[Any], T], parts: Iterable[Any], dtype: np.dtype, most: int | None = None) -> Iterator[T]:
    """As `side_by_side`, one after the other as they are asked for: of parts without number only a few are under way.

    The parts themselves come from this thread.
    """
    rest = iter(parts)
    for part in itertools.islice(rest, 1):
        yield visit(part)
    count = threads() if most is None else min(threads(), most)
    if count < 2 or not _alike() or jax.default_backend() != "cpu":
        yield from map(visit, rest)
        return
    pool, under_way = ThreadPoolExecutor(count, "margaux"), collections.deque()
    try:
        for part in rest:
            under_way.append(pool.submit(_scoped, dtype, visit, part))
            # One in reserve for each thread, so that none waits for the first of them.
            if len(under_way) >= 2 * count:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class Background:
    """One thread that works while this one goes on, on one thing after the other in the order in which they were given.

    `dtype` is that of the scope. What is raised there is raised by the result that is waited for.
    """

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype, self.pool = dtype, ThreadPoolExecutor(1, "margaux-background")

    def begin(self, work: Callable[..., T], *args: Any) -> Future[T]:
        return self.pool.submit(_scoped, self.dtype, work, *args)

    def close(self) -> None:
        """What has been begun is ended; what has not is forgotten."""
        self.pool.shutdown(cancel_futures=True)


def background(dtype: np.dtype) -> Background | None:
    """A thread for work ahead, where there may be one."""
    return Background(dtype) if threads() > 1 and _alike() else None


def _alike() -> bool:
    """Whether programs do on another thread what they do on this one: it inherits neither a device nor a wish to look into
    programs."""
    return not any(getattr(jax.config, name) for name in ("jax_disable_jit", "jax_debug_nans", "jax_default_device"))


def _scoped(dtype: np.dtype, work: Callable[..., T], *args: Any) -> T:
    with precision(dtype):
        return work(*args)
