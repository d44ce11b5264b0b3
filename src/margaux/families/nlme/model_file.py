"""A whole model in a text file (TOML): data, structural model, parameters, error, settings."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from . import model_error, specification
from .by_output import error_of
from .individual import Individual, LogitNormal, LogNormal, Normal, ProbitNormal
from .kinds import outputs_of
from .model_keys import (
    BLOCKS,
    LIMITS,
    NUMBER,
    NUMBERS_BY_NAME,
    SWITCH,
    TABLE,
    TEXT,
    TEXTS,
    TEXTS_BY_NAME,
    WHOLE,
    Source,
    nearest,
)  # fmt: skip
from .model_priors import read
from .model_structure import structural
from .running import Settings
from .shapes import of_table
from .structural import Curve
from .written import equations_of

if TYPE_CHECKING:
    from .estimator import NLME


#: distributions of individual parameters, by the names they have in a file
DISTRIBUTIONS: dict[str, type[Individual]] = {
    "normal": Normal, "lognormal": LogNormal, "logitnormal": LogitNormal, "probitnormal": ProbitNormal,
}  # fmt: skip
#: what a file has, in the order in which it is written
TABLES = {
    "title": TEXT, "omega": BLOCKS, "data": TABLE, "structural": TABLE, "parameters": TABLE, "priors": TABLE, "error": TABLE,
    "settings": TABLE,
}  # fmt: skip
ROLES = {
    "id": TEXT, "time": TEXT, "y": TEXT, "dose": TEXT, "occ": TEXT, "cens": TEXT, "limit": TEXT, "lloq": LIMITS,
    "output": TEXT, "columns": TEXTS_BY_NAME,
}  # fmt: skip
PARAMETER = {
    "distribution": TEXT, "initial": NUMBER, "fixed": SWITCH, "random": SWITCH, "occasion": SWITCH, "covariates": TEXT,
    "coefficients": NUMBERS_BY_NAME, "variance": NUMBER, "occasion_variance": NUMBER, "low": NUMBER, "high": NUMBER,
    "classes": WHOLE, "shape": TEXT, "shape_initial": NUMBER, "shape_fixed": SWITCH,
}  # fmt: skip
SETTINGS = {
    "seed": WHOLE, "n_iter": WHOLE, "n_burn": WHOLE, "power": NUMBER, "stop": SWITCH, "n_chains": WHOLE, "n_starts": WHOLE,
    "n_screen": WHOLE, "pattern": TEXTS, "n_steps": WHOLE, "anneal": NUMBER, "fixed_effects": TEXT, "batch_size": WHOLE,
    "polish": SWITCH, "dtype": TEXT,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """The model of a text file, which `from_toml` reads.

    Attributes:
        path: of the file. title: what it says of itself. model: the estimator, not yet fitted. data: the table that it names, or
            None. roles: the columns, as arguments of `NLME.fit`.
    """

    path: Path
    title: str
    model: NLME
    data: Path | None
    roles: dict[str, Any]
    source: Source = dataclasses.field(repr=False)

    def table(self, path: str | Path | None = None) -> pd.DataFrame:
        """The data that the file names, or of another file in their place.

        Raises:
            ValueError: no such file, no table, or a column that it does not have.
        """
        from ...showing.inputs import read_table

        if path is None and self.data is None:
            raise self.source.problem(
                ["data"], 'file is missing; add file = "table.csv", or name the table when the model is fitted'
            )
        frame = read_table(Path(path) if path is not None else self.data)  # type: ignore[arg-type]
        self._check_columns(frame)
        return frame

    def fit(self, data: pd.DataFrame | None = None) -> NLME:
        """The model fitted to its data, or to those given: `NLME.fit` with the columns of the file.

        Raises:
            ValueError, TypeError: what is wrong with the data, before anything is compiled.
        """
        if data is None:
            data = self.table()
        else:
            self._check_columns(data)
        return self.model.fit(data, **self.roles)

    def _check_columns(self, frame: pd.DataFrame) -> None:
        columns = [str(name) for name in frame.columns]
        for role, name in self.roles.items():
            for key, column in name.items() if isinstance(name, Mapping) else [("", name)]:
                if isinstance(column, str) and column not in columns:
                    keys = ["data", role, *([key] if key else [])]
                    raise self.source.problem(keys, f"{column!r} is no column of the data{nearest(column, columns)}")
        curve: Any = self.model.structural
        individual = self.model.individual or {}
        roles = [role for role in ("time", "dose") if role in self.roles]
        equations = equations_of(curve)
        wanted = [name for name in curve.parameters if name not in individual] + ([] if equations is None else equations.columns)
        for name in wanted:
            if name not in [*columns, *roles]:
                told = f"{name} is no parameter of the file and no column of the data{nearest(name, [*individual, *columns])}"
                raise self.source.problem(["structural"], told)
        if equations is not None and (self.roles.get("y", "y") in equations.columns or "y" in equations.columns):
            raise self.source.problem(["structural"], "the equations read the outcome itself, which they are to predict")


def from_toml(path: str | Path) -> ModelFile:
    """The model that a text file holds, as `NLME.to_toml` writes one.

    Tables of the file: `[data]` (file, id, time, y, dose, occ, cens, limit, lloq, output, columns), `[structural]` (name of a
    ready one, or output, derivatives, initial, define in text; several outputs of differential equations as
    `[structural.output]`, by label), `[parameters.NAME]` (distribution, initial, fixed, random, occasion, covariates,
    coefficients, variance, occasion_variance, low, high, classes, shape, shape_initial, shape_fixed), `[priors]` (by name, center
    and sd or cv, or mode and df), `[error]` (model, fixed, random, correlated in time, censoring; of several outputs as
    `[error.LABEL]`), `[settings]` (seed and those of `NLME`); before them `title` and `omega`. A path of data begins at the
    folder of the file.

    Expressions are arithmetic (see `margaux.families.nlme.expressions.Expression`), and no other code.

    Raises:
        ValueError: a mistake, with key, line and what is allowed there. OSError: the file cannot be read.

    >>> import tempfile, pathlib
    >>> text = '''
    ... [structural]
    ... output = "central / V"
    ... [structural.derivatives]
    ... central = "-CL / V * central"
    ... [parameters.V]
    ... distribution = "lognormal"
    ... initial = 20
    ... [parameters.CL]
    ... distribution = "lognormal"
    ... initial = 2
    ... random = false
    ... '''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "model.toml"
    ...     _ = file.write_text(text)
    ...     from_toml(file).model.structural
    equations(V, CL | time)
    """
    from ...showing.inputs import check_file

    path = Path(path)
    check_file(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path.name} is no text in UTF-8; save it as such") from problem
    try:
        whole = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise ValueError(f'{path.name} is no TOML: {problem}; texts stand in quotes, as in name = "oral1cpt"') from problem
    return _read(whole, Source(path.name, text), path)


def _read(whole: dict[str, Any], source: Source, path: Path) -> ModelFile:
    source.check(whole, [], TABLES, needed=("structural", "parameters"))
    data, settings = dict(whole.get("data", {})), dict(whole.get("settings", {}))
    source.check(data, ["data"], {"file": TEXT} | ROLES)
    individual = {name: _individual(name, table, source) for name, table in whole["parameters"].items()}
    curve = structural(whole["structural"], individual, source)
    outputs = outputs_of(curve)
    errors = model_error.read(whole.get("error", {}), outputs, source)
    others = set(error_of(errors, outputs).multipliers)
    _check_parameters(curve, {name: one for name, one in individual.items() if name not in others}, source)
    model = _model(whole, curve, individual, errors, settings, source)
    file = data.pop("file", None)
    return ModelFile(path, whole.get("title", ""), model, None if file is None else path.parent / file, data, source)


def _individual(name: str, table: Any, source: Source) -> Individual:
    keys = ["parameters", name]
    if not isinstance(table, dict):
        raise source.problem(keys, f'must be a table: [parameters.{name}], then distribution = "lognormal" and initial = 1.5')
    source.check(table, keys, PARAMETER, needed=["distribution"])
    kind = DISTRIBUTIONS[source.one_of(table["distribution"], [*keys, "distribution"], DISTRIBUTIONS)]
    given = {key: value for key, value in table.items() if key not in ("distribution", "initial") and "shape" not in key}
    if own := {key: value for key, value in table.items() if "shape" in key}:
        try:
            given["shape"] = of_table(own)
        except ValueError as problem:
            raise source.problem([*keys, next(iter(own))], str(problem)) from problem
    for key in ("low", "high"):
        if key in given and kind not in (LogitNormal, ProbitNormal):
            raise source.problem([*keys, key], f"is of logitnormal and probitnormal, and {name} is {table['distribution']}")
    if given.get("fixed") and "initial" not in table:
        raise source.problem([*keys, "fixed"], "holds the typical value at its initial one, which is missing; add initial = 1.5")
    bounds: dict[str, Any] = {key: given[key] for key in ("low", "high") if key in given}
    for place, numbers in (("low", bounds), ("initial", bounds | {"start": table.get("initial")})):
        try:
            kind(**numbers)
        except ValueError as problem:
            raise source.problem([*keys, place], str(problem)) from problem
    try:
        return kind(table.get("initial"), **given)
    except ValueError as problem:
        raise source.problem(keys, str(problem)) from problem


def _check_parameters(curve: Curve, individual: Mapping[str, Individual], source: Source) -> None:
    """What the data may have in the place of a parameter is looked for there."""
    for name in individual:
        if name not in curve.parameters:
            known = [one for one in curve.parameters if one not in individual] or list(curve.parameters)
            raise source.problem(["parameters", name], f"{curve!r} has no parameter {name}{nearest(name, known)}")
    known = set(getattr(curve.function, "names", ()))
    from_columns = curve.parameters if hasattr(curve.function, "derivative") else known
    for name in curve.parameters:
        if name not in individual and name not in from_columns:
            raise source.problem(["parameters"], f"{name} of {curve!r} is missing; add [parameters.{name}]")


def _model(
    whole: Mapping[str, Any],
    curve: Curve,
    individual: dict[str, Individual],
    errors: Any,
    settings: dict[str, Any],
    source: Source,
) -> NLME:
    from .estimator import NLME

    source.check(settings, ["settings"], SETTINGS)
    seed = settings.pop("seed", 0)
    if seed < 0:
        raise source.problem(["settings", "seed"], f"must not be negative, got {seed}")
    if "pattern" in settings:
        settings["pattern"] = tuple(settings["pattern"])
    for key in ("n_chains", "batch_size"):
        if settings.get(key, 1) < 1:
            raise source.problem(["settings", key], f"must be at least 1, got {settings[key]}")
    if "dtype" in settings:
        source.one_of(settings["dtype"], ["settings", "dtype"], ("float32", "float64"))
    omega = whole.get("omega", "diagonal")
    model = NLME(
        structural=curve, individual=individual, omega=omega if isinstance(omega, str) else [tuple(one) for one in omega],
        priors=read(whole.get("priors", {}), source) or None, error=errors,
        censoring=model_error.censoring(whole.get("error", {}), source), random_state=seed,
        **settings,
    )  # fmt: skip
    for keys, check in ((["settings"], lambda asked: Settings.of(asked).estep(1)), (["parameters"], specification.individual)):
        try:
            check(model)
        except (ValueError, TypeError) as problem:
            raise source.problem(keys, str(problem)) from problem
    try:
        specification.blocks(model, individual)
    except ValueError as problem:
        raise source.problem(["omega"], str(problem)) from problem
    return model
