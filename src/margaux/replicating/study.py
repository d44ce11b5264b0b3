"""The one way in: `replicate`."""

from __future__ import annotations

import contextlib
import inspect
import operator
import pickle
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..engine.progress import Line
from . import engine
from .keeping import Folder
from .replicates import ReplicateError, Replicates
from .work import Outcome, Work

#: seconds before there is a line of progress, and failures named in a sentence
DELAY, NAMED = 2.0, 10


def replicate(
    function: Callable[[int, np.random.Generator], Any],
    n: int,
    *,
    backend: Literal["loky", "threading", "sequential", "dask", "ray"] = "loky",
    n_jobs: int | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    throw: bool = False,
) -> Replicates:
    r"""Call `function(index, rng)` for index = 0, ..., n - 1, side by side: a bootstrap, a simulation study, cross-validation.

    `rng` is NumPy's generator of `SeedSequence(seed, spawn_key=(index,))`: a replicate is the same whatever the backend, the
    order and the number of workers. It may return anything that can be pickled; of numbers, and dicts, Series and arrays of
    them, there is a table. One that raises is recorded, and the others go on. When a worker dies, the replicates that were under
    way are run again one at a time, and one whose worker dies again is recorded; dask replaces its workers itself, and one
    replicate that kills each of them can keep it busy for ever. Ctrl-C returns what is done. Functions of `__main__`, lambdas and
    closures work everywhere; what they change outside themselves is lost in other processes.

    Args:
        function: of an index and a generator. For a fit inside it pass `progress=False` there. n: how many.
        backend: joblib's: "loky", processes of this machine, with one thread each; "threading"; "sequential", one after the other
            in this process; "dask", the workers of the `dask.distributed.Client` that is there; "ray". A pool of one worker is
            this process itself. Compiled programs are shared by the cache folder.
        n_jobs: workers, -1 for as many as there are cores or as the cluster has, -2 for one fewer; by default -1, and 1 inside
            another replicate. seed: not negative.
        checkpoint: a folder to which each result is written as it comes. The same call then runs only what is missing or
            failed, and a larger `n` extends the study. It is refused where the seed, the function's name, its code or the values
            that it reads are others; objects such as estimators count by their class alone. Results are pickled: use folders
            that you trust.
        progress: a line of it after two seconds. throw: raise at the end where replicates failed; otherwise a warning tells.

    Raises:
        TypeError, ValueError, ImportError: bad input, before anything runs. ReplicateError: see `throw`; what is done is its
            `.replicates`.

    >>> import numpy as np, margaux as mx
    >>> y = np.random.default_rng(0).exponential(size=200)
    >>> def median(index, rng):
    ...     return {"median": np.median(rng.choice(y, len(y)))}
    >>> again = mx.replicate(median, 100, backend="sequential")
    >>> again.summary().round(2)
              n  mean    sd  lower  upper
    median  100   0.8  0.07   0.68   0.93
    """
    n, seed = _whole(n, "n", 1), _whole(seed, "seed", 0)
    if n_jobs is not None and _whole(n_jobs, "n_jobs", None) == 0:
        raise ValueError("n_jobs must be a number of workers, or -1 for all cores, got 0")
    _check(function)
    engine.check(backend)
    folder = None if checkpoint is None else Folder(checkpoint, function, seed)
    found = {} if folder is None else folder.read(n)
    errors: dict[int, str] = {}
    left, interrupted = [index for index in range(n) if index not in found], False
    try:
        with _showing(n if progress else None) as show:
            for one in _outcomes(function, seed, left, backend, n_jobs):
                if one.pickled is not None:
                    if folder is not None:
                        folder.write(one.index, one.pickled)
                    one = _unpacked(one, found)
                if one.error:
                    errors[one.index] = one.error
                show(len(found) + len(errors), f"{len(errors)} failed" if errors else "")
    except KeyboardInterrupt:
        interrupted = True
        if throw:
            raise
    missing = tuple(index for index in left if index not in found and index not in errors)
    out = Replicates([found.get(index) for index in range(n)], dict(sorted(errors.items())), seed, missing)
    if interrupted:
        kept = "" if folder is None else f"; the same call goes on from {folder.path}"
        warnings.warn(f"interrupted: {len(missing)} of {n} replicates have not run{kept}", stacklevel=2)
    if errors:
        told = _told(out)
        if throw:
            raise ReplicateError(out, told)
        warnings.warn(told, RuntimeWarning, stacklevel=2)
    return out


def _outcomes(function: Any, seed: int, left: list[int], backend: str, n_jobs: int | None) -> Generator[Outcome, None, None]:
    if not left:
        return
    jobs = engine.workers(backend, n_jobs, len(left))
    shipped = engine.BACKENDS[backend][0] and (jobs > 1 or backend != "loky")
    with contextlib.closing(engine.outcomes(Work.of(function, seed, shipped), left, backend, jobs)) as found:
        yield from found


def _unpacked(one: Outcome, found: dict[int, Any]) -> Outcome:
    """Take a result up, or tell why it cannot be."""
    assert one.pickled is not None
    try:
        found[one.index] = pickle.loads(one.pickled)
    except Exception as error:
        return Outcome(one.index, None, f"its result cannot be read here ({type(error).__name__}: {error})")
    return one


def _told(out: Replicates) -> str:
    failed = [*out.errors]
    listed = ", ".join(map(str, failed[:NAMED])) + (" and more" if len(failed) > NAMED else "")
    last = out.errors[failed[0]].strip().splitlines()[-1]
    return f"{len(failed)} of {len(out)} replicates failed: {listed}; the first of them: {last}; see .errors"


@contextlib.contextmanager
def _showing(total: int | None) -> Iterator[Callable[[int, str], None]]:
    """What shows how far it is, in a line of progress once that takes long; None for nothing."""
    begun, lines = time.monotonic(), []

    def show(done: int, figures: str) -> None:
        if total is None or time.monotonic() - begun < DELAY:
            return
        if not lines:
            lines.append(Line("replicates", total))
        lines[0].update(done, figures)

    try:
        yield show
    finally:
        for line in lines:
            line.close()


def _whole(value: Any, name: str, least: int | None) -> int:
    wanted = {0: "an integer that is not negative", 1: "a positive integer", None: "an integer"}[least]
    try:
        whole = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be {wanted}, got {value!r}") from None
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be {wanted}, got {value!r}")
    if least is not None and whole < least:
        raise ValueError(f"{name} must be {wanted}, got {whole}")
    return whole


def _check(function: Any) -> None:
    """Raises: TypeError: no function of an index and a generator."""
    if not callable(function):
        raise TypeError(f"replicate calls function(index, rng), got {function!r}, which is no function")
    try:
        taken = inspect.signature(function)
    except (TypeError, ValueError):  # some of C have none
        return
    try:
        taken.bind(0, None)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise TypeError(f"replicate calls {name}(index, rng), and {name}{taken} does not take that: {error}") from None
