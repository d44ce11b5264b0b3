"""Pictures of the tutorials on the cards of the front page: those that the pages have just drawn."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

log = logging.getLogger(__name__)

#: tutorial -> how the alternative text of its picture begins
PICTURES = {
    "pharmacometrics": "Twelve panels",
    "counts": "Biplot",
    "missing": "Coefficients",
    "inverse": "The blurred image",
    "networks": "The six",
    "own_model": "Iterates",
    "numpyro": "Posterior means",
}


def illustrated(index: str, pages: Path) -> tuple[str, list[str]]:
    """The front page with a picture on each card, and the tutorials that have none."""
    lost = []
    for name, begins in PICTURES.items():
        found = re.search(rf'<img alt="({begins}[^"]*)" src="\.\./([^"]+)"', (pages / f"{name}.html").read_text("utf-8"))
        link = f'<p><a class="reference internal" href="tutorials/{name}.html">'
        if found is None or link not in index:
            lost.append(name)
        else:
            index = index.replace(link, f'<img alt="{found[1]}" src="{found[2]}" loading="lazy" />{link}', 1)
    return index, lost


def finished(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html" or app.config.nb_execution_mode == "off":
        return
    page = Path(app.outdir) / "index.html"
    text = page.read_text("utf-8")
    if "_images/" in text:  # written by an earlier build, and not again
        return
    text, lost = illustrated(text, Path(app.outdir) / "tutorials")
    page.write_text(text, "utf-8")
    if lost:
        log.warning("no picture for the front page from: %s", ", ".join(lost))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
