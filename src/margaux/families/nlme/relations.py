"""Relations between individual parameters and covariates that a search may include, and one model that holds them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from .design import changes, check_covariates, formula_of
from .held import HeldValues
from .model import MixedEffects
from .whole import with_model

if TYPE_CHECKING:
    from ...answers.fit import Fit
    from .estimator import NLME


@dataclasses.dataclass(frozen=True)
class Relation:
    """A term in the formula of a parameter, with its columns, scaled, and centred unless the intercept is held (n, c): the
    likelihood is the same as without."""

    parameter: str
    term: str
    columns: Float[np.ndarray, "n c"]

    def __str__(self) -> str:
        return f"{self.parameter} ~ {self.term}"


def relations(fitted: NLME, candidates: Mapping[str, Sequence[str]]) -> list[Relation]:
    """Of every parameter, as they were given.

    Raises:
        TypeError, ValueError: no such parameter, a term that is no formula of the columns, a column that has holes, varies
            within a subject or is not finite, or a relation named twice.
    """
    if not isinstance(candidates, Mapping) or not candidates:
        raise TypeError(f'candidates must name terms of each parameter, as {{"CL": ["log(WT/70)", "SEX"]}}, got {candidates!r}')
    out: list[Relation] = []
    for parameter, terms in candidates.items():
        if parameter not in fitted.model_.names:
            raise ValueError(
                f"candidates name {parameter!r}, which is no individual parameter; they are {', '.join(fitted.model_.names)}"
            )
        for term in [terms] if isinstance(terms, str) else terms:
            if not isinstance(term, str) or not term.strip():
                raise TypeError(f'a candidate of {parameter} must be a term of a formula, such as "log(WT/70)", got {term!r}')
            if any(one.parameter == parameter and one.term == term.strip() for one in out):
                raise ValueError(f"candidates name {term.strip()!r} of {parameter} twice")
            out.append(Relation(parameter, term.strip(), _columns(fitted, parameter, term.strip())))
    if not out:
        raise ValueError("candidates name no term of any parameter")
    return out


def _columns(fitted: NLME, parameter: str, term: str) -> np.ndarray:
    """Those of the term (n, c), scaled, and centred where the intercept is estimated; constant ones stay zero."""
    data, model = fitted.data_, fitted.model_
    if changes(term, data):
        raise ValueError(
            f"the candidate {term!r} of {parameter} changes between a subject's occasions, and the search is among what is "
            f"constant within a subject; give it to the model that the search begins with, as covariates={term!r} of {parameter}"
        )
    check_covariates(term, data, within_occasions=False)
    subjects = data.subjects
    table = pd.DataFrame(formula_of(term, subjects, parameter).get_model_matrix(subjects)).drop(
        columns=["Intercept"], errors="ignore"
    )
    values = table.to_numpy(float)
    if not values.shape[1]:
        raise ValueError(f"the term {term!r} of {parameter} has no column of its own: an intercept is always there")
    bad = ~np.isfinite(values).all(axis=1)
    if bad.any():
        raise ValueError(
            f"the candidate {term!r} of {parameter} is not finite for subject {data.labels[int(np.flatnonzero(bad)[0])]}; mend "
            "the column, or take another function of it"
        )
    size = values.std(axis=0)
    intercept = model.coefficients(model.names.index(parameter))[0]
    values = values - (0.0 if model.held_coefficients[intercept] else values.mean(axis=0))
    # What rounding leaves of a constant is constant.
    constant = size <= 1e-10 * np.maximum(np.abs(table.to_numpy(float)).max(axis=0), 1e-300)
    return np.where(constant, 0.0, values / np.where(constant, 1.0, size))


class Together:
    """One model with the coefficients of all relations, of which those that are not in the model are held at zero.

    Attributes:
        fit: around that model, at the estimate, with all of them zero. places: the coefficients of each relation.
    """

    def __init__(self, fitted: NLME, candidates: list[Relation]) -> None:
        model, fit = fitted.model_, fitted.result_
        design = np.asarray(fit.data["design"], float)
        values = np.concatenate([np.ravel(fit.params.get(name, ())) for name in ("beta", "fixed")])
        kept = np.where(model.held_coefficients, values, np.nan)
        order = [*model.random, *(j for j in range(len(model.names)) if j not in model.random)]
        columns: list[np.ndarray] = []
        starts: list[float] = []
        held: list[float] = []
        owner: list[int] = []
        self.places: list[Int[np.ndarray, " c"]] = [np.zeros(0, int)] * len(candidates)
        for j in order:
            own = model.coefficients(j)
            columns, starts, owner = columns + list(design[:, own].T), starts + list(values[own]), owner + [j] * len(own)
            held += list(kept[own])
            for at, one in enumerate(candidates):
                if one.parameter == model.names[j]:
                    self.places[at] = len(owner) + np.arange(one.columns.shape[1])
                    columns, starts = columns + list(one.columns.T), starts + [0.0] * one.columns.shape[1]
                    owner, held = owner + [j] * one.columns.shape[1], held + [np.nan] * one.columns.shape[1]
        wide: MixedEffects = dataclasses.replace(model, owner=tuple(owner))
        others = {name: model.held.vector(name, len(mask)) for name, mask in model.held.masks}
        coefficients = {"beta": np.asarray(held[: wide.split]), "fixed": np.asarray(held[wide.split :])}
        wide = dataclasses.replace(wide, held=HeldValues.of(others | coefficients))
        params = dict(fit.params)
        if model.random:
            params["beta"] = np.asarray(starts[: wide.split])
        if wide.split < len(owner):
            params["fixed"] = np.asarray(starts[wide.split :])
        units = dict(fit.data) | {"design": np.column_stack([*columns, design[:, len(model.owner) :]])}
        self.model, self.candidates = wide, candidates
        self.design = np.stack(columns, axis=1)
        self.fit: Fit = with_model(fit, wide, units, params)

    def held(self, inside: list[int], size: int) -> Bool[np.ndarray, " k"]:
        """Which of the engine's unconstrained coordinates are held where these relations are in the model."""
        out = np.zeros(size, bool)
        for at, places in enumerate(self.places):
            if at not in inside:
                out[self._coordinates(places)] = True
        return out

    def without(self, params: dict, left: int) -> dict[str, Any]:
        """Parameters at which a relation's coefficients are zero."""
        out = {name: np.array(leaf) if name in ("beta", "fixed") else leaf for name, leaf in params.items()}
        for place in self.places[left]:
            name, at = ("beta", place) if place < self.model.split else ("fixed", place - self.model.split)
            out[name][at] = 0.0
        return out

    def dependent(self, inside: list[int], new: int) -> bool:
        """Whether a relation adds no column to those that its parameter has."""
        j = self.model.names.index(self.candidates[new].parameter)
        among = {place for at in range(len(self.candidates)) if at not in [*inside, new] for place in self.places[at]}
        own = self.design[:, [k for k in self.model.coefficients(j) if k not in among]]
        return bool(np.linalg.matrix_rank(own / np.maximum(np.abs(own).max(axis=0), 1e-300)) < own.shape[1])

    def means(self, params: dict) -> dict[str, Float[np.ndarray, " n"]]:
        """C_i beta of each individual parameter, by name."""
        values = np.concatenate([np.ravel(params.get(name, ())) for name in ("beta", "fixed")])
        own = {name: self.model.coefficients(j) for j, name in enumerate(self.model.names)}
        return {name: self.design[:, at] @ values[at] for name, at in own.items()}

    def _coordinates(self, places: np.ndarray) -> list[int]:
        """Of coefficients, which are coordinates of their own: everything before them that is not held is one, too."""
        names = [name for name in self.fit.names if name not in self.model.held.names]
        split = self.model.split
        return [names.index(f"beta[{k}]" if k < split else f"fixed[{k - split}]") for k in places]
