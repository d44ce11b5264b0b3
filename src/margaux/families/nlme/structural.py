r"""Structural models: what a unit's parameters and a row predict, before residual error.

A structural model is any callable `f(parameters, row) -> scalar`, where `parameters` maps names to scalars on their natural
scale and `row` maps columns to scalars. The ready-made ones are `Curve` objects, listed by name in `CURVES`.

Pharmacokinetics (see `Compartments` for formulas and units), each also with a lag time Tlag under the suffix `_lag`:

| route | one compartment | by rate constant | two compartments |
|---|---|---|---|
| bolus | bolus1cpt (V, CL) | bolus1cpt_k (V, k) | bolus2cpt (V1, CL, Q, V2) |
| infusion | infusion1cpt (V, CL) | infusion1cpt_k (V, k) | infusion2cpt (V1, CL, Q, V2) |
| first-order oral | oral1cpt (ka, V, CL) | oral1cpt_k (ka, V, k) | oral2cpt (ka, V1, CL, Q, V2) |

and with three compartments bolus3cpt, infusion3cpt (V1, CL, Q2, V2, Q3, V3) and oral3cpt (ka before these), whose second and
third compartments can change places.

Responses to a concentration or a dose, and growth, read the independent variable x from the role "time": emax,
emax_baseline, sigmoid_emax, sigmoid_emax_baseline, logistic_growth, gompertz_growth, asymptotic_growth, linear_plateau,
polynomial1 to polynomial3 (`polynomial` for other degrees).

>>> curve("oral1cpt")
oral1cpt(ka, V, CL | time, dose)
>>> theta = {"ka": 1.5, "V": 32.0, "CL": 2.8}
>>> round(float(curve("oral1cpt")(theta, {"time": 2.0, "dose": 320.0})), 4)
8.3859
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .pharmacokinetics import Compartments


@dataclasses.dataclass(frozen=True, repr=False)
class Curve:
    """A structural model with the names it needs: hashable, so that equal curves share one compilation.

    Args:
        function: `f(parameters, row) -> scalar`, differentiable by JAX; compared by identity unless it defines equality.
        parameters: names in order.
        columns: roles ("time", "dose") and raw columns it reads from `row`.
        positive: the parameters that are naturally positive.
        name: for messages.

    Calling it raises ValueError where a parameter or a column is absent.

    >>> import jax.numpy as jnp
    >>> decay = Curve(lambda p, row: p["A"] * jnp.exp(-p["k"] * row["time"]), ("A", "k"), positive=("A", "k"), name="decay")
    >>> decay
    decay(A, k | time)
    >>> round(float(decay({"A": 2.0, "k": 0.5}, {"time": 2.0})), 4)
    0.7358
    """

    function: Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
    parameters: tuple[str, ...]
    columns: tuple[str, ...] = ("time",)
    positive: tuple[str, ...] = ()
    name: str = "curve"

    def __post_init__(self) -> None:
        for field in ("parameters", "columns", "positive"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        if unknown := set(self.positive) - set(self.parameters):
            raise ValueError(f"positive names {sorted(unknown)} are not parameters of {self!r}")

    def __call__(self, parameters: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
        for kind, needed, got in (("parameter", self.parameters, parameters), ("column", self.columns, row)):
            if absent := [name for name in needed if name not in got]:
                raise ValueError(f"{self!r} needs the {kind} {', '.join(absent)}, got {', '.join(map(str, got)) or 'none'}")
        return self.function(parameters, row)

    def with_columns(self, **values: float) -> Curve:
        """The same curve where these columns are constants, such as a dose or the duration of an infusion.

        >>> curve("infusion1cpt").with_columns(duration=2.0)
        infusion1cpt[duration=2](V, CL | time, dose)
        """
        if unknown := set(values) - set(self.columns):
            raise ValueError(f"{self!r} does not read the column {', '.join(sorted(unknown))}")
        constants = tuple(sorted((column, float(value)) for column, value in values.items()))
        label = ", ".join(f"{column}={value:g}" for column, value in constants)
        columns = tuple(column for column in self.columns if column not in values)
        return dataclasses.replace(self, function=_Constants(self, constants), columns=columns, name=f"{self.name}[{label}]")

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(self.parameters)} | {', '.join(self.columns)})"


@dataclasses.dataclass(frozen=True)
class _Constants:
    curve: Curve
    constants: tuple[tuple[str, float], ...]

    def __call__(self, parameters, row):
        return self.curve(parameters, {**row, **dict(self.constants)})


def superposed(curve: Curve, times: Sequence[float], amounts: Sequence[float] | None = None) -> Curve:
    r"""Repeated doses of a linear model: $\sum_j f(\theta;\, t - t_j,\, D_j)$, where a dose adds nothing before its time.

    Args:
        curve: a curve that reads "time" and "dose", linear in the dose and zero at negative times.
        times: when the doses are given, on the clock of `row["time"]`.
        amounts: of each dose; `row["dose"]` each time by default.

    Reference: Gibaldi and Perrier, Pharmacokinetics (2nd ed., 1982), ch. 3.

    >>> twice = superposed(bolus1cpt_k, times=[0.0, 12.0])
    >>> twice
    bolus1cpt_k[doses at 0, 12](V, k | time, dose)
    >>> round(float(twice({"V": 10.0, "k": 0.1}, {"time": 12.0, "dose": 50.0})), 4)  # 5 exp(-1.2) + 5
    6.506
    """
    if not {"time", "dose"} <= set(curve.columns):
        raise ValueError(f"only a curve that reads 'time' and 'dose' can be superposed, not {curve!r}")
    at = tuple(map(float, times))
    if not at or not all(map(math.isfinite, at)):
        raise ValueError(f"times of doses must be finite, at least one, got {at}")
    given = None if amounts is None else tuple(map(float, amounts))
    if given is not None and len(given) != len(at):
        raise ValueError(f"{len(given)} amounts for {len(at)} times of doses")
    label = f"doses at {', '.join(f'{t:g}' for t in at)}" if len(at) < 5 else f"{len(at)} doses"
    columns = curve.columns if given is None else tuple(column for column in curve.columns if column != "dose")
    function = _Superposition(curve, at, given)
    return dataclasses.replace(curve, function=function, columns=columns, name=f"{curve.name}[{label}]")


@dataclasses.dataclass(frozen=True)
class _Superposition:
    curve: Curve
    times: tuple[float, ...]
    amounts: tuple[float, ...] | None

    def __call__(self, parameters, row):
        dtype = jnp.result_type(row["time"], float)
        doses = jnp.asarray(self.times, dtype), None if self.amounts is None else jnp.asarray(self.amounts, dtype)

        def add(total, dose):
            at, amount = dose
            given = {**row, "time": row["time"] - at, "dose": row["dose"] if amount is None else amount}
            return total + self.curve(parameters, given), None

        first = jax.tree.map(lambda x: x[0], doses)
        others = jax.tree.map(lambda x: x[1:], doses)
        # A few doses run faster in line, more as a loop, above all in the reverse pass.
        return jax.lax.scan(add, add(0.0, first)[0], others, unroll=len(self.times) < 5)[0]


def _pk(
    name: str, count: Literal[1, 2, 3], route: Literal["bolus", "infusion", "oral"], by_rate: bool = False, lag: bool = False
) -> Curve:
    model = Compartments(count, route, by_rate, lag)
    return Curve(model, model.parameters, model.columns, positive=model.parameters, name=name)


bolus1cpt = _pk("bolus1cpt", 1, "bolus")
bolus1cpt_lag = _pk("bolus1cpt_lag", 1, "bolus", lag=True)
bolus1cpt_k = _pk("bolus1cpt_k", 1, "bolus", by_rate=True)
bolus1cpt_k_lag = _pk("bolus1cpt_k_lag", 1, "bolus", by_rate=True, lag=True)
bolus2cpt = _pk("bolus2cpt", 2, "bolus")
bolus2cpt_lag = _pk("bolus2cpt_lag", 2, "bolus", lag=True)
infusion1cpt = _pk("infusion1cpt", 1, "infusion")
infusion1cpt_lag = _pk("infusion1cpt_lag", 1, "infusion", lag=True)
infusion1cpt_k = _pk("infusion1cpt_k", 1, "infusion", by_rate=True)
infusion1cpt_k_lag = _pk("infusion1cpt_k_lag", 1, "infusion", by_rate=True, lag=True)
infusion2cpt = _pk("infusion2cpt", 2, "infusion")
infusion2cpt_lag = _pk("infusion2cpt_lag", 2, "infusion", lag=True)
oral1cpt = _pk("oral1cpt", 1, "oral")
oral1cpt_lag = _pk("oral1cpt_lag", 1, "oral", lag=True)
oral1cpt_k = _pk("oral1cpt_k", 1, "oral", by_rate=True)
oral1cpt_k_lag = _pk("oral1cpt_k_lag", 1, "oral", by_rate=True, lag=True)
oral2cpt = _pk("oral2cpt", 2, "oral")
oral2cpt_lag = _pk("oral2cpt_lag", 2, "oral", lag=True)
bolus3cpt = _pk("bolus3cpt", 3, "bolus")
bolus3cpt_lag = _pk("bolus3cpt_lag", 3, "bolus", lag=True)
infusion3cpt = _pk("infusion3cpt", 3, "infusion")
infusion3cpt_lag = _pk("infusion3cpt_lag", 3, "infusion", lag=True)
oral3cpt = _pk("oral3cpt", 3, "oral")
oral3cpt_lag = _pk("oral3cpt_lag", 3, "oral", lag=True)


def _emax(parameters, row):
    x = row["time"]
    return parameters["Emax"] * x / (parameters["EC50"] + x)


def _emax_baseline(parameters, row):
    return parameters["E0"] + _emax(parameters, row)


def _sigmoid_emax(parameters, row):
    x = row["time"]
    some = jnp.greater(x, 0)
    # x^gamma / (EC50^gamma + x^gamma) on the log scale, where the logarithm of x leaves a compiled loop over parameters.
    log_ratio = jnp.log(jnp.where(some, x, 1)) - jnp.log(parameters["EC50"])
    effect = jax.nn.sigmoid(parameters["gamma"] * log_ratio)
    return parameters["Emax"] * jnp.where(some, effect, 0)


def _sigmoid_emax_baseline(parameters, row):
    return parameters["E0"] + _sigmoid_emax(parameters, row)


emax = Curve(_emax, ("Emax", "EC50"), positive=("Emax", "EC50"), name="emax")
r"""$E_{max}\,x/(EC_{50}+x)$ for x >= 0: effect at a concentration or dose x, EC50 in its units (Holford and Sheiner 1981)."""

emax_baseline = Curve(_emax_baseline, ("E0", "Emax", "EC50"), positive=("EC50",), name="emax_baseline")
r"""$E_0+E_{max}\,x/(EC_{50}+x)$; a negative Emax inhibits."""

sigmoid_emax = Curve(_sigmoid_emax, ("Emax", "EC50", "gamma"), positive=("Emax", "EC50", "gamma"), name="sigmoid_emax")
r"""$E_{max}\,x^\gamma/(EC_{50}^\gamma+x^\gamma)$, zero at x <= 0, gamma the Hill coefficient (Gabrielsson and Weiner 2000)."""

sigmoid_emax_baseline = Curve(
    _sigmoid_emax_baseline, ("E0", "Emax", "EC50", "gamma"), positive=("EC50", "gamma"), name="sigmoid_emax_baseline"
)
r"""$E_0+E_{max}\,x^\gamma/(EC_{50}^\gamma+x^\gamma)$; a negative Emax inhibits."""


def _logistic_growth(parameters, row):
    return parameters["Asym"] * jax.nn.sigmoid((row["time"] - parameters["xmid"]) / parameters["scal"])


def _gompertz_growth(parameters, row):
    z = -parameters["k"] * (row["time"] - parameters["xmid"])
    # exp(-exp(7)) is 0 in double precision: beyond, exp(z) would only overflow into NaN derivatives.
    return parameters["Asym"] * jnp.exp(-jnp.exp(jnp.where(z > 7, 7, z)))


def _asymptotic_growth(parameters, row):
    Asym, R0, k = (parameters[name] for name in ("Asym", "R0", "k"))
    return Asym + (R0 - Asym) * jnp.exp(-k * row["time"])


def _linear_plateau(parameters, row):
    short = row["time"] - parameters["Xmax"]
    return parameters["Ymax"] + parameters["slope"] * jnp.where(short < 0, short, 0)


logistic_growth = Curve(_logistic_growth, ("Asym", "xmid", "scal"), positive=("Asym", "scal"), name="logistic_growth")
r"""$Asym/(1+e^{-(t-xmid)/scal})$: half the asymptote at xmid, both in units of time (Pinheiro and Bates 2000, C.7)."""

gompertz_growth = Curve(_gompertz_growth, ("Asym", "xmid", "k"), positive=("Asym", "k"), name="gompertz_growth")
r"""$Asym\,\exp(-e^{-k(t-xmid)})$: inflexion at xmid, k one over time (Seber and Wild 1989, ch. 7)."""

asymptotic_growth = Curve(_asymptotic_growth, ("Asym", "R0", "k"), positive=("Asym", "k"), name="asymptotic_growth")
r"""$Asym+(R_0-Asym)e^{-kt}$, the monomolecular curve: R0 at time 0, k one over time (Pinheiro and Bates 2000, C.1)."""

linear_plateau = Curve(_linear_plateau, ("Ymax", "Xmax", "slope"), name="linear_plateau")
r"""$Ymax+slope\,\min(x-Xmax,0)$: a line up to Xmax, then Ymax (the yield model of Comets, Lavenu and Lavielle 2017)."""


@dataclasses.dataclass(frozen=True)
class _Polynomial:
    names: tuple[str, ...]

    def __call__(self, parameters, row) -> Array:
        x, value = row["time"], parameters[self.names[-1]]
        for name in reversed(self.names[:-1]):
            value = parameters[name] + x * value
        return value


def polynomial(degree: int) -> Curve:
    r"""$c_0 + c_1 x + \dots + c_d x^d$, by Horner's rule, with x = `row["time"]`.

    >>> polynomial(2)
    polynomial2(c0, c1, c2 | time)
    >>> polynomial(2)({"c0": 1.0, "c1": 2.0, "c2": 3.0}, {"time": 2.0})
    17.0
    """
    if degree < 0:
        raise ValueError(f"the degree of a polynomial must not be negative, got {degree}")
    names = tuple(f"c{i}" for i in range(degree + 1))
    return Curve(_Polynomial(names), names, name=f"polynomial{degree}")


CURVES: dict[str, Curve] = {
    model.name: model
    for model in (
        *(bolus1cpt, bolus1cpt_lag, bolus1cpt_k, bolus1cpt_k_lag, bolus2cpt, bolus2cpt_lag),
        *(infusion1cpt, infusion1cpt_lag, infusion1cpt_k, infusion1cpt_k_lag, infusion2cpt, infusion2cpt_lag),
        *(oral1cpt, oral1cpt_lag, oral1cpt_k, oral1cpt_k_lag, oral2cpt, oral2cpt_lag),
        *(bolus3cpt, bolus3cpt_lag, infusion3cpt, infusion3cpt_lag, oral3cpt, oral3cpt_lag),
        *(emax, emax_baseline, sigmoid_emax, sigmoid_emax_baseline),
        *(logistic_growth, gompertz_growth, asymptotic_growth, linear_plateau),
        *map(polynomial, (1, 2, 3)),
    )
}


def curve(name: str) -> Curve:
    """The ready-made curve of this name; ValueError otherwise, with the nearest name and all of them.

    >>> curve("emax").parameters
    ('Emax', 'EC50')
    """
    if name in CURVES:
        return CURVES[name]
    near = difflib.get_close_matches(name, CURVES, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise ValueError(f"no structural model is named {name!r}{hint} Known: {', '.join(CURVES)}")
