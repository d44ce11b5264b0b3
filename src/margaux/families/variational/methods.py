r"""MISSO and its rivals by name: statistic x memory x update.

With L the curvature of the negative ELBO per observation in the means and B blocks, the default steps are 1/(2L) for Bayes by
Backprop, a tenth of it with momentum 0.9, 1/(4L) for tables of scores, and B/(2L) for MISSO, whose table turns each visit into a
step of length $\gamma/B$. Adam moves a coordinate by a step an iteration at most: its own lets it go as far as 5, within 1e-3 and
1e-2, or falls from 1e-2 to zero where the temperature is chosen. IVON's is a tenth of Newton's, and falls to zero. Where a fit
falls apart with a step from the curvature it begins again with a quarter of it, three times at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import optax

from ...algorithms.average import AbstractAverage, LastIterate
from ...algorithms.base import AbstractAlgorithm
from ...algorithms.recipes import misso, sag, saga, soul
from ...algorithms.updates import is_optimiser
from ...problem.schedule import AbstractSchedule, as_schedule
from .falling_adam import falling_adam
from .ivon import Falling, ivon

Method = Literal["ivon", "adam", "adagrad", "momentum", "bbb", "sag", "saga", "misso"]

#: methods of an estimator alone: several posteriors as one, by their number, and draws along chains
ENSEMBLE, MEMBERS, SGMCMC = "ensemble", 5, "sgmcmc"
#: methods that scale every coordinate by themselves
ADAPTIVE = ("adam", "ivon", "adagrad")
#: the first step of Adam where it falls to zero, and where such a fit goes on from another
FIRST, ONWARD = 1e-2, 3e-3
#: methods that keep a table
TABLES = ("sag", "saga", "misso")


def check_method(method: object) -> None:
    """Raises: ValueError: it is neither a name nor an algorithm."""
    if not isinstance(method, AbstractAlgorithm) and method not in get_args(Method):
        names = ", ".join(map(repr, get_args(Method)))
        raise ValueError(
            f'method must be one of {names}, of an estimator "ensemble", "laplace" or "sgmcmc", or an algorithm such as '
            f"mx.soul(...); got {method!r}"
        )


def needs_curvature(method: object) -> bool:
    """Whether one step size is to suit means and standard deviations."""
    return isinstance(method, str) and method not in ADAPTIVE


def default_step(method: str, n_blocks: int, n_iter: int, curvature: float | None) -> float:
    """See the module."""
    if method == "adam":
        return float(np.clip(5 / n_iter, 1e-3, 1e-2))
    if method == "adagrad":
        return 3e-2
    assert curvature is not None
    return {"bbb": 1 / 2, "momentum": 1 / 20, "sag": 1 / 4, "saga": 1 / 4, "misso": n_blocks / 2}[method] / curvature


def algorithm(method: Method | AbstractAlgorithm, step: Any, average: AbstractAverage | None) -> AbstractAlgorithm:
    r"""The algorithm of a method and a step (a number; for all but MISSO a schedule or an optax optimiser as well).

    "bbb" is Bayes by Backprop (Blundell et al. 2015): `soul` by draws of noise; "momentum" has coefficient 0.9. MISSO's step is
    $\gamma$ of its eq. 45, $1/L$ of `margaux.misso`.
    """
    if isinstance(method, AbstractAlgorithm):
        if step is not None:
            raise ValueError("an algorithm has a step of its own; pass step=None, or a method by name")
        return method
    average = LastIterate() if average is None else average
    if not is_optimiser(step):
        as_schedule(step, name="step")
    if method == "misso":
        if is_optimiser(step) or isinstance(step, AbstractSchedule):
            raise ValueError("the step of MISSO is one number, the inverse curvature of its surrogates; pass step=0.1, say")
        number: Any = step
        return misso(lipschitz=1.0 / float(number), average=average, first_pass=False)
    if method == "ivon":
        if is_optimiser(step):
            raise ValueError("the step of IVON is a number or a schedule, in units of Newton's; pass step=0.1, say")
        return ivon(as_schedule(step, name="step"), average)
    if method == "adam" and isinstance(step, Falling):
        return falling_adam(step, average)
    if method == "sag":
        return sag(step, average=average, first_pass=False)
    if method == "saga":
        return saga(step, average=average)
    if method != "bbb" and not is_optimiser(step):
        rate = _counted(step) if isinstance(step, AbstractSchedule) else step
        step = {"adam": optax.adam, "adagrad": optax.adagrad, "momentum": lambda rate: optax.sgd(rate, 0.9)}[method](rate)
    return soul(step=step, average=average)


def _counted(schedule: AbstractSchedule) -> Callable[[Any], Any]:
    """A schedule of ours, which counts from one, as optax's, which count from zero."""
    return lambda count: schedule(count + 1)
