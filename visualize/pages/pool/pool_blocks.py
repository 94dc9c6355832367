"""The pool, as seen through the events of all its sequences: who has which block, and how full it is."""

from __future__ import annotations

from typing import Any, Literal

from lab.kv_cache.block_pool import Occupancy
from lab.trace.events import (
    Admitted,
    BlockAllocated,
    BlockCopied,
    BlockEvicted,
    BlockFreed,
    BlockShared,
    CacheDropped,
    Event,
    FellBack,
    Finished,
    Preempted,
    StepTimed,
)
from visualize.charts.base import Columns, Patch
from visualize.pages.pool.table_patches import Rows

Mark = Literal["", "found", "copied", "preempted", "evicted"]
"""What just happened to a block: it was found, by its prefix or in another continuation of the prompt; it is a copy of
a shared block; a preempted sequence, the last that had it, gave it back; its prefix was evicted."""

FREE = {"state": "free", "owners": [], "fill": 0, "mark": ""}
"""A block's row on the page: its state, the numbers of its sequences, how many slots hold tokens of a text, its
mark."""


class Blocks:
    """All blocks of a pool. ``owners``: each live block's sequences, and its index in their block tables."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.owners: dict[int, dict[int, int]] = {}
        self.cached: set[int] = set()
        self.tables: dict[int, dict[int, int]] = {}
        self._kept: dict[int, int] = {}  # tokens, by sequence
        self._fill: dict[int, int] = {}
        self._marks: dict[int, Mark] = {}
        self._giving_up: set[int] = set()
        self._elsewhere: set[int] = set()
        self._changed: set[int] = set()
        self._rows = Rows(num_blocks, FREE)

    def take(self, owner: int, event: Event) -> None:
        """Apply an event of sequence ``owner``."""
        if isinstance(event, Finished) and not self.held(owner):
            self._forget(owner)
        if owner in self._elsewhere:
            return
        match event:
            case Admitted():
                self._giving_up.discard(owner)
                self._kept[owner] = event.cached_tokens
                cached = set(event.cached_blocks)  # the engine may have rebuilt the pool while it was idle
                self._changed |= self.cached ^ cached
                self.cached = cached
            case BlockAllocated() | BlockShared() | BlockCopied():
                self._add(owner, event.block, event.index)
                if not isinstance(event, BlockAllocated):
                    self._marks[event.block] = "found" if isinstance(event, BlockShared) else "copied"
            case BlockEvicted():
                self.cached.discard(event.block)
                self._marks[event.block] = "evicted"
            case BlockFreed():
                self._remove(owner, event)
            case Preempted():
                self._giving_up.add(owner)
            case StepTimed():
                self._keep(owner, event.kv_tokens)
            case CacheDropped():
                self._changed |= self.cached
                self.cached.clear()
            case FellBack(part="kv_format"):
                self._elsewhere.add(owner)  # it is in another pool from here on

    def occupancy(self) -> Occupancy:
        live, cached = len(self.owners), len(self.cached)
        return Occupancy(self.num_blocks - live - cached, cached, live)

    def held(self, owner: int) -> int:
        """Blocks in a sequence's table."""
        return len(self.tables.get(owner, ()))

    def used(self) -> float | None:
        """The share of the live blocks' slots that hold tokens of a text; None without a live block."""
        return sum(self._fill.values()) / (len(self._fill) * self.block_size) if self._fill else None

    def patches(self) -> list[Patch]:
        """What changed since the last call. Marks last until the next call."""
        patches = []
        for block in sorted(self._changed | self._marks.keys()):
            patches += self._rows.patches(block, self._row(block))
        self._changed, self._marks = set(self._marks), {}
        return patches

    def columns(self, most: int | None = None) -> Columns:
        """Every block as last sent, or the first ``most`` of them; at first all are free."""
        return self._rows.columns(most)

    def _forget(self, owner: int) -> None:
        """Keep nothing of a sequence that is over: a workshop's pool may see any number of them."""
        self.tables.pop(owner, None)
        self._kept.pop(owner, None)
        self._giving_up.discard(owner)
        self._elsewhere.discard(owner)

    # -- one block ---------------------------------------------------------------------------

    def _add(self, owner: int, block: int, index: int) -> None:
        self.cached.discard(block)
        self.owners.setdefault(block, {})[owner] = index
        self.tables.setdefault(owner, {})[index] = block
        self._level(block)

    def _remove(self, owner: int, event: BlockFreed) -> None:
        block = event.block
        del self.owners[block][owner], self.tables[owner][event.index]
        preempted = owner in self._giving_up
        if not self.owners[block]:
            del self.owners[block], self._fill[block]
            if event.cached:
                self.cached.add(block)
            if preempted:
                self._marks[block] = "preempted"
        else:
            self._level(block)
        if not preempted and self._marks.get(block) == "found":
            del self._marks[block]  # found only to be copied
        self._changed.add(block)

    def _keep(self, owner: int, tokens: int) -> None:
        """Update the fill of the blocks between a sequence's old end and its new one, at ``tokens``."""
        table, size = self.tables.get(owner, {}), self.block_size
        before, self._kept[owner] = self._kept.get(owner, 0), tokens
        first, last = min(before, tokens) // size, max(before, tokens) // size
        for index in [index for index in table if first <= index <= last]:  # a file may claim any number of tokens
            self._level(table[index])

    def _level(self, block: int) -> None:
        """Set a block's fill: of a shared block, that of the sequence with the most tokens in it."""
        size = self.block_size
        self._fill[block] = max(
            min(size, max(0, self._kept.get(owner, 0) - index * size)) for owner, index in self.owners[block].items()
        )
        self._changed.add(block)

    def _row(self, block: int) -> dict[str, Any]:
        owners = list(self.owners.get(block, ()))
        return {
            "state": "live" if owners else "cached" if block in self.cached else "free",
            "owners": owners,
            "fill": self._fill.get(block, 0),
            "mark": self._marks.get(block, ""),
        }
