"""The Server page: a prompt on the left, the vLLM server that the lab was attached to on the right."""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gradio as gr

from lab.config import SamplingParams
from lab.errors import LabError, PromptError
from lab.settings import SETTINGS
from lab.vllm.client import Server
from visualize import page_header as header
from visualize.charts import server_charts as figures
from visualize.charts.base import shells
from visualize.forms import Widgets, component
from visualize.gradio_events import QUIET, begins, keep_address, ready, stops, warn
from visualize.jobs.job_queue import JobQueue
from visualize.pages.server.remote_run import Prompts, ServerWatch
from visualize.reduce.metric_cards import LABELS
from visualize.run_settings import bounded
from visualize.text import as_line, visible, visible_lines
from visualize.url_settings import Form

FORM = Form(
    (
        replace(
            SETTINGS["prompt"],
            help="Sent to the server unchanged.",
            default="Once upon a time",
            most_characters=8000,
            lines=8,
            max_lines=14,
        ),
        replace(SETTINGS["max_tokens"], help="The answer ends after this many at most.", bounds=(1, 512)),
        SETTINGS["temperature"],
        replace(SETTINGS["seed"], help="Empty: no seed is sent."),
    )
)


def build(pages: gr.Blocks, server: Server, queue: JobQueue) -> None:
    """Lay the page out, inside a route of ``pages``. From then on ``server`` is read once a second, until ``queue`` is
    closed; prompts do not wait in ``queue``, because another machine does the work."""
    watch = ServerWatch(server, queue)
    prompts = Prompts(server, queue, lambda: watch.models)

    def send(request: gr.Request, *values: Any) -> str:
        record = {"watch": watch.channel.id, "id": uuid.uuid4().hex}
        try:
            asked = prompts.begin(request.session_hash, *_asked(FORM.from_controls(values)))
        except LabError as error:
            return as_line(record | {"problem": visible(str(error))})
        if asked is None:
            return gr.skip()
        return as_line(record | {"answer": asked.channel.id, "prompt": visible_lines(str(values[0]))})

    def opened(request: gr.Request) -> list[Any]:
        asked, notices = FORM.read(request.query_params)
        warn(notices)
        return [as_line({"watch": watch.channel.id}), *(FORM.defaults | asked).values()]

    header.build("Server")
    with gr.Row(elem_id="lab", elem_classes="attached"):
        with gr.Column(elem_id="controls"):
            with gr.Row(elem_id="actions"):
                press = gr.Button("Send", variant="primary", elem_id="run")
                halt = gr.Button("Stop", elem_id="stop")
            widgets = Widgets(FORM)
            with gr.Column(elem_id="settings", elem_classes="asked"):
                widgets.add(*FORM.names)
            controls = widgets.values
        with gr.Column(elem_id="view"):
            setup = {
                "shells": shells(figures.CHARTS, start=True),
                "readouts": [{"key": key, **one} for key, one in LABELS["server"].items()],
            }
            view = component("pages/server/page", setup, elem_id="sheet")
    begins(press.click(send, controls, view, **QUIET))
    stops(pages, halt.click, prompts)
    keep_address(controls, FORM)
    ready(pages.load(opened, outputs=[view, *controls], **QUIET))


def _asked(controls: Mapping[str, Any]) -> tuple[str, SamplingParams]:
    """The prompt and how to answer it.

    Raises:
        LabError: there is no prompt, it is too long, or a number makes no sense.
    """
    prompt = str(controls["prompt"])
    if not prompt.strip():
        raise PromptError("The prompt is empty: write how the text begins.")
    bounded(prompt, FORM["prompt"].most_characters)
    FORM.check(controls)
    sampling = {name: controls[name] for name in ("max_tokens", "temperature", "seed")}
    return prompt, SamplingParams(**sampling)
