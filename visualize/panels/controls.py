"""The left column: what is asked of the engine. The toggles are always in view."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gradio as gr

from visualize.settings import BLOCK_SIZES, BOUNDS, DEFAULTS, MAX_PROMPT, NAMES, PAIRS, Settings

OPENINGS = (
    DEFAULTS["prompt"],
    "In the middle of a dark forest stood a little house, and in the house lived an old woman who",
    "The king's youngest daughter went down to the well, and there she saw",
    "“Who is there?” cried the giant, and he",
    "A fox once met a wolf upon the road, and said to him,",
)

SAYS = {
    "cache": "Keeps past keys and values. Off: every pass reads the whole text again.",
    "int8": "Stores them as 8-bit numbers: much less memory, a little rounding.",
    "paged": "Takes blocks as they fill. Off: room for the whole run is set aside.",
    "speculation": "A small draft guesses; the target judges all guesses in one pass.",
    "gamma": "Called gamma in the papers.",
    "block_size": "Token slots in a cache block.",
}
NEEDS_CACHE = "Needs the KV cache: without one there is nothing to store."
NO_BLOCKS = "Needs the KV cache: no cache, no blocks."
NEEDS_SPECULATION = "Needs speculation."


@dataclass(frozen=True)
class Controls:
    """The inputs in the order of ``Settings``' fields, and the two buttons."""

    inputs: dict[str, Any]
    run: gr.Button
    stop: gr.Button

    @property
    def values(self) -> list[Any]:
        return [self.inputs[name] for name in NAMES]


def build() -> Controls:
    """Lay the controls out. Their values come from ``Settings``, their limits from ``BOUNDS``."""
    inputs: dict[str, Any] = {}
    with gr.Column(elem_id="settings"):
        inputs["prompt"] = gr.Textbox(
            DEFAULTS["prompt"], label="Prompt", lines=3, max_lines=3, max_length=MAX_PROMPT, elem_id="prompt"
        )
        examples = gr.Dropdown(
            [("Openings to try", ""), *((_shortened(opening), opening) for opening in OPENINGS)],
            value="",
            label="Openings",
            show_label=False,
            container=False,
            elem_id="openings",
        )
        inputs["pair"] = gr.Radio(
            [(label, key) for key, label in PAIRS.items()], value=DEFAULTS["pair"], label="Model pair", elem_id="pair"
        )
        with gr.Column(elem_id="toggles"):
            for name, label in {
                "cache": "KV cache",
                "int8": "INT8 cache",
                "paged": "Paged blocks",
                "speculation": "Speculation",
            }.items():
                inputs[name] = gr.Checkbox(
                    DEFAULTS[name], label=label, info=SAYS[name], elem_id=f"toggle-{name}", elem_classes="toggle"
                )
        inputs["gamma"] = gr.Slider(
            *BOUNDS["gamma"],
            value=DEFAULTS["gamma"],
            step=1,
            label="Guesses a round",
            info=SAYS["gamma"],
            elem_id="gamma",
        )
        inputs["block_size"] = gr.Radio(
            BLOCK_SIZES, value=DEFAULTS["block_size"], label="Block size", info=SAYS["block_size"], elem_id="block-size"
        )
        with gr.Accordion("Sampling", open=False, elem_id="sampling"):
            inputs |= _sampling()
    with gr.Row(elem_id="actions"):
        run = gr.Button("Run", variant="primary", elem_id="run")
        stop = gr.Button("Stop", elem_id="stop")
    examples.input(
        fn=None,
        inputs=[examples, inputs["prompt"]],
        outputs=inputs["prompt"],
        js="(opening, prompt) => opening || prompt",
    )
    for name in _SWITCHES:
        inputs[name].input(
            _available,
            [inputs[name] for name in _SWITCHES],
            [inputs[name] for name in _DEPENDENT],
            queue=False,
            show_progress="hidden",
            api_visibility="private",
        )
    return Controls(inputs, run, stop)


def to_settings(values: tuple[Any, ...]) -> Settings:
    """What the controls say. An emptied number is its default, an emptied seed is None.

    Numbers come as the browser sends them: a whole one may be a float.
    """
    given = dict(zip(NAMES, values, strict=True))
    for name in ("gamma", "block_size", "top_k", "max_tokens", "seed"):
        value = given[name]
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            given[name] = int(value)
    empty = {name: DEFAULTS[name] for name, value in given.items() if value is None and name != "seed"}
    return Settings(**(given | empty))


def show(settings: Settings) -> list[Any]:
    """Updates that put ``settings`` on the controls, with what they make unavailable."""
    updates = {name: gr.update(value=getattr(settings, name)) for name in NAMES}
    reasons = _reasons(settings.cache, settings.speculation)
    for name, reason in reasons.items():
        updates[name] |= gr.update(interactive=not reason, info=reason or SAYS[name])
    return list(updates.values())


_SWITCHES = ("cache", "speculation")
_DEPENDENT = ("int8", "paged", "block_size", "gamma")


def _available(cache: bool, speculation: bool) -> list[dict[str, Any]]:
    """Enable what makes sense; switch the rest off and say why."""
    reasons = _reasons(cache, speculation)
    updates = {name: gr.update(interactive=not reasons[name], info=reasons[name] or SAYS[name]) for name in _DEPENDENT}
    if not cache:
        updates["int8"]["value"] = updates["paged"]["value"] = False
    return list(updates.values())


def _reasons(cache: bool, speculation: bool) -> dict[str, str]:
    """Per control, why it cannot be used; empty where it can."""
    return {
        "int8": "" if cache else NEEDS_CACHE,
        "paged": "" if cache else NEEDS_CACHE,
        "block_size": "" if cache else NO_BLOCKS,
        "gamma": "" if speculation else NEEDS_SPECULATION,
    }


def _sampling() -> dict[str, Any]:
    def slider(name: str, label: str, info: str, step: float) -> gr.Slider:
        low, high = BOUNDS[name]
        return gr.Slider(
            low, high, value=DEFAULTS[name], step=step, label=label, info=info, elem_id=name.replace("_", "-")
        )

    return {
        "temperature": slider("temperature", "Temperature", "0 always takes the likeliest token (greedy).", 0.05),
        "top_k": slider("top_k", "Top-k", "Keep the k likeliest tokens; 0 keeps all.", 1),
        "top_p": slider("top_p", "Top-p", "Keep the likeliest tokens up to this probability; 1 keeps all.", 0.05),
        "seed": gr.Number(
            DEFAULTS["seed"],
            label="Seed",
            info="The same seed and settings give the same text; empty: a new one.",
            precision=0,
            elem_id="seed",
        ),
        "max_tokens": slider("max_tokens", "Most tokens", "The run ends after so many.", 1),
    }


def _shortened(text: str) -> str:
    return text if len(text) <= 44 else text[:43].rsplit(" ", 1)[0] + " …"
