"""The header of all pages: which page this is, links to the others, and the switch between light and dark.

A page is a route of its own (``gr.Blocks.route``) and not a tab: its address leads straight to it, its query
holds only its own inputs, and no page pays for the charts of another.
"""

from __future__ import annotations

import gradio as gr

from visualize import assets
from visualize.vllm import deployment

PAGES = {
    "Lab": "./",
    "Compare": "compare",
    "Lessons": "lessons",
    "Pool": "pool",
    "Memory": "memory",
    "Claims": "claims",
    "Deploy": "deploy",
}
"""Every page's name and its address, relative to any of them. A page that is not always there is added before any is
laid out."""
CARRIED = {("Lab", "Deploy"): deployment.NAMES, ("Memory", "Deploy"): deployment.NAMES}
"""The part of its address that one page's link to another carries over: settings that mean the same on both pages, and
have the same defaults, which addresses leave out."""


def build(page: str, about: str) -> gr.HTML:
    """The header of ``page``; ``about`` says in a line what there is to see."""
    links = "".join(_link(page, name) for name in PAGES)
    return gr.HTML(
        assets.header(about, f'<nav aria-label="Pages">{links}</nav>'),
        js_on_load=assets.put_together({}, ("header", "gradio")),
        apply_default_css=False,
        elem_id="header",
    )


def _link(page: str, to: str) -> str:
    names = CARRIED.get((page, to))
    carried = f' data-carried="{" ".join(names)}"' if names else ""
    return f'<a href="{PAGES[to]}"{carried}{" aria-current=page" if to == page else ""}>{to}</a>'
