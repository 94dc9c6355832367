"""A run's settings in words: all that matter, those that changed since the previous run, or as few as tell it from
others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lab.config import EngineConfig, SamplingParams
from lab.trace.events import RunStarted
from visualize.states import ATTENTIONS, DRAFTERS, KERNELS, KV_FORMATS, SWITCH
from visualize.text import named, visible

USUAL = asdict(EngineConfig()) | asdict(SamplingParams())
"""The default of every setting."""
WORDS: dict[str, tuple[str, dict[Any, str]]] = {
    "kv_cache": ("KV cache", SWITCH),
    "kv_dtype": ("KV format", KV_FORMATS),
    "paged": ("paged blocks", SWITCH),
    "enable_prefix_caching": ("prefix caching", SWITCH),
    "speculative": ("speculation", {key: drafter.label for key, drafter in DRAFTERS.items()}),
    "num_speculative_tokens": ("guesses a round", {}),
    "adaptive_window": ("adaptive window", SWITCH),
    "prompt_lookup_min": ("shortest match", {}),
    "prompt_lookup_max": ("longest match", {}),
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
    "temperature": ("temperature", {}),
    "top_k": ("top-k", {}),
    "top_p": ("top-p", {}),
    "seed": ("seed", {}),
    "max_tokens": ("max tokens", {}),
    "stop": ("stop strings", {(): "none"}),
    "ignore_eos": ("end of text", {False: "heeded", True: "ignored"}),
    "logprobs": ("recorded distributions", {0: "off", 5: "on"}),
}
"""Every setting in words, and its values where those are not their own words."""
_MAIN = ("kv_dtype", "paged", "speculative", "num_speculative_tokens", "temperature", "seed")
_STOPS = 2
"""How many stop strings are told."""
_STOP = 16
"""How many characters of each."""
NEEDS = {
    "num_speculative_tokens": DRAFTERS.keys() - {"off"},
    "adaptive_window": DRAFTERS.keys() - {"off"},
    "prompt_lookup_min": {"ngram"},
    "prompt_lookup_max": {"ngram"},
    "early_exit_layer": {"early_exit"},
    "synthetic_acceptance_rate": {"synthetic"},
}
"""Settings that matter only with some drafters."""
OF_BLOCKS = {"kv_dtype", "paged", "block_size", "num_blocks", "enable_prefix_caching", "eviction", "cache_priority"}
"""Settings that matter only with a KV cache."""
OF_DRAWS = {"top_k", "top_p"}
"""Settings that matter only where tokens are drawn."""


def every_setting(config: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
    """All settings of a run. One from a file may predate some, and then has their defaults; it may also have its stop
    strings as a list, or one without a list."""
    had = USUAL | config | sampling
    return had | {"stop": SamplingParams(stop=had["stop"]).stop}


def matters(key: str, had: Mapping[str, Any]) -> bool:
    """Whether a setting does anything in a run that ``had`` these settings."""
    return (
        had["speculative"] in NEEDS.get(key, DRAFTERS)
        and (had["kv_cache"] or key not in OF_BLOCKS)
        and (had["temperature"] > 0 or key not in OF_DRAWS)
    )


def value_in_words(key: str, value: Any) -> str:
    """A setting's value in words. Of stop strings, which anybody may have written, only the beginning is told."""
    if key == "stop" and value:
        more = [f"{len(value) - _STOPS} more"] if len(value) > _STOPS else []
        return " or ".join([named(text, _STOP) for text in value[:_STOPS]] + more)
    return str(WORDS[key][1].get(value, value))


def difference(before: RunStarted, now: RunStarted) -> str:
    """Which settings changed since the previous run, in words."""
    was_of, now_of = (every_setting(run.config, run.sampling) for run in (before, now))
    switched = [
        f"{label} {value_in_words(key, was_of[key])} → {value_in_words(key, now_of[key])}"
        for key, (label, _) in WORDS.items()
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
    return ", ".join(_told(every_setting(config, sampling), _MAIN))


def in_short(config: dict[str, Any]) -> str:
    """A run's settings in a few words: those of the engine that are not the default, except how large the pool is."""
    return ", ".join(_told(every_setting(config | {"num_blocks": None}, {}))) or "KV cache on"


def _told(had: Mapping[str, Any], always: Sequence[str] = ()) -> list[str]:
    """Settings in words: those that matter to a run and are not the default, and those that are ``always`` told."""
    return [
        f"{label} {value_in_words(key, had[key])}"
        for key, (label, _) in WORDS.items()
        if matters(key, had) and (key in always or had[key] != USUAL[key])
    ]
