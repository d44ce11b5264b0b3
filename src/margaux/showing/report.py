"""The report page: what was fitted, how it ended, what was found and how to repeat it, in one HTML file."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, NamedTuple

from .checksum import checksum as checksum
from .page import Section
from .parts import check_fitted, part_of
from .rendering import rendered


class Page(NamedTuple):
    """A page before it is written."""

    title: str
    kind: str
    lead: str
    when: datetime.datetime
    sections: list[Section]


def write(subject: object, path: str | Path, title: str | None = None, command: str | None = None) -> Path:
    """Write the report page of a fit or a fitted estimator: one HTML file that needs nothing else, for any screen or paper.

    What cannot be computed, or would take long, is left out with a sentence. A fit that failed has a page too: pass
    `error.fit` of a `margaux.FitError`.

    Args:
        subject: what `margaux.fit` returned, or an estimator after `fit`. path: of the file; its folder is made if need be.
        title: by default the name of the model. command: the command line that made the fit, to be shown.

    Returns:
        The path.

    Raises:
        TypeError: the subject is neither. sklearn.exceptions.NotFittedError: the estimator is not fitted.
        OSError: the file cannot be written.

    >>> import jax, numpy as np, margaux as mx, tempfile
    >>> from margaux.report import write
    >>> normal = jax.scipy.stats.norm.logpdf
    >>> class Normal(mx.AbstractModel):                     # y_i ~ N(z_i, 1), z_i ~ N(mu, 1)
    ...     def log_joint(self, params, z, y):
    ...         return normal(y, z) + normal(z, params["mu"])
    ...     def init_latents(self, key, params, y):
    ...         return 0.0 * y
    >>> fit = mx.fit(Normal(), np.array([1.0, 2.0, 6.0]), mx.soul(step=1.0), mx.Quadrature(5), params={"mu": 0.0}, n_iter=60)
    >>> write(fit, tempfile.mkdtemp() + "/report.html").name
    'report.html'
    """
    family = page_of(subject)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it, such as {path / 'report.html'}")
    found = family.sections(subject, command)
    name, lead = family.heading(subject)
    when = datetime.datetime.now().astimezone()
    path.write_text(rendered(Page(title or name, f"Report of {_article(type(subject).__name__)}", lead, when, found)), "utf-8")
    return path


def page_of(subject: object) -> Any:
    """The module that knows the page of a subject: `page` beside its class.

    Raises:
        TypeError: there is none. sklearn.exceptions.NotFittedError: it is not fitted.
    """
    found = part_of(subject, "page") if hasattr(subject, "_card") else None
    if found is None:
        raise TypeError(
            f"a report is of what margaux.fit returned or of a fitted estimator, got {type(subject).__name__}"
            + ("; call it first" if callable(subject) else "")
        )
    if hasattr(subject, "get_params"):
        check_fitted(subject)
    return found


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOU" or name[:2] in ("NL",) else f"a {name}"
