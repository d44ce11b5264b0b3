"""The number of components of `PLNPCA`: `pln_ranks`."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .checks import check_rank
from .estimator import PLNPCA
from .fitting import Design, Solution, maximise
from .restarts import Search, best_of
from .table import diverging_message, read
from .variational import Loadings, Posterior
from .widening import padded, widened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .kinds import CountsLike, Covariates, Offsets


CRITERIA = ("bic", "aic", "icl")


@dataclasses.dataclass(frozen=True)
class RankChoice:
    """Fits of several ranks.

    Attributes:
        table: a row a rank: elbo, loglik, its error, n_params, aic, bic, icl (smaller is better), seconds of the fit, converged.
        models: the fitted `PLNPCA` of each rank. criterion: that of `best`.
    """

    table: pd.DataFrame
    models: dict[int, PLNPCA]
    criterion: str = "bic"

    @property
    def best(self) -> PLNPCA:
        """The model of the smallest criterion."""
        return self.models[int(self.table.index[np.argmin(self.table[self.criterion])])]

    def plot(self, ax: Axes | None = None) -> Any:
        """Criteria against rank."""
        from .plots import rank_selection

        return rank_selection(self, ax=ax)


def pln_ranks(
    counts: CountsLike,
    ranks: Iterable[int] = range(1, 11),
    *,
    covariates: Covariates | None = None,
    formula: str | None = None,
    offsets: Offsets | None = None,
    criterion: str = "bic",
    **settings: Any,
) -> RankChoice:
    """Fit `PLNPCA` of several ranks, and choose by a criterion.

    Each rank is fitted from starts of its own, and from the fit of the rank below with the leading components of what that
    leaves; the best is kept. So the bound never falls with the rank.

    Args:
        counts, covariates, formula, offsets: see `PLNPCA.fit`. ranks: whole numbers. criterion: "bic", "aic" or "icl".
        settings: of `PLNPCA`.

    Raises:
        TypeError, ValueError: bad input, before anything is compiled.

    >>> import numpy as np, margaux as mx
    >>> rng = np.random.default_rng(0)
    >>> counts = rng.poisson(np.exp(1 + rng.normal(size=(60, 2)) @ rng.normal(0, 0.9, (2, 12))))
    >>> choice = mx.pln_ranks(counts, range(1, 4), n_starts=2, verbose=False)
    >>> choice.best.rank, bool(choice.table["elbo"].is_monotonic_increasing)
    (2, True)
    """
    if not isinstance(ranks, Iterable) or "rank" in settings:
        raise TypeError("pln_ranks takes several ranks, such as ranks=range(1, 11); fit one by PLNPCA(rank)")
    wanted = list(ranks)
    if criterion not in CRITERIA:
        raise ValueError(f"criterion must be one of {', '.join(map(repr, CRITERIA))}, got {criterion!r}")
    if not wanted:
        raise ValueError("ranks is empty; give at least one, such as range(1, 11)")
    table = read(counts, covariates, formula, offsets)
    for rank in wanted:
        check_rank(rank, table.counts.share.n, table.counts.p)
    models: dict[int, PLNPCA] = {}
    rows, below = {}, None
    message = diverging_message(table)
    if message:
        warnings.warn(message, stacklevel=2)
    for rank in sorted({int(rank) for rank in wanted}):
        model, begun = PLNPCA(rank, **settings), time.monotonic()
        model._estimate(table, best_of if below is None else _From(below.variational_))
        rows[rank] = _row(model, time.monotonic() - begun)
        models[rank] = below = model
    return RankChoice(pd.DataFrame.from_dict(rows, orient="index").rename_axis("rank"), models, criterion)


def _row(model: PLNPCA, seconds: float) -> dict[str, Any]:
    return {
        "elbo": model.elbo_,
        "loglik": float(model.loglik_),
        "error": model.loglik_.se,
        "n_params": model.n_params_,
        "aic": model.aic_,
        "bic": model.bic_,
        "icl": model.icl_,
        "seconds": seconds,
        "converged": model.converged_,
    }


@dataclasses.dataclass(frozen=True)
class _From:
    """A fit from one of lower rank, with the arguments and the answer of `best_of`."""

    below: Solution

    def __call__(self, design: Design, rank: int, search: Search, watch: Any) -> tuple[Solution, pd.DataFrame]:
        own = self.below.loadings, self.below.posterior
        best, starts = best_of(design, rank, search, watch)

        def tried(name: str, start: tuple[Loadings, Posterior]) -> None:
            nonlocal best
            found = maximise(
                design, *start, search.tol, search.relative, search.max_sweeps, watch=watch, covariance=search.covariance
            )
            starts.loc[len(starts)] = [name, found.bounds[-1], len(found.bounds), found.converged]
            best = max(best, found, key=lambda solution: solution.bounds[-1])

        tried("rank below", widened(design, *own, rank, search.seed))
        if best.bounds[-1] < self.below.bounds[-1]:
            # With components of no weight the bound is that of the rank below, and sweeps do not lower it.
            tried("rank below, padded", padded(*own, rank))
        return best, starts
