"""The capstone: a GPU, a load and targets on the right; the settings chosen for them on the left."""

from typing import Any

import gradio as gr

from lab.errors import LabError
from visualize import page_header as header
from visualize.forms import Widgets, component, settings_button
from visualize.gradio_events import LATEST, QUIET, REPEATED, follow, keep_address, ready, stops, turned, warn
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.visitor_sessions import OnePerSession
from visualize.pages.capstone.grading import FORM, CapstoneAttempt, CapstoneInputs, brief, from_link, setup
from visualize.text import as_line, visible


def build(pages: gr.Blocks, load: Load, queue: JobQueue) -> None:
    """Lay the page out, inside a route of ``pages``."""
    tasks = OnePerSession()

    def opened(request: gr.Request) -> list[Any]:
        inputs, notices = from_link(request.query_params)
        warn(notices)
        return list(vars(inputs).values())

    def simulate(request: gr.Request, *values: Any) -> Any:
        inputs = CapstoneInputs.of(values)
        try:
            chosen = inputs.choices()
        except LabError as error:
            return as_line({"problem": f"{visible(str(error))} Nothing was simulated."})
        return follow(tasks.begin(request.session_hash, lambda: CapstoneAttempt(queue, load, inputs.case, chosen)))

    header.build("Capstone")
    with gr.Row(elem_id="lab", elem_classes="picture-first"):
        with gr.Column(elem_id="controls"):
            widgets = Widgets(FORM)
            with gr.Column(elem_id="settings", elem_classes="asked"):
                widgets.add(*FORM.names)
            with gr.Row(elem_id="actions"):
                settings_button()
        with gr.Column(elem_id="view"):
            view = component("pages/capstone/page", setup(), elem_id="sheet")
    values = widgets.values
    gr.on(turned(values), _asked, values, view, **LATEST)
    view.submit(simulate, values, view, **REPEATED)
    stops(pages, view.stop, tasks)
    keep_address(values, FORM)
    ready(pages.load(opened, outputs=values, **QUIET).then(_asked, values, view, **QUIET))


def _asked(*values: Any) -> str:
    """The case; what was found for other settings is stale."""
    return as_line({"case": brief(CapstoneInputs.of(values).case)})
