"""Formulae as MathML, written by docutils: browsers set them without a script."""

from __future__ import annotations

import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

log = logging.getLogger(__name__)

#: LaTeX that docutils does not know, and the space after log that it leaves out
KNOWN = [
    (re.compile(r"\\log(?![a-zA-Z])\s*(?=[a-zA-Z\\])"), r"\\log\\,"),
    (re.compile(r"\\[bB]igg?[lr]?(?![a-zA-Z])"), ""),
    (re.compile(r"\\dots(?![a-zA-Z])"), r"\\ldots"),
]


def converted(node: nodes.Node, block: bool) -> str:
    """MathML of a node's LaTeX; a formula that docutils cannot read is a warning, and so stops the build."""
    text = node.astext()
    for pattern, known in KNOWN:
        text = pattern.sub(known, text)
    try:
        return tex2mathml(text, as_block=block)
    except MathError as error:
        log.warning("formula %r: %s", text, error, location=node)
        return f"<code>{nodes.unescape(text)}</code>"


def inline(self, node: nodes.Node) -> None:
    self.body.append(converted(node, block=False))
    raise nodes.SkipNode


def block(self, node: nodes.Node) -> None:
    self.body.append(self.starttag(node, "div", CLASS="formula"))
    self.body.append(converted(node, block=True))
    if node["number"]:
        self.body.append(f'<span class="eqno">({node["number"]})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
