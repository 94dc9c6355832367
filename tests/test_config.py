"""Every invalid setting is refused with a message that names it."""

from __future__ import annotations

import pytest

from lab import ConfigError, EngineConfig, SamplingParams

NAN = float("nan")


@pytest.mark.parametrize(
    "settings",
    [
        {"kv_cache": 1},
        {"kv_dtype": "int3"},
        {"paged": None},
        {"block_size": 0},
        {"block_size": True},
        {"block_size": 4.0},
        {"num_blocks": 0},
        {"speculative": "maybe"},
        {"num_speculative_tokens": 0},
        {"num_speculative_tokens": 33},
    ],
)
def test_invalid_engine_settings_are_refused_by_name(settings):
    (name,) = settings
    with pytest.raises(ConfigError, match=name):
        EngineConfig(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens": 0},
        {"temperature": -0.1},
        {"temperature": NAN},
        {"temperature": float("inf")},
        {"temperature": 1e-38},
        {"top_p": 1e-46},
        {"stop": ["x"] * 17},
        {"stop": ["x" * 201]},
        {"temperature": "hot"},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": NAN},
        {"top_p": 1.1},
        {"seed": -1},
        {"seed": 2**32},
        {"stop": [""]},
        {"stop": [3]},
        {"stop": 3},
        {"ignore_eos": "no"},
    ],
)
def test_invalid_sampling_settings_are_refused_by_name(settings):
    (name,) = settings
    with pytest.raises(ConfigError, match=name):
        SamplingParams(**settings)


def test_int8_or_paging_without_a_cache_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="nothing is stored"):
        EngineConfig(kv_cache=False, kv_dtype="int8")
    with pytest.raises(ConfigError, match="no blocks to hand out"):
        EngineConfig(kv_cache=False, paged=True)


def test_stop_may_be_one_string_or_several():
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop=None).stop == ()
