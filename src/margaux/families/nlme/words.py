"""What was fitted, in words for a clinician."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .autocorrelated import AR1
from .classes import places
from .error import Combined, ConstantError, Exponential, Power, Proportional, ResidualError, as_error
from .individual import Bounded, LogNormal
from .shapes import EffectShape, StudentT

if TYPE_CHECKING:
    from .estimator import NLME


ERRORS = {
    ConstantError: "an error of the same size everywhere (additive, SD a)",
    Proportional: "an error in proportion to the prediction (coefficient of variation b)",
    Power: "an error that grows with a power of the prediction (SD a + b f^c)",
    Exponential: "a multiplicative error (additive on the logarithmic scale, SD a)",
}


def error(fitted: Any) -> str:
    """The residual error; "" for outcomes without one."""
    outcome = fitted.model_.outcome
    if not outcome.continuous:
        return ""
    own = outcome.error
    words = _of(own) if not outcome.outputs else "; ".join(
        f"{name}: {_of(one)}" for name, one in zip(outcome.outputs, own.errors, strict=True)
    )  # fmt: skip
    if outcome.censored:
        words += f", where observations beyond their limits count by the probability of lying there ({outcome.method})"
    unit = units(fitted).get(fitted.data_.roles["y"])
    return f"{words}; {fitted.data_.roles['y']} in {unit}" if unit else words


def _of(error: ResidualError) -> str:
    if error.random:
        return f"{_of(dataclasses.replace(error, random=False))}, times a log-normal factor of each subject's own"
    if isinstance(error, AR1):
        return f"{_of(as_error(error.of))}, correlated in time (AR(1): exp(-distance / tau))"
    if not isinstance(error, Combined):
        return next((words for kind, words in ERRORS.items() if isinstance(error, kind)), type(error).__name__)
    formula = "SD a + b f" if error.form == 1 else "SD the root of a^2 + b^2 f^2"
    return f"an error with an additive and a proportional part ({formula})"


def effects(fitted: NLME) -> str:
    """Which parameters differ between subjects, on what scale, and which of them together."""
    model, dropped = fitted.model_, fitted._dropped
    kinds: dict[str, list[str]] = {}
    for name, one in model.individual:
        scale = "log-normally" if isinstance(one, LogNormal) else "within bounds" if isinstance(one, Bounded) else "normally"
        if one.random:
            kinds.setdefault(scale, []).append(name)
    parts = [f"{_listed(names)} {'vary' if len(names) > 1 else 'varies'} {scale}" for scale, names in kinds.items()]
    parts += [f"the effect of {model.names[j]} has {_shape(model.individual[j][1].shape)}" for j in model.shaped]
    if model.classes > 1:
        apart = [model.names_of_random[place] for place in places(model)]
        parts.append(f"subjects are of {model.classes} classes, which differ in the typical {_listed(apart)}")
    random = [model.names[j] for j in model.random]
    together = [_listed([random[j] for j in block]) for block in model.blocks]
    parts += [f"{names} with correlated effects" for names in together]
    if len(random) > 1 and not together:
        parts.append("all independently of each other")
    if model.varying:
        parts.append(f"{_listed([model.names[j] for j in model.varying])} between the occasions of a subject, too")
    shared = [name for name, one in model.individual if not one.random and f"omega2_{name}" not in dropped]
    if shared:
        parts.append(f"{_listed(shared)} the same in all subjects")
    if dropped:
        parts.append(f"{_listed(list(dropped))} estimated as zero")
    return "; ".join(parts)


def _shape(shape: EffectShape | str | None) -> str:
    return "the tails of Student's t" if isinstance(shape, StudentT) else "the skewness of Box and Cox's transformation"


def covariates(fitted: NLME) -> str:
    """Which parameters depend on which covariates."""
    found = [f"{name} on {one.covariates}" for name, one in fitted.model_.individual if one.covariates]
    return "; ".join(found) or "none"


def units(fitted: NLME) -> dict[str, str]:
    """Units of columns, as `data.attrs["units"]` gave them: {"Time": "h", "Concentration": "mg/L"}."""
    given = fitted.data_.frame.attrs.get("units", {})
    return {str(column): str(unit) for column, unit in given.items()} if isinstance(given, dict) else {}


def roles(fitted: NLME) -> str:
    """The columns and what they are, with their units."""
    known = units(fitted)
    return ", ".join(
        f'{role}="{column}"' + (f" ({known[column]})" if column in known else "") for role, column in fitted.data_.roles.items()
    )


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
