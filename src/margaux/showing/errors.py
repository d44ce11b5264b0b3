"""Where every command ends: one line and an exit code in place of a traceback."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from ..engine.outcome import FitError

if TYPE_CHECKING:
    from collections.abc import Sequence


#: exit codes
FINE, FAILED, MISUSED, UNEXPECTED, INTERRUPTED = 0, 1, 2, 70, 130

CODES = (
    "Exit codes: 0 fine; 1 the fit failed, or with --strict did not converge; 2 a file, column or option is wrong; 70 an error "
    "of margaux itself (MARGAUX_DEBUG=1 or `margaux --debug` shows its traceback); 130 interrupted."
)

#: packages whose own errors are never about what the user has typed
ENGINES = ("jax", "jaxlib", "equinox", "optax", "beartype", "jaxtyping")

#: what typer raises when options or arguments are wrong
UsageProblem = next(base for base in reversed(typer.BadParameter.__mro__) if hasattr(base, "format_message"))


class UserError(ValueError):
    """What is wrong with a file or an option, and how to mend it."""


class Interrupted(BaseException):
    """Ctrl-C. No `KeyboardInterrupt`, which a fit takes as the wish to end early and go on with what it has."""


@dataclasses.dataclass
class Typed:
    """The command line as it was typed, and whether tracebacks are wanted."""

    line: str
    debug: bool = False


class Boundary(TyperGroup):
    """The whole command line: `main` turns what is raised into a line on stderr and an exit code."""

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, standalone_mode: bool = True, **settings: Any
    ) -> Any:
        typed = Typed(shlex.join(["margaux", *(sys.argv[1:] if args is None else args)]), debugging())
        try:
            code = super().main(args=args, prog_name=prog_name, standalone_mode=False, obj=typed, **settings)
        except (Interrupted, KeyboardInterrupt, typer.Abort):
            code = _tell("interrupted", INTERRUPTED)
        except (Exception, SystemExit) as problem:
            if isinstance(problem, SystemExit):
                raise
            if typed.debug:
                traceback.print_exc()
            code = ended(problem)
        code = code if isinstance(code, int) else FINE
        return sys.exit(code) if standalone_mode else code


def ended(problem: Exception) -> int:
    """Say on stderr what a command ended with; its exit code."""
    if isinstance(problem, UsageProblem):
        context = getattr(problem, "ctx", None)
        where = f" See `{context.command_path} --help`." if context is not None else ""
        message: Any = problem
        said = message.format_message()
        said += "" if said.endswith((".", "?")) else "."
        return _tell(f"error: {said}{where}", MISUSED)
    if isinstance(problem, FitError):
        return _tell(f"error: {problem}", FAILED)
    if isinstance(problem, UserError):
        return _tell(f"error: {problem}", MISUSED)
    if isinstance(problem, OSError) and problem.filename is not None:
        return _tell(f"error: {problem.filename}: {problem.strerror}", MISUSED)
    return _tell(
        f"unexpected error: {type(problem).__name__}: {problem} (run it again with MARGAUX_DEBUG=1 for the traceback, and please "
        "report that with the command and `margaux doctor`)",
        UNEXPECTED,
    )


def _tell(text: str, code: int) -> int:
    typer.echo(" ".join(text.split()), err=True)
    return code


@contextlib.contextmanager
def asked() -> Iterator[None]:
    """What refuses input inside is the user's to mend: `UserError` in place of ValueError, TypeError, OSError, ImportError.

    Errors raised within the engines (`ENGINES`) are left as they are.

    >>> with asked():
    ...     raise ValueError("the column 'a' is empty")
    Traceback (most recent call last):
    margaux.showing.errors.UserError: the column 'a' is empty
    """
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as problem:
        if isinstance(problem, UserError) or of_engine(problem):
            raise
        raise UserError(str(problem)) from problem


def of_engine(problem: BaseException) -> bool:
    """Whether an error comes from within one of `ENGINES`."""
    frames = [frame for frame, _ in traceback.walk_tb(problem.__traceback__)]
    names = [type(problem).__module__, frames[-1].f_globals.get("__name__", "") if frames else ""]
    # jax leaves its own frames out of tracebacks and says so in a note.
    return any(name.split(".")[0] in ENGINES for name in names) or any(
        "JAX has removed" in note for note in getattr(problem, "__notes__", ())
    )


def debugging() -> bool:
    """Whether MARGAUX_DEBUG asks for tracebacks."""
    return os.environ.get("MARGAUX_DEBUG", "").lower() not in ("", "0", "no", "off", "false")
