"""The Claims page: what articles say, each statement with the experiment that tests it here and the result."""

import uuid
from typing import Any

import gradio as gr

from visualize import page_header as header
from visualize.forms import component
from visualize.gradio_events import QUIET, REPEATED, follow, linked, ready, stops
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.visitor_sessions import OnePerSession
from visualize.pages.claims.checks import Checks, opened, setup


def build(pages: gr.Blocks, load: Load, queue: JobQueue) -> None:
    """Lay the page out, inside a route of ``pages``. Its measurements wait in ``queue`` with all other runs."""
    tasks = OnePerSession()

    def check(request: gr.Request, asked: gr.EventData) -> Any:
        given = getattr(asked, "claims", None)
        names = given if isinstance(given, list) else []
        careful = getattr(asked, "careful", None) is True
        return follow(tasks.begin(request.session_hash, lambda: Checks(queue, load, names, careful=careful)))

    header.build("Claims")
    view = component("pages/claims/page", setup() | {"server": uuid.uuid4().hex}, elem_id="claims")
    view.submit(check, None, view, **REPEATED)
    stops(pages, view.stop, tasks)
    ready(pages.load(linked(opened), outputs=view, **QUIET))
