"""What happened, in one sentence per step. Words before symbols.

Where something rare happened (a fallback, a new window, an eviction), the sentence tells that
and keeps the rest to a few words: one sentence is as much as an audience can read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.trace.events import (
    Admitted,
    BlockEvicted,
    Bonus,
    CacheDropped,
    Event,
    FellBack,
    Finished,
    Judged,
    Preempted,
    Proposed,
    Recovered,
    StepTimed,
    WindowChanged,
)
from lab.trace.metrics import Metrics
from lab.trace.roofline import Achieved
from lab.trace.verdict_rounding import round_verdict, written
from lab.util.messages import counted
from visualize.reduce.bargain import Bargain
from visualize.reduce.guessing import Guessing
from visualize.reduce.metric_cards import FASTER, shown_ms
from visualize.reduce.prefill_sentence import Reading
from visualize.states import DRAFTERS, IN_CODE, KV_FORMATS
from visualize.text import in_page_words, named, visible

_ENDINGS = {
    "eos": "the model ended the text itself",
    "stop": "it reached a stop string",
    "cancelled": "it was stopped",
}


LONGEST = 60
"""Most characters of a round's guesses, so that an audience can still read the sentence."""


def quoted(text: str) -> str:
    return f"“{visible(text)}”"


def limit(found: Achieved) -> str:
    """How near a step came to the device's limit. It is called bound only from half of the limit on."""
    if found.share < 0.5:
        return f"{found.share:.0%} of the {'memory' if found.bound == 'memory' else 'compute'} limit"
    said = f"{found.bound}-bound, {found.share:.0%} of the limit"
    return said if found.share <= 1 else f"{said} ({FASTER[found.bound]})"


