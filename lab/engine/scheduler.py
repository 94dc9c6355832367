"""The scheduler: which sequences compute how many tokens in the next step.

There is no prefill phase and no decode phase, only known tokens that are not computed yet: many at first (or again,
after a preemption), one afterwards. Every step serves the running sequences in order of arrival, then admits waiting
ones, until its token budget is used up (continuous batching: Yu et al., Orca, OSDI 2022; chunked prefill beside
decoding: Agrawal et al., 2308.16369). If the block pool runs dry, the newest sequence is preempted: it frees its
blocks, and is computed again later (recomputation: Kwon et al., 2309.06180, section 4.5).

Nothing here depends on a model; a step's cost is counted in tokens and blocks. Lesson 7, continuous batching.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from lab.engine.sequence import Sequence
from lab.engine.step_limits import StepLimits
from lab.errors import PoolExhaustedError
from lab.kv_cache.block_pool import BlockPool, CachedBlocks
from lab.kv_cache.block_table import CopyBlock
from lab.kv_cache.hybrid_block_table import find_cached_blocks, new_table
from lab.trace.events import Admitted, Preempted, Shortage


@dataclass(slots=True)
class ScheduledSequence:
    """One sequence's part of a step: to compute ``num_tokens`` known tokens, and verify up to ``num_draft_tokens``."""

    sequence: Sequence
    num_tokens: int
    num_draft_tokens: int

    @property
    def complete(self) -> bool:
        """True if the newest token is among them, so that the next one can be chosen."""
        return self.num_tokens == self.sequence.outstanding


