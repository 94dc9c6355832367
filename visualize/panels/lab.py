"""The Lab: controls on the left, the stage on the right, and what connects them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import gradio as gr

from visualize.assets import ABOUT, TITLE
from visualize.frames import Reducer
from visualize.live import Line, LiveRun, Streams
from visualize.panels import controls, header, stage
from visualize.readouts import Before
from visualize.settings import DEFAULTS, NAMES, from_link
from visualize.shelf import Shelf
from visualize.transcript import head


def build(load: Callable[[str], Streams], line: Line) -> gr.Blocks:
    """The page over engines that ``load`` gives for a model pair's name. Its runs wait in ``line``."""
    shelf = Shelf()
    runs: dict[str | None, LiveRun] = {}  # by browser session

    async def run(request: gr.Request, before: Before | None, *values: Any) -> AsyncIterator[tuple[str, Any]]:
        reducer = Reducer(before)
        live = runs[request.session_hash] = LiveRun(line, load, controls.to_settings(values), reducer)
        shelf.put(request.session_hash, live.id, live.events)
        try:
            yield head(live.id, live=True), gr.skip()
            await live.channel.ended()
            yield gr.skip(), reducer.after()
        finally:  # also when the tab is closed
            live.cancelled.set()

    def stop(request: gr.Request) -> None:
        if live := runs.get(request.session_hash):
            live.cancelled.set()

    def reopened(path: str, request: gr.Request) -> tuple[str, None]:
        return shelf.reopen(request.session_hash, Path(path)), None

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
        before = gr.State(None)
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        panel.run.click(
            run, [before, *panel.values], [view, before], concurrency_limit=None, trigger_mode="once", **quiet
        )
        panel.stop.click(stop, queue=False, **quiet)
        panel.open.upload(reopened, panel.open, [view, before], **quiet)
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
