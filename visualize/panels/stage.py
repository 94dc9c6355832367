"""The right column: one HTML component in which a script draws the transcript of a run.

The template is constant and never mentions the value, because Gradio would evaluate
what stands in it. Colours and empty figures come with the script and not as a prop,
because Gradio copies and compares every prop at every update. All text of a run reaches
the page as text.
"""

from __future__ import annotations

import json

import gradio as gr

from visualize.figures import shells, timing
from visualize.panels.look import STATIC, charts
from visualize.readouts import labels
from visualize.vocabulary import as_json


def build() -> gr.HTML:
    return gr.HTML(
        value="",
        html_template=(STATIC / "stage.html").read_text(encoding="utf-8"),
        js_on_load=_script(),
        head=charts(),
        apply_default_css=False,
        elem_id="stage",
    )


def _script() -> str:
    setup = {
        "vocabulary": as_json(),
        "shells": shells(),
        "rolling": ["rounds", "timing"],
        "parts": {"light": timing.part_colours(False), "dark": timing.part_colours(True)},
        "readouts": labels(),
    }
    return f"const setup = {json.dumps(setup)};\n{(STATIC / 'stage.js').read_text(encoding='utf-8')}"
