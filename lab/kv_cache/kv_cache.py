"""A cache: blocks, and what their slots hold for a target and a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from lab.backends.gpu.cuda_graphs import Graphs
from lab.config import KVFormat
from lab.kv_cache.attention_metadata import SdpaChoice
from lab.kv_cache.block_pool import BlockPool, Eviction
from lab.kv_cache.formats import Kernels, KVStorage

if TYPE_CHECKING:
    from lab.models.language_model import LanguageModel


class PoolSetting(NamedTuple):
    """What requests must agree on to share a pool, with ``num_blocks`` settled. 0 blocks: no cache."""

    kv_dtype: KVFormat
    paged: bool
    block_size: int
    num_blocks: int
    enable_prefix_caching: bool
    eviction: Eviction
    prefill_attention: SdpaChoice
    kernels: Literal["auto", "reference"]
    cuda_graphs: bool
    torch_compile: bool


class Cache:
    """A pool of blocks and what its slots hold.

    Target and draft have a storage each and share the blocks: position i of a sequence has
    one slot number, under which the target keeps its keys and values and the draft its own.
    Kernels that fail for one of them are given up for both, and so are CUDA graphs.

    Args:
        cuda_graphs: capture steps that kernels compute.
    """

    def __init__(
        self,
        setting: PoolSetting,
        target: LanguageModel,
        draft: LanguageModel | None,
        *,
        kernels: bool = False,
        cuda_graphs: bool = False,
    ) -> None:
        self.blocks = BlockPool(setting.num_blocks, setting.block_size, eviction=setting.eviction)
        self.kernels = Kernels(kernels)
        self.graphs = Graphs() if cuda_graphs else None
        self.target = _storage(target, setting, self.kernels, self.graphs)
        self.draft = _storage(draft, setting, self.kernels, self.graphs) if draft else None

    def copy_block(self, source: int, destination: int) -> None:
        """Copy all slots of a block, the target's and the draft's."""
        size = self.blocks.block_size
        here, there = (slice(block * size, (block + 1) * size) for block in (source, destination))
        for storage in (self.target, self.draft):
            if storage:
                storage.copy(here, there)


def _storage(model: LanguageModel, setting: PoolSetting, kernels: Kernels, graphs: Graphs | None) -> KVStorage:
    return KVStorage(
        setting.kv_dtype,
        setting.num_blocks * setting.block_size,
        layers=model.layers,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        dtype=model.dtype,
        device=model.layer_devices,
        kernels=kernels,
        graphs=graphs,
    )
