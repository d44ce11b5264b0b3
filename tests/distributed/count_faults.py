"""PLN-PCA over the processes that run this script, from files or with something wrong: `python count_faults.py FOLDER WHAT`."""

import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import counts
import numpy as np

import margaux as mx


def opened(folder, kind) -> tuple[Any, dict[str, Any]]:
    """The table of `counts.table` as it lies on disk, and what to give to `fit` beside it."""
    if kind == "memmap":
        return np.load(folder / "counts.npy", mmap_mode="r"), {}
    if kind == "zarr":
        import zarr

        return zarr.open_array(str(folder / "counts.zarr"), mode="r"), {}
    if kind == "hdf5":
        import h5py

        return h5py.File(folder / "counts.h5")["counts"], {}
    import anndata

    return anndata.read_h5ad(folder / f"{kind}.h5ad", backed="r"), {"formula": "~ site + depth"}


def wrong(what, index):
    """Data and settings of which something is wrong, in process 1 where processes differ."""
    table, frame, offset = counts.table()
    given, settings, dense = {}, {"rank": 2, "n_starts": 1, "method": "variational"}, table.toarray().astype(float)
    if what == "nan":
        dense[40, 3] = np.nan
    elif what == "negative":
        dense[60, 1] = -2
    elif what == "features" and index == 1:
        dense = dense[:, ::-1][:, 1:]
    elif what == "settings":
        settings["rank"] += index
    elif what == "covariate":
        given["covariates"] = mx.shard(frame.assign(depth=frame.depth.where(np.arange(len(frame)) != 50)))
    elif what == "rows":
        given["covariates"] = frame
    elif what == "unshared":
        return dense, {"covariates": mx.shard(frame)}, settings
    elif what == "GMPR":
        given["offsets"] = "GMPR"
    elif what == "offsets":
        given["offsets"] = mx.shard(np.where(np.arange(len(offset)) == 55, np.inf, offset))
    return mx.shard(dense), given, settings


def main():
    warnings.simplefilter("ignore")
    mx.distributed.initialize(heartbeat_timeout_seconds=10)
    import jax

    folder, what = Path(sys.argv[1]), sys.argv[2]
    kind, stored, name = what.partition("stored as ")
    if not stored:
        data, given, settings = wrong(what, jax.process_index())
        if what == "killed" and jax.process_index() == 1:
            import os
            import threading

            threading.Timer(6.0, lambda: os.kill(os.getpid(), 9)).start()
            settings |= {"tol": 1e-300, "max_sweeps": 10**9}
        elif what == "killed":
            settings |= {"tol": 1e-300, "max_sweeps": 10**9}
        mx.PLNPCA(**settings, verbose=False).fit(data, **given)
        return
    data, given = opened(folder, name)
    model = mx.PLNPCA(rank=2, n_starts=1, method="variational", verbose=False).fit(mx.shard(data), **given)
    values = model.table_.counts.values
    print(f"process {jax.process_index()} has {type(values).__name__} of {values.shape}, units {list(model.table_.units[:1])}")
    again = model.transform(mx.shard(data))
    score = model.score(mx.shard(data))
    np.savez(folder / f"{name}.{jax.process_index()}.npz", coef=model.coef_, loadings=model.loadings_, score=score,
             scores=mx.distributed.gathered(model.scores_), again=mx.distributed.gathered(again))  # fmt: skip


if __name__ == "__main__":
    main()
