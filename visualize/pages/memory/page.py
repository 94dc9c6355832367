"""The Memory page: a model, a device and lengths on the left, the memory they need on the right."""

import time
from typing import Any

import gradio as gr

from lab.errors import LabError
from lab.memory.model_memory import ModelInfo, known_models
from lab.models.checkpoint_files import HUB_TIMEOUT_SECONDS
from visualize import page_header as header
from visualize.charts.base import shells
from visualize.charts.memory_charts import CHARTS
from visualize.forms import Widgets, component, settings_button
from visualize.gradio_events import LATEST, QUIET, keep_address, ready, turned, warn
from visualize.memory_inputs import FORM, OTHER, MemoryInputs, from_link
from visualize.pages.memory.hub_models import look_up
from visualize.pages.memory.memory_report import sheet
from visualize.recorded_results import kv_quality
from visualize.text import as_line, visible

ASSUMED = (
    "Lengths are geometric, cut off at the longest: after every token a sequence ends with the same probability. Each "
    "is counted at its full length. A device's GB are 2³⁰ bytes; what is reserved is for activations, the driver and "
    "fragments. Quantised keys and values have the scales that this lab stores; INT8 and INT4 weights are counted "
    "without theirs."
)

HIDDEN = {
    "hub": ("model", lambda model: model == OTHER),
    "kv_cache_dtype_skip_layers": ("kv_dtype", lambda form: form != "auto"),
    "memory": ("gpu", lambda gpu: gpu == OTHER),
}
"""Controls that are shown only for certain values of another, and the condition for each."""
Found = dict[str, ModelInfo | str | None]
"""The last hub id that was asked for, and its model, or a sentence that says why there is none; None: not known yet."""


def build(pages: gr.Blocks) -> None:
    """Lay the page out, inside a route of ``pages``."""
    header.build("Memory")
    with gr.Row(elem_id="lab", elem_classes="picture-first"):
        with gr.Column(elem_id="controls"):
            controls = _controls()
            with gr.Row(elem_id="actions"):
                settings_button()
        with gr.Column(elem_id="view"):
            setup = {"shells": shells(CHARTS), "assumed": ASSUMED, "quality": kv_quality()}
            view = component("pages/memory/page", setup, elem_id="sheet")
    found, latest = gr.State({}), gr.State(0)
    values = [controls[name] for name in FORM.names]
    begin = {"fn": begin_look_up, "inputs": [found, controls["model"], controls["hub"]], "outputs": latest}
    end = {"fn": look_up_pending, "inputs": found, "outputs": latest}
    # One event alone writes the sheet, one answer at a time: no older answer replaces a newer one.
    changes = [*turned(control for name, control in controls.items() if name != "hub"), latest.change]
    gr.on(changes, answer, [found, *values], view, **LATEST)
    controls["hub"].submit(**begin, **LATEST).then(**end, **QUIET)
    for name, (choice, holds) in HIDDEN.items():
        controls[choice].input(
            lambda chosen, holds=holds: gr.update(visible=True if holds(chosen) else "hidden"),
            controls[choice],
            controls[name],
            **LATEST,
        )
    keep_address(values, FORM)
    opened = pages.load(_opened, outputs=values, **QUIET).then(answer, [found, *values], view, **QUIET)
    ready(opened)
    opened.then(**begin, **QUIET).then(**end, **QUIET)


def _controls() -> dict[str, Any]:
    widgets = Widgets(FORM)
    with gr.Column(elem_id="settings", elem_classes="asked"):
        for name in FORM.names:
            widgets.add(name, **{"placeholder": "owner/name"} if name == "hub" else {})
    return widgets.inputs


def _opened(request: gr.Request) -> list[Any]:
    inputs, notices = from_link(request.query_params)
    warn(notices)
    shown = {name: holds(getattr(inputs, choice)) for name, (choice, holds) in HIDDEN.items()}
    updates = {name: {"visible": True if visible else "hidden"} for name, visible in shown.items()}
    return [gr.update(value=getattr(inputs, name), **updates.get(name, {})) for name in FORM.names]


def begin_look_up(found: Found, model: str, hub: str) -> Any:
    """Note that a hub id is looked up, if it is wanted: the sheet says so meanwhile. ``found`` is changed in place,
    because another look-up may begin before this one ends: the last that began is kept."""
    if model != OTHER or not hub.strip():
        return gr.skip()
    found.clear()
    found[hub.strip()] = None
    return time.monotonic_ns()


def look_up_pending(found: Found) -> Any:
    """Look up the hub id that ``begin_look_up`` has noted, which may take seconds."""
    hub = next((hub for hub, model in found.items() if model is None), None)
    if hub is None:
        return gr.skip()
    try:
        model: ModelInfo | str = look_up(hub)
    except LabError as error:
        model = visible(str(error))
    if hub in found:
        found[hub] = model
    return time.monotonic_ns()


def answer(found: Found, *values: Any) -> str:
    """The sheet for the controls' values, as a line of JSON."""
    return as_line(_sheet(MemoryInputs.of(values), found))


def _sheet(inputs: MemoryInputs, found: Found) -> dict[str, Any]:
    hub = inputs.hub.strip()
    if inputs.model != OTHER:
        model = known_models()[inputs.model]
    elif hub in found:
        model = found[hub]
    else:
        model = "Write the hub id of a model, like Qwen/Qwen3-8B, and press Enter."
    if model is None:
        asks = f"Asking the hub for {visible(hub)}. Without an answer it gives up after {HUB_TIMEOUT_SECONDS:.0f} s."
        return {"status": asks, "within": HUB_TIMEOUT_SECONDS}
    if isinstance(model, str):
        return {"problem": model}
    try:
        return sheet(model, inputs.deployment(model), inputs.batch)
    except LabError as error:
        return {"problem": str(error)}
