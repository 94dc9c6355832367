"""The KV cache's blocks as events change them: of one run, and of a pool with all its requests.

A run's events cover its own blocks only; of the others it knows what ``Admitted`` said. So its map is exact for the
run's own blocks at every step, and for the rest as of the run's admission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from lab.kv_cache.block_pool import Occupancy
from lab.trace.events import (
    Admitted,
    BlockAllocated,
    BlockCopied,
    BlockEvicted,
    BlockFreed,
    BlockShared,
    BlockStored,
    CacheDropped,
    Event,
    FellBack,
    Finished,
    Preempted,
    StepTimed,
)
from lab.util.messages import counted
from visualize.charts.base import Columns, Patch
from visualize.charts.block_charts import CACHED, FREE, OTHERS, SHOWN, Block, change

Row = Mapping[str, Any]


class Rows:
    """Rows as last sent, by number; a new row gets the next number. The first ``count``, maybe millions, equal
    ``alike`` until something else is sent for them."""

    def __init__(self, count: int = 0, alike: Row | None = None) -> None:
        self._count, self._alike = count, alike
        self._told: dict[int, Row] = {}

    def patches(self, number: int, row: Row) -> list[Patch]:
        """The patches that turn the row as last sent into ``row``."""
        was = self._told.get(number, self._alike if number < self._count else None)
        self._told[number] = row
        if was is None:
            return [[0, None, row]]
        changed = {name: value for name, value in row.items() if was[name] != value}
        return [[0, number, changed]] if changed else []

    def columns(self, most: int | None = None) -> Columns:
        """The first ``count`` rows, or the first ``most`` of those, as last sent."""
        rows = [self._told.get(number, self._alike) for number in range(self._count)[:most]]
        return [{name: [row[name] for row in rows] for name in (rows[0] if rows else ())}]


PoolEvent = (
    Admitted
    | BlockAllocated
    | BlockShared
    | BlockCopied
    | BlockStored
    | BlockEvicted
    | BlockFreed
    | CacheDropped
    | Preempted
)
"""The events that change the pool."""


class RunBlocks:
    """Blocks that are not free, by number, and what was last drawn of them."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.blocks: dict[int, Block] = {}
        self._drawn: dict[int, Block] = {}
        self._freed: dict[int, Block] = {}  # the run's own, freed since the last step ended
        self._kept = 0  # tokens kept at the end of the last step

    def take(self, event: PoolEvent) -> None:
        """Apply an event."""
        match event:
            case Admitted():
                self.blocks = dict.fromkeys(event.live_blocks, OTHERS) | dict.fromkeys(event.cached_blocks, CACHED)
                self._freed.clear()
            case BlockAllocated():
                self.blocks[event.block] = Block("live", event.owner, event.index, event.fill)
            case BlockShared():
                full = event.fill == self.block_size  # a tail may be shared too, until it is written to
                self.blocks[event.block] = Block(
                    "live", event.owner, event.index, event.fill, "found", full, event.references
                )
            case BlockCopied():
                self.blocks[event.block] = Block("live", event.owner, event.index, event.fill, "copied")
            case BlockStored():
                self.blocks[event.block] = replace(self.blocks[event.block], stored=True)
            case BlockEvicted():
                self.blocks.pop(event.block, None)
            case BlockFreed():
                if block := self.blocks.pop(event.block, None):
                    self._freed[event.block] = block
                if event.references:
                    self.blocks[event.block] = OTHERS
                elif event.cached:
                    self.blocks[event.block] = CACHED
            case Preempted():  # its blocks are given back now, though their events may follow
                own = {number: block for number, block in self.blocks.items() if block.owner is not None}
                for number, block in own.items():
                    self.blocks[number] = OTHERS if block.references > 1 else CACHED if block.stored else FREE
            case CacheDropped():
                self.blocks = {number: block for number, block in self.blocks.items() if block.state != "cached"}

    def _own(self) -> list[Block]:
        return [block for block in self.blocks.values() if block.owner is not None and block.state == "live"]

    def table(self) -> list[int]:
        """The numbers of the run's own blocks, in the order of its block table."""
        own = [(block.index, number) for number, block in self.blocks.items() if block.owner is not None]
        return [number for _, number in sorted(own)]

    def ended(self) -> None:
        """End the run: the blocks it gave back stay visible where no other sequence has them."""
        for number, block in self._freed.items():
            if number not in self.blocks:
                self.blocks[number] = replace(block, state="free", stored=False, vain=0)

    def level(self, kv_tokens: int, guesses: int = 0) -> None:
        """End a step after which the run keeps ``kv_tokens``: its blocks are filled that far, in block table order.
        The step wrote the token before the ``guesses`` and the guesses themselves; rejected ones lie beyond what is
        kept, some of them in blocks that were given back at once."""
        self.written = written = max(kv_tokens, self._kept + 1 + guesses) if guesses else kv_tokens
        self._kept = kv_tokens
        self.blocks = {number: block for number, block in self.blocks.items() if block.state != "free"}
        for number, block in self.blocks.items():
            if block.owner is not None:
                fill, end = self._reached(block, kv_tokens), self._reached(block, written)
                if (fill, end - fill) != (block.fill, block.vain):
                    self.blocks[number] = replace(block, fill=fill, vain=end - fill)
        for number, block in self._freed.items():
            vain = self._reached(block, written)
            if vain and number not in self.blocks:
                self.blocks[number] = replace(block, state="free", fill=0, vain=vain, stored=False)
        self._freed.clear()

    def _reached(self, block: Block, tokens: int) -> int:
        """The number of the block's slots hold one of the first ``tokens`` of its sequence."""
        return min(self.block_size, max(0, tokens - block.index * self.block_size))

    def patches(self) -> list[Patch]:
        """The changes since the last call. A block past the pool's end belongs to another pool: the plain
        one, after a quantised one failed."""
        patches = []
        for number in self._drawn | self.blocks:
            was, now = self._drawn.get(number, FREE), self.blocks.get(number, FREE)
            if was is not now and number < self.num_blocks:
                patches += change(number, was, now, self.block_size)
        self._drawn = dict(self.blocks)
        return patches

    def caption(self) -> str:
        if not self.num_blocks:
            return "no cache, no blocks"
        blocks = self.blocks.values()
        states = [block.state for block in blocks]
        given = sum(block.state == "free" and block.fill > 0 for block in blocks)
        own = [block.fill for block in self._own()]
        live, cached = states.count("live"), states.count("cached")
        return (
            (
                f"{counted(given, 'block')} used, all freed (pale)"
                if given and not live
                else f"{live} of {self.num_blocks} in use"
            )
            + (f", {sum(own) / (len(own) * self.block_size):.0%} full" if own else "")
            + (f", {given} freed (pale)" if given and live else "")
            + (f" · {cached} cached" if cached else "")
            + (f" · first {SHOWN} shown" if self.num_blocks > SHOWN else "")
        )


Mark = Literal["", "found", "copied", "preempted", "evicted"]
"""What just happened to a block: it was found, by its prefix or in another continuation of the prompt; it is a copy of
a shared block; a preempted sequence, the last that had it, gave it back; its prefix was evicted."""

FREE_ROW = {"state": "free", "owners": [], "fill": 0, "mark": ""}
"""A block's row on the page: its state, the numbers of its sequences, how many slots hold tokens of a text, its
mark."""


class PoolBlocks:
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
        self._rows = Rows(num_blocks, FREE_ROW)

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
        """The changes since the last call. Marks last until the next call."""
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
