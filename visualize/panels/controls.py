"""The left column: what is asked of the engine. The toggles are always in view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from visualize.link import Link
from visualize.panels.consequences import DEPENDENT, GAMMA, SAYS, SWITCHES, state
from visualize.panels.widgets import Widgets
from visualize.settings import BOUNDS, CHOICES, DEFAULTS, LINK, MAX_MODEL, MAX_PROMPT, NAMES, Settings

OPENINGS = (
    DEFAULTS["prompt"],
    "In the middle of a dark forest stood a little house, and in the house lived an old woman who",
    "The king's youngest daughter went down to the well, and there she saw",
    "“Who is there?” cried the giant, and he",
    "A fox once met a wolf upon the road, and said to him,",
)

MODELS = {"target": "Target", "draft": "Draft"}
TOGGLES = {
    "cache": "KV cache",
    "paged": "Paged blocks",
    "prefix_caching": "Prefix caching",
    "adaptive_window": "Adaptive window",
    "distributions": "Record distributions",
    "cuda_graphs": "CUDA graphs",
    "torch_compile": "torch.compile",
}


@dataclass(frozen=True)
class Controls:
    """The inputs in the order of ``Settings``' fields, and the buttons."""

    inputs: dict[str, Any]
    run: gr.Button
    stop: gr.Button
    open: gr.UploadButton

    @property
    def values(self) -> list[Any]:
        return [self.inputs[name] for name in NAMES]


def build(link: Link) -> Controls:
    """Lay the controls out. Their values come from ``Settings``, their limits from ``BOUNDS``, model pairs from
    ``link``."""
    inputs: dict[str, Any] = {}
    with gr.Column(elem_id="settings"):
        inputs["prompt"] = gr.Textbox(
            DEFAULTS["prompt"], label="Prompt", lines=3, max_lines=3, max_length=MAX_PROMPT, elem_id="prompt"
        )
        openings(inputs["prompt"])
        inputs["cache"] = _toggle("cache")
        inputs["kv_format"] = _choice("kv_format", "KV format")
        inputs["paged"] = _toggle("paged")
        inputs["prefix_caching"] = _toggle("prefix_caching")
        inputs["speculation"] = _choice("speculation", "Speculation: who guesses?")
        inputs["pair"] = Widgets(link, {"pair": "Draft model"}, SAYS).pair()
        for name, label in MODELS.items():
            inputs[name] = gr.Textbox(
                label=label, info=SAYS[name], max_length=MAX_MODEL, visible="hidden", elem_id=f"{name}-model"
            )
        inputs["early_exit_layer"] = _slider("early_exit_layer", "Layers that guess", 1)
        inputs["synthetic_rate"] = _slider("synthetic_rate", "Guesses that are right", 0.05)
        inputs["gamma"] = _slider("gamma", GAMMA, 1)
        inputs["adaptive_window"] = _toggle("adaptive_window")
        inputs["distributions"] = _toggle("distributions")
        with gr.Row(elem_id="folds"):
            with gr.Accordion("Pool", open=False, elem_id="pool"):
                inputs["block_size"] = _choice("block_size", "Block size")
                inputs["pool_size"] = _choice("pool_size", "Pool size")
                inputs["eviction"] = _choice("eviction", "Eviction")
                inputs["cache_priority"] = _slider("cache_priority", "Cache priority", 1)
            with gr.Accordion("Sampling", open=False, elem_id="sampling"):
                inputs |= _sampling()
            with gr.Accordion("Device", open=False, elem_id="computing"):
                inputs["kernels"] = _choice("kernels", "Kernels")
                inputs["cuda_graphs"] = _toggle("cuda_graphs")
                inputs["torch_compile"] = _toggle("torch_compile")
                inputs["prefill_attention"] = _choice("prefill_attention", "Attention of the prompt")
    with gr.Row(elem_id="actions"):
        run = gr.Button("Run", variant="primary", elem_id="run")
        stop = gr.Button("Stop", elem_id="stop")
        reopen = gr.UploadButton("Open", file_types=[".json"], elem_id="open")
    for name in SWITCHES:
        inputs[name].input(
            _follow,
            [inputs[name] for name in NAMES],
            [inputs[name] for name in DEPENDENT],
            queue=False,
            show_progress="hidden",
            api_visibility="private",
        )
    return Controls(inputs, run, stop, reopen)


def openings(prompt: gr.Textbox) -> None:
    """A list of prompts to try, for ``prompt``."""
    some = gr.Dropdown(
        [("Openings to try", ""), *((_shortened(opening), opening) for opening in OPENINGS)],
        value="",
        label="Openings",
        show_label=False,
        container=False,
        elem_id="openings",
    )
    some.input(fn=None, inputs=[some, prompt], outputs=prompt, js="(opening, prompt) => opening || prompt")


def to_settings(values: Sequence[Any]) -> Settings:
    """What the controls say; the seed is None where it was emptied."""
    return Settings(**LINK.controls(values))


def show(settings: Settings) -> list[Any]:
    """Updates that put ``settings`` on the controls, with what follows for the others."""
    follows = state(settings)
    return [gr.update(value=getattr(settings, name)) | follows.get(name, {}) for name in NAMES]


def _follow(*values: Any) -> list[dict[str, Any]]:
    """A switch was thrown: what follows for the others."""
    follows = state(to_settings(values))
    return [follows[name] for name in DEPENDENT]


def _toggle(name: str) -> gr.Checkbox:
    return gr.Checkbox(
        DEFAULTS[name], label=TOGGLES[name], info=SAYS[name], elem_id=f"toggle-{_id(name)}", elem_classes="toggle"
    )


def _choice(name: str, label: str) -> gr.Radio:
    """One of a few, side by side."""
    choices = [(text, value) for value, text in CHOICES[name].items()]
    return gr.Radio(
        choices, value=DEFAULTS[name], label=label, info=SAYS.get(name), elem_id=_id(name), elem_classes="choice"
    )


def _slider(name: str, label: str, step: float) -> gr.Slider:
    low, high = BOUNDS[name]
    return gr.Slider(low, high, value=DEFAULTS[name], step=step, label=label, info=SAYS.get(name), elem_id=_id(name))


def _sampling() -> dict[str, Any]:
    return {
        "temperature": _slider("temperature", "Temperature", 0.05),
        "top_k": _slider("top_k", "Top-k", 1),
        "top_p": _slider("top_p", "Top-p", 0.05),
        "seed": gr.Number(DEFAULTS["seed"], label="Seed", info=SAYS["seed"], precision=0, elem_id="seed"),
        "max_tokens": _slider("max_tokens", "Most tokens", 1),
    }


def _id(name: str) -> str:
    return name.replace("_", "-")


def _shortened(text: str) -> str:
    return text if len(text) <= 44 else text[:43].rsplit(" ", 1)[0] + " …"
