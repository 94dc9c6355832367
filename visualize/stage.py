"""The stage of a run: what the Lab's page, the lessons, a downloaded run and an exported one have in common."""

from collections.abc import Callable
from typing import Any

import gradio as gr

from visualize.forms import component
from visualize.static_page import stage_setup


def build(take_away: Callable[[list[str]], dict[str, str]], opening: str = "", **settings: Any) -> gr.HTML:
    """The right column: a component in which a module draws the transcript of a run. It calls ``take_away`` with a
    run's id and a format. ``opening``: the transcript that is shown at first."""
    return component(
        "static/run_page",
        stage_setup(),
        "static/stage",
        value=opening,
        server_functions=[take_away],
        elem_id="stage",
        **settings,
    )
