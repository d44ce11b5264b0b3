"""The marginal log-likelihood along one parameter."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree

from ..naming import precision
from .marginal import loglik


def profile(fit: Any, name: str, grid: Any, method: str = "importance", n_draws: int | None = None) -> pd.DataFrame:
    r"""$\log p(y\mid\theta)$ over a grid of one scalar parameter, the others held at the estimate (SOUL, figure 3a).

    Args:
        name: one of `fit.names`. grid: values of it. method, n_draws: as in `Fit.loglik`.

    Returns:
        A frame indexed by the grid with `loglik` and its Monte Carlo error `mc_error`. `attrs["quadratic"]` is
        the weighted quadratic fit (highest power first), `attrs["maximiser"]` where it is largest.

    Raises:
        ValueError: no such parameter, or fewer than three values.
    """
    if name not in fit.names:
        raise ValueError(f"there is no parameter {name!r}; they are {fit.names}")
    grid = np.unique(np.asarray(grid, float))
    if grid.size < 3:
        raise ValueError(f"a profile needs at least three different values of {name}, got {grid.size}")
    j = fit.names.index(name)
    with precision(fit.dtype):
        flat, unravel = ravel_pytree(fit.params)
        points = [jax.tree.map(np.asarray, unravel(flat.at[j].set(value))) for value in grid]
    found = [loglik(fit, method=method, n_draws=n_draws, params=point) for point in points]
    frame = pd.DataFrame(
        {"loglik": [float(f) for f in found], "mc_error": [f.se for f in found]}, index=pd.Index(grid, name=name)
    )
    errors = frame["mc_error"].to_numpy()
    weights = 1 / np.maximum(errors, 1e-9) if np.all(np.isfinite(errors)) and np.all(errors > 0) else None
    quadratic = np.polyfit(grid, frame["loglik"], 2, w=weights)
    inside = quadratic[0] < 0
    frame.attrs["quadratic"] = quadratic
    frame.attrs["maximiser"] = (
        float(-quadratic[1] / (2 * quadratic[0])) if inside else float(grid[int(np.argmax(frame["loglik"]))])
    )
    return frame
