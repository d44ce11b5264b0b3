"""How a fitted model takes the doses of a new regimen, whatever table it was fitted to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.precision import precision
from . import curves
from .dosing import FIRST, LAST, AbstractAdministration, Administered, Regimen, administered, dosed
from .dynamics import Dynamics
from .equations import Asked, read_by
from .kinds import OUTPUT
from .outcomes import DOSES, Continuous, Custom
from .pharmacokinetics import Compartments
from .rows_by_output import chosen
from .several import takes_doses, with_doses
from .structural import Curve, _Constants, _Superposition

if TYPE_CHECKING:
    from .estimator import NLME
    from .outcomes import AbstractOutcome

#: relative error beyond which a curve is not taken for linear in the dose
LINEAR = 1e-6


@dataclasses.dataclass(frozen=True)
class Superposed:
    r"""Any curve of one dose at time 0, given several: $\sum_j f(\theta; t - t_j, D_j)$ over the doses before t.

    Args:
        curve: f(parameters, row). time, dose: the names under which its rows have time and dose.
    """

    curve: Callable[..., Any]
    time: tuple[str, ...]
    dose: tuple[str, ...]

    def __call__(self, parameters: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
        doses, t = row[DOSES], row["time"]
        place = jnp.arange(doses["time"].shape[0])
        since = t - doses["time"]
        given = (place >= row[FIRST]) & (place < row[LAST]) & (since >= 0)
        rest = {name: value for name, value in row.items() if name not in (DOSES, FIRST, LAST)}

        def one(since, amount):
            own = dict.fromkeys(self.time, since) | dict.fromkeys(self.dose, amount)
            return self.curve(parameters, rest | own)

        each = jax.vmap(one)(jnp.where(given, since, 0.0), doses["amount"])
        return jnp.sum(jnp.where(given, each, 0.0))


@dataclasses.dataclass(frozen=True)
class Receiving:
    """A model that takes doses.

    Attributes:
        outcome: what is observed, given the doses. administration: how their records are read. superposed: whether the curve is
            any function of one dose. columns: what else of a subject's rows it reads. duration: how long a dose lasts where the
            regimen does not say; None where it must. output: label and place of the output that is followed, where there are
            several.
    """

    outcome: AbstractOutcome
    administration: AbstractAdministration
    superposed: bool
    columns: tuple[str, ...]
    duration: float | None
    output: tuple[str, int] | None = None


def receiving(fitted: NLME, output: object = None) -> Receiving:
    """How a fitted model takes doses. Args: output: the one that is followed, of several.

    Raises:
        ValueError: no such output, an outcome that is no concentration, or a curve that reads no dose, the outcome itself, or a
            column that changes in time.
    """
    outcome: Any = fitted.model_.outcome
    if isinstance(outcome, Custom) and outcome.simulator is None:
        raise ValueError(
            "this log-likelihood cannot be simulated from, so neither can a regimen; regimens are for continuous outcomes "
            "(structural=...)"
        )
    if not isinstance(outcome, Continuous):
        raise ValueError(
            f"a regimen is simulated for continuous outcomes (structural=...), not for {type(outcome).__name__}; "
            "simulate(data) draws this outcome at the rows of a table"
        )
    followed = chosen(outcome, output)
    ready = administered(outcome)
    if isinstance(ready, Dynamics):
        return dataclasses.replace(_of_dynamics(fitted, outcome, ready), output=followed)
    if followed is not None:
        return dataclasses.replace(_of_outputs(fitted, outcome), output=followed)
    if ready is not None:
        return Receiving(outcome, ready, False, (), 0.0)
    found, constants = _compartments(outcome.structural)
    if found is not None:
        curve = dosed(Curve(found, found.parameters, found.columns, found.parameters, str(outcome.structural)))
        duration = constants.get("duration") if found.route == "infusion" else 0.0
        function: Any = curve.function
        return Receiving(dataclasses.replace(outcome, structural=curve), function, False, (), duration)
    return _of_any_curve(fitted, outcome)


def _compartments(curve: Any) -> tuple[Compartments | None, dict[str, float]]:
    """The compartments of a ready curve, of repeated doses of it, or of one with constants, and these."""
    constants: dict[str, float] = {}
    while isinstance(curve, Curve | _Constants | _Superposition):
        constants = dict(curve.constants) | constants if isinstance(curve, _Constants) else constants
        curve = curve.function if isinstance(curve, Curve) else curve.curve
    return (curve, constants) if isinstance(curve, Compartments) else (None, {})


def _of_dynamics(fitted: NLME, outcome: Any, function: Dynamics) -> Receiving:
    row, roles = Asked(), fitted.data_.roles
    function.output(dict.fromkeys(function.states, np.float64(1.0)), Asked(), row)
    if lost := set(row) & {"y", "dose", roles["y"], roles.get("dose")}:
        raise ValueError(f"the output of {outcome.structural!r} reads {sorted(lost)[0]}, which a new regimen has not")
    constants = set(read_by(function)) - {*fitted.model_.names, *function.names}
    columns = tuple(sorted(constants | (set(row) - {"time", OUTPUT})))
    if lost := set(columns) - set(map(str, fitted.data_.frame.columns)):
        raise ValueError(f"{outcome.structural!r} reads {sorted(lost)[0]}, which is no column of subjects")
    _refuse_changing(fitted, outcome, columns)
    # A limit of steps is for the rows of the data, and curves have more.
    curve = dataclasses.replace(outcome.structural, function=dataclasses.replace(function, max_steps=None))
    return Receiving(dataclasses.replace(outcome, structural=curve), function, False, columns, 0.0)


def _of_outputs(fitted: NLME, outcome: Any) -> Receiving:
    curve = outcome.structural
    if administered(outcome) is None:
        if not takes_doses(curve):
            raise ValueError(
                f"no output of {curve!r} is a ready compartment model, whose doses a regimen could change; give it one, such as "
                "oral1cpt"
            )
        curve = with_doses(curve)
    columns = tuple(column for column in curve.columns if column != "time")
    if lost := [name for name in columns if name in ("y", "dose", *fitted.data_.roles.values())]:
        raise ValueError(f"the outputs of {curve!r} read {lost[0]}, which a new regimen has not")
    _refuse_changing(fitted, outcome, columns)
    function: Any = curve.function
    return Receiving(dataclasses.replace(outcome, structural=curve), function, False, columns, 0.0)


def _of_any_curve(fitted: NLME, outcome: Any) -> Receiving:
    data = fitted.data_
    if data.columns is not None or "time" not in data.roles or "dose" not in data.roles:
        raise ValueError(
            f"{outcome.structural!r} has no doses to change: the fit named no column of time and of dose; "
            'fit(data, ..., time="column", dose="column"), or give it the doses of an event table'
        )
    time, dose = (("time", data.roles["time"]), ("dose", data.roles["dose"]))
    read = curves._columns_read(fitted)
    if not read & set(dose):
        raise ValueError(f"{outcome.structural!r} does not read the dose, so no regimen changes it")
    if read & {"y", data.roles["y"]}:
        raise ValueError(f"{outcome.structural!r} reads the outcome itself, which a new regimen has not yet")
    columns = tuple(sorted(read - set(time) - set(dose)))
    _refuse_changing(fitted, outcome, columns)
    function = Superposed(outcome.structural, time, dose)
    stand_in = Administered(Compartments(1, "bolus"))
    return Receiving(dataclasses.replace(outcome, structural=function), stand_in, True, columns, 0.0)


def _refuse_changing(fitted: NLME, outcome: Any, columns: tuple[str, ...]) -> None:
    data = fitted.data_
    for name in columns:
        if np.any(data.frame[name].to_numpy() != data.subjects[name].to_numpy()[data.codes]):
            raise ValueError(
                f"{outcome.structural!r} reads the column {name}, which changes within a subject; a regimen is simulated for "
                "curves of time, dose and what is constant within a subject"
            )


def check_superposed(fitted: NLME, receiving: Receiving, regimen: Regimen, n_doses: int) -> None:
    """Raises: ValueError: a curve of one dose at once cannot take these, or it is not linear in the dose."""
    if not receiving.superposed:
        return
    function: Any = receiving.outcome.structural  # type: ignore[attr-defined]
    name = repr(function.curve)
    if regimen.infusions or regimen.steady:
        what = "last" if regimen.infusions else "are at steady state"
        raise ValueError(
            f"{name} is a function of one dose at once, and doses of this regimen {what}; a ready compartment model takes them"
        )
    if n_doses < 2:
        return
    data = fitted.data_
    time = np.unique(data.frame[data.roles["time"]].to_numpy(float))
    time = np.append(0.0, np.quantile(time[time >= 0], [0.1, 0.5, 0.9, 1.0]))
    amount = float(np.median(np.abs(data.frame[data.roles["dose"]].to_numpy(float)))) or 1.0
    first = data.subjects.iloc[0]
    with precision(np.dtype(float)):
        psi = {name: jnp.asarray(fitted.params_[name]) for name in fitted.model_.names}
        row = {column: jnp.asarray(float(first[column])) for column in receiving.columns}

        def after(t, amount):
            own = dict.fromkeys(function.time, t) | dict.fromkeys(function.dose, amount)
            return function.curve(psi, row | own)

        one, two, none = (np.asarray(jax.vmap(lambda t, d=d: after(t, d))(jnp.asarray(time))) for d in (amount, 2 * amount, 0.0))
    size = np.max(np.abs(one))
    if np.max(np.abs(two - 2 * one)) > LINEAR * size or np.max(np.abs(none)) > LINEAR * size:
        raise ValueError(
            f"{name} is not linear in the dose, so its curves after several doses are not the sum of those after each; simulate "
            "one dose, or use a model that knows all the doses"
        )
