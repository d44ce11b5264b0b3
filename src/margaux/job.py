"""One fit under way: a host loop over compiled chunks. Progress, stopping and saving happen between chunks only."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from . import storage
from .algorithms import describe
from .callbacks import AbstractCallback, Progress
from .data import CHUNK, CHUNK_BYTES, DeviceRows, HostRows, buffer_capacity, chunk_size, plan_chunk, row_bytes, visits
from .loop import INIT, Carry, Settings, Visits, batch_chunk, first_state, full_chunk, init_rows, statistic_struct, visit_all
from .naming import scalar_names, settle
from .penalty import AbstractPenalty, NoPenalty
from .result import RESULTS, Fit
from .sharding import placed, units_mesh
from .space import as_space, boundary_flags
from .space import validate as validate_space
from .updates import Problem
from .validate import check_data, check_distinct, check_key, check_model, check_params, check_same, check_types, whole

_PASS, _IDS, _STARTS = (INIT - i for i in range(1, 4))


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
        if rows not in ("device", "host"):
            raise ValueError(f'rows must be "device" or "host", got {rows!r}')
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
        self.on_host = rows == "host" or any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(data))
        if self.on_host and self.batch_size is None:
            self.on_host = False
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
        self.store: Any = None  # per-unit rows of a mini-batch fit; a full batch keeps them in the carry
        self.k, self.traces, self.timings = 0, [], {"compile": 0.0, "run": 0.0}

    # -- before the loop ------------------------------------------------------------------------

    def prepare(self) -> None:
        """Arrays on the device, the model checked, starting state and rows."""
        self.params0 = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, self.dtype)), self.params0)
        self.problem = settle(self.problem, self.dtype)
        self.algorithm, self.estep, self.average = settle((self.algorithm, self.estep, self.average), self.dtype)
        self.data = self.raw_data if self.on_host else placed(self.raw_data, self.dtype, self.mesh)
        check_model(self.problem, self.estep, self.algorithm, self.params0, self._units(np.array([0]), first=True))
        burn_in = float(self.average.burn_in)
        self.burn_in = int(burn_in * self.n_iter if burn_in < 1 else burn_in)
        self.settings = Settings(self.problem, self.algorithm, self.estep, self.average, _whole(self.burn_in))
        self.keys = [jax.random.fold_in(self.key, r) for r in range(self.runs)] if self.runs else [self.key]
        params = self._starts()
        estep_rows = self._initial_rows(params)
        states, averages, all_rows = self._initial_states(params, estep_rows)
        stack = (lambda trees: jax.tree.map(lambda *leaf: jnp.stack(leaf), *trees)) if self.runs else (lambda trees: trees[0])
        if self.batch_size is None:
            shape = (self.runs, self.n) if self.runs else (self.n,)
            rows = jax.tree.map(lambda leaf: leaf.reshape(shape + leaf.shape[1:]), all_rows)
            self.total = CHUNK
        else:
            self.store = self._stored(all_rows)
            self.capacity = buffer_capacity(all_rows, self.n, self.batch_size)
            rows = jax.tree.map(self._empty_buffer, all_rows)
            self.total = chunk_size(self.data, all_rows, self.n, self.batch_size, self.runs or 1, self.capacity, self.reshuffled)
        self.carry = Carry(stack(params), stack(states), stack(averages), rows)
        self.length = 32

    def _units(self, ids: np.ndarray, first: bool = False) -> PyTree:
        """Data of some units as arrays of the fit's precision."""
        whole_data = not first and len(ids) == self.n and np.array_equal(ids, np.arange(self.n))

        def one(leaf: Any) -> Any:
            part = np.asarray(leaf[:1])[0] if first else leaf if whole_data else leaf[ids]
            return jnp.asarray(part, self.dtype if jnp.issubdtype(part.dtype, jnp.floating) else None)

        return jax.tree.map(one, self.raw_data if first else self.data)

    def _starts(self) -> list[PyTree]:
        if self.starts is not None:
            return [jax.tree.map(lambda leaf: jnp.asarray(leaf, self.dtype), p) for p in self.starts]
        out, space = [self.params0], self.problem.space
        for r in range(1, self.runs or 1):
            flat, unravel = ravel_pytree(space.to_unconstrained(self.params0))
            moved = flat + self.spread * jax.random.normal(jax.random.fold_in(self.keys[r], _STARTS), flat.shape, flat.dtype)
            out.append(jax.tree.map(lambda leaf: leaf.astype(self.dtype), space.from_unconstrained(unravel(moved))))
        return out

    def _blocks(self) -> list[np.ndarray]:
        size = min(self.n, 4096, max(CHUNK_BYTES // row_bytes(self.raw_data), 1))
        return [np.minimum(np.arange(first, first + size), self.n - 1) for first in range(0, self.n, size)]

    def _initial_rows(self, params: list[PyTree]) -> PyTree:
        parts = []
        for key, p in zip(self.keys, params, strict=True):
            for ids in self._blocks():
                made = init_rows(self.settings, key, p, self._units(ids), ids)
                keep = len(np.unique(ids))
                parts.append(made if keep == len(ids) else jax.tree.map(lambda leaf, keep=keep: leaf[:keep], made))
        return jax.tree.map(lambda *leaf: jnp.concatenate(leaf), *parts) if len(parts) > 1 else parts[0]

    def _initial_states(self, params: list[PyTree], estep_rows: PyTree) -> tuple[list[PyTree], list[PyTree], PyTree]:
        data = self._units(np.array([0])) if self.on_host else self.data
        unit = statistic_struct(self.settings, params[0], data)
        states, averages = map(list, zip(*[first_state(self.settings, p, unit) for p in params], strict=True))
        if not self.algorithm.has_rows:
            return states, averages, (estep_rows, ())
        empty = np.zeros if self.on_host else jnp.zeros
        own = jax.tree.map(lambda s: empty((len(self.keys) * self.n,) + s.shape, s.dtype), unit)
        rows, totals = self._pass(params, (estep_rows, own), 0)
        return [self.algorithm.refreshed(s, t) for s, t in zip(states, totals, strict=True)], averages, rows

    def _pass(self, params: list[PyTree], rows: tuple[PyTree, PyTree], k: int) -> tuple[PyTree, list[PyTree]]:
        """Every unit visited at fixed parameters: rows (flat over runs and units; written in place), sums of statistics."""
        store = self._stored(rows)
        totals = []
        for r, (key, p) in enumerate(zip(self.keys, params, strict=True)):
            key, total = jax.random.fold_in(key, _PASS), None
            for ids in self._blocks():
                here = ids + r * self.n
                estep_rows = jax.tree.map(jnp.asarray, store.take(here)[0])
                visited, part = visit_all(self.settings, key, p, estep_rows, self._units(ids), ids, _whole(k))
                store = store.put(here, visited)
                total = part if total is None else jax.tree.map(jnp.add, total, part)
            totals.append(total)
        return store.tree, totals

    def _stored(self, rows: PyTree) -> HostRows | DeviceRows:
        if not self.on_host:
            return DeviceRows(rows)
        return HostRows(jax.tree.map(lambda leaf: leaf if isinstance(leaf, np.ndarray) else np.array(leaf), rows))

    def _empty_buffer(self, leaf: Any) -> Any:
        shape = (self.capacity + 1,) + leaf.shape[1:]
        return jnp.zeros(((self.runs,) + shape) if self.runs else shape, leaf.dtype)

    # -- the loop -------------------------------------------------------------------------------

    def run(self, hooks: list[AbstractCallback], stop: AbstractCallback | None) -> RESULTS:
        """Chunks until n_iter, a stopping rule, a failure or an interrupt."""
        try:
            while self.k < self.n_iter:
                began, before = time.perf_counter(), jax.tree.map(np.asarray, (self.carry.params, self.carry.average))
                length, trace = self._chunk()
                trace = jax.tree.map(np.asarray, trace)
                spent = time.perf_counter() - began
                self.timings["compile" if not self.traces else "run"] += spent
                self.traces.append({name: leaf[:length] for name, leaf in trace.items()})
                self.k += length
                self._pace(spent)
                failure = self._failure(self.traces[-1])
                if failure is RESULTS.diverged:
                    self.carry = self.carry._replace(params=before[0], average=before[1])
                if failure is not None:
                    return failure
                self._refresh()
                seen = self._progress()
                asked = [hook(seen) for hook in hooks]
                if stop is not None and stop(seen):
                    return RESULTS.stopped
                if any(asked):
                    return RESULTS.stopped
        except KeyboardInterrupt:
            return RESULTS.interrupted
        return RESULTS.successful if stop is None else RESULTS.max_iterations

    def _pace(self, spent: float) -> None:
        """About half a second a chunk: progress is seen, and dispatch costs nothing. The first one compiles."""
        if len(self.traces) == 1:
            return
        if spent < 0.25:
            self.length = min(4 * self.length, self.total)
        elif spent > 1.0:
            self.length = max(self.length // 2, 1)

    def _chunk(self) -> tuple[int, PyTree]:
        length = min(self.length, self.total, self.n_iter - self.k, self._until_refresh())
        first = _whole(self.k + 1)
        keys = jnp.stack(self.keys) if self.runs else self.keys[0]
        if self.batch_size is None:
            inputs = (self.settings, keys, self.data, first, _whole(length))
            self.carry, trace = full_chunk(inputs, self.carry, total=self.total, runs=self.runs, mesh=self.mesh)
            return length, trace
        return self._batch_chunk(length, first, keys)

    def _batch_chunk(self, length: int, first: Any, keys: Any) -> tuple[int, PyTree]:
        b, n, runs = self.batch_size, self.n, self.runs or 1
        assert b is not None
        ids = np.zeros((runs, self.total, b), np.int32)
        for r, key in enumerate(self.keys):
            ids[r, :length] = visits(jax.random.fold_in(key, _IDS), n, b, self.k + 1, length, self.reshuffled)
        length = min(plan_chunk(ids[r, :length], self.capacity)[0] for r in range(runs))
        slots = np.full((runs, self.total, b), self.capacity, np.int32)
        owners = np.full((runs, self.capacity), -1, np.int32)
        for r in range(runs):
            _, slots[r, :length], owners[r] = plan_chunk(ids[r, :length], self.capacity)
        offset = n * np.arange(runs)[:, None]
        inside = np.where(owners >= 0, owners + offset, 0)
        shape = (lambda a: a) if self.runs else (lambda a: a[0])
        held = self.store.take(shape(inside))
        buffer = jax.tree.map(lambda old, new: _fill(old, new, bool(self.runs)), self.carry.rows, held)
        times = (lambda a: np.moveaxis(a, 0, 1)) if self.runs else (lambda a: a[0])
        flat = ids + offset[:, :, None]
        rows = jax.tree.map(jnp.asarray, self.store.take(times(flat)))
        streamed = Visits(jnp.asarray(times(ids)), jnp.asarray(times(slots)), self._units(times(ids)), rows)
        inputs = (self.settings, keys, streamed, first, _whole(length))
        self.carry, (trace, rows) = batch_chunk(inputs, self.carry._replace(rows=buffer), total=self.total, runs=self.runs)
        outside = runs * n
        once = (slots == self.capacity) & (np.arange(self.total) < length)[None, :, None]
        self.store = self.store.put(times(np.where(once, flat, outside)), rows)
        held = jax.tree.map(lambda leaf: leaf[:, :-1] if self.runs else leaf[:-1], self.carry.rows)
        self.store = self.store.put(shape(np.where(owners >= 0, owners + offset, outside)), held)
        return length, trace

    def _until_refresh(self) -> int:
        period = self._period()
        return self.n_iter if period is None else period - self.k % period

    def _period(self) -> int | None:
        epochs = self.algorithm.refresh_epochs
        return None if epochs is None else epochs * max(self.n // (self.batch_size or self.n), 1)

    def _refresh(self) -> None:
        """SVRG's anchor: statistics of every unit at the current parameters."""
        period = self._period()
        if period is None or self.k % period or self.k >= self.n_iter:
            return
        unstack = lambda tree: [jax.tree.map(lambda leaf, r=r: leaf[r], tree) for r in range(self.runs)] if self.runs else [tree]  # noqa: E731
        full = self.store is None
        estep_rows, own = self.carry.rows if full else self.store.tree
        flat = (
            (lambda t: jax.tree.map(lambda leaf: leaf.reshape((-1,) + leaf.shape[2:]), t))
            if full and self.runs
            else (lambda t: t)
        )
        (estep_rows, own), totals = self._pass(unstack(self.carry.params), (flat(estep_rows), flat(own)), self.k)
        states = [self.algorithm.refreshed(s, t) for s, t in zip(unstack(self.carry.state), totals, strict=True)]
        state = jax.tree.map(lambda *leaf: jnp.stack(leaf), *states) if self.runs else states[0]
        self.carry = self.carry._replace(state=state)
        if full:
            back = jax.tree.map(lambda leaf, old: leaf.reshape(old.shape), (estep_rows, own), self.carry.rows)
            self.carry = self.carry._replace(rows=back)
        else:
            self.store = type(self.store)((estep_rows, own))

    def _failure(self, trace: dict[str, np.ndarray]) -> RESULTS | None:
        if not np.all(np.isfinite(trace["params"] if "params" in trace else trace["norm"])):
            return RESULTS.diverged
        recent = {name: np.asarray(value[-200:]).mean(axis=0) for name, value in trace.items()}
        if self.k >= 200 and np.any(recent.get("acceptance", 1.0) < 1e-3):
            return RESULTS.stuck
        if self.k >= 20 and np.any(recent.get("ess", np.inf) < 1.05):
            return RESULTS.ess_collapse
        return None

    def _progress(self) -> Progress:
        trace = {name: np.concatenate([part[name] for part in self.traces]) for name in self.traces[0]}
        if not self.runs:
            trace = {name: value[:, None] for name, value in trace.items()}
        means = self.carry.average[1]
        runs = self.runs or 1
        flat = np.concatenate([np.asarray(leaf).reshape(runs, -1) for leaf in jax.tree.leaves(means)], axis=1)
        return Progress(self.k, self.n_iter, scalar_names(self.params0), flat, trace, self.save)

    # -- saving and ending ----------------------------------------------------------------------

    def _state(self) -> PyTree:
        """Everything a later process needs to go on."""
        rows = self.carry.rows if self.store is None else self.store.tree
        return (self.carry.params, self.carry.state, self.carry.average, rows)

    def _signature(self) -> dict[str, Any]:
        key = np.asarray(jax.random.key_data(self.key)).tolist()
        return {"n": self.n, "batch_size": self.batch_size, "runs": self.runs, "dtype": str(self.dtype), "key": key,
                "reshuffled": self.reshuffled, "what": describe(self.algorithm, self.estep, self.problem.model),
                "burn_in": self.burn_in}  # fmt: skip

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        trace = {f"trace/{name}": np.concatenate([part[name] for part in self.traces]) for name in self.traces[0]}
        header = {"kind": "checkpoint", "k": self.k, "timings": self.timings, "signature": self._signature()}
        storage.write(path, header, storage.flatten("state", self._state()) | trace)

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint of the same fit."""
        header, arrays = storage.read(path)
        if header.get("kind") != "checkpoint":
            raise ValueError(f"{path} is a {header.get('kind')}, not a checkpoint; pass another path")
        mine, theirs = self._signature(), header["signature"]
        for name in mine:
            if mine[name] != theirs.get(name):
                raise ValueError(
                    f"the checkpoint {path} belongs to another fit: its {name} is {theirs.get(name)}, here {mine[name]}; "
                    "delete it or pass another path"
                )
        params, state, average, rows = storage.unflatten("state", self._state(), arrays)
        to_device = lambda tree: jax.tree.map(jnp.asarray, tree)  # noqa: E731
        if self.store is None:
            self.carry = Carry(*to_device((params, state, average, rows)))
        else:
            self.store = type(self.store)(rows if self.on_host else to_device(rows))
            self.carry = Carry(*to_device((params, state, average)), rows=self.carry.rows)
        self.k, self.timings = header["k"], header["timings"]
        self.traces = [{name[6:]: value for name, value in arrays.items() if name.startswith("trace/")}]

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
        trace = self._progress().trace if self.traces else {}
        if "log_marginal" in trace:
            trace = trace | {"log_marginal": trace["log_marginal"] * self.n}
        if not result.failed and np.any(boundary_flags(self.problem.space, params)):
            result = RESULTS.boundary
        return Fit(
            params, mean(last), run_params, trace, result, self.k, self.timings,
            describe(self.algorithm, self.estep, self.problem.model), self.dtype, self.seed, self.problem, self.estep,
            self.data, estep_rows, self.burn_in, self.algorithm,
        )  # fmt: skip


def _whole(number: int) -> Any:
    """An int as an array, for which jnp.asarray would compile a program."""
    return jax.device_put(np.asarray(number, np.int32))


def _fill(old: Any, new: Any, runs: bool) -> Any:
    """A buffer with its slots written, the spare one kept."""
    return old.at[:, :-1].set(new) if runs else old.at[:-1].set(new)
