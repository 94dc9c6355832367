"""The caches of an engine: one for each setting in use, sized by the memory there is."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from lab.config import ConfigError, EngineConfig
from lab.kv.blocks import BlockPool, Occupancy
from lab.kv.storage import KVStorage, bytes_per_token
from lab.pair.models import LanguageModel

# Share of the free memory a cache may take when num_blocks is None, and the most it is
# useful to take while it serves a handful of sequences: so many full contexts.
MEMORY_SHARE = {"cuda": 0.9, "cpu": 0.25}
FULL_CONTEXTS = 8


@dataclass(frozen=True)
class Cache:
    """A pool of blocks and what its slots hold.

    Target and draft have a storage each and share the blocks: position i of a
    sequence has one slot, in which the target keeps its keys and values and the draft its own.
    """

    blocks: BlockPool
    target: KVStorage
    draft: KVStorage | None


class Caches:
    """Caches by setting. One that nobody uses any more makes room for the next."""

    def __init__(self, target: LanguageModel, draft: LanguageModel | None) -> None:
        self._target = target
        self._draft = draft
        self._by_setting: dict[tuple, Cache] = {}

    def get(self, config: EngineConfig) -> Cache:
        """The cache for these settings, made if there is none.

        Raises:
            ConfigError: so many blocks do not fit in the free memory.
        """
        setting = _setting(config)
        if setting not in self._by_setting:
            self._refuse_too_many(config)
            in_use = {key: cache for key, cache in self._by_setting.items() if cache.blocks.occupancy().live}
            self._by_setting = in_use
            num_blocks = config.num_blocks or self.default_num_blocks(config)
            storages = [_storage(model, config, num_blocks) for model in self._models(config)]
            draft = storages[1] if len(storages) > 1 else None
            in_use[setting] = Cache(BlockPool(num_blocks, config.block_size), storages[0], draft)
        return self._by_setting[setting]

    def token_bytes(self, config: EngineConfig) -> int:
        """Bytes one token takes: all layers, keys, values and scales, the draft's too. 0 without a cache."""
        if not config.kv_cache:
            return 0
        return sum(
            bytes_per_token(config.kv_dtype, layers=m.layers, kv_heads=m.kv_heads, head_dim=m.head_dim, dtype=m.dtype)
            for m in self._models(config)
        )

    def default_num_blocks(self, config: EngineConfig) -> int:
        """Blocks when num_blocks is None: a share of the free memory, at most 8 full contexts. 0 without a cache."""
        if not config.kv_cache:
            return 0
        if _setting(config) in self._by_setting:
            return self._by_setting[_setting(config)].blocks.num_blocks
        share = MEMORY_SHARE.get(self._target.device.type, 0.25)
        fitting = int(self._free_bytes() * share) // self._block_bytes(config)
        useful = FULL_CONTEXTS * -(-self._target.context_length // config.block_size)
        return max(1, min(fitting, useful))

    def occupancy(self) -> Occupancy:
        """Blocks of all caches by state."""
        counts = [cache.blocks.occupancy() for cache in self._by_setting.values()]
        return Occupancy(*(sum(state) for state in zip(*counts, strict=True))) if counts else Occupancy(0, 0, 0)

    def _refuse_too_many(self, config: EngineConfig) -> None:
        fitting = self._free_bytes() // self._block_bytes(config)
        if config.num_blocks and config.num_blocks > fitting:
            raise ConfigError(
                f"num_blocks={config.num_blocks:,} does not fit: the free memory holds {fitting:,} blocks of "
                f"{config.block_size} tokens here. Choose fewer, or leave num_blocks at None."
            )

    def _block_bytes(self, config: EngineConfig) -> int:
        return config.block_size * self.token_bytes(config)

    def _free_bytes(self) -> int:
        device = self._target.device
        if device.type != "cuda":
            return psutil.virtual_memory().available
        # What torch holds back for reuse is free too: an idle cache that was dropped, say.
        held_back = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held_back

    def _models(self, config: EngineConfig) -> list[LanguageModel]:
        return [self._target, self._draft] if config.speculative == "draft" else [self._target]


def _setting(config: EngineConfig) -> tuple:
    """What decides whether two runs can share a cache."""
    return config.kv_dtype, config.block_size, config.num_blocks, config.speculative


def _storage(model: LanguageModel, config: EngineConfig, num_blocks: int) -> KVStorage:
    return KVStorage(
        config.kv_dtype,
        num_blocks * config.block_size,
        layers=model.layers,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        dtype=model.dtype,
        device=model.device,
    )