class Narrator:
    """Tells one run."""

    def __init__(self, config: dict[str, Any], prompt_tokens: int, max_tokens: int) -> None:
        self._config = config
        self._asked = max_tokens
        self._who = DRAFTERS[config["speculative"]].name
        self._reading = Reading(config, prompt_tokens)
        self._guessing = Guessing(config["num_speculative_tokens"])
        self._bargain = Bargain()
        self._company = 0  # most other sequences in one pass
        self._notes = ["synthetic: proposals cost nothing here"] if config["speculative"] == "synthetic" else []

    @property
    def notice(self) -> str:
        """The text that has to stay beside the numbers."""
        company = [f"passes shared with up to {counted(self._company, 'other run')}"] if self._company else []
        return " · ".join([*self._notes, *company])

    def note(self, text: str) -> None:
        """Add to the notice."""
        self._notes.append(text)

    def asked(self) -> str:
        return self._reading.asked()

    def admitted(self, event: Admitted) -> str:
        return self._reading.admitted(event)

    def preempted(self, event: Preempted) -> str:
        return self._reading.preempted(event)

    def step(
        self,
        timed: StepTimed,
        proposals: Sequence[Proposed],
        verdicts: Sequence[Judged],
        own: Recovered | Bonus | None,
        pieces: Sequence[str],
        rare: Sequence[Event],
    ) -> str:
        """One step, from what was proposed, judged and committed in it and its ``rare`` events. With proposals but
        without ``own``, the text ended before the target's own token."""
        text = "".join(pieces)
        chosen = f" and chose {quoted(text)}" if text else ""  # perhaps held back, until it is clear how the text ends
        if proposals:
            kept = sum(verdict.accepted for verdict in verdicts)
            self._bargain.round(len(proposals), kept, len(pieces), cut=own is None)
            usual = f"Round {timed.step}: {self._round(proposals, verdicts, own, kept)}."
            brief = f"Round {timed.step}: {kept} of {len(proposals)} accepted. "
        elif timed.step_kind == "prefill":
            read = self._reading.prefill(timed.target_tokens)
            usual, brief = f"Prefill: the target read {read}{chosen}.", "Prefill. "
            if self._config["speculative"] == "draft" and timed.draft_flops:
                usual += f" The draft read {'it' if timed.target_tokens == 1 else 'them'} too."
        elif self._guessing.why_none:
            usual, brief = f"Pass {timed.step}{chosen[4:]}. {self._guessing.none()}", f"Pass {timed.step}. "
        else:
            usual, brief = f"Pass {timed.step}: {self._pass(timed.target_tokens)}{chosen}.", f"Pass {timed.step}. "
        # One that reads the text again, after a preemption, counts if it gives a token.
        self._bargain.passes += timed.step_kind != "prefill" or (bool(pieces) and self._reading.grown)
        self._reading.tokens += len(pieces)
        if timed.step_kind != "prefill":
            self._guessing.passed(judged=bool(verdicts))
        self._company = max(self._company, timed.batch_sequences - 1)
        said = self._rare(rare)
        return brief + said if said else usual

    def ended(self, finished: Finished, metrics: Metrics, generated: int, blocks: int) -> str:
        """The end of the run. ``metrics``: the whole run's; ``blocks``: the most it held at once."""
        if finished.reason == "error":
            message = in_page_words(finished.message, IN_CODE)
            return f"The run failed after {counted(generated, 'token')}. {visible(message)}"
        if finished.reason == "length":
            why = "as many as were asked for" if generated >= self._asked else "the model's context is full"
        else:
            why = _ENDINGS[finished.reason]
        its = "Its block was" if blocks == 1 else f"Its blocks, {blocks} at most, were"
        given = f" {its} given back." if blocks else ""
        said = f"Finished with {counted(generated, 'token')}{self._times(finished, metrics, generated)}: {why}."
        return f"{said}{self._bargain.sentence(generated)}{given}"

    def _times(self, finished: Finished, metrics: Metrics, generated: int) -> str:
        """The times from which the readouts' speed and first token follow."""
        first, speed = metrics.ttft_ms, metrics.tokens_per_second
        if first is None or speed is None:
            return f" in {' '.join(shown_ms(finished.t_ms))}"
        others = generated - 1
        took = " ".join(shown_ms(1000 * others / speed))
        return f", the first after {' '.join(shown_ms(first))}, {others} more in {took}"

    def _round(
        self, proposals: Sequence[Proposed], verdicts: Sequence[Judged], own: Recovered | Bonus | None, accepted: int
    ) -> str:
        guesses = len(proposals)
        words = named("".join(guess.text for guess in proposals), LONGEST)
        opening = f"{self._who} proposed {words if guesses == 1 else f'{guesses} tokens, {words}'}. The target"
        if own is None:
            beyond = self._bargain.beyond
            last = "the last of them" if beyond == 1 else f"the last {beyond} of them"
            return f"{opening} accepted {accepted}, and the text ended {f'before {last}' if beyond else 'there'}"
        if isinstance(own, Bonus):
            every = {1: "accepted it", 2: "accepted both"}.get(guesses, f"accepted all {guesses}")
            return f"{opening} {every} and added {quoted(own.text)} as a bonus"
        first = quoted(proposals[accepted].text)
        rejected = f"accepted {accepted}, rejected {first}" if accepted else f"rejected the first, {first}"
        odds = self._odds(verdicts[accepted])
        return (
            f"{opening} {'rejected it' if guesses == 1 else rejected} ({odds}) and put {quoted(own.text)} in its place"
        )

    def _odds(self, verdict: Judged) -> str:
        """Why a guess was rejected. By p, q and u, where u was drawn: to two digits if they show what was decided,
        since more are much for a sentence."""
        if self._config["speculative"] == "synthetic":
            return "wrong on purpose"
        if verdict.u is None:
            return f"p {verdict.p:.2g}, not its likeliest"
        numbers = round_verdict(verdict.p, verdict.q, verdict.u, accepted=verdict.accepted, fewest=2)
        return f"p {written(numbers.p)}, q {written(numbers.q)}, u {written(numbers.u)}"

    def _pass(self, tokens: int) -> str:
        if self._config["kv_cache"]:
            return "the target read one new token, found the others in the cache"
        if tokens == 2:
            return "without a cache the target read both tokens (one of them again)"
        return f"without a cache the target read all {tokens:,} tokens ({tokens - 1:,} of them again)"

    def _rare(self, events: Sequence[Event]) -> str:
        """The sentence for the rarest event. All events pass through ``_tell``, which updates the window and the
        notice."""
        told = {type(event): self._tell(event) for event in events}
        for kind in (FellBack, CacheDropped, WindowChanged):
            if told.get(kind):
                return told[kind]
        evicted = sum(isinstance(event, BlockEvicted) for event in events)
        return f"Evicted {counted(evicted, 'cached block')} to make room." if evicted else ""

    def _tell(self, event: Event) -> str:
        match event:
            case FellBack():
                lost, instead = {
                    "drafter": (self._who, "the target goes on alone"),
                    "kv_format": (f"{KV_FORMATS[self._config['kv_dtype']]} storage", "native storage takes over"),
                    "kernel": ("the fast kernel", "the reference takes over"),
                    "cuda_graph": ("the CUDA graph", "kernels are launched one by one"),
                    "compile": ("torch.compile", "the layers run uncompiled"),
                    "full_pool": ("the full pool", "a smaller one takes over"),
                }[event.part]
                self.note(f"fell back: {lost} failed")
                if event.part == "drafter":
                    self._guessing.why_none = ""
                return f"Fell back: {lost} failed, {instead}. {visible(event.reason)}"
            case CacheDropped():
                return f"Everything cached was dropped: {visible(event.reason)}"
            case WindowChanged():
                return self._guessing.changed(event)
            case _:
                return ""
