"""The Pool page: which sequences come and what they share on the left, the pool and the sequences on the right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from visualize.assets import put_together, read
from visualize.batch import file
from visualize.batch.inputs import (
    LABELS,
    LINK,
    NAMES,
    PRESETS,
    Inputs,
    from_link,
    preset_of,
    to_inputs,
)
from visualize.batch.live import BatchRun
from visualize.batch.readouts import labels
from visualize.figures import batch as figures
from visualize.panels import header
from visualize.panels.events import LATEST, QUIET, begins, keep_address, ready, stops, turned, warn
from visualize.panels.widgets import Widgets
from visualize.server.shelf import MAX_RUN_FILE, Kind, Shelf
from visualize.server.visitors import Visitors
from visualize.server.work import Line, Load

POOL = Kind(
    name="decode-lab-pool",
    read=list,
    formats={"json": ("application/json", file.as_json)},
    most_bytes=MAX_RUN_FILE,
    most_values=1_000_000,  # 32 sequences of 256 tokens, long-tailed, have 750,000
    load=file.of,
    told=file.told,
    count=lambda steps: sum(len(step.entries) for step in steps),
)
PARTS = ("picture", "stage", "squares", "charts", "player", "page", "pool")
"""The parts of the page's script, in their order."""
SAYS = {
    "continuations": "Per prompt; if paged, they share its blocks.",
    "every": "Steps between arrivals; 0: all at once.",
    "lengths": "A paragraph: nobody knows when it ends.",
    "tokens": "Their median; some write four times as many.",
    "shared": "All prompts begin with it.",
    "system": "The beginning of every prompt.",
    "paged": "Off: room for the longest is reserved.",
    "prefix_caching": "Prompts that begin alike share blocks.",
    "block_size": "Token slots in a block.",
    "max_num_seqs": "Sequences in a step; the others wait.",
    "temperature": "0 always takes the likeliest token (greedy).",
    "seed": "The first sequence's; the others count up.",
}
TOKENS = {
    "equal": "Each writes this many.",
    "tailed": SAYS["tokens"],
    "paragraph": "At most: it ends with the paragraph.",
}
NEEDS_PAGED = "Needs paged blocks: only those can be shared."


def build(pages: gr.Blocks, load: Load, line: Line) -> None:
    """Lay the page out, inside a route of ``pages``. Its runs wait in ``line`` with those of the other pages."""
    shelf = Shelf(POOL)
    visitors = Visitors(shelf)

    def run(request: gr.Request, *values: Any) -> str:
        inputs = to_inputs(values)
        return visitors.begin(request.session_hash, lambda before: BatchRun(line, load, inputs, before)) or gr.skip()

    def reopened(path: str, request: gr.Request) -> str:
        return visitors.reopen(request.session_hash, Path(path))

    def take_away(wanted: list[str]) -> dict[str, str]:
        return shelf.take_away(wanted)

    header.build("Pool")
    with gr.Row(elem_id="lab", elem_classes="staged"):
        with gr.Column(elem_id="controls"):
            preset, controls = _controls()
            with gr.Row(elem_id="actions"):
                press = gr.Button("Run", variant="primary", elem_id="run")
                halt = gr.Button("Stop", elem_id="stop")
                reopen = gr.UploadButton("Open", file_types=[".json"], elem_id="open")
        with gr.Column(elem_id="view"):
            view = gr.HTML(
                value="",
                html_template=read("pool.html"),
                js_on_load=_script(),
                apply_default_css=False,
                server_functions=[take_away],
                elem_id="crowd",
            )
    values = [controls[name] for name in NAMES]
    begins(press.click(run, values, view, **QUIET))
    stops(pages, halt.click, visitors)
    reopen.upload(reopened, reopen, view, **LATEST)
    preset.input(lambda key: _show(PRESETS[key].inputs), preset, [preset, *values], **LATEST)
    switched = [controls[name].input for name in ("lengths", "shared", "paged")]
    gr.on(switched, _follow, values, [controls[other] for other in DEPENDENT], queue=False, **LATEST)
    gr.on(turned(values), _preset, values, preset, **LATEST)
    keep_address(values, LINK)
    ready(pages.load(_opened, outputs=[preset, *values], **QUIET))


def _controls() -> tuple[gr.Radio, dict[str, Any]]:
    widgets, controls = Widgets(LINK, LABELS, SAYS), {}
    with gr.Column(elem_id="settings", elem_classes="asked"):
        preset = gr.Radio(
            [(preset.label, key) for key, preset in PRESETS.items()],
            value=preset_of(Inputs()),
            label="Scenario",
            info=PRESETS["users"].about,
            elem_id="preset",
            elem_classes="choice listed",
        )
        controls["sequences"] = widgets.slider("sequences")
        controls["continuations"] = widgets.choice("continuations")
        controls["every"] = widgets.slider("every")
        controls["lengths"] = widgets.choice("lengths")
        controls["tokens"] = widgets.slider("tokens")
        controls["shared"] = widgets.toggle("shared")
        controls["paged"] = widgets.toggle("paged")
        controls["prefix_caching"] = widgets.toggle("prefix_caching")
        controls["pool_blocks"] = widgets.slider("pool_blocks")
        controls["block_size"] = widgets.choice("block_size")
        controls["max_num_seqs"] = widgets.slider("max_num_seqs")
        with gr.Accordion("More", open=False, elem_id="sampling"):
            controls["kv_format"] = widgets.choice("kv_format")
            controls["speculation"] = widgets.choice("speculation")
            controls["temperature"] = widgets.slider("temperature", 0.05)
            controls["seed"] = widgets.number("seed")
            controls["system"] = widgets.text("system", 3, 6)
    return preset, controls


def _show(inputs: Inputs) -> list[Any]:
    """Updates that put ``inputs`` on the controls, first of all on the preset."""
    follows = dict(zip(DEPENDENT, _state(inputs), strict=True))
    updates = [gr.update(value=getattr(inputs, name)) | follows.get(name, {}) for name in NAMES]
    return [_chosen(inputs), *updates]


def _preset(*values: Any) -> dict[str, Any]:
    return _chosen(to_inputs(values))


def _chosen(inputs: Inputs) -> dict[str, Any]:
    """An update of the presets: the one with these inputs, and what there is to watch in it."""
    key = preset_of(inputs)
    return gr.update(value=key, info=PRESETS[key].about if key else "")


DEPENDENT = ("tokens", "system", "prefix_caching")


def _follow(*values: Any) -> list[dict[str, Any]]:
    return _state(to_inputs(values))


def _state(inputs: Inputs) -> list[dict[str, Any]]:
    """Updates of the ``DEPENDENT`` controls: what "tokens" means, and what cannot be used and why."""
    shared = [gr.update(info=TOKENS[inputs.lengths]), gr.update(interactive=inputs.shared)]
    if inputs.paged:
        return [*shared, gr.update(interactive=True, info=SAYS["prefix_caching"])]
    return [*shared, gr.update(interactive=False, value=False, info=NEEDS_PAGED)]


def _opened(request: gr.Request) -> list[Any]:
    inputs, notices = from_link(request.query_params)
    warn(notices)
    return _show(inputs)


def _script() -> str:
    setup = {"shells": figures.shells(), "rolling": [], "readouts": labels()}
    return put_together(setup, PARTS)
