"""The structural model of a control stream: ADVAN and TRANS as ready models, with what varies between doses."""

from __future__ import annotations

import ast
import dataclasses
import re

from .control_code import Code, Unknown, collected, number, product, text
from .control_records import Stream, words
from .dosing import dosed
from .structural import CURVES, Curve

#: parameters of the model by their names in $PK, of each ADVAN with the TRANS that has clearances and volumes
_CLEARANCES: dict[int, dict[str, str]] = {
    1: {"V": "V", "CL": "CL"},
    2: {"KA": "ka", "V": "V", "CL": "CL"},
    3: {"V1": "V1", "CL": "CL", "Q": "Q", "V2": "V2"},
    4: {"KA": "ka", "V2": "V1", "CL": "CL", "Q": "Q", "V3": "V2"},
    11: {"V1": "V1", "CL": "CL", "Q2": "Q2", "V2": "V2", "Q3": "Q3", "V3": "V3"},
    12: {"KA": "ka", "V2": "V1", "CL": "CL", "Q3": "Q2", "V3": "V2", "Q4": "Q3", "V4": "V3"},
}
#: the ready models, first the one to take
_MODELS = {
    1: ("bolus1cpt",), 2: ("oral1cpt",), 3: ("bolus2cpt",), 4: ("oral2cpt",), 11: ("iv3cpt", "bolus3cpt", "infusion3cpt"),
    12: ("oral3cpt",),
}  # fmt: skip
#: TRANS with clearances and volumes
_TRANS = {1: 2, 2: 2, 3: 4, 4: 4, 11: 4, 12: 4}
#: of TRANS1, rates as a clearance over a volume: each pair of a compartment and the central one
_RATES = {
    3: [("K", "CL", "V1"), ("K12", "Q", "V1"), ("K21", "Q", "V2")],
    4: [("K", "CL", "V2"), ("K23", "Q", "V2"), ("K32", "Q", "V3")],
    11: [("K", "CL", "V1"), ("K12", "Q2", "V1"), ("K21", "Q2", "V2"), ("K13", "Q3", "V1"), ("K31", "Q3", "V3")],
    12: [("K", "CL", "V2"), ("K23", "Q3", "V2"), ("K32", "Q3", "V3"), ("K24", "Q4", "V2"), ("K42", "Q4", "V4")],
}
_OF_DOSES = re.compile(r"(F|ALAG|D|R|S)(\d+|O|C)")


@dataclasses.dataclass(frozen=True)
class Structure:
    """What $SUBROUTINES and $PK say of the structural model.

    Attributes:
        curve: with what varies between doses. variables: of each parameter of the curve, the variable of $PK. central: number
            of the observed compartment. volume: its variable. scale: c of S = c V, None where there is no S.
    """

    curve: Curve
    variables: dict[str, str]
    central: int
    volume: str
    scale: float | None


def structure(stream: Stream, code: Code) -> Structure:
    """The structural model of a stream.

    Raises:
        ValueError: one that is not ready here, with its line.
    """
    record = stream.only("SUBROUTINES", "name one of ADVAN1 to ADVAN4, ADVAN11, ADVAN12 with its TRANS; $PRED is not read")
    advan, trans = None, 1
    for word in words(record):
        found = re.fullmatch(r"(?:(?:ADVAN|TRANS)=)?(ADVAN|TRANS)(\d+)", word.upper())
        if found and found[1] == "ADVAN":
            advan = int(found[2])
        elif found:
            trans = int(found[2])
        elif re.match(r"(TOL|ATOL|SSTOL|SSATOL)=", word.upper()):
            stream.warn(record.number, f"{word} is not needed by closed forms")
        else:
            raise stream.problem(record.number, f"$SUBROUTINES {word} is not read; there are ADVAN and TRANS")
    if advan not in _CLEARANCES:
        raise stream.problem(
            record.number, f"{f'ADVAN{advan}' if advan else 'no ADVAN'} is not read; there are ADVAN1 to 4, 11 and 12; write "
                           "differential equations as margaux.nlme.ode, or in a model file"
        )  # fmt: skip
    central = 1 if advan in (1, 3, 11) else 2
    base, variables = _parameters(stream, code, advan, trans, record.number)
    volume, scale = _scale(stream, code, central, variables.get("V") or variables.get("V1"), record.number)
    if "V" in base.parameters or "V1" in base.parameters:
        variables["V" if "V" in base.parameters else "V1"] = volume
    curve, more = _with_doses(stream, code, base, central)
    return Structure(curve, variables | more, central, volume, scale)


