"""Kinds of data that estimators take, as the types of their arguments."""

from __future__ import annotations

from typing import TypeAlias

import pandas as pd
from numpy.typing import ArrayLike

#: a matrix, a row an observation
Tabular: TypeAlias = ArrayLike | pd.DataFrame
#: one value an observation
Column: TypeAlias = ArrayLike | pd.Series | pd.DataFrame
