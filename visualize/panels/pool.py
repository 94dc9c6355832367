"""The Pool page: who comes and what they share on the left, the pool and its sequences on the right."""

from __future__ import annotations

from typing import Any

import gradio as gr

from visualize.assets import put_together, read
from visualize.batch.inputs import (
    BOUNDS,
    CHOICES,
    DEFAULTS,
    LABELS,
    NAMES,
    PRESETS,
    Inputs,
    from_link,
    preset_of,
    to_inputs,
)
from visualize.batch.live import BatchRun, as_json
from visualize.batch.readouts import labels
from visualize.figures import batch as figures
from visualize.live import Line
from visualize.panels import header
from visualize.panels.look import charts
from visualize.settings import MAX_PROMPT
from visualize.shelf import Shelf
from visualize.tasks import Load
from visualize.visitors import Visitors

ABOUT = "Many sequences in one pool: whose each block is, who waits, who is preempted, what the cache forgets."
PARTS = ("picture", "stage", "squares", "charts", "player", "page", "pool")
"""The parts of its script, in their order."""
SAYS = {
    "every": "Steps between two; 0: all at once.",
    "lengths": "A paragraph: nobody knows when it ends.",
    "tokens": "Their median; some write four times as many.",
    "shared": "All prompts begin with it.",
    "system": "The beginning of every prompt.",
    "paged": "Off: room for the longest is set aside.",
    "prefix_caching": "Prompts that begin alike share blocks.",
    "block_size": "Token slots in a block.",
    "max_num_seqs": "Sequences in a step; the others wait.",
    "temperature": "0 always takes the likeliest token (greedy).",
    "seed": "The first sequence's; the others count up.",
}
TOKENS = {
    "equal": "Each writes so many.",
    "tailed": SAYS["tokens"],
    "paragraph": "At most: it ends with the paragraph.",
}
NEEDS_PAGED = "Needs paged blocks: only those can be shared."


def build(pages: gr.Blocks, load: Load, line: Line) -> None:
    """Lay the page out, inside a route of ``pages``. Its runs wait in ``line`` with those of the other pages."""
    shelf = Shelf(read=list, formats={"json": ("application/json", as_json)}, name="decode-lab-pool")
    visitors = Visitors(shelf)

    def run(request: gr.Request, *values: Any) -> str:
        inputs = to_inputs(values)
        return visitors.begin(request.session_hash, lambda before: BatchRun(line, load, inputs, before)) or gr.skip()

    def stop(request: gr.Request) -> None:
        visitors.stop(request.session_hash)

    def take_away(wanted: list[str]) -> dict[str, str]:
        return shelf.take_away(wanted)

    def leave(request: gr.Request) -> None:
        visitors.leave(request.session_hash)

    header.build("Pool", ABOUT)
    with gr.Row(elem_id="lab"):
        with gr.Column(elem_id="controls"):
            preset, controls = _controls()
            with gr.Row(elem_id="actions"):
                press = gr.Button("Run", variant="primary", elem_id="run")
                halt = gr.Button("Stop", elem_id="stop")
        with gr.Column(elem_id="view"):
            view = gr.HTML(
                value="",
                html_template=read("pool.html"),
                js_on_load=_script(),
                head=charts(),
                apply_default_css=False,
                server_functions=[take_away],
                elem_id="crowd",
            )
    values = [controls[name] for name in NAMES]
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    press.click(run, values, view, concurrency_limit=None, **quiet)
    halt.click(stop, queue=False, **quiet)
    preset.input(lambda key: _show(PRESETS[key].inputs), preset, [preset, *values], **quiet)
    for name in ("lengths", "shared", "paged"):
        controls[name].input(_follow, values, [controls[other] for other in DEPENDENT], queue=False, **quiet)
    gr.on([control.change for control in values], fn=None, inputs=values, js=header.keep_address(NAMES, DEFAULTS))
    pages.load(_opened, outputs=[preset, *values], **quiet).then(
        fn=None, js="() => { document.body.dataset.ready = 'yes' }"
    )
    pages.unload(leave)


