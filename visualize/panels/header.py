"""What all pages have at their top: where one is, the way to the others, and light or dark.

A page is a route of its own (``gr.Blocks.route``) and not a tab: its address then leads straight to it, its
query holds its own inputs and nobody else's, and no page pays for the charts of another.
"""

from __future__ import annotations

import gradio as gr

from visualize import assets

PAGES = {
    "Lab": "./",
    "Compare": "compare",
    "Lessons": "lessons",
    "Pool": "pool",
    "Memory": "memory",
    "Claims": "claims",
}
"""Every page's name and its address, relative to any of them. A page that is not always there is added before any is
laid out."""


def build(page: str, about: str) -> gr.HTML:
    """The header of ``page``; ``about`` says in a line what there is to see."""
    links = "".join(
        f'<a href="{address}"{" aria-current=page" if name == page else ""}>{name}</a>'
        for name, address in PAGES.items()
    )
    return gr.HTML(
        assets.header(about, f'<nav aria-label="Pages">{links}</nav>'),
        js_on_load=assets.read("header.js"),
        apply_default_css=False,
        elem_id="header",
    )
