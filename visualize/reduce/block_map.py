"""The blocks of a KV cache as events change them: one map for the Lab, the Pool and the Room."""

from collections.abc import Mapping, Sequence
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
    Proposed,
    StepTimed,
)
from lab.util.messages import counted
from visualize.charts.base import Columns, Patch

Row = Mapping[str, Any]


class Rows:
    """Rows as last sent, by number; a new row gets the next number. The first ``count``, maybe millions, equal
    ``alike`` until something else is sent for them."""

    def __init__(self, count: int = 0, alike: Row | None = None) -> None:
        self._count, self._alike = count, alike
        self._reported: dict[int, Row] = {}

    def patches(self, number: int, row: Row) -> list[Patch]:
        """The patches that turn the row as last sent into ``row``."""
        was = self._reported.get(number, self._alike if number < self._count else None)
        self._reported[number] = row
        if was is None:
            return [[0, None, row]]
        changed = {name: value for name, value in row.items() if was[name] != value}
        return [[0, number, changed]] if changed else []

    def columns(self) -> Columns:
        """The first ``count`` rows as last sent."""
        rows = [self._reported.get(number, self._alike) for number in range(self._count)]
        return [{name: [row[name] for row in rows] for name in (rows[0] if rows else ())}]


SHOWN = 1024
"""Most squares that are drawn."""

Mark = Literal["", "found", "copied", "preempted", "evicted", "slid"]
"""What just happened to a block: it was found, by its prefix or in another continuation of the prompt; it is a copy of
a shared block; a preempted sequence, the last that had it, gave it back; its prefix was evicted; its tokens slid out of
the window."""

Place = tuple[int, int]
"""A KV cache group, and an index in its block table."""

FREE_ROW = {
    "state": "free",
    "owners": [],
    "index": 0,
    "references": 0,
    "fill": 0,
    "vain": 0,
    "stored": False,
    "window": 0,
    "mark": "",
}


