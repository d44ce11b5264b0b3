"""One fit under way: a host loop over compiled chunks. Progress, stopping and saving happen between chunks only."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from . import checkpoints
from .algorithms import describe
from .callbacks import AbstractCallback, Checkpoint, Progress
from .data import CHUNK, as_array, buffer_capacity, chunk_size, plan_chunk, visits
from .loop import INIT, TRACED, Carry, Settings, Visits, batch_chunk, first_state, full_chunk, statistic_struct
from .naming import scalar_names, settle
from .passes import Passes
from .penalty import AbstractPenalty, NoPenalty
from .result import RESULTS, Fit
from .rows import DeviceRows, check_place, row_bytes
from .settling import has_settled
from .sharding import placed, units_mesh
from .space import as_space, boundary_flags
from .space import validate as validate_space
from .updates import Problem
from .validate import check_data, check_distinct, check_key, check_model, check_params, check_same, check_types, whole

_IDS, _STARTS = INIT - 2, INIT - 3


class Job:
    """What is fixed in a fit, and the state that moves."""

    def __init__(
        self, model, data, algorithm, estep, key, params, n_iter, batch_size, sampling, space, penalty, average, runs,
        spread, devices, rows, dtype,
    ) -> None:  # fmt: skip
        check_types(model, algorithm, estep, average)
        self.n = check_data(data)
        check_params(params)
        self.n_iter = whole("n_iter", n_iter, 1)
        self.batch_size = None if batch_size is None else whole("batch_size", batch_size, 1)
        if self.batch_size is not None and self.batch_size > self.n:
            raise ValueError(f"batch_size {self.batch_size} exceeds the {self.n} units; pass at most {self.n}, or None for all")
        if self.batch_size == self.n:
            self.batch_size = None
        sampling = algorithm.sampling if sampling is None else sampling
        if sampling not in ("reshuffled", "uniform"):
            raise ValueError(f'sampling must be "reshuffled" or "uniform", got {sampling!r}')
        if penalty is not None and not isinstance(penalty, AbstractPenalty):
            raise TypeError(f"penalty must be a margaux penalty such as mx.L1(0.1), got {penalty!r}")
        if not spread >= 0:
            raise ValueError(f"spread must not be negative, got {spread}")
        self.reshuffled = sampling == "reshuffled"
        self.dtype = dtype
        self.key, self.seed = check_key(key)
        self.devices = whole("devices", devices, 1)
        if self.devices > 1 and self.batch_size is not None:
            raise ValueError("devices > 1 works on full batches; drop batch_size")
        if self.devices > 1 and self.n % self.devices:
            raise ValueError(f"{self.n} units do not divide over {self.devices} devices; use a divisor of {self.n}")
        self.mesh = units_mesh(self.devices) if self.devices > 1 else None
        rows = check_place(rows)
        if rows == "device" and any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(data)):
            rows = "host"
        self.place = "device" if self.batch_size is None else rows
        self.on_host = self.place != "device"
        as_floats = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), params)
        self.problem = Problem(model, as_space(space, as_floats), penalty or NoPenalty(), self.n)
        validate_space(self.problem.space, as_floats)
        if not isinstance(self.problem.penalty, NoPenalty):
            self.problem.penalty.value(as_floats)
        if runs is not None and not isinstance(runs, int):
            runs = list(runs)
            for r, other in enumerate(runs):
                check_same(as_floats, other, r)
                validate_space(self.problem.space, jax.tree.map(lambda leaf: np.asarray(leaf, dtype), other))
            check_distinct(runs)
        self.starts = runs if isinstance(runs, list) else None
        self.runs = None if runs is None else whole("runs", len(runs) if isinstance(runs, list) else runs, 1)
        self.spread = spread
        self.algorithm, self.estep = algorithm, estep
        self.average = algorithm.average if average is None else average
        self.params0, self.raw_data = as_floats, data
        self.pauses: list[int] = []
        self.store: Any = None  # per-unit rows of a mini-batch fit; a full batch keeps them in the carry
        self.k, self.traces, self.timings, self.compiled = 0, [], {"compile": 0.0, "run": 0.0}, False

    # -- before the loop ------------------------------------------------------------------------

    def prepare(self) -> None:
        """Arrays on the device, the model checked, starting state and rows."""
        start = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, self.dtype)), self.params0)
        self.names = scalar_names(start) if sum(leaf.size for leaf in jax.tree.leaves(start)) <= TRACED else []
        self.problem = settle(self.problem, self.dtype)
        self.algorithm, self.estep, self.average = settle((self.algorithm, self.estep, self.average), self.dtype)
        self.data = self.raw_data if self.on_host else placed(self.raw_data, self.dtype, self.mesh)
        check_model(self.problem, self.estep, self.algorithm, start, self._units(np.array([0]), first=True))
        burn_in = float(self.average.burn_in)
        self.burn_in = int(burn_in * self.n_iter if burn_in < 1 else burn_in)
        self.settings = Settings(*self.parts, as_array(self.burn_in))
        self.keys = [jax.random.fold_in(self.key, r) for r in range(self.runs)] if self.runs else [self.key]
        params = self._starts(start)
        data = self._units(np.array([0])) if self.on_host else self.data
        unit = statistic_struct(self.settings, params[0], data)
        passes = self._passes()
        store = passes.start(params, data, unit if self.algorithm.has_rows else (), self.place)
        states, averages = map(list, zip(*[first_state(self.settings, p, unit) for p in params], strict=True))
        if self.algorithm.has_rows:
            store, totals = (passes.visit if self.algorithm.first_pass else passes.rest)(params, store, 0)
            states = [self.algorithm.refreshed(s, t) for s, t in zip(states, totals, strict=True)]
        stack = (lambda trees: jax.tree.map(lambda *leaf: jnp.stack(leaf), *trees)) if self.runs else (lambda trees: trees[0])
        if self.batch_size is None:
            shape = (self.runs, self.n) if self.runs else (self.n,)
            rows = jax.tree.map(lambda leaf: leaf.reshape(shape + leaf.shape[1:]), store.tree)
            self.total = CHUNK
        else:
            self.store, b = store, self.batch_size
            self.visit_keys = jnp.stack([jax.random.fold_in(key, _IDS) for key in self.keys])
            self.capacity = buffer_capacity(store.tree, self.n, b)
            rows = jax.tree.map(self._empty_buffer, store.tree) if self.capacity else ()
            self.total = chunk_size(self.data, store.tree, self.n, b, self.runs or 1, self.capacity, self.reshuffled)
        self.carry = Carry(stack(params), stack(states), stack(averages), rows)
        self.length = 32

    @property
    def parts(self) -> tuple[Problem, Any, Any, Any]:
        """What the settings are made of, the burn-in apart."""
        return self.problem, self.algorithm, self.estep, self.average

    def _passes(self) -> Passes:
        # Not kept: it refers to the job, and a job that ends is to go at once, with its rows.
        return Passes(self.settings, self.keys, self._units, row_bytes(self.raw_data))

    def _units(self, ids: np.ndarray, first: bool = False) -> PyTree:
        """Data of some units as arrays of the fit's precision."""
        whole_data = not first and len(ids) == self.n and np.array_equal(ids, np.arange(self.n))

        def one(leaf: Any) -> Any:
            part = np.asarray(leaf[:1])[0] if first else leaf if whole_data else leaf[ids]
            kind = self.dtype if jnp.issubdtype(part.dtype, jnp.floating) else None
            # What NumPy holds goes to the device as it is: jnp.asarray would copy it twice.
            return jax.device_put(np.asarray(part, kind)) if isinstance(part, np.ndarray) else jnp.asarray(part, kind)

        return jax.tree.map(one, self.raw_data if first else self.data)

    def _starts(self, start: PyTree) -> list[PyTree]:
        if self.starts is not None:
            return [jax.tree.map(lambda leaf: jnp.asarray(leaf, self.dtype), p) for p in self.starts]
        out, space = [start], self.problem.space
        for r in range(1, self.runs or 1):
            flat, unravel = ravel_pytree(space.to_unconstrained(start))
            moved = flat + self.spread * jax.random.normal(jax.random.fold_in(self.keys[r], _STARTS), flat.shape, flat.dtype)
            out.append(jax.tree.map(lambda leaf: leaf.astype(self.dtype), space.from_unconstrained(unravel(moved))))
        return out

    def _empty_buffer(self, leaf: Any) -> Any:
        shape = (self.capacity + 1,) + leaf.shape[1:]
        return jnp.zeros(((self.runs,) + shape) if self.runs else shape, leaf.dtype)

    # -- the loop -------------------------------------------------------------------------------

    def run(self, hooks: list[AbstractCallback], stop: AbstractCallback | None, checkpoint: Checkpoint | None = None) -> RESULTS:
        """Chunks until n_iter, a stopping rule, a failure or an interrupt."""
        self.pauses = [hook.period for hook in [*hooks, *([stop] if stop else [])] if hook.period is not None]
        try:
            if self.traces and stop is not None and stop(self._progress(self.traces[-1])):
                return RESULTS.stopped  # it was met when the checkpoint was saved
            while self.k < self.n_iter:
                began, before = time.perf_counter(), (self.carry.params, self.carry.average)
                length, trace = self._chunk()
                trace = jax.tree.map(np.asarray, trace)
                spent = time.perf_counter() - began
                self.timings["run" if self.compiled else "compile"] += spent
                latest = {name: leaf[:length] for name, leaf in trace.items()}
                self._record(latest)
                self.k += length
                self._pace(spent)
                failure = self._failure(latest)
                if failure in (RESULTS.diverged, RESULTS.undefined):
                    self.carry = self.carry._replace(params=before[0], average=before[1])
                if failure is not None:
                    return failure
                self.refresh()
                seen = self._progress(latest)
                asked = [hook(seen) for hook in hooks]
                met = stop is not None and stop(seen)
                ending = RESULTS.stopped if met else RESULTS.halted if any(asked) else None
                if checkpoint is not None:
                    checkpoint(dataclasses.replace(seen, ends=ending is not None or self.k >= self.n_iter))
                if ending is not None:
                    return ending
        except KeyboardInterrupt:
            return RESULTS.interrupted
        return RESULTS.successful if stop is None else RESULTS.max_iterations

    def _pace(self, spent: float) -> None:
        """About half a second a chunk: progress is seen, and dispatch costs nothing. The first one compiles."""
        if not self.compiled:
            self.compiled = True
        elif spent < 0.25:
            self.length = min(4 * self.length, self.total)
        elif spent > 1.0:
            self.length = max(self.length // 2, 1)

    def _record(self, latest: dict[str, np.ndarray]) -> None:
        """Traces of chunks, the shorter joined as they come: a few long ones remain, and each figure is copied few times."""
        self.traces.append(latest)
        length = lambda part: len(next(iter(part.values())))  # noqa: E731
        while len(self.traces) > 1 and length(self.traces[-2]) <= length(self.traces[-1]):
            last, before = self.traces.pop(), self.traces.pop()
            self.traces.append({name: np.concatenate([before[name], last[name]]) for name in last})

    def _chunk(self) -> tuple[int, PyTree]:
        length = min(self.length, self.total, self.n_iter - self.k, self._until_pause())
        first = as_array(self.k + 1)
        keys = jnp.stack(self.keys) if self.runs else self.keys[0]
        kept, carry = (self.carry.params, self.carry.average), self.carry._replace(params=None, average=None)
        if self.batch_size is None:
            inputs = (self.settings, keys, self.data, first, as_array(length), kept)
            self.carry, trace = full_chunk(inputs, carry, total=self.total, runs=self.runs, mesh=self.mesh)
            return length, trace
        return self._batch_chunk(length, first, keys, kept, carry)

    def _batch_chunk(self, length: int, first: Any, keys: Any, kept: tuple, carry: Carry) -> tuple[int, PyTree]:
        b, n, runs = self.batch_size, self.n, self.runs or 1
        assert b is not None
        ids = np.zeros((runs, self.total, b), np.int32)
        ids[:, :length] = visits(self.visit_keys, n, b, self.k + 1, length, self.total, self.reshuffled)
        planned = length
        plans = [plan_chunk(ids[r, :length], self.capacity) for r in range(runs)]
        length = min(plan[0] for plan in plans)
        if length < planned:
            plans = [plan_chunk(ids[r, :length], self.capacity) for r in range(runs)]
        slots = np.full((runs, self.total, b), self.capacity, np.int32)
        slots[:, :length] = [plan[1] for plan in plans]
        owners = np.stack([plan[2] for plan in plans])
        offset = n * np.arange(runs)[:, None]
        inside = np.where(owners >= 0, owners + offset, 0)
        shape = (lambda a: a) if self.runs else (lambda a: a[0])
        if self.capacity:
            held = self.store.take(shape(inside))
            carry = carry._replace(rows=jax.tree.map(lambda old, new: _fill(old, new, bool(self.runs)), carry.rows, held))
        times = (lambda a: np.moveaxis(a, 0, 1)) if self.runs else (lambda a: a[0])
        flat = ids + offset[:, :, None]
        rows = self.store.take(times(flat))
        streamed = Visits(jnp.asarray(times(ids)), jnp.asarray(times(slots)), self._units(times(ids)), rows)
        inputs = (self.settings, keys, streamed, first, as_array(length), kept)
        self.carry, (trace, rows) = batch_chunk(inputs, carry, total=self.total, runs=self.runs)
        outside = runs * n
        once = (slots == self.capacity) & (np.arange(self.total) < length)[None, :, None]
        self.store = self.store.put(times(np.where(once, flat, outside)), rows)
        if self.capacity:
            held = jax.tree.map(lambda leaf: leaf[:, :-1] if self.runs else leaf[:-1], self.carry.rows)
            self.store = self.store.put(shape(np.where(owners >= 0, owners + offset, outside)), held)
        return length, trace

    def _until_pause(self) -> int:
        """Iterations before the next refresh, or the next call that a hook has asked for."""
        periods = [p for p in (self._period(), *self.pauses) if p is not None]
        return min((p - self.k % p for p in periods), default=self.n_iter)

    def _period(self) -> int | None:
        epochs = self.algorithm.refresh_epochs
        return None if epochs is None else epochs * max(self.n // (self.batch_size or self.n), 1)

    def refresh(self) -> None:
        """SVRG's anchor: statistics of every unit at the current parameters."""
        period = self._period()
        if period is None or self.k % period or self.k >= self.n_iter:
            return
        unstack = lambda tree: [jax.tree.map(lambda leaf, r=r: leaf[r], tree) for r in range(self.runs)] if self.runs else [tree]  # noqa: E731
        full = self.store is None
        flat = (lambda leaf: leaf.reshape((-1,) + leaf.shape[2:])) if self.runs else (lambda leaf: leaf)
        store = DeviceRows(jax.tree.map(flat, self.carry.rows)) if full else self.store
        store, totals = self._passes().visit(unstack(self.carry.params), store, self.k)
        states = [self.algorithm.refreshed(s, t) for s, t in zip(unstack(self.carry.state), totals, strict=True)]
        state = jax.tree.map(lambda *leaf: jnp.stack(leaf), *states) if self.runs else states[0]
        self.carry = self.carry._replace(state=state)
        if full:
            back = jax.tree.map(lambda leaf, old: leaf.reshape(old.shape), store.tree, self.carry.rows)
            self.carry = self.carry._replace(rows=back)
        else:
            self.store = store

    def _failure(self, trace: dict[str, np.ndarray]) -> RESULTS | None:
        if np.any(np.isnan(trace.get("log_marginal", 0.0))):
            return RESULTS.undefined
        if not np.all(np.isfinite(trace["params"] if "params" in trace else trace["norm"])):
            return RESULTS.diverged
        recent = {name: np.asarray(value[-200:]).mean(axis=0) for name, value in trace.items()}
        if self.k >= 200 and np.any(recent.get("acceptance", 1.0) < 1e-3):
            return RESULTS.stuck
        if self.k >= 20 and np.any(recent.get("ess", np.inf) < 1.05):
            return RESULTS.ess_collapse
        return None

    def _trace(self, parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """By name (iterations, runs, ...)."""
        trace = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return trace if self.runs else {name: value[:, None] for name, value in trace.items()}

    def _progress(self, latest: dict[str, np.ndarray]) -> Progress:
        means, runs, traces = self.carry.average[1], self.runs or 1, [*self.traces]

        def params() -> np.ndarray:
            return np.concatenate([np.asarray(leaf).reshape(runs, -1) for leaf in jax.tree.leaves(means)], axis=1)

        return Progress(self.k, self.n_iter, self.names, self._trace([latest]), self.save, params, lambda: self._trace(traces))

    # -- saving and ending ----------------------------------------------------------------------

    @functools.cached_property
    def signature(self) -> dict[str, str]:
        """What tells this fit from others; worked out when it is first saved or continued."""
        return checkpoints.signature(self)

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        checkpoints.save(self, path)

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint of the same fit."""
        checkpoints.restore(self, path)

    def finish(self, result: RESULTS) -> Fit:
        """The result, as NumPy arrays."""
        runs_first = lambda tree: jax.tree.map(lambda leaf: np.asarray(leaf) if self.runs else np.asarray(leaf)[None], tree)  # noqa: E731
        run_params, last = runs_first(self.carry.average[1]), runs_first(self.carry.params)
        rows = self.carry.rows if self.store is None else self.store.tree
        # Full-batch rows are ([runs,] n, ...), stored ones (runs n, ...): both become (runs, n, ...).
        axes = 2 if self.runs and self.store is None else 1
        shape = (self.runs or 1, self.n)
        estep_rows = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(shape + leaf.shape[axes:]), rows[0])
        mean = lambda tree: jax.tree.map(lambda leaf: leaf.mean(axis=0), tree)  # noqa: E731
        params = mean(run_params)
        trace = self._trace(self.traces) if self.traces else {}
        if "log_marginal" in trace:
            trace = trace | {"log_marginal": trace["log_marginal"] * self.n}
        moved = trace.get("params", trace.get("norm"))
        settled = result is RESULTS.stopped
        if result is RESULTS.successful and moved is not None:
            settled = has_settled(moved, self.burn_in)
        if not result.failed and np.any(boundary_flags(self.problem.space, params)):
            result = RESULTS.boundary
        return Fit(
            params, mean(last), run_params, trace, result, self.k, self.timings,
            describe(self.algorithm, self.estep, self.problem.model), self.dtype, self.seed, self.problem, self.estep,
            self.data, estep_rows, self.burn_in, self.algorithm, settled=settled, batch_size=self.batch_size,
        )  # fmt: skip


def _fill(old: Any, new: Any, runs: bool) -> Any:
    """A buffer with its slots written, the spare one kept."""
    return old.at[:, :-1].set(new) if runs else old.at[:-1].set(new)
