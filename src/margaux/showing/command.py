"""The shape of every `margaux fit FAMILY`: the options that all have, and what is done with the answer of each."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ..engine.outcome import FitError
from .answer import Answer, to_json, versions
from .errors import FAILED, Typed, UserError, asked
from .files import check_folder, write_document, write_report, written
from .inputs import checksum

PANEL = "Every fit"
Seed = Annotated[int, typer.Option(help="Random seed.", min=0, rich_help_panel=PANEL)]
Level = Annotated[float, typer.Option(help="Level of the intervals.", rich_help_panel=PANEL)]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for tables, figures, fit.json and report.html; without it nothing is written.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.", rich_help_panel=PANEL)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.", rich_help_panel=PANEL)]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if the fit has not converged.", rich_help_panel=PANEL)]


@dataclasses.dataclass
class Run:
    """One fit from the command line: what every family is given beside its data and settings."""

    line: str
    seed: int
    level: float
    out: Path | None
    as_json: bool
    quiet: bool
    strict: bool
    #: a sentence of the library in the words of the command line
    spoken: Callable[[str], str] = str
    #: options that were typed, by the names of their parameters, as they are typed
    typed: dict[str, str] = dataclasses.field(default_factory=dict)
    #: what is to be said of the data on stderr
    notes: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that every estimator has."""
        return {"random_state": self.seed, "verbose": not self.quiet}

    @contextlib.contextmanager
    def fitting(self) -> Iterator[None]:
        """A fit inside is timed, its warnings become notes, and input that it refuses is the user's to mend."""
        began = time.perf_counter()
        with warnings.catch_warnings(record=True) as told, asked():
            warnings.simplefilter("always")
            yield
        self.seconds = time.perf_counter() - began
        said = [str(one.message) for one in told if issubclass(one.category, UserWarning | RuntimeWarning)]
        self.notes += [note for note in dict.fromkeys(said) if note not in self.notes]

    def document(self, family: str, data: Path) -> dict[str, Any]:
        """What the JSON document of any fit says of how it was made."""
        return {
            "family": family,
            "command": self.line,
            "data": {"file": str(data), "sha256": checksum(data)},
            "seed": self.seed,
            "level": self.level,
            "notes": self.notes,
            "seconds": round(self.seconds, 3),
            "versions": versions(),
            "files": [],
        }

    def wrote(self, document: dict[str, Any], name: str, reason: str | None = None) -> None:
        """A file of `--out`, or the reason why there is none."""
        assert self.out is not None
        if reason is None:
            document["files"].append(str(self.out / name))
        self.say(f"saved {self.out / name}" if reason is None else f"no {name}: {reason}")

    def say(self, text: str) -> None:
        """A note on stderr, unless quiet."""
        if not self.quiet:
            typer.echo(" ".join(text.split()), err=True)


def fit_command(family: Callable[..., Answer]) -> Callable[..., None]:
    """A command from a function of its data, its settings and `run` that returns an `Answer`; `data` is the file."""
    own = [one for one in inspect.signature(family, eval_str=True).parameters.values() if one.name != "run"]

    def shared(
        context: typer.Context,
        seed: Seed = 0,
        level: Level = 0.95,
        out: Out = None,
        json: Json = False,
        quiet: Quiet = False,
        strict: Strict = False,
    ) -> Run:
        if not 0 < level < 1:
            raise UserError(f"--level must lie between 0 and 1, got {level:g}")
        if out is not None:
            check_folder(out)
        typed = context.find_root().obj
        line = typed.line if isinstance(typed, Typed) else context.command_path
        known = options(context)
        given = {name: option for name, option in known.items() if was_typed(context, name)}
        return Run(line, seed, level, out, json, quiet, strict, functools.partial(spoken, options=known), given)

    every = inspect.signature(shared, eval_str=True).parameters

    @functools.wraps(family)
    def command(**given: Any) -> None:
        run = shared(**{name: given.pop(name) for name in every})
        data, name = given["data"], family.__name__.replace("_", "-")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                answer = family(run=run, **given)
            except UserError as problem:
                raise UserError(run.spoken(str(problem))) from problem
            except FitError as problem:
                problem.args = (run.spoken(str(problem)),)
                failed(problem, run, name, data)
                raise
            finish(answer, run, name, data)

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in [*own, *every.values()]]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def options(context: typer.Context) -> dict[str, str]:
    """Options of a command by the names of their parameters."""
    return {one.name: one.opts[0] for one in context.command.params if one.name and one.opts[0].startswith("--")}


def was_typed(context: typer.Context, name: str) -> bool:
    """Whether an option's value is not its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def spoken(text: str, options: dict[str, str]) -> str:
    """A sentence that names arguments of Python, in the words of the command line.

    >>> spoken("raise epochs= (or the step), pass n_draws=64", {"epochs": "--epochs", "n_draws": "--draws"})
    'raise --epochs (or the step), pass --draws 64'
    """

    def option(found):
        return f"{options[found[1]]} {found[2]}".strip() if found[1] in options else found[0]

    return re.sub(r"\b(\w+)=([\w.\-]*)", option, text)


def finish(answer: Answer, run: Run, family: str, data: Path) -> None:
    """Print the answer, write it to `--out`, and end with the exit code that it deserves."""
    run.notes, answer.lines = ([run.spoken(line) for line in lines] for lines in (run.notes, answer.lines))
    for note in run.notes:
        run.say(f"note: {note}")
    if not run.as_json:
        answer.print()
    document = run.document(family, data) | answer.document()
    document["message"] = run.spoken(document["message"])
    if run.out is not None:
        for name, reason in written(answer, run.out):
            run.wrote(document, name, reason)
        run.wrote(document, write_report(answer.fitted, run.out, answer.title, run.line))
        run.wrote(document, write_document(document, run.out))
    elif not run.as_json:
        run.say("add --out DIR for tables, figures and a report")
    run.say(f"fitted in {run.seconds:.1f} s, compilation included")
    if run.as_json:
        typer.echo(to_json(document))
    if answer.failed:
        typer.echo(f"error: the estimate is not to be used. {document['message']}", err=True)
        raise typer.Exit(FAILED)
    if not document["converged"]:
        typer.echo(f"warning: not converged. {document['message']}", err=True)
        if run.strict:
            raise typer.Exit(FAILED)


def failed(problem: FitError, run: Run, family: str, data: Path) -> None:
    """Of a fit that failed: the report page of what it had computed, and the JSON document without estimates."""
    document = run.document(family, data)
    document |= {"estimates": {}, "converged": False, "failed": True, "message": str(problem), "n_iter": problem.fit.n_iter}
    if run.out is not None:
        run.out.mkdir(parents=True, exist_ok=True)
        run.wrote(document, write_report(problem.fit, run.out, f"{family} on {data.name}: failed", run.line))
        run.wrote(document, write_document(document, run.out))
    if run.as_json:
        typer.echo(to_json(document))
