"""A run's settings in words."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from lab.config import EngineConfig, SamplingParams
from lab.settings import ENGINE_DEFAULTS, SETTINGS, unmet
from lab.trace.events import RunStarted
from tests.visualize.conftest import CONFIGS, script
from visualize.reduce.settings_text import described, difference, in_short

CONFIG = asdict(EngineConfig())
STARTED = script(CONFIGS["plain"], max_tokens=1)[0]
SAME = difference(STARTED, STARTED)
NEEDED = {
    "prompt_lookup_min": {"speculative": "ngram"},
    "prompt_lookup_max": {"speculative": "ngram"},
    "early_exit_layer": {"speculative": "early_exit"},
    "synthetic_acceptance_rate": {"speculative": "synthetic"},
    "num_speculative_tokens": {"speculative": "draft"},
    "num_speculative_tokens_per_batch_size": {"speculative": "draft"},
    "adaptive_window": {"speculative": "draft"},
    "kv_cache_dtype_skip_layers": {"kv_dtype": "int8"},
    "logprobs": {"speculative": "draft"},
    "enable_prefix_caching": {"paged": True},
    "eviction": {"paged": True, "enable_prefix_caching": True},
    "cache_priority": {"paged": True, "enable_prefix_caching": True, "eviction": "priority"},
    "top_k": {"temperature": 0.8},
    "top_p": {"temperature": 0.8},
    "rejection_sample_method": {"temperature": 0.8, "speculative": "draft"},
    "draft_sample_method": {"temperature": 0.8, "speculative": "draft"},
}
"""For settings that have an effect only with others, these."""


def started(**changes: Any) -> RunStarted:
    """The first event of a run with these settings."""
    sampling = {name: value for name, value in changes.items() if name in SamplingParams.__dataclass_fields__}
    config = {name: value for name, value in changes.items() if name not in sampling}
    return replace(STARTED, config=CONFIG | config, sampling=vars(SamplingParams()) | sampling)


def other(name: str) -> Any:
    usual = ENGINE_DEFAULTS[name]
    if SETTINGS[name].kind == "text" and usual == "":
        return "0 15" if name == "kv_cache_dtype_skip_layers" else "1-4:2"
    if name in ("stop", "stop_token_ids"):
        return ["END"] if name == "stop" else [3]
    options = [value for value in SETTINGS[name].options if value not in (usual, None)]
    return options[0] if options else not usual if isinstance(usual, bool) else 77


@pytest.mark.parametrize("name", ENGINE_DEFAULTS)
def test_a_changed_setting_is_named_where_it_has_an_effect(name: str) -> None:
    needed = {"temperature": 0.0} | NEEDED.get(name, {})
    before, now = started(**needed), started(**needed | {name: other(name)})
    said = difference(before, now)
    assert said.count("→") == 1
    assert f"{SETTINGS[name].words} " in said
    assert difference(before, before) == SAME
    if name in NEEDED:
        assert name in unmet(vars(EngineConfig()) | vars(SamplingParams()))
        assert difference(started(temperature=0.0), started(temperature=0.0, **{name: other(name)})) == SAME


def test_changed_models_and_prompts_are_named() -> None:
    drafted = replace(started(speculative="draft"), draft="stories-matched")
    assert difference(drafted, drafted) == SAME
    said = difference(drafted, replace(drafted, draft="stories-mismatched", prompt="The king"))
    assert said.endswith("draft model matched → mismatched, another prompt.")
    other = replace(drafted, target="qwen\n", draft="tiny\n")
    assert difference(drafted, other).endswith("target stories → qwen↵, draft model matched → tiny↵.")
    assert difference(started(), drafted).count("→") == 1


def test_a_setting_missing_from_an_older_run_has_its_default() -> None:
    older = {name: value for name, value in CONFIG.items() if name not in ("kernels", "cuda_graphs", "torch_compile")}
    assert difference(replace(STARTED, config=older), STARTED) == SAME
    sampling = {name: value for name, value in STARTED.sampling.items() if name != "stop"}
    assert difference(replace(STARTED, sampling=sampling), replace(STARTED, sampling=sampling | {"stop": []})) == SAME
    assert described(older, {"seed": 7}) == described(CONFIG, {"seed": 7})


def test_main_settings_and_those_that_are_not_the_default_are_described() -> None:
    sampling = {"temperature": 0.8, "seed": 7}
    now = asdict(EngineConfig(paged=True, speculative="draft", num_speculative_tokens=6, early_exit_layer=4))
    reported = described(now, sampling)
    assert [part.rpartition(" ")[2] for part in reported.split(", ")] == ["Auto", "on", "Draft", "6", "0.8", "7"]
    assert "early-exit layers 4" in described(now | {"speculative": "early_exit"}, sampling)
    assert "γ" not in described(now | {"speculative": "off"}, sampling)
    assert "KV cache off" in described(asdict(EngineConfig(kv_cache=False)), sampling)
    drawn = {"top_k": 5, "top_p": 0.5, "max_tokens": 90, "ignore_eos": True}
    assert described(CONFIG, sampling | drawn).endswith(
        "top-k 5, top-p 0.5, seed 7, max tokens 90, end of text ignored"
    )
    assert "top" not in described(CONFIG, sampling | drawn | {"temperature": 0.0}), "none is drawn"


def test_stop_strings_are_spelled_out_and_cut_short() -> None:
    def reported(stop: Any) -> str:
        return described(CONFIG, {"temperature": 0.8, "seed": 1, "stop": stop}).partition("seed 1")[2]

    assert reported([]) == reported(()) == ""
    assert reported("one\n") == reported(["one\n"]) == ", stop strings “one↵”"
    assert reported(["\u202eevil", "x" * 200]) == f", stop strings “⟨RLO⟩evil” or “{'x' * 15}…”"
    assert reported(list("abcde")) == ", stop strings “a” or “b” or 3 more"
    ids = described(CONFIG, {"temperature": 0.8, "seed": 1, "stop_token_ids": list(range(10))})
    assert ids.endswith("seed 1, stop tokens 0, 1, 2, 3, 4, 5, 6, 7 and 2 more")


def test_settings_in_short_are_those_that_are_not_the_default() -> None:
    assert in_short(vars(EngineConfig(num_blocks=64))) == "KV cache on"
    assert in_short(vars(EngineConfig(paged=True, block_size=32))) == "paged KV cache on, block size 32"
