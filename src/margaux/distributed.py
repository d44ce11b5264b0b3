"""One fit over several processes: each holds its own units, and one all-reduce an iteration joins them.

Every process runs the same script: `initialize()`, its share of the data by `shard`, and then the same call of `margaux.fit`.
All of them return the same fit. `margaux launch -n 4 script.py` starts local processes; on a cluster the scheduler does.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from types import TracebackType
from typing import Any

import jax
import numpy as np
import pandas as pd
import scipy
from jaxtyping import PyTree

from .engine.share import Shard, Share, everyones, together
from .engine.stored import Rows
from .tables.sparse_parquet import SparseParquet

#: what the schedulers that jax knows set in the environment of a process
SCHEDULERS = ("SLURM_STEP_NODELIST", "OMPI_MCA_orte_hnp_uri", "JOB_COMPLETION_INDEX", "TPU_WORKER_HOSTNAMES")


def initialize(
    coordinator_address: str | None = None, num_processes: int | None = None, process_id: int | None = None, **settings: Any
) -> None:
    """Join the other processes; before anything else that computes.

    A thin call of `jax.distributed.initialize`, which finds out the rest under SLURM, Open MPI, MPICH and Kubernetes. The
    environment variables JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID serve elsewhere, as `margaux launch`
    sets them. Without any of these, one process is all there is, and nothing is done.

    On Linux the process becomes one of batch work (SCHED_BATCH), whose threads do not take a core from each other when they
    wake: that of messages would from the one that sends them, and then wait for it in a loop. `MARGAUX_BATCH=off` leaves it.

    Args:
        coordinator_address: "host:port" of process 0. num_processes, process_id: how many there are, and which is this one.
        settings: more of `jax.distributed.initialize`, such as `heartbeat_timeout_seconds`: after so long without a sign of life
            from a process the others end.

    Raises:
        RuntimeError: jax has computed something already, or the others cannot be reached.
    """
    env = os.environ
    address = coordinator_address or env.get("JAX_COORDINATOR_ADDRESS")
    count = num_processes if num_processes is not None else _whole(env.get("JAX_NUM_PROCESSES"))
    index = process_id if process_id is not None else _whole(env.get("JAX_PROCESS_ID"))
    scheduled = any(name in env for name in SCHEDULERS)
    if count == 1 or (address is None and count is None and not scheduled):
        return
    _become_batch_work()
    settings.setdefault("heartbeat_timeout_seconds", 30)
    # It would swallow SIGTERM, and wait for a program that asks it.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(address, count, index, **settings)
    _leave_after_errors()
    if "MARGAUX_LAUNCHER" in env:
        _leave_with(int(env["MARGAUX_LAUNCHER"]))


def _become_batch_work() -> None:
    """Have threads that wake wait for the one that has the core.

    The answer to a message may be there before the thread that has sent it lets go of the connection. Gloo's thread then wakes on
    the same core, and asks for the connection again and again until the other has the core back: a fifth of the time of a fit.
    """
    if os.environ.get("MARGAUX_BATCH") == "off" or not hasattr(os, "SCHED_BATCH"):
        return
    # Another policy is somebody's choice; a sandbox may allow none.
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _leave_after_errors() -> None:
    """Have a process that an error ends leave the others at once.

    When a process of jax ends it waits for all others to end as well. They are in the middle of a sum with this one, and would
    wait for it in turn: five minutes.
    """
    show = sys.excepthook

    def leave(code: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        atexit.register(leave, 130 if issubclass(kind, KeyboardInterrupt) else 1)  # registered last, it is run first

    sys.excepthook = note


def _leave_with(launcher: int) -> None:
    """End this process soon after the one that started it, by `kill -9` say: it would be nobody's."""

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)


