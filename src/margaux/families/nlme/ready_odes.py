r"""Ready models by differential equations, whose doses are an event table: see `margaux.nlme.ode`.

Amounts are in units of the dose, volumes V in dose per concentration, clearances in volume per time, rate constants in one over
time. What is observed is the concentration C = A / V unless it is said otherwise.

References: Gabrielsson and Weiner, Pharmacokinetic and Pharmacodynamic Data Analysis (2000); Dayneka, Garg and Jusko, Comparison
of four basic models of indirect pharmacodynamic responses (1993); Savic et al., Implementation of a transit compartment model
for describing drug absorption (2007); Friberg et al., Model of chemotherapy-induced myelosuppression (2002).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from .equations import ode
from .structural import Curve

_State = Mapping[str, Any]


def _concentration(state: _State, psi: _State) -> Any:
    return state["central"] / psi["V"]


def _saturable(state: _State, psi: _State) -> Any:
    """What Michaelis and Menten's elimination takes away in a unit of time."""
    C = _concentration(state, psi)
    return psi["Vm"] * C / (psi["Km"] + C)


def _iv_mm(t: Any, state: _State, psi: _State) -> dict[str, Any]:
    return {"central": -_saturable(state, psi)}


def _oral_mm(t: Any, state: _State, psi: _State) -> dict[str, Any]:
    absorbed = psi["ka"] * state["depot"]
    return {"depot": -absorbed, "central": absorbed - _saturable(state, psi)}


iv1cpt_mm = ode(_iv_mm, ["central"], _concentration, parameters=("V", "Vm", "Km"), name="iv1cpt_mm")
r"""Boluses or infusions, $dA/dt=-V_m C/(K_m+C)$: Vm in amount per time, Km a concentration."""

oral1cpt_mm = ode(_oral_mm, ["depot", "central"], _concentration, parameters=("ka", "V", "Vm", "Km"), name="oral1cpt_mm")
r"""First-order absorption, $dA/dt=k_aA_d-V_mC/(K_m+C)$."""


def transit1cpt(n: int) -> Curve:
    r"""Absorption by n transit compartments of rate $k_{tr}=(n+1)/MTT$, MTT the mean transit time from the dose to the depot,
    from which $k_a$ absorbs: parameters MTT, ka, V, CL. CMT 1 is where doses begin.

    >>> transit1cpt(3)
    transit1cpt(MTT, ka, V, CL | time)

    Raises:
        ValueError: n is no whole number of at least 1.
    """
    if int(n) != n or n < 1:
        raise ValueError(f"n must be a whole number of transit compartments, at least 1, got {n}")
    chain = ["dose", *(f"transit{i}" for i in range(1, int(n) + 1))]

    def slopes(t: Any, state: _State, psi: _State) -> dict[str, Any]:
        ktr, absorbed = (n + 1) / psi["MTT"], psi["ka"] * state["depot"]
        flows = [ktr * state[name] for name in chain]
        moved = {name: before - flow for name, before, flow in zip(chain, [0.0, *flows], flows, strict=False)}
        return moved | {"depot": flows[-1] - absorbed, "central": absorbed - psi["CL"] * _concentration(state, psi)}

    return ode(
        slopes, [*chain, "depot", "central"], _concentration, parameters=("MTT", "ka", "V", "CL"), name="transit1cpt"
    )  # fmt: skip


