"""The slots of a model in the format that is asked for, and their bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from lab.config import KVFormat
from lab.errors import ConfigError
from lab.kv_cache.float8 import Float8HeadLayer, Float8Layer
from lab.kv_cache.formats import Int4Layer, Int8Layer, PlainLayer, QuantisedLayer
from lab.kv_cache.kv_cache_groups import ONE_GROUP, KVCacheGroup
from lab.kv_cache.rotated import RotatedInt4Layer
from lab.kv_cache.turboquant import TurboQuantLayer

LayerStorage = PlainLayer | QuantisedLayer
FORMATS: dict[KVFormat, type[LayerStorage]] = {
    "auto": PlainLayer,
    "int8": Int8Layer,
    "int4": Int4Layer,
    "fp8": Float8Layer,
    "fp8_per_token_head": Float8HeadLayer,
    "int4_per_token_head": RotatedInt4Layer,
    "turboquant_3bit_nc": TurboQuantLayer,
}
KERNEL_FORMATS: tuple[KVFormat, ...] = ("auto", "int8", "int4")
"""What the kernels in C and of Triton read and write (``parts``). Torch computes the others."""


def formats_for(head_dim: int) -> list[KVFormat]:
    """The formats that can store vectors of so many numbers."""
    return [name for name, form in FORMATS.items() if _stores(form, head_dim)]


def _stores(form: type[LayerStorage], head_dim: int) -> bool:
    try:
        form.vector_bytes(head_dim, torch.float32)
    except ConfigError:
        return False
    return True


def parts(layer: LayerStorage) -> tuple[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """A layer's format, and its keys, values and the scales of both, each [slots, kv_heads, numbers of a head].

    Plain storage has no scales; the numbers stand in for them and are never read as such.
    """
    if isinstance(layer, PlainLayer):
        return "plain", layer.tensors * 2
    numbers, scales = layer.tensors
    return "int4" if isinstance(layer, Int4Layer) else "int8", (*numbers.unbind(1), *scales.unbind(1))


class SharedLayer:
    """Another layer's keys and values, read by a layer that has none of its own."""

    tensors = ()

    def __init__(self, of: LayerStorage) -> None:
        self.read = of.read

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Nothing: the other layer has stored them."""


class KVStorage:
    """The slots of one model: a ``LayerStorage`` per layer (None: it has no attention), each on a device of its own.

    With several ``groups``, the layers in the same place of each are one storage: a block is of one group.

    Attributes:
        group_of: each layer's group.
    """

    def __init__(
        self,
        kv_format: KVFormat,
        slots: int,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | Sequence[torch.device | None],
        kv_vectors: int = 2,
        kv_sources: Mapping[int, int] | None = None,
        groups: Sequence[KVCacheGroup] = ONE_GROUP,
    ) -> None:
        """``kv_sources``: of layers that read another's keys and values, the other."""
        form = FORMATS[kv_format]
        devices = [device] * layers if isinstance(device, torch.device) else device
        places = {layer: (i, place) for i, one in enumerate(groups) for place, layer in enumerate(one.layers)}
        self.group_of = [places.get(layer, (0, layer))[0] for layer in range(layers)]
        self.num_groups = len(groups)
        sources = kv_sources or {}
        shared: dict[int, LayerStorage] = {}
        self.layers: list[LayerStorage | SharedLayer | None] = []
        for layer, where in enumerate(devices):
            place = places.get(layer, (0, layer))[1]
            if layer in sources:
                self.layers.append(SharedLayer(self.layers[sources[layer]]))
            elif where is None:
                self.layers.append(None)
            else:
                if place not in shared:
                    shared[place] = form(slots, kv_heads, head_dim, dtype, where, kv_vectors)
                self.layers.append(shared[place])

    def slot_bytes(self, layers: int) -> int:
        """Bytes of one slot in the first ``layers`` layers."""
        return sum(tensor[0].nbytes for layer in self.layers[:layers] if layer for tensor in layer.tensors)

    def copy(self, source: slice, destination: slice) -> None:
        """Copy a run of slots onto another of equal length, as they are stored."""
        for layer in dict.fromkeys(filter(None, self.layers)):
            for tensor in layer.tensors:
                tensor[destination] = tensor[source]


def bytes_per_token(
    kv_format: KVFormat, *, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, kv_vectors: int = 2
) -> int:
    """Bytes of one token in all layers: layers x KV heads x 2 (a key and a value) x bytes of a vector. With latent
    attention (MLA) x 1: the value is part of the key."""
    return layers * kv_heads * kv_vectors * sum(FORMATS[kv_format].vector_bytes(head_dim, dtype))