class Scheduler:
    """The queue and the batch of one core.

    Args:
        pool: the block pool; None without a cache, when every step computes each sequence from its beginning.
        copy: copies a block, for sequences that share one and diverge.
        gamma: how many tokens a sequence drafts in its next round, while so many are running.
        limits: most sequences and most tokens in a step.
    """

    def __init__(
        self, pool: BlockPool | None, copy: CopyBlock | None, gamma: Callable[[Sequence, int], int], limits: StepLimits
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # the oldest first
        self.limits = limits
        self._blocks, self._copy, self._gamma = pool, copy, gamma

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    @property
    def may_admit(self) -> bool:
        return bool(self.waiting) and len(self.running) < self.limits.max_num_seqs

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence by age: one that has been computed before (in another core, say) keeps its place."""
        younger = sum(1 for _ in takewhile(lambda other: other.seq_id > sequence.seq_id, reversed(self.waiting)))
        self.waiting.insert(len(self.waiting) - younger, sequence)

    def remove(self, sequence: Sequence) -> None:
        sequence.release()
        (self.running if sequence in self.running else self.waiting).remove(sequence)

    def schedule(self, *, admit: bool = True) -> list[ScheduledSequence]:
        """The next step; empty only if nothing is waiting or running. ``admit`` False: no sequence joins yet, unless
        none is running."""
        step: list[ScheduledSequence] = []
        budget = self.limits.max_num_batched_tokens
        preempted = False
        self.limits.update(self.running)
        for sequence in list(self.running):
            if sequence not in self.running:
                continue  # preempted for an older one
            scheduled = self._share(sequence, sequence.outstanding, budget, alone=not step)
            if scheduled is None:
                continue
            preempted |= self._make_room(scheduled)
            if sequence in self.running:
                step.append(scheduled)
                budget -= scheduled.num_tokens + scheduled.num_draft_tokens
        admits = (admit or not self.running) and not preempted
        while self.waiting and admits and len(self.running) < self.limits.max_num_seqs:
            scheduled = self._admit(self.waiting[0], budget, alone=not step)
            if scheduled is None:
                break
            step.append(scheduled)
            budget -= scheduled.num_tokens + scheduled.num_draft_tokens
        return step

    @property
    def can_shrink(self) -> bool:
        return self.limits.can_shrink(self.running, self._blocks is not None)

    def shrink(self) -> None:
        """Make the next step smaller, if it can be; the newer half of several sequences is preempted."""
        self.limits.shrink(self.running, self._blocks is not None)
        while len(self.running) > self.limits.max_num_seqs:
            self._preempt(self.running[-1], "memory")

    # -- one sequence's share -----------------------------------------------------------------

    def _share(self, sequence: Sequence, count: int, budget: int, *, alone: bool) -> ScheduledSequence | None:
        """The share of a sequence with ``count`` tokens to compute, within the budget. None: it has to wait.

        ``alone``: it is the first of the step, which always gets something to do. A window is never cut
        to the budget: what a sequence drafts would then depend on what others compute.
        """
        window = self._gamma(sequence, len(self.running))
        if window and count > 1 and self._blocks and sequence.drafts_from_states:
            count, window = count - 1, 0  # computed again, to be drafted from: the newest token waits for that
        if count + window <= budget:
            return ScheduledSequence(sequence, count, window)
        if self._blocks is None or count == 1:
            return ScheduledSequence(sequence, count, window) if alone else None
        part = min(budget, count - 1) if window else min(budget, count)
        return ScheduledSequence(sequence, part, 0) if part > 0 else None

    # -- room in the pool ---------------------------------------------------------------------

    def _make_room(self, scheduled: ScheduledSequence) -> bool:
        """Allocate the slots to write; while the pool has too little, preempt the newest sequence, perhaps this one.
        True if any was preempted."""
        sequence, preempted = scheduled.sequence, False
        while sequence in self.running:
            try:
                if sequence.table and sequence.table.paged:
                    sequence.table.allocate_slots(len(sequence.tokens) + scheduled.num_draft_tokens)
                break
            except PoolExhaustedError:
                self._preempt(self.running[-1], "blocks")
                preempted = True
        return preempted

    def _preempt(self, sequence: Sequence, cause: Shortage) -> None:
        sequence.recorder.emit(Preempted, tokens=sequence.computed, cause=cause)
        sequence.release()
        self.running.remove(sequence)
        self.add(sequence)

    # -- joining -------------------------------------------------------------------------------

    def _admit(self, sequence: Sequence, budget: int, *, alone: bool) -> ScheduledSequence | None:
        """Let ``sequence``, the first in the queue, join if its tokens so far fit in the pool; None: not yet."""
        sharing = self._blocks and sequence.config.paged
        parent = sequence.parent if sharing and sequence.parent in self.running else None
        if parent and not parent.generated:
            return None  # what it shares is about to be computed
        table, found, cached = None, [], 0
        if self._blocks:
            emit, paged = sequence.recorder.emit, sequence.config.paged
            table = new_table(self._blocks, sequence.seq_id, emit, paged=paged, copy=self._copy)
            table.states_behind = sequence.states_lag
            cached, found = self._shared(sequence, parent)
        scheduled = self._share(sequence, len(sequence.tokens) - cached, budget, alone=alone)
        if scheduled is None or not self._fits(scheduled, cached, found):
            return None

        self.waiting.popleft()
        insort(self.running, sequence, key=lambda running: running.seq_id)
        sequence.table = table
        if not sequence.generated:
            first = sequence.report.cached_tokens is None
            sequence.report.cached_tokens = cached if first else min(cached, sequence.report.cached_tokens)
        sequence.recorder.emit(
            Admitted,
            owner=sequence.seq_id,
            running=len(self.running),
            waiting=len(self.waiting),
            cached_tokens=cached,
            live_blocks=tuple(self._blocks.live_blocks()) if self._blocks else (),
            cached_blocks=tuple(self._blocks.cached_blocks()) if self._blocks else (),
        )
        if table:
            if found:
                table.attach_cached_blocks(found, sequence.config.cache_priority)
                table.roll_back(cached, sequence.states_lag)
                table.state = self._blocks.states.use(table.prefix(cached)) if sequence.recurrent else None
            elif cached:
                table.fork_from(parent.table, cached)
            sequence.draft.num_computed = min(cached, parent.draft.num_computed) if parent and not found else cached
            if cached and sequence.states_lag:
                sequence.draft.num_computed = cached + 1
            table.allocate_slots(len(sequence.tokens) + scheduled.num_draft_tokens if table.paged else sequence.end)
        return scheduled

    def _shared(self, sequence: Sequence, parent: Sequence | None) -> tuple[int, list[CachedBlocks]]:
        """The number of tokens that need not be computed, and each group's blocks found by prefix.

        A running ``parent`` shares all of the prompt but its last token; otherwise the blocks found count.
        """
        if parent and not sequence.generated:
            cached, found = min(sequence.prompt.length - 1, parent.computed), []
            if sequence.drafts_from_states:
                cached = min(cached, parent.draft.num_computed - sequence.states_lag)
            if not parent.table.holds(cached):
                return 0, []
        elif sequence.shares_prefixes:
            how = {"with_state": True, "behind": sequence.states_lag} if sequence.recurrent else {}
            found = find_cached_blocks(self._blocks, sequence.tokens, sequence.prefix_root, **how)
            cached = len(found[0]) * self._blocks.block_size if found else 0
        else:
            return 0, []
        if sequence.states_lag:
            # The head reads a token with the hidden states of the one before, which no cache has: so one token is
            # computed again, into a copy of a block in which the head has read it. In recurrent layers, all of that
            # block: their states are kept where blocks end.
            if cached % self._blocks.block_size == 0:
                cached -= self._blocks.block_size if sequence.recurrent else 1
            if cached <= 0 or self._blocks.block_size == 1:
                return 0, []
        return cached, found

    def _fits(self, scheduled: ScheduledSequence, cached: int, found: list[CachedBlocks]) -> bool:
        pool, sequence = self._blocks, scheduled.sequence
        if pool is None:
            return True
        if not sequence.config.paged:
            return pool.has_contiguous(-(-sequence.end // pool.block_size))
        needed = -(-(len(sequence.tokens) + scheduled.num_draft_tokens) // pool.block_size) - cached // pool.block_size
        revived = sum(block is not None and not pool.references(block) for blocks in found for block, _ in blocks)
        return needed * len(pool.groups) <= pool.available - revived