def _controls() -> tuple[gr.Radio, dict[str, Any]]:
    controls: dict[str, Any] = {}
    with gr.Column(elem_id="settings", elem_classes="asked"):
        preset = gr.Radio(
            [(preset.label, key) for key, preset in PRESETS.items()],
            value=preset_of(Inputs()),
            label="To see",
            info=PRESETS["users"].about,
            elem_id="preset",
            elem_classes="choice",
        )
        controls["sequences"] = _slider("sequences")
        controls["every"] = _slider("every")
        controls["lengths"] = _choice("lengths")
        controls["tokens"] = _slider("tokens")
        controls["shared"] = _toggle("shared")
        controls["paged"] = _toggle("paged")
        controls["prefix_caching"] = _toggle("prefix_caching")
        controls["pool_blocks"] = _slider("pool_blocks")
        controls["block_size"] = _choice("block_size")
        controls["max_num_seqs"] = _slider("max_num_seqs")
        with gr.Accordion("More", open=False, elem_id="sampling"):
            controls["kv_format"] = _choice("kv_format")
            controls["speculation"] = _choice("speculation")
            controls["temperature"] = _slider("temperature", 0.05)
            controls["seed"] = gr.Number(
                DEFAULTS["seed"], label=LABELS["seed"], info=SAYS["seed"], precision=0, elem_id="seed"
            )
            controls["system"] = gr.Textbox(
                DEFAULTS["system"],
                label=LABELS["system"],
                info=SAYS["system"],
                lines=3,
                max_lines=6,
                max_length=MAX_PROMPT,
                elem_id="system",
            )
    return preset, controls


def _slider(name: str, step: float = 1) -> gr.Slider:
    low, high = BOUNDS[name]
    elem_id = name.replace("_", "-")
    return gr.Slider(
        low, high, value=DEFAULTS[name], step=step, label=LABELS[name], info=SAYS.get(name), elem_id=elem_id
    )


def _choice(name: str) -> gr.Radio:
    choices = [(text, value) for value, text in CHOICES[name].items()]
    return gr.Radio(
        choices,
        value=DEFAULTS[name],
        label=LABELS[name],
        info=SAYS.get(name),
        elem_id=name.replace("_", "-"),
        elem_classes="choice",
    )


def _toggle(name: str) -> gr.Checkbox:
    return gr.Checkbox(
        DEFAULTS[name],
        label=LABELS[name],
        info=SAYS[name],
        elem_id=f"toggle-{name.replace('_', '-')}",
        elem_classes="toggle",
    )


def _show(inputs: Inputs) -> list[Any]:
    """Updates that put ``inputs`` on the controls, the preset they are first."""
    key = preset_of(inputs)
    follows = dict(zip(DEPENDENT, _state(inputs), strict=True))
    updates = [gr.update(value=getattr(inputs, name)) | follows.get(name, {}) for name in NAMES]
    return [gr.update(value=key, info=PRESETS[key].about if key else ""), *updates]


DEPENDENT = ("tokens", "system", "prefix_caching")


def _follow(*values: Any) -> list[dict[str, Any]]:
    return _state(to_inputs(values))


def _state(inputs: Inputs) -> list[dict[str, Any]]:
    """What follows for the others: what "tokens" means, and what cannot be used and why."""
    shared = [gr.update(info=TOKENS[inputs.lengths]), gr.update(interactive=inputs.shared)]
    if inputs.paged:
        return [*shared, gr.update(interactive=True, info=SAYS["prefix_caching"])]
    return [*shared, gr.update(interactive=False, value=False, info=NEEDS_PAGED)]


def _opened(request: gr.Request) -> list[Any]:
    inputs, notices = from_link(request.query_params)
    for notice in notices:
        gr.Warning(notice, title="About this link")
    return _show(inputs)


def _script() -> str:
    setup = {"shells": figures.shells(), "rolling": [], "readouts": labels()}
    return put_together(setup, PARTS)