def _parameters(stream: Stream, code: Code, advan: int, trans: int, line: int) -> tuple[Curve, dict[str, str]]:
    """The curve, and the variable of $PK of each of its parameters but perhaps the volume."""
    named = dict(_CLEARANCES[advan])
    if trans == _TRANS[advan]:
        return _ready(stream, advan, line), _there(stream, code, {ours: theirs for theirs, ours in named.items()}, line)
    if trans != 1:
        raise stream.problem(line, f"ADVAN{advan} TRANS{trans} is not read; write TRANS{_TRANS[advan]}, with {', '.join(named)}")
    absorbed = {"ka": "KA"} if "KA" in named else {}
    ratio = _over(code, "K")
    if advan in (1, 2):
        if ratio is None:
            ready = CURVES["bolus1cpt_k" if advan == 1 else "oral1cpt_k"]
            return ready, _there(stream, code, absorbed | {"k": "K"}, line)
        return _ready(stream, advan, line), _there(stream, code, absorbed | {"CL": ratio[0], "V": ratio[1]}, line)
    found: dict[str, str] = {}
    for rate, above, below in _RATES[advan]:
        ratio = _over(code, rate)
        if ratio is None or found.setdefault(above, ratio[0]) != ratio[0] or found.setdefault(below, ratio[1]) != ratio[1]:
            raise stream.problem(
                code.lines.get(rate, line),
                f"{rate} is not {above}/{below}, and rate constants of several compartments are read as ratios alone; write "
                f"TRANS{_TRANS[advan]}, with {', '.join(named)}",
            )
    return _ready(stream, advan, line), _there(stream, code, absorbed | {named[k]: v for k, v in found.items()}, line)


def _ready(stream: Stream, advan: int, line: int) -> Curve:
    needed = set(_CLEARANCES[advan].values())
    for name in _MODELS[advan]:
        if name in CURVES and set(CURVES[name].parameters) == needed:
            return CURVES[name]
    raise stream.problem(line, f"ADVAN{advan} has three compartments, and no ready model here has them; write margaux.nlme.ode")


def _there(stream: Stream, code: Code, variables: dict[str, str], line: int) -> dict[str, str]:
    for name in variables.values():
        if name not in code.values:
            raise stream.problem(line, f"$PK does not assign {name}, which the model of $SUBROUTINES has")
    return variables


def _over(code: Code, name: str) -> tuple[str, str] | None:
    """The variables of a ratio that a variable is assigned."""
    tree = code.raw.get(name)
    if not (isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div)):
        return None
    left, right = tree.left, tree.right
    if isinstance(left, ast.Name) and isinstance(right, ast.Name) and {left.id, right.id} <= code.values.keys():
        return left.id, right.id
    return None


def _scale(stream: Stream, code: Code, central: int, volume: str | None, line: int) -> tuple[str, float | None]:
    """The volume, and S of the observed compartment over it."""
    name = next((one for one in (f"S{central}", "SC") if one in code.values), None)
    if name is None:
        if volume is None:
            raise stream.problem(line, f"no volume: $PK has rate constants and no S{central}; write S{central} = V")
        return volume, None
    at = code.lines[name]
    if name not in code.raw:
        raise stream.problem(at, f"{name} is not understood; write it as {name} = {volume or 'V'}, or a constant times that")
    found = product(code.raw[name])
    powers = collected(found)
    own = next(iter(powers)) if powers and len(powers) == 1 else None
    if own is None or powers != {own: 1.0} or found.constant <= 0 or own not in code.values or (volume and own != volume):
        if volume and code.values.get(own or "") is not None and _same(code, own, volume):
            return volume, found.constant
        raise stream.problem(at, f"{name} = {text(code.raw[name])} is no constant times {volume or 'a volume'}")
    return own, found.constant


def _same(code: Code, one: str | None, other: str) -> bool:
    """Whether two variables come down to the same."""
    left, right = (code.values.get(name or "") for name in (one, other))
    return isinstance(left, ast.AST) and isinstance(right, ast.AST) and ast.dump(left) == ast.dump(right)


def _with_doses(stream: Stream, code: Code, curve: Curve, central: int) -> tuple[Curve, dict[str, str]]:
    """With lag times, bioavailabilities, durations and rates, and the variable of each."""
    taking = (1,) if central == 1 else (1, 2)
    lag: dict[int, str] = {}
    share: dict[int, str] = {}
    lasting: dict[str, list[str]] = {"D": [], "R": []}
    for name, line in code.lines.items():
        found = _OF_DOSES.fullmatch(name)
        if not found or (found[1] == "S" and found[2] in (str(central), "C")):
            continue
        kind, place = found[1], int(found[2]) if found[2].isdigit() else 0
        value = code.values[name]
        constant = None if isinstance(value, Unknown) else number(value)
        if kind == "S" or (kind == "F" and constant == 1) or (kind == "ALAG" and constant == 0):
            continue
        if place not in taking:
            raise stream.problem(line, f"{name} is of a compartment that takes no dose here; those that do are {taking}")
        if kind in lasting:
            lasting[kind].append(name)
        else:
            (lag if kind == "ALAG" else share)[place] = name
    for kind, named in lasting.items():
        if len(named) > 1:
            raise stream.problem(code.lines[named[1]], f"{' and '.join(named)}: one {kind} is read, not several")
    used = [*lag.values(), *share.values(), *lasting["D"], *lasting["R"]]
    if not used:
        return curve, {}
    one = {key: names[0] if (names := lasting[kind]) else None for key, kind in (("duration", "D"), ("rate", "R"))}
    return dosed(curve, lag=lag, bioavailability=share, **one), {name: name for name in used}
