"""Narration of a run, one sentence per step: the conclusion first.

Where something rare happened (a fallback, a new window, an eviction), the sentence tells that
and keeps the rest to a few words: one sentence is as much as an audience can read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.engine.adaptive_window import PROBE_EVERY
from lab.trace.events import (
    Admitted,
    BlockEvicted,
    BlockFreed,
    Bonus,
    CacheDropped,
    Event,
    FellBack,
    Finished,
    Part,
    Preempted,
    Proposed,
    Recovered,
    RecurrentRolledBack,
    StepTimed,
    Verified,
    WindowChanged,
)
from lab.trace.metrics import Metrics
from lab.trace.roofline import BEATEN, OVERHEAD, Achieved
from lab.trace.verdict_rounding import in_order, round_verdict, written
from lab.util.messages import counted
from visualize.format_numbers import three
from visualize.reduce.metric_cards import TOO_LOW, UNUSED, shown_ms
from visualize.states import DRAFTER_NAMES
from visualize.text import named, visible

LONGEST = 60
"""Most characters of a round's draft tokens, so that an audience can still read the sentence."""


LOST: dict[Part, tuple[str, str]] = {
    "drafter": ("the drafter", "the target goes on alone"),
    "kv_format": ("quantised storage", "the model's own dtype takes over"),
    "kernel": ("the fast kernel", "the reference takes over"),
    "cuda_graph": ("the CUDA graph", "kernels are launched one by one"),
    "compile": ("torch.compile", "the layers run uncompiled"),
    "full_pool": ("the full pool", "a smaller one takes over"),
}
"""What failed, and what takes its place."""


def fallback(event: FellBack) -> str:
    lost, instead = LOST[event.part]
    return f"{lost} failed, {instead}. {visible(event.reason)}"


def quoted(text: str) -> str:
    return f"“{visible(text)}”"


def limit(found: Achieved) -> str:
    """A step's share of the device's roofline."""
    memory = found.nearer == "memory"
    if found.share < OVERHEAD:
        return f"{found.share:.0%} of {'memory bandwidth' if memory else 'compute'}: {UNUSED}"
    remark = f" ({TOO_LOW})" if found.share > BEATEN else ""
    return f"{found.share:.0%} of {'memory-bandwidth' if memory else 'compute'} roofline{remark}"


