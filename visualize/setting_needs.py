"""What is said about the Lab's controls, and how a switch affects the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gradio as gr

from lab.registry import EMBEDDED
from visualize.recorded_results import kv_error, logprobs_cost
from visualize.run_settings import CHOICES, LABELS, OTHER, Settings, senseless, sensible
from visualize.states import ATTENTIONS, DRAFTERS


def _missing_attention() -> str:
    missing = [label for name, label in ATTENTIONS.items() if name not in CHOICES["prefill_attention"]]
    return f" Not on this machine: {', '.join(missing)}." if missing else ""


def _recording_costs() -> str:
    return f" Slower: {cost} (on a CPU)." if (cost := logprobs_cost()) else ""


SAYS = {
    "kv_cache": "Off: every pass rereads the whole text.",
    "kv_dtype": "Fewer bits: less memory, more rounding.",
    "paged": "Off: room for the whole run is reserved.",
    "enable_prefix_caching": "Prompts that begin alike share blocks.",
    "target": "A folder on this machine, or a hub id.",
    "draft": "Smaller, same tokenizer; empty: none.",
    "num_speculative_tokens": "Proposed before each pass of the target.",
    "adaptive_window": "The number follows acceptance and cost.",
    "logprobs": f"Shows p and q.{_recording_costs()}",
    "block_size": "Token slots in a cache block.",
    "num_blocks": "Fewer make room scarce; empty: room for two full contexts.",
    "eviction": "Which cached prefix makes room for a new block.",
    "cache_priority": "Of the prefixes this run leaves behind.",
    "kernels": "The lab's own: Triton on a GPU, C on a CPU.",
    "cuda_graphs": "Off: kernels are launched one by one.",
    "torch_compile": "Layers compiled; the first run waits for it.",
    "prefill_attention": f"All but Auto: computed by torch, in this way.{_missing_attention()}",
    "temperature": "0 always takes the likeliest token (greedy).",
    "top_k": "Keep the k likeliest tokens; 0 keeps all.",
    "top_p": "Keep the likeliest tokens up to this probability; 1 keeps all.",
    "seed": "The same seed and settings give the same text; empty: a new seed.",
    "max_tokens": "The run ends after this many at most.",
}
UNSURE_SEED = "The adaptive window follows measured times: the same seed may give another text; empty: a new seed."
"""Of the seed, where the window decides how many draws a round uses."""
SWITCHES = (
    "kv_cache",
    "kv_dtype",
    "paged",
    "enable_prefix_caching",
    "speculative",
    "pair",
    "adaptive_window",
    "eviction",
    "kernels",
)
"""Controls that others depend on."""
DEPENDENT = (
    "kv_dtype",
    "paged",
    "enable_prefix_caching",
    "speculative",
    "pair",
    "target",
    "draft",
    "early_exit_layer",
    "synthetic_acceptance_rate",
    "num_speculative_tokens",
    "adaptive_window",
    "logprobs",
    "block_size",
    "num_blocks",
    "eviction",
    "cache_priority",
    "cuda_graphs",
    "torch_compile",
    "seed",
)
"""The controls that depend on them."""
OF_ONE_DRAFTER = {"early_exit_layer": "early_exit", "synthetic_acceptance_rate": "synthetic"}


def state(settings: Settings, put_out: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """How a switch affects the other controls.

    Args:
        settings: the controls' values.
        put_out: the settings that could not be used until now, each with the value last chosen for it.

    Returns:
        Updates by control: one that cannot be used is disabled, set to its neutral value, and says why; one that can
        be used again gets back the chosen value; one that cannot matter is hidden. And the new ``put_out``.
    """
    wanted = replace(settings, **put_out)
    useless = senseless(wanted)
    settings = sensible(wanted)
    reasons = {name: f"{reason[0].upper()}{reason[1:]}." for name, reason in useless.items()}
    if not settings.kv_cache:
        reasons |= dict.fromkeys(("block_size", "num_blocks"), "Needs the KV cache: no cache, no blocks.")
    if settings.speculative == "off":
        reasons |= dict.fromkeys(("num_speculative_tokens", "adaptive_window", "logprobs"), "Needs speculation.")
    if not settings.enable_prefix_caching:
        reasons |= dict.fromkeys(("eviction", "cache_priority"), "Needs prefix caching: else no prefix is kept.")
    elif settings.eviction != "priority":
        reasons["cache_priority"] = "Used when the lowest priority is evicted."
    updates = {
        name: gr.update(interactive=name not in reasons, info=reasons.get(name, SAYS.get(name))) for name in DEPENDENT
    }
    for name in useless.keys() | put_out.keys():
        updates[name]["value"] = getattr(settings, name)
    if "kv_dtype" not in reasons:
        known = kv_error(settings.kv_dtype) if settings.pair in EMBEDDED else ""
        updates["kv_dtype"]["info"] = known or SAYS["kv_dtype"]
    if "logprobs" not in reasons and settings.pair not in EMBEDDED:
        updates["logprobs"]["info"] = "Shows p and q. Slower."
    updates["speculative"]["info"] = DRAFTERS[settings.speculative].about
    if settings.adaptive_window and settings.speculative != "off":
        updates["seed"]["info"] = UNSURE_SEED
    updates["num_speculative_tokens"]["label"] = (
        f"Max {LABELS['num_speculative_tokens'].lower()}"
        if settings.adaptive_window
        else LABELS["num_speculative_tokens"]
    )
    models, other = settings.speculative == "draft" or settings.pair not in EMBEDDED, settings.pair == OTHER
    shown = {"pair": models, "target": other, "draft": other}
    shown |= {name: settings.speculative == who for name, who in OF_ONE_DRAFTER.items()}
    for name, visible in shown.items():
        updates[name]["visible"] = True if visible else "hidden"
    return updates, {name: getattr(wanted, name) for name in useless}
