"""The Pool page: which sequences come and what they share on the left, the pool and the sequences on the right."""

import functools
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import gradio as gr

from lab.measure.throughput import arrivals
from lab.settings import unmet
from lab.trace.recorder import BatchStep
from visualize import page_header as header
from visualize.charts.base import shells
from visualize.charts.pool_charts import CHARTS
from visualize.forms import Widgets, answering, component, settings_button
from visualize.gradio_events import LATEST, QUIET, begins, keep_address, ready, stops, turned, warn
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.live_run import LiveJob
from visualize.jobs.run_store import MAX_RUN_FILE, RunKind, RunStore
from visualize.jobs.visitor_sessions import VisitorSessions
from visualize.pages.pool import pool_file as file
from visualize.pages.pool.pool_frames import BatchReducer, PreviousPoolRun
from visualize.pages.pool.pool_metrics import READOUTS
from visualize.pool_inputs import FORM, PRESETS, PoolInputs, from_link, in_lab, preset_of
from visualize.recorded_results import OPENING_POOL
from visualize.reduce.frames import line
from visualize.reduce.metric_cards import labels

POOL = RunKind(
    name="decode-lab-pool",
    read=list,
    formats={"json": ("application/json", file.as_json)},
    most_bytes=MAX_RUN_FILE,
    most_values=1_000_000,  # 32 sequences of 256 tokens, long-tailed, have 750,000
    load=file.of,
    reported=file.transcript,
    count=lambda steps: sum(len(step.entries) for step in steps),
)
TOKENS = {
    "equal": "Each writes this many.",
    "tailed": FORM["tokens"].help,
    "paragraph": "At most: it ends with the paragraph.",
}
GAMMAS = "num_speculative_tokens", "num_speculative_tokens_per_batch_size"
PRIORITIES = "Those with the system prompt have priority."
ALIKE = "All prompts have the same priority."


class BatchRun(LiveJob):
    """A run of many sequences in a thread of its own; its ``events`` are steps."""

    def __init__(self, queue: JobQueue, load: Load, inputs: PoolInputs, before: PreviousPoolRun | None = None) -> None:
        self._inputs = inputs
        super().__init__(queue, load, BatchReducer(inputs.sequences, inputs.asked(), before))

    def _decode(self) -> Iterator[BatchStep]:
        inputs = self._inputs
        config, jobs = inputs.config(), inputs.jobs()  # what makes no sense is refused before any model is loaded
        yield from arrivals(
            self.engine("matched"),
            jobs,
            config,
            every=inputs.every,
            max_num_seqs=inputs.max_num_seqs,
            cancelled=self.cancelled,
        )


@functools.cache
def opening() -> str:
    """The transcript of a recorded run of the default scenario. Empty without its file."""
    try:
        text = gzip.decompress(OPENING_POOL.read_bytes())
    except FileNotFoundError:
        return ""
    _, _, frames = file.transcript(file.of(json.loads(text), OPENING_POOL.name), "opening").partition("\n")
    return line({"run": "opening", "opening": True}) + frames


def build(pages: gr.Blocks, load: Load, queue: JobQueue) -> None:
    """Lay the page out, inside a route of ``pages``. Its runs wait in ``queue`` with those of the other pages."""
    store = RunStore(POOL)
    visitors = VisitorSessions(store)

    def run(request: gr.Request, *values: Any) -> str:
        inputs = PoolInputs.of(values)
        begun = visitors.begin(
            request.session_hash, lambda before: BatchRun(queue, load, inputs, before), against=in_lab(inputs)
        )
        return begun or gr.skip()

    def reopened(path: str, request: gr.Request) -> str:
        return visitors.reopen(request.session_hash, Path(path))

    def take_away(wanted: list[str]) -> dict[str, str]:
        return store.take_away(wanted)

    def opened(request: gr.Request) -> list[Any]:
        inputs, notices = from_link(request.query_params)
        warn(notices)
        return [*widgets.unfolded(request.query_params, vars(inputs)), *_show(inputs)]

    header.build("Pool")
    with gr.Row(elem_id="lab", elem_classes=["staged", "picture-first"]):
        with gr.Column(elem_id="controls"):
            with gr.Row(elem_id="actions"):
                press = gr.Button("Run", variant="primary", elem_id="run")
                halt = gr.Button("Stop", elem_id="stop")
                reopen = gr.UploadButton("Open", elem_id="open")
                settings_button()
            widgets, preset = _controls()
        with gr.Column(elem_id="view"):
            setup = {"shells": shells(CHARTS, start=True), "rolling": [], "readouts": labels(READOUTS)}
            view = component("pages/pool/page", setup, value=opening(), server_functions=[take_away], elem_id="crowd")
    values, controls = widgets.values, widgets.inputs
    begins(press.click(run, values, view, **QUIET))
    stops(pages, halt.click, visitors)
    reopen.upload(reopened, reopen, view, **LATEST)
    for names, dependent, state in FOLLOWS:
        switches = [controls[name] for name in names]
        states = ((values, state(*values)) for values in product(*(_values(name) for name in names)))
        outputs = [controls[name] for name in dependent]
        gr.on([switch.input for switch in switches], None, switches, outputs, js=answering(states), **QUIET)
    named: dict[str, Any] = {"fn": None, "inputs": values, "outputs": preset, "js": _named(), **QUIET}
    chosen = f"() => ({answering(_presets())})(window.decodeLab.scenario)"
    preset.input(None, preset, [preset, *values], js=chosen, **QUIET).then(**named)
    gr.on(turned(values), **named)
    keep_address(values, FORM)
    ready(pages.load(opened, outputs=[*widgets.folds, preset, *values], **QUIET))


