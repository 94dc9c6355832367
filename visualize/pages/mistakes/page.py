"""The Mistakes page: predict what a faulty piece of code does, run it, see the evidence, choose a repair, run that."""

from typing import Any

import gradio as gr

from visualize import page_header as header
from visualize.forms import component
from visualize.gradio_events import QUIET, REPEATED, follow, linked, ready, stops
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.visitor_sessions import OnePerSession
from visualize.pages.mistakes.cards import MistakeRun, asked_for, opened, setup


def build(pages: gr.Blocks, load: Load, queue: JobQueue) -> None:
    """Lay the page out, inside a route of ``pages``. Its runs wait in ``queue`` with all others."""
    tasks = OnePerSession()

    def run(request: gr.Request, asked: gr.EventData) -> Any:
        wanted = asked_for(getattr(asked, "card", None), getattr(asked, "repair", None))
        if wanted is None:
            return gr.skip()
        return follow(tasks.begin(request.session_hash, lambda: MistakeRun(queue, load, *wanted)))

    header.build("Mistakes")
    view = component("pages/mistakes/page", setup(), elem_id="mistakes")
    view.submit(run, None, view, **REPEATED)
    stops(pages, view.stop, tasks)
    ready(pages.load(linked(opened), outputs=view, **QUIET))
