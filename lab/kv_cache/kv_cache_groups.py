"""KV cache groups: layers of one kind, with a block table of their own.

A layer with a sliding window soon needs a token's keys and values no more, one with full attention needs them to the
end. If a block held all layers, it could never be freed before the text ends. So layers of one kind make up groups of
equally many, and a block holds its tokens in the layers of one group: all groups take blocks of one size from one
pool, and a layer shares its memory with the layers in the same place of the other groups (vLLM's hybrid KV cache
manager; its names). Sinks that are learned scores (gpt-oss) take no slot.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class FullAttentionSpec:
    """Layers in which a token sees all before it."""

    def num_skipped(self, computed: int) -> int:
        """The number of ``computed`` tokens that no later one sees."""
        return 0


@dataclass(frozen=True, slots=True)
class SlidingWindowSpec:
    """Layers in which a token sees ``sliding_window`` positions, its own included."""

    sliding_window: int

    def num_skipped(self, computed: int) -> int:
        return max(0, computed - self.sliding_window + 1)


class KVCacheGroup(NamedTuple):
    """Layers, by number, whose keys and values one block holds."""

    spec: FullAttentionSpec | SlidingWindowSpec
    layers: tuple[int, ...]


ONE_GROUP = (KVCacheGroup(FullAttentionSpec(), ()),)
"""Of a pool whose blocks hold all layers."""


def kv_cache_groups(
    windows: Sequence[int | None], *, shared: bool, exempt: Collection[int] = ()
) -> tuple[KVCacheGroup, ...]:
    """The groups of a model, each of as many layers as its rarest kind has (some of a kind may have fewer). The first
    has full attention, if need be without a layer, unless one group has all.

    Args:
        windows: of each layer the positions that a token sees; None: all, 0: the layer keeps no keys and values.
        shared: a drafter keeps keys and values of its own in the first group's blocks, to the end of a text.
        exempt: layers that take more bytes. The groups have theirs in the same places, whose memory they share.
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        if window != 0:
            kinds.setdefault(window, []).append(layer)
    size = min(map(len, kinds.values()), default=1)
    if shared or len(kinds) > 1:
        kinds.setdefault(None, [])
    groups = []
    for window, layers in sorted(kinds.items(), key=lambda kind: kind[0] is not None):
        spec = SlidingWindowSpec(window) if window else FullAttentionSpec()
        layers.sort(key=lambda layer: layer not in exempt)
        count = max(1, -(-len(layers) // size))
        groups += [KVCacheGroup(spec, tuple(layers[first::count])) for first in range(count)]
    return tuple(groups)