def _controls() -> tuple[Widgets, gr.Radio]:
    """The maker of the controls and their fold, and the presets."""
    widgets = Widgets(FORM)
    folded = ("kv_dtype", "speculative", *GAMMAS, "temperature", "seed", "system")
    with gr.Column(elem_id="settings", elem_classes="asked"):
        preset = gr.Radio(
            [(preset.label, key) for key, preset in PRESETS.items()],
            value=preset_of(PoolInputs()),
            label="Scenario",
            info=PRESETS["users"].about,
            elem_id="preset",
            elem_classes="choice listed",
        )
        widgets.add(*(name for name in FORM.names if name not in folded))
        with widgets.fold("More", "sampling"):
            widgets.add(*folded)
    return widgets, preset


def _of_lengths(lengths: str) -> list[dict[str, Any]]:
    """The meaning of "tokens"."""
    return [gr.update(info=TOKENS[lengths])]


def _of_shared(shared: int) -> list[dict[str, Any]]:
    return [gr.update(interactive=shared > 0)]


def _of_drafter(speculative: str) -> list[dict[str, Any]]:
    return [gr.update(interactive=speculative != "off") for _ in GAMMAS]


def _of_prefixes(paged: bool, enable_prefix_caching: bool, eviction: str, shared: int) -> list[dict[str, Any]]:
    """The controls that cannot be used and why, and the priorities."""
    values = {"paged": paged, "enable_prefix_caching": enable_prefix_caching, "eviction": eviction}
    missing = unmet(values)
    updates = {}
    for name in ("enable_prefix_caching", "eviction"):
        info = f"Needs {missing[name].what}." if name in missing else FORM[name].help
        updates[name] = gr.update(interactive=name not in missing, info=info)
    if "enable_prefix_caching" in missing:
        updates["enable_prefix_caching"]["value"] = False
    if "eviction" not in missing and eviction == "priority":
        updates["eviction"]["info"] = PRIORITIES if shared > 1 else ALIKE
    return list(updates.values())


FOLLOWS: tuple[tuple[tuple[str, ...], tuple[str, ...], Callable[..., list[dict[str, Any]]]], ...] = (
    (("lengths",), ("tokens",), _of_lengths),
    (("shared",), ("system",), _of_shared),
    (("speculative",), GAMMAS, _of_drafter),
    (("paged", "enable_prefix_caching", "eviction", "shared"), ("enable_prefix_caching", "eviction"), _of_prefixes),
)
"""Switches, the controls that depend on them, and what follows from their values."""


def _values(name: str) -> tuple[Any, ...]:
    """All that a switch can be."""
    return tuple(FORM[name].options) or (True, False)


def _show(inputs: PoolInputs) -> list[Any]:
    """Updates that put ``inputs`` on the controls, first of all on the preset."""
    follows: dict[str, dict[str, Any]] = {}
    for names, dependent, state in FOLLOWS:
        follows |= zip(dependent, state(*(getattr(inputs, name) for name in names)), strict=True)
    updates = [gr.update(value=getattr(inputs, name)) | follows.get(name, {}) for name in FORM.names]
    return [_chosen(preset_of(inputs)), *updates]


def _chosen(key: str | None) -> dict[str, Any]:
    """An update of the presets: the one that is chosen, and what there is to watch in it."""
    return gr.update(value=key, info=PRESETS[key].about if key else "")


def _presets() -> Iterator[tuple[Sequence[Any], Any]]:
    """Updates for each preset that can be chosen."""
    return (([key], _show(preset.inputs)) for key, preset in PRESETS.items())


def _named() -> str:
    """A script that finds the preset with the controls' values. An empty number is its default, as for the server."""
    known = [([getattr(preset.inputs, name) for name in FORM.names], _chosen(key)) for key, preset in PRESETS.items()]
    find = answering(known, otherwise=_chosen(None))
    usual = json.dumps(list(FORM.defaults.values()))
    return f"(...values) => ({find})(...values.map((value, i) => value ?? {usual}[i]))"
