"""A cache: blocks, and what their slots hold for a target and a draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import torch

from lab.config import SLIDING_WINDOW, KVFormat, layer_list
from lab.errors import ConfigError
from lab.kv_cache.attention_metadata import SdpaChoice
from lab.kv_cache.block_pool import BlockPool, Eviction
from lab.kv_cache.kv_cache_groups import ONE_GROUP, KVCacheGroup, kv_cache_groups
from lab.kv_cache.storage import KVStorage, bytes_per_token


class CacheConfig(NamedTuple):
    """Settings that requests must agree on to share a cache, with ``num_blocks`` settled. 0 blocks: no cache."""

    kv_dtype: KVFormat
    kv_cache_dtype_skip_layers: str
    paged: bool
    block_size: int
    num_blocks: int
    enable_prefix_caching: bool
    eviction: Eviction
    prefill_attention: SdpaChoice
    kernels: Literal["auto", "reference"]
    cuda_graphs: bool
    torch_compile: bool


class ModelSizes(Protocol):
    """Those of a model that say which layers are exempt."""

    layers: int
    windows: Sequence[int | None]


class CachedModel(Protocol):
    """The sizes of a model that a cache needs: those of its keys and values, and where each layer keeps them (None: it
    keeps none). ``kv_vectors``: of a token and KV head, a key and a value, or 1 that is both (latent attention).
    ``kv_sources``: of layers that read another's keys and values, the other. ``windows``: the positions that a token
    sees in each (``kv_cache_groups``)."""

    layers: int
    kv_heads: int
    head_dim: int
    kv_vectors: int
    kv_sources: Mapping[int, int]
    dtype: torch.dtype
    layer_devices: Sequence[torch.device | None]
    windows: Sequence[int | None]


def num_kv_layers(model: CachedModel) -> int:
    """Layers with keys and values of their own."""
    return sum(device is not None for device in model.layer_devices) - len(model.kv_sources)


def exempt_layers(model: ModelSizes, skipped: str) -> frozenset[int]:
    """The layers named by ``kv_cache_dtype_skip_layers``. Raises ConfigError: the model has no such layer."""
    named = layer_list(skipped)
    windowed = {layer for layer, window in enumerate(model.windows) if window and SLIDING_WINDOW in named}
    numbers = {one for one in named if one != SLIDING_WINDOW}
    if numbers and max(numbers) >= model.layers:
        raise ConfigError(
            f"kv_cache_dtype_skip_layers names layer {max(numbers)}, and the model has {model.layers}, counted from 0. "
            f"Its first and last are '0 {model.layers - 1}'."
        )
    return frozenset(numbers | windowed)


def token_bytes(model: CachedModel, kv_format: KVFormat, skipped: str = "") -> int:
    """Bytes of one token in all layers that keep keys and values of their own. ``skipped``: as ``exempt_layers``."""
    own = {layer for layer, device in enumerate(model.layer_devices) if device is not None} - model.kv_sources.keys()
    exempt = len(exempt_layers(model, skipped) & own)
    return bytes_per_token(kv_format, layers=len(own), exempt=exempt, dtype=model.dtype, **slot_sizes(model))


def slot_sizes(model: object) -> dict[str, int]:
    """The sizes that decide about the bytes of a slot of one layer, besides its dtype and format."""
    return {name: getattr(model, name) for name in ("kv_heads", "head_dim", "kv_vectors")}


def new_storage(
    model: CachedModel,
    kv_format: KVFormat,
    slots: int,
    groups: tuple[KVCacheGroup, ...] = ONE_GROUP,
    skipped: str = "",
) -> KVStorage:
    """Empty slots for a model. ``skipped``: as ``exempt_layers``."""
    exempt = exempt_layers(model, skipped)
    where = {"dtype": model.dtype, "device": model.layer_devices, "kv_sources": model.kv_sources}
    return KVStorage(kv_format, slots, layers=model.layers, **slot_sizes(model), **where, groups=groups, exempt=exempt)


def groups_of(target: CachedModel, *, shared: bool, paged: bool, skipped: str = "") -> tuple[KVCacheGroup, ...]:
    """The KV cache groups of a target. There is one group without paged blocks, where none is freed, and where two
    could not share memory: with layers on several devices, or that share keys and values. ``shared``: as
    ``kv_cache_groups``, ``skipped``: as ``exempt_layers``."""
    devices = {device for device in target.layer_devices if device is not None}
    if not paged or len(devices) > 1 or target.kv_sources or not any(target.windows):
        return ONE_GROUP
    return kv_cache_groups(target.windows, shared=shared, exempt=exempt_layers(target, skipped))


class KVCache:
    """A pool of blocks and what its slots hold. Target and draft have a storage each and share the blocks: position i
    of a sequence has one slot number, under which the target keeps its keys and values and the draft its own; and so
    have ``heads`` that draft from the target's hidden states, by kind. Of a target with several groups, the first one's
    slots are meant. ``max_states``: as ``BlockPool``."""

    def __init__(
        self,
        config: CacheConfig,
        target: CachedModel,
        draft: CachedModel | None,
        heads: Mapping[str, CachedModel] | None = None,
        max_states: int = 0,
    ) -> None:
        skipped = config.kv_cache_dtype_skip_layers
        groups = groups_of(target, shared=bool(draft or heads), paged=config.paged, skipped=skipped)
        how = {"eviction": config.eviction, "groups": groups, "max_states": max_states}
        self.blocks = BlockPool(config.num_blocks, config.block_size, **how)
        self.target = _storage(target, config, groups, skipped)
        self.draft = _storage(draft, config) if draft else None
        self.heads = {kind: _storage(head, config) for kind, head in (heads or {}).items()}

    def copy_block(self, source: int, destination: int) -> None:
        size = self.blocks.block_size
        here, there = (slice(block * size, (block + 1) * size) for block in (source, destination))
        for storage in (self.target, self.draft, *self.heads.values()):
            if storage:
                storage.copy(here, there)


def _storage(
    model: CachedModel, config: CacheConfig, groups: tuple[KVCacheGroup, ...] = ONE_GROUP, skipped: str = ""
) -> KVStorage:
    return new_storage(model, config.kv_dtype, config.num_blocks * config.block_size, groups, skipped)
