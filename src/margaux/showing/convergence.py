"""Convergence and diagnostics: each check with its verdict, and the traces."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from .figures import drawn
from .page import Figure, Paragraph, Part, Verdict, number

if TYPE_CHECKING:
    from ..answers.fit import Fit


ID, TITLE = "convergence", "Convergence and diagnostics"
#: the checks of `Fit.diagnostics` in words, with what their figure is
CHECKS = {
    "result": ("Ending", ""),
    "stationarity": ("Drift", "largest z"),
    "rhat": ("Agreement of runs", "largest R-hat"),
    "schedules": ("Step sizes", ""),
    "acceptance": ("Acceptance", "rate"),
    "ess": ("Importance weights", "effective draws"),
    "gradient": ("Gradient", "standard errors to the maximum, at most"),
    "information": ("Information", "least eigenvalue"),
}
#: parameters whose traces are drawn
TRACES = 12


def diagnostics(frame: Any, names: Mapping[str, str] = MappingProxyType({})) -> list[Part]:
    """A verdict a check of `Fit.diagnostics`, but how the fit ended, which has a section.

    Args:
        names: what the family calls the parameters of the engine.
    """
    out: list[Part] = []
    for check, row in frame.iterrows():
        if check == "result":
            continue
        name, what = CHECKS.get(str(check), (str(check), "figure"))
        figure = f" ({what} {number(row['figure'], 3)})" if what and np.isfinite(row["figure"]) else ""
        text = str(row["verdict"]).removeprefix("Careful: ")
        for engine, own in names.items():
            text = text.replace(engine, own)
        out.append(Verdict("good" if row["ok"] else "careful", f"{name}{figure}: {text[:1].lower() + text[1:]}"))
    return out or [Paragraph("This fit has no trace to check.")]


def trace(fit: Fit, own: Mapping[str, str] = MappingProxyType({})) -> Figure:
    """The traces of the parameters; of many the first that move. `own`: what the family calls the parameters.

    Raises:
        ValueError: the fit kept none.
    """
    values = fit.trace.get("params")
    if values is None or not len(values):
        raise ValueError(f"no trace was kept (it is for at most 512 scalar parameters; this fit has {len(fit.names):,})")
    moving = [name for name, moves in zip(fit.names, np.ptp(values, axis=0).max(axis=0) != 0, strict=True) if moves]
    names = (moving if len(fit.names) > TRACES and moving else fit.names)[:TRACES]
    runs = values.shape[1]
    bad = int(np.sum(~np.isfinite(values).all(axis=(1, 2))))
    alt = f"Iterates of {len(names)} parameters over {len(values):,} iterations{f' in {runs} runs' if runs > 1 else ''}."
    if bad:
        alt += f" {bad:,} iterations are not finite."
    caption = "Iterates of the parameters; the estimate is the horizontal line"
    caption += ", and averaging starts at the dotted one." if fit.averaged_from else "."
    if len(fit.names) > len(names):
        caption += f" {len(names)} of {len(fit.names):,} parameters, the first that move."

    def panels() -> Any:
        axes = fit.plot.trace(names)
        for axis in np.ravel(axes):
            axis.set_title(own.get(axis.get_title(), axis.get_title()))
        return axes

    return drawn(panels, alt, caption)


def course(fit: Fit) -> list[Part]:
    """Traces of what the E-step reported, summed up in a sentence each."""
    out: list[Part] = []
    for name, text in (
        ("acceptance", "Share of proposals accepted"),
        ("ess", "Effective draws of the importance weights a unit"),
    ):
        values = fit.trace.get(name)
        if values is not None and len(values) and np.isfinite(values).any():
            late = values[-max(len(values) // 2, 1) :]
            low, high = number(np.nanmin(late), 3), number(np.nanmax(late), 3)
            out.append(Paragraph(f"{text}, second half: {number(np.nanmean(late), 3)} on average, from {low} to {high}."))
    return out
