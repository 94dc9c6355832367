"""CUDA graphs to capture before they are needed."""

from __future__ import annotations

from collections.abc import Iterator

from lab.backends.gpu.cuda_graphs import SHORTEST_CONTEXT, Bucket
from lab.config import EngineConfig
from lab.kv_cache.formats import KVStorage
from lab.kv_cache.kv_cache import Cache
from lab.models.language_model import LanguageModel


def graphs_ahead(
    cache: Cache,
    target: LanguageModel,
    draft: LanguageModel | None,
    config: EngineConfig,
    sequences: int,
    longest: int,
) -> Iterator[tuple[LanguageModel, Bucket, KVStorage]]:
    """The graphs that up to ``sequences`` requests like ``config``, of up to ``longest`` tokens each, need.

    The target decodes single tokens and verifies whole windows; a draft model reads one token, or two after a
    fully accepted round. Early exits and windows cut short are captured on first use.
    """
    wanted = [(target, cache.target, 1)]
    if config.speculative != "off":
        wanted.append((target, cache.target, config.num_speculative_tokens + 1))
    if config.speculative == "draft":
        wanted += [(draft, cache.draft, 1), (draft, cache.draft, 2)]
    for most in _powers_of_two(1, sequences):
        for context in _powers_of_two(SHORTEST_CONTEXT, longest):
            for model, storage, new in wanted:
                if bucket := Bucket.of(most, new, context):
                    yield model, bucket, storage


def _powers_of_two(first: int, last: int) -> list[int]:
    """``first``, twice that and so on, up to the first that is not less than ``last``."""
    powers = [first]
    while powers[-1] < last:
        powers.append(2 * powers[-1])
    return powers
