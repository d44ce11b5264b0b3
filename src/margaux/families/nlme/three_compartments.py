r"""Three compartments: the rates of their exponentials, roots of a cubic, and the weights of these.

With $k_{10}=CL/V_1$, $k_{1j}=Q_j/V_1$ and $k_{j1}=Q_j/V_j$, the rates $\lambda_1>\lambda_2>\lambda_3>0$ are separated by $k_{21}$
and $k_{31}$, in whichever order these are; a bolus leaves $\sum_iw_ie^{-\lambda_it}/V_1$, with weights
$w_i=(\lambda_i-k_{21})(\lambda_i-k_{31})/\prod_{j\ne i}(\lambda_i-\lambda_j)$, none of which is negative and which add up to 1.
Where all of $k_{10}$, $k_{21}$ and $k_{31}$ are one and the exchange is next to nothing, the rates meet, and digits are lost.

Reference: Gibaldi and Perrier, Pharmacokinetics (2nd ed., 1982), appendix B.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

#: steps of Newton's method after the trigonometric roots
STEPS = 4

Three = tuple[Array, Array, Array]


@jax.custom_jvp
def decreasing_roots(s: Any, p: Any, q: Any) -> Three:
    r"""The roots of $\lambda^3-s\lambda^2+p\lambda-q$, which are real and positive, largest first.

    The largest is the trigonometric one, after steps of Newton's method; the others are those of a quadratic, whose sum and
    product it leaves: each is exact beside itself, however far apart they are.

    >>> [round(float(root), 5) for root in decreasing_roots(111.0, 1110.0, 1000.0)]
    [100.0, 10.0, 1.0]
    """
    mean = s / 3
    spread = jnp.sqrt(jnp.maximum(mean * mean - p / 3, 0.0))
    some = spread > 0
    cosine = (mean**3 - mean * p / 2 + q / 2) / jnp.where(some, spread**3, 1.0)
    angle = jnp.arccos(jnp.clip(jnp.where(some, cosine, 0.0), -1.0, 1.0)) / 3

    largest = mean + 2 * spread * jnp.cos(angle)
    for _ in range(STEPS):
        slope = (3 * largest - 2 * s) * largest + p
        value = ((largest - s) * largest + p) * largest - q
        largest = jnp.clip(largest - value / jnp.where(slope == 0, 1.0, slope), mean, s)
    product = q / largest
    half = (p - product) / largest / 2
    second = half + jnp.sqrt(jnp.maximum(half * half - product, 0.0))
    return largest, second, product / second


@decreasing_roots.defjvp
def _(primals, tangents):
    roots = decreasing_roots(*primals)
    ds, dp, dq = tangents
    out = []
    for i, root in enumerate(roots):
        apart = [root - other for j, other in enumerate(roots) if j != i]
        out.append((root * root * ds - root * dp + dq) / (apart[0] * apart[1]))
    return roots, tuple(out)


def three_rates(parameters: Mapping[str, Any]) -> tuple[Three, Three]:
    """The rates, largest first, and the weights of three compartments (V1, CL, Q2, V2, Q3, V3).

    >>> rates, weights = three_rates({"V1": 10.0, "CL": 5.0, "Q2": 8.0, "V2": 20.0, "Q3": 1.0, "V3": 50.0})
    >>> [round(float(rate), 4) for rate in rates], round(float(sum(weights)), 6)
    ([1.656, 0.1476, 0.0164], 1.0)
    """
    V1, CL, Q2, V2, Q3, V3 = (parameters[name] for name in ("V1", "CL", "Q2", "V2", "Q3", "V3"))
    k10, k12, k13, k21, k31 = CL / V1, Q2 / V1, Q3 / V1, Q2 / V2, Q3 / V3
    rates = decreasing_roots(k10 + k12 + k13 + k21 + k31, k21 * (k10 + k13 + k31) + k31 * (k10 + k12), k10 * k21 * k31)
    weights = []
    for i, rate in enumerate(rates):
        apart = [rate - other for j, other in enumerate(rates) if j != i]
        weights.append((rate - k21) * (rate - k31) / (apart[0] * apart[1]))
    first, second, third = weights
    return rates, (first, second, third)
