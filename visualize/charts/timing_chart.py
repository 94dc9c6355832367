"""The time of each pass by part, the prefill first, and the resulting speed."""

from functools import partial

from lab.trace.events import StepTimed
from visualize.charts.base import figure_of, look
from visualize.states import DRAFT_TIME

MODELS = ("draft", "target")
"""The parts that are passes of a model: the device's limit applies to them."""
PARTS = (*MODELS, "other")
SMOOTH = 8
"""Passes over which the speed line is averaged; one pass alone jumps too much to read."""
DWARFS = 3
"""A prefill that takes more than this many times as long as the longest pass in view is cut off."""


def part_colours(dark: bool) -> dict[str, str]:
    colours = look(dark)
    return {"draft": DRAFT_TIME, "target": colours.verify, "other": colours.other, "speed": colours.ink}


figure = partial(figure_of, "timing")


def caption(timed: StepTimed, limit: str) -> str:
    """The latest step's share of its ``limit``; why it may be above, only the bar's hover text says."""
    step = "Prefill" if timed.step_kind == "prefill" else f"Step {timed.step}"
    return f"{step}: {limit.partition(' (')[0]}" if limit else ""
