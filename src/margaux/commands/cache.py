"""`margaux cache`: the compiled programs that were kept."""

from __future__ import annotations

import typer

from ..numerics import cache

app = typer.Typer(
    no_args_is_help=True,
    help="Compiled programs, kept so that a new process starts at once. MARGAUX_CACHE names their folder, or is `off`.",
)


@app.command()
def show() -> None:
    """Where they are, and how many."""
    folder = cache.place()
    typer.echo("off (MARGAUX_CACHE)" if folder is None else f"{folder}: {cache.held(folder)}")


@app.command()
def clear() -> None:
    """Delete them; the next fits compile theirs again."""
    folder = cache.place()
    typer.echo("off (MARGAUX_CACHE)" if folder is None else f"{folder}: {cache.clear(folder)} deleted")
