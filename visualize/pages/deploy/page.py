"""The Deploy page: models, settings and GPUs on the left, the command that serves them on the right."""

from __future__ import annotations

from typing import Any

import gradio as gr

from lab.errors import LabError
from visualize import page_header as header
from visualize.forms import Widgets, component
from visualize.gradio_events import LATEST, QUIET, keep_address, ready, turned, warn
from visualize.pages.deploy.deploy_report import answer
from visualize.pages.deploy.deployment import LABELS, LINK, NAMES, OTHER, from_link, to_inputs
from visualize.text import as_line, visible

SAYS = {
    "hub": "A hub id, or a folder on the server.",
    "draft_hub": "With the target's own tokenizer.",
    "num_speculative_tokens": "Tokens guessed a round.",
    "enable_prefix_caching": "Prompts that begin alike share blocks.",
    "set_aside": "For activations, driver.",
    "longest": "Prompt and output.",
    "mean": "Tokens: prompt and output.",
    "tensor_parallel": "Every layer is split over them.",
    "at_once": "That the GPUs have to hold.",
    "max_num_batched_tokens": "Empty: vLLM's choice.",
    "kv_cache": "vLLM always has one.",
    "paged": "vLLM always pages.",
}


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
    with gr.Row(elem_id="lab"):
        with gr.Column(elem_id="controls"):
            widgets, controls = _controls()
        with gr.Column(elem_id="view"):
            view = component("pages/deploy/page", {}, elem_id="sheet")
    values = [controls[name] for name in NAMES]
    shown = [controls[name] for name in HIDDEN]
    pasted = [controls[name].change for name in ("hub", "draft_hub")]  # pasting into a text box fires no input event
    gr.on(turned(values) + pasted, _answer, values, view, **LATEST)
    hiding = [controls[name].input for name in ("model", "draft_model", "gpu", "speculative")]
    gr.on(hiding, _show, values, shown, **LATEST)
    keep_address(values, LINK)
    ready(pages.load(opened, outputs=[*widgets.folds, *values], **QUIET).then(_answer, values, view, **QUIET))


def _controls() -> tuple[Widgets, dict[str, Any]]:
    """What made the controls and their fold, and the controls by name."""
    widgets = Widgets(LINK, LABELS, SAYS)
    with gr.Column(elem_id="settings", elem_classes="asked"):
        controls = {
            "model": widgets.listed("model"),
            "hub": widgets.text("hub", 1, 1, placeholder="owner/name", visible="hidden"),
            "weights": widgets.choice("weights"),
            "speculative": widgets.choice("speculative"),
            "draft_model": widgets.listed("draft_model"),
            "draft_hub": widgets.text("draft_hub", 1, 1, placeholder="owner/name", visible="hidden"),
            "num_speculative_tokens": widgets.slider("num_speculative_tokens"),
            "kv_dtype": widgets.choice("kv_dtype"),
            "enable_prefix_caching": widgets.toggle("enable_prefix_caching"),
            "block_size": widgets.choice("block_size"),
            "gpu": widgets.listed("gpu"),
            "memory": widgets.number("memory", visible="hidden"),
            "set_aside": widgets.slider("set_aside"),
            "tensor_parallel": widgets.choice("tensor_parallel"),
            "at_once": widgets.number("at_once"),
            "mean": widgets.number("mean"),
            "longest": widgets.number("longest"),
            "max_num_batched_tokens": widgets.number("max_num_batched_tokens"),
        }
        with widgets.fold("What vLLM has no flag for", "sampling", controls):
            controls["kv_cache"] = widgets.toggle("kv_cache")
            controls["paged"] = widgets.toggle("paged")
            controls["adaptive_window"] = widgets.toggle("adaptive_window")
            controls["eviction"] = widgets.listed("eviction")
    return widgets, controls


HIDDEN = {
    "hub": lambda inputs: inputs.model == OTHER,
    "draft_model": lambda inputs: inputs.speculative == "draft",
    "draft_hub": lambda inputs: inputs.speculative == "draft" and inputs.draft_model == OTHER,
    "memory": lambda inputs: inputs.gpu == OTHER,
}
"""Controls that are shown only for certain values of others, and the condition for each."""


def _show(*values: Any) -> list[dict[str, Any]]:
    inputs = to_inputs(values)
    return [gr.update(visible=True if there(inputs) else "hidden") for there in HIDDEN.values()]


def _answer(*values: Any) -> str:
    try:
        return as_line(answer(to_inputs(values)))
    except LabError as error:
        return as_line({"say": visible(str(error)), "problem": True})