class TextRead:
    """The part of a run's text that the target has read, through every admission. ``tokens``: of the whole text."""

    def __init__(self, config: dict[str, Any], prompt_tokens: int) -> None:
        self._config = config
        self._prompt = self.tokens = prompt_tokens
        self._found = self._read = self._admissions = 0
        self._computed = 0  # tokens that were computed before a preemption

    @property
    def grown(self) -> bool:
        """True once the text has more than the prompt."""
        return self.tokens > self._prompt

    def asked(self) -> str:
        return f"The prompt has {counted(self._prompt, 'token')}. Nothing is computed yet."

    def admitted(self, event: Admitted) -> str:
        self._found, self._read = event.cached_tokens, event.cached_tokens
        again = "Admitted again. " if self._admissions else ""
        self._admissions += 1
        if self._found:
            blocks = counted(-(-self._found // self._config["block_size"]), "block")
            return f"{again}Prefix cache hit: {self._found} of {self._whole()}, in {blocks}, need no computation."
        if again:
            before = f", {self._computed:,} of them again" if self._computed else ""
            return f"{again}All of {self._whole()} {_are(self.tokens)} computed{before}."
        if event.running > 1:
            return f"Admitted: {event.running} requests share the pool and every step."
        return self._nothing_found() if self._config["enable_prefix_caching"] else ""

    def _nothing_found(self) -> str:
        size = self._config["block_size"]
        if self._prompt < size:
            fill = "does not fill" if self._prompt == 1 else "do not fill"
            return f"The prompt's {counted(self._prompt, 'token')} {fill} a block of {size}: none of it can be shared."
        if self._prompt == size:
            return (
                f"The prompt fills a block of {size}. Longer prompts with the same beginning can share it; the same "
                "prompt cannot, because its last token has to be computed."
            )
        return "Prefix cache miss: none of the prompt is cached yet."

    def preempted(self, event: Preempted) -> str:
        self._computed = max(self._computed, event.tokens)
        again = counted(event.tokens, "token")
        if self._config["enable_prefix_caching"]:
            again = f"what is no longer cached of its {again}"
        again = f"; {again} will be computed again" if self._config["kv_cache"] else ""
        if event.cause == "blocks":
            return f"Preempted: the pool ran out of blocks, so this request freed its own and waits{again}."
        return f"Preempted: a step ran out of memory, so fewer requests run at once and this one waits{again}."

    def prefill(self, tokens: int) -> str:
        """The tokens that a prefill pass read."""
        first, self._read = self._read == self._found, self._read + tokens
        if not first or self._read < self.tokens:
            return f"{counted(tokens, 'token')} more, {self._read} of {self._whole()} {_are(self._read)} known"
        if self._found:
            return f"the {counted(tokens, 'token')} that {'was' if tokens == 1 else 'were'} not in the cache"
        return f"{self._whole()} in one forward pass"

    def _whole(self) -> str:
        """The text that a prefill has to cover: the prompt and, after a preemption, also the text written so far."""
        return f"the {'text' if self.grown else 'prompt'}'s {counted(self.tokens, 'token')}"


class Narrator(TextRead):
    """Tells one run."""

    def __init__(self, config: dict[str, Any], prompt_tokens: int, max_tokens: int) -> None:
        super().__init__(config, prompt_tokens)
        self._asked = max_tokens
        self._who = DRAFTER_NAMES[config["speculative"]]
        self._window = Window(config["num_speculative_tokens"])
        self._counts = Counts()
        self._rolled_back = self._slid = False  # said once
        self.lingers = False
        self._company = 0  # most other requests in one step
        self._notes = ["simulated: draft tokens cost nothing here"] if config["speculative"] == "synthetic" else []

    @property
    def notice(self) -> str:
        """The text that has to stay beside the numbers."""
        company = [f"steps shared with up to {counted(self._company, 'other request')}"] if self._company else []
        return " · ".join([*self._notes, *company])

    def note(self, text: str) -> None:
        """Add to the notice."""
        self._notes.append(text)

    def step(
        self,
        timed: StepTimed,
        proposals: Sequence[Proposed],
        verdicts: Sequence[Verified],
        own: Recovered | Bonus | None,
        pieces: Sequence[str],
        rare: Sequence[Event],
    ) -> str:
        """One step, from what was proposed, verified and committed in it and its ``rare`` events. With proposals but
        without ``own``, the text ended before the target's own token."""
        text = "".join(pieces)
        chosen = f" and chose {quoted(text)}" if text else ""  # perhaps held back, until it is clear how the text ends
        brief = f"Step {timed.step}. "
        if proposals:
            accepted = sum(verdict.accepted for verdict in verdicts)
            self._counts.round(len(proposals), accepted, len(pieces), cut=own is None)
            brief = f"Round {timed.step}: {accepted} of {len(proposals)} accepted. "
            usual = f"{brief}{self._round(proposals, verdicts, own, accepted)}."
        elif timed.step_kind == "prefill":
            read = self.prefill(timed.target_tokens)
            usual, brief = f"Prefill: the target read {read}{chosen}.", "Prefill. "
            if self._config["speculative"] == "draft" and timed.draft_flops:
                usual += f" The draft read {'it' if timed.target_tokens == 1 else 'them'} too."
        elif self._window.why_none:
            usual = f"Step {timed.step}{chosen[4:]}. {self._window.none()}"
        else:
            usual = f"Step {timed.step}: {self._plain(timed.target_tokens)}{chosen}."
        # One that reads the text again, after a preemption, counts if it gives a token.
        self._counts.passes += timed.step_kind != "prefill" or (bool(pieces) and self.grown)
        self.tokens += len(pieces)
        if timed.step_kind != "prefill":
            self._window.passed(verified=bool(verdicts))
        self._company = max(self._company, timed.batch_sequences - 1)
        said = self._rare(rare)
        return brief + said if said else usual

    def ended(self, finished: Finished, metrics: Metrics, generated: int) -> str:
        """The end of the run. ``metrics``: the whole run's."""
        tokens = counted(generated, "token")
        if finished.reason == "error":
            message = finished.message
            return f"The run failed after {tokens}. {visible(message)}"
        full = finished.reason == "length" and generated < self._asked
        opening = {
            "length": f"The model's context is full after {tokens}" if full else f"Done: {tokens}",
            "eos": f"Done: the model ended its text after {tokens}",
            "stop": f"Done: a stop string or token ended the text after {tokens}",
            "cancelled": f"Stopped after {tokens}",
        }[finished.reason]
        first, speed = metrics.ttft_ms, metrics.tokens_per_second
        rate = f" in {' '.join(shown_ms(finished.t_ms))}"
        if first is not None and speed is not None:
            rate = f" at {three(speed)} tok/s (TTFT {' '.join(shown_ms(first))})"
        return f"{opening}{rate}.{self._counts.sentence(generated)}"

    def _round(
        self, proposals: Sequence[Proposed], verdicts: Sequence[Verified], own: Recovered | Bonus | None, accepted: int
    ) -> str:
        who = self._who[0].upper() + self._who[1:]
        proposed = f"{who} proposed {named(''.join(one.text for one in proposals), LONGEST)}"
        if self._config["speculative"] in ("dflash", "dspark"):
            proposed += " in one parallel pass"
        if own is None:
            beyond = self._counts.beyond
            last = "the last of them" if beyond == 1 else f"the last {beyond} of them"
            return f"{proposed}; the text ended {f'before {last}' if beyond else 'there'}"
        if isinstance(own, Bonus):
            return f"{proposed}; the target added {quoted(own.text)} as a bonus"
        rejected = f"rejected {quoted(proposals[accepted].text)} ({self._odds(verdicts[accepted])})"
        return f"{proposed}; the target {rejected} and put {quoted(own.text)} in its place"

    def _odds(self, verdict: Verified) -> str:
        """Why a draft token was rejected. By p, q and u, where u was drawn: to two digits if they show what was
        decided, since more are much for a sentence."""
        if self._config["speculative"] == "synthetic":
            return "wrong on purpose"
        if verdict.threshold is not None:
            value, threshold = in_order(verdict.p if verdict.u is None else verdict.u, verdict.threshold)
            return f"{'p' if verdict.u is None else 'u'} {written(value)}, threshold {written(threshold)}"
        if verdict.u is None:
            return f"p {verdict.p:.2g}, not its likeliest"
        numbers = round_verdict(verdict.p, verdict.q, verdict.u, accepted=verdict.accepted, fewest=2)
        return f"p {written(numbers.p)}, q {written(numbers.q)}, u {written(numbers.u)}"

    def _plain(self, tokens: int) -> str:
        if self._config["kv_cache"]:
            return "the target computed one token, found the others in the KV cache"
        return f"without a KV cache the target computed all {tokens:,} tokens, {tokens - 1:,} of them again,"

    def _rare(self, events: Sequence[Event]) -> str:
        """The sentence for the rarest event; all of them update the window and the notice."""
        reported = {type(event): self._narrate(event) for event in events}
        evicted = sum(isinstance(event, BlockEvicted) for event in events)
        slid = sum(isinstance(event, BlockFreed) and event.slid_out for event in events)
        said = [reported.get(kind, "") for kind in (FellBack, CacheDropped, WindowChanged, RecurrentRolledBack)]
        if slid and not self._slid:
            self._slid = True
            said.append(
                f"Freed {counted(slid, 'block')}: the tokens slid out of the window, and no later one sees them."
            )
        self.lingers = any(said)
        said.append(f"Evicted {counted(evicted, 'cached block')} to make room." if evicted else "")
        return next(filter(None, said), "")

    def _narrate(self, event: Event) -> str:
        match event:
            case FellBack():
                self.note(f"fell back: {LOST[event.part][0]} failed")
                if event.part == "drafter":
                    self._window.why_none = ""
                return f"Fell back: {fallback(event)}"
            case CacheDropped():
                return f"The prefix cache was dropped: {visible(event.reason)}"
            case WindowChanged():
                return self._window.changed(event)
            case RecurrentRolledBack() if not self._rolled_back:
                self._rolled_back = True
                gone, there = counted(event.discarded, "rejected token"), event.position
                return f"Before it, the recurrent state went back past {gone} to token {there}, by {_way_back(event)}."
        return ""


def _way_back(event: RecurrentRolledBack) -> str:
    """The way in which a recurrent state went back, and the cost of a round with either."""
    way = f"computing {counted(event.recomputed, 'token')} again" if event.recomputed else "a snapshot"
    if event.snapshots_ms is None or event.recompute_ms is None:
        return way
    other, costs = "computing again", (event.snapshots_ms, event.recompute_ms)
    if event.method == "recompute":
        other, costs = "snapshots", costs[::-1]
    mine, its = (" ".join(shown_ms(ms)) for ms in costs)
    return f"{way} ({mine} a round; with {other} {its})"


@dataclass
class Counts:
    """Counts of a run, as ``lab.trace.metrics`` has them.

    Attributes:
        passes: the target's, but those that only read the text.
        rounds: passes with draft tokens.
        cut: whether the text ended within the latest round's draft tokens.
        beyond: accepted draft tokens after that end.
    """

    passes: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    cut: bool = False
    beyond: int = 0

    def round(self, proposed: int, accepted: int, committed: int, *, cut: bool) -> None:
        """Count a round that added ``committed`` tokens. ``cut``: the text ended within its draft tokens."""
        self.rounds += 1
        self.proposed += proposed
        self.accepted += accepted
        self.cut, self.beyond = cut, accepted - committed if cut else 0

    def sentence(self, generated: int) -> str:
        """The gain of speculation after ``generated`` tokens: it adds up to them. Empty without a round."""
        if not self.rounds or generated < 2:
            return ""
        passes = counted(self.passes, "target pass")
        accepted = f"{self.accepted} of {counted(self.proposed, 'draft token')} accepted"
        if self.passes >= generated - 1:
            return f" Speculation saved no pass: {passes}, {accepted}."
        some = "" if self.rounds == self.passes else f" ({self.rounds} of the passes had draft tokens)"
        if self.passes == 1:
            added = ", and no token from the pass" if self.cut else ", plus one token from the pass"
        else:
            added = f", plus one token from each pass{' but the last' if self.cut else ''}"
        added += f"; {self.beyond} accepted after the end of the text" if self.beyond else ""
        return f" {passes} instead of {generated - 1}: {accepted}{some}{added}."


class Window:
    """The adaptive number of draft tokens, γ. ``why_none``: while it is 0; else empty."""

    def __init__(self, window: int) -> None:
        self._window = window
        self.why_none = ""
        self._observed = 0  # rounds that the window learnt from; counted as it counts them

    def passed(self, *, verified: bool) -> None:
        """Count a pass that was no prefill, and whether it verified draft tokens."""
        self._observed += verified or not self._window

    def changed(self, event: WindowChanged) -> str:
        was, self._window = self._window, event.gamma
        if (was, event.gamma) == (0, 1) and self._observed % PROBE_EVERY == 0 and event.verify_ms is not None:
            self.why_none = ""
            return "γ goes from 0 to 1 as a trial: without draft tokens, acceptance cannot be measured."
        if event.draft_ms is None or event.verify_ms is None:
            plain = "verification of fewer tokens" if event.gamma else "step without draft tokens"
            cost = f"the cost of a {'draft token' if event.draft_ms is None else plain}"
            self.why_none = "" if event.gamma else f"{cost} is measured"
            return f"γ goes from {was} to {event.gamma} as a trial, to measure {cost}."
        self.why_none = "" if event.gamma else "a round would cost more than it gains"
        return (
            f"γ went from {was} to {event.gamma}: {event.acceptance:.0%} expected acceptance, {event.draft_ms:.1f} ms "
            f"per draft token, {event.verify_ms:.1f} ms per target pass."
        )

    def none(self) -> str:
        """Why there are no draft tokens, and when they are tried again."""
        passes = PROBE_EVERY - self._observed % PROBE_EVERY
        again = "after this step" if passes == 1 else f"within {passes} steps"
        return f"No draft tokens: {self.why_none}; next try {again}."


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
