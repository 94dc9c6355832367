"""One vocabulary of state for the text, the charts and the legend.

A state is told three ways at once, by colour (Okabe-Ito, which colour-blind people
can tell apart), by glyph and by word, so that losing any one of them loses nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class State:
    """How one kind of token looks, in light and dark, and what is said of it.

    ``sampled`` and ``greedy`` are the sentences shown on hover; ``{p}``, ``{q}``, ``{u}``
    and ``{ratio}`` (p / q) are filled in where the sentence is shown.
    """

    key: str
    glyph: str
    label: str
    light: str
    dark: str
    sampled: str
    greedy: str = ""


STATES = {
    state.key: state
    for state in (
        State("prompt", "", "prompt", "#6b7280", "#9aa3b2", "Given in the prompt."),
        State("plain", "•", "plain", "#3d4654", "#c3cad6", "Chosen by the target alone: p = {p}."),
        State(
            "accepted",
            "✓",
            "accepted",
            "#0072B2",
            "#56B4E9",
            "The draft proposed it and the target kept it: u = {u} is below p / q = {p} / {q} = {ratio}.",
            "The draft proposed it and the target kept it: it is the target's likeliest token too. p = {p}, q = {q}.",
        ),
        State(
            "rejected",
            "✗",
            "refused",
            "#D55E00",
            "#FF8A4C",
            "The draft proposed it and the target refused it: u = {u} is not below p / q = {p} / {q} = {ratio}.",
            "The draft proposed it and the target refused it: it is not the target's likeliest token. "
            "p = {p}, q = {q}.",
        ),
        State(
            "recovered",
            "↻",
            "recovered",
            "#E69F00",
            "#F0B73A",
            "The target's own choice in place of a refused guess, drawn where p exceeds q: p = {p}.",
            "The target's own choice in place of a refused guess, its likeliest token: p = {p}.",
        ),
        State(
            "bonus",
            "+",
            "bonus",
            "#009E73",
            "#2CC79A",
            "Every guess of the round was kept, so the same pass gave this token too: p = {p}.",
        ),
        State(
            "unjudged",
            "·",
            "not judged",
            "#8a93a3",
            "#7d8797",
            "Proposed after a refused guess, so thrown away without a verdict: q = {q}.",
        ),
    )
}

LEGEND = ("prompt", "plain", "accepted", "recovered", "bonus", "rejected")
"""The states the text needs explained, in reading order."""

OWNERS = ("#CC79A7", "#56B4E9", "#F0E442", "#009E73", "#E69F00", "#0072B2")
"""Colours of the sequences that own cache blocks; the first is used by no token state."""

DRAFT_TIME = "#56B4E9"
"""The draft's share of a pass's time; the target's is drawn in ink."""


def as_json() -> dict[str, Any]:
    """The vocabulary for the page's script."""
    return {"states": {key: asdict(state) for key, state in STATES.items()}, "legend": LEGEND}


def css_variables() -> str:
    """The states' colours as CSS variables, for light and for Gradio's ``.dark``."""
    light = "".join(f"--{key}:{state.light};" for key, state in STATES.items())
    dark = "".join(f"--{key}:{state.dark};" for key, state in STATES.items())
    return f":root{{{light}}} .dark{{{dark}}}"