def metabolite(route: Literal["iv", "oral"] = "iv", output: Literal["metabolite", "parent"] = "metabolite") -> Curve:
    r"""A drug of one compartment and what a fraction fm of its clearance makes of it: $dA/dt=-CL\,C$ (and $k_aA_d$, oral),
    $dM/dt=f_m\,CL\,C-CL_{met}\,M/V_{met}$, in molar units.

    Parameters (ka,) V, CL, fm, Vmet, CLmet; what is observed is M / Vmet or C. CMT 1 takes doses (of an oral drug, the depot),
    the last one those of the metabolite itself. The equations are linear and solved exactly.

    What is seen of the metabolite alone tells fm / Vmet and no more, unless it is given too: hold fm, or read it from a column.
    It does not tell which of the rates CL / V and CLmet / Vmet is the larger, either (nor ka, of an oral drug): with the other
    parameters to match they can change places. Start from what is known of the drug, or observe it too.

    Reference: Gibaldi and Perrier, Pharmacokinetics (2nd ed., 1982), ch. 1.

    >>> metabolite("oral")
    metabolite[oral](ka, V, CL, fm, Vmet, CLmet | time)

    Raises:
        ValueError: an unknown route or output.
    """
    for what, given, known in (("route", route, ("iv", "oral")), ("output", output, ("metabolite", "parent"))):
        if given not in known:
            raise ValueError(f"{what} must be {known[0]!r} or {known[1]!r}, got {given!r}")
    oral = route == "oral"

    def slopes(t: Any, state: _State, psi: _State) -> dict[str, Any]:
        cleared = psi["CL"] * _concentration(state, psi)
        made = {"metabolite": psi["fm"] * cleared - psi["CLmet"] / psi["Vmet"] * state["metabolite"]}
        if not oral:
            return made | {"central": -cleared}
        absorbed = psi["ka"] * state["depot"]
        return made | {"depot": -absorbed, "central": absorbed - cleared}

    def observed(state: _State, psi: _State) -> Any:
        return _concentration(state, psi) if output == "parent" else state["metabolite"] / psi["Vmet"]

    return ode(
        slopes, ["depot"] * oral + ["central", "metabolite"], observed, linear=True,
        parameters=("ka",) * oral + ("V", "CL", "fm", "Vmet", "CLmet"),
        name=f"metabolite[{route}]" if output == "metabolite" else f"metabolite[{route}, parent]",
    )  # fmt: skip


#: what a drug's effect E(C) does to a response R: dR/dt = kin (1 - or + E) - kout R, or kin - kout (1 - or + E) R
_ACTS: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "inhibits production": lambda one, effect: (1 - effect, one),
    "inhibits loss": lambda one, effect: (one, 1 - effect),
    "stimulates production": lambda one, effect: (1 + effect, one),
    "stimulates loss": lambda one, effect: (one, 1 + effect),
}


def turnover(
    action: Literal["inhibits production", "inhibits loss", "stimulates production", "stimulates loss"],
) -> Curve:
    r"""Indirect response to a drug of one compartment (boluses or infusions): $dR/dt=k_{in}\,a-k_{out}\,b\,R$ from
    $R_0=k_{in}/k_{out}$, where one of a and b is $1-E$ or $1+E$, and $E=E_{max}C/(EC_{50}+C)$.

    Parameters V, CL, R0, kout, Emax, EC50; what is observed is R. Emax is at most 1 where it inhibits: `LogitNormal`.

    >>> turnover("inhibits production")
    turnover[inhibits production](V, CL, R0, kout, Emax, EC50 | time)

    Raises:
        ValueError: an unknown action.
    """
    if action not in _ACTS:
        raise ValueError(f"action must be one of {', '.join(map(repr, _ACTS))}, got {action!r}")

    def slopes(t: Any, state: _State, psi: _State) -> dict[str, Any]:
        C = _concentration(state, psi)
        made, lost = _ACTS[action](1.0, psi["Emax"] * C / (psi["EC50"] + C))
        return {
            "central": -psi["CL"] * C,
            "response": psi["kout"] * (psi["R0"] * made - lost * state["response"]),
        }

    return ode(
        slopes, ["central", "response"], "response", initial=lambda psi: {"response": psi["R0"]},
        parameters=("V", "CL", "R0", "kout", "Emax", "EC50"), name=f"turnover[{action}]",
    )  # fmt: skip


_CELLS = ("proliferating", "maturing1", "maturing2", "maturing3", "circulating")


def _myelosuppression(t: Any, state: _State, psi: _State) -> dict[str, Any]:
    C, ktr = _concentration(state, psi), 4 / psi["MTT"]
    feedback = (psi["Circ0"] / state["circulating"]) ** psi["gamma"]
    born = (1 - psi["slope"] * C) * feedback * state["proliferating"]
    flows = [state[name] for name in _CELLS]
    slopes = {name: ktr * (before - own) for name, before, own in zip(_CELLS, [born, *flows], flows, strict=False)}
    return {"central": -psi["CL"] * C} | slopes


friberg = ode(
    _myelosuppression, ["central", *_CELLS], "circulating", initial=lambda psi: dict.fromkeys(_CELLS, psi["Circ0"]),
    parameters=("V", "CL", "Circ0", "MTT", "slope", "gamma"), name="friberg",
)  # fmt: skip
r"""Myelosuppression: proliferating cells, three maturing compartments and circulating ones, all of rate $k_{tr}=4/MTT$ and
from Circ0, with births $k_{tr}P\,(1-slope\cdot C)\,(Circ_0/Circ)^\gamma$; the drug has one compartment. Observed are circulating
cells. V and CL may be columns of the data."""
