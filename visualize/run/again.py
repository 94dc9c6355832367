"""From a run to the settings on the Lab's page that make it again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from lab.config import EngineConfig, SamplingParams
from lab.engines import Pair
from lab.here import has_gpu
from lab.pair.loading import EMBEDDED_DRAFTS, EMBEDDED_TARGET
from lab.trace.events import RunStarted
from visualize.link import Link
from visualize.run.settings import LINK, Settings, from_link
from visualize.text import visible

_CALLED = {
    "cache": "kv_cache",
    "kv_format": "kv_dtype",
    "paged": "paged",
    "prefix_caching": "enable_prefix_caching",
    "speculation": "speculative",
    "early_exit_layer": "early_exit_layer",
    "synthetic_rate": "synthetic_acceptance_rate",
    "gamma": "num_speculative_tokens",
    "adaptive_window": "adaptive_window",
    "block_size": "block_size",
    "eviction": "eviction",
    "cache_priority": "cache_priority",
    "kernels": "kernels",
    "torch_compile": "torch_compile",
    "prefill_attention": "prefill_attention",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "seed": "seed",
    "max_tokens": "max_tokens",
}
"""The page's settings that a run has under another name or the same."""


def again(run: RunStarted, pairs: Mapping[str, Pair], link: Link = LINK) -> tuple[Settings, list[str]]:
    """The settings of a run, and a sentence for each that the page cannot have. A run from a file may predate a
    setting, and then has its default.

    ``pairs``: the model pairs that this server offers; ``link``: one with them.
    """
    had = asdict(EngineConfig()) | asdict(SamplingParams()) | run.config | run.sampling
    wanted = {name: had[key] for name, key in _CALLED.items() if had[key] is not None}
    wanted |= {"prompt": run.prompt, "distributions": had["logprobs"] > 0}
    if had["kv_cache"] and had["num_blocks"] is not None:
        wanted["pool_size"] = had["num_blocks"] * had["block_size"]
    if has_gpu():  # without one there is nothing to switch off
        wanted["cuda_graphs"] = had["cuda_graphs"]
    pair = next((name for name, pair in pairs.items() if _made(pair, run)), None)
    settings, notices = from_link(
        {name: str(value) for name, value in wanted.items()} | ({"pair": pair} if pair else {}), link, pairs, of="run"
    )
    if not pair:
        models = " and ".join(visible(name) for name in (run.target, run.draft) if name)
        notices.append(f"The run's models cannot be chosen here: {models}.")
    return settings, notices


def _made(pair: Pair, run: RunStarted) -> bool:
    """Whether a run is one of this pair's; one without a draft may be that of several."""
    target = EMBEDDED_TARGET if pair.target is None else _called(pair.target)
    draft = f"{EMBEDDED_TARGET}-{pair.draft}" if pair.draft in EMBEDDED_DRAFTS else _called(pair.draft)
    return run.target == target and run.draft in (None, draft)


def _called(where: str | Path | None) -> str | None:
    """What runs call a model: a folder's own name, or the hub id."""
    return Path(os.path.abspath(where)).name if isinstance(where, Path) else where
