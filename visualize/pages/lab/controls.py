"""The left column: what the engine is asked to do. The toggles are always in view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.events import Dependency

from visualize.example_prompts import listed, openings
from visualize.forms import Widgets
from visualize.gradio_events import LATEST, QUIET
from visualize.recordings import runs
from visualize.run_settings import DEFAULTS, LABELS, LINK, NAMES, Settings, senseless
from visualize.setting_needs import DEPENDENT, SAYS, SWITCHES, state
from visualize.url_settings import Link


@dataclass(frozen=True)
class Controls:
    """The inputs in the order of ``Settings``' fields, what made them and their folds, the values chosen for those now
    out of use, and the buttons."""

    inputs: dict[str, Any]
    widgets: Widgets
    put_out: gr.State
    run: gr.Button
    stop: gr.Button
    open: gr.UploadButton
    replays: gr.Dropdown

    @property
    def values(self) -> list[Any]:
        return [self.inputs[name] for name in NAMES]

    def settle(self, shown: Dependency) -> None:
        """Repeat what ``shown`` put on the dependent controls: the answer to a switch turned before may come later."""
        dependent = [self.put_out, *(self.inputs[name] for name in DEPENDENT)]
        shown.success(_settled, self.values, dependent, queue=False, **QUIET)


def build(link: Link) -> Controls:
    """Lay the controls out. Their values, limits and choices are those of ``link``."""
    widgets, inputs = Widgets(link, LABELS, SAYS), {}
    with gr.Column(elem_id="settings"):
        inputs["prompt"] = widgets.text("prompt", 3, 3)
        with gr.Row(elem_id="lists"):
            openings(inputs["prompt"])
            replays = recordings()
        inputs["kv_cache"] = widgets.toggle("kv_cache")
        inputs["kv_dtype"] = widgets.choice("kv_dtype")
        inputs["paged"] = widgets.toggle("paged")
        inputs["enable_prefix_caching"] = widgets.toggle("enable_prefix_caching")
        inputs["speculative"] = widgets.choice("speculative")
        inputs["pair"] = widgets.pair()
        for name in ("target", "draft"):
            inputs[name] = widgets.text(name, 1, 1, visible="hidden")
        inputs["early_exit_layer"] = widgets.slider("early_exit_layer")
        inputs["synthetic_acceptance_rate"] = widgets.slider("synthetic_acceptance_rate", 0.05)
        inputs["num_speculative_tokens"] = widgets.slider("num_speculative_tokens")
        inputs["adaptive_window"] = widgets.toggle("adaptive_window")
        inputs["logprobs"] = widgets.choice("logprobs")
        with gr.Row(elem_id="folds"):
            with widgets.fold("Pool", "pool", inputs):
                inputs["block_size"] = widgets.choice("block_size")
                inputs["num_blocks"] = widgets.number("num_blocks")
                inputs["eviction"] = widgets.choice("eviction")
                inputs["cache_priority"] = widgets.slider("cache_priority")
            with widgets.fold("Sampling", "sampling", inputs):
                for name, step in (("temperature", 0.05), ("top_k", 1), ("top_p", 0.05)):
                    inputs[name] = widgets.slider(name, step)
                inputs["seed"] = widgets.number("seed")
                inputs["max_tokens"] = widgets.slider("max_tokens")
            with widgets.fold("Device", "computing", inputs):
                inputs["kernels"] = widgets.choice("kernels")
                inputs["cuda_graphs"] = widgets.toggle("cuda_graphs")
                inputs["torch_compile"] = widgets.toggle("torch_compile")
                inputs["prefill_attention"] = widgets.choice("prefill_attention")
    with gr.Row(elem_id="actions"):
        run = gr.Button("Run", variant="primary", elem_id="run")
        stop = gr.Button("Stop", elem_id="stop")
        reopen = gr.UploadButton("Open", file_types=[".json"], elem_id="open")
    put_out = gr.State({})
    gr.on(
        [inputs[name].input for name in SWITCHES],
        _follow,
        [put_out, *(inputs[name] for name in NAMES)],
        [put_out, *(inputs[name] for name in DEPENDENT)],
        queue=False,
        **LATEST,
    )
    return Controls(inputs, widgets, put_out, run, stop, reopen, replays)


def recordings() -> gr.Dropdown:
    """A list of the runs that the repository keeps, each by its name in ``visualize.recordings.runs``."""
    names = [(name, name) for name in runs()]
    return listed("GPU recordings", names, elem_id="replays", visible=bool(names), filterable=False)


def to_settings(values: Sequence[Any]) -> Settings:
    """The settings from the controls' values; the seed is None if it was emptied."""
    return Settings(**LINK.controls(values))


def show(settings: Settings) -> list[Any]:
    """The controls that ``settings`` put out of use, and updates that put ``settings`` on the controls. A link cannot
    say what was chosen for a control that is out of use: it comes back with its default."""
    follows, put_out = state(settings, {name: DEFAULTS[name] for name in senseless(settings)})
    return [put_out, *(gr.update(value=getattr(settings, name)) | follows.get(name, {}) for name in NAMES)]


def _settled(*values: Any) -> list[Any]:
    """As ``show``, of the dependent controls only: the others may have been changed since."""
    put_out, *updates = show(to_settings(values))
    shown = dict(zip(NAMES, updates, strict=True))
    return [put_out, *(shown[name] for name in DEPENDENT)]


def _follow(put_out: dict[str, Any], *values: Any) -> list[Any]:
    """Updates of the other controls after a switch."""
    follows, put_out = state(to_settings(values), put_out)
    return [put_out, *(follows[name] for name in DEPENDENT)]
