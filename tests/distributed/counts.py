"""Fits of PLN-PCA over the processes that run this script: `python counts.py OUT [NAME ...]`.

Estimates and answers go to a file for each process: what they all have under plain names, and what is of their own units under
names that begin with "own".
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import scipy

import margaux as mx
from margaux.families.pln.refinement import Refinement, paper

N, P = 61, 12


def table(n=N, p=P, seed=0):
    """Counts as a sparse table with names, covariates of which one process may lack a level, and offsets."""
    rng = np.random.default_rng(seed)
    site = pd.Categorical(np.where(np.arange(n) < n // 4, "north", rng.choice(["east", "west"], n)), ["west", "east", "north"])
    depth = rng.normal(size=n)
    offset = rng.normal(0, 0.3, n)
    z = (
        0.6
        + 0.3 * np.asarray(site == "east")[:, None]
        - 0.2 * depth[:, None]
        + rng.normal(size=(n, 2)) @ rng.normal(0, 0.7, (2, p))
    )
    counts = rng.poisson(np.exp(offset[:, None] + z))
    counts[:, 0] += 1  # a feature that every unit has
    return scipy.sparse.csr_array(counts), pd.DataFrame({"site": site, "depth": depth}), offset


def parts():
    """Settings of the estimator and of its fit by name."""
    return {
        "auto": ({"rank": 2, "n_starts": 2}, {"formula": "~ site + depth", "offsets": "array"}),
        "variational": ({"rank": 2, "n_starts": 4, "method": "variational", "tol": 1e-6}, {"offsets": "TSS"}),
        "diagonal": ({"rank": 2, "n_starts": 1, "method": "variational", "posterior_covariance": "diagonal"}, {}),
        "columns": ({"rank": 1, "n_starts": 2}, {"covariates": True, "offsets": "poscounts"}),
        "RLE": ({"rank": 1, "n_starts": 1, "method": "variational"}, {"offsets": "RLE"}),
        "Wrench": ({"rank": 1, "n_starts": 1, "method": "variational"}, {"offsets": "Wrench"}),
        "student": ({"rank": 2, "n_starts": 1, "method": "student"}, {}),
        "batches": ({"rank": 2, "n_starts": 1, "refinement": Refinement(batch_size=10, epochs=8), "method": "student"}, {}),
        "paper": ({"rank": 1, "n_starts": 1, "refinement": paper("aisgd-snis", 32, 3, 1), "method": "aisgd-snis"}, {}),
        "float32": ({"rank": 2, "n_starts": 1, "method": "variational", "dtype": "float32"}, {}),
    }


def fitted(name, shared):
    """A fit of all units, or of this process's by `shared`."""
    settings, how = parts()[name]
    counts, frame, offset = table()
    given = {}
    if "formula" in how or how.get("covariates"):
        given["covariates"] = shared(frame)
    if how.get("offsets") == "array":
        given["offsets"] = shared(offset)
    elif "offsets" in how:
        given["offsets"] = how["offsets"]
    model = mx.PLNPCA(**settings, verbose=False)
    return model.fit(shared(counts), formula=how.get("formula"), **given)


def answered(model):
    """What is asked of a fit: of all units, and of each process's own."""
    every = {
        "coef": model.coef_,
        "loadings": model.loadings_,
        "bounds": np.array(model.bounds_),
        "se": model.stderr_["coef"],
        "robust": model.summary(errors="robust")["se"].to_numpy(),
        "starts": model.starts_["bound"].to_numpy(),
        "loglik": np.array([float(model.loglik_), model.loglik_.se]),
        "criteria": np.array([model.aic_, model.bic_, model.icl_]),
        "certificate": model.certificate_.table()["figure"].to_numpy(float),
        "word": np.array(model.certificate_.word),
        "frequencies": np.stack(model.frequencies(4)),
        "ascent": np.array(model.ascent_),
    }
    own = {"scores": model.scores_, "spread": model.scores_covariance_, "importance": model.importance_.to_numpy(float)}
    return every, own


def uneven(sizes):
    """What gives each process its own of consecutive rows that differ in number."""
    import jax

    ends = np.cumsum(sizes)
    span = slice(ends[jax.process_index()] - sizes[jax.process_index()], ends[jax.process_index()])
    return lambda data: mx.shard(data.iloc[span] if isinstance(data, pd.DataFrame) else data[span], local=True)


def main():
    warnings.simplefilter("ignore")
    mx.distributed.initialize()
    import jax

    out, sizes, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    shared = mx.shard if sizes == "even" else uneven([int(size) for size in sizes.split(",")])
    found = {}
    for name in names:
        every, own = answered(fitted(name, shared))
        found |= {f"{name}/{key}": value for key, value in every.items()}
        found |= {f"own {name}/{key}": value for key, value in own.items()}
        found |= {f"{name}/all {key}": mx.distributed.gathered(value) for key, value in own.items()}
    np.savez(out.with_suffix(f".{jax.process_index()}.npz"), **found)


if __name__ == "__main__":
    main()
