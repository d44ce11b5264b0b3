"""How one fit runs: the settings of `margaux.fit` as they are given."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import PyTree

from ..algorithms.average import AbstractAverage
from ..problem.penalty import AbstractPenalty

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from jaxtyping import Array

    from ..problem.space import AbstractSpace


@dataclasses.dataclass(frozen=True, eq=False)
class FitSettings:
    """See the arguments of `margaux.fit` of the same names; `dtype` is the fit's precision."""

    params: PyTree
    n_iter: int
    dtype: np.dtype
    key: int | Array = 0
    batch_size: int | None = None
    sampling: str | None = None
    space: AbstractSpace | PyTree | None = None
    penalty: AbstractPenalty | None = None
    average: AbstractAverage | None = None
    runs: int | Sequence[PyTree] | None = None
    spread: float = 0.1
    devices: int = 1
    rows: str | Path = "device"
