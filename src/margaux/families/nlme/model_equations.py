"""A fitted model in equations, as text that a report can hold."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .autocorrelated import AR1
from .by_output import ErrorByOutput
from .error import Combined, ConstantError, Exponential, Power, Proportional, ResidualError, as_error
from .individual import Bounded, Individual, LogitNormal, LogNormal, Normal
from .shapes import BoxCox
from .written import equations_of

if TYPE_CHECKING:
    from .estimator import NLME


def equations(fitted: NLME) -> str:
    """See `NLME.equations`."""
    groups = [
        ("Structural model", _structure(fitted)),
        ("Individual parameters, of subject i", _individual(fitted)),
        ("Random effects", _effects(fitted)),
        ("Observations, j of subject i", _observed(fitted)),
    ]
    return "\n\n".join("\n".join([f"{title}:", *(f"  {line}" for line in lines)]) for title, lines in groups if lines)


def _structure(fitted: NLME) -> list[str]:
    curve = getattr(fitted.model_.outcome, "structural", None)
    if curve is None:
        return [repr(fitted.model_.outcome)]
    text = equations_of(curve)
    if text is None:
        return [f"f = {curve!r}" if hasattr(curve, "parameters") else f"f = {getattr(curve, '__name__', curve)}"]
    initial = dict(text.initial or ())
    lines = [f"{name} = {one.text}" for name, one in text.define or ()]
    for state, one in text.derivatives:
        begun = f",  {state}(0) = {initial[state].text}" if state in initial else ""
        lines.append(f"d/dt {state} = {one.text}{begun}")
    return [*lines, *(f"f{f'[{label}]' if label else ''} = {one.text}" for label, one in text.outputs)]


def _individual(fitted: NLME) -> list[str]:
    model, design = fitted.model_, fitted._design
    labels: dict[str, list[str]] = {name: [] for name in model.names}
    for j, label in zip((*design.owner, *design.shifted), design.labels, strict=True):
        if label:
            labels[model.names[j]].append(label)
    lines = []
    for j, (name, one) in enumerate(model.individual):
        mean, own = _transformed(one, name), f"{name}_i" + ("k" if j in model.varying or j in design.shifted else "")
        terms = [mean, *(f"beta_{name}[{label}] * ({label})" for label in labels[name])]
        terms += [f"beta_{name}[class k_i]"] if one.classes else []
        if one.random and f"omega2_{name}" not in fitted._dropped:
            terms.append(f"T(eta_{name},i)" if one.shape is not None else f"eta_{name},i")
        terms += [f"kappa_{name},ik"] if j in model.varying else []
        lines.append(f"{_transformed(one, own)} = {' + '.join(terms)}")
    return lines


def _transformed(one: Individual, name: str) -> str:
    """The parameter on the scale on which it is normal."""
    if isinstance(one, LogNormal):
        return f"log({name})"
    if isinstance(one, Bounded):
        share = name if (one.low, one.high) == (0, 1) else f"({name} - {one.low:g}) / {one.high - one.low:g}"
        return f"{'logit' if isinstance(one, LogitNormal) else 'probit'}({share})"
    return name if isinstance(one, Normal) else f"h^-1({name})"


def _effects(fitted: NLME) -> list[str]:
    model, dropped = fitted.model_, fitted._dropped
    there = [j for j in model.random if f"omega2_{model.names[j]}" not in dropped]
    lines = []
    together = [[model.random[place] for place in block] for block in model.blocks]
    for block in together:
        names = [model.names[j] for j in block if j in there]
        if len(names) > 1:
            vector = ", ".join(f"eta_{name},i" for name in names)
            pairs = ", ".join(f"cov_{one}_{other}" for k, one in enumerate(names) for other in names[k + 1 :])
            lines.append(f"({vector}) ~ N(0, Omega), of variances {', '.join(f'omega2_{name}' for name in names)}")
            lines.append(f"and covariances {pairs}")
    alone = [j for j in there if not any(j in block for block in together)]
    lines += [f"eta_{model.names[j]},i ~ N(0, omega2_{model.names[j]})" for j in alone]
    lines += [f"eta_{name},i = 0: omega2_{name} is zero" for j in model.random if (name := model.names[j]) and j not in there]
    for j in there:
        name = model.names[j]
        shape: Any = model.individual[j][1].shape
        if isinstance(shape, BoxCox):
            lines.append(f"T(eta) = (exp(lambda_{name} eta) - 1) / lambda_{name} for {name}")
        elif shape is not None:
            lines.append(f"T(eta) has the tails of Student's t with {shape.prefix}_{name} degrees of freedom, for {name}")
    lines += [f"kappa_{model.names[j]},ik ~ N(0, gamma2_{model.names[j]}), k the occasion" for j in model.varying]
    if model.classes > 1:
        shares = ", ".join(f"share_{k}" for k in range(2, model.classes + 1))
        lines.append(f"k_i is the class of subject i, with probabilities {shares} of classes 2 on; beta[class 1] = 0")
    return lines


def _observed(fitted: NLME) -> list[str]:
    outcome: Any = fitted.model_.outcome
    y = fitted.data_.roles["y"]
    if not outcome.continuous:
        return [f"{y}_ij ~ {type(outcome).__name__}, given the individual parameters"]
    error = outcome.error
    each = zip(error.outputs, error.errors, strict=True) if isinstance(error, ErrorByOutput) else [("", error)]
    lines = [_error(one, y, f"[{label}]" if label else "") for label, one in each]
    lines.append("e_ij ~ N(0, 1), independent unless said otherwise")
    if outcome.censored:
        lines.append(f"observations beyond their limits count by the probability of lying there ({outcome.method})")
    return lines


def _error(error: ResidualError, y: str, of: str) -> str:
    """One line: the observation from the prediction f."""
    f, size, more = f"f{of}_ij", f"residual{of}_i * ", ""
    if isinstance(error, AR1):
        more = f",  cor(e_ij, e_ik) = exp(-|t_ij - t_ik| / tau{of})"
        error = dataclasses.replace(as_error(error.of), random=error.random)
    factor = size if error.random else ""
    a, b = f"a{of}", f"b{of}"
    if isinstance(error, Exponential):
        return f"log {y}{of}_ij = log {f} + {factor}{a} * e_ij{more}"
    if isinstance(error, Combined):
        sd = f"({a} + {b} * |{f}|)" if error.form == 1 else f"sqrt({a}^2 + {b}^2 * {f}^2)"
    elif isinstance(error, Power):
        sd = f"({a} + {b} * |{f}|^c{of})"
    elif isinstance(error, Proportional):
        sd = f"{b} * |{f}|"
    elif isinstance(error, ConstantError):
        sd = a
    else:
        sd = f"g({f}; {', '.join(f'{name}{of}' for name in error.names)})"
    return f"{y}{of}_ij = {f} + {factor}{sd} * e_ij{more}"
