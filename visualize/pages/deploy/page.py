"""The Deploy page: models, settings and GPUs on the left, the command that serves them on the right."""

from typing import Any

import gradio as gr

from lab.errors import LabError
from visualize import page_header as header
from visualize.forms import Widgets, component, settings_button
from visualize.gradio_events import LATEST, QUIET, keep_address, ready, turned, warn
from visualize.pages.deploy.deploy_report import answer
from visualize.pages.deploy.deployment import FOLDED, FORM, OTHER, DeployInputs, from_link
from visualize.text import as_line, visible


def build(pages: gr.Blocks) -> None:
    """Lay the page out, inside a route of ``pages``."""

    def opened(request: gr.Request) -> list[Any]:
        inputs, notices = from_link(request.query_params)
        warn(notices)
        given = vars(inputs)
        hidden = dict(zip(HIDDEN, _show(*given.values()), strict=True))
        folds = widgets.unfolded(request.query_params, given)
        return [*folds, *(gr.update(value=value) | hidden.get(name, {}) for name, value in given.items())]

    header.build("Deploy")
    with gr.Row(elem_id="lab", elem_classes="picture-first"):
        with gr.Column(elem_id="controls"):
            widgets = _controls()
            with gr.Row(elem_id="actions"):
                settings_button()
        with gr.Column(elem_id="view"):
            view = component("pages/deploy/page", {}, elem_id="sheet")
    values, controls = widgets.values, widgets.inputs
    shown = [controls[name] for name in HIDDEN]
    pasted = [controls[name].change for name in ("hub", "draft_hub")]  # pasting into a text box fires no input event
    gr.on(turned(values) + pasted, _answer, values, view, **LATEST)
    hiding = [controls[name].input for name in ("model", "draft_model", "gpu", "speculative", "kv_dtype")]
    gr.on(hiding, _show, values, shown, **LATEST)
    keep_address(values, FORM)
    ready(pages.load(opened, outputs=[*widgets.folds, *values], **QUIET).then(_answer, values, view, **QUIET))


def _controls() -> Widgets:
    widgets = Widgets(FORM)
    with gr.Column(elem_id="settings", elem_classes="asked"):
        for name in FORM.names:
            if name not in FOLDED:
                widgets.add(name, **{"placeholder": "owner/name"} if name in ("hub", "draft_hub") else {})
        with widgets.fold("What vLLM has no flag for", "sampling"):
            widgets.add(*FOLDED)
    return widgets


HIDDEN = {
    "hub": lambda inputs: inputs.model == OTHER,
    "draft_model": lambda inputs: inputs.speculative == "draft",
    "draft_hub": lambda inputs: inputs.speculative == "draft" and inputs.draft_model == OTHER,
    "kv_cache_dtype_skip_layers": lambda inputs: inputs.kv_dtype != "auto",
    "memory": lambda inputs: inputs.gpu == OTHER,
}
"""Controls that are shown only for certain values of others, and the condition for each."""


def _show(*values: Any) -> list[dict[str, Any]]:
    inputs = DeployInputs.of(values)
    return [gr.update(visible=True if there(inputs) else "hidden") for there in HIDDEN.values()]


def _answer(*values: Any) -> str:
    try:
        return as_line(answer(DeployInputs.of(values)))
    except LabError as error:
        return as_line({"say": visible(str(error)), "problem": True})
