"""One request while it is being decoded."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from lab.config import EngineConfig, SamplingParams
from lab.decode.text import TextStream
from lab.kv.prefix import Prefix
from lab.kv.table import BlockTable
from lab.trace.events import Finished, Part, StopReason
from lab.trace.recorder import Recorder

if TYPE_CHECKING:
    from lab.decode.drafters import Drafter
    from lab.decode.window import Window

PROPOSE, JUDGE, CHOOSE = range(3)
"""The columns of ``Sequence.draws``."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """The state of a request between steps.

    Attributes:
        prompt: the text that was asked for.
        order: sequences are served in this order; it is their owner number in block events.
        tokens: prompt and output, oldest first.
        end: the length at which it stops, by max_tokens or the model's context.
        draws: [end - prompt_length, 3] float64 in [0, 1), for each token of the output: to propose
            it, to judge the proposal, and to choose it in a proposal's place. They belong to
            the place and come from the seed alone: no other sequence, no preemption and no
            window changes them. A place is judged once, so none is used twice.
        table: its cache blocks; ``table.length`` tokens have the target's keys and
            values. None without a cache.
        draft_length: tokens that have the draft's keys and values, in the same slots.
        root: where the chain of its prefixes begins: which models compute them. None: not in a pool yet.
        leader: another sequence with the same prompt, whose blocks it may begin with.
        oracle: the same request decoded plainly, for a synthetic drafter to know the answers from.
        hidden: it is another's oracle: it leaves nothing in the cache for that one to find.
        drafter: who proposes; None: nobody (yet).
        gave_up_drafter: it failed, and another is not wanted.
        gave_up: parts of the engine that failed, of which it has been told.
        cached_tokens: tokens that were found in the cache when it was first admitted. Later it finds its own.
    """

    prompt: str
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
    gave_up_drafter: bool = False
    gave_up: set[Part] = field(default_factory=set)
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
        return len(self.tokens) - self.prompt_length

    @property
    def computed(self) -> int:
        """Tokens the target need not compute again."""
        return self.table.length if self.table else 0

    @property
    def shares_prefixes(self) -> bool:
        """Whether it looks for prefixes that others left in the cache, and leaves its own."""
        return self.config.enable_prefix_caching and not self.hidden

    @property
    def ready(self) -> bool:
        """Whether it can be computed: what its drafter has to know is known."""
        return not self.oracle or self.oracle.finished

    @property
    def outstanding(self) -> int:
        """Known tokens that are still to compute; at least the newest."""
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
        """Only the first ``length`` tokens' keys and values are wanted: rolling back is moving a number."""
        if self.table:
            self.table.roll_back(length)
            self.draft_length = min(self.draft_length, length)

    def release(self) -> None:
        """Give the cache back: all tokens will have to be computed again."""
        if self.table:
            self.table.release()
        self.draft_length = 0

    def finish(self, reason: StopReason, message: str = "") -> None:
        """Give everything back and say why it is over. The second time nothing happens."""
        if self.finished:
            return
        self.reason = reason
        self.release()
        self.table = self.drafter = None  # they know the cache, which a request that somebody keeps shall not keep
        self.recorder.emit(Finished, reason=reason, text=self.text.flush(), message=message)
        self.finished = True
