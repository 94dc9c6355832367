"""The Compare page: the settings to compare on the left, their race, figures and theory on the right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from lab.measure.comparison import MAX_CONFIGS, MIN_CONFIGS
from lab.registry import Pair
from visualize import page_header as header
from visualize.charts import compare_charts as figures
from visualize.example_prompts import openings
from visualize.forms import Widgets, answering, component
from visualize.gradio_events import QUIET, REPEATED, begins, follow, keep_address, ready, stops, warn
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.visitor_sessions import OnePerSession
from visualize.pages.compare.compare_job import Comparison, GrowthMeasurement
from visualize.pages.compare.configurations import (
    DEFAULTS,
    LINK,
    NAMES,
    NEED_A_DRAFT,
    from_link,
    preset_of,
    presets,
    to_inputs,
)
from visualize.reduce import compare_report as comparison
from visualize.reduce import theory_report as prediction
from visualize.states import as_json
from visualize.url_settings import Link

LABELS = {
    "prompt": "Prompt",
    "lanes": f"Settings, {MIN_CONFIGS} to {MAX_CONFIGS}",
    "own": "A setting a line",
    "pair": "Draft model",
    "repeats": "Repeats",
    "max_tokens": "Tokens",
    "temperature": "Temperature",
    "top_k": "Top-k",
    "top_p": "Top-p",
    "seed": "Seed",
}
SAYS = {
    "lanes": "γ: tokens guessed a round. The others are compared with the first.",
    "own": "Like kv_dtype=int8, speculative=ngram; with a name: Mine: paged=true",
    "repeats": "Runs of each setting, in changing order.",
    "max_tokens": "Each run writes this many.",
    "temperature": "0 always takes the likeliest token (greedy).",
}


def build(pages: gr.Blocks, load: Load, queue: JobQueue, pairs: Mapping[str, Pair]) -> None:
    """Lay the page out, inside a route of ``pages``. Its runs wait in ``queue`` with all others; ``pairs``
    are the model pairs that ``load`` knows, by name."""
    tasks, link, draft = OnePerSession(), _link(pairs), pairs[DEFAULTS["pair"]].has_draft

    def run(request: gr.Request, *values: Any) -> Any:
        return follow(tasks.begin(request.session_hash, lambda: Comparison(queue, load, to_inputs(values))))

    def grow(request: gr.Request, *values: Any) -> Any:
        return follow(tasks.begin(request.session_hash, lambda: GrowthMeasurement(queue, load, to_inputs(values))))

    def opened(request: gr.Request) -> list[Any]:
        inputs, notices = from_link(request.query_params, link, pairs)
        warn(notices)
        shown = {name: getattr(inputs, name) for name in NAMES} | {"lanes": list(inputs.lanes)}
        folds = widgets.unfolded(request.query_params, vars(inputs))
        preset = gr.update(value=preset_of(inputs.lanes, draft))
        return [*folds, preset, *(gr.update(value=value) for value in shown.values())]

    header.build("Compare")
    with gr.Row(elem_id="lab"):
        with gr.Column(elem_id="controls"):
            widgets, preset, controls = _controls(link, draft)
            with gr.Row(elem_id="actions"):
                press = gr.Button("Compare", variant="primary", elem_id="run")
                halt = gr.Button("Stop", elem_id="stop")
        with gr.Column(elem_id="view"):
            view = component("pages/compare/page", _setup(), elem_id="contest")
    values = [controls[name] for name in NAMES]
    begins(press.click(run, values, view, **REPEATED))
    view.submit(grow, values, view, **REPEATED)  # the view's own button
    stops(pages, halt.click, tasks)
    lanes, found = controls["lanes"], presets(draft=draft)
    chosen = answering(([key], [list(some)]) for key, (_, some) in found.items())
    preset.input(None, preset, lanes, js=chosen, **QUIET)
    named = answering((sorted(some), [key]) for key, (_, some) in found.items())
    lanes.input(None, lanes, preset, js=f"(lanes) => ({named})(...[...lanes].sort()) ?? [null]", **QUIET)
    keep_address(values, link)
    ready(pages.load(opened, outputs=[*widgets.folds, preset, *values], **QUIET))


def _link(pairs: Mapping[str, Pair]) -> Link:
    """The page's link where these pairs are offered: without a draft in any, nothing that needs one is to choose."""
    lanes = LINK.choices["lanes"]
    if not any(pair.has_draft for pair in pairs.values()):
        lanes = {key: label for key, label in lanes.items() if key not in NEED_A_DRAFT}
    return LINK.choosing(pair={name: pair.label for name, pair in pairs.items()}, lanes=lanes)


def _controls(link: Link, draft: bool) -> tuple[Widgets, gr.Radio, dict[str, Any]]:
    """What made the controls and their folds, the presets, and the controls by name."""
    widgets, controls = Widgets(link, LABELS, SAYS), {}
    with gr.Column(elem_id="settings", elem_classes="asked"):
        controls["prompt"] = widgets.text("prompt", 3, 3)
        openings(controls["prompt"])
        preset = gr.Radio(
            [(label, key) for key, (label, _) in presets(draft=draft).items()],
            value="ladder",
            label="Compare",
            elem_id="preset",
            elem_classes="choice",
        )
        controls["lanes"] = widgets.choices("lanes")
        with widgets.fold("Other settings, as text", "sampling", controls):
            controls["own"] = widgets.text("own", 2, 4)
            controls["pair"] = widgets.pair()
        for name in ("repeats", "max_tokens"):
            controls[name] = widgets.slider(name)
        controls["temperature"] = widgets.slider("temperature", 0.05)
        with widgets.fold("More sampling", "pool", controls):
            controls["top_k"] = widgets.slider("top_k")
            controls["top_p"] = widgets.slider("top_p", 0.05)
            controls["seed"] = widgets.number("seed")
    return widgets, preset, controls


def _setup() -> dict[str, Any]:
    return {
        "shells": figures.shells(),
        "vocabulary": as_json(),
        "columns": comparison.COLUMNS,
        "partingColumns": comparison.PARTINGS,
        "theoryColumns": prediction.COLUMNS,
        "theory": prediction.theory({}, {}, {}),
    }
