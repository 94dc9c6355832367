"""The Claims page: what articles say, each statement with the experiment that tests it here and what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import gradio as gr

from visualize.assets import read
from visualize.checks import Checks, listed, opened
from visualize.figures import claims
from visualize.live import Line
from visualize.panels import header
from visualize.panels.look import charts, script
from visualize.tasks import Load, Visitors
from visualize.text import as_line
from visualize.vocabulary import VERDICTS

ABOUT = "What articles say of KV caches and speculation, tested on this machine."


def build(pages: gr.Blocks, load: Load, line: Line) -> None:
    """Lay the page out, inside a route of ``pages``. Its measurements wait in ``line`` with all others'."""
    visitors = Visitors()

    def check(request: gr.Request, asked: gr.EventData) -> Iterator[str]:
        task = Checks(line, load, asked.claims)
        yield from map(as_line, visitors.follow(request.session_hash, task))

    def stop(request: gr.Request) -> None:
        visitors.stop(request.session_hash)

    def leave(request: gr.Request) -> None:
        visitors.leave(request.session_hash)

    header.build("Claims", ABOUT)
    view = gr.HTML(
        value="",
        html_template=read("claims.html"),
        js_on_load=_script(),
        head=charts(),
        apply_default_css=False,
        elem_id="claims",
    )
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    view.submit(check, None, view, concurrency_limit=None, trigger_mode="once", **quiet)
    view.stop(stop, queue=False, **quiet)
    pages.load(_opened, outputs=view, **quiet).then(fn=None, js="() => { document.body.dataset.ready = 'yes' }")
    pages.unload(leave)


def _opened(request: gr.Request) -> str:
    record, notices = opened(request.query_params)
    for notice in notices:
        gr.Warning(notice, title="About this link")
    return as_line(record)


def _script() -> str:
    setup = {
        "claims": listed(),
        "shells": claims.shells(),
        "verdicts": {key: asdict(state) for key, state in VERDICTS.items()},
    }
    return f"const setup = {json.dumps(setup)};\n{script('sheet.js', 'claims.js')}"
