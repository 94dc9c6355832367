"""The page's link: what it may set, and what it may not."""

from __future__ import annotations

import pytest

from lab.config import ConfigError
from visualize.settings import BOUNDS, DEFAULTS, NAMES, Settings, from_link


def test_an_empty_link_is_the_defaults() -> None:
    assert from_link({}) == (Settings(), [])
    Settings().engine_config()
    Settings().sampling()


def test_a_link_sets_everything() -> None:
    link = {
        "prompt": "A <b>fox</b> & a wolf",
        "pair": "mismatched",
        "cache": "1",
        "int8": "1",
        "paged": "0",
        "speculation": "0",
        "gamma": "7",
        "block_size": "8",
        "temperature": "0.35",
        "top_k": "40",
        "top_p": "0.9",
        "seed": "123",
        "max_tokens": "64",
    }
    assert link.keys() == set(NAMES)
    settings, notices = from_link(link)
    assert notices == []
    assert (settings.prompt, settings.pair, settings.int8, settings.paged) == (
        link["prompt"],
        "mismatched",
        True,
        False,
    )
    assert (settings.gamma, settings.block_size, settings.temperature, settings.seed) == (7, 8, 0.35, 123)
    assert settings.engine_config().kv_dtype == "int8"
    assert settings.sampling().top_p == 0.9


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt", "x" * 4001),
        ("pair", "../../etc/passwd"),
        ("cache", "yes"),
        ("gamma", "0"),
        ("gamma", "9"),
        ("gamma", "4.5"),
        ("gamma", "1" * 5000),
        ("block_size", "17"),
        ("temperature", "nan"),
        ("temperature", "inf"),
        ("temperature", "-1"),
        ("top_p", "0"),
        ("seed", "-1"),
        ("seed", "<script>"),
        ("max_tokens", "1e9"),
    ],
)
def test_a_bad_value_is_left_out_and_named(name: str, value: str) -> None:
    settings, notices = from_link({name: value, "top_k": "3", "utm_source": "x"})
    assert getattr(settings, name) == DEFAULTS[name]
    assert settings.top_k == 3
    assert len(notices) == 1
    assert name.replace("_", " ") in notices[0]


def test_a_senseless_combination_is_mended_and_named() -> None:
    settings, notices = from_link({"cache": "0", "int8": "1", "paged": "1"})
    assert (settings.cache, settings.int8, settings.paged) == (False, False, False)
    assert len(notices) == 2
    assert from_link({"cache": "0"})[0].engine_config().kv_cache is False
    with pytest.raises(ConfigError, match="nothing is stored"):
        Settings(cache=False, int8=True, paged=False).engine_config()


def test_an_empty_seed_lets_the_engine_pick() -> None:
    assert from_link({"seed": ""})[0].sampling().seed is None


def test_bounds_are_within_the_engines() -> None:
    for name, bounds in BOUNDS.items():
        for value in bounds:
            settings = Settings(**{name: value})
            settings.engine_config()
            settings.sampling()
