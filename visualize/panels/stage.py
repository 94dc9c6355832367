"""The right column: one HTML component in which a script draws the transcript of a run.

The template is constant and never mentions the value, because Gradio would evaluate
what stands in it. Colours and empty figures come with the script and not as a prop,
because Gradio copies and compares every prop at every update. All text of a run reaches
the page as text.
"""

from __future__ import annotations

import json
from pathlib import Path

import gradio as gr
import plotly

from visualize.figures import shells, timing
from visualize.readouts import labels
from visualize.settings import DEFAULTS, NAMES
from visualize.vocabulary import as_json, css_variables

STATIC = Path(__file__).parents[1] / "static"
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
"""The plotly.js that belongs to this plotly.py: served from here, so that nothing is fetched from elsewhere."""


def build() -> gr.HTML:
    gr.set_static_paths([PLOTLY])
    return gr.HTML(
        value="",
        html_template=(STATIC / "stage.html").read_text(encoding="utf-8"),
        js_on_load=_script(),
        head=f'<script src="gradio_api/file={PLOTLY.as_posix()}"></script>',
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
        "names": NAMES,
        "defaults": DEFAULTS,
    }
    return f"const setup = {json.dumps(setup)};\n{(STATIC / 'stage.js').read_text(encoding='utf-8')}"


def style() -> str:
    """The page's style sheet, for the head: Gradio's ``css`` argument would rewrite its rules."""
    return f"<style>{css_variables()}{(STATIC / 'page.css').read_text(encoding='utf-8')}</style>"
