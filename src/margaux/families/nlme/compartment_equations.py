"""The differential equations of ready compartment models, which are solved where superposition does not hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .dosing import Administered
from .dynamics import Dynamics
from .pharmacokinetics import Compartments
from .structural import Curve

#: clearance to, and volume of, each compartment beside the central one, by how many there are in all
_OTHERS: dict[int, tuple[tuple[str, str], ...]] = {1: (), 2: (("Q", "V2"),), 3: (("Q2", "V2"), ("Q3", "V3"))}


@dataclasses.dataclass(frozen=True)
class _Flows:
    r"""$dA_1/dt=k_aA_d-(k_{10}+\sum_jk_{1j})A_1+\sum_jk_{j1}A_j$, $dA_j/dt=k_{1j}A_1-k_{j1}A_j$, $dA_d/dt=-k_aA_d$."""

    compartments: Compartments

    @property
    def volume(self) -> str:
        return "V" if self.compartments.count == 1 else "V1"

    @property
    def states(self) -> tuple[str, ...]:
        others = tuple(f"peripheral{i}" for i in range(1, self.compartments.count))
        return ("depot",) * (self.compartments.route == "oral") + ("central", *others)

    def __call__(self, t: Any, state: Mapping[str, Any], psi: Mapping[str, Any]) -> dict[str, Any]:
        V, central = psi[self.volume], state["central"]
        out: dict[str, Any] = {}
        slope = -(psi["k"] if self.compartments.by_rate else psi["CL"] / V) * central
        if "depot" in self.states:
            absorbed = psi["ka"] * state["depot"]
            out, slope = {"depot": -absorbed}, slope + absorbed
        for i, (clearance, volume) in enumerate(_OTHERS[self.compartments.count], 1):
            there = psi[clearance] / V * central - psi[clearance] / psi[volume] * state[f"peripheral{i}"]
            out[f"peripheral{i}"], slope = there, slope - there
        return out | {"central": slope}


@dataclasses.dataclass(frozen=True)
class _Concentration:
    volume: str

    def __call__(self, state: Mapping[str, Any], psi: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
        return state["central"] / psi[self.volume]


def by_equations(curve: Curve) -> Curve:
    """A compartment model whose doses are an event table, by its equations: linear ones, solved by exponentials of matrices.

    Args:
        curve: of `Administered`.

    >>> from margaux.nlme import dosed, oral1cpt
    >>> by_equations(dosed(oral1cpt)).function.states
    ('depot', 'central')
    """
    given: Administered = curve.function  # type: ignore[assignment]
    flows = _Flows(given.curve)

    def each(names: tuple[str | None, str | None]) -> tuple[str | None, ...]:
        known = (*names, *[None] * len(flows.states))[: len(flows.states)]
        return known if any(known) else ()

    function = Dynamics(
        flows, flows.states, _Concentration(flows.volume), regimen=given.regimen, lag=each(given.lag),
        bioavailability=each(given.bioavailability), duration=given.duration, rate=given.rate,
    )  # fmt: skip
    return dataclasses.replace(curve, function=function)
