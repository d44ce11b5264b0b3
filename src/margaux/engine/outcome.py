"""How a fit ended."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import PyTree

from ..algorithms.updates import Problem
from ..esteps import AbstractEStep

if TYPE_CHECKING:
    from ..algorithms.base import AbstractAlgorithm
    from ..answers.fit import Fit
    from .share import Share


class RESULTS(enum.Enum):
    """How a fit ended; the value is the sentence."""

    successful = "The fit ended as asked."
    stopped = "The fit stopped early: its stopping rule was met."
    halted = "The fit ended early: a callback asked it to stop, which is no sign of convergence."
    max_iterations = "The fit reached n_iter before its stopping rule was met; run longer or look at the trace."
    interrupted = "The fit was interrupted; what it had computed is kept."
    diverged = (
        "The fit diverged: a parameter is not finite. Lower the step sizes (of theta and of the kernel), "
        "or bound the parameters with a space. The values kept are the last finite ones."
    )
    stuck = (
        "The chains are stuck: almost every proposal is rejected. Lower the kernel's step size, "
        "or start the latents nearer to their posterior."
    )
    ess_collapse = (
        "The importance weights collapsed: a handful of draws carries each unit. Raise n_draws, "
        "widen the proposal, or use margaux.MCMC."
    )
    undefined = "The fit met a log density that is not a number."
    boundary = (
        "boundary (singular) fit: a parameter lies on the edge of its space, where standard errors "
        "from the information do not hold."
    )

    @property
    def failed(self) -> bool:
        """Whether the estimate is not to be used."""
        return self in (RESULTS.diverged, RESULTS.stuck, RESULTS.ess_collapse, RESULTS.undefined)


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """What the engine leaves behind. Arrays are NumPy's; with several runs, `params` averages over them.

    Attributes:
        params: the averaged estimate. last_params: the last iterate.
        run_params: the estimate of each run on a leading axis (one without `runs`).
        trace: by name, (iterations, runs, ...): "params" (flat, ordered as `names`), "acceptance", "ess", "log_marginal".
        result: a `RESULTS` code. timings: seconds ("compile" is the first chunk, compilation included).
        rows: the E-step's rows, (runs, n, ...). averaged_from: iterations before the average.
        settled: whether its stopping rule was met or, without one, its trace was long enough and no longer drifted.
        share: of a fit over several processes, the units that are this one's: `data` and `rows` are of those alone.
        left: what the algorithm keeps besides parameters, such as draws along its way, (runs, ...); most often nothing.
    """

    params: PyTree
    last_params: PyTree
    run_params: PyTree
    trace: dict[str, np.ndarray]
    result: RESULTS
    n_iter: int
    timings: dict[str, float]
    description: str
    dtype: np.dtype
    seed: int
    problem: Problem | None = None
    estep: AbstractEStep | None = None
    data: PyTree = None
    rows: PyTree = None
    averaged_from: int = 0
    algorithm: AbstractAlgorithm | None = None
    batch_size: int | None = None
    settled: bool = True
    share: Share | None = None
    left: PyTree = ()


class FitError(RuntimeError):
    """A fit that failed; `fit` holds everything computed so far."""

    def __init__(self, fit: Fit) -> None:
        super().__init__(fit.message)
        self.fit = fit
