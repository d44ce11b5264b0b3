"""Poisson log-normal PCA of a simulated ecological table: 40 species at 60 sites, with moisture and sampling effort.

y_ij ~ Poisson(exp(log effort_i + b_0j + b_1j moisture_i + c_j w_i)), w_i ~ N(0, I_2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

SITES, SPECIES, RANK = 60, 40, 2


class Abundances(NamedTuple):
    """Counts (60, 40), covariates with "moisture", log efforts, and the true coefficients (2, 40) and loadings (40, 2)."""

    counts: pd.DataFrame
    covariates: pd.DataFrame
    log_effort: pd.Series
    B: pd.DataFrame
    C: np.ndarray


def table(seed: int = 0) -> Abundances:
    """The counts and what they were drawn from.

    >>> table().counts.shape
    (60, 40)
    """
    rng = np.random.default_rng(seed)
    sites = pd.Index([f"site {i + 1}" for i in range(SITES)])
    species = pd.Index([f"species {j + 1}" for j in range(SPECIES)])
    moisture, log_effort = rng.normal(size=SITES), np.log(rng.gamma(4.0, 0.25, SITES))
    B = np.stack([rng.normal(1.5, 0.8, SPECIES), rng.normal(0.0, 0.5, SPECIES)])
    C = rng.normal(0.0, 0.6, (SPECIES, RANK))
    eta = log_effort[:, None] + B[0] + moisture[:, None] * B[1] + rng.normal(size=(SITES, RANK)) @ C.T
    return Abundances(
        counts=pd.DataFrame(rng.poisson(np.exp(eta)), sites, species),
        covariates=pd.DataFrame({"moisture": moisture}, sites),
        log_effort=pd.Series(log_effort, sites),
        B=pd.DataFrame(B, pd.Index(["Intercept", "moisture"]), species),
        C=C,
    )
