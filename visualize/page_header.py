"""The header of all pages: which page this is, links to the others, and the switch between light and dark.

A page is a route of its own (``gr.Blocks.route``) and not a tab: its address leads straight to it, its query
holds only its own inputs, and no page pays for the charts of another.
"""

import json
from html import escape

import gradio as gr

from visualize import assets, glossary
from visualize import memory_inputs as calculator
from visualize import run_settings as settings
from visualize.page_list import ABOUT, LINKS, PAGES
from visualize.pages.deploy import deployment

SETTINGS = {"Lab": settings.FORM, "Memory": calculator.FORM, "Deploy": deployment.FORM}
"""Pages whose settings mean the same where they have the same name, and have the same defaults, which addresses leave
out. A link from one of them to another carries these over, as far as the other offers the value."""


def build(page: str) -> gr.HTML:
    """The header of ``page``."""
    listed = "Lessons" if page in ("Instructor", "Capstone") else page
    links = "".join(_link(listed, name) for name in PAGES)
    return gr.HTML(
        assets.header(ABOUT[page], f'<nav aria-label="Pages">{links}</nav>'),
        js_on_load=assets.loader("static/header.js", {"terms": glossary.terms(), "links": LINKS}),
        apply_default_css=False,
        elem_id="header",
    )


def _link(page: str, to: str) -> str:
    carried = ""
    if page != to and page in SETTINGS and to in SETTINGS:
        here, there = SETTINGS[page], SETTINGS[to]
        both = (there[name] for name in here.names if name in there.names)
        accepted = {one.name: [*map(str, one.options)] if one.kind == "choice" else None for one in both}
        carried = f' data-carried="{escape(json.dumps(accepted))}"'
    return f'<a href="{PAGES[to]}"{carried}{" aria-current=page" if to == page else ""}>{to}</a>'
