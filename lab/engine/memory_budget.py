"""The memory that an engine's caches take and may take."""

from collections import Counter
from collections.abc import Iterable

import torch

from lab.config import EngineConfig
from lab.errors import ConfigError, PromptError
from lab.kv_cache.kv_cache import (
    CacheConfig,
    CachedModel,
    exempt_layers,
    groups_of,
    num_kv_layers,
    slot_sizes,
    token_bytes,
)
from lab.kv_cache.kv_cache_groups import ONE_GROUP, KVCacheGroup
from lab.kv_cache.storage import bytes_per_token
from lab.models.language_model import LanguageModel
from lab.models.recurrent_layers import STATES
from lab.util.device_memory import free_bytes
from lab.util.messages import counted

MEMORY_SHARE = {"cuda": 0.9, "cpu": 0.25}
"""Share of free memory that all caches together may take."""
LEFT_BYTES = {"cuda": 128 * 2**20}
"""What caches leave on a device at least, for a step: activations, logits, graphs, and cuBLAS's workspace (32 MiB on an
H100). With 3 MiB left, a Llama 1B could read no prompt on an H200; with 60 it could, in small chunks and without
graphs."""
KEPT_STATES = 128
"""Recurrent states that are kept with prefixes at most: two each of 64 sequences."""
FULL_CONTEXTS = 8
"""The full contexts that a pool has room for at most when num_blocks is None."""


