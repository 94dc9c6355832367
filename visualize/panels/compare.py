"""The Compare page: settings to hold side by side on the left, their race, figures and theory on the right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gradio as gr

from lab.bench.compare import FEWEST, MOST
from visualize import comparison, prediction
from visualize.assets import read
from visualize.figures import theory
from visualize.lanes import (
    BOUNDS,
    CHOICES,
    DEFAULTS,
    LANES,
    MAX_OWN,
    NAMES,
    PRESETS,
    from_link,
    preset_of,
    to_inputs,
)
from visualize.live import Line
from visualize.panels import header
from visualize.panels.controls import OPENINGS
from visualize.panels.look import charts, script
from visualize.settings import MAX_PROMPT
from visualize.tasks import Comparison, Growth, Load, Visitors
from visualize.text import as_line
from visualize.vocabulary import as_json

ABOUT = "Up to five settings on one prompt, taking turns: speed, memory, and whether they write the same."
LABELS = {
    "repeats": "Repeats",
    "max_tokens": "Tokens",
    "temperature": "Temperature",
    "top_k": "Top-k",
    "top_p": "Top-p",
    "seed": "Seed",
}
SAYS = {
    "repeats": "Runs of each setting, in changing order.",
    "max_tokens": "Each run writes so many.",
    "temperature": "0 always takes the likeliest token (greedy).",
}


def build(pages: gr.Blocks, load: Load, line: Line) -> None:
    """Lay the page out, inside a route of ``pages``. Its runs wait in ``line`` with those of the Lab."""
    visitors = Visitors()

    def run(request: gr.Request, *values: Any) -> Iterator[str]:
        yield from map(as_line, visitors.follow(request.session_hash, Comparison(line, load, to_inputs(values))))

    def grow(request: gr.Request, *values: Any) -> Iterator[str]:
        yield from map(as_line, visitors.follow(request.session_hash, Growth(line, load, to_inputs(values))))

    def stop(request: gr.Request) -> None:
        visitors.stop(request.session_hash)

    def leave(request: gr.Request) -> None:
        visitors.leave(request.session_hash)

    header.build("Compare", ABOUT)
    with gr.Row(elem_id="lab"):
        with gr.Column(elem_id="controls"):
            preset, controls = _controls()
            with gr.Row(elem_id="actions"):
                press = gr.Button("Compare", variant="primary", elem_id="run")
                halt = gr.Button("Stop", elem_id="stop")
        with gr.Column(elem_id="view"):
            view = gr.HTML(
                value="",
                html_template=read("compare.html"),
                js_on_load=_script(),
                head=charts(),
                apply_default_css=False,
                elem_id="contest",
            )
    values = [controls[name] for name in NAMES]
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    press.click(run, values, view, concurrency_limit=None, trigger_mode="once", **quiet)
    view.submit(grow, values, view, concurrency_limit=None, trigger_mode="once", **quiet)  # its own button
    halt.click(stop, queue=False, **quiet)
    preset.input(lambda chosen: list(PRESETS[chosen][1]), preset, controls["lanes"], **quiet)
    controls["lanes"].input(lambda lanes: preset_of(tuple(lanes)), controls["lanes"], preset, **quiet)
    gr.on([control.change for control in values], fn=None, inputs=values, js=header.keep_address(NAMES, DEFAULTS))
    pages.load(_opened, outputs=[preset, *values], **quiet).then(
        fn=None, js="() => { document.body.dataset.ready = 'yes' }"
    )
    pages.unload(leave)


def _controls() -> tuple[gr.Radio, dict[str, Any]]:
    controls: dict[str, Any] = {}
    with gr.Column(elem_id="settings", elem_classes="asked"):
        controls["prompt"] = gr.Textbox(
            DEFAULTS["prompt"], label="Prompt", lines=3, max_lines=3, max_length=MAX_PROMPT, elem_id="prompt"
        )
        openings = gr.Dropdown(
            [("Openings to try", ""), *((opening[:44], opening) for opening in OPENINGS)],
            value="",
            label="Openings",
            show_label=False,
            container=False,
            elem_id="openings",
        )
        preset = gr.Radio(
            [(label, key) for key, (label, _) in PRESETS.items()],
            value=preset_of(DEFAULTS["lanes"]),
            label="Compare",
            elem_id="preset",
            elem_classes="choice",
        )
        controls["lanes"] = gr.CheckboxGroup(
            [(label, key) for key, (label, _) in LANES.items()],
            value=list(DEFAULTS["lanes"]),
            label=f"Settings, {FEWEST} to {MOST}",
            info="γ: tokens guessed a round. The first is what others are held against.",
            elem_id="lanes",
        )
        with gr.Accordion("Others, in words", open=False, elem_id="sampling"):
            controls["own"] = gr.Textbox(
                DEFAULTS["own"],
                label="A setting a line",
                info="As kv_dtype=int8, speculative=ngram",
                lines=2,
                max_lines=4,
                max_length=MAX_OWN,
                elem_id="own",
            )
            controls["pair"] = gr.Radio(
                [(text, value) for value, text in CHOICES["pair"].items()],
                value=DEFAULTS["pair"],
                label="Draft model",
                elem_id="pair",
                elem_classes="choice",
            )
        controls["repeats"] = _slider("repeats", 1)
        controls["max_tokens"] = _slider("max_tokens", 1)
        controls["temperature"] = _slider("temperature", 0.05)
        with gr.Accordion("More sampling", open=False, elem_id="pool"):
            controls["top_k"] = _slider("top_k", 1)
            controls["top_p"] = _slider("top_p", 0.05)
            controls["seed"] = gr.Number(DEFAULTS["seed"], label=LABELS["seed"], precision=0, elem_id="seed")
    openings.input(
        fn=None,
        inputs=[openings, controls["prompt"]],
        outputs=controls["prompt"],
        js="(opening, prompt) => opening || prompt",
    )
    return preset, controls


def _slider(name: str, step: float) -> gr.Slider:
    low, high = BOUNDS[name]
    elem_id = name.replace("_", "-")
    return gr.Slider(
        low, high, value=DEFAULTS[name], step=step, label=LABELS[name], info=SAYS.get(name), elem_id=elem_id
    )


def _opened(request: gr.Request) -> list[Any]:
    inputs, notices = from_link(request.query_params)
    for notice in notices:
        gr.Warning(notice, title="About this link")
    shown = {name: getattr(inputs, name) for name in NAMES} | {"lanes": list(inputs.lanes)}
    return [gr.update(value=preset_of(inputs.lanes)), *(gr.update(value=value) for value in shown.values())]


def _script() -> str:
    setup = {
        "shells": theory.shells(),
        "vocabulary": as_json(),
        "columns": comparison.COLUMNS,
        "partingColumns": comparison.PARTINGS,
        "theoryColumns": prediction.COLUMNS,
    }
    return f"const setup = {json.dumps(setup)};\n{script('sheet.js', 'race.js', 'compare.js')}"
