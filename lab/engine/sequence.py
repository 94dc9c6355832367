"""One request while it is being decoded."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from lab.config import EngineConfig, SamplingParams
from lab.engine.detokenizer import TextStream
from lab.kv_cache.block_table import BlockTable
from lab.kv_cache.prefix_cache import Prefix
from lab.trace.events import Finished, Part, StopReason
from lab.trace.recorder import Recorder

if TYPE_CHECKING:
    from lab.engine.adaptive_window import Window
    from lab.engine.drafters import Drafter

PROPOSE, JUDGE, CHOOSE = range(3)
"""The columns of ``Sequence.draws``."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """The state of a request between steps.

    Attributes:
        prompt: the prompt's text.
        prompt_pieces: the text that each of its tokens adds; none if it is hidden.
        order: sequences are served in this order; it is also their owner number in block events.
        tokens: prompt and output, oldest first.
        end: the length at which it stops, by max_tokens or the model's context.
        draws: [end - prompt_length, 3] float64 in [0, 1), for each output position: to propose its
            token, to judge the proposal, and to choose the token if no proposal is kept. They come from
            the seed alone: no other sequence, no preemption and no window changes them. Each position
            has one verdict; a proposal that got none is drawn again with the same number.
        table: its cache blocks; the first ``table.length`` tokens have the target's keys and
            values. None without a cache.
        draft_length: how many tokens have the draft's keys and values, in the same slots.
        root: where its chain of prefixes begins: the models that compute it. None: not in a pool yet.
        leader: another sequence with the same prompt, whose blocks it may begin with.
        oracle: the same request decoded plainly, which tells a synthetic drafter the target's tokens.
        hidden: it is another sequence's oracle, and leaves nothing in the cache for that one to find.
        drafter: what proposes for it. None: nothing (yet).
        gave_up: failed parts that it has been told of (``FellBack``). With "drafter" among them it gets no other.
        told_blocks: how many blocks its pool has, as far as it was told. 0: not told yet, or no cache.
        cached_tokens: tokens of the prompt found in the cache when it was admitted. Admitted again before its first
            token, it may find its own, or fewer than before: the fewest count.
    """

    prompt: str
    prompt_pieces: tuple[str, ...]
    order: int
    tokens: list[int]
    prompt_length: int
    end: int
    config: EngineConfig
    sampling: SamplingParams
    text: TextStream
    recorder: Recorder
    eos: frozenset[int]
    window: Window
    root: Prefix | None = None
    leader: Sequence | None = None
    oracle: Sequence | None = None
    hidden: bool = False
    drafter: Drafter | None = None
    gave_up: set[Part] = field(default_factory=set)
    told_blocks: int = 0
    table: BlockTable | None = None
    draft_length: int = 0
    cached_tokens: int | None = None
    step: int = 0
    reason: StopReason | None = None
    finished: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)
    draws: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        seeded = torch.Generator().manual_seed(self.sampling.seed)
        self.draws = torch.rand(self.end - self.prompt_length, 3, generator=seeded, dtype=torch.float64)

    @property
    def generated(self) -> int:
        """How many tokens of output it has."""
        return len(self.tokens) - self.prompt_length

    @property
    def computed(self) -> int:
        """How many tokens the target need not compute again."""
        return self.table.length if self.table else 0

    @property
    def shares_prefixes(self) -> bool:
        """Whether it looks for prefixes that others left in the cache, and leaves its own."""
        return self.config.enable_prefix_caching and not self.hidden

    @property
    def ready(self) -> bool:
        """Whether it can be computed: its oracle, if it has one, is finished."""
        return not self.oracle or self.oracle.finished

    @property
    def outstanding(self) -> int:
        """How many known tokens are still to be computed; at least the newest."""
        return len(self.tokens) - self.computed

    def append(self, token_id: int) -> str:
        """Add a token to the output and return the text it adds; sets ``reason`` if it is the last."""
        self.tokens.append(token_id)
        piece = self.text.push(token_id)
        if token_id in self.eos and not self.sampling.ignore_eos:
            self.reason = "eos"
        elif self.text.stopped:
            self.reason = "stop"
        elif len(self.tokens) >= self.end:
            self.reason = "length"
        return piece

    def keep(self, length: int) -> None:
        """Keep only the first ``length`` tokens' keys and values: rolling back just sets a number."""
        if self.table:
            self.table.roll_back(length)
            self.draft_length = min(self.draft_length, length)

    def release(self) -> None:
        """Give its cache blocks back: all tokens will have to be computed again."""
        if self.table:
            self.table.release()
        self.draft_length = 0

    def leave_pool(self) -> None:
        """As ``release``, and let go of the pool's cache, which table and drafter would keep in memory."""
        self.release()
        self.table = self.drafter = None

    def finish(self, reason: StopReason, message: str = "") -> None:
        """Give everything back and emit why it ended. A second call does nothing."""
        if self.finished:
            return
        self.reason = reason
        self.leave_pool()
        self.recorder.emit(Finished, reason=reason, text=self.text.flush(), message=message)
        self.finished = True
