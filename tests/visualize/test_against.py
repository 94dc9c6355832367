"""From the Lab's settings to a comparison: the link runs them beside their baseline, whatever they are."""

from __future__ import annotations

import math
from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.config import EngineConfig
from lab.errors import ConfigError
from visualize.compare_link import against
from visualize.pages.compare.configurations import Inputs, from_link
from visualize.run_settings import BOUNDS, CHOICES, OTHER, Settings

VALUES = {
    **{name: st.sampled_from(list(values)) for name, values in CHOICES.items()},
    "num_blocks": st.none() | st.sampled_from((4, 32, 64, 512)),
    **{
        name: st.integers(*map(int, BOUNDS[name]))
        for name in ("num_speculative_tokens", "early_exit_layer", "top_k", "max_tokens")
    },
    **{
        name: st.floats(*BOUNDS[name]).map(lambda value: round(value, 2))
        for name in ("temperature", "top_p", "synthetic_acceptance_rate")
    },
    **dict.fromkeys(("kv_cache", "paged", "enable_prefix_caching", "adaptive_window", "torch_compile"), st.booleans()),
    "seed": st.none() | st.integers(0, 2**31 - 1),
    "prompt": st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
}


def asked(address: str) -> Inputs:
    """The inputs that the Compare page reads from the address, which must be valid in full, but for too many tokens."""
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True))
    assert (parts.scheme, parts.netloc, parts.path) == ("", "", "compare")
    assert query.pop("run") == "1"
    inputs, notices = from_link(query)
    fewer = f"A comparison's runs have at most 500 tokens: 500, not {int(query['max_tokens']):,}."
    assert notices == [fewer] * (int(query["max_tokens"]) > 500)
    return inputs


@given(st.builds(Settings, **VALUES))
def test_the_baseline_runs_first_and_then_these_settings(settings: Settings) -> None:
    try:
        config = settings.engine_config(settings.num_blocks if settings.kv_cache else None)
    except ConfigError:
        assert against(settings) == ""
        return
    address = against(settings)
    if not address:
        usual = Settings(speculative="off", paged=False, cuda_graphs=settings.cuda_graphs).engine_config()
        assert config == replace(usual, **vars_of(config, GUESSING[1:]))
        return
    inputs = asked(address)
    plain, own = inputs.configs().values()
    assert plain.speculative == "off"
    assert own.speculative == config.speculative
    if config.speculative == "off":
        assert plain == EngineConfig()
    else:
        assert plain == replace(own, **vars_of(EngineConfig(), GUESSING))
        assert own.num_speculative_tokens == settings.num_speculative_tokens
    assert replace(own, **vars_of(config, GUESSING)) == config  # no other setting is lost
    assert inputs.prompt == settings.prompt
    assert inputs.pair == settings.pair
    assert inputs.sampling().temperature == settings.temperature
    assert settings.seed in (None, inputs.seed)
    assert inputs.max_tokens == min(max(settings.max_tokens, 2), 500)


GUESSING = (
    "speculative",
    "num_speculative_tokens",
    "adaptive_window",
    "early_exit_layer",
    "synthetic_acceptance_rate",
)


def vars_of(config: EngineConfig, names: tuple[str, ...]) -> dict[str, object]:
    return {name: getattr(config, name) for name in names}


@pytest.mark.parametrize(
    ("settings", "lanes", "own"),
    [
        (Settings(paged=False), ("cache", "draft-4"), ""),
        (Settings(), ("paged",), "Yours: speculative=draft, paged=true"),
        (Settings(speculative="off", kv_dtype="int8", paged=False), ("cache", "int8"), ""),
        (Settings(speculative="off", kv_cache=False, paged=False), ("cache", "no-cache"), ""),
        (
            Settings(kv_dtype="int8"),  # has a named lane, but its baseline has none and must come first
            (),
            "No guesses: kv_dtype=int8, paged=true\nYours: speculative=draft, kv_dtype=int8, paged=true",
        ),
        (
            Settings(paged=False, speculative="early_exit", early_exit_layer=6),
            ("cache",),
            "Yours: speculative=early_exit, early_exit_layer=6",
        ),
    ],
)
def test_named_lanes_are_used_where_they_exist(settings: Settings, lanes: tuple[str, ...], own: str) -> None:
    inputs = asked(against(settings))
    assert (inputs.lanes, inputs.own) == (lanes, own)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(speculative="off", paged=False),
        Settings(kv_cache=False, paged=True),
        Settings(pair=OTHER, target="somebody/large"),
        Settings(prompt="\ud800"),
        Settings(prompt="x" * 4001),
        Settings(max_tokens=10**30),
        *(
            Settings(**{name: value})
            for name in ("num_speculative_tokens", "synthetic_acceptance_rate", "temperature", "top_k", "top_p", "seed")
            for value in (math.nan, math.inf, -1e300, "3", [], True)
        ),
    ],
)
def test_some_settings_have_nothing_to_compare(settings: Settings) -> None:
    assert against(settings) == ""
