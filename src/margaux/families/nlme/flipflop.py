r"""Flip-flop and peripheral compartments that change places: two sets of parameters that give one curve.

With first-order absorption into one compartment the concentration $\frac{D k_a}{V (k_a - k)} (e^{-kt} - e^{-k_a t})$ is the same
at $(k_a, V, k)$ and at $(k, V k / k_a, k_a)$. Subjects' curves cannot tell them apart; only the assumed distribution between
subjects does, and the likelihood of a few subjects may prefer the one that pharmacology rules out. Of three compartments the
second and the third are told apart by nothing but their names: in order, the second is the one that exchanges
faster, $Q_2/V_2>Q_3/V_3$.

Reference: Gibaldi and Perrier, Pharmacokinetics (2nd ed., 1982), ch. 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .pharmacokinetics import within

if TYPE_CHECKING:
    from collections.abc import Callable

#: parameters of the second and the third compartment, which change places
_CHANGED = {"Q2": "Q3", "V2": "V3", "Q3": "Q2", "V3": "V2"}


def mirrored(structural: Callable[..., Any] | None, psi: Mapping[str, float]) -> dict[str, float] | None:
    """Other parameters of the same curve, or None where the model has none.

    >>> from margaux.nlme import oral1cpt
    >>> mirrored(oral1cpt, {"ka": 0.1, "V": 2.0, "CL": 3.0})
    {'ka': 1.5, 'V': 30.0, 'CL': 3.0}
    """
    among = getattr(getattr(structural, "function", None), "functions", (structural,))
    absorbed = [model for model in map(within, among) if model is not None]
    model = absorbed[0] if len(absorbed) == 1 else None
    if model is not None and model.count == 3:
        return {name: psi[_CHANGED.get(name, name)] for name in model.parameters}
    if model is None or model.route != "oral" or model.count != 1:
        return None
    ka, V = psi["ka"], psi["V"]
    k = psi["k"] if model.by_rate else psi["CL"] / V
    other = {"ka": k, "V": V * k / ka, "k": ka}
    return {name: other.get(name, psi[name]) for name in model.parameters}


def flipped(structural: Callable[..., Any] | None, psi: Mapping[str, float]) -> bool | None:
    """Whether absorption is slower than elimination, or the third compartment exchanges faster than the second; None where the
    model has no other parameters of the same curve."""
    other = mirrored(structural, psi)
    if other is None:
        return None
    if "Q3" in other:
        return psi["Q2"] / psi["V2"] < psi["Q3"] / psi["V3"]
    return other["ka"] > psi["ka"]


def note(structural: Callable[..., Any] | None, psi: Mapping[str, float]) -> str:
    """A sentence where absorption is slower than elimination, or compartments are out of order; "" elsewhere."""
    other = mirrored(structural, psi)
    if other is None or not flipped(structural, psi):
        return ""
    if "Q3" in other:
        values = ", ".join(f"{name} = {other[name]:.3g}" for name in _CHANGED)
        return (
            f"the compartments 2 and 3 are out of order: the third exchanges faster (Q3/V3 = {psi['Q3'] / psi['V3']:.3g}, "
            f"Q2/V2 = {psi['Q2'] / psi['V2']:.3g}), and {values} give the same curves; start there to have the faster one second"
        )
    values = ", ".join(f"{name} = {value:.3g}" for name, value in other.items() if name != "Tlag")
    return (
        f"flip-flop: absorption (ka = {psi['ka']:.3g}) is slower than elimination ({other['ka']:.3g}), and {values} give a "
        "typical subject the same curve; if absorption is known to be the faster, start there"
    )


def in_order(structural: Callable[..., Any] | None) -> str:
    """What is said where there is nothing to note."""
    model = within(structural)
    three = model is not None and model.count == 3
    return "Of three compartments, the second exchanges faster." if three else "Absorption is faster than elimination."
