"""Text that came from a person or a model, made safe and visible.

On the page it is set with ``textContent`` and needs only ``visible``. Plotly interprets
some HTML in hover labels, so text for those passes through ``escaped``.
"""

import html
import json
import unicodedata
from typing import Any

_NAMED = {
    "\n": "↵",
    "\r": "⟨CR⟩",
    "\t": "⇥",
    "\u00a0": "⟨NBSP⟩",
    "\u200b": "⟨ZWSP⟩",
    "\u200e": "⟨LRM⟩",
    "\u200f": "⟨RLM⟩",
    "\u202a": "⟨LRE⟩",
    "\u202b": "⟨RLE⟩",
    "\u202c": "⟨PDF⟩",
    "\u202d": "⟨LRO⟩",
    "\u202e": "⟨RLO⟩",
    "\u2066": "⟨LRI⟩",
    "\u2067": "⟨RLI⟩",
    "\u2068": "⟨FSI⟩",
    "\u2069": "⟨PDI⟩",
    "\ufeff": "⟨BOM⟩",
}
_JOINERS = "\u200c\u200d"  # they shape letters and emoji, and hide nothing


def visible(text: str) -> str:
    """``text`` with every character spelled out that is invisible or would reverse the line's direction."""
    return text if text.isprintable() else "".join(map(_shown, text))


def visible_lines(text: str) -> str:
    """As ``visible``, but line breaks stay."""
    return "\n".join(map(visible, text.split("\n")))


def named(text: str, limit: int = 40) -> str:
    """``text`` as a name for a token: visible, quoted, at most ``limit`` characters."""
    return f"“{_cut(visible(text), limit)}”"


def escaped(text: str, limit: int = 40) -> str:
    """``text`` for a Plotly hover label: visible, quoted, at most ``limit`` characters, no markup."""
    return html.escape(named(text, limit), quote=False)


def label(text: str, limit: int = 40) -> str:
    """``text`` for an axis of a Plotly chart: as ``escaped``, but not quoted."""
    return html.escape(_cut(visible(text), limit), quote=False)


def as_line(record: Any) -> str:
    """One line of JSON with no tag in it: Gradio warns of values that look like markup."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _shown(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    if char.isprintable() or char in _JOINERS:
        return char
    return " " if unicodedata.category(char) == "Zs" else f"⟨{ord(char):04X}⟩"
