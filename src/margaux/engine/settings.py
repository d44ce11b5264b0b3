"""How one fit runs: the settings of `margaux.fit` as they are given."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import PyTree

from ..algorithms.average import AbstractAverage
from ..problem.penalty import AbstractPenalty


@dataclasses.dataclass(frozen=True, eq=False)
class FitSettings:
    """See the arguments of `margaux.fit` of the same names; `dtype` is the fit's precision."""

    params: PyTree
    n_iter: int
    dtype: np.dtype
    key: Any = 0
    batch_size: int | None = None
    sampling: str | None = None
    space: Any = None
    penalty: AbstractPenalty | None = None
    average: AbstractAverage | None = None
    runs: Any = None
    spread: float = 0.1
    devices: int = 1
    rows: Any = "device"
