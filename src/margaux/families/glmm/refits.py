"""The model of a fit to other responses of the same rows: bootstraps run the programs that the fit has compiled."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ...algorithms.recipes import newton
from ...answers.rules import laplace_rule
from ...answers.scores import evaluate
from ...engine.progress import Line
from ...esteps import Quadrature
from ...fitting import fit as run
from ...numerics.precision import default_dtype, precision
from . import reml
from .fitting import started

if TYPE_CHECKING:
    import pandas as pd

    from ...answers.fit import Fit
    from .estimator import GLMM


#: Newton's steps of a refit at most: towards an edge, as a correlation of one, they go on for long and raise nothing
MOST = 50


def refitted(model: GLMM, y: np.ndarray) -> Fit | None:
    """The fit to a response (rows,) of the same design; None where it failed, or where the response cannot be fitted.

    Newton's steps by the E-step of the fit, without a polish: what that still moves is far below the spread of replicates, and at
    the edges where they often end it takes longest. It begins at the estimate, but for covariances at their edge, where the
    likelihood is flat.
    """
    response, layout = model.model_.response, model.layout_
    try:
        response.check(y, model.design_.trials)
    except ValueError:
        return None
    at = np.where(layout.rows >= 0, layout.rows, layout.rows[:, :1])
    values: Any = y
    trials: Any = model.design_.trials
    with precision(default_dtype(None)):
        base = np.asarray(response.log_base(values, trials), float)
    problem, estep = model.result_._model(), model.result_.estep
    units = jax.tree.map(np.asarray, model.result_.data) | {"y": y[at].astype(float), "base": base[at]}
    if model.reml:
        asked = model._asked()._replace(n_iter=min(model.n_iter, MOST), verbose=False)
        found = reml.estimate_again(model.model_, units, _start(model), problem.space.spaces, asked)  # type: ignore[attr-defined]
        return None if found.result.failed else found
    assert estep is not None
    fit = run(
        problem.model,
        units,
        newton(),
        estep,
        params=_start(model),
        space=problem.space,
        penalty=problem.penalty,
        n_iter=min(model.n_iter, MOST),
        key=model.random_state,
        dtype=model.dtype,
        progress=False,
        polish=False,
        throw=False,
    )
    return None if fit.result.failed else fit


def likelihood(fit: Fit) -> float:
    """The log-likelihood of a fit by its own E-step, for differences between refits of the same kind."""
    fit = reml.objective(fit)
    if isinstance(fit.estep, Quadrature):
        return float(fit.loglik(method="quadrature", n_nodes=fit.estep.n_nodes))
    with precision(fit.dtype), np.errstate(all="ignore"):
        return float(evaluate(fit, laplace_rule(fit), fit.params, range(1)).loglik)


def _start(model: GLMM) -> dict[str, Any]:
    start = copy.copy(model.result_.params)
    if model.is_singular_:
        fresh = started(model.design_, model.model_.response, model.layout_).params
        start |= {name: fresh[name] for name in ("root", "sd", "cor", "range") if name in fresh}
    return start


def refits(model: GLMM, responses: pd.DataFrame, title: str) -> Iterator[Fit | None]:
    """The model fitted to each column of responses, with a line of progress if the estimator is verbose."""
    line = Line(title, responses.shape[1]) if model.verbose else None
    try:
        for j, name in enumerate(responses):
            yield refitted(model, responses[name].to_numpy(float))
            if line is not None:
                line.update(j + 1, "")
    finally:
        if line is not None:
            line.close()
