"""How every page's events behave, and what all pages do when they are opened and when a control changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import gradio as gr
from gradio.events import Dependency

from visualize.link import Link

QUIET: dict[str, Any] = {
    "show_progress": "hidden",
    "api_visibility": "private",
    "api_name": "page",  # so that no name is taken from what programs call
    "concurrency_limit": None,
}
"""The pages show themselves what goes on, programs have their own way in, and who has to wait waits in the line."""
LATEST: dict[str, Any] = QUIET | {"trigger_mode": "always_last"}
"""For what follows from controls: one answer after another, and of what is changed meanwhile one more, as all stand at
last. Gradio by itself drops it."""


def ready(opened: Dependency) -> None:
    """Mark the page as ready after the event that opens it."""
    opened.then(fn=None, js="() => { document.body.dataset.ready = 'yes' }")


def begins(asked: Dependency) -> None:
    """Run was pressed (``header.js``). A moment after the server has answered, the page knows whether anything runs."""
    asked.then(fn=None, js="() => { setTimeout(() => document.body.classList.remove('begun'), 500) }")


def warn(notices: Iterable[str]) -> None:
    """Say what a link asked for and did not get."""
    for notice in notices:
        gr.Warning(notice, title="About this link")


def keep_address(controls: Sequence[Any], link: Link) -> None:
    """Whenever one of the controls changes, the page's address says what all of them say."""
    script = (
        f"(...values) => window.decodeLab?.link({json.dumps(list(link.defaults))}, {json.dumps(link.defaults)}, values)"
    )
    gr.on([control.change for control in controls], fn=None, inputs=list(controls), js=script)
