"""What a fitted `PLNPCA` says of units, its own and others: posteriors, likelihoods, counts expected and drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from ...numerics.packing import symmetric
from ...numerics.precision import precision
from ...showing.parts import check_fitted
from ..conventions import Transformer, contained
from . import frames
from .answers import settled
from .fitting import Design
from .growth import PROPOSAL, precise
from .simulation import check_scores, expected, simulated, units_of
from .table import Table, like
from .variational import Loadings

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .kinds import CountsLike, Covariates, Offsets


class OfUnits(Transformer):
    """A part of `PLNPCA`, which sets what is declared here."""

    loadings_: Any
    table_: Table
    loglik_tol: float
    random_state: int
    _loadings: Loadings

    @contained
    def transform(
        self, counts: CountsLike, covariates: Covariates | None = None, offsets: Offsets | None = None, covariance: bool = False
    ) -> Any:
        """Posterior means of the latents of other units, (m, q), and if wanted their covariances, (m, q, q).

        Args:
            counts, covariates, offsets: see `margaux.families.pln.table.like`. A unit without counts has NaN if its offset is
                computed from them, by a name that the fit was given; else it is a unit as any other.
        """
        check_fitted(self)
        table = like(self.table_, counts, covariates, offsets)
        with precision(self._loadings.C.dtype):
            found = settled(_design(table), jax.tree.map(jnp.asarray, self._loadings))
            mean = frames.everywhere(table.kept_rows, np.asarray(found.mean))
            return (mean, frames.everywhere(table.kept_rows, np.asarray(symmetric(found.spread)))) if covariance else mean

    def score(
        self, counts: CountsLike, y: object = None, *, covariates: Covariates | None = None, offsets: Offsets | None = None
    ) -> float:
        """Mean over units of log p(counts), with every constant, by importance sampling from their own posteriors.

        Args:
            counts, covariates, offsets: see `margaux.families.pln.table.like`. y: ignored.
        """
        check_fitted(self)
        table = like(self.table_, counts, covariates, offsets)
        with precision(np.dtype(float)):
            loadings = Loadings(*(jnp.asarray(leaf, float) for leaf in self._loadings))
            posterior = jax.tree.map(jnp.asarray, settled(_design(table), loadings))
            found = precise(_design(table), loadings, posterior, PROPOSAL, self.loglik_tol, self.random_state)
        return found.total[0] / table.counts.share.n

    def inverse_transform(
        self, scores: ArrayLike, covariates: Covariates | None = None, offsets: Offsets | None = None
    ) -> np.ndarray:
        """Expected counts (m, p) of units at scores (m, q); see `predict`."""
        return self.predict(covariates, offsets, scores)

    def predict(
        self, covariates: Covariates | None = None, offsets: Offsets | None = None, scores: ArrayLike | None = None
    ) -> np.ndarray:
        """Expected counts of units, (m, p), over the features that have counts: at given scores, or averaged over N(0, I).

        Args:
            covariates: (m, k) as in the fit. offsets: (m,), (m, 1) or (m, p). Without either the units are those of the fit,
                with its offsets; others need offsets of their own if the fit had any. scores: (m, q).

        Raises:
            ValueError: the fit had offsets and these units have none.
        """
        check_fitted(self)
        w = None if scores is None else check_scores(scores, self.loadings_.shape[1])
        return expected(self._loadings, *units_of(self.table_, covariates, offsets, None if w is None else len(w)), w)

    def simulate(
        self,
        n_units: int | None = None,
        *,
        covariates: Covariates | None = None,
        offsets: Offsets | None = None,
        scores: ArrayLike | None = None,
        random_state: int | np.random.Generator = 0,
    ) -> pd.DataFrame:
        """Counts drawn from the fitted model, a row a unit and a column a feature: at given scores, or at scores from N(0, I).

        Args:
            n_units: how many; by default as many as covariates, scores, or units of the fit. Others as in `predict`.
            random_state: an int, or a NumPy generator.
        """
        check_fitted(self)
        w = None if scores is None else check_scores(scores, self.loadings_.shape[1])
        if w is not None and n_units not in (None, len(w)):
            raise ValueError(f"scores have {len(w)} rows, and n_units is {n_units}; leave n_units out")
        x, offset = units_of(self.table_, covariates, offsets, n_units if w is None else len(w))
        return simulated(self.table_, self._loadings, x, offset, w, random_state)


def _design(table: Table) -> Design:
    return Design(table.counts, table.x, table.offset)
