"""A run's settings in words: all that matter, those that changed since the previous run, or as few as tell it from
others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lab.config import EngineConfig, SamplingParams
from lab.trace.events import RunStarted
from visualize.text import visible
from visualize.vocabulary import ATTENTIONS, DRAFTERS, KERNELS, KV_FORMATS, SWITCH

_WORDS: dict[str, tuple[str, dict[Any, str]]] = {
    "kv_cache": ("KV cache", SWITCH),
    "kv_dtype": ("KV format", KV_FORMATS),
    "paged": ("paged blocks", SWITCH),
    "enable_prefix_caching": ("prefix caching", SWITCH),
    "speculative": ("speculation", {key: drafter.label for key, drafter in DRAFTERS.items()}),
    "num_speculative_tokens": ("guesses a round", {}),
    "adaptive_window": ("adaptive window", SWITCH),
    "early_exit_layer": ("early-exit layers", {None: "a quarter"}),
    "synthetic_acceptance_rate": ("acceptance rate", {}),
    "block_size": ("block size", {}),
    "num_blocks": ("blocks in the pool", {None: "as memory allows"}),
    "eviction": ("eviction", {"lru": "least recently used", "priority": "lowest priority"}),
    "cache_priority": ("cache priority", {}),
    "kernels": ("kernels", KERNELS),
    "cuda_graphs": ("CUDA graphs", SWITCH),
    "torch_compile": ("torch.compile", SWITCH),
    "prefill_attention": ("prompt attention", ATTENTIONS),
}
"""The engine's settings in words, and their values where those are not their own words."""
_SAMPLED: dict[str, tuple[str, dict[Any, str]]] = {
    "temperature": ("temperature", {}),
    "top_k": ("top-k", {}),
    "top_p": ("top-p", {}),
    "seed": ("seed", {}),
    "max_tokens": ("max tokens", {}),
    "logprobs": ("recorded distributions", {0: "off", 5: "on"}),
}
"""The sampling parameters that the page sets, in words."""
_MAIN = ("kv_dtype", "paged", "speculative", "num_speculative_tokens")
NEEDS = {
    "num_speculative_tokens": DRAFTERS.keys() - {"off"},
    "adaptive_window": DRAFTERS.keys() - {"off"},
    "early_exit_layer": {"early_exit"},
    "synthetic_acceptance_rate": {"synthetic"},
}
"""Settings that matter only with some drafters."""
OF_BLOCKS = {"kv_dtype", "paged", "block_size", "num_blocks", "enable_prefix_caching", "eviction", "cache_priority"}
"""Settings that matter only with a KV cache."""


def matters(key: str, config: dict[str, Any]) -> bool:
    """Whether a setting does anything in a run with ``config``."""
    return config["speculative"] in NEEDS.get(key, DRAFTERS) and (config["kv_cache"] or key not in OF_BLOCKS)


def difference(before: RunStarted, now: RunStarted) -> str:
    """Which settings changed since the previous run, in words. A run from a file may predate a setting, and then has
    its default."""
    usual = asdict(EngineConfig()) | asdict(SamplingParams())
    was_of, now_of = (usual | run.config | run.sampling for run in (before, now))
    switched = [
        f"{label} {names.get(was_of[key], was_of[key])} → {names.get(now_of[key], now_of[key])}"
        for key, (label, names) in (_WORDS | _SAMPLED).items()
        if was_of[key] != now_of[key] and matters(key, now_of)
    ]
    if before.target != now.target:
        switched.append(f"target {visible(before.target)} → {visible(now.target)}")
    if before.draft and now.draft and before.draft != now.draft:
        switched.append(f"draft model {_draft(before)} → {_draft(now)}")
    if before.prompt != now.prompt:
        switched.append("another prompt")
    return small(switched)


def small(switched: Sequence[str]) -> str:
    """What the small figures are, and which settings were ``switched``."""
    said = f". Changed: {', '.join(switched)}." if switched else ", with the same settings."
    return f"Small: the previous run{said}"


def _draft(run: RunStarted) -> str:
    """The draft's name without its target's, which the embedded drafts have as a prefix."""
    return visible((run.draft or "").removeprefix(f"{run.target}-"))


def described(config: dict[str, Any], sampling: dict[str, Any]) -> str:
    """A run's settings in words: the main ones, and any others that matter to it and are not the default."""
    return ", ".join(_told(config, _MAIN) + [f"{name} {sampling[name]}" for name in ("temperature", "seed")])


def in_short(config: dict[str, Any]) -> str:
    """A run's settings in a few words: those that are not the default, except how large the pool is."""
    return ", ".join(_told(config | {"num_blocks": None})) or "KV cache on"


def _told(config: dict[str, Any], always: Sequence[str] = ()) -> list[str]:
    """Settings in words: those that matter to a run and are not the default, and those that are ``always`` told."""
    usual = asdict(EngineConfig())
    config = usual | config
    return [
        f"{label} {names.get(config[key], config[key])}"
        for key, (label, names) in _WORDS.items()
        if matters(key, config) and (key in always or config[key] != usual[key])
    ]
