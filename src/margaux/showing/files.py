"""What `--out` writes: tables as CSV, figures as PNG, the answer as JSON, and the report page."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .answer import Answer, to_json
from .errors import UserError


def check_folder(folder: Path, option: str = "--out") -> None:
    """Nothing is made here: a folder that can be written to must exist, or one that it can be made in.

    Raises:
        UserError: it is a file, or it cannot be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{option} {folder} is a file; name a folder")
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not there.is_dir():
        raise UserError(f"{option} {folder} lies in {there}, which is a file; name another folder")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as problem:
        raise UserError(f"{option} {folder} cannot be written to ({problem.strerror}); name another folder") from problem


def written(answer: Answer, folder: Path) -> Iterator[tuple[str, str | None]]:
    """Write tables, figures and other files: the name of each, with the reason where a figure has no meaning here."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {} if answer.estimates is None else {"estimates": lambda: answer.estimates}
    for name, table in (tables | answer.tables).items():
        table().to_csv(folder / f"{name}.csv")
        yield f"{name}.csv", None
    for name, write in answer.others.items():
        write(folder / name)
        yield name, None
    for name, draw in answer.figures.items():
        try:
            drawn = draw()
        except ValueError as problem:  # such as a plane of one component
            yield f"{name}.png", str(problem)
            continue
        save(drawn, folder / f"{name}.png")
        yield f"{name}.png", None


def save(drawn: Any, path: Path) -> None:
    """Save what a plot method returns: a figure, axes, or an array of axes."""
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.figure import Figure

    figure = drawn if isinstance(drawn, Figure) else np.ravel(drawn)[0].figure
    figure.savefig(path, dpi=120)
    plt.close(figure)


def write_report(subject: object, folder: Path, title: str, command: str) -> str:
    """Write the report page of a fit or a fitted estimator; its name."""
    from .report import write

    write(subject, folder / "report.html", title=title, command=command)
    return "report.html"


def write_document(document: dict[str, Any], folder: Path) -> str:
    """Write the answer as JSON, itself among its files; its name."""
    name = "fit.json"
    whole = document | {"files": [*document["files"], str(folder / name)]}
    (folder / name).write_text(to_json(whole) + "\n", encoding="utf-8")
    return name
