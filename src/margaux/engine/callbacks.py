"""What happens between chunks: progress, early stopping, checkpoints."""

from __future__ import annotations

import abc
import dataclasses
import functools
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .progress import Line


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a callback sees between chunks, to be read while it is called.

    `params` is the current average as a flat vector (runs, p), and `names` its entries (none where there are more than 512);
    `trace` holds every iteration so far by name, arrays of shape (iterations, runs, ...), and `latest` those of the chunk;
    `n_iter` is the target, and `ends` tells the checkpoint that nothing comes after. `params` and `trace` are put together when
    they are first looked at. `agreed` is the largest of a number over all processes of a fit.
    """

    iteration: int
    n_iter: int
    names: list[str]
    latest: dict[str, np.ndarray]
    save: Callable[[Path], None]
    read_params: Callable[[], np.ndarray]
    read_trace: Callable[[], dict[str, np.ndarray]]
    ends: bool = False
    agreed: Callable[[float], float] = float

    @functools.cached_property
    def params(self) -> np.ndarray:
        return self.read_params()

    @functools.cached_property
    def trace(self) -> dict[str, np.ndarray]:
        return self.read_trace()


class AbstractCallback(abc.ABC):
    """Called between chunks; returning True ends the fit: as one that met its rule where it is `stop=`, else as one halted."""

    #: iterations after every so many of which it is called whatever else; None to be called when it suits
    period: int | None = None

    @abc.abstractmethod
    def __call__(self, progress: Progress) -> bool: ...

    @abc.abstractmethod
    def close(self) -> None: ...


class ProgressBar(AbstractCallback):
    """A line on stderr, or in the notebook, with parameters and acceptance or ESS, for fits over two seconds."""

    def __init__(self, title: str, delay: float = 2.0) -> None:
        self._title, self._delay = title, delay
        self._start = time.monotonic()
        self._line: Line | None = None

    def __call__(self, progress: Progress) -> bool:
        if self._line is None:
            if time.monotonic() - self._start < self._delay:
                return False
            self._line = Line(self._title, progress.n_iter)
        self._line.update(progress.iteration, _figures(progress))
        return False

    def close(self) -> None:
        if self._line is not None:
            self._line.close()


def _figures(progress: Progress) -> str:
    shown = []
    if progress.names:
        shown = [f"{name} {value:.4g}" for name, value in zip(progress.names[:4], progress.params[0], strict=False)]
    if "log_joint" in progress.latest:  # of few draws an iteration, so that one alone tells little
        shown.append(f"log joint {progress.latest['log_joint'][-100:].mean():.4g}")
    for name in ("acceptance", "ess", "log_marginal"):
        if name in progress.latest:
            shown.append(f"{name.replace('_', ' ')} {progress.latest[name][-1].mean():.3g}")
    return "  ".join(shown)


class EarlyStopping(AbstractCallback):
    """Stops when no parameter's trace has a trend any more.

    The last `window` iterations are cut in two halves; the fit stops when each parameter's half means
    differ by less than `tolerance` times the trace's standard deviation over the window plus `absolute`
    times its size, so a deterministic fit that no longer moves stops as well.

    Args:
        window: iterations looked at. tolerance, absolute: as above. floor: never stop before this iteration.
    """

    def __init__(self, window: int = 500, tolerance: float = 0.1, absolute: float = 1e-8, floor: int = 0) -> None:
        if window < 10:
            raise ValueError(f"window must be at least 10 iterations, got {window}")
        if not (tolerance > 0 and absolute >= 0):
            raise ValueError(f"tolerance must be positive and absolute not negative, got {tolerance} and {absolute}")
        self.window, self.tolerance, self.absolute, self.floor = window, tolerance, absolute, floor

    def __call__(self, progress: Progress) -> bool:
        if progress.iteration < max(self.window, self.floor) or "params" not in progress.trace:
            return False
        tail = progress.trace["params"][-self.window :].astype(float)
        half = self.window // 2
        gap = np.abs(tail[-half:].mean(axis=0) - tail[:half].mean(axis=0))
        bound = self.tolerance * tail.std(axis=0) + self.absolute * (1 + np.abs(tail.mean(axis=0)))
        return bool(np.all(gap <= bound))

    def close(self) -> None:
        return None


class Short(AbstractCallback):
    """Stops when what is left of Newton's steps, in standard errors, is as short as the precision can tell in every run, or will
    be after the last one, which shrank them at a rate that is known; or when none has raised the log-likelihood for long:
    towards an edge steps get longer and gain nothing."""

    period = 2
    #: standard errors from which on steps shrink no slower than they did
    near = 1e-4
    #: iterations without a rise, and the rise that is none as a share of the log-likelihood
    still, rise = 16, 1e-9

    def __call__(self, progress: Progress) -> bool:
        left = progress.trace["newton"][-2:]
        most = 1e-6 if left.dtype == np.float64 else 1e-3
        known = (left[-1] < self.near) & (left[-1] < left[0]) & np.isfinite(left[0])
        after = np.where(known, left[-1] ** 2 / np.where(known, left[0], 1.0), left[-1])
        if np.all(after < most):
            return True
        if progress.iteration <= self.still:
            return False
        values = np.nan_to_num(progress.trace["log_marginal"], nan=-np.inf)
        before, after = values[: -self.still].max(axis=0), values[-self.still :].max(axis=0)
        return bool(np.all(after - before < self.rise * (1 + np.abs(after))))

    def close(self) -> None:
        return None


class Checkpoint(AbstractCallback):
    """Saves the whole state of a fit to `path` every `seconds` (and at its end).

    Run the same call again after a crash: it goes on from the file, to the same result to the bit. A fit that has ended goes on
    where a larger `n_iter` is asked for; its burn-in stays where it was, as the trace cannot change. A call whose data, settings
    or model differ in anything is refused, and told in what. Where the file cannot be written, a full disk say, a warning says
    so once and the fit goes on.
    """

    def __init__(self, path: str | Path, seconds: float = 30.0) -> None:
        if seconds < 0:
            raise ValueError(f"seconds must not be negative, got {seconds}")
        self.path, self.seconds = Path(path), seconds
        self._last, self._warned = time.monotonic(), False

    def __call__(self, progress: Progress) -> bool:
        if progress.agreed(progress.ends or time.monotonic() - self._last >= self.seconds):
            try:
                progress.save(self.path)
            except OSError as error:
                self._warn(error)
            self._last = time.monotonic()
        return False

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the checkpoint {self.path} could not be written ({error.strerror or error}); the fit goes on without it, or "
                "with an older one",
                stacklevel=2,
            )

    def close(self) -> None:
        return None
