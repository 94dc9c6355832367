"""The bytes that a model's pass moves and the FLOPs that it computes, counted from lengths without asking the device.

Bytes are the traffic that no cache can save ("compulsory" in Williams et al. 2009): the weights once for all tokens of
the pass, the output head's only if logits are wanted, and every KV slot of a sequence once as it is stored, read for
past tokens and written for new ones; of a layer with a sliding window, those within it. FLOPs are those of matrix
products: two per weight and token, and four per element of a head's vector for each position that a new token sees,
itself included. (Kaplan et al., 2001.08361, section 2.1, count two for each position of the context, however many of
them a token sees: the same on average over a text as long as the context, where a token sees half of it.)

Of a mixture's experts those are read that one of the pass's tokens goes to. Only the device knows how many: they are
added when the step is over (``ExpertsRead``).

Left out because they are small in comparison: activations, the rows looked up in an embedding table, norms, rotary
embedding, softmax.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch

from lab.backends.interface import Backend, HeadBackend
from lab.kv_cache.attention_metadata import SdpaChoice
from lab.kv_cache.storage import KVStorage
from lab.trace.roofline import PassCost


class Span(NamedTuple):
    """The tokens at positions ``start`` to ``stop`` - 1 of a sequence; logits are wanted for the last ``keep``."""

    start: int
    stop: int
    keep: int


def _seen(start: int, stop: int, window: int) -> int:
    """Positions that the tokens at ``start`` to ``stop`` - 1 see, all together: each its own and those before it, but
    ``window`` at most."""
    growing = min(stop, max(start, window))  # from this one on, a token sees a whole window
    return (growing - start) * (start + 1 + growing) // 2 + (stop - growing) * window


class ExpertsRead(NamedTuple):
    """Experts that passes have read: a ``count`` on the device, [] int64, and the bytes of one."""

    count: torch.Tensor
    bytes_each: int

    @property
    def cost(self) -> PassCost:
        """Waits for the device."""
        return PassCost(int(self.count) * self.bytes_each)


class PassCostModel:
    """Counts the cost of one model's passes over ``storage``, but for experts. None: no cache, so that nothing is
    stored or read."""

    def __init__(self, backend: Backend | HeadBackend, storage: KVStorage | None) -> None:
        model = backend.model
        self._packed = backend.reads_packed_weights
        self._weights, self._head_weights = model.layer_weights, model.head_weights
        self._head_bytes = model.head_bytes
        self._counter, self._experts = model.expert_counter, model.experts
        self._bytes = model.weight_bytes - self._head_bytes - (self._experts.bytes if self._experts else 0)
        self._position_flops = 4 * model.kv_heads * model.query_groups * model.head_dim
        windows: dict[int | None, list[int]] = {}
        for layer, window in enumerate(model.windows):
            if window != 0:
                windows.setdefault(window, []).append(layer)
        self._cached = storage is not None
        self._windows = [
            (window, len(layers), storage.slot_bytes(layers) if storage else 0) for window, layers in windows.items()
        ]

    def experts_read(self) -> list[ExpertsRead]:
        """Experts read since the last call, by passes of this model or of one that shares its layers."""
        counted = self._counter and self._experts  # the first layers of a mixture may have none
        return [ExpertsRead(self._counter.take(), self._experts.bytes_each)] if counted else []

    def of(self, spans: Iterable[Span], sdpa: SdpaChoice = "auto") -> PassCost:
        """The cost of one pass."""
        spans = list(spans)
        moved, flops = self._weights_read(any(span.keep for span in spans), sdpa), 0
        for start, stop, keep in spans:
            flops += 2 * ((stop - start) * self._weights + keep * self._head_weights)
            for window, layers, slot_bytes in self._windows:
                first = max(0, start + 1 - (window or stop))  # of the slots that are read or written
                moved += (stop - first) * slot_bytes
                flops += layers * _seen(start, stop, window or stop) * self._position_flops
        return PassCost(moved, flops)

    def decoding(self, spans: list[Span], windows: list[int]) -> PassCost:
        """The cost of decoding ``windows[s]`` tokens ahead after each span: a pass over the spans, then a pass for each
        token that is fed back. Without a cache, each pass is over everything before it as well."""
        total, ahead = self.of(spans), range(1, max(windows))
        pairs = list(zip(spans, windows, strict=True))
        if not self._cached:
            longer = ([Span(start, stop + i, 1) for (start, stop, _), window in pairs if window > i] for i in ahead)
            return sum(map(self.of, longer), total)
        moved = len(ahead) * self._weights_read(True)
        flops = 2 * sum(window - 1 for window in windows) * (self._weights + self._head_weights)
        for size, layers, slot_bytes in self._windows:
            seen = sum(min(stop + i, size or stop + i) for (_, stop, _), window in pairs for i in range(1, window))
            moved += seen * slot_bytes
            flops += layers * seen * self._position_flops
        return total + PassCost(moved, flops)

    def _weights_read(self, heads: bool, sdpa: SdpaChoice = "auto") -> int:
        """Bytes of the weights that a pass reads, the output head's included if there are ``heads``."""
        moved = self._bytes + heads * self._head_bytes
        if self._packed and sdpa == "auto":  # two bytes a number less than in float32
            moved -= 2 * (self._weights + heads * self._head_weights)
        return moved
