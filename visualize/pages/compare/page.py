"""The Compare page: the settings to compare on the left, their race, figures and theory on the right."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from lab.registry import Pair
from visualize import page_header as header
from visualize.charts.base import shells
from visualize.charts.compare_charts import CHARTS
from visualize.example_prompts import examples
from visualize.forms import Widgets, answering, component, settings_button
from visualize.gradio_events import QUIET, REPEATED, begins, follow, keep_address, ready, stops, warn
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.live_run import ProgressJob
from visualize.jobs.visitor_sessions import OnePerSession
from visualize.pages.compare.compare_job import Comparison, GrowthMeasurement
from visualize.pages.compare.configurations import (
    CARE,
    FORM,
    NEED_A_DRAFT,
    CompareInputs,
    from_link,
    preset_of,
    presets,
)
from visualize.recorded_results import OPENING_COMPARISON
from visualize.reduce import compare_report as comparison
from visualize.reduce import theory_report as prediction
from visualize.run_settings import with_pairs
from visualize.states import as_json
from visualize.url_settings import Form


def build(pages: gr.Blocks, load: Load, queue: JobQueue, pairs: Mapping[str, Pair]) -> None:
    """Lay the page out, inside a route of ``pages``. Its runs wait in ``queue`` with all others; ``pairs``
    are the model pairs that ``load`` knows, by name."""
    tasks, form, draft = OnePerSession(), _form(pairs), pairs[FORM["pair"].default].has_draft

    def begin(job: type[ProgressJob]) -> Callable[..., Any]:
        def press(request: gr.Request, *values: Any) -> Any:
            inputs = CompareInputs.of(values)
            return follow(tasks.begin(request.session_hash, lambda: job(queue, load, inputs)))

        return press

    def opened(request: gr.Request) -> list[Any]:
        inputs, notices = from_link(request.query_params, form, pairs)
        warn(notices)
        shown = {name: getattr(inputs, name) for name in FORM.names} | {"lanes": list(inputs.lanes)}
        folds = widgets.unfolded(request.query_params, vars(inputs))
        preset = gr.update(value=preset_of(inputs.lanes, draft))
        return [*folds, preset, *(gr.update(value=value) for value in shown.values())]

    header.build("Compare")
    with gr.Row(elem_id="lab", elem_classes="picture-first"):
        with gr.Column(elem_id="controls"):
            with gr.Row(elem_id="actions"):
                press = gr.Button("Compare", variant="primary", elem_id="run")
                halt = gr.Button("Stop", elem_id="stop")
                settings_button()
            widgets, preset = _controls(form, draft)
        with gr.Column(elem_id="view"):
            view = component("pages/compare/page", _setup(), value=opening(), elem_id="contest")
    values = widgets.values
    begins(press.click(begin(Comparison), values, view, **REPEATED))
    view.submit(begin(GrowthMeasurement), values, view, **REPEATED)  # the view's own button
    stops(pages, halt.click, tasks)
    lanes, found = widgets.inputs["lanes"], presets(draft=draft)
    chosen = answering(([key], [list(some)]) for key, (_, some) in found.items())
    preset.input(None, preset, lanes, js=chosen, **QUIET)
    named = answering((sorted(some), [key]) for key, (_, some) in found.items())
    lanes.input(None, lanes, preset, js=f"(lanes) => ({named})(...[...lanes].sort()) ?? [null]", **QUIET)
    keep_address(values, form)
    ready(pages.load(opened, outputs=[*widgets.folds, preset, *values], **QUIET))


@functools.cache
def opening() -> str:
    """The record of a comparison of the default settings. Empty without its file."""
    return OPENING_COMPARISON.read_text("utf-8") if OPENING_COMPARISON.exists() else ""


def _form(pairs: Mapping[str, Pair]) -> Form:
    """The page's settings where these pairs are offered. Without a draft in any, no setting that needs one is."""
    lanes = FORM["lanes"].options
    if not any(pair.has_draft for pair in pairs.values()):
        lanes = {key: label for key, label in lanes.items() if key not in NEED_A_DRAFT}
    return with_pairs(FORM.with_options(lanes=lanes), {name: pair.label for name, pair in pairs.items()})


def _controls(form: Form, draft: bool) -> tuple[Widgets, gr.Radio]:
    """The maker of the controls and their folds, and the presets."""
    widgets = Widgets(form)
    with gr.Column(elem_id="settings", elem_classes="asked"):
        widgets.add("prompt")
        examples(widgets.inputs["prompt"])
        preset = gr.Radio(
            [(label, key) for key, (label, _) in presets(draft=draft).items()],
            value="ladder",
            label="Compare",
            elem_id="preset",
            elem_classes="choice",
        )
        widgets.add("lanes")
        with widgets.fold("Other settings, as text", "sampling"):
            widgets.add("own", "pair")
        care = gr.Radio(
            [(f"{name} ({times} repeats)", times) for name, times in CARE.items()],
            value=FORM["repeats"].default,
            label="Measurement",
            elem_id="care",
            elem_classes="choice",
        )
        widgets.add("max_tokens", "temperature")
        with widgets.fold("More", "pool"):
            widgets.add("repeats", "top_k", "top_p", "seed")
    repeats = widgets.inputs["repeats"]
    care.input(None, care, repeats, js="(care) => care", **QUIET)
    repeats.change(
        None, repeats, care, js=f"(repeats) => ({[*CARE.values()]}.includes(repeats) ? repeats : null)", **QUIET
    )
    return widgets, preset


def _setup() -> dict[str, Any]:
    return {
        "shells": shells(CHARTS),
        "vocabulary": as_json(),
        "columns": comparison.COLUMNS,
        "partingColumns": comparison.PARTINGS,
        "theoryColumns": comparison.THEORY,
        "theory": prediction.theory({}, {}, {}),
    }
