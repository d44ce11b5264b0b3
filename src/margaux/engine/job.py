"""One fit under way: a host loop over compiled chunks. Progress, stopping and saving happen between chunks only."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..algorithms.base import AbstractAlgorithm
from ..algorithms.recipes import describe
from ..algorithms.updates import Problem
from ..esteps import AbstractEStep
from ..numerics.arrays import is_key, on_host, taken
from ..numerics.naming import scalar_names
from ..numerics.precision import precision, settle
from ..problem.model import AbstractModel
from ..problem.penalty import AbstractPenalty, NoPenalty
from ..problem.space import as_space, boundary_flags
from ..problem.space import validate as validate_space
from . import checkpoints
from .callbacks import AbstractCallback, Checkpoint, Progress
from .chunks import FullBatch, may_be_padded, stacked
from .interrupts import Interrupts
from .loop import INIT, TRACED, Carry, settings_of, statistic_struct
from .minibatch import MiniBatch
from .outcome import RESULTS, Outcome
from .passes import Passes
from .rows import check_place, entries, row_bytes
from .settings import FitSettings
from .settling import has_settled
from .sharding import placed, units_mesh
from .share import Share, split, together
from .traces import joined, record
from .validate import (
    check_data,
    check_distinct,
    check_key,
    check_model,
    check_params,
    check_same,
    check_stored,
    check_types,
    whole,
)

if TYPE_CHECKING:
    from jaxtyping import Array


_STARTS = INIT - 3


class Job:
    """What is fixed in a fit, and the state that moves."""

    #: of several processes, this one's units
    share: Share | None = None

    def __init__(
        self, model: AbstractModel, data: PyTree, algorithm: AbstractAlgorithm, estep: AbstractEStep, asked: FitSettings
    ) -> None:
        """Raises: TypeError, ValueError: bad input, before anything is compiled."""
        check_types(model, algorithm, estep, asked.average)
        data, self.share = split(data)
        held = check_data(data)
        self.n = held if self.share is None else self.share.n
        check_params(asked.params)
        self.n_iter = whole("n_iter", asked.n_iter, 1)
        self.batch_size = None if asked.batch_size is None else whole("batch_size", asked.batch_size, 1)
        if self.batch_size is not None and self.batch_size > self.n:
            raise ValueError(f"batch_size {self.batch_size} exceeds the {self.n} units; pass at most {self.n}, or None for all")
        if self.batch_size == self.n:
            self.batch_size = None
        if self.batch_size is not None:
            check_stored(data)
        sampling = algorithm.sampling if asked.sampling is None else asked.sampling
        if sampling not in ("reshuffled", "uniform"):
            raise ValueError(f'sampling must be "reshuffled" or "uniform", got {sampling!r}')
        if asked.penalty is not None and not isinstance(asked.penalty, AbstractPenalty):
            raise TypeError(f"penalty must be a margaux penalty such as mx.L1(0.1), got {asked.penalty!r}")
        if not asked.spread >= 0:
            raise ValueError(f"spread must not be negative, got {asked.spread}")
        self.reshuffled = sampling == "reshuffled"
        self.dtype = asked.dtype
        self.key, self.seed = check_key(asked.key)
        self.devices = whole("devices", asked.devices, 1)
        if algorithm.all_units and self.batch_size is not None:
            raise ValueError(f"{type(algorithm).__name__} needs all units in every iteration: leave batch_size out")
        if self.devices > 1 and self.batch_size is not None:
            raise ValueError("devices > 1 works on full batches; drop batch_size")
        if self.devices > 1 and self.n % self.devices:
            raise ValueError(f"{self.n} units do not divide over {self.devices} devices; use a divisor of {self.n}")
        if self.devices > 1 and self.share is not None:
            raise ValueError("devices > 1 is of one process; each of several has one device: drop devices")
        self.mesh = self.share.mesh if self.share is not None else units_mesh(self.devices) if self.devices > 1 else None
        rows = check_place(asked.rows)
        if rows == "device" and any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(data)):
            rows = "host"
        self.place = "device" if self.batch_size is None else rows
        self.on_host = self.place != "device"
        as_floats = jax.tree.map(lambda leaf: np.asarray(leaf, self.dtype), asked.params)
        self.problem = Problem(model, as_space(asked.space, as_floats), asked.penalty or NoPenalty(), self.n)
        with precision(self.dtype):
            validate_space(self.problem.space, as_floats)
        if not isinstance(self.problem.penalty, NoPenalty):
            self.problem.penalty.value(as_floats)
        runs = asked.runs
        if runs is not None and not isinstance(runs, int):
            runs = list(runs)
            for r, other in enumerate(runs):
                check_same(as_floats, other, r)
                with precision(self.dtype):
                    validate_space(self.problem.space, jax.tree.map(lambda leaf: np.asarray(leaf, self.dtype), other))
            check_distinct(runs)
        self.starts = runs if isinstance(runs, list) else None
        #: as they were asked for; one run of its own has the key of the fit
        self.runs = None if runs is None else whole("runs", len(runs) if isinstance(runs, list) else runs, 1)
        self.spread = asked.spread
        self.algorithm, self.estep = algorithm, estep
        self.average = algorithm.average if asked.average is None else asked.average
        self.params0, self.raw_data = as_floats, data
        self.pauses: list[int] = []
        self.k, self.traces, self.timings, self.compiled = 0, [], {"compile": 0.0, "run": 0.0, "wait": 0.0}, False

    @property
    def held(self) -> int:
        """Units of this process."""
        return self.n if self.share is None else self.share.size

    # -- before the loop ------------------------------------------------------------------------

    def prepare(self) -> None:
        """Arrays on the device, the model checked, starting state and rows."""
        start = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, self.dtype)), self.params0)
        self.names = scalar_names(start) if sum(leaf.size for leaf in jax.tree.leaves(start)) <= TRACED else []
        self.problem = settle(self.problem, self.dtype)
        self.algorithm, self.estep, self.average = settle((self.algorithm, self.estep, self.average), self.dtype)
        mesh = self.mesh if self.share is None else None
        self.data = self.raw_data if self.on_host else placed(self.raw_data, self.dtype, mesh)
        with together(self.share is not None):
            check_model(self.problem, self.estep, self.algorithm, start, self.units(np.array([0]), first=True))
            if self.share is not None and not may_be_padded(self):
                raise TypeError("an algorithm, E-step or batch surrogate of your own cannot be spread over processes")
        if self.batch_size is None and self.share is None and self.devices == 1:
            self.algorithm = self.algorithm.chosen(self.problem, self.estep, start, self.units(np.array([0]), first=True))
        if self.share is None:
            self.estep = self.estep.prepared(self.problem, start, self.units)
        burn_in = float(self.average.burn_in)
        self.burn_in = int(burn_in * self.n_iter if burn_in < 1 else burn_in)
        self.settings = settings_of(self.parts, self.burn_in)
        self.keys = [jax.random.fold_in(self.key, r) for r in range(self.runs)] if self.runs else [self.key]
        params = self._starts(start)
        data = self.units(np.array([0])) if self.on_host else self.data
        unit = statistic_struct(self.settings, params[0], data)
        passes = self._passes()
        store, begun = passes.start(params, data, unit, self.place)
        states, averages = map(list, zip(*begun, strict=True))
        if self.algorithm.has_rows:
            store, totals = (passes.visit if self.algorithm.first_pass else passes.rest)(params, store, 0)
            states = [self.algorithm.refreshed(s, t) for s, t in zip(states, totals, strict=True)]
        carry = Carry(stacked(params), stacked(states), stacked(averages), ())
        self.chunks = (FullBatch if self.batch_size is None else MiniBatch)(self, carry, store)
        self.length = 32

    @property
    def parts(self) -> tuple[Problem, Any, Any, Any]:
        """What the settings are made of, the burn-in apart."""
        return self.problem, self.algorithm, self.estep, self.average

    def _passes(self) -> Passes:
        # Not kept: it refers to the job, and a job that ends is to go at once, with its rows.
        return Passes(self.settings, self.dtype, self.held, self.keys, self.units, row_bytes(self.raw_data), self.share)

    def units(self, ids: np.ndarray, first: bool = False, length: int | None = None) -> PyTree:
        """Data of some units as arrays of the fit's precision; zeros beyond the first `length` of the leading axis of the ids."""
        whole_data = not first and len(ids) == self.held and np.array_equal(ids, np.arange(self.held))

        def one(leaf: Array | np.ndarray) -> Any:
            kind = self.dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else None
            if not (first or whole_data or is_key(leaf)) and on_host(leaf):
                held = leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)
                return jax.device_put(entries(held, ids, kind, length))
            part = np.asarray(leaf[:1])[0] if first else leaf if whole_data else taken(leaf, ids)
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

    # -- the loop -------------------------------------------------------------------------------

    def run(self, hooks: list[AbstractCallback], stop: AbstractCallback | None, checkpoint: Checkpoint | None = None) -> RESULTS:
        """Chunks until n_iter, a stopping rule, a failure or an interrupt."""
        self.pauses = [hook.period for hook in [*hooks, *([stop] if stop else [])] if hook.period is not None]
        try:
            with Interrupts(self.share is not None) as self.interrupts:
                return self._run(hooks, stop, checkpoint)
        except KeyboardInterrupt:
            if self.share is None:
                return RESULTS.interrupted
            raise
        finally:
            self.chunks.close()

    def _run(self, hooks: list[AbstractCallback], stop: AbstractCallback | None, checkpoint: Checkpoint | None) -> RESULTS:
        if self.traces and stop is not None and stop(self._progress(self.traces[-1])):
            return RESULTS.stopped  # it was met when the checkpoint was saved
        while self.k < self.n_iter:
            began, before = time.perf_counter(), self.chunks.carry
            length, trace = self.chunks.run(self, self.asked_for())
            trace = jax.tree.map(np.asarray, trace)
            spent = self.largest_of_all(time.perf_counter() - began)
            if self.compiled:
                self.timings["run"] += spent - self.chunks.waited
                self.timings["wait"] += self.chunks.waited
            else:
                self.timings["compile"] += spent
            latest = {name: leaf[:length] for name, leaf in trace.items()}
            record(self.traces, latest)
            self.k += length
            self._pace(spent)
            failure = self._failure(latest)
            if failure in (RESULTS.diverged, RESULTS.undefined):
                kept = self.chunks.carry._replace(params=before.params, average=before.average)
                self.chunks.carry = kept
            if failure is not None:
                return failure
            self.refresh()
            seen = self._progress(latest)
            ending = self._ending(seen, hooks, stop)
            if checkpoint is not None:
                checkpoint(dataclasses.replace(seen, ends=ending is not None or self.k >= self.n_iter))
            if ending is not None:
                return ending
        return RESULTS.successful if stop is None else RESULTS.max_iterations

    def _ending(self, seen: Progress, hooks: list[AbstractCallback], stop: AbstractCallback | None) -> RESULTS | None:
        """How the fit is to end now, if it is: the same in all processes."""
        asked, met = [], False
        with together(self.share is not None):
            try:
                asked = [hook(seen) for hook in hooks]
                met = stop is not None and stop(seen)
            except KeyboardInterrupt:
                if self.share is None:
                    raise
                self.interrupts.asked = True
        endings = [None, RESULTS.halted, RESULTS.stopped, RESULTS.interrupted]
        return endings[int(self.largest_of_all(3 if self.interrupts.asked else 2 if met else 1 if any(asked) else 0))]

    def largest_of_all(self, value: float) -> float:
        """The largest of all processes: what they do next is the same everywhere."""
        return value if self.share is None else self.share.largest(value)

    def _pace(self, spent: float) -> None:
        """About half a second a chunk: progress is seen, and dispatch costs nothing. The first one compiles."""
        if not self.compiled:
            self.compiled = True
        elif spent < 0.25:
            self.length = min(4 * self.length, self.chunks.total)
        elif spent > 1.0:
            self.length = max(self.length // 2, 1)

    def asked_for(self, done: int = 0) -> int:
        """Iterations of the chunk after `done` more of them."""
        return min(self.length, self.chunks.total, self.n_iter - self.k - done, self._until_pause(done))

    def _until_pause(self, done: int = 0) -> int:
        """Iterations from then on before the next refresh, or the next call that a hook has asked for."""
        periods = [p for p in (self._period(), *self.pauses) if p is not None]
        return min((p - (self.k + done) % p for p in periods), default=self.n_iter)

    def _period(self) -> int | None:
        epochs = self.algorithm.refresh_epochs
        return None if epochs is None else epochs * self.chunks.period

    def refresh(self) -> None:
        """SVRG's anchor: statistics of every unit at the current parameters."""
        period = self._period()
        if period is None or self.k % period or self.k >= self.n_iter:
            return
        carry = self.chunks.carry
        store, totals = self._passes().visit(_apart(carry.params), self.chunks.store, self.k)
        states = [self.algorithm.refreshed(s, t) for s, t in zip(_apart(carry.state), totals, strict=True)]
        self.chunks.carry = carry._replace(state=stacked(states))
        self.chunks.keep(store)

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

    def _progress(self, latest: dict[str, np.ndarray]) -> Progress:
        means, traces = self.chunks.carry.average[1], [*self.traces]

        def params() -> np.ndarray:
            return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(means)], axis=1)

        trace = functools.partial(joined, traces)
        return Progress(self.k, self.n_iter, self.names, latest, self.save, params, trace, agreed=self.largest_of_all)

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

    def finish(self, result: RESULTS) -> Outcome:
        """The result, as NumPy arrays."""
        run_params, last = (jax.tree.map(np.asarray, tree) for tree in (self.chunks.carry.average[1], self.chunks.carry.params))
        shape = (len(self.keys), self.held)
        estep_rows = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(shape + leaf.shape[1:]), self.chunks.store.tree[0])

        def mean(tree):
            return jax.tree.map(lambda leaf: leaf.mean(axis=0), tree)

        params = mean(run_params)
        trace = joined(self.traces) if self.traces else {}
        if "log_marginal" in trace:
            trace = trace | {"log_marginal": trace["log_marginal"] * self.n}
        moved = trace.get("params", trace.get("norm"))
        settled = result is RESULTS.stopped
        if result is RESULTS.successful and moved is not None:
            settled = has_settled(moved, self.burn_in)
        if not result.failed and np.any(boundary_flags(self.problem.space, params)):
            result = RESULTS.boundary
        return Outcome(
            params,
            mean(last),
            run_params,
            trace,
            result,
            self.k,
            self.timings,
            describe(self.algorithm, self.estep, self.problem.model),
            self.dtype,
            self.seed,
            self.problem,
            self.estep,
            self.data,
            estep_rows,
            self.burn_in,
            self.algorithm,
            self.batch_size,
            settled,
            self.share,
            jax.tree.map(np.asarray, self.algorithm.left(self.chunks.carry.state)),
        )


def run_alone(
    model: AbstractModel, data: PyTree, algorithm: AbstractAlgorithm, estep: AbstractEStep, asked: FitSettings
) -> Outcome:
    """From start to end, with nobody watching."""
    with precision(asked.dtype):
        job = Job(model, data, algorithm, estep, asked)
        job.prepare()
        return job.finish(job.run([], None))


def _apart(tree: PyTree) -> list[PyTree]:
    """Of each run."""
    return [jax.tree.map(lambda leaf, r=r: leaf[r], tree) for r in range(len(jax.tree.leaves(tree)[0]))]
