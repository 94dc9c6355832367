"""One vocabulary of state for the text, the charts and the legend.

A state is shown in three ways at once, by colour (Okabe-Ito, which colour-blind people
can tell apart), by glyph and by word, so that losing any one of them loses nothing.
"""

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class State:
    """The looks of one kind of token, or one verdict on a claim, in light and dark."""

    key: str
    glyph: str
    label: str
    light: str
    dark: str


STATES = {
    state.key: state
    for state in (
        State("prompt", "", "prompt", "#6b7280", "#9aa3b2"),
        State("plain", "•", "decoded by target", "#3d4654", "#c3cad6"),
        State("accepted", "✓", "accepted", "#0072B2", "#56B4E9"),
        State("rejected", "✗", "rejected", "#D55E00", "#FF8A4C"),
        State("recovered", "↻", "corrected", "#E69F00", "#F0B73A"),
        State("bonus", "+", "bonus", "#009E73", "#2CC79A"),
        State("unjudged", "·", "discarded", "#8a93a3", "#7d8797"),
    )
}

VERDICTS = {
    state.key: state
    for state in (
        State("holds", "✓", "holds here", "#00724F", "#2CC79A"),
        State("part", "◑", "holds for part of it", "#8A5A00", "#F0B73A"),
        State("conditions", "◐", "it depends", "#8A5A00", "#F0B73A"),
        State("fails", "✗", "does not hold", "#B23A00", "#FF8A4C"),
        State("cause", "↷", "real number, another cause", "#8A5A00", "#F0B73A"),
        State("untested", "?", "cannot be tested here", "#5B6474", "#AEB6C4"),
        State("noisy", "≈", "too noisy to say", "#5B6474", "#AEB6C4"),
    )
}
"""The possible verdicts on a claim (``lab.claims``), in colours that are legible as text."""

LEGEND = ("prompt", "plain", "accepted", "recovered", "bonus", "rejected", "unjudged")
"""The states that text and charts need explained, in reading order."""

OWN = "#CC79A7"
"""Fill of the shown run's cache blocks, a colour no token state uses."""

DRAFT_TIME = "#9575CD"
"""The draft's share of a pass's time, a colour no state uses; the target's is grey (``Look.verify``)."""


DRAFTER_NAMES = {
    "off": "no drafter",
    "draft": "the draft model",
    "eagle3": "the EAGLE-3 head",
    "mtp": "the MTP head",
    "dflash": "the DFlash head",
    "dspark": "the DSpark head",
    "ngram": "n-gram lookup",
    "early_exit": "early exit",
    "synthetic": "the simulated drafter",
}
"""``EngineConfig.speculative`` within a sentence."""


LOSSY = "lossy: typical acceptance, so the text does not follow the target's distribution"


_SENTENCES = tomllib.loads(Path(__file__).with_name("sentences.toml").read_text("utf-8"))


def sentences(speculative: str, greedy: bool, rule: str = "standard") -> dict[str, str]:
    """The hover sentence of each state, which depends on the drafter and on how tokens are chosen and verified, with
    places for the numbers."""
    if speculative == "synthetic" or greedy:
        kind = speculative if speculative == "synthetic" else "greedy"
    elif rule in ("block", "typical"):
        kind = rule
    else:
        kind = "ngram" if speculative == "ngram" else "standard"
    who = DRAFTER_NAMES[speculative]
    who = who[0].upper() + who[1:]
    return {state: text.replace("{who}", who) for state, text in (_SENTENCES["all"] | _SENTENCES[kind]).items()}


def as_json() -> dict[str, Any]:
    """The vocabulary for the page's script."""
    return {"states": {key: asdict(state) for key, state in STATES.items()}, "legend": LEGEND}


def css_variables() -> str:
    """The colours as CSS variables, for light and for Gradio's ``.dark``."""
    states = STATES | VERDICTS
    light = "".join(f"--{key}:{state.light};" for key, state in states.items())
    dark = "".join(f"--{key}:{state.dark};" for key, state in states.items())
    return f":root{{{light}--own:{OWN};}} .dark{{{dark}}}"
