"""Variational EM over a table: sweeps until the bound no longer rises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from ...engine.share import Share
from ...numerics.compiling import compiled
from .basis import pseudo_inverse
from .counts import Counts
from .filling import LARGE, at_zero, emptied, of_features, of_units, offsets, sizes
from .variational import (
    BLOCK,
    Basis,
    Loadings,
    Moments,
    Place,
    Posterior,
    Sums,
    Units,
    feature_steps,
    moments,
    visit,
    whitened,
)

#: Newton steps of each unit in the first sweep, and in the others
FIRST_STEPS, STEPS = 4, 1
#: sweeps in one call of a program, at most, and the rates that it computes, at most
CHUNK, RATES = 16, 1 << 22


class Design(NamedTuple):
    """Counts (n, p), covariates (n, k), offsets (n, 1) or (n, p), of the units of this process."""

    counts: Counts
    x: Float[np.ndarray, "n k"]
    offset: Float[np.ndarray, "n o"]

    @property
    def share(self) -> Share:
        """Which of the units of all processes these are."""
        return self.counts.share

    def rows(self, rows: slice | np.ndarray, share: Share | None = None) -> Design:
        """Some units, which are all there are unless a share says which of the chosen they are."""
        return Design(Counts(self.counts.values[rows], share), self.x[rows], self.offset[rows])

    def constant(self) -> float:
        r"""$\sum_{ij}(y_{ij}o_{ij} - \log y_{ij}!)$ over all units, in float64."""
        own = self.counts.row_products(self.offset).sum(), self.counts.row_log_factorials().sum()
        products, factorials = self.share.summed(own)
        return float(products) - float(factorials)


class Solution(NamedTuple):
    """Where sweeps ended: the bound of each sweep, the last of them that of this place, and whether it had stopped rising."""

    loadings: Loadings
    posterior: Posterior
    bounds: list[float]
    converged: bool


class _Here(NamedTuple):
    """A sweep that is accepted, before its features move, in coordinates of its own; and where the one before it led."""

    loadings: Loadings
    posterior: Posterior
    linear: Loadings
    rates: Float[Array, " p"]
    step: Loadings
    past: Place
    moments: Moments


class State(NamedTuple):
    """Between sweeps: where the next one begins; the last that is accepted, its bound less the constant, the share of its step
    that was taken (p,) and where that led; accepted sweeps, and those since the bound would last have fallen."""

    loadings: Loadings
    posterior: Posterior
    here: _Here
    bound: Array
    share: Float[Array, " p"]
    plain: Place
    accepted: Array
    run: Array
    hurried: Array
    done: Array


class Fixed(NamedTuple):
    """What every sweep reads: X (n, k), X'Y (k, p), the constant of the bound, and the rises at which to end."""

    basis: Basis
    crossed: Float[Array, "k p"]
    constant: Array
    tol: Array
    relative: Array


class Run(NamedTuple):
    """A start on its way: its state, the bounds so far, the sweeps made, with those that were refused, and n and p."""

    state: State
    bounds: list[float]
    sweeps: int
    shape: tuple[int, int]

    @property
    def converged(self) -> bool:
        """Whether the bound has stopped rising."""
        return bool(self.state.done)

    def solution(self) -> Solution:
        """The last accepted place."""
        n, p = self.shape
        (B, C), posterior = self.state.here[:2]
        loadings = Loadings(*emptied((B,), len(B), p), *emptied((C,), p))
        return Solution(loadings, emptied(posterior, n), self.bounds, self.converged)


