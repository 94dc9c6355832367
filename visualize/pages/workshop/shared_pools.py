"""The pools that everybody shares, as seen through the events of all sequences. Nobody's text is in them."""

from typing import Any

from lab.kv_cache.kv_cache import CacheConfig
from lab.settings import KV_DTYPES
from lab.trace.events import Bonus, Distributions, Event, Finished, Proposed, Recovered, RunStarted, Verified
from visualize.reduce.block_map import BlockMap
from visualize.reduce.sequence_table import Progress

IGNORED = (Proposed, Verified, Distributions, Recovered, Bonus)
"""The events that are ignored here: there are many of them, and ``Committed`` has their outcome."""


MOST_BLOCKS = 4096
"""Most blocks that are sent one by one: more cannot be drawn as squares, and each message would take megabytes."""


class SharedPool:
    """A pool and the sequences in progress in it.

    Args:
        num_blocks: 0: its sequences have no cache.
    """

    def __init__(self, name: str, num_blocks: int, block_size: int) -> None:
        self.name = name
        self.blocks = BlockMap(num_blocks, block_size, shown=MOST_BLOCKS)
        self.guests: dict[int, Progress] = {}

    @property
    def running(self) -> int:
        return sum(guest.state == "running" for guest in self.guests.values())

    def take(self, owner: int, event: Event) -> None:
        """Apply an event of one of its sequences."""
        if isinstance(event, RunStarted):
            self.guests[owner] = Progress(owner, event.sampling["max_tokens"])
        self.blocks.take(owner, event)
        self.guests[owner].take(event)
        if isinstance(event, Finished):
            del self.guests[owner]

    def record(self) -> dict[str, Any]:
        """The whole state, JSON-ready. Marks of blocks last until the next call."""
        self.blocks.patches()
        for guest in self.guests.values():
            guest.blocks = self.blocks.held(guest.number)
        return {
            "name": self.name,
            "block_size": self.blocks.block_size,
            "blocks": self.blocks.columns()[0],
            "occupancy": self.blocks.occupancy()._asdict(),
            "guests": [vars(guest) for guest in self.guests.values()],
        }


class SharedPools:
    """The pools, distinguished as the engine distinguishes them, and which of them is shown: the one with the most
    sequences, and among equals the one shown before."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, CacheConfig], SharedPool] = {}
        self._of: dict[tuple[str, int], SharedPool] = {}  # by model and owner, while in progress
        self._shown: SharedPool | None = None
        self.done = 0

    def take(self, model: str, owner: int, event: Event) -> None:
        """Apply an event of ``model``'s engine."""
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
        """The numbers of running and of waiting sequences."""
        running = sum(pool.running for pool in self._pools.values())
        return running, len(self._of) - running

    def shown(self) -> SharedPool | None:
        """The pool to show; None before there is any."""
        if self._pools:
            self._shown = max(self._pools.values(), key=lambda pool: (len(pool.guests), pool is self._shown))
        return self._shown

    def others(self) -> list[str]:
        """The pools in use besides the one shown, each in a few words."""
        return [
            f"{pool.name}: {pool.running} running, {len(pool.guests) - pool.running} waiting"
            for pool in self._pools.values()
            if pool.guests and pool is not self._shown
        ]

    def _pool(self, model: str, run: RunStarted) -> SharedPool:
        config = run.config | {"num_blocks": run.num_blocks}
        setting = CacheConfig(*(config[name] for name in CacheConfig._fields))
        if (model, setting) not in self._pools:
            for key, pool in list(self._pools.items()):  # the next sequence in one says what it caches
                if not pool.guests:
                    del self._pools[key]
            self._pools[model, setting] = SharedPool(_named(model, setting), setting.num_blocks, setting.block_size)
        return self._pools[model, setting]


def _named(model: str, setting: CacheConfig) -> str:
    if not setting.num_blocks:
        return f"{model}, no cache"
    parts = [f"KV dtype {KV_DTYPES[setting.kv_dtype]}", f"blocks of {setting.block_size}"]
    parts += [] if setting.paged else ["contiguous"]
    parts += ["prefix caching"] * setting.enable_prefix_caching
    return f"{model}, {', '.join(parts)}"
