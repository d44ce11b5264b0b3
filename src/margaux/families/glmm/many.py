"""One mixed model for each of many responses of one table, all at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...answers.ascents import inverses
from ...answers.rules import NODES
from ...answers.search import CLOSE
from ...engine.progress import Line
from ...numerics.compiling import keep_compilations
from ...numerics.precision import default_dtype
from . import natural
from .fitting import is_exact
from .layout import Layout, laid_out
from .many_answers import ManyGLMM
from .many_outcomes import Outcomes, outcomes
from .many_search import Search
from .many_starts import started
from .many_verdicts import Found, certainty, verdicts
from .together import Together

if TYPE_CHECKING:
    from .base import AbstractResponse
    from .fitting import Asked

#: seconds before a line of progress is shown
PATIENCE = 2.0


def fitted_together(
    formula: str, response: AbstractResponse, asked: Asked, Y: Any, data: pd.DataFrame, given: dict[str, Any]
) -> ManyGLMM:
    """See `margaux.GLMM.fit_many`."""
    found = outcomes(formula, Y, data, response, given)
    if not found.design.terms:
        raise ValueError(f'"{formula}" has no random effects; write them as (1 | group), or use generalised linear models')
    layout = laid_out(found.design, response)
    exact = is_exact(response)
    laplace = asked.method == "laplace" or (exact and asked.method == "auto")
    if not laplace and layout.width not in NODES:
        raise ValueError(
            f"fit_many integrates up to {max(NODES)} random effects a group by quadrature, and in this formula {layout.width} "
            'hang together; use method="laplace", whose distance from the maximum of the likelihood is then not known, or fit '
            "one response at a time"
        )
    keep_compilations()
    dtype = default_dtype(asked.dtype)
    told = Patient(len(found.fitted)) if asked.verbose else None
    try:
        with np.errstate(all="ignore"):
            params, scale, sizes = started(found, response, layout)
            columns = {name: column[found.fitted] for name, column in found.columns.items()}
            together = Together(response, layout, columns, params, scale, sizes, dtype)
            search = Search(together, asked.n_iter, (lambda what, left: None) if told is None else told)
            if laplace:
                search.by_laplace(layout.width, exact)
            else:
                search.by_quadrature(layout.width, asked.n_nodes)
            return _answered(found, layout, search, laplace and not exact)
    finally:
        if told is not None:
            told.close()


class Patient:
    """A line of progress that is not shown before it is worth while."""

    def __init__(self, count: int) -> None:
        self.count, self.begun, self.line = count, time.monotonic(), None

    def __call__(self, what: str, left: int) -> None:
        if self.line is None and time.monotonic() - self.begun > PATIENCE:
            self.line = Line(f"{self.count:,} responses", None)
        if self.line is not None:
            self.line.update(None, f"{what}, {left:,} under way")

    def close(self) -> None:
        if self.line is not None:
            self.line.close()


def _answered(found: Outcomes, layout: Layout, search: Search, approximate: bool) -> ManyGLMM:
    together, fitted = search.together, found.fitted
    names = natural.names(together.model, found.design)
    values, jacobian, covariances = together.natural(search.u)
    inverse, positive = inverses(search.here.matrix)
    singular = {name: natural.singular(matrix, together.units["sizes"][name]) for name, matrix in covariances.items()}
    covariance = jacobian @ inverse @ np.swapaxes(jacobian, 1, 2)
    for name, where in singular.items():
        edge = np.array([own.split("[")[0] in (f"sd_{name}", f"cor_{name}") for own in names])
        none = where[:, None, None] & (edge[:, None] | edge)
        covariance = np.where(none, np.nan, covariance)
    p = len(found.design.names)
    offset = found.columns["offset"][fitted] if "offset" in found.columns else found.design.offset
    sizes = np.abs(values[:, :p]) * np.abs(found.design.X).max(axis=0, initial=0.0)
    worst = np.array([*found.design.names, ""], object)[sizes.argmax(axis=1) if p else np.full(len(values), -1)]
    judged = Found(
        search,
        positive,
        _moved(names, jacobian),
        singular,
        certainty(values[:, :p] @ found.design.X.T + offset),
        worst,
        approximate,
    )
    words, messages = verdicts(judged)
    every = pd.DataFrame(
        {
            "word": words,
            "message": messages,
            "converged": (search.length < CLOSE) & positive,
            "loglik": search.here.value,
            "error": search.error,
            "length": search.length,
            "n_iter": search.steps,
        },
        index=found.names[fitted],
    )
    table = every.reindex(found.names)
    refused = list(found.refused)
    table["word"] = table["word"].where(table["word"].notna(), "failed")
    table.iloc[refused, table.columns.get_loc("message")] = [f"not fitted: {found.refused[r]}" for r in refused]
    table["converged"] = table["converged"].eq(True)
    table["n_iter"] = table["n_iter"].fillna(0).astype(int)
    whole = np.full((len(found.names), *covariance.shape[1:]), np.nan)
    whole[fitted] = covariance
    estimates = pd.DataFrame(values, found.names[fitted], names).reindex(found.names)
    return ManyGLMM(estimates, whole, table, tuple(found.design.names), found.design)


def _moved(names: list[str], jacobian: np.ndarray) -> np.ndarray:
    """The parameter that each coordinate moves most (R, k)."""
    size = np.abs(np.nan_to_num(jacobian))
    return np.array(names, object)[size.argmax(axis=1)]
