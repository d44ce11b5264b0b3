"""Kinds of tables that `PLNPCA` takes, as the types of its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import sparse

if TYPE_CHECKING:
    from anndata import AnnData

    from ...engine.share import Shard
    from ...tables.sparse_parquet import SparseParquet


class Stored(Protocol):
    """What lies on disk and is read a block of rows at a time: an HDF5 dataset or a zarr array."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


#: a row a unit and a column a feature; or a dictionary of these, covariates and offsets; or what `margaux.shard` makes of them
CountsLike: TypeAlias = (
    "ArrayLike | pd.DataFrame | sparse.sparray | sparse.spmatrix | Stored | SparseParquet | AnnData | dict[str, Any] | Shard"
)
#: a row a unit
Covariates: TypeAlias = "ArrayLike | pd.DataFrame | pd.Series | Shard"
#: logs of size factors, by unit or by entry, or the name of a rule
Offsets: TypeAlias = "str | ArrayLike | pd.DataFrame | pd.Series | Shard"
