"""The page of a fit, and of an estimator whose family has none of its own."""

from __future__ import annotations

from typing import Any

from ..showing.page import Section
from . import fit_page, fitted_page
from .fitted import Fitted


def heading(subject: Any) -> tuple[str, str]:
    """Title and lead."""
    return (fitted_page if isinstance(subject, Fitted) else fit_page).heading(subject)


def sections(subject: Any, command: str | None = None) -> list[Section]:
    """The sections of the page."""
    return (fitted_page if isinstance(subject, Fitted) else fit_page).sections(subject, command)