class Budget:
    """The memory for all caches of an engine. ``limit``: bytes; None: a share of what is free when first asked for, so
    that no device is filled beyond that share. Less once a pool has turned out not to fit (``lower``)."""

    def __init__(
        self, target: LanguageModel, draft: LanguageModel | None, limit: int | None = None, max_num_seqs: int = 1
    ) -> None:
        self._target, self._max_num_seqs = target, max_num_seqs
        self._own = {"draft": draft, **target.heads}
        self._models = [target, *filter(None, self._own.values())]
        self._limit = limit

    @property
    def limit(self) -> int:
        if self._limit is None:
            self._limit = _limit(self._models)
        return self._limit

    @property
    def leaves_enough(self) -> bool:
        devices = {device for model in self._models for device in model.layer_devices if device is not None}
        devices = {device for device in devices if device.type in LEFT_BYTES}
        return all(free_bytes(device) >= LEFT_BYTES[device.type] for device in devices)

    @property
    def max_num_seqs(self) -> int:
        """Most sequences that run at once: as many as were asked for, or as have room for their recurrent states in
        half of the memory."""
        state = self._states(self._own["draft"])
        return max(1, min(self._max_num_seqs, self.limit // 2 // (STATES * state))) if state else self._max_num_seqs

    @property
    def running_states(self) -> int:
        """Most recurrent states of the sequences that run at once."""
        return STATES * self.max_num_seqs

    @property
    def max_states(self) -> int:
        """Most recurrent states that are kept with prefixes, in a quarter of the memory at most."""
        state = self._states(None)  # none of a draft's
        return max(1, min(KEPT_STATES, self.limit // 4 // state)) if state else 0

    def lower(self, limit: int) -> None:
        """Lower the limit to ``limit`` bytes, after a pool within it did not fit."""
        self._limit = limit

    def cache_config(self, config: EngineConfig) -> CacheConfig:
        """The cache that a request asks for.

        Raises:
            ConfigError: ``num_blocks`` exceeds the budget, or an exempt layer is not there.
        """
        size = config.block_size
        computed = config.prefill_attention, config.kernels, config.cuda_graphs, config.torch_compile
        if not config.kv_cache:
            return CacheConfig("auto", "", False, size, 0, False, "lru", *computed)
        block_bytes = max(1, size * self._slot_bytes(config, self._own.values()))  # 0 without attention
        fitting = max(0, self.limit - self._states_bytes(config)) // block_bytes
        if config.num_blocks and config.num_blocks > fitting:
            raise ConfigError(
                f"num_blocks={config.num_blocks:,} does not fit: the memory for caches holds "
                f"{counted(fitting, 'block')} of {counted(size, 'token')} here. Choose fewer, or leave num_blocks at "
                "None."
            )
        most = FULL_CONTEXTS * self.blocks_for(self._target.context_length, size, config.paged)
        blocks = config.num_blocks or max(1, min(fitting, most))
        shared = config.enable_prefix_caching, config.eviction
        return CacheConfig(config.kv_dtype, _skipped(config), config.paged, size, blocks, *shared, *computed)

    def allows(self, config: EngineConfig) -> bool:
        try:
            self.cache_config(config)
        except ConfigError:
            return False
        return True

    def refuse_misfit(self, prompt_tokens: int, end: int, config: EngineConfig) -> None:
        """Raises PromptError, with both numbers, for a sequence of up to ``end`` tokens that the whole pool could not
        hold; and ConfigError, as ``cache_config`` does."""
        cache = self.cache_config(config)
        needed, size = self.blocks_for(end, cache.block_size, cache.paged), cache.block_size
        if cache.num_blocks and needed > cache.num_blocks:
            groups = len(self._groups(cache.paged))
            each = f", one for each of {groups} groups of layers" if groups > 1 else ""
            room = cache.num_blocks // groups * size
            raise PromptError(
                f"{end:,} tokens (a prompt of {prompt_tokens:,} and the output) need {needed:,} cache blocks of "
                f"{size}{each}; the pool has {cache.num_blocks:,}, so room for {room:,}. Use a larger pool "
                "(num_blocks), or fewer tokens (max_tokens)."
            )

    def group_windows(self, config: EngineConfig) -> tuple[int | None, ...]:
        """Of each KV cache group the positions that a token sees; None: all. Empty: blocks hold all layers."""
        groups = self._groups(config.paged and config.kv_cache)
        return () if groups == ONE_GROUP else tuple(getattr(one.spec, "sliding_window", None) for one in groups)

    def blocks_for(self, tokens: int, block_size: int, paged: bool) -> int:
        """Blocks of a sequence whose tokens are all kept, in each group."""
        return -(-tokens // block_size) * len(self._groups(paged))

    def cache_bytes(self, cache: CacheConfig) -> int:
        slots = cache.num_blocks * cache.block_size
        return slots * self._slot_bytes(cache, self._own.values()) + (self._states_bytes(cache) if slots else 0)

    def _states_bytes(self, config: EngineConfig | CacheConfig) -> int:
        """Of all sequences that run at once, and of those kept with prefixes."""
        kept = self.max_states * self._states(None) if config.enable_prefix_caching else 0
        return self.running_states * self._states(self._own["draft"]) + kept

    def state_bytes(self, config: EngineConfig) -> int:
        """Bytes of a request's recurrent state, beside its blocks: its draft model's included."""
        return self._states(self._own["draft"] if config.speculative == "draft" else None) if config.kv_cache else 0

    def _states(self, draft: LanguageModel | None) -> int:
        return sum(model.recurrent.state_bytes for model in (self._target, draft) if model and model.recurrent)

    def token_bytes(self, config: EngineConfig) -> int:
        """Bytes per token of a request: keys, values and scales of all layers, those of its drafter included."""
        if not config.kv_cache:
            return 0
        own = self._own.get(config.speculative)
        drafted = token_bytes(own, config.kv_dtype) if own else 0
        return token_bytes(self._target, config.kv_dtype, _skipped(config)) + drafted

    def slot_bytes(self, config: EngineConfig) -> int:
        """Bytes of a slot: ``token_bytes``, but of the layers of one KV cache group alone."""
        own = self._own.get(config.speculative)
        return self._slot_bytes(config, [own]) if config.kv_cache else 0

    def _groups(self, paged: bool) -> tuple[KVCacheGroup, ...]:
        return groups_of(self._target, shared=any(self._own.values()), paged=paged)

    def _slot_bytes(self, config: EngineConfig | CacheConfig, own: Iterable[CachedModel | None]) -> int:
        """``own``: drafters that keep keys and values of their own."""
        target, form, skipped = self._target, config.kv_dtype, _skipped(config)
        kept = token_bytes(target, form, skipped)
        groups = groups_of(target, shared=any(self._own.values()), paged=config.paged, skipped=skipped)
        if groups != ONE_GROUP:
            exempt = exempt_layers(target, skipped)
            most = max(len(group.layers) for group in groups), max(len(exempt & {*group.layers}) for group in groups)
            sizes = dict(zip(("layers", "exempt"), most, strict=True)) | slot_sizes(target)
            kept = bytes_per_token(form, dtype=target.dtype, **sizes)
        return kept + sum(token_bytes(model, form) for model in own if model)


def _skipped(config: EngineConfig | CacheConfig) -> str:
    """The exempt layers, where others are quantised."""
    return config.kv_cache_dtype_skip_layers if config.kv_dtype != "auto" else ""


def _limit(models: list[CachedModel]) -> int:
    """Bytes for all caches. Every token takes some on each device that computes layers; the first to be full limits."""
    on_device: Counter[torch.device] = Counter()
    for model in models:
        for device in filter(None, model.layer_devices):
            on_device[device] += token_bytes(model, "auto") // num_kv_layers(model)
    if not on_device:  # states alone
        return int(_for_caches(models[0].device))
    whole = on_device.total()
    return int(min(_for_caches(device) * whole / part for device, part in on_device.items()))


def _for_caches(device: torch.device) -> float:
    free = free_bytes(device)
    return max(0, min(free * MEMORY_SHARE.get(device.type, 0.25), free - LEFT_BYTES.get(device.type, 0)))
