"""Fits read from files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import PyTree

from ..algorithms.updates import Problem
from ..engine import storage
from ..engine.outcome import RESULTS
from ..engine.validate import check_data
from ..problem.penalty import AbstractPenalty
from ..problem.space import as_space
from . import keeping
from .fit import Fit
from .restoring import restored

if TYPE_CHECKING:
    from ..esteps import AbstractEStep
    from ..problem.model import AbstractModel
    from ..problem.space import AbstractSpace


def load(
    path: str | Path,
    model: AbstractModel | None = None,
    data: PyTree = None,
    estep: AbstractEStep | None = None,
    space: AbstractSpace | PyTree | None = None,
    params: PyTree = None,
    penalty: AbstractPenalty | None = None,
) -> Any:
    """Read what `save` wrote: a fit, which with `model` and `data` answers everything the original did, or an estimator.

    A file of an estimator is a pickle, which may run code when it is read: load only files that you trust.

    Parameters that were not all in dicts, lists and tuples (in an Equinox module, a named tuple) come back as ordered
    dicts, unless `params` shows their structure: the values that the fit started from, say. Penalty and space are in the file;
    `penalty` and `space` are for classes of one's own, which it cannot hold.

    Raises:
        FileNotFoundError, ValueError: no such file, or not a saved fit; `params` of another shape; a penalty or a space that is
            not the fit's, or none where the file has none.
    """
    if Path(path).is_file() and keeping.is_estimator(path):
        return keeping.read(path)
    header, arrays = storage.read(path)
    if "estimator" in header:  # one that writes its own file, by its public name
        return getattr(import_module(__name__.partition(".")[0]), header["estimator"]).load(path)
    if header.get("kind") != "fit":
        raise ValueError(f"{path} is a {header.get('kind')}, not a saved fit; pass checkpoints to fit(checkpoint=)")
    template = storage.rebuild(header["params"]) if params is None else storage.numbered(params, arrays)
    trees = [storage.fill(template, prefix, arrays) for prefix in ("params", "last", "runs")]
    problem, dtype = None, np.dtype(header["dtype"])
    if model is not None:
        if data is None:
            raise ValueError("pass data= together with model=")
        space = None if space is None else as_space(space, trees[0])
        space = restored("space", header.get("space"), space, dtype, path)
        of_fit = restored("penalty", header.get("penalty"), penalty, dtype, path)
        problem = Problem(model, as_space(space, trees[0]), of_fit, check_data(data))
    return Fit(
        params=trees[0],
        last_params=trees[1],
        run_params=trees[2],
        trace={name[6:]: value for name, value in arrays.items() if name.startswith("trace/")},
        result=RESULTS[header["result"]],
        n_iter=header["n_iter"],
        timings=header["timings"],
        description=header["description"],
        dtype=dtype,
        seed=header["seed"],
        problem=problem,
        estep=estep,
        data=data,
        averaged_from=header["averaged_from"],
        settled=header.get("settled", True),
    )
