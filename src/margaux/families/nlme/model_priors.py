"""Priors in a model file: by name, `{center = 1.5, cv = 0.3}` or `{mode = 0.09, df = 20}`; of a block, "V, CL"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .model_keys import NUMBER, Kind, Source
from .priors import InverseWishart, NormalPrior

MODE = Kind(
    "a variance, or a covariance matrix such as [[0.09, 0.02], [0.02, 0.04]]",
    lambda value: NUMBER.test(value) or isinstance(value, list) and all(isinstance(row, list) for row in value),
)
NORMAL, WISHART = {"center": NUMBER, "sd": NUMBER, "cv": NUMBER}, {"mode": MODE, "df": NUMBER}


def read(table: Mapping[str, Any], source: Source) -> dict[Any, NormalPrior | InverseWishart]:
    """The priors of a file's table.

    Raises:
        ValueError: a mistake, with its key and line.
    """
    out: dict[Any, NormalPrior | InverseWishart] = {}
    for name, given in table.items():
        keys = ["priors", name]
        if not isinstance(given, dict):
            raise source.problem(keys, "must be a table, such as {center = 1.5, cv = 0.3} or {mode = 0.09, df = 20}")
        normal = "center" in given
        source.check(given, keys, NORMAL if normal else WISHART, needed=() if normal else ("mode", "df"))
        try:
            prior = NormalPrior(**given) if normal else InverseWishart(**given)
        except ValueError as problem:
            raise source.problem(keys, str(problem)) from problem
        block = isinstance(prior, InverseWishart) and prior.size > 1
        out[tuple(part.strip() for part in name.split(",")) if block else name] = prior
    return out


def written(priors: Mapping[Any, NormalPrior | InverseWishart]) -> dict[str, dict[str, Any]]:
    """The table of a file."""
    return {name if isinstance(name, str) else ", ".join(name): _written(prior) for name, prior in priors.items()}


def _written(prior: NormalPrior | InverseWishart) -> dict[str, Any]:
    if isinstance(prior, InverseWishart):
        return {"mode": np.asarray(prior.mode, float).tolist(), "df": float(prior.df)}
    return {name: float(value) for name in NORMAL if (value := getattr(prior, name)) is not None}
