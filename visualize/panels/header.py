"""The header of all pages: which page this is, links to the others, and the switch between light and dark.

A page is a route of its own (``gr.Blocks.route``) and not a tab: its address leads straight to it, its query
holds only its own inputs, and no page pays for the charts of another.
"""

from __future__ import annotations

import json
from html import escape

import gradio as gr

from visualize import assets
from visualize.memory import calculator
from visualize.run import settings
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
ABOUT = {
    "Lab": assets.ABOUT,
    "Compare": "Up to five settings on one prompt, in turn: speed, memory, whether they write the same.",
    "Lessons": "Say what you expect, run it, and see how decoding is made fast, and when it is not.",
    "Instructor": "For those who teach the course: timing, what to say, and the answers this machine gives.",
    "Pool": "Many sequences in one pool: whose each block is, who waits, what the cache forgets.",
    "Memory": "What keys and values take, and how many sequences fit. Arithmetic, not a measurement.",
    "Claims": "What articles say of KV caches and speculation, tested on this machine.",
    "Deploy": "The settings found here as a command for vLLM, on as many GPUs as it takes.",
    "Server": "A vLLM server, watched: its cache, its queue and its guesses, as far as it reports them.",
    "Room": "Everybody's runs on one engine: whose each block is, who waits, and the totals.",
}
"""What there is to see on each page, in a line."""
SETTINGS = {"Lab": settings.LINK, "Memory": calculator.LINK, "Deploy": deployment.LINK}
"""Pages whose settings mean the same where they have the same name, and have the same defaults, which addresses leave
out. A link from one of them to another carries these over, as far as the other offers the value."""


def build(page: str) -> gr.HTML:
    """The header of ``page``."""
    listed = "Lessons" if page == "Instructor" else page
    links = "".join(_link(listed, name) for name in PAGES)
    return gr.HTML(
        assets.header(ABOUT[page], f'<nav aria-label="Pages">{links}</nav>'),
        js_on_load=assets.put_together({}, ("header", "gradio")),
        apply_default_css=False,
        elem_id="header",
    )


def _link(page: str, to: str) -> str:
    carried = ""
    if page != to and page in SETTINGS and to in SETTINGS:
        here, there = SETTINGS[page], SETTINGS[to]
        values = {name: there.choices.get(name) for name in here.defaults if name in there.defaults}
        accepted = {name: choices and [str(value) for value in choices] for name, choices in values.items()}
        carried = f' data-carried="{escape(json.dumps(accepted))}"'
    return f'<a href="{PAGES[to]}"{carried}{" aria-current=page" if to == page else ""}>{to}</a>'
