"""Fitted Bayesian networks in a file."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import PyTree

from ...engine import storage
from ...showing.parts import check_fitted
from . import priors
from .approximation import Approximation, free_part
from .draws import DRAWS
from .methods import ENSEMBLE
from .model import SCALES, Variational
from .observations import Scaling
from .posterior import GaussianPosterior
from .structures import KINDS, Joint
from .trajectory import Chain, Swag

KIND = "bayesian network"


def write(path: str | Path, estimator: Any) -> None:
    """Settings that JSON knows, the model and its posterior, and what observations are scaled by.

    Raises:
        ValueError: a prior of one's own, which a file cannot hold.
    """
    model, keep = (
        estimator._model,
        (
            "_shape",
            "_columns",
            "_y_scale",
            "message_",
            "converged_",
            "n_iter_",
            "n_observations_",
            "n_features_in_",
            "step_",
            "log_evidence_",
            "structure_",
            "curvature_",
        ),
    )
    if getattr(priors, type(model.prior).__name__, None) is not type(model.prior) or isinstance(model.prior, priors.Density):
        raise ValueError(
            f"a file cannot hold the prior {type(model.prior).__name__}; use one of margaux.families.variational.priors"
        )
    kinds, parts = stored(estimator._approximation)
    header = {
        "kind": KIND,
        "estimator": type(estimator).__name__,
        "settings": {name: _item(value) for name, value in estimator.get_params(deep=False).items() if _plain(_item(value))},
        "kept": {name: _item(getattr(estimator, name)) for name in keep if _plain(_item(getattr(estimator, name, _MISSING)))},
        "dtype": str(estimator._dtype),
        "prior": [type(model.prior).__name__, {name: np.asarray(value).tolist() for name, value in vars(model.prior).items()}],
        "information": None if model.posterior.information is None else float(model.posterior.information),
        "model": {
            "n": int(model.n),
            "n_blocks": int(model.n_blocks),
            "slices": model.slices,
            "temperature": float(model.temperature),
        },
        "posterior": {
            "spread": model.posterior.spread,
            "n_blocks": int(model.posterior.n_blocks),
            "table": model.posterior.table,
        },
        "draws": next(name for name, draws in DRAWS.items() if type(draws) is type(model.draws)),
        "params": sorted(estimator._params),
        "members": len(estimator.members_),
        "laplace": kinds,
        "drawn": None if estimator._kept is None else type(estimator._kept).__name__,
    }
    arrays = _posterior("", estimator) | parts
    for j, member in enumerate(estimator.members_):
        arrays |= _posterior(f"member{j}/", member)
    arrays |= storage.flatten("scaling", tuple(estimator._scaling))
    arrays |= {
        f"temperatures/{name}": column.to_numpy(str if column.dtype.kind not in "fiub" else None)
        for name, column in estimator.temperatures_.items()
    }
    arrays |= {f"history/{name}": column.to_numpy() for name, column in estimator.history_.items()}
    if hasattr(estimator, "classes_"):
        labels = estimator.classes_
        arrays["classes"] = labels.astype(str) if labels.dtype == object else labels
    storage.write(path, header, arrays)


def read(path: str | Path, cls: Any, network: Any, weights: PyTree) -> Any:
    """The estimator of `write`."""
    header, arrays = storage.read(path)
    if header.get("kind") != KIND:
        raise ValueError(f"{path} is a {header.get('kind')}, not a saved Bayesian network")
    if header["estimator"] != cls.__name__:
        raise ValueError(f"{path} holds a {header['estimator']}; read it with {header['estimator']}.load")
    out = cls(**header["settings"])
    if network is not None:
        out.network, out.weights = network, weights
    elif "network" not in header["settings"]:
        raise ValueError(f"the network of {path} was not given by name; pass network= (and weights=) as at the fit")
    for name, value in header["kept"].items():
        setattr(out, name, tuple(value) if isinstance(value, list) and name != "_columns" else value)
    out._scaling = Scaling(bool(arrays["scaling/0"]), arrays["scaling/1"], arrays["scaling/2"])
    if "classes" in arrays:
        out.classes_ = arrays["classes"]
    dtype = np.dtype(header["dtype"])
    made, start = out._network(dtype)
    kind, fields = header["prior"]
    prior = getattr(priors, kind)(**fields)
    posterior = GaussianPosterior(information=header["information"], **header["posterior"])
    model = Variational(made, out._likelihood(), prior, posterior, draws=DRAWS[header["draws"]], **header["model"])
    template = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), model.start(start, 1.0))
    if sorted(template) != header["params"]:
        raise ValueError(f"{path} has parameters {header['params']}, and this network {sorted(template)}")
    _take("", out, model, template, arrays, dtype)
    out.history_, out.temperatures_ = _table("history/", arrays), _table("temperatures/", arrays)
    out.temperature_ = float(model.temperature)
    out.result_, out._data, out._held_out = None, None, None
    members = []
    for j in range(header.get("members", 0)):
        member = copy.copy(out)
        member.method = None if out.method == ENSEMBLE else out.method
        member.random_state = out.random_state + j
        member._kept = _kept(f"member{j}/", header.get("drawn"), template, arrays)
        members.append(_take(f"member{j}/", member, model, template, arrays, dtype))
    out.members_, out._approximation = tuple(members), restored(out, header.get("laplace", []), arrays)
    out._kept = out._joined() if header.get("drawn") else None
    return out


def _posterior(start: str, estimator: Any) -> dict[str, np.ndarray]:
    trees = {"params": estimator._params, "mean": estimator._means, "deviation": estimator._deviations}
    if start and estimator._kept is not None:  # draws are those of the members
        trees |= {f"kept/{name}": value for name, value in estimator._kept._asdict().items()}
    return {name: leaf for place, tree in trees.items() for name, leaf in storage.flatten(f"{start}{place}", tree).items()}


def _kept(start: str, kind: str | None, template: dict[str, PyTree], arrays: dict[str, np.ndarray]) -> Chain | Swag | None:
    """What was kept along the way of the weights."""
    if kind is None:
        return None
    cls: Any = {"Chain": Chain, "Swag": Swag}[kind]
    like = {"scales": {name: value for name, value in template.items() if name in SCALES}, "kept": 0}

    def field(name: str) -> Any:
        structure = jax.tree.structure(like.get(name, template["mean"]))
        return jax.tree.unflatten(structure, [arrays[f"{start}kept/{name}/{i}"] for i in range(structure.num_leaves)])

    return cls(**{name: field(name) for name in cls._fields})


def _take(start: str, out: Any, model: Variational, template: Any, arrays: dict[str, np.ndarray], dtype: np.dtype) -> Any:
    """The estimator with the posterior of a file."""
    out._keep(model, storage.unflatten(f"{start}params", template, arrays), dtype)
    out._means = storage.unflatten(f"{start}mean", template["mean"], arrays)
    out._deviations = storage.unflatten(f"{start}deviation", template["mean"], arrays)
    return out


def _table(start: str, arrays: dict[str, np.ndarray]) -> pd.DataFrame:
    return pd.DataFrame({name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)})


class Stored:
    """An estimator that can be saved."""

    def save(self, path: str | Path) -> None:
        """Save without pickle; `load` reads it back. The data are not saved."""
        check_fitted(self)
        write(path, self)

    @classmethod
    def load(cls, path: str | Path, network: Any = None, weights: PyTree = None) -> Any:
        """Read a saved estimator: it predicts as the original did.

        Args:
            network, weights: as at the fit, where the network was not given by name.

        Raises:
            FileNotFoundError, ValueError: no such file, another estimator's, or the network is missing or another.
        """
        return read(path, cls, network, weights)


_MISSING = object()


def _item(value: object) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _plain(value: object) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def stored(made: Approximation | None) -> tuple[list[str], dict[str, np.ndarray]]:
    """What a file holds of it: kinds of its parts, and their arrays."""
    if made is None:
        return [], {}
    names = {kind: name for name, kind in KINDS.items()}
    arrays = {
        f"laplace/{j}/{field.name}": getattr(part, field.name)
        for j, part in enumerate(made.posterior.parts)
        for field in dataclasses.fields(part)
    }
    return [names[type(part)] for part in made.posterior.parts], arrays


def restored(estimator: Any, kinds: list[str], arrays: dict[str, np.ndarray]) -> Approximation | None:
    """That of `stored`, for an estimator whose network and means are there."""
    if not kinds:
        return None
    parts = [
        KINDS[kind](**{field.name: arrays[f"laplace/{j}/{field.name}"] for field in dataclasses.fields(KINDS[kind])})
        for j, kind in enumerate(kinds)
    ]
    network, weights = free_part(estimator._model.network, estimator._means, estimator.layers)
    return Approximation(network, weights, Joint(tuple(parts)), estimator.structure_)
