"""The Lab: controls on the left, the stage on the right, and what connects them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from visualize.assets import ABOUT, TITLE
from visualize.live import Line, LiveRun, Streams
from visualize.panels import controls, header, stage
from visualize.settings import DEFAULTS, NAMES, from_link
from visualize.shelf import Shelf
from visualize.transcript import head


def build(load: Callable[[str], Streams], line: Line) -> gr.Blocks:
    """The page over engines that ``load`` gives for a model pair's name. Its runs wait in ``line``."""
    shelf = Shelf()
    runs: dict[str | None, LiveRun] = {}  # by browser session

    def run(request: gr.Request, *values: Any) -> str:
        """Begins; what comes of it is told in its channel, because an event that is pending keeps the page busy."""
        last = runs.get(request.session_hash)
        if last and not last.done.is_set():
            return gr.skip()
        settings = controls.to_settings(values)
        live = runs[request.session_hash] = LiveRun(line, load, settings, last and last.after())
        shelf.put(request.session_hash, live.id, live.events)
        return head(live.id, live=True)

    def stop(request: gr.Request) -> None:
        if live := runs.get(request.session_hash):
            live.cancelled.set()

    def reopened(path: str, request: gr.Request) -> str:
        leave(request)
        return shelf.reopen(request.session_hash, Path(path))

    def take_away(wanted: list[str]) -> dict[str, str]:
        return shelf.take_away(wanted)

    def leave(request: gr.Request) -> None:
        shelf.clear(request.session_hash)
        if live := runs.pop(request.session_hash, None):
            live.cancelled.set()

    def opened(request: gr.Request) -> list[Any]:
        settings, notices = from_link(request.query_params)
        for notice in notices:
            gr.Warning(notice, title="About this link")
        return controls.show(settings)

    with gr.Blocks(title=TITLE, fill_width=True, analytics_enabled=False) as page:
        header.build("Lab", ABOUT)
        with gr.Row(elem_id="lab"):
            with gr.Column(elem_id="controls"):
                panel = controls.build()
            with gr.Column(elem_id="view"):
                view = stage.build(take_away)
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        panel.run.click(run, panel.values, view, concurrency_limit=None, **quiet)
        panel.stop.click(stop, queue=False, **quiet)
        panel.open.upload(reopened, panel.open, view, **quiet)
        gr.on(
            [control.change for control in panel.values],
            fn=None,
            inputs=panel.values,
            js=header.keep_address(NAMES, DEFAULTS),
        )
        page.load(opened, outputs=panel.values, **quiet).then(
            fn=None, js="() => { document.body.dataset.ready = 'yes' }"
        )
        page.unload(leave)
    return page
