"""Traces of chunks: figures by name, (iterations, runs, ...)."""

from __future__ import annotations

import numpy as np

Trace = dict[str, np.ndarray]


def record(parts: list[Trace], latest: Trace) -> None:
    """Append a chunk's, the shorter joined as they come: a few long ones remain, and each figure is copied few times."""
    parts.append(latest)

    def length(part: Trace) -> int:
        return len(next(iter(part.values())))

    while len(parts) > 1 and length(parts[-2]) <= length(parts[-1]):
        last, before = parts.pop(), parts.pop()
        parts.append({name: np.concatenate([before[name], last[name]]) for name in last})


def joined(parts: list[Trace]) -> Trace:
    """All of them."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
