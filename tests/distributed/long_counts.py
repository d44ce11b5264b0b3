"""PLN-PCA of a long Parquet table over the processes that run this script: `python long_counts.py FOLDER WHAT`.

What is read of the file is kept: where it begins and how long it is.
"""

import io
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import counts
import numpy as np
import pandas as pd
import pyarrow.parquet as parquet

import margaux as mx

SETTINGS = {"rank": 2, "n_starts": 2, "method": "variational", "verbose": False}
GIVEN = {"formula": "~ site + depth", "offsets": "TSS"}


def long(seed=0):
    """The counts of `counts.table` that are not zero, cell by cell, the genes of each in any order, beside a column of no use."""
    table = counts.table()[0].tocoo()
    cells, genes = named()
    frame = pd.DataFrame({"barcode": cells[table.row], "gene": genes[table.col], "umi": table.data.astype(np.int32)})
    frame["of_no_use"] = np.arange(float(len(frame)))
    order = np.random.default_rng(seed).random(len(frame))
    return frame.iloc[np.lexsort((order, table.row))]


def named():
    """Names of the cells, which are not in alphabetical order, and genes, which are."""
    return pd.Index([f"cell {i}" for i in range(counts.N)]), pd.Index([f"gene {j:02d}" for j in range(counts.P)])


def fitted(table, shared=lambda data: data):
    """A fit of counts with covariates."""
    frame = counts.table()[1].set_axis(named()[0])
    return mx.PLNPCA(**SETTINGS).fit(shared({"counts": table, "covariates": frame}), **GIVEN)


class Watched(io.FileIO):
    """A file that keeps the spans that are read of it."""

    def __init__(self, path, spans):
        super().__init__(path)
        self.spans = spans

    def _note(self, size):
        if size:
            self.spans.append((self.tell() - size, self.tell()))

    def read(self, size=-1):
        out = super().read(size)
        self._note(len(out or b""))
        return out

    def readinto(self, buffer):
        size = super().readinto(buffer)
        self._note(size)
        return size


def watch(spans):
    """Have decoding go through watched files."""

    class File(parquet.ParquetFile):
        def __init__(self, source, **settings):
            self.file = Watched(source, spans)
            super().__init__(self.file, **settings)

        def close(self, force=False):
            super().close(force)
            self.file.close()

    parquet.ParquetFile = File


def main():
    warnings.simplefilter("ignore")
    mx.distributed.initialize(heartbeat_timeout_seconds=10)
    import jax

    folder, what = Path(sys.argv[1]), sys.argv[2]
    spans, index = [], jax.process_index()
    watch(spans)
    table = mx.sparse_parquet(folder / f"{what}.parquet")
    model = fitted(table, mx.shard)
    values = model.table_.counts.values
    print(f"process {index} has {type(values).__name__} of {values.shape}, units {list(model.table_.units[:1])}")
    np.savez(folder / f"found.{index}.npz", coef=model.coef_, loadings=model.loadings_, loglik=float(model.loglik_), spans=spans,
             scores=mx.distributed.gathered(model.scores_), sizes=model.table_.counts.share.sizes,
             units=mx.distributed.gathered(model.scores_frame()).index.to_numpy(str), stored=values.nnz)  # fmt: skip


if __name__ == "__main__":
    main()
