"""The sequences of a batch: which wait, which run, and how far each has come.

The queue is always in order of arrival: the newest running sequences are preempted first and go back to its front,
where they are older than all that wait.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from lab.trace.events import Admitted, CacheDropped, Committed, Event, FellBack, Finished, Preempted, RunStarted
from visualize.charts.base import Columns, Patch
from visualize.reduce.block_map import Rows
from visualize.text import visible

State = Literal["waiting", "running", "finished", "cancelled", "failed"]
TAIL = 60
"""Most characters of a prompt that are shown: its end, where prompts that share a beginning differ."""


@dataclass
class Progress:
    """Progress of one sequence, without any of its text.

    ``number`` identifies it as the owner of blocks. ``tokens`` of at most ``wanted`` have been written. ``blocks`` are
    in its block table. ``found`` tokens were in the cache when it was last admitted. ``preempted``: how often.
    """

    number: int
    wanted: int
    state: State = "waiting"
    tokens: int = 0
    blocks: int = 0
    found: int = 0
    preempted: int = 0

    def take(self, event: Event) -> None:
        """Apply one of its events."""
        match event:
            case Admitted():
                self.state, self.found = "running", event.cached_tokens
            case Preempted():
                self.state, self.preempted = "waiting", self.preempted + 1
            case CacheDropped() | FellBack(part="kv_format"):  # it waits for a place in another pool
                self.state = "waiting"
            case Committed():
                self.tokens += len(event.token_ids)
            case Finished():
                self.state = {"cancelled": "cancelled", "error": "failed"}.get(event.reason, "finished")


@dataclass(kw_only=True)
class Seen(Progress):
    """A sequence's row on the page."""

    prompt: str


class Sequences:
    """All that have arrived, by number."""

    def __init__(self) -> None:
        self.seen: dict[int, Seen] = {}
        self._rows = Rows()
        self._places: dict[int, int] = {}
        self._changed: dict[int, None] = {}

    def take(self, owner: int, event: Event) -> None:
        """Apply an event of sequence ``owner``."""
        if isinstance(event, RunStarted):
            self._places[owner] = len(self._places)
            prompt = visible(event.prompt if len(event.prompt) <= TAIL else f"…{event.prompt[-TAIL:]}")
            self.seen[owner] = Seen(owner, event.sampling["max_tokens"], prompt=prompt)
        self.seen[owner].take(event)
        self._changed[owner] = None

    def counts(self) -> Counter[State]:
        return Counter(seen.state for seen in self.seen.values())

    def changed(self) -> list[int]:
        """The sequences with an event since the last ``patches``."""
        return list(self._changed)

    def patches(self) -> list[Patch]:
        """The changes since the last call."""
        patches = [
            patch
            for owner in self._changed
            for patch in self._rows.patches(self._places[owner], {**vars(self.seen[owner])})
        ]
        self._changed = {}
        return patches

    @staticmethod
    def columns() -> Columns:
        """The columns of an empty table."""
        return [{}]
