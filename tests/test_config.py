"""Settings: what is refused, how they are read as text, which have no effect beside others, and their document."""

from __future__ import annotations

import re

import pytest

from lab import ConfigError, EngineConfig, SamplingParams
from lab.config import config_text, parse_config, parse_configs
from lab.settings import ENGINE_DEFAULTS, markdown, unmet, unused_settings, without_unused

NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *(
            (EngineConfig, {name: value})
            for name, values in {
                "kv_cache": (1,),
                "kv_dtype": ("int3", None),
                "paged": (None,),
                "block_size": (0, True, 4.0),
                "num_blocks": (0,),
                "speculative": ("maybe",),
                "num_speculative_tokens": (0, 33),
                "kv_cache_dtype_skip_layers": ("first", "-1", "0 1.5", [[1]], None, "12345"),
                "prompt_lookup_min": (5,),
                "num_speculative_tokens_per_batch_size": (
                    *("2-4:1", "1-4:4 6-8:2", "1-4:4 4-8:2", "1-0:3", "1-4:33", "1-4", "often", "[[1, 4]]", "[[1,4,4]"),
                    *("[[1,4,4],[5,6,1]x]]", "[[1,4,4] [5,6,1]]"),
                    *([[1, 4, 4], [9, 9, 1]], 4, None),
                ),
            }.items()
            for value in values
        ),
        *(
            (SamplingParams, {name: value})
            for name, values in {
                "max_tokens": (0, None),
                "temperature": (-0.1, NAN, float("inf"), 1e-38, "hot"),
                "top_k": (-1,),
                "top_p": (0, NAN, 1.1, 1e-46),
                "seed": (-1, 2**32),
                "stop": (["x"] * 17, ["x" * 201], [""], [3], 3, "\ud83d"),
                "stop_token_ids": ([-1], ["1"], range(101), True, [1.0]),
                "parse_special": (1,),
                "ignore_eos": ("no",),
                "logprobs": (-1, 21, 2.5, True),
            }.items()
            for value in values
        ),
    ],
)
def test_invalid_settings_are_refused_by_name(kind, settings):
    (name,) = settings
    with pytest.raises(ConfigError, match=name):
        kind(**settings)


def test_int8_or_paging_without_a_cache_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="nothing is stored"):
        EngineConfig(kv_cache=False, kv_dtype="int8")
    with pytest.raises(ConfigError, match="no blocks to hand out"):
        EngineConfig(kv_cache=False, paged=True)


def test_draft_tokens_by_batch_size_are_written_as_here_or_as_in_vllm():
    for given in ("1-4:4 5-16:2 17:0", "[[1, 4, 4], [5,16,2], [17, 17, 0]]", [[1, 4, 4], (5, 16, 2), [17, 17, 0]]):
        config = EngineConfig(num_speculative_tokens_per_batch_size=given)
        assert config.num_speculative_tokens_per_batch_size == "1-4:4 5-16:2 17-17:0"
        assert parse_config(config_text(config)) == config
    assert EngineConfig(num_speculative_tokens_per_batch_size="[]") == EngineConfig()
    with pytest.raises(ConfigError, match=r"has the row '6-8:2', and needs .* without a gap.*\. Write it like '1-4:4"):
        EngineConfig(num_speculative_tokens_per_batch_size="1-4:4 6-8:2")


def test_exempt_layers_are_written_as_here_or_as_in_vllm():
    for given in ("15 sliding_window 0", "0,15,sliding_window", ["sliding_window", "0", "15", "0"]):
        config = EngineConfig(kv_dtype="int4", kv_cache_dtype_skip_layers=given)
        assert config.kv_cache_dtype_skip_layers == "0 15 sliding_window"
        assert parse_config(config_text(config)) == config
    assert without_unused(EngineConfig(kv_cache_dtype_skip_layers="0")) == EngineConfig()


def test_stop_may_be_one_string_or_several():
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop=None).stop == ()


def test_every_type_of_field_can_be_parsed():
    text = "kv_dtype=int8, paged=true, kv_cache=True,num_blocks=40,early_exit_layer=none,synthetic_acceptance_rate=.5"
    expected = EngineConfig(kv_dtype="int8", paged=True, num_blocks=40, synthetic_acceptance_rate=0.5)
    assert parse_config(text) == expected
    assert parse_config("") == EngineConfig()


def test_settings_as_text_are_those_that_are_not_default():
    config = EngineConfig(paged=True, num_blocks=40, speculative="synthetic", synthetic_acceptance_rate=1 / 3)
    assert config_text(config) == f"speculative=synthetic, paged=true, num_blocks=40, synthetic_acceptance_rate={1 / 3}"
    assert parse_config(config_text(config)) == config
    assert config_text(EngineConfig()) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dtype=int8", r"no setting 'dtype'; there are kv_cache, kv_dtype, .*synthetic_acceptance_rate"),
        ("paged", r"'paged' is not a setting: write field=value"),
        ("paged=", r"'paged=' is not a setting"),
        ("paged=1", r"paged must be true or false, not '1'"),
        ("block_size=big", r"block_size must be a whole number, not 'big'"),
        ("num_blocks=1.5", r"num_blocks must be a whole number or none, not '1.5'"),
        ("synthetic_acceptance_rate=often", r"synthetic_acceptance_rate must be a number, not 'often'"),
        ("synthetic_acceptance_rate=nan", r"from 0.0 to 1.0"),
        ("paged=true,paged=false", r"paged is set twice"),
        (
            "kv_dtype=int2",
            r"kv_dtype must be one of 'auto', 'int8', .*, not 'int2'",
        ),  # EngineConfig's own words
        ("kv_cache=false,paged=true", r"there are no blocks to hand out"),
    ],
)
def test_invalid_settings_are_refused_with_the_reason(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(text)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["", "kv_dtype=int2"], "^kv_dtype=int2: kv_dtype must be one of"),
        (["paged=true", "", "paged=maybe"], "^paged=maybe: paged must be true or false"),
        (["", "paged=true", " paged=true"], "^paged=true is listed twice"),
        (["", " "], "^default is listed twice"),
    ],
)
def test_the_invalid_one_of_several_settings_is_named(texts, message):
    with pytest.raises(ConfigError, match=message):
        parse_configs(texts)


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
