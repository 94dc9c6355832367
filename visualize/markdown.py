"""Markdown as HTML in which every formula is MathML, for pages without Gradio's own."""

import html
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

_NAMES = "math mrow mi mo mn mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mtable mtr mtd"
TAGS = {f"{{http://www.w3.org/1998/Math/MathML}}{name}" for name in _NAMES.split()}
ATTRIBUTES = {"display", "stretchy", "fence", "form", "mathvariant", "linethickness", "columnalign", "width"}


def _formula(latex: str, options: dict[str, Any]) -> str:
    """MathML, or the LaTeX itself if the converter's output has anything else in it: the converter escapes no text."""
    mathml = convert(latex, display="block" if options["display_mode"] else "inline")
    try:
        nodes = list(ElementTree.fromstring(mathml).iter())
    except ElementTree.ParseError:
        nodes = []
    if not nodes or any(node.tag not in TAGS or node.attrib.keys() - ATTRIBUTES for node in nodes):
        return f"<code>{html.escape(latex)}</code>"
    return mathml


_MARKDOWN = (
    MarkdownIt("commonmark", {"html": False}).enable("table").disable("image").use(dollarmath_plugin, renderer=_formula)
)


def to_html(text: str) -> str:
    """CommonMark with tables and ``$…$``, ``$$…$$``. Tags in it are shown as text; there are no images."""
    return _MARKDOWN.render(text)
