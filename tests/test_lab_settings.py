"""Settings that have no effect beside others, and the document of all settings."""

from __future__ import annotations

import re

import pytest

from lab import EngineConfig, SamplingParams
from lab.settings import ENGINE_DEFAULTS, markdown, unmet, unused_settings, without_unused


@pytest.mark.parametrize(
    ("config", "sampling", "unused"),
    [
        ({}, {}, []),
        ({"speculative": "draft", "adaptive_window": True, "num_speculative_tokens": 2}, {"logprobs": 3}, []),
        ({"speculative": "ngram", "prompt_lookup_max": 6}, {"top_k": 5, "temperature": 0.5}, []),
        ({"paged": True, "enable_prefix_caching": True, "eviction": "priority", "cache_priority": 2}, {}, []),
        ({"paged": True, "enable_prefix_caching": True, "cache_priority": 2}, {}, [("cache_priority",)]),
        ({"adaptive_window": True}, {"logprobs": 3}, [("adaptive_window", "logprobs")]),
        (
            {"speculative": "draft", "early_exit_layer": 3, "prompt_lookup_max": 6},
            {},
            [("early_exit_layer",), ("prompt_lookup_max",)],
        ),
        (
            {"kv_cache": False, "block_size": 8, "cache_priority": 2},
            {"top_k": 5, "top_p": 0.5},
            [("block_size",), ("cache_priority",), ("top_k", "top_p")],
        ),
    ],
)
def test_settings_without_effect_are_reported_by_what_they_need(config, sampling, unused):
    said = unused_settings(EngineConfig(**config), SamplingParams(**sampling))
    named = [set(re.findall(r"\w+", text.partition(" do")[0])) & ENGINE_DEFAULTS.keys() for text in said]
    assert named == [set(names) for names in unused]
    assert without_unused(EngineConfig(**config)) == EngineConfig(
        **{name: value for name, value in config.items() if not any(name in names for names in unused)}
    )


def test_what_the_machine_has_counts_only_where_it_is_known():
    config = vars(EngineConfig(torch_compile=True))
    assert "torch_compile" not in unmet(config)
    assert unmet(config | {"gpu": False, "zerogpu": False}).keys() >= {"torch_compile", "cuda_graphs"}
    assert "torch_compile" not in unmet(config | {"gpu": True, "zerogpu": False})
    assert "torch_compile" in unmet(config | {"gpu": True, "zerogpu": True})


def test_the_document_has_a_row_for_every_setting_of_the_engine():
    rows = [line for line in markdown().splitlines() if line.startswith("| `")]
    assert {row.split("`")[1] for row in rows} == ENGINE_DEFAULTS.keys()
    assert len({row.count("|") for row in rows}) == 1