def shard(data: PyTree, *, local: bool = False) -> Any:
    """This process's units of the data, for a fit over all of them.

    Args:
        data: pytree of arrays, memmaps, arrays of zarr or HDF5, SciPy's sparse arrays, data frames and AnnData with all units on
            the leading axis, of which this process's slice alone is read, what lies on disk when it is needed; or with
            `local=True` the units that this process has read for itself, whatever their number: those of process 0 come first,
            then those of process 1, and so on. Of a `margaux.sparse_parquet`, at once, the cells of this process's row groups,
            and of other leaves the rows of the same cells.

    Raises:
        ValueError, TypeError: data that are none or of several lengths, or fewer units than processes.

    >>> import numpy as np, margaux as mx
    >>> mx.shard(np.arange(3.0))            # of one process: the data as they are
    array([0., 1., 2.])
    """
    count, index = jax.process_count(), jax.process_index()
    if count == 1:
        return data
    if local:
        with together(True):
            data = jax.tree.map(lambda leaf: leaf.read() if isinstance(leaf, SparseParquet) else leaf, data)
            size = _units(data)
        sizes = tuple(int(size) for size in everyones(np.asarray(size)))
        return Shard(data, Share(sizes, index))
    tables = [leaf for leaf in jax.tree.leaves(data) if isinstance(leaf, SparseParquet)]
    if tables:
        return _by_row_groups(data, *tables)
    share = Share.equal(_units(data))
    return Shard(jax.tree.map(lambda leaf: _part(leaf, share.first, share.first + share.size), data), share)


def _by_row_groups(data: PyTree, table: SparseParquet, *more: SparseParquet) -> Shard:
    """The cells of this process's row groups, and their rows of whatever else there is."""
    if more:
        raise TypeError("the data have several sparse Parquet tables, whose row groups may differ; pass one")
    counts, share = table.shared()
    others = [leaf for leaf in jax.tree.leaves(data) if leaf is not table]
    if others and _units(others) != share.n:
        told = f"the sparse Parquet table has {share.n} cells and what comes with it {_units(others)} rows"
        raise ValueError(f"{told}; they must agree")

    def own(leaf: Any) -> Any:
        return counts if leaf is table else _part(leaf, share.first, share.first + share.size)

    return Shard(jax.tree.map(own, data), share)


def _units(data: PyTree) -> int:
    """The length of every leaf."""
    leaves = jax.tree_util.tree_flatten_with_path(data)[0]
    if not leaves:
        raise ValueError("data are empty: pass a pytree of arrays or tables whose rows are units")
    sizes = {}
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path) or "data"
        if not getattr(leaf, "shape", ()):
            raise TypeError(f"{name} is a {type(leaf).__name__} without rows; pass arrays or tables whose rows are units")
        sizes[name] = int(leaf.shape[0])
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise ValueError(f"the data differ in their number of rows ({told}); every leaf needs one row a unit")
    return next(iter(sizes.values()))


def _part(leaf: Any, first: int, last: int) -> Any:
    """Some rows, of what lies on disk for later."""
    anndata: Any = sys.modules.get("anndata")
    if (anndata is not None and isinstance(leaf, anndata.AnnData)) or getattr(leaf, "chunks", None) is not None:
        return Rows(leaf, first, last)
    if isinstance(leaf, pd.DataFrame | pd.Series):
        return leaf.iloc[first:last]
    return (leaf.tocsr() if scipy.sparse.issparse(leaf) else leaf)[first:last]


def gathered(rows: Any) -> Any:
    """What each process has of its own units, such as scores, one below the other in every process, and in the order of the
    units. All processes ask together.

    Args:
        rows: an array, a data frame or a series, with a row a unit of this process.

    >>> import numpy as np, margaux as mx
    >>> mx.distributed.gathered(np.arange(2.0))            # of one process: as they are
    array([0., 1.])
    """
    count = jax.process_count()
    if count == 1:
        return rows
    share = Share((0,) * count, jax.process_index())
    if isinstance(rows, pd.DataFrame | pd.Series):
        parts: Any = share.told(rows)
        return pd.concat(parts)
    return share.joined(np.asarray(rows))
