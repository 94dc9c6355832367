"""The script of the stage: what the Lab's page, a downloaded run and an exported one have in common."""

from __future__ import annotations

from visualize.assets import put_together
from visualize.charts import looks, shells
from visualize.charts import timing_chart as timing
from visualize.charts import verdict_chart as verdict
from visualize.reduce.metric_cards import labels
from visualize.states import as_json

NAMES = ("run_state", "stage", "token_text", "charts", "verdict", "player", "save_menu", "run_page")
PARTS = tuple(f"static/{name}" for name in NAMES)
"""The parts of the Lab's script, in their order."""


def script() -> str:
    """The body of a function of (element, props, trigger, server, watch) that brings ``stage.html`` to life.

    Colours and empty figures are part of the script and not a prop, because Gradio copies and compares
    every prop at every update.
    """
    setup = {
        "vocabulary": as_json(),
        "shells": shells(),
        "verdict": looks(verdict.figure),
        "rolling": ["rounds", "timing"],
        "parts": {"light": timing.part_colours(False), "dark": timing.part_colours(True)},
        "readouts": labels(),
    }
    return put_together(setup, PARTS)
