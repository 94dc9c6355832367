"""Decides which sequences compute how many tokens in the next step.

There is no prefill phase and no decode phase, only known tokens that are not computed
yet: many at first (or again, after a preemption), one afterwards. Every step serves
the running sequences in order of arrival, then admits waiting ones, until its token
budget is used up (continuous batching: Yu et al., Orca, OSDI 2022; chunked prefill
beside decoding: Agrawal et al., 2308.16369). If the pool runs dry, the newest sequence is
preempted: it gives up its blocks, and is computed again later (recomputation: Kwon et al.,
2309.06180, section 4.5).

Nothing here depends on a model; a step's cost is counted in tokens and blocks.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from lab.config import MOST_PROPOSED
from lab.engine.sequence import Sequence
from lab.errors import PoolExhaustedError
from lab.kv_cache.block_pool import BlockPool
from lab.kv_cache.block_table import BlockTable, CopyBlock
from lab.kv_cache.prefix_cache import Prefix
from lab.trace.events import Admitted, Preempted, Shortage

LEAST_BATCHED_TOKENS = 1 + MOST_PROPOSED
"""Fewest tokens that a step may be limited to: a whole round of a sequence."""


@dataclass(slots=True)
class Turn:
    """What one sequence does in a step: compute ``count`` known tokens, and verify up to ``window`` proposals."""

    sequence: Sequence
    count: int
    window: int

    @property
    def complete(self) -> bool:
        """Whether the newest token is among them, so that the next one can be chosen."""
        return self.count == self.sequence.outstanding


class Scheduler:
    """The queue and the batch of one pool.

    Args:
        blocks: the pool; None without a cache, when every step computes each sequence from its beginning.
        copy: copies a block, for sequences that share one and diverge.
        window: how many tokens a sequence would propose in its next round. Asked once a step; the answer must
            not depend on which others are running.
        max_num_seqs: most sequences in a step.
        max_num_batched_tokens: most tokens of all sequences in a step, proposals included; fewer after ``shrink``.
    """

    def __init__(
        self,
        blocks: BlockPool | None,
        copy: CopyBlock | None,
        window: Callable[[Sequence], int],
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # the oldest first
        self._blocks = blocks
        self._copy = copy
        self._window = window
        self._max_num_seqs = self._seats = max_num_seqs
        self._crowd: list[Sequence] = []  # while one of them runs, there are fewer seats
        self._max_num_batched_tokens = self._wished = max_num_batched_tokens

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    @property
    def may_admit(self) -> bool:
        """Whether somebody waits and there is a seat, so that the next step may begin with another sequence."""
        return bool(self.waiting) and len(self.running) < self._seats

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence by age: one that has been computed before (in another pool, say) keeps its place."""
        younger = sum(1 for _ in takewhile(lambda other: other.order > sequence.order, reversed(self.waiting)))
        self.waiting.insert(len(self.waiting) - younger, sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and take its blocks back."""
        sequence.release()
        (self.running if sequence in self.running else self.waiting).remove(sequence)

    def schedule(self, *, admit: bool = True) -> list[Turn]:
        """The next step's turns; empty only if nothing is waiting or running. ``admit`` False: nobody joins yet, unless
        nothing is running."""
        turns: list[Turn] = []
        budget = self._max_num_batched_tokens
        preempted = False
        if not any(sequence in self.running for sequence in self._crowd):
            self._seats, self._crowd = self._max_num_seqs, []
        for sequence in list(self.running):
            if sequence not in self.running:
                continue  # preempted for an older one
            turn = self._turn(sequence, sequence.outstanding, budget, alone=not turns)
            if turn is None:
                continue
            preempted |= self._make_room(turn)
            if sequence in self.running:
                turns.append(turn)
                budget -= turn.count + turn.window
        admits = (admit or not self.running) and not preempted
        while self.waiting and admits and len(self.running) < self._seats:
            turn = self._admit(self.waiting[0], budget, alone=not turns)
            if turn is None:
                break
            turns.append(turn)
            budget -= turn.count + turn.window
        return turns

    @property
    def can_shrink(self) -> bool:
        """Whether the next step can be smaller than the last one was: several run, or one reads a text in a cache."""
        return len(self.running) > 1 or self._chunk > LEAST_BATCHED_TOKENS

    def shrink(self) -> None:
        """Make the next step smaller, if it can be.

        If several run, preempt the newer half, and let no more run at once until all of the older half are done. A
        single one reads its text in chunks of half the tokens; no step has more until ``grow``, since what did not
        fit once will hardly fit the next time.
        """
        if len(self.running) < 2:
            if self._chunk > LEAST_BATCHED_TOKENS:
                self._max_num_batched_tokens = max(LEAST_BATCHED_TOKENS, self._chunk // 2)
            return
        self._seats = len(self.running) // 2
        while len(self.running) > self._seats:
            self._preempt(self.running[-1], "memory")
        self._crowd = list(self.running)

    def grow(self) -> None:
        """Let a step have twice as many tokens again, up to what it could have at first."""
        self._max_num_batched_tokens = min(self._wished, 2 * self._max_num_batched_tokens)

    # -- one sequence's share -----------------------------------------------------------------

    @property
    def _chunk(self) -> int:
        """How many tokens of its text a sequence that runs alone computes in a step; 0 if it cannot do so in parts."""
        if self._blocks is None or len(self.running) != 1:
            return 0
        return min(self.running[0].outstanding, self._max_num_batched_tokens)

    def _turn(self, sequence: Sequence, count: int, budget: int, *, alone: bool) -> Turn | None:
        """The turn of a sequence with ``count`` tokens to compute, within the budget. None: it has to wait.

        ``alone``: it is the first of the step, which always gets something to do. A window is never cut
        to the budget: what a sequence proposes would then depend on what else is running.
        """
        window = self._window(sequence)
        if count + window <= budget:
            return Turn(sequence, count, window)
        if self._blocks is None or count == 1:
            return Turn(sequence, count, window) if alone else None
        part = min(budget, count - 1) if window else min(budget, count)
        return Turn(sequence, part, 0) if part > 0 else None

    # -- room in the pool ---------------------------------------------------------------------

    def _make_room(self, turn: Turn) -> bool:
        """Reserve what the turn writes; while the pool has too little, preempt the newest sequence, perhaps this one.

        Returns:
            Whether any was preempted.
        """
        preempted = False
        while turn.sequence in self.running:
            try:
                self._reserve(turn)
                break
            except PoolExhaustedError:
                self._preempt(self.running[-1], "blocks")
                preempted = True
        return preempted

    def _reserve(self, turn: Turn) -> None:
        table = turn.sequence.table
        if table and table.paged:
            table.reserve(len(turn.sequence.tokens) + turn.window)

    def _preempt(self, sequence: Sequence, cause: Shortage) -> None:
        sequence.recorder.emit(Preempted, tokens=sequence.computed, cause=cause)
        sequence.release()
        self.running.remove(sequence)
        self.add(sequence)

    # -- joining -------------------------------------------------------------------------------

    def _admit(self, sequence: Sequence, budget: int, *, alone: bool) -> Turn | None:
        """Let ``sequence``, the first in the queue, join if its tokens so far fit in the pool; None: not yet."""
        sharing = self._blocks and sequence.config.paged
        leader = sequence.leader if sharing and sequence.leader in self.running else None
        if leader and not leader.generated:
            return None  # what it shares is about to be computed
        table, found, cached = None, [], 0
        if self._blocks:
            table = BlockTable(
                self._blocks, sequence.order, sequence.recorder.emit, paged=sequence.config.paged, copy=self._copy
            )
            cached, found = self._shared(sequence, leader)
        turn = self._turn(sequence, len(sequence.tokens) - cached, budget, alone=alone)
        if turn is None or not self._fits(turn, cached, found):
            return None

        self.waiting.popleft()
        insort(self.running, sequence, key=lambda running: running.order)
        sequence.table = table
        if not sequence.generated:
            first = sequence.cached_tokens is None
            sequence.cached_tokens = cached if first else min(cached, sequence.cached_tokens)
        sequence.recorder.emit(
            Admitted,
            owner=sequence.order,
            running=len(self.running),
            waiting=len(self.waiting),
            cached_tokens=cached,
            live_blocks=tuple(self._blocks.live_blocks()) if self._blocks else (),
            cached_blocks=tuple(self._blocks.cached_blocks()) if self._blocks else (),
        )
        if table:
            if found:
                table.adopt_prefix(found, sequence.config.cache_priority)
            elif cached:
                table.adopt_table(leader.table, cached)
            sequence.draft_length = min(cached, leader.draft_length) if leader and not found else cached
            table.reserve(len(sequence.tokens) + turn.window if table.paged else sequence.end)
        return turn

    def _shared(self, sequence: Sequence, leader: Sequence | None) -> tuple[int, list[tuple[int, Prefix]]]:
        """How many tokens need not be computed, and the blocks that were found by prefix.

        A running ``leader`` shares all of the prompt but its last token; otherwise the blocks found count.
        """
        if leader and not sequence.generated:
            return min(sequence.prompt_length - 1, leader.computed), []
        if not sequence.shares_prefixes:
            return 0, []
        found = self._blocks.find(sequence.tokens, sequence.root)
        return len(found) * self._blocks.block_size, found

    def _fits(self, turn: Turn, cached: int, found: list[tuple[int, Prefix]]) -> bool:
        """Whether the pool has the blocks that an admission needs."""
        pool, sequence = self._blocks, turn.sequence
        if pool is None:
            return True
        if not sequence.config.paged:
            return pool.has_run(-(-sequence.end // pool.block_size))
        needed = -(-(len(sequence.tokens) + turn.window) // pool.block_size) - cached // pool.block_size
        revived = sum(not pool.references(block) for block, _ in found)
        return needed <= pool.available - revived
