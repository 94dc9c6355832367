"""One vocabulary of state for the text, the charts and the legend.

A state is shown in three ways at once, by colour (Okabe-Ito, which colour-blind people
can tell apart), by glyph and by word, so that losing any one of them loses nothing.
"""

from dataclasses import asdict, dataclass
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
    "dflash": "the DFlash head",
    "ngram": "n-gram lookup",
    "early_exit": "early exit",
    "synthetic": "the simulated drafter",
}
"""``EngineConfig.speculative`` within a sentence."""


LOSSY = "lossy: typical acceptance, so the text does not follow the target's distribution"


def sentences(speculative: str, greedy: bool, rule: str = "standard") -> dict[str, str]:
    """The hover sentence of each state, which depends on the drafter and on how tokens are chosen and verified.

    ``{p}``, ``{q}``, ``{u}`` and ``{chance}`` (of being kept: p / q, at most 1) are filled in where it is shown; also
    ``{threshold}``, and the place of the last draft token of a ``{block}``.
    """
    who = DRAFTER_NAMES[speculative]
    who = who[0].upper() + who[1:]
    said = {
        "prompt": "Given in the prompt.",
        "plain": "Chosen by the target alone: p = {p}.",
        "bonus": "All draft tokens of the round were accepted, so the same pass gave this token too: p = {p}.",
        "unjudged": "Proposed after a rejected draft token, so discarded without verification.",
    }
    if speculative == "synthetic":
        return said | {
            "accepted": f"{who} proposed the target's own token, so it was accepted: p = {{p}}.",
            "rejected": f"{who} proposed a wrong token on purpose, so it was rejected: p = {{p}}.",
            "recovered": "The target's own token in place of a wrong one: p = {p}.",
        }
    kept, rejected = f"{who} proposed it and the target accepted it", f"{who} proposed it and the target rejected it"
    if greedy:
        return said | {
            "accepted": f"{kept}: it is the target's likeliest token too. p = {{p}}, q = {{q}}.",
            "rejected": f"{rejected}: it is not the target's likeliest token. p = {{p}}, q = {{q}}.",
            "recovered": "The target's likeliest token, in place of a rejected one (vLLM: recovered token): p = {p}.",
        }
    proposed = f"{who} proposed it with q = {{q}}; the target gives it p = {{p}}."
    recovered = "in place of a rejected draft token (vLLM: recovered token): p = {p}."
    if rule == "block":
        return said | {
            "accepted": f"{proposed} The block up to draft token {{block}} passed: the random draw u = {{u}} is below "
            "its threshold {threshold}. All in it are accepted.",
            "rejected": f"{proposed} The block up to it failed: the random draw u = {{u}} is not below its threshold "
            "{threshold}. So did every longer block: rejected.",
            "recovered": f"Drawn where p times the block's running product exceeds q, {recovered}",
        }
    if rule == "typical":
        threshold = "the threshold min(0.09, 0.3 exp(−H)) = {threshold}"
        return said | {
            "accepted": f"{proposed} That is above {threshold}: accepted. This rule is lossy.",
            "rejected": f"{proposed} That is not above {threshold}: rejected.",
            "recovered": f"Drawn from p, {recovered}",
            "unjudged": f"{said['unjudged']} q = {{q}}.",
        }
    if speculative == "ngram":
        return said | {
            "accepted": f"{who} proposed it as if it were certain (q = 1). Its acceptance probability is p = {{p}}; "
            "the random draw u = {u} is below that: accepted.",
            "rejected": f"{who} proposed it as if it were certain (q = 1). Its acceptance probability is p = {{p}}; "
            "the random draw u = {u} is not below that: rejected.",
            "recovered": "Drawn from all other tokens, in place of a rejected one (vLLM: recovered token): p = {p}.",
        }
    return said | {
        "accepted": f"{who} proposed it with q = {{q}}; the target gives it p = {{p}}. Its acceptance probability "
        "is min(1, p / q) = {chance}; the random draw u = {u} is below that: accepted.",
        "rejected": f"{who} proposed it with q = {{q}}; the target gives it only p = {{p}}. Its acceptance "
        "probability is p / q = {chance}; the random draw u = {u} is not below that: rejected.",
        "recovered": f"Drawn where p exceeds q, {recovered}",
        "unjudged": f"{said['unjudged']} q = {{q}}.",
    }


def as_json() -> dict[str, Any]:
    """The vocabulary for the page's script."""
    return {"states": {key: asdict(state) for key, state in STATES.items()}, "legend": LEGEND}


def css_variables() -> str:
    """The colours as CSS variables, for light and for Gradio's ``.dark``."""
    states = STATES | VERDICTS
    light = "".join(f"--{key}:{state.light};" for key, state in states.items())
    dark = "".join(f"--{key}:{state.dark};" for key, state in states.items())
    return f":root{{{light}--own:{OWN};}} .dark{{{dark}}}"
