"""What a step did, in one sentence. Words before symbols."""

from __future__ import annotations

from collections.abc import Sequence

from lab.trace.events import Bonus, Finished, Proposed, Recovered, StepTimed
from visualize.text import visible

_ENDINGS = {
    "length": "as many as were asked for, or as fit",
    "eos": "the model ended the text itself",
    "stop": "a stop string came",
    "cancelled": "you stopped it",
}


def quoted(text: str) -> str:
    return f"“{visible(text)}”"


def round_sentence(step: int, proposals: Sequence[Proposed], own: Recovered | Bonus) -> str:
    """A round of speculation. ``own.position`` is the number of guesses kept."""
    guesses, kept = len(proposals), own.position
    opening = f"Round {step}: the draft proposed {guesses}; the target"
    if isinstance(own, Bonus):
        every = "kept it" if guesses == 1 else f"kept all {guesses}"
        return f"{opening} {every} and added {quoted(own.text)} as a bonus."
    some = f"kept {kept}, refused" if kept else "refused the first,"
    return f"{opening} {some} {quoted(proposals[kept].text)} and put {quoted(own.text)} in its place."


def pass_sentence(timed: StepTimed, pieces: Sequence[str], cached: bool) -> str:
    """A pass without guesses."""
    chosen = f" and chose {quoted(''.join(pieces))}" if pieces else ""
    if timed.step_kind == "prefill":
        return f"Prefill: the target read the prompt's {timed.target_tokens} tokens in one pass{chosen}."
    if cached:
        return f"Pass {timed.step}: the target read one new token, found the others in the cache{chosen}."
    return f"Pass {timed.step}: without a cache the target read all {timed.target_tokens} tokens again{chosen}."


def ending(finished: Finished, generated: int) -> str:
    count = f"{generated} token{'' if generated == 1 else 's'}"
    if finished.reason == "error":
        return f"The run broke off after {count}. {finished.message}"
    return f"Finished with {count}: {_ENDINGS[finished.reason]}."
