"""Structural models with several outputs, from a model of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import Array

from .dosing import AbstractAdministration, Administered, Regimen, dosed
from .dynamics import Dynamics
from .equations import Asked
from .kinds import OUTPUT, labelled, outputs_of, selected
from .pharmacokinetics import Compartments
from .structural import Curve


def outputs(models: Mapping[int | str, Callable[..., Any]], *, parameters: Sequence[str] | None = None, name: str = "") -> Curve:
    r"""A structural model with several outputs, such as a concentration and an effect: $f_k(\psi, x)$ of a row of output k.

    A column of the data says which output a row is of, DVID in any case or `fit(output=)`, and each output has a residual error
    of its own. Models share the parameters that have one name in both. A model of one's own sees in its row the predictions of
    the outputs before it, under their labels: `row["cp"]` is the concentration without error, whatever the column "cp" may
    hold. Doses of an event table reach the ready compartment models. For differential equations see `ode(output={...})`.

    Args:
        models: by label, as the column has it, a ready curve or f(parameters, row). parameters: names of individual parameters;
            found by calling the models where None. name: for messages.

    >>> from margaux.nlme import oral1cpt
    >>> def effect(psi, row):
    ...     return psi["E0"] * (1 - row["cp"] / (psi["IC50"] + row["cp"]))
    >>> outputs({"cp": oral1cpt, "effect": effect})
    outputs[cp, effect](ka, V, CL, E0, IC50 | time, dose)

    Raises:
        ValueError, TypeError: fewer than two models, a label twice, no function, a function that fails at plausible values, or
            differential equations.
    """
    labels = labelled(models, "outputs")
    asked, row = Asked(), Asked()
    names: list[str] = []
    columns: list[str] = []
    natural: list[str] = []
    for label, model in zip(labels, models.values(), strict=True):
        if not callable(model):
            raise TypeError(f"the output {label} must be a function of (parameters, row), got {model!r}")
        if outputs_of(model):
            raise ValueError(f"the output {label}, {model!r}, has several outputs itself; give each as one")
        if isinstance(model, Curve):
            if isinstance(model.function, Dynamics):
                raise ValueError(
                    f"the output {label} is by differential equations, {model!r}; what else is observed is given with them: "
                    'ode(..., output={"cp": ..., "effect": ...})'
                )
            names += model.parameters
            columns += model.columns
            natural += model.positive
        else:
            names += _asked_by(model, label, asked, row, parameters is not None)
            natural += asked
        row[label] = 1.0
    columns += [column for column in row if column not in labels]
    every = tuple(dict.fromkeys(names if parameters is None else parameters))
    positive = [one for one in every if one in natural or parameters is not None]
    curve = Curve(
        Selecting(labels, tuple(models.values())), every, tuple(dict.fromkeys(columns)), positive=tuple(positive),
        name=name or f"outputs[{', '.join(labels)}]",
    )  # fmt: skip
    given = any(isinstance(getattr(one, "function", None), Administered) for one in models.values())
    return with_doses(curve) if given else curve


def _asked_by(model: Callable[..., Any], label: str, asked: Asked, row: Asked, known: bool) -> list[str]:
    """Names of the parameters that a model asks for; columns are left in the row. Where parameters are known it may fail."""
    try:
        model(asked, row)
    except Exception as error:
        if known:
            return list(asked)
        raise ValueError(
            f"the output {label} fails at plausible values ({type(error).__name__}: {error}); where that is no fault of it, name "
            "its parameters: outputs(..., parameters=[...])"
        ) from error
    return list(asked)


@dataclasses.dataclass(frozen=True)
class Selecting:
    """The prediction of a row by the model of its output. Args: outputs: labels. functions: of each."""

    outputs: tuple[str, ...]
    functions: tuple[Callable[..., Any], ...]

    def __call__(self, parameters: Mapping[str, Any], row: Mapping[str, Any]) -> Array:
        return selected(in_turn(self.outputs, self.functions, parameters, row), row[OUTPUT])


@dataclasses.dataclass(frozen=True)
class DosedOutputs(AbstractAdministration):
    """The same, where doses of an event table reach compartment models among the functions. See `Administered`."""

    outputs: tuple[str, ...]
    functions: tuple[Callable[..., Any], ...]
    regimen: Regimen = Regimen(True, True, None)

    def __call__(self, parameters: Mapping[str, Any], row: Mapping[str, Any]) -> Array:
        functions = [
            dataclasses.replace(one, regimen=self.regimen) if isinstance(one, Administered) else one for one in self.functions
        ]
        return selected(in_turn(self.outputs, functions, parameters, row), row[OUTPUT])

    @property
    def administered(self) -> tuple[Administered, ...]:
        """The functions that doses reach."""
        return tuple(
            dataclasses.replace(one, regimen=self.regimen) for one in self.functions if isinstance(one, Administered)
        )  # fmt: skip

    @property
    def duration(self) -> str | None:  # type: ignore[override]
        return self.administered[0].duration

    @property
    def rate(self) -> str | None:  # type: ignore[override]
        return self.administered[0].rate

    @property
    def names(self):
        return tuple(dict.fromkeys(name for one in self.administered for name in one.names))

    @property
    def compartments(self):
        return self.administered[0].compartments


def in_turn(
    labels: Sequence[str], functions: Sequence[Callable[..., Any]], parameters: Mapping[str, Any], row: Mapping[str, Any]
) -> list[Any]:
    """What each function gives, which finds in its row what those before it gave."""
    values: list[Any] = []
    for function in functions:
        values.append(function(parameters, dict(row) | dict(zip(labels, values, strict=False))))
    return values


def takes_doses(curve: Any) -> bool:
    """Whether a structural model can be given the doses of an event table."""
    function = getattr(curve, "function", None)
    if isinstance(function, Selecting):
        return any(isinstance(getattr(one, "function", None), Compartments) for one in function.functions)
    return isinstance(function, Compartments)


def with_doses(curve: Any) -> Curve:
    """A structural model that `takes_doses`, or has some, with the doses of an event table.

    Raises:
        ValueError: compartment models that read the records of one dose in different ways.
    """
    several = curve.function
    if not isinstance(several, Selecting):
        return dosed(curve)
    models = [dosed(one) if isinstance(one, Curve) and takes_doses(one) else one for one in several.functions]
    functions = [one.function if isinstance(getattr(one, "function", None), Administered) else one for one in models]
    function = DosedOutputs(several.outputs, tuple(functions))
    ways = {(one.compartments, one.duration, one.rate) for one in function.administered}
    if len(ways) > 1:
        raise ValueError(
            f"the outputs of {curve!r} read doses in different ways (compartments, duration, rate): "
            f"{' and '.join(map(str, sorted(ways, key=str)))}; one record of a dose is for all of them"
        )
    parameters = tuple(dict.fromkeys((*curve.parameters, *function.names)))
    columns = tuple(dict.fromkeys(("time", *(column for column in curve.columns if column != "dose"))))
    positive = tuple(dict.fromkeys((*curve.positive, *function.names)))
    return dataclasses.replace(
        curve, function=function, parameters=parameters, columns=columns, positive=positive, name=f"{curve.name}[doses]"
    )
