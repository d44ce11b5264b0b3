"""How a fit ended, and whether its numbers are to be used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..answers.certificate import Certificate
from ..showing.page import Part, Section, Verdict, section

if TYPE_CHECKING:
    from .fit import Fit


ID, TITLE = "ending", "How it ended"


#: marks of a page by the word of a certificate
MARKS = {"certified": "good", "careful": "careful", "failed": "bad"}


def ending(
    fit: Fit,
    message: str | None = None,
    converged: bool | None = None,
    extra: Sequence[Part] = (),
    certificate: Certificate | None = None,
) -> Section:
    """The section: the word of the certificate first, the sentence of the result with its mark, and what else is to be known.

    Args:
        fit: a `margaux.Fit`. message, converged: an estimator's own, where they differ. certificate: where there is one.
    """
    said: str = fit.message if message is None else message
    parts: list[Part] = []
    if certificate is not None:
        word = str(certificate)
        parts.append(Verdict(MARKS[certificate.word], word[:1].upper() + word[1:]))
    parts.append(Verdict(mark(fit, fit.converged if converged is None else converged), said[:1].upper() + said[1:]))
    if fit.result.failed:
        parts.append(
            Verdict(
                "bad",
                "The numbers below are the last that were finite, to find out what went wrong; none of "
                "them is an estimate. Standard errors and likelihoods are left out.",
            )
        )
    return section(ID, TITLE, parts, extra)


def mark(fit: Fit, converged: bool) -> str:
    """The mark of a fit: "bad" where it failed, "careful" where it did not converge or lies on a boundary."""
    if fit.result.failed:
        return "bad"
    return "careful" if not converged or fit.result.name == "boundary" else "good"
