"""Theophylline after its peak: log concentrations fall along a line, whose height and slope each subject has of its own.

A linear mixed model, log C_ij = (b0 + u_0i) + (b1 + u_1i) t_ij + e_ij: minus b1 is the elimination rate, 1/h.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..datasets import load_theophylline

FORMULA = "log_concentration ~ Time + (1 + Time | Id)"
#: hours after which all subjects have absorbed
PEAK = 3.0
#: by Nelder and Mead's search over the marginal normal density, fixed effects profiled; errors by differences
EXACT = {
    "Intercept": 2.326735,
    "Time": -0.085081,
    "sigma": 0.051720,
    "sd_Id[Intercept]": 0.187422,
    "sd_Id[Time]": 0.013740,
    "cor_Id[Intercept,Time]": -0.001975,
}
EXACT_SE = {
    "Intercept": 0.055192,
    "Time": 0.004065,
    "sigma": 0.005278,
    "sd_Id[Intercept]": 0.039828,
    "sd_Id[Time]": 0.002947,
    "cor_Id[Intercept,Time]": 0.302125,
}
EXACT_LOGLIK = 66.43895


def table() -> pd.DataFrame:
    """Rows after the peak, with "log_concentration" (mg/L)."""
    frame = load_theophylline()
    return frame[frame["Time"] > PEAK].assign(log_concentration=lambda late: np.log(late["Concentration"]))
