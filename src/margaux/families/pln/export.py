"""A fit of PLN-PCA as an AnnData."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pandas as pd
import scipy

from . import frames

if TYPE_CHECKING:
    from .estimator import PLNPCA


def as_anndata(fitted: PLNPCA) -> Any:
    """The units and features of a fitted `PLNPCA` that have counts, with what was found, under the names of scanpy's PCA.

    `.X` has the counts, `.obs` the covariates but the intercept, and offsets if there is one a unit (otherwise
    `.layers["offset"]`), `.obsm["X_plnpca"]` the scores, `.varm["PCs"]` the loadings, `.varm["coef"]` the coefficients, and
    `.uns["plnpca"]` rank, variances, their shares and the bound.

    Raises:
        ImportError: anndata is not installed.
    """
    try:
        anndata: Any = import_module("anndata")
    except ImportError as error:
        raise ImportError("to_anndata needs anndata; install it via: pip install 'margaux[outofcore]'") from error
    table, loadings = fitted.table_, fitted.loadings_
    units, features = table.units.astype(str), table.features.astype(str)
    values = table.counts.values
    obs = pd.DataFrame(table.x, index=units, columns=pd.Index(table.covariate_names)).drop(columns="Intercept", errors="ignore")
    wide = table.offset.shape[1] > 1
    coefficients = frames.by_feature(table, fitted.coef_.T, pd.Index(table.covariate_names)).set_axis(features)
    return anndata.AnnData(
        X=scipy.sparse.csr_matrix(values) if scipy.sparse.issparse(values) else values,
        obs=obs if wide else obs.assign(offset=table.offset[:, 0]),
        var=pd.DataFrame(index=features),
        obsm={"X_plnpca": fitted.scores_},
        varm={"PCs": loadings, "coef": coefficients},
        layers={"offset": table.offset} if wide else {},
        uns={
            "plnpca": {
                "rank": loadings.shape[1],
                "variance": (loadings.astype(float) ** 2).sum(axis=0),
                "variance_ratio": fitted.explained_variance_ratio_,
                "elbo": fitted.elbo_,
            }
        },
    )
