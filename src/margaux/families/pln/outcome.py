"""A fitted PLN-PCA as a `margaux.Fit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...answers.fit import Fit
from ...engine.outcome import RESULTS

if TYPE_CHECKING:
    from .estimator import PLNPCA


def as_fit(fitted: PLNPCA) -> Fit:
    """Parameters B (k, p) and C (p, q), and the bound of each sweep. Its model is not in it: a table may be sparse or on disk,
    and what is asked of the likelihood is answered by the estimator."""
    params = {"B": np.asarray(fitted.coef_, float), "C": np.asarray(fitted.loadings_, float)}
    ended = RESULTS.successful if fitted.converged_ else RESULTS.max_iterations
    runs = {name: leaf[None] for name, leaf in params.items()}
    trace = {"bound": np.asarray(fitted.bounds_, float)[:, None]}
    told = "PLNPCA: sweeps of the bound, then Newton steps on the likelihood"
    return Fit(params, params, runs, trace, ended, fitted.n_iter_, {}, told, fitted.loadings_.dtype, fitted.random_state)
