"""From a run to the settings on the Lab's page that make it again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.models.devices import has_gpu
from lab.models.loader import EMBEDDED_DRAFTS, EMBEDDED_TARGET
from lab.registry import Pair
from lab.trace.events import RunStarted
from visualize.reduce.settings_text import USUAL, WORDS, every_setting, matters, value_in_words
from visualize.run_settings import LINK, LOGPROBS, Settings, from_link
from visualize.text import visible
from visualize.url_settings import Link

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
    """The settings of a run, and a sentence for each that the page cannot have, if it did anything.

    ``pairs``: the model pairs that this server offers; ``link``: one with them.
    """
    had = every_setting(run.config, run.sampling)
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
    return settings, notices + _missing(had)


def _missing(had: Mapping[str, Any]) -> list[str]:
    """A sentence for each setting that did something in the run and has no control on the page."""
    held = {*_CALLED.values(), "num_blocks", "cuda_graphs"}  # these two follow rules of their own
    if had["logprobs"] == LOGPROBS:
        held.add("logprobs")  # what the page records, if it does; a program may record more or fewer
    return [
        f"The run's {label} cannot be set here: {value_in_words(key, had[key])}."
        for key, (label, _) in WORDS.items()
        if key not in held and had[key] != USUAL[key] and matters(key, had)
    ]


def _made(pair: Pair, run: RunStarted) -> bool:
    """Whether a run is one of this pair's; one without a draft may be that of several."""
    target = EMBEDDED_TARGET if pair.target is None else _called(pair.target)
    draft = f"{EMBEDDED_TARGET}-{pair.draft}" if pair.draft in EMBEDDED_DRAFTS else _called(pair.draft)
    return run.target == target and run.draft in (None, draft)


def _called(where: str | Path | None) -> str | None:
    """What runs call a model: a folder's own name, or the hub id."""
    return Path(os.path.abspath(where)).name if isinstance(where, Path) else where
