"""Variational EM over blocks of units: sweeps until the bound no longer rises."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .counts import Counts
from .variational import BLOCK, Loadings, Place, Posterior, Sums, Units, feature_steps, visit, whitened

#: Newton steps of each unit in the first sweep, and in the others
FIRST_STEPS, STEPS = 4, 1


class Design(NamedTuple):
    """Counts (n, p), covariates (n, k), offsets (n, 1) or (n, p)."""

    counts: Counts
    x: Float[np.ndarray, "n k"]
    offset: Float[np.ndarray, "n o"]

    def constant(self) -> float:
        r"""$\sum_{ij}(y_{ij}o_{ij} - \log y_{ij}!)$, in float64."""
        if self.offset.shape[1] == 1:
            with_offset = float(self.counts.row_sums() @ self.offset[:, 0].astype(float))
        else:
            values = self.counts.values
            with_offset = float(
                values.multiply(self.offset).sum() if hasattr(values, "multiply") else np.sum(values * self.offset)
            )
        return with_offset - self.counts.log_factorials()


class Solution(NamedTuple):
    """Where sweeps ended: the bound of each sweep, and whether it had stopped rising."""

    loadings: Loadings
    posterior: Posterior
    bounds: list[float]
    converged: bool


class _Here(NamedTuple):
    """A sweep that is accepted, before its features move, in coordinates of its own; and where the one before it led."""

    loadings: Loadings
    posterior: Posterior
    linear: Loadings
    rates: np.ndarray
    step: Loadings
    past: Place


def maximise(
    design: Design, loadings: Loadings, posterior: Posterior, tol: float = 1e-3, relative: float = 1e-9,
    max_sweeps: int = 500, block: int = BLOCK, watch: Callable[[int, float], None] | None = None,
) -> Solution:  # fmt: skip
    r"""Sweeps of Newton steps of the units and of the features until the bound rises by less than `tol` nats, or `relative` of
    its size, in a sweep that nothing hurried.

    A sweep goes on by $r/(r+3)$ of its move from where the last one led (Nesterov 1983), r counted from the last time that the
    bound would have fallen (O'Donoghue and Candes 2015). Without that, a feature whose part of the bound fell is set back to a
    quarter of its step. So the bound never falls.
    """
    dtype = loadings.C.dtype
    constant, x = design.constant(), np.asarray(design.x, dtype)
    crossed = design.counts.transposed_times(x).T.astype(dtype)
    slack = 50 * float(jnp.finfo(dtype).eps)
    bounds: list[float] = []
    here: _Here | None = None
    share, run, hurried = np.ones(design.counts.p, dtype), 0, False
    for sweep in range(max_sweeps):
        moved, sums = _sweep(design, loadings, posterior, block, FIRST_STEPS if here is None else STEPS)
        bound = float(sums.bound) + float(np.sum(np.asarray(crossed, float) * np.asarray(loadings.B, float))) + constant
        if here is not None:
            lower = not bound >= bounds[-1] - slack * abs(bound)
            fallen = np.zeros(len(share), bool) if hurried else _fallen(here, share, np.asarray(sums.before), slack)
            if (hurried and lower) or fallen.any():
                share = np.where(fallen, share / 4, share).astype(dtype)
                loadings, posterior, _ = _onward(here, share, x)
                run, hurried = 0, False
                continue
        gain = bound - bounds[-1] if bounds else np.inf
        bounds.append(bound)
        if watch is not None:
            watch(sweep, bound)
        small = gain < max(tol, relative * abs(bound))
        if small and not hurried:
            return Solution(loadings, moved, bounds, True)
        pulled = design.counts.transposed_times(np.asarray(moved.mean)).astype(dtype)
        linear = Loadings(jnp.asarray(crossed), jnp.asarray(pulled))
        step, _ = feature_steps(loadings, linear, sums)
        past = Place(loadings, moved.mean) if here is None else plain
        here, share = _Here(loadings, moved, linear, np.asarray(sums.rates), step, past), np.ones_like(share)
        loadings, posterior, past = _onward(here, share, x)
        plain = Place(loadings, posterior.mean)
        run, hurried = (0, False) if small else (run + 1, run > 0)
        if hurried:
            loadings, posterior = _hurried(plain, past, posterior, (run - 1) / (run + 2))
    return Solution(loadings, posterior, bounds, False)


def _hurried(plain: Place, past: Place, posterior: Posterior, share: float) -> tuple[Loadings, Posterior]:
    """Beyond a place by a share of what is between a past one and it."""
    beyond = jax.tree.map(lambda new, old: new + np.asarray(share, new.dtype) * (new - old), plain, past)
    return beyond.loadings, posterior._replace(mean=beyond.mean)


def _sweep(design: Design, loadings: Loadings, posterior: Posterior, block: int, steps: int) -> tuple[Posterior, Sums]:
    """Every unit visited, a block at a time."""
    counts, dtype = design.counts, loadings.C.dtype
    projected = counts.times(np.asarray(loadings.C)).astype(dtype)
    size = max(min(block // counts.p, counts.n), 1)
    parts, total = [], None
    for first in range(0, counts.n, size):
        span = slice(first, first + size)
        units = Units(*(jnp.asarray(leaf[span], dtype) for leaf in (design.x, design.offset, projected)))
        part, sums = visit(loadings, jax.tree.map(lambda leaf, span=span: leaf[span], posterior), units, steps)
        parts.append(part)
        total = sums if total is None else jax.tree.map(jnp.add, total, sums)
    assert total is not None
    return (parts[0] if len(parts) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)), total


def _onward(here: _Here, share: np.ndarray, x: np.ndarray) -> tuple[Loadings, Posterior, Place]:
    """Features moved by a share of their steps, and the latents whitened; the past in the new coordinates."""
    moved = Loadings(here.loadings.B + share * here.step.B, here.loadings.C + share[:, None] * here.step.C)
    return whitened(moved, here.posterior, jnp.asarray(x), here.past)


def _fallen(here: _Here, share: np.ndarray, rates: np.ndarray, slack: float) -> np.ndarray:
    """Features whose part of the bound is lower after their step than before."""
    linear = lambda step: np.sum(here.linear.B * step.B, axis=0) + np.sum(here.linear.C * step.C, axis=1)  # noqa: E731
    rise = share * np.asarray(linear(here.step), float) - (rates.astype(float) - here.rates)
    return ~(rise >= -slack * (1 + np.abs(here.rates)))
