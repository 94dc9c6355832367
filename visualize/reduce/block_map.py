"""The pool of cache blocks, as seen through one run's events.

A run's events cover its own blocks only; of the others it knows what ``Admitted`` said.
So the map is exact for the run's own blocks at every step, and for the rest as of the
run's admission.
"""

from __future__ import annotations

from dataclasses import replace

from lab.trace.events import (
    Admitted,
    BlockAllocated,
    BlockCopied,
    BlockEvicted,
    BlockFreed,
    BlockShared,
    BlockStored,
    CacheDropped,
    Preempted,
)
from lab.util.messages import counted
from visualize.charts.base import Patch
from visualize.charts.block_charts import CACHED, FREE, OTHERS, SHOWN, Block, change

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


class PoolView:
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

    def ended(self) -> None:
        """End the run: the blocks it gave back stay visible where no other sequence has them."""
        for number, block in self._freed.items():
            if number not in self.blocks:
                self.blocks[number] = replace(block, state="free", stored=False, vain=0)

    def level(self, kv_tokens: int, guesses: int = 0) -> None:
        """End a step after which the run keeps ``kv_tokens``: its blocks are filled that far, in block table order.
        The step wrote the token before the ``guesses`` and the guesses themselves; rejected ones lie beyond what is
        kept, some of them in blocks that were given back at once."""
        written = max(kv_tokens, self._kept + 1 + guesses) if guesses else kv_tokens
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
        """How many of the block's slots hold one of the first ``tokens`` of its sequence."""
        return min(self.block_size, max(0, tokens - block.index * self.block_size))

    def patches(self) -> list[Patch]:
        """What changed since the last call. A block past the pool's end belongs to another pool: the plain
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
