"""NONMEM control streams as models of this library."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from . import control_code, control_data
from .control_error import residual
from .control_parameters import Reading, blocks, individual
from .control_records import ASIDE, Stream, split, thetas, variances
from .control_structure import Structure, structure

if TYPE_CHECKING:
    from .estimator import NLME


@dataclasses.dataclass(frozen=True)
class ControlStream:
    """The model of a control stream, which `from_control` reads.

    Attributes:
        path: of the file. title: of $PROBLEM. model: the estimator, not yet fitted. names: what THETA, OMEGA and SIGMA are
            called in `params_`. warnings: a sentence of each line that was not understood or counts otherwise than there.
        scale: what amounts and rates of the data are divided by, c of S = c V. input: what $INPUT and $DATA say. central: number
            of the observed compartment. covariates: columns that parameters read.
    """

    path: Path
    title: str
    model: NLME
    names: dict[str, str]
    warnings: list[str]
    scale: float
    input: control_data.Input = dataclasses.field(repr=False)
    central: int = dataclasses.field(repr=False)
    covariates: tuple[str, ...] = dataclasses.field(repr=False)

    def table(self, path: str | Path | None = None) -> pd.DataFrame:
        """The data of $DATA, or of another file in their place, with the rows and columns that count.

        Raises:
            ValueError: a row that is not what $INPUT says, or an observation of another compartment. OSError: no such file.
        """
        frame = control_data.table(self.input, Path(path) if path is not None else self.input.path)
        self._check_observed(frame)
        for name in self.covariates:
            values: Any = frame.groupby("ID")[name].nunique(dropna=False)
            if (values > 1).any():
                raise ValueError(f"{name} changes within subject {values.idxmax():g}, and covariates are constant here")
        if self.scale != 1:
            frame["AMT"] = frame["AMT"] / self.scale
            if "RATE" in frame:
                frame["RATE"] = frame["RATE"].where(~(frame["RATE"] > 0), frame["RATE"] / self.scale)
        return frame

    def _check_observed(self, frame: pd.DataFrame) -> None:
        if "CMT" not in frame:
            return
        kind = next((name for name in ("EVID", "MDV") if name in frame), None)
        seen = pd.Series(True, frame.index) if kind is None else frame[kind].fillna(0) == 0
        other = (seen & (frame["AMT"].fillna(0) == 0) & ~frame["CMT"].fillna(0).isin([0, self.central])).to_numpy()
        if other.any():
            at = int(np.flatnonzero(other)[0])
            raise ValueError(
                f"row {at + 1} of those that count observes compartment {frame['CMT'].iloc[at]:g} (subject "
                f"{frame['ID'].iloc[at]:g}), and the model that of number {self.central}; keep the observations of that one"
            )

    def fit(self, data: pd.DataFrame | None = None) -> NLME:
        """The model fitted to its data, or to a table such as `table()` gives.

        Raises:
            ValueError, TypeError: what is wrong with the data. OSError: no such file.
        """
        return self.model.fit(self.table() if data is None else data, id="ID", time="TIME", y="DV")


def from_control(path: str | Path) -> ControlStream:
    """The model of a NONMEM control stream, as far as it has a counterpart here.

    Read are $PROBLEM, $INPUT, $DATA (IGNORE, ACCEPT), $SUBROUTINES (ADVAN1 to 4, 11, 12 by clearances or rates), $PK, $ERROR,
    $THETA, $OMEGA (BLOCK, FIX), $SIGMA. Parameters are THETA * EXP(ETA), log-normal, with covariates in powers or exponentials;
    THETA + ETA, normal, with linear ones; or logistic ones. Errors are additive, proportional, both, or exponential. $ESTIMATION
    has no counterpart: the maximum is that of the likelihood itself.

    A line that is not understood and has no part in the model is in `warnings`; one that has is an error.

    Raises:
        ValueError: what has no counterpart, with its line and how it could be written. OSError: the file cannot be read.

    >>> import tempfile, pathlib
    >>> text = '''
    ... $PROBLEM one compartment
    ... $INPUT ID TIME AMT DV WT
    ... $DATA data.csv IGNORE=@
    ... $SUBROUTINES ADVAN2 TRANS2
    ... $PK
    ... CL = THETA(1)*(WT/70)**0.75*EXP(ETA(1))
    ... V = THETA(2)*EXP(ETA(2))
    ... KA = THETA(3)
    ... S2 = V
    ... $ERROR
    ... Y = F*(1 + EPS(1))
    ... $THETA (0, 2) (0, 20) (0, 1.5)
    ... $OMEGA BLOCK(2) 0.1 0.01 0.1
    ... $SIGMA 0.04
    ... '''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "run1.ctl"
    ...     _ = file.write_text(text)
    ...     stream = from_control(file)
    >>> stream.model.structural, stream.model.omega
    (oral1cpt(ka, V, CL | time, dose), [('CL', 'V')])
    >>> stream.model.individual["CL"].covariates, stream.names["THETA(1)"]
    ('log(WT / 70)', 'CL')
    """
    from .estimator import NLME

    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path.name} is no text in UTF-8; save it as such") from problem
    stream = split(text, path.name)
    _look_aside(stream)
    given = control_data.described(stream, path.parent)
    pk = control_code.read(stream, stream.only("PK", "it assigns the parameters"))
    elements = {one.number: one for one in thetas(stream)}
    columns = tuple(name for name in given.columns if name is not None)
    _rename(pk, given.synonyms)
    reading = Reading(stream, elements, variances(stream, "OMEGA"), columns, _binary(given))
    found = structure(stream, pk)
    error = control_code.read(stream, stream.only("ERROR", "it assigns Y"), _of_thetas(pk, found))
    parameters = {}
    for ours in found.curve.parameters:
        name = found.variables[ours]
        parameters[ours] = individual(reading, name, ours, pk.values[name], pk.lines[name])
    ours_of = {theirs: ours for ours, theirs in found.variables.items()}
    etas = {int(key[4:-1]): ours_of[name] for key, name in reading.owners.items() if key.startswith("ETA(")}
    sized, scale = residual(reading, error, found, variances(stream, "SIGMA"))
    _tell_unused(reading, etas)
    _tell_scale(stream, found, scale)
    omega = blocks(reading, etas)
    model = NLME(structural=found.curve, individual=parameters, omega=omega or "diagonal", error=sized)
    title = stream.only("PROBLEM", "").text
    return ControlStream(path, title, model, reading.names, stream.warnings, scale, given, found.central, reading.covariates)


def _of_thetas(pk: control_code.Code, found: Structure) -> dict[str, ast.expr]:
    """Variables of $PK that are functions of THETAs alone, and no parameters of the structural model."""
    own = {*found.variables.values(), f"S{found.central}", "SC"}
    known = {name: value for name, value in pk.values.items() if isinstance(value, ast.expr) and name not in own}
    return {name: value for name, value in known.items() if all(one.startswith("THETA_") for one in control_code.names(value))}


def _look_aside(stream: Stream) -> None:
    """Refuse what changes the likelihood, and say of other records that they have no part in it."""
    for record in stream.all("ESTIMATION"):
        for word in record.text.upper().replace(" =", "=").split():
            if word.startswith(("LIKE", "-2LL", "-2LOG")):
                raise stream.problem(
                    record.number, f"$ESTIMATION {word}: Y is a likelihood; write it as NLME(log_likelihood=...)"
                )
    for record in stream.records:
        if record.name in ASIDE and record.name not in ("ESTIMATION", "PROBLEM"):
            stream.warn(record.number, f"${record.name} has no part in the model, and is not followed")


def _rename(code: control_code.Code, synonyms: dict[str, str]) -> None:
    """Columns by the names that they have in the table."""
    for name, value in code.values.items():
        if isinstance(value, ast.AST):
            for node in ast.walk(value):
                if isinstance(node, ast.Name) and node.id in synonyms:
                    node.id = synonyms[node.id]
        code.values[name] = value


def _binary(given: control_data.Input) -> Any:
    """Whether a column is 0 or 1 in the data, as far as they are there."""

    def told(column: str) -> bool | None:
        if not given.path.exists():
            return None
        values = control_data.table(given, given.path)[column]
        return bool(values.isin([0, 1]).all())

    return told


def _tell_unused(reading: Reading, etas: dict[int, str]) -> None:
    for theta in reading.thetas.values():
        if theta.name not in reading.owners:
            reading.stream.warn(theta.line, f"{theta.name} is in no parameter of the model, and is left out")
    for eta in reading.omega.values:
        if eta not in etas:
            reading.stream.warn(reading.omega.lines[eta], f"ETA({eta}) is in no parameter of the model, and is left out")


def _tell_scale(stream: Stream, found: Structure, scale: float) -> None:
    if scale == 1:
        return
    if getattr(found.curve.function, "rate", None) is not None:
        raise stream.problem(None, "a modelled rate R and a scale of S other than the volume are not read together")
    stream.warn(None, f"the prediction is a concentration over {scale:g}: table() divides AMT and RATE by {scale:g}")
