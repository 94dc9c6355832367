"""The right column: one HTML component in which a script draws the transcript of a run."""

from __future__ import annotations

from collections.abc import Callable

import gradio as gr

from visualize.assets import read
from visualize.reduce.run_script import script


def build(take_away: Callable[[list[str]], dict[str, str]], visible: bool = True) -> gr.HTML:
    """The stage. Its script calls ``take_away`` with a run's id and a format."""
    return gr.HTML(
        value="",
        html_template=read("static/stage.html"),
        js_on_load=script(),
        apply_default_css=False,
        server_functions=[take_away],
        visible=visible,
        elem_id="stage",
    )
