"""One request while it is being decoded: its tokens, its cache blocks, its draft.

Lesson 1, decoding one token at a time.
"""

import threading
from dataclasses import dataclass, field

import torch

from lab.config import EngineConfig, SamplingParams
from lab.engine.adaptive_window import AdaptiveWindow
from lab.engine.detokenizer import TextStream
from lab.kv_cache.block_table import BlockTable
from lab.kv_cache.prefix_cache import Prefix
from lab.models.chat_template import Chat
from lab.trace.events import Finished, Part, StopReason
from lab.trace.recorder import Recorder
from lab.trace.roofline import Limits

GREEDY = SamplingParams()

OWN_KEYS = "draft", "eagle3", "mtp", "dflash", "dspark"
"""Drafters that keep keys and values of their own, under the target's slot numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The part of a sequence that never changes.

    Attributes:
        pieces: the text that each of the prompt's ``length`` tokens adds.
        given_as_ids: the prompt was token ids or a chat, and its text was worked out from them.
        chat: what was asked, if it was a chat.
        notes: sentences about it, for who asked.
        eos: tokens that end a text.
        stop_token_ids: other tokens that end this one.
        hidden: True for the oracle of another sequence, which leaves nothing in the cache for that one to find.
        cancelled: set to end the sequence after the current step.
    """

    text: str
    pieces: tuple[str, ...]
    length: int
    sampling: SamplingParams
    given_as_ids: bool = False
    chat: Chat | None = None
    notes: tuple[str, ...] = ()
    eos: frozenset[int] = frozenset()
    stop_token_ids: frozenset[int] = frozenset()
    hidden: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class DraftState:
    """The state of a sequence's speculation.

    Attributes:
        window: how many tokens to draft.
        num_computed: tokens that have the drafter's keys and values, in the target's slots.
        oracle: the same request decoded plainly, from which a synthetic drafter knows the target's tokens.
    """

    window: AdaptiveWindow
    num_computed: int = 0
    oracle: "Sequence | None" = None


@dataclass(slots=True)
class ReportState:
    """The part of a sequence's state that only its events need.

    Attributes:
        step: number of the next step.
        cached_tokens: tokens of the prompt found in the cache on admission. Admitted again before its first token, a
            sequence may find its own, or fewer than before: the fewest count.
        num_blocks: blocks of its cache, as last reported. 0: not reported yet, or no cache.
        limits: of the device. None: not known.
        disabled: parts that failed and were reported (``FellBack``). With "drafter" among them it gets no other.
    """

    step: int = 0
    cached_tokens: int | None = None
    num_blocks: int = 0
    limits: Limits | None = None
    disabled: set[Part] = field(default_factory=set)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """The state of a request between steps.

    Attributes:
        seq_id: sequences are served in this order; also their owner number in block events.
        tokens: prompt and output, oldest first.
        end: the length at which it stops, by max_tokens or the model's context.
        config: as asked, but for what it had to fall back to.
        table: its cache blocks; the first ``table.length`` tokens have the target's keys and values. None without a
            cache.
        prefix_root: where its chain of prefixes begins: the models that compute it. None: not in a core yet.
        recurrent: the target has recurrent layers: a prefix is of use only where their state is kept as well.
        parent: another sequence with the same prompt, whose blocks it may begin with.
        reason: why it ends, once that is known; ``finished`` when that was reported.
        uniforms: [rows, 3] float64 in [0, 1): to draw a draft token, to verify it, and to choose the target's own
            token. They come from the seed alone: no other sequence and no preemption changes them. There is a row for
            each output position, which has one verdict; a draft token that got none is drawn again with the same
            number. Block verification decides on all draft tokens of a round together, so its rounds have rows of their
            own: as many as the longest round needs, for each position that one may begin at.
    """

    prompt: Prompt
    seq_id: int
    tokens: list[int]
    end: int
    config: EngineConfig
    text: TextStream
    recorder: Recorder
    draft: DraftState
    report: ReportState = field(default_factory=ReportState)
    table: BlockTable | None = None
    prefix_root: Prefix | None = None
    recurrent: bool = False
    parent: "Sequence | None" = None
    reason: StopReason | None = None
    finished: bool = False
    uniforms: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        seeded = torch.Generator().manual_seed(self.sampling.seed)
        rows = (self.end - self.prompt.length) * self._rows_apart
        self.uniforms = torch.rand(rows, 3, generator=seeded, dtype=torch.float64)

    @property
    def _rows_apart(self) -> int:
        by_block = self.config.speculative != "off" and self.config.rejection_sample_method == "block"
        return self.config.num_speculative_tokens + 1 if by_block else 1

    def draws(self, count: int) -> torch.Tensor:
        """[count, 3] uniform numbers for the next output positions."""
        first = self.generated * self._rows_apart
        return self.uniforms[first : first + count]

    @property
    def sampling(self) -> SamplingParams:
        return self.prompt.sampling

    @property
    def draft_sampling(self) -> SamplingParams:
        """The way in which draft tokens are chosen."""
        return GREEDY if self.config.draft_sample_method == "greedy" else self.sampling

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt.length

    @property
    def computed(self) -> int:
        """Tokens that the target need not compute again."""
        return self.table.length if self.table else 0

    @property
    def outstanding(self) -> int:
        """Known tokens that are still to be computed; at least the newest."""
        return len(self.tokens) - self.computed

    @property
    def shares_prefixes(self) -> bool:
        """True if it looks for prefixes that others left in the cache, and leaves its own."""
        return self.config.enable_prefix_caching and not self.prompt.hidden

    @property
    def drafts_from_states(self) -> bool:
        """True if its drafter reads the target's hidden states, which no cache has."""
        return self.config.speculative in OWN_KEYS[1:]

    @property
    def states_lag(self) -> int:
        """1 if its drafter reads a token with the target's hidden states of the one before (EAGLE-3, MTP)."""
        return self.config.speculative in ("eagle3", "mtp")

    @property
    def ready(self) -> bool:
        """True if it can be computed: its oracle, if it has one, is finished."""
        return not self.draft.oracle or self.draft.oracle.finished

    def append(self, token_id: int) -> str:
        """Add a token to the output and return the text it adds; sets ``reason`` if it is the last."""
        self.tokens.append(token_id)
        piece = self.text.push(token_id)
        if token_id in self.prompt.eos and not self.sampling.ignore_eos:
            self.reason = "eos"
        elif self.text.stopped or token_id in self.prompt.stop_token_ids:
            self.reason = "stop"
        elif len(self.tokens) >= self.end:
            self.reason = "length"
        return piece

    def keep(self, length: int) -> None:
        """Keep only the first ``length`` tokens' keys and values: rolling back just sets a number."""
        if self.table:
            self.table.roll_back(length)
            self.draft.num_computed = min(self.draft.num_computed, length)

    def release(self) -> None:
        """Free its cache blocks: all tokens will have to be computed again."""
        if self.table:
            self.table.release()
        self.draft.num_computed = 0

    def leave_core(self) -> None:
        """As ``release``, and let go of the core's cache, which the table would keep in memory."""
        self.release()
        self.table = None

    def finish(self, reason: StopReason, message: str = "") -> None:
        """Free all it holds and report why it ended. A second call does nothing."""
        if self.finished:
            return
        self.reason = reason
        self.leave_core()
        self.recorder.emit(Finished, reason=reason, text=self.text.flush(), message=message)
        self.finished = True
