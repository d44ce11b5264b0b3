"""The page of a fit, and of an estimator whose family has none of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..showing.page import Section
from . import fit_page, fitted_page
from .fitted import Fitted

if TYPE_CHECKING:
    from .fit import Fit


def heading(subject: Fit | Fitted) -> tuple[str, str]:
    """Title and lead."""
    return fitted_page.heading(subject) if isinstance(subject, Fitted) else fit_page.heading(subject)


def sections(subject: Fit | Fitted, command: str | None = None) -> list[Section]:
    """The sections of the page."""
    if isinstance(subject, Fitted):
        return fitted_page.sections(subject, command)
    return fit_page.sections(subject, command)
