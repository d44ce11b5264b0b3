"""Units without counts: their covariates and offsets, the counts expected of them, and counts drawn for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from jaxtyping import Float

from .offsets import given
from .table import Table, design
from .variational import Loadings

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .kinds import Covariates, Offsets


def units_of(
    table: Table, covariates: Covariates | None = None, offsets: Offsets | None = None, n_units: int | None = None
) -> tuple[Float[np.ndarray, "m k"], Float[np.ndarray, "m o"]]:
    """Covariates and offsets of m units.

    Args:
        covariates: as in the fit. Without them the units are those of the fit, where `n_units` is as many or is not given, and
            units with an intercept alone where the fit had nothing else.
        offsets: (m,), (m, 1) or (m, p) over the features that the fit was given. By default those of the fit for its own units,
            and zeros for others if the fit had none.

    Raises:
        ValueError: the fit had covariates or offsets and these units have none, or numbers of rows disagree.

    Examples:
        >>> from margaux.families.pln.table import read
        >>> table = read([[1, 2], [3, 1], [2, 2]], offsets=[0.1, 0.2, 0.3])
        >>> units_of(table)[1].ravel().tolist(), units_of(table, n_units=2, offsets=[0.0, 0.1])[1].ravel().tolist()
        ([0.1, 0.2, 0.3], [0.0, 0.1])
    """
    if n_units is not None and (isinstance(n_units, bool) or not isinstance(n_units, (int, np.integer)) or n_units < 1):
        raise ValueError(f"n_units must be a whole number of at least 1, got {n_units!r}")
    own = covariates is None and n_units in (None, table.counts.n)
    if own:
        x = table.x
    elif covariates is not None:
        x = design(table, covariates)
        if n_units not in (None, len(x)):
            raise ValueError(f"covariates have {len(x)} rows, and there are {n_units} units; give one row a unit")
    elif table.covariate_names == ["Intercept"]:
        x = np.ones((n_units or 1, 1))
    else:
        raise ValueError(f"the fit had covariates, so {n_units} units that are not those of the fit need theirs; pass covariates")
    if offsets is None:
        _check_no_offsets(table, own)
        return x, table.offset if own else np.zeros((len(x), 1))
    values = given(offsets, len(x), len(table.all_features), pd.RangeIndex(len(x)), table.all_features)
    return x, values if values.shape[1] == 1 else values[:, table.kept_columns]


def _check_no_offsets(table: Table, own: bool) -> None:
    """An offset of zero is another depth than that of the fit, by orders of magnitude with offsets="total"."""
    if own or not table.offset.any():
        return
    how = "in an array" if table.rule is None else f'computed from the counts by "{table.rule.name}"'
    low, high = float(table.offset.min()), float(table.offset.max())
    raise ValueError(
        f"the fit had offsets {how}, from {low:.3g} to {high:.3g}, and these units have none; pass theirs by offsets=, on the "
        f"same scale: such as np.full(m, {float(np.median(table.offset)):.3g}) for m units of the fit's median offset"
    )


def check_scores(scores: ArrayLike, q: int) -> Float[np.ndarray, "m q"]:
    """Scores as an array of q columns.

    Raises:
        ValueError: of another shape.
    """
    values = np.asarray(scores, float)
    if values.ndim != 2 or values.shape[1] != q:
        raise ValueError(f"scores must have shape (m, {q}), a row a unit and a column a component, got {values.shape}")
    return values


def expected(
    loadings: Loadings,
    x: Float[np.ndarray, "m k"],
    offset: Float[np.ndarray, "m o"],
    scores: Float[np.ndarray, "m q"] | None = None,
) -> Float[np.ndarray, "m p"]:
    r"""$e^{o + x^\top B + w^\top C^\top}$ at scores w, or its mean over $w\sim N(0, I)$."""
    C = np.asarray(loadings.C, float)
    return np.exp(offset + x @ loadings.B + (np.sum(C**2, axis=1) / 2 if scores is None else scores @ C.T))


def simulated(
    table: Table,
    loadings: Loadings,
    x: Float[np.ndarray, "m k"],
    offset: Float[np.ndarray, "m o"],
    scores: Float[np.ndarray, "m q"] | None,
    random_state: int | np.random.Generator,
) -> pd.DataFrame:
    """Counts of units at scores, or at scores from N(0, I); a column a feature."""
    rng = np.random.default_rng(random_state)
    w = rng.standard_normal((len(x), loadings.C.shape[1])) if scores is None else scores
    return pd.DataFrame(rng.poisson(expected(loadings, x, offset, w)), columns=table.features)
