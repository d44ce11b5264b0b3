"""Linear compartment models, one to three compartments, in closed forms that hold where rate constants meet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from .three_compartments import three_rates


@jax.custom_jvp
def exp_difference(a: ArrayLike, b: ArrayLike) -> Array:
    r"""First divided difference of the exponential, $(e^a - e^b)/(a - b)$, equal to $e^a$ at a = b.

    Two exponentials and one division, and one more division for the gradient. Values, gradients and Hessians are accurate
    at and near a = b, where the difference is written $m\tanh(h)/h$ with $m=(e^a+e^b)/2$ and $h=(a-b)/2$.

    >>> float(exp_difference(0.0, 0.0)), round(float(exp_difference(0.0, -1.0)), 5)
    (1.0, 0.63212)
    """
    mean, gap, near, u, denominator = _lambert(a, b)
    numerator = 1 + u * (5 / 39 + u * (2 / 715 + u * (1 / 135135)))
    return jnp.where(near, mean * numerator, jnp.exp(a) - jnp.exp(b)) / jnp.where(near, denominator, gap)


@exp_difference.defjvp
def _(primals, tangents):
    # The two partial derivatives sum to the difference D itself; half of what separates them is (m - D) / (a - b).
    value = exp_difference(*primals)
    mean, gap, near, u, denominator = _lambert(*primals)
    numerator = gap * (1 / 12 + u * (1 / 195 + u * (1 / 20020)))
    skew = jnp.where(near, mean * numerator, mean - value) / jnp.where(near, denominator, gap)
    return value, 0.5 * value * (tangents[0] + tangents[1]) + skew * (tangents[0] - tangents[1])


def _lambert(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array, Array, Array, Array]:
    """m, a - b, whether that is small, u = h^2, and the denominator in u of tanh(h)/h.

    The seventh convergent of tanh(h)/h = 1/(1 + u/(3 + u/(5 + ...))) is within 2e-16 of it for u < 1/4.
    """
    gap = jnp.subtract(a, b)
    near = jnp.abs(gap) < 1
    u = jnp.where(near, 0.25 * gap * gap, 0.0)
    return 0.5 * (jnp.exp(a) + jnp.exp(b)), gap, near, u, 1 + u * (6 / 13 + u * (10 / 429 + u * (4 / 19305)))


@dataclasses.dataclass(frozen=True)
class Compartments:
    r"""Concentration in the central compartment after one dose D at time 0, with first-order elimination.

    The response to a unit bolus is a mixture of exponentials $g(t)=V^{-1}\sum_i w_i e^{-\lambda_i t}$ with positive weights:
    one compartment has $\lambda = k$, two have the roots $\alpha>\beta$ of
    $s^2-(k_{10}+k_{12}+k_{21})s+k_{10}k_{21}$, with $w_\alpha=(\alpha-k_{21})/(\alpha-\beta)$ and
    $w_\beta=(k_{21}-\beta)/(\alpha-\beta)$, $k_{10}=CL/V_1$, $k_{12}=Q/V_1$, $k_{21}=Q/V_2$; three those of a cubic (see
    `three_rates`). A route turns each exponential into

    - bolus: $D\,e^{-\lambda t}$;
    - oral, absorbed at rate $k_a$: $D\,k_a\,(e^{-\lambda t}-e^{-k_a t})/(k_a-\lambda)$;
    - infusion at a constant rate for a duration T, with $s = (t-T)_+$: $D\,(e^{-\lambda s}-e^{-\lambda t})/(\lambda T)$
      (a bolus at T = 0).

    It is zero before the dose, or before the lag time after it. The differences of exponentials go through `exp_difference`,
    and every sum of phases has terms of one sign: nothing cancels or divides by zero where $k_a$ meets a rate, or at t = 0.

    Units: concentrations are in units of dose per unit of volume, clearances (CL, Q) in volume per time, rate constants in
    one over time. An absorbed fraction is not identifiable apart from the volumes, which are apparent ones (V/F, CL/F).

    Args:
        count: compartments, 1 to 3.
        route: "bolus", "infusion" (reads `row["duration"]`) or "oral".
        by_rate: the one compartment by (V, k) in place of (V, CL).
        lag: with a lag time Tlag.

    References: Gibaldi and Perrier, Pharmacokinetics (2nd ed., 1982), ch. 1, 2 and appendix B; Gabrielsson and Weiner,
    Pharmacokinetic and Pharmacodynamic Data Analysis (2000); Bertrand and Mentré, Mathematical expressions of the
    pharmacokinetic and pharmacodynamic models implemented in the Monolix software (2008).

    >>> model = Compartments(1, "oral")
    >>> model.parameters
    ('ka', 'V', 'CL')
    >>> theta = {"ka": 0.1, "V": 20.0, "CL": 2.0}  # ka = CL / V: the limit is D k t exp(-k t) / V
    >>> round(float(model(theta, {"time": 10.0, "dose": 100.0})), 5)
    1.8394
    """

    count: Literal[1, 2, 3]
    route: Literal["bolus", "infusion", "oral"]
    by_rate: bool = False
    lag: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names, in order: Tlag, ka, then the disposition."""
        one = ("V", "k" if self.by_rate else "CL")
        disposition = {1: one, 2: ("V1", "CL", "Q", "V2"), 3: ("V1", "CL", "Q2", "V2", "Q3", "V3")}[self.count]
        return ("Tlag",) * self.lag + ("ka",) * (self.route == "oral") + disposition

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads."""
        return ("time", "dose", "duration") if self.route == "infusion" else ("time", "dose")

    def phases(self, parameters: Mapping[str, Any]) -> list[tuple[Any, Any]]:
        """What each exponential of the response to a unit bolus begins with, and its rate."""
        if self.count == 1:
            V = parameters["V"]
            return [(1 / V, parameters["k"] if self.by_rate else parameters["CL"] / V)]
        if self.count == 2:
            rates, (above, below) = two_rates(parameters)
            whole = (above + below) * parameters["V1"]
            return [(above / whole, rates[0]), (below / whole, rates[1])]
        rates, weights = three_rates(parameters)
        return [(weight / parameters["V1"], rate) for weight, rate in zip(weights, rates, strict=True)]

    def _phase(self, parameters: Mapping[str, Any], row: Mapping[str, Any], t: Array) -> Callable[[Any], Array]:
        """What an exponential phase of a given rate adds at time t."""
        if self.route == "bolus":
            return lambda rate: jnp.exp(-rate * t)
        if self.route == "oral":
            ka = parameters["ka"]
            return lambda rate: ka * t * exp_difference(-ka * t, -rate * t)
        duration = row["duration"]
        lasting = jnp.greater(duration, 0)
        infused = jnp.where(t < duration, t, duration)
        given = jnp.where(lasting, infused / jnp.where(lasting, duration, 1), 1)
        return lambda rate: given * exp_difference(-rate * t, -rate * (t - infused))

    def __call__(self, parameters: Mapping[str, Any], row: Mapping[str, Any]) -> Array:
        since = row["time"] - parameters["Tlag"] if self.lag else row["time"]
        before = jnp.less(since, 0)
        t = jnp.where(before, 0, since)
        phase = self._phase(parameters, row, t)
        (weight, rate), *others = self.phases(parameters)
        response = weight * phase(rate)
        for weight, rate in others:
            response = response + weight * phase(rate)
        return jnp.where(before, 0, row["dose"] * response)


def two_rates(parameters: Mapping[str, Any]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    r"""The rates $\alpha > \beta$ of two compartments, and $\alpha-k_{21}$, $k_{21}-\beta$, without cancellation.

    With $\delta=(k_{10}+k_{12}-k_{21})/2$ and $r=\sqrt{\delta^2+k_{12}k_{21}}$, $\alpha-k_{21}=r+\delta$ and
    $k_{21}-\beta=r-\delta$ have the product $k_{12}k_{21}$; $\alpha\beta=k_{10}k_{21}$.
    """
    V1, CL, Q, V2 = (parameters[name] for name in ("V1", "CL", "Q", "V2"))
    k10, k12, k21 = CL / V1, Q / V1, Q / V2
    delta = 0.5 * (k10 + k12 - k21)
    negative = jnp.less(delta, 0)
    larger = jnp.where(negative, -delta, delta) + jnp.sqrt(delta * delta + k12 * k21)
    smaller = k12 * k21 / larger
    above, below = jnp.where(negative, smaller, larger), jnp.where(negative, larger, smaller)
    alpha = k21 + above
    return (alpha, k10 * k21 / alpha), (above, below)


def within(structural: Callable[..., Any] | None) -> Compartments | None:
    """The compartments inside a curve, repeated doses of it, or one with constants; None where there are none."""
    model = structural
    while model is not None and not isinstance(model, Compartments):
        model = getattr(model, "function", None) or getattr(model, "curve", None)
    return model
