"""What happened, in one sentence per step. Words before symbols.

Where something rare happened (a fallback, a new window, an eviction), the sentence tells that
and keeps the rest to a few words: one sentence is as much as an audience can read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.decode.window import PROBE_EVERY
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
from lab.trace.judged import rounded, written
from lab.trace.metrics import Metrics
from lab.trace.roofline import Achieved
from visualize.amounts import counted
from visualize.run.readouts import FASTER, shown_ms
from visualize.text import in_page_words, named, visible
from visualize.vocabulary import DRAFTERS, IN_CODE, KV_FORMATS

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
        self._prompt = self._tokens = prompt_tokens
        self._found = self._read = self._admissions = 0
        self._window = config["num_speculative_tokens"]
        self._why_none = ""  # while the adaptive window is 0
        self._observed = 0  # rounds that the adaptive window learnt from; counted as it counts them
        self._company = 0  # most other sequences in one pass
        self._computed = 0  # tokens that were computed before a preemption
        self._passes = self._rounds = self._guesses = self._kept = 0  # as ``lab.trace.metrics`` counts them
        self._cut = False  # the text ended within a round's guesses
        self._beyond = 0  # accepted guesses after that end
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
        return f"The prompt has {counted(self._prompt, 'token')}. Nothing has been computed yet."

    def admitted(self, event: Admitted) -> str:
        self._found, self._read = event.cached_tokens, event.cached_tokens
        again = "Admitted again. " if self._admissions else ""
        self._admissions += 1
        if self._found:
            blocks = -(-self._found // self._config["block_size"])
            return (
                f"{again}Found {self._found} of {self._whole()} in the cache: "
                f"{counted(blocks, 'block')}, nothing to compute for {'it' if self._found == 1 else 'them'}."
            )
        if again:
            before = f", {self._computed:,} of them again" if self._computed else ""
            return f"{again}All of {self._whole()} {_are(self._tokens)} computed{before}."
        if event.running > 1:
            return f"Admitted: {event.running} sequences share the pool and every pass."
        if not self._config["enable_prefix_caching"]:
            return ""
        size = self._config["block_size"]
        if self._prompt < size:
            fill = "does not fill" if self._prompt == 1 else "do not fill"
            return f"The prompt's {counted(self._prompt, 'token')} {fill} a block of {size}: none of it can be shared."
        if self._prompt == size:
            return (
                f"The prompt fills a block of {size}, which longer prompts can share that begin with it; the same "
                "prompt cannot, as its last token has to be computed."
            )
        return "None of the prompt is in the cache yet."

    def preempted(self, event: Preempted) -> str:
        self._computed = max(self._computed, event.tokens)
        again = counted(event.tokens, "token")
        if self._config["enable_prefix_caching"]:
            again = f"what is no longer cached of its {again}"
        again = f"; {again} will be computed again" if self._config["kv_cache"] else ""
        if event.cause == "blocks":
            return f"Preempted: the pool ran out of blocks, so this run gave its own back and waits{again}."
        return f"Preempted: a step ran out of memory, so fewer runs are computed at once and this one waits{again}."

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
            self._cut = own is None
            self._beyond = kept - len(pieces) if self._cut else 0
            self._rounds += 1
            self._guesses += len(proposals)
            self._kept += kept
            usual = f"Round {timed.step}: {self._round(proposals, verdicts, own, kept)}."
            brief = f"Round {timed.step}: {kept} of {len(proposals)} accepted. "
        elif timed.step_kind == "prefill":
            usual, brief = f"Prefill: the target read {self._prefill(timed.target_tokens)}{chosen}.", "Prefill. "
            if self._config["speculative"] == "draft" and timed.draft_flops:
                usual += f" The draft read {'it' if timed.target_tokens == 1 else 'them'} too."
        elif self._why_none:
            usual, brief = f"Pass {timed.step}{chosen[4:]}. {self._no_guesses()}", f"Pass {timed.step}. "
        else:
            usual, brief = f"Pass {timed.step}: {self._pass(timed.target_tokens)}{chosen}.", f"Pass {timed.step}. "
        # One that reads the text again, after a preemption, counts if it gives a token.
        self._passes += timed.step_kind != "prefill" or (bool(pieces) and self._tokens > self._prompt)
        self._tokens += len(pieces)
        self._observed += timed.step_kind != "prefill" and (bool(verdicts) or not self._window)
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
        return f"{said}{self._bargain(generated)}{given}"

    def _times(self, finished: Finished, metrics: Metrics, generated: int) -> str:
        """The times from which the readouts' speed and first token follow."""
        first, speed = metrics.ttft_ms, metrics.tokens_per_second
        if first is None or speed is None:
            return f" in {' '.join(shown_ms(finished.t_ms))}"
        others = generated - 1
        took = " ".join(shown_ms(1000 * others / speed))
        return f", the first after {' '.join(shown_ms(first))}, {others} more in {took}"

    def _bargain(self, generated: int) -> str:
        """Whether guessing paid off: more tokens than passes. Told in counts, which add up to the tokens."""
        if not self._rounds or generated < 2:
            return ""
        passes = f"{self._passes} {'pass' if self._passes == 1 else 'passes'}"
        those = f"Those {generated - 1}" if generated > 2 else "The other"
        kept = f"kept {self._kept or 'none'} of {self._guesses:,} guesses"
        if self._guesses == 1:
            kept = f"{'kept' if self._kept else 'did not keep'} the one guess"
        if self._passes >= generated - 1:
            return f" {those} took {passes}, which {kept}: so guessing saved no pass."
        kept += "" if self._rounds == self._passes else f" ({self._rounds} had any)"
        if self._passes == 1:
            added = "no token" if self._cut else "a token"
        else:
            added = "a token each, the last none" if self._cut else "a token each"
        added += f"; {self._beyond} kept after the text's end" if self._beyond else ""
        return f" {those} took {passes}, which {kept} and added {added}."

    def _round(
        self, proposals: Sequence[Proposed], verdicts: Sequence[Judged], own: Recovered | Bonus | None, accepted: int
    ) -> str:
        guesses = len(proposals)
        words = named("".join(guess.text for guess in proposals), LONGEST)
        opening = f"{self._who} proposed {words if guesses == 1 else f'{guesses} tokens, {words}'}. The target"
        if own is None:
            last = "the last of them" if self._beyond == 1 else f"the last {self._beyond} of them"
            return f"{opening} accepted {accepted}, and the text ended {f'before {last}' if self._beyond else 'there'}"
        if isinstance(own, Bonus):
            every = "accepted it" if guesses == 1 else f"accepted all {guesses}"
            return f"{opening} {every} and added {quoted(own.text)} as a bonus"
        first = quoted(proposals[accepted].text)
        rejected = f"accepted {accepted}, rejected {first}" if accepted else f"rejected the first, {first}"
        odds = _odds(verdicts[accepted])
        return (
            f"{opening} {'rejected it' if guesses == 1 else rejected} ({odds}) and put {quoted(own.text)} in its place"
        )

    def _prefill(self, tokens: int) -> str:
        first, self._read = self._read == self._found, self._read + tokens
        if not first or self._read < self._tokens:
            return f"{counted(tokens, 'token')} more, {self._read} of {self._whole()} {_are(self._read)} known"
        if self._found:
            return f"the {counted(tokens, 'token')} that {'was' if tokens == 1 else 'were'} not in the cache"
        return f"{self._whole()} in one pass"

    def _whole(self) -> str:
        """What a prefill has to cover: the prompt and, after a preemption, also the text written so far."""
        return f"the {'text' if self._tokens > self._prompt else 'prompt'}'s {counted(self._tokens, 'token')}"

    def _pass(self, tokens: int) -> str:
        if self._config["kv_cache"]:
            return "the target read one new token, found the others in the cache"
        if tokens == 2:
            return "without a cache the target read both tokens (one of them again)"
        return f"without a cache the target read all {tokens:,} tokens ({tokens - 1:,} of them again)"

    def _new_window(self, event: WindowChanged) -> str:
        was, self._window = self._window, event.gamma
        if event.draft_ms is None or event.verify_ms is None:
            unknown = "guess" if event.draft_ms is None else "pass over fewer tokens" if event.gamma else "plain pass"
            costs = f"what a {unknown} costs"
            self._why_none = "" if event.gamma else f"to measure {costs}"
            return f"The window goes from {was} to {event.gamma} as a trial, to measure {costs}: that is not yet known."
        self._why_none = "" if event.gamma else "a round of them would cost more than it gains"
        return (
            f"The window went from {was} to {event.gamma}: {event.acceptance:.0%} of judged guesses are expected to be "
            f"accepted, a guess takes {event.draft_ms:.1f} ms, a pass {event.verify_ms:.1f} ms."
        )

    def _no_guesses(self) -> str:
        """Why the adaptive window is 0, and when guessing is tried again."""
        passes = PROBE_EVERY - self._observed % PROBE_EVERY
        again = "after this pass" if passes == 1 else f"within {passes} passes"
        return f"No guesses: {self._why_none}; guessing is tried again {again}."

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
                    self._why_none = ""
                return f"Fell back: {lost} failed, {instead}. {visible(event.reason)}"
            case CacheDropped():
                return f"Everything cached was dropped: {visible(event.reason)}"
            case WindowChanged():
                return self._new_window(event)
            case _:
                return ""


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _odds(verdict: Judged) -> str:
    """p, q and, if it was drawn, u, to two digits if they show what was decided: more are much for a sentence."""
    if verdict.u is None:
        return f"p {verdict.p:.2g}, q {verdict.q:.2g}"
    numbers = rounded(verdict.p, verdict.q, verdict.u, accepted=verdict.accepted, fewest=2)
    return f"p {written(numbers.p)}, q {written(numbers.q)}, u {written(numbers.u)}"
