"""The occasions of a table: which rows are of which, and what each has given the data."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from ...answers.posterior import each_unit
from ...numerics.precision import precision
from . import answers
from .compartment_equations import by_equations
from .data import _places, group
from .design import changes
from .dosing import Administered, administered
from .outcomes import DOSES, OCCASION, PRESENT, Continuous, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .data import LongData
    from .estimator import NLME
    from .individual import Individual
    from .outcomes import AbstractOutcome


def varying(individual: Mapping[str, Individual]) -> list[str]:
    """Names of the parameters that vary between occasions."""
    return [name for name, one in individual.items() if one.occasion]


def _changing(individual: Mapping[str, Individual], data: LongData) -> list[str]:
    """Names of the parameters that vary between occasions, and of those whose covariates do."""
    along = [name for name, one in individual.items() if one.covariates and changes(one.covariates, data)]
    return list(dict.fromkeys(varying(individual) + along))


def grouped(
    outcome: Any, individual: Mapping[str, Individual], frame: Any, roles: dict[str, str | None], **given: Any
) -> tuple[Any, LongData]:
    """The data, grouped, and the outcome: by its differential equations, where doses still act on an occasion with parameters of
    its own and a sum over them would not know."""
    data = group(frame, roles, outcome, **given)
    summed = data.carried is not None and data.carried.any() and isinstance(administered(outcome), Administered)
    if not (summed and _changing(individual, data)):
        return outcome, data
    outcome = dataclasses.replace(outcome, structural=by_equations(outcome.structural))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # all has been said
        return outcome, group(frame, roles, outcome, **given)


def with_occasions(data: LongData, individual: Mapping[str, Individual], outcome: AbstractOutcome) -> LongData:
    """Data whose units say which occasion a row is of, where a parameter or a covariate varies between occasions; others as they
    are.

    Raises:
        ValueError: no column of occasions, one with holes, no subject with two of them, none with two observations, an outcome
            that is not continuous.
    """
    names, every = varying(individual), _changing(individual, data)
    if not every:
        return data
    which = f"individual[{every[0]!r}] varies between occasions"
    if not isinstance(outcome, Continuous):
        raise ValueError(
            f"{which}, which is for continuous outcomes (structural=...), not for {type(outcome).__name__}; write "
            "log_likelihood= with the occasion's effect as another parameter, or leave occasion=True out"
        )
    if whole(outcome.structural) is not None and data.columns is None:
        raise ValueError(
            f"{which}, and an event table tells differential equations when an occasion begins: give the doses rows of their "
            "own (AMT, EVID), an occasion on every row, or leave occasion=True out"
        )
    if "occ" not in data.roles:
        raise ValueError(f'{which}; name the column of the occasions: fit(data, ..., occ="OCC")')
    column = data.roles["occ"]
    if not names:
        return placed(data)
    if data.occasions["subject"].value_counts().max() < 2:
        raise ValueError(
            f"{which}, but every subject has one {column}: effects between subjects and between occasions cannot be told apart; "
            "leave occasion=True out"
        )
    if pd.DataFrame({"subject": data.codes, "occasion": data.frame[column].to_numpy()}).value_counts().max() < 2:
        raise ValueError(
            f"{which}, but every {column} has one observation (the first: {data.where(0)}): effects between occasions and the "
            "residual error cannot be told apart; leave occasion=True out"
        )
    return placed(data)


def placed(data: LongData) -> LongData:
    """With the place of each row's occasion among the units, and which occasions there are.

    Raises:
        ValueError: a row without an occasion; a dose that acts on the observations of another occasion, where superposition of
            doses is all there is: it has met other parameters meanwhile.
    """
    column = data.roles["occ"]
    missing = data.frame[column].isna().to_numpy()
    if missing.any():
        raise ValueError(f"{column} is missing ({data.where(int(np.flatnonzero(missing)[0]))}); every row needs its occasion")
    timetable = data.timetable
    if timetable is not None:
        lost: Any = timetable.records[timetable.records["occasion"].isna()]
        if len(lost):
            at = f"subject {data.labels[lost['subject'].iloc[0]]}, row {lost.index[0]}"
            raise ValueError(f"{column} is missing ({at}); every row needs its occasion, those of doses too")
    elif data.carried is not None and data.carried.any():
        raise ValueError(
            f"a dose of another {column} still acts here ({data.where(int(np.flatnonzero(data.carried)[0]))}), and "
            "superposition holds for parameters that do not change; where it has washed out, begin the occasion by a record "
            "that empties the compartments (EVID = 3, or 4 with its dose)"
        )
    found = data.occasions
    keys = pd.MultiIndex.from_arrays([found["subject"], found["occasion"]])
    rows = pd.MultiIndex.from_arrays([data.codes, data.frame[column]])
    own = found["place"].to_numpy()[keys.get_indexer(rows)].astype(float)
    present = np.zeros((len(data.labels), found["place"].to_numpy(int).max() + 1))
    present[found["subject"], found["place"]] = 1.0
    padded = own[_places(np.bincount(data.codes), data.units["mask"].shape[1])]
    rows = data.units["rows"] | {OCCASION: padded}
    if timetable is not None:
        rows[DOSES] = rows[DOSES] | timetable.units(rows[DOSES])
    return dataclasses.replace(data, units=data.units | {"rows": rows, PRESENT: present})


def modes(fitted: NLME) -> pd.DataFrame:
    """Conditional modes of the effects of occasions, those of covariates left out: a row an occasion, by subject
    and label, a column a parameter."""
    model: Any = fitted.model_
    found = fitted.data_.occasions
    every = answers.modes(fitted)[:, len(model.random) :].reshape(-1, len(model.varying), model.most)
    every = every - model.centres(fitted.result_.params, np.asarray(fitted.result_.data["design"]))
    own = every[found["subject"], :, found["place"]]
    return pd.DataFrame(own, columns=[model.names[j] for j in model.varying], index=_index(fitted, found))


def shrinkage(fitted: NLME) -> pd.Series:
    """Of effects of occasions: see `NLME.shrinkage`."""
    kappa = modes(fitted)
    variances = np.asarray([fitted.params_[f"gamma2_{name}"] for name in kappa.columns])
    index = [f"{name}[occasion]" for name in kappa.columns]
    return pd.Series(1 - np.mean(kappa.to_numpy() ** 2, axis=0) / variances, index=index, name="shrinkage")


def _index(fitted: NLME, found: pd.DataFrame) -> pd.MultiIndex:
    roles = fitted.data_.roles
    labels = fitted.data_.labels[found["subject"]]
    return pd.MultiIndex.from_arrays([labels, found["occasion"]], names=[roles["id"], roles["occ"]])


def for_these(fitted: NLME, data: LongData) -> np.ndarray:
    """Of other data, (n, m, K): the modes of their occasions, zero for those that the fit did not see."""
    known, found = modes(fitted), data.occasions
    keys = pd.MultiIndex.from_arrays([data.labels[found["subject"]], found["occasion"]])
    values = known.reindex(keys).fillna(0.0).to_numpy()
    out = np.zeros((len(data.labels), known.shape[1], data.units[PRESENT].shape[1]))
    out[found["subject"], :, found["place"]] = values
    return out


def parameters(fitted: NLME) -> pd.DataFrame:
    """See `NLME.by_occasion_`."""
    model: Any = fitted.model_
    if not model.changing:
        raise ValueError("no parameter of this fit varies between occasions; see individual_")
    rule, found = answers.rule_of(fitted), fitted.data_.occasions
    moments, _ = each_unit(fitted.result_, _moments, rule.estep, width=rule.width, rows=rule.rows)
    with precision(fitted.result_.dtype):
        params, design = jax.tree.map(jnp.asarray, (fitted.result_.params, fitted.result_.data["design"]))
        mode = jax.vmap(lambda z, d: model.psi(params, z, d))(jnp.asarray(answers.modes(fitted)), design)
    out: dict[str, np.ndarray] = {}
    for name in (model.names[j] for j in model.changing):
        first, second = (np.asarray(part, float)[found["subject"], found["place"]] for part in moments[name])
        peak = np.asarray(mode[name], float)[found["subject"], found["place"]]
        out |= {f"mode_{name}": peak, f"mean_{name}": first, f"sd_{name}": np.sqrt(np.maximum(second - first**2, 0))}
    return pd.DataFrame(out, index=_index(fitted, found))


def _moments(model, params, z, w, batch):
    psi = jax.vmap(lambda z_j: model.psi(params, z_j, batch["design"][0]))(z[:, 0])
    own = {name: psi[name] for name in (model.names[j] for j in model.changing)}
    return {name: (w[:, 0] @ value, w[:, 0] @ value**2) for name, value in own.items()}
