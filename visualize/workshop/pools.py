"""The pools that everybody shares, as the events of all sequences tell it. Nobody's words are in it."""

from __future__ import annotations

from typing import Any

from lab.kv.cache import PoolSetting
from lab.trace.events import Bonus, Distributions, Event, Finished, Judged, Proposed, Recovered, RunStarted
from visualize.batch.blocks import Blocks
from visualize.batch.sequences import Progress
from visualize.vocabulary import KV_FORMATS

UNTOLD = (Proposed, Judged, Distributions, Recovered, Bonus)
"""The events that are not for here: there are many of them, and what they come to is committed."""


MOST_TOLD = 4096
"""Blocks that are told one by one: more are no squares any more, and each message would be megabytes."""


class SharedPool:
    """A pool and the sequences under way in it.

    Args:
        num_blocks: 0: its sequences keep no cache.
    """

    def __init__(self, name: str, num_blocks: int, block_size: int) -> None:
        self.name = name
        self.blocks = Blocks(num_blocks, block_size)
        self.guests: dict[int, Progress] = {}

    @property
    def running(self) -> int:
        return sum(guest.state == "running" for guest in self.guests.values())

    def take(self, owner: int, event: Event) -> None:
        """Change as an event of one of its sequences says."""
        if isinstance(event, RunStarted):
            self.guests[owner] = Progress(owner, event.sampling["max_tokens"])
        self.blocks.take(owner, event)
        self.guests[owner].take(event)
        if isinstance(event, Finished):
            del self.guests[owner]

    def record(self) -> dict[str, Any]:
        """All of it, JSON-ready. Marks of blocks last until the next time."""
        self.blocks.patches()
        for guest in self.guests.values():
            guest.blocks = self.blocks.held(guest.number)
        return {
            "name": self.name,
            "block_size": self.blocks.block_size,
            "blocks": self.blocks.columns(MOST_TOLD)[0],
            "occupancy": self.blocks.occupancy()._asdict(),
            "guests": [vars(guest) for guest in self.guests.values()],
        }


class SharedPools:
    """Every pool that was used, told apart as the engine does it, and which of them is looked at: the one that is
    shared by most, and among equals the one before."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, PoolSetting], SharedPool] = {}
        self._of: dict[tuple[str, int], SharedPool] = {}  # by model and owner, while it is under way
        self._shown: SharedPool | None = None
        self.done = 0

    def take(self, model: str, owner: int, event: Event) -> None:
        """Change as an event of the engine of ``model`` says."""
        if isinstance(event, RunStarted):
            self._of[model, owner] = self._pool(model, event)
        pool = self._of.get((model, owner))
        if pool is None:
            return  # it began before anybody listened
        pool.take(owner, event)
        if isinstance(event, Finished):
            del self._of[model, owner]
            self.done += event.reason not in ("cancelled", "error")

    def counts(self) -> tuple[int, int]:
        """Sequences that run, and those that wait."""
        running = sum(pool.running for pool in self._pools.values())
        return running, len(self._of) - running

    def shown(self) -> SharedPool | None:
        """The pool to look at; None before there is any."""
        if self._pools:
            self._shown = max(self._pools.values(), key=lambda pool: (len(pool.guests), pool is self._shown))
        return self._shown

    def others(self) -> list[str]:
        """The pools in use beside the one that is looked at, each in a few words."""
        return [
            f"{pool.name}: {pool.running} running, {len(pool.guests) - pool.running} waiting"
            for pool in self._pools.values()
            if pool.guests and pool is not self._shown
        ]

    def _pool(self, model: str, run: RunStarted) -> SharedPool:
        config = run.config | {"num_blocks": run.num_blocks}
        setting = PoolSetting(*(config[name] for name in PoolSetting._fields))
        if (model, setting) not in self._pools:
            for key, pool in list(self._pools.items()):  # whoever comes back to one tells of all that is in it
                if not pool.guests and pool is not self._shown:
                    del self._pools[key]
            self._pools[model, setting] = SharedPool(_named(model, setting), setting.num_blocks, setting.block_size)
        return self._pools[model, setting]


def _named(model: str, setting: PoolSetting) -> str:
    if not setting.num_blocks:
        return f"{model}, no cache"
    parts = [KV_FORMATS[setting.kv_dtype], f"blocks of {setting.block_size}"]
    parts += [] if setting.paged else ["contiguous"]
    parts += ["prefix caching"] * setting.enable_prefix_caching
    return f"{model}, {', '.join(parts)}"
