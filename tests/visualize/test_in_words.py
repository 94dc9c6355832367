"""A run's settings in words."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any

import pytest

from lab.config import EngineConfig, SamplingParams
from lab.trace.events import RunStarted
from tests.visualize.conftest import CONFIGS, script
from visualize.reduce.settings_text import WORDS, described, difference, in_short
from visualize.run_settings import Settings

CONFIG = asdict(EngineConfig())
STARTED = script(CONFIGS["plain"], max_tokens=1)[0]


def started(config: EngineConfig | dict[str, Any], **changes: Any) -> RunStarted:
    """The first event of a run with this configuration."""
    return replace(STARTED, config=config if isinstance(config, dict) else asdict(config), **changes)


def test_changed_settings_are_named() -> None:
    assert difference(STARTED, STARTED) == "Small: the previous run, with the same settings."
    now = EngineConfig(
        kv_dtype="int4", paged=True, enable_prefix_caching=True, speculative="synthetic", adaptive_window=True
    )
    assert difference(STARTED, started(now)) == (
        "Small: the previous run. Changed: KV format Native → INT4, paged blocks off → on, "
        "prefix caching off → on, speculation Off → Synthetic, adaptive window off → on."
    )


def test_every_setting_of_the_page_is_named_when_it_changes() -> None:
    before = asdict(Settings().engine_config())

    def said(**changes: Any) -> str:
        return difference(started(before), started(before | changes))

    for name in ("kv_cache", "paged", "enable_prefix_caching", "adaptive_window", "cuda_graphs", "torch_compile"):
        assert "same" not in said(**{name: not before[name]})
    for name in ("num_speculative_tokens", "block_size"):
        assert "→ 77" in said(**{name: 77})
    of_drafters = {
        "early_exit_layer": "early_exit",
        "synthetic_acceptance_rate": "synthetic",
        "prompt_lookup_min": "ngram",
        "prompt_lookup_max": "ngram",
    }
    for name, speculative in of_drafters.items():
        assert "→ 77" in said(speculative=speculative, **{name: 77})
        assert said(**{name: 77}).endswith("with the same settings.")  # without its drafter it has no effect
    usual = EngineConfig(speculative="early_exit")
    assert "layers a quarter → 2" in difference(started(usual), started(replace(usual, early_exit_layer=2)))
    assert "kernels The lab's own → Torch" in said(kernels="reference")
    assert "prompt attention Auto → Flash" in said(prefill_attention="flash")
    assert "cache priority 0 → 5" in said(cache_priority=5)
    assert "least recently used → lowest priority" in said(eviction="priority")


@pytest.mark.parametrize(
    ("sampled", "said"),
    [
        ({"temperature": 0.0}, "temperature 0.8 → 0.0"),
        ({"top_k": 50}, "top-k 0 → 50"),
        ({"top_p": 0.9}, "top-p 1.0 → 0.9"),
        ({"seed": 8}, "seed 3 → 8"),
        ({"max_tokens": 90}, "max tokens 1 → 90"),
        ({"logprobs": 5}, "recorded distributions off → on"),
        ({"stop": ["END"]}, "stop strings none → “END”"),
        ({"ignore_eos": True}, "end of text heeded → ignored"),
    ],
)
def test_changed_sampling_is_named(sampled: dict[str, Any], said: str) -> None:
    now = replace(STARTED, sampling=STARTED.sampling | sampled)
    assert difference(STARTED, now) == f"Small: the previous run. Changed: {said}."


def test_settings_without_effect_are_not_named() -> None:
    cached = EngineConfig(paged=True, num_blocks=128, enable_prefix_caching=True, eviction="priority", cache_priority=5)
    before, off = asdict(cached), CONFIG | {"kv_cache": False}
    assert difference(started(before), started(off)).endswith("Changed: KV cache on → off.")
    drafted = EngineConfig(speculative="draft", num_speculative_tokens=6, adaptive_window=True)
    assert difference(started(drafted), started(CONFIG)).endswith("Changed: speculation Draft → Off.")
    assert "blocks in the pool as memory allows → 128" in difference(started(off), started(before))


def test_changed_models_and_prompts_are_named() -> None:
    drafted = started(EngineConfig(speculative="draft"), draft="stories-matched")
    assert "same" in difference(drafted, drafted)
    now = replace(drafted, draft="stories-mismatched", prompt="The king")
    assert (
        difference(drafted, now)
        == "Small: the previous run. Changed: draft model matched → mismatched, another prompt."
    )
    other = replace(drafted, target="qwen\n", draft="tiny\n")
    assert difference(drafted, other) == (
        "Small: the previous run. Changed: target stories → qwen↵, draft model matched → tiny↵."
    )
    assert "target qwen↵ → stories" in difference(other, drafted)
    assert difference(STARTED, drafted) == "Small: the previous run. Changed: speculation Off → Draft."


def test_a_setting_missing_from_an_older_run_has_its_default() -> None:
    older = {name: value for name, value in CONFIG.items() if name not in ("kernels", "cuda_graphs", "torch_compile")}
    assert "same" in difference(started(older), started(CONFIG))
    sampling = {name: value for name, value in STARTED.sampling.items() if name != "stop"}
    now, before = (replace(STARTED, sampling=sampling | stop) for stop in ({"stop": []}, {}))
    assert "same" in difference(before, now)
    assert described(older, {"temperature": 0.8, "seed": 7}) == described(CONFIG, {"temperature": 0.8, "seed": 7})


def test_only_settings_that_mattered_are_described() -> None:
    sampling = {"temperature": 0.8, "seed": 7}
    now = asdict(EngineConfig(paged=True, speculative="draft", num_speculative_tokens=6, early_exit_layer=4))
    assert described(now, sampling) == (
        "KV format Native, paged blocks on, speculation Draft, guesses a round 6, temperature 0.8, seed 7"
    )
    assert "early-exit layers 4" in described(now | {"speculative": "early_exit"}, sampling)
    assert "guesses" not in described(now | {"speculative": "off"}, sampling)
    assert "KV cache off" in described(asdict(EngineConfig(kv_cache=False)), sampling)


def test_every_other_setting_that_is_not_the_default_is_described() -> None:
    config = asdict(EngineConfig(speculative="ngram", prompt_lookup_min=3, prompt_lookup_max=8))
    sampling = {"temperature": 0.8, "seed": 1}
    usual = "KV format Native, paged blocks off, speculation Lookup, guesses a round 4"
    assert described(config, sampling | {"top_k": 5, "top_p": 0.5, "max_tokens": 64}) == (
        f"{usual}, shortest match 3, longest match 8, temperature 0.8, top-k 5, top-p 0.5, seed 1"
    )
    assert "match" not in described(config | {"speculative": "off"}, sampling)
    assert "top" not in described(config, sampling | {"top_k": 5, "top_p": 0.5, "temperature": 0.0}), "none is drawn"
    told = described(config, sampling | {"max_tokens": 90, "stop": ["The end"], "ignore_eos": True, "logprobs": 2})
    assert told.endswith("seed 1, max tokens 90, stop strings “The end”, end of text ignored, recorded distributions 2")


def test_every_setting_has_words() -> None:
    for field in fields(EngineConfig) + fields(SamplingParams):
        assert field.name in WORDS


def test_stop_strings_are_spelled_out_and_cut_short() -> None:
    def told(stop: Any) -> str:
        return described(CONFIG, {"temperature": 0.8, "seed": 1, "stop": stop}).partition("seed 1")[2]

    assert told([]) == told(()) == ""
    assert told("one\n") == told(["one\n"]) == ", stop strings “one↵”"
    assert told(["\u202eevil", "x" * 200]) == f", stop strings “⟨RLO⟩evil” or “{'x' * 15}…”"
    assert told(list("abcde")) == ", stop strings “a” or “b” or 3 more"


def test_settings_in_short_are_those_that_are_not_the_default() -> None:
    assert in_short(vars(EngineConfig(num_blocks=64))) == "KV cache on"
    assert in_short(vars(EngineConfig(paged=True, block_size=32))) == "paged blocks on, block size 32"
