"""What this machine does in a second, measured in about one: products, exponentials, draws, memory and messages."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.share import everyones
from ..numerics.compiling import compiled
from ..numerics.keys import key_of
from ..numerics.precision import precision

#: seconds that a rate is measured for
SECONDS = 0.15
#: seconds that a message takes however short it is, and its bytes a second, where there is nobody to send one to: those of two
#: processes on one machine, by benchmarks/messages.py
LATENCY, BANDWIDTH = 8e-4, 6e8
#: seconds of an iteration in which a compiled loop does nothing
TURN = 5e-6


@dataclasses.dataclass(frozen=True)
class Rates:
    """A second of one process: multiplications and additions in products of matrices; exponentials or logarithms; noise of a
    unit's transition (its own key, a normal and a uniform number); bytes read or written. And what a message costs.

    `measured` tells whether there were several processes to measure the last two by.
    """

    flops: float
    specials: float
    draws: float
    bytes: float
    latency: float = LATENCY
    bandwidth: float = BANDWIDTH
    measured: bool = False


def measured(dtype: np.dtype) -> Rates:
    """The rates of this process, in a precision."""
    size, inner, many = 384, 32, 1 << 15
    with precision(dtype):
        left = jax.device_put(np.full((size, inner), 1e-3, dtype))
        line = jax.device_put(np.linspace(0.1, 1.0, many).astype(dtype))
        large = jax.device_put(np.zeros(1 << 22, dtype))
        ids = jax.device_put(np.arange(1 << 12, dtype=np.int32))
        # Products of fits are of tall matrices, and write more than square ones.
        products = 2 * size**2 * inner / _seconds(_products, left, left.T)
        specials = 2 * many / _seconds(_specials, line)
        draws = len(ids) / _seconds(_draws, key_of(0), ids)
        moved = 2 * large.nbytes / _seconds(_moved, large)
    several = jax.process_count() > 1
    return Rates(products, specials, draws, moved, *(_messages() if several else (LATENCY, BANDWIDTH)), several)


def _seconds(program: Callable[..., Any], *args: Any) -> float:
    """The least of a call: what else runs on the machine only adds to it."""
    jax.block_until_ready(program(*args))
    best, until = np.inf, time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        began = time.perf_counter()
        jax.block_until_ready(program(*args))
        best = min(best, time.perf_counter() - began)
    return best


@compiled
def _products(left, right):
    return left @ right


@compiled
def _specials(x):
    return jnp.log(1.5 + jnp.exp(-x))


@compiled
def _draws(key, ids):
    def one(i):
        moving, accepting = jax.random.split(jax.random.fold_in(key, i))
        return jax.random.normal(moving, ()), jax.random.uniform(accepting, ())

    return jax.vmap(one)(ids)


@compiled
def _moved(x):
    return x + 1


def _messages() -> tuple[float, float]:
    """Seconds of a short sum over processes, and bytes a second of a long one."""
    short, long = np.zeros(1), np.zeros(1 << 18)

    def seconds(value: np.ndarray) -> float:
        times = []
        for _ in range(6):
            began = time.perf_counter()
            everyones(value)
            times.append(time.perf_counter() - began)
        return sorted(times)[1]

    latency = seconds(short)
    return latency, long.nbytes / max(seconds(long) - latency, 1e-6)