class Sweeps:
    r"""Sweeps of Newton steps of the units and of the features until the bound rises by less than `tol` nats, or `relative` of
    its size, in a sweep that nothing hurried.

    A sweep goes on by $r/(r+3)$ of its move from where the last one led (Nesterov 1983), r counted from the last time that the
    bound would have fallen (O'Donoghue and Candes 2015). Without that, a feature whose part of the bound fell is set back to a
    quarter of its step. So the bound never falls.

    A table of at most `block` entries is swept by one program that holds it, filled up as `filling` says; a larger one, and one
    that processes share, by blocks of units. Then a sweep has one sum over the processes, and all decide alike.
    """

    def __init__(
        self,
        design: Design,
        dtype: np.dtype,
        covariance: Literal["full", "diagonal"] = "full",
        tol: float = 1e-3,
        relative: float = 1e-9,
        block: int = BLOCK,
    ) -> None:
        if covariance not in ("full", "diagonal"):
            raise ValueError(f'covariance must be "full" or "diagonal", not {covariance!r}')
        counts, x, share = design.counts, np.asarray(design.x, dtype), design.share
        self.design, self.dtype, self.block, self.diagonal = design, dtype, block, covariance == "diagonal"
        self.constant = design.constant()
        n, p = counts.n, counts.p
        held = share.alone and n * p <= block
        self.shape = sizes(n, p) if held else (n, p)
        more, wide = self.shape
        k = x.shape[1]
        crossed = at_zero(counts.transposed_times(x).T, k, wide)
        inverse = np.asarray(pseudo_inverse(x, share), dtype)
        gram = np.asarray(share.summed(x.T @ x), dtype)
        ones = at_zero(np.ones(n, dtype), more)
        basis: Any = at_zero(x, more), at_zero(inverse, k, more), ones, gram, np.asarray(share.n, dtype)
        numbers: Any = (np.asarray(number, dtype) for number in (crossed, self.constant, tol, relative))
        self.fixed = jax.device_put(Fixed(Basis(*basis), *numbers))
        self.whole: tuple[Array, Array] | None = None
        if held:
            values = counts.values.toarray() if scipy.sparse.issparse(counts.values) else counts.values
            offset = np.asarray(design.offset, dtype)
            offset = offset if n * p > LARGE else offsets(offset, p, self.shape)
            self.whole = jax.device_put((at_zero(np.asarray(values, dtype), *self.shape), offset))

    def begin(self, loadings: Loadings, posterior: Posterior) -> Run:
        """A start."""
        more, wide = self.shape
        start = _begun(of_features(loadings, wide), of_units(posterior, more), self.diagonal)
        return Run(start, [], 0, (self.design.counts.n, self.design.counts.p))

    def on(self, run: Run, sweeps: int, watch: Callable[[int, float], None] | None = None) -> Run:
        """From there by that many sweeps at most. `watch` is called with the number and the bound of each accepted one."""
        state, bounds, made = run.state, list(run.bounds), run.sweeps
        last = made + sweeps
        chunk = min(max(RATES // (self.design.counts.n * self.design.counts.p), 1), CHUNK) if self.whole else 1
        while made < last and not bool(state.done):
            now = min(chunk, last - made)
            state, record = self._swept(state, now, bounds[-1] - self.constant if bounds else -np.inf)
            made += now
            for bound in np.asarray(record, float)[: int(state.accepted) - len(bounds)]:
                bounds.append(float(bound) + self.constant)
                if watch is not None:
                    watch(len(bounds) - 1, bounds[-1])
        return run._replace(state=state, bounds=bounds, sweeps=made)

    def _swept(self, state: State, sweeps: int, before: float) -> tuple[State, Array | np.ndarray]:
        """Some sweeps, and the bounds of those that were accepted: of a large table in float64, as float32 loses their rises."""
        if self.whole:
            return _whole(state, *self.whole, self.fixed, np.asarray(sweeps, np.int32), self.diagonal)
        moved, *own = self._visited(state)
        own += [self.design.counts.own_transposed_times(np.asarray(moved.mean)), moments(moved, self.fixed.basis)]
        sums, bound, *others = self.design.share.summed(own)
        sums, pulled, of_all = jax.device_put(jax.tree.map(lambda leaf: np.asarray(leaf, self.dtype), (sums, *others)))
        bound = float(bound) + float(np.sum(np.asarray(self.fixed.crossed, float) * np.asarray(state.loadings.B, float)))
        rise = jnp.asarray(np.asarray(bound - before, self.dtype))
        state = _judged(state, moved, sums, pulled, of_all, self.fixed, self.diagonal, rise)
        return state, np.asarray([bound])

    def _visited(self, state: State) -> tuple[Posterior, Sums, float]:
        """Every unit of this process visited, a block at a time; with their part of the bound in float64."""
        counts = self.design.counts
        projected = counts.times(np.asarray(state.loadings.C)).astype(self.dtype)
        size = max(min(self.block // counts.p, counts.n), 1)
        steps: Any = np.asarray(FIRST_STEPS if state.accepted == 0 else STEPS, np.int32)  # traced: one program for both
        parts, bound, total = [], 0.0, None
        for first in range(0, counts.n, size):
            span = slice(first, first + size)
            units = Units(*(jnp.asarray(leaf[span], self.dtype) for leaf in (self.design.x, self.design.offset, projected)))
            given = jax.tree.map(lambda leaf, span=span: leaf[span], state.posterior)
            part, sums = visit(state.loadings, given, units, steps, self.diagonal)
            parts.append(part)
            bound += float(sums.bound)
            total = sums if total is None else jax.tree.map(jnp.add, total, sums)
        assert total is not None
        return (parts[0] if len(parts) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)), total, bound


def maximise(
    design: Design,
    loadings: Loadings,
    posterior: Posterior,
    tol: float = 1e-3,
    relative: float = 1e-9,
    max_sweeps: int = 500,
    block: int = BLOCK,
    watch: Callable[[int, float], None] | None = None,
    covariance: Literal["full", "diagonal"] = "full",
) -> Solution:
    """One start to its end: see `Sweeps`."""
    sweeping = Sweeps(design, loadings.C.dtype, covariance, tol, relative, block)
    return sweeping.on(sweeping.begin(loadings, posterior), max_sweeps, watch).solution()


def _begun(loadings: Loadings, posterior: Posterior, diagonal: bool) -> State:
    """Nothing is accepted yet; the first sweep counts as hurried, so that no feature of it is compared with one before it."""
    C = loadings.C
    if diagonal:
        j, k = np.tril_indices(C.shape[1])
        posterior = posterior._replace(spread=posterior.spread * np.asarray(j == k, C.dtype))
    place = Place(loadings, posterior.mean)
    none: Any = np.zeros_like(C[:, 0])
    q = C.shape[1]
    zeros: Any = (np.zeros(shape, C.dtype) for shape in ((len(loadings.B), q), (q, q), (q * (q + 1) // 2,)))
    nothing = Moments(*zeros)
    here = _Here(loadings, posterior, loadings, none, jax.tree.map(np.zeros_like, loadings), place, nothing)
    zero, yes, no = np.asarray(0, np.int32), np.asarray(True), np.asarray(False)
    state: Any = (loadings, posterior, here, np.asarray(-np.inf, C.dtype), np.ones_like(C[:, 0]), place, zero, zero, yes, no)
    return State(*state)


@compiled
def _whole(
    state: State, values: Float[Array, "n p"], offset: Float[Array, "n o"], fixed: Fixed, sweeps: Array, diagonal: bool
) -> tuple[State, Float[Array, " c"]]:
    """Sweeps of a table that is one block, until they are done or as many as asked for."""
    first = state.accepted

    def sweep(carried: tuple[Array, State, Array]) -> tuple[Array, State, Array]:
        made, state, record = carried
        units = Units(fixed.basis.x, offset, values @ state.loadings.C)
        steps: Any = jnp.where(state.accepted == 0, FIRST_STEPS, STEPS)
        moved, sums = visit(state.loadings, state.posterior, units, steps, diagonal)
        after = _judged(state, moved, sums, values.T @ moved.mean, moments(moved, fixed.basis), fixed, diagonal)
        # What a refused sweep writes is written over.
        return made + 1, after, record.at[state.accepted - first].set(after.bound)

    begun = (jnp.zeros_like(sweeps), state, jnp.zeros(CHUNK, values.dtype))
    _, state, record = jax.lax.while_loop(lambda carried: ~carried[1].done & (carried[0] < sweeps), sweep, begun)
    return state, record


@compiled
def _judged(
    state: State,
    moved: Posterior,
    sums: Sums,
    pulled: Float[Array, "p q"],
    of_all: Moments,
    fixed: Fixed,
    diagonal: bool,
    rise: Array | None = None,
) -> State:
    """A sweep is accepted or refused, and then the features move.

    Args:
        pulled: Y'M. of_all: of what the units moved to.
        rise: of the bound since the last accepted sweep, where it is known better than from its sums.
    """
    dtype = fixed.crossed.dtype
    slack = 50 * float(jnp.finfo(dtype).eps)
    bound = sums.bound + jnp.sum(fixed.crossed * state.loadings.B)
    known = slack if rise is None else 4 * float(jnp.finfo(dtype).eps)
    rise = bound - state.bound if rise is None else rise
    lower = ~(rise >= -known * jnp.abs(bound))
    fallen = ~state.hurried & _fallen(state.here, state.share, sums.before, slack)
    refused = (state.hurried & lower) | jnp.any(fallen)
    small = rise < jnp.maximum(fixed.tol, fixed.relative * jnp.abs(bound + fixed.constant))

    linear = Loadings(fixed.crossed, pulled)
    step, _ = feature_steps(state.loadings, linear, sums)
    new = _Here(state.loadings, moved, linear, sums.rates, step, state.plain, of_all)
    here, share, bound = jax.tree.map(
        lambda old, new: jnp.where(refused, old, new),
        (state.here, jnp.where(fallen, state.share / 4, state.share), state.bound),
        (new, jnp.ones_like(state.share), bound),
    )
    onward = Loadings(here.loadings.B + share * here.step.B, here.loadings.C + share[:, None] * here.step.C)
    loadings, posterior, past = whitened(onward, here.posterior, here.moments, fixed.basis, here.past, diagonal)
    plain = Place(loadings, posterior.mean)

    run = jnp.where(refused | small, 0, state.run + 1)
    beyond = jnp.maximum(run - 1, 0).astype(dtype) / (run + 2).astype(dtype)
    further = jax.tree.map(lambda new, old: new + beyond * (new - old), plain, past)
    return State(
        further.loadings,
        posterior._replace(mean=further.mean),
        here,
        bound,
        share,
        plain,
        accepted=state.accepted + ~refused,
        run=run,
        hurried=run > 1,
        done=small & ~state.hurried & ~refused,
    )


def _fallen(here: _Here, share: Array, rates: Float[Array, " p"], slack: float) -> Array:
    """Features whose part of the bound is lower after their step than before."""
    linear = jnp.sum(here.linear.B * here.step.B, axis=0) + jnp.sum(here.linear.C * here.step.C, axis=1)
    return ~(share * linear - (rates - here.rates) >= -slack * (1 + jnp.abs(here.rates)))
