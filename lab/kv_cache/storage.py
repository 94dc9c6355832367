"""The slots of a model in the format that is asked for, and their bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate

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
        exempt: Collection[int] = (),
    ) -> None:
        """``kv_sources``: of layers that read another's keys and values, the other. ``exempt``: layers in the model's
        own dtype."""
        devices = [device] * layers if isinstance(device, torch.device) else device
        places = {layer: (i, place) for i, one in enumerate(groups) for place, layer in enumerate(one.layers)}
        self.group_of = [places.get(layer, (0, layer))[0] for layer in range(layers)]
        self.num_groups = len(groups)
        sources = kv_sources or {}
        own = [layer for layer, where in enumerate(devices) if where is not None and layer not in sources]
        in_place: dict[int, dict[KVFormat, list[int]]] = {}
        for layer in own:
            forms = in_place.setdefault(places.get(layer, (0, layer))[1], {})
            forms.setdefault("auto" if layer in exempt else kv_format, []).append(layer)
        self._read: dict[int, LayerStorage] = {}
        for forms in in_place.values():
            where = next(devices[layers[0]] for layers in forms.values())
            made = _in_one_memory([*forms], slots, kv_heads, head_dim, dtype, where, kv_vectors)
            self._read |= {layer: made[form] for form, layers in forms.items() for layer in layers}
        self.layers: list[LayerStorage | SharedLayer | None] = [self._read.get(layer) for layer in range(layers)]
        for layer, source in sources.items():
            self._read[layer] = self._read[source]
            self.layers[layer] = SharedLayer(self._read[source])

    def slot_bytes(self, layers: Iterable[int]) -> int:
        """Bytes of one slot in these layers, of which none is without attention, as they are read."""
        return sum(tensor[0].nbytes for layer in layers for tensor in self._read[layer].tensors)

    def copy(self, source: slice, destination: slice) -> None:
        """Copy a run of slots onto another of equal length, as they are stored."""
        for layer in dict.fromkeys(filter(None, self.layers)):
            for tensor in layer.tensors:
                tensor[destination] = tensor[source]


def _in_one_memory(formats: Sequence[KVFormat], slots: int, *sizes: object) -> dict[KVFormat, LayerStorage]:
    """A storage in each format, of which only one uses a slot at a time: several lie in the same memory."""
    if len(formats) == 1:
        return {formats[0]: FORMATS[formats[0]](slots, *sizes)}
    made = {form: FORMATS[form](1, *sizes) for form in formats}
    starts = {
        form: [*accumulate((-(-tensor.nbytes // 8) * 8 for tensor in layer.tensors), initial=0)]  # aligned
        for form, layer in made.items()
    }
    width = max(ends[-1] for ends in starts.values())
    memory = torch.empty(slots, width, dtype=torch.uint8, device=next(iter(made.values())).tensors[0].device)
    for form, layer in made.items():
        layer.tensors = tuple(
            memory[:, start : start + one.nbytes].view(one.dtype).unflatten(1, one.shape[1:])
            for start, one in zip(starts[form], layer.tensors, strict=False)
        )
    return made


def bytes_per_token(
    kv_format: KVFormat,
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    kv_vectors: int = 2,
    exempt: int = 0,
) -> int:
    """Bytes of one token in all layers: layers x KV heads x 2 (a key and a value) x bytes of a vector. With latent
    attention (MLA) x 1: the value is part of the key. ``exempt``: layers among them in the model's own dtype."""
    of_layer, own = (sum(FORMATS[form].vector_bytes(head_dim, dtype)) for form in (kv_format, "auto"))
    return kv_heads * kv_vectors * ((layers - exempt) * of_layer + exempt * own)
