"""Replicates on joblib's backends: which there are, results as they come, and workers that die."""

from __future__ import annotations

import contextlib
import itertools
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from typing import Any

from .work import Outcome, Work, outcome

#: each with whether its workers are other processes, and the package that it needs
BACKENDS: dict[str, tuple[bool, str | None]] = {
    "loky": (True, None),
    "threading": (False, None),
    "sequential": (False, None),
    "dask": (True, "distributed"),
    "ray": (True, "ray"),
}
#: what the backends raise when a worker dies, by name: their packages need not be there
DEATHS = {"KilledWorker", "WorkerCrashedError", "RayActorError", "ActorDiedError", "OutOfMemoryError"}
#: seconds to wait for new workers
PATIENCE = 20.0
DIED = (
    "its worker process died twice, the second time with no other replicate beside it: killed for its memory perhaps, or by a "
    "crash of compiled code; it is not tried again"
)


def check(backend: str) -> None:
    """Raises: ValueError, ImportError: a backend that is unknown, not installed, or without a cluster."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    package = BACKENDS[backend][1]
    if package is not None and find_spec(package) is None:
        raise ImportError(f"backend={backend!r} needs the package {package}: pip install 'margaux[{backend}]'")
    if backend == "dask":
        import distributed  # type: ignore[reportMissingImports]

        try:
            distributed.get_client()
        except ValueError as error:
            raise ValueError(
                "backend='dask' sends replicates to the dask client that is there, and there is none: call "
                "dask.distributed.Client() first, with the address of a cluster if it is not to be this machine"
            ) from error
    if backend == "ray":
        from ray.util.joblib import register_ray  # type: ignore[reportMissingImports]

        register_ray()


def workers(backend: str, n_jobs: int | None, left: int) -> int:
    """How many there are to be: by default all cores, or one within another parallel call; no more than there is left to do.

    Raises:
        ValueError: a cluster of one core.
    """
    import joblib
    from joblib.parallel import get_active_backend

    if n_jobs is None:
        around: Any = get_active_backend()[0]
        n_jobs = 1 if backend in ("loky", "threading") and around.nesting_level else -1
    if backend == "dask":
        _wait(backend, 2)
    with joblib.parallel_config(backend=backend):
        most = joblib.effective_n_jobs(n_jobs)
    if backend == "dask" and most < 2:
        raise ValueError("the dask cluster has one core, and to such a one joblib sends nothing; start more workers or threads")
    # A last one too is run in another process: joblib runs what it has one worker for in this one.
    return min(most, max(left, 2))


def outcomes(work: Work, indices: list[int], backend: str, jobs: int) -> Generator[Outcome, None, None]:
    """Those of some replicates, as they are done.

    When a worker dies, joblib lets go of its pool. The replicates that were under way are run again one by one, each with no
    other beside it, and one whose worker dies again has failed; the rest goes on in a new pool.
    """
    left = dict.fromkeys(indices)
    while left:
        begun: list[int] = []
        try:
            with contextlib.closing(_run(work, list(left), backend, jobs, begun.append)) as run:
                for done in run:
                    del left[done.index]
                    yield done
        except Exception as error:
            if not _is_death(error):
                raise
            for index in [index for index in begun if index in left]:
                _wait(backend, jobs)
                yield _alone(work, index, backend, jobs)
                del left[index]
            _wait(backend, jobs)


def _wait(backend: str, jobs: int) -> None:
    """Until workers that died have successors: where a cluster has one left, joblib runs what is sent to it in this process."""
    import joblib

    end = time.monotonic() + PATIENCE
    with joblib.parallel_config(backend=backend):
        while joblib.effective_n_jobs(jobs) < min(jobs, 2) and time.monotonic() < end:
            time.sleep(0.1)


def _alone(work: Work, index: int, backend: str, jobs: int) -> Outcome:
    try:
        return list(_run(work._replace(elsewhere=True), [index], backend, jobs, lambda index: None))[0]
    except Exception as error:
        if not _is_death(error):
            raise
        return Outcome(index, None, DIED)


def _is_death(error: Exception) -> bool:
    return isinstance(error, BrokenProcessPool) or type(error).__name__ in DEATHS


def _run(work: Work, indices: list[int], backend: str, jobs: int, begin: Callable[[int], Any]) -> Generator[Outcome, None, None]:
    """By one pool of workers, which get no replicate before they are free: those that have begun are under way."""
    import joblib

    def tasks(part: list[int]) -> Iterator[Any]:
        for index in part:
            begin(index)
            yield joblib.delayed(outcome)(work, index)

    inner: dict[str, Any] = {"inner_max_num_threads": 1} if backend == "loky" else {}
    with joblib.parallel_config(backend=backend, n_jobs=jobs, **inner), warnings.catch_warnings():
        # Programs make a worker grow, which loky takes for a leak and replaces it. It warns of that in a thread of its own, which
        # would die of a warning that is an error, and the call would never end.
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given")
        settings: dict[str, Any] = {"batch_size": 1, "pre_dispatch": "n_jobs"}
        if backend == "ray":  # whose pool gives its results together
            with joblib.Parallel(**settings) as pool:
                for part in _parts(indices, jobs):
                    done: Any = pool(tasks(part))
                    yield from done
            return
        with _closing(joblib.Parallel(return_as="generator_unordered", **settings)(tasks(indices))) as found:
            yield from found


def _parts(indices: list[int], size: int) -> Iterator[list[int]]:
    rest = iter(indices)
    return iter(lambda: list(itertools.islice(rest, size)), [])


@contextlib.contextmanager
def _closing(found: Any) -> Iterator[Any]:
    """Let go of the rest where not all is asked for, of which joblib would warn."""
    try:
        yield found
    finally:
        if hasattr(found, "close"):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=r".*tasks (have been|which were)", category=UserWarning)
                found.close()
