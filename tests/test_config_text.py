"""Settings as text: how they are parsed, and the messages when they are invalid or have no effect."""

from __future__ import annotations

import pytest

from lab import ConfigError, EngineConfig
from lab.config import config_text, parse_config, parse_configs


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
        ("kv_dtype=int2", r"kv_dtype must be one of 'auto', 'int8', 'int4', not 'int2'"),  # EngineConfig's own words
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