class BlockMap:
    """All blocks of a pool, and the rows by which ``static/block_grid.js`` draws them.

    ``take`` every event in order. ``columns`` are the rows as last sent, at first all free; ``patches``, once a frame,
    bring them up to date. A row is one block:

        state    "live": in a block table. "cached": free to take, but its tokens can still be found. "free".
        owners   the numbers of the sequences that hold it. A live block without any is another run's.
        index    its place in their block tables.
        window   positions that a token sees in the layers whose keys and values it holds; 0: all.
        references  sequences that held it when it was found (``alone``); 0: it was not.
        fill     slots that hold tokens of a text. Of a free block: those it had when the run ended (``alone``); pale.
        vain     slots after those that the last step wrote for rejected draft tokens (``alone``), perhaps in a block
                 that was freed at once.
        stored   true for a live block whose prefix can be found by others.
        mark     what just happened to it (``Mark``), for one frame; of a run ``alone``, "found" and "copied" stay.

    Args:
        alone: the events are those of one run. What others hold is known as of the run's admission.
        shown: most rows that are sent.
        windows: of the KV cache groups (``RunStarted.group_windows``).

    Attributes:
        owners: each live block's sequences, and its place in their block tables.
        tables: each sequence's blocks, by place.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        alone: bool = False,
        shown: int = SHOWN,
        windows: Sequence[int | None] = (),
    ) -> None:
        self.num_blocks, self.block_size, self._alone = num_blocks, block_size, alone
        self._windows = windows
        self.owners: dict[int, dict[int, Place]] = {}
        self.tables: dict[int, dict[Place, int]] = {}
        self.cached: set[int] = set()
        self._others: set[int] = set()  # live blocks of other runs
        self._stored: set[int] = set()
        self._kept: dict[int, int] = {}  # tokens, by sequence
        self._fill: dict[int, int] = {}
        self._vain: dict[int, int] = {}
        self._proposed = 0  # draft tokens of a run alone, in this step
        self._freed: dict[int, Place] = {}  # blocks of a run alone that were freed since its last step
        self._references: dict[int, int] = {}
        self._marks: dict[int, Mark] = {}
        self._giving_up: set[int] = set()
        self._elsewhere: set[int] = set()
        self._changed: set[int] = set()
        self._shown = min(num_blocks, shown)
        self._rows = Rows(self._shown, FREE_ROW)

    def take(self, owner: int, event: Event) -> None:
        """Apply an event of sequence ``owner``."""
        if owner in self._elsewhere and not isinstance(event, Finished):
            return
        match event:
            case Admitted():
                self._admit(owner, event)
            case BlockAllocated() | BlockShared() | BlockCopied():
                self._add(owner, event)
            case BlockStored():
                if event.block not in self.owners:
                    raise KeyError(event.block)  # the events contradict each other
                self._stored.add(event.block)
                self._changed.add(event.block)
            case BlockEvicted():
                self.cached.discard(event.block)
                self._marks[event.block] = "evicted"
            case Preempted():  # its blocks are freed now, though their events follow
                self._giving_up.add(owner)
                for place, block in [*self.tables.get(owner, {}).items()]:
                    self._remove(owner, block, place, cached=block in self._stored)
            case BlockFreed():
                self._free(owner, event)
            case Proposed():
                self._proposed += self._alone
            case StepTimed():
                self._keep(owner, event.kv_tokens)
            case CacheDropped():
                self._changed |= self.cached
                self.cached.clear()
            case FellBack(part="kv_format") if not self._alone:
                self._elsewhere.add(owner)  # it is in another pool from here on
            case Finished():
                self._end(owner)

    def occupancy(self) -> Occupancy:
        live, cached = len(self.owners) + len(self._others), len(self.cached)
        return Occupancy(max(0, self.num_blocks - live - cached), cached, live)

    def held(self, owner: int) -> int:
        """Blocks in a sequence's table."""
        return len(self.tables.get(owner, ()))

    def used(self) -> float | None:
        """The share of the held blocks' slots that hold tokens of a text; None without such a block."""
        filled = [self._fill[block] for block in self.owners]
        return sum(filled) / (len(filled) * self.block_size) if filled else None

    def caption(self) -> str:
        """The number of blocks in each state."""
        if not self.num_blocks:
            return "no cache, no blocks"
        free, cached, live = self.occupancy()
        pale = sum(block not in self.owners for block in self._fill)
        if pale and not live:
            return f"{counted(pale, 'block')} used, all freed (pale)" + f" · {cached} cached" * bool(cached)
        full = "" if (used := self.used()) is None else f", {used:.0%} full"
        if windowed := sum(self._window(block) > 0 for block in self.owners):
            full = f", {windowed} of them in sliding windows{full}"
        cut = f" · first {self._shown} shown" if self._shown < self.num_blocks else ""
        return f"{live} in use{full}{f', {pale} freed (pale)' * bool(pale)} · {cached} cached · {free} free{cut}"

    def patches(self) -> list[Patch]:
        """The changes since the last call."""
        patches = []
        for block in sorted(self._changed | self._marks.keys()):
            if block < self._shown:  # one past the pool's end belongs to another, to which a quantised cache fell back
                patches += self._rows.patches(block, self._row(block))
        self._changed = set(self._marks)
        lasting = ("found", "copied") if self._alone else ()
        self._marks = {block: mark for block, mark in self._marks.items() if mark in lasting}
        return patches

    def columns(self) -> Columns:
        """Every block's row as last sent; at first all are free."""
        return self._rows.columns()

    # -- sequences -----------------------------------------------------------------------------

    def _admit(self, owner: int, event: Admitted) -> None:
        self._giving_up.discard(owner)
        self._freed.clear()
        self._proposed = 0
        self._kept[owner] = event.cached_tokens
        others = set(event.live_blocks) - self.owners.keys() if self._alone else set()
        cached = set(event.cached_blocks)  # the engine may have rebuilt the pool while it was idle
        self._changed |= (self.cached ^ cached) | (self._others ^ others)
        self.cached, self._others = cached, others

    def _keep(self, owner: int, tokens: int) -> None:
        """End a step after which a sequence has ``tokens``: update the blocks between its old end and its new one. The
        step wrote the token before its draft tokens and these; the rejected ones lie beyond its end."""
        table, size = self.tables.get(owner, {}), self.block_size
        before, self._kept[owner] = self._kept.get(owner, 0), tokens
        first, last = min(before, tokens) // size, max(before, tokens) // size
        for place in [place for place in table if first <= place[1] <= last]:  # a file may claim any number of tokens
            self._level(table[place])
        self._changed |= self._vain.keys()
        self._vain.clear()
        if self._proposed:
            written, self._proposed = max(tokens, before + 1 + self._proposed), 0
            freed = {place: block for block, place in self._freed.items() if self._state(block) == "free"}
            for place, block in (freed | table).items():
                if vain := self._reached(place, written) - self._reached(place, tokens):
                    self._vain[block] = vain
                    self._changed.add(block)
        self._freed.clear()

    def _end(self, owner: int) -> None:
        """End a sequence. The blocks that a run alone freed show how full they were. Of others nothing is kept: a
        workshop's pool may see any number of them."""
        if self._alone:
            self._changed |= self._vain.keys() | self._freed.keys()
            self._vain.clear()
            fill = {block: self._reached(place, self._kept.get(owner, 0)) for block, place in self._freed.items()}
            self._fill |= {block: slots for block, slots in fill.items() if slots and self._state(block) == "free"}
        if not self.held(owner):
            self.tables.pop(owner, None)
            self._kept.pop(owner, None)
            self._giving_up.discard(owner)
            self._elsewhere.discard(owner)

    # -- one block -----------------------------------------------------------------------------

    def _add(self, owner: int, event: BlockAllocated | BlockShared | BlockCopied) -> None:
        block = event.block
        self.cached.discard(block)
        self._others.discard(block)
        self._vain.pop(block, None)
        self._stored.discard(block)
        place = event.group, event.index
        self.owners.setdefault(block, {})[owner] = place
        self.tables.setdefault(owner, {})[place] = block
        if isinstance(event, BlockShared):
            self._marks[block] = "found"
            self._references[block] = event.references if self._alone else 0
            if event.fill == self.block_size:  # a tail may be shared too, until it is written to
                self._stored.add(block)
        elif isinstance(event, BlockCopied):
            self._marks[block] = "copied"
        self._level(block)

    def _free(self, owner: int, event: BlockFreed) -> None:
        if owner not in self._giving_up:
            self._remove(owner, event.block, (event.group, event.index), cached=event.cached)
            if event.slid_out and event.block not in self.owners:
                self._marks[event.block] = "slid"
        elif event.block not in self.owners:  # it was removed when the sequence was preempted
            (self.cached.add if event.cached else self.cached.discard)(event.block)
        if self._alone and event.references:
            self.cached.discard(event.block)
            self._others.add(event.block)
        self._changed.add(event.block)

    def _remove(self, owner: int, block: int, place: Place, *, cached: bool) -> None:
        del self.owners[block][owner], self.tables[owner][place]
        preempted = owner in self._giving_up
        if self._alone:
            self._freed[block] = place
            self._marks.pop(block, None)
        elif not preempted and self._marks.get(block) == "found":
            del self._marks[block]  # found only to be copied
        if self.owners[block]:
            self._level(block)
        else:
            del self.owners[block], self._fill[block]
            self._references.pop(block, None)
            self._stored.discard(block)
            if cached:
                self.cached.add(block)
            if preempted:
                self._marks[block] = "preempted"
        self._changed.add(block)

    def _level(self, block: int) -> None:
        """Set a block's fill: of a shared block, that of the sequence with the most tokens in it."""
        owners = self.owners[block].items()
        self._fill[block] = max(self._reached(place, self._kept.get(owner, 0)) for owner, place in owners)
        self._changed.add(block)

    def _reached(self, place: Place, tokens: int) -> int:
        """The slots of a table's entry that hold one of the first ``tokens`` of its sequence."""
        return min(self.block_size, max(0, tokens - place[1] * self.block_size))

    def _window(self, block: int) -> int:
        """That of the layers whose keys and values a live block holds; 0: none."""
        group = min(self.owners.get(block, {}).values(), default=(0, 0))[0]
        return self._windows[group] or 0 if group < len(self._windows) else 0

    def _state(self, block: int) -> str:
        if block in self.owners or block in self._others:
            return "live"
        return "cached" if block in self.cached else "free"

    def _row(self, block: int) -> dict[str, Any]:
        owners = self.owners.get(block, {})
        return {
            "state": self._state(block),
            "owners": list(owners),
            "index": min(owners.values(), default=(0, 0))[1],
            "references": self._references.get(block, 0),
            "fill": self._fill.get(block, 0),
            "vain": self._vain.get(block, 0),
            "stored": block in self._stored and block in self.owners,
            "window": self._window(block),
            "mark": self._marks.get(block, ""),
        }
