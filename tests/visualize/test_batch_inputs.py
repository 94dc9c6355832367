"""The Pool page's inputs: its presets, its link, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.config import EngineConfig
from lab.errors import ConfigError, PromptError
from visualize import run_settings as lab_settings
from visualize.page_list import PAGES
from visualize.pool_inputs import (
    BOUNDS,
    CHOICES,
    DEFAULTS,
    LABELS,
    NAMES,
    PRESETS,
    SYSTEM,
    Inputs,
    address,
    from_link,
    in_lab,
    preset_of,
    to_inputs,
)


@pytest.mark.parametrize("key", PRESETS)
def test_a_presets_address_opens_it(key: str) -> None:
    page, _, query = address(PRESETS[key].inputs).partition("?")
    assert page == "pool"
    assert from_link(dict(parse_qsl(query))) == (PRESETS[key].inputs, [])


def test_every_preset_is_valid_and_recognised() -> None:
    for key, preset in PRESETS.items():
        assert preset_of(preset.inputs) == key
        preset.inputs.config()
        assert sum(job.continuations for job in preset.inputs.jobs()) == preset.inputs.sequences
    assert preset_of(Inputs(sequences=3)) is None
    assert set(LABELS) == set(NAMES)


def test_inputs_become_the_engines_settings_and_jobs() -> None:
    inputs = Inputs(
        paged=False,
        enable_prefix_caching=False,
        kv_dtype="int8",
        speculative="ngram",
        block_size=8,
        num_blocks=99,
        seed=5,
    )
    assert inputs.config() == EngineConfig(kv_dtype="int8", speculative="ngram", block_size=8, num_blocks=99)
    jobs = inputs.jobs()
    assert all(job.prompt.startswith(SYSTEM) for job in jobs)
    assert [job.sampling.seed for job in jobs[:2]] == [5, 6]
    several = replace(inputs, sequences=10, continuations=4).jobs()
    assert [(job.continuations, job.sampling.seed) for job in several] == [(4, 5), (4, 9), (2, 13)]
    assert not any(SYSTEM in job.prompt for job in replace(inputs, shared=0).jobs())
    fourth = replace(inputs, shared=4, sequences=6).jobs()
    assert [SYSTEM in job.prompt for job in fourth] == [True, False, False, False, True, False]
    assert [job.cache_priority for job in fourth] == [1, 0, 0, 0, 1, 0]
    assert not any(job.prompt.startswith("\n") for job in replace(inputs, system="  ").jobs())


GREEDY = {"temperature": 0.0, "lengths": "equal"}


@pytest.mark.parametrize(
    ("had", "changes", "alike"),
    [
        ({"shared": 0}, {"system": "Another."}, True),
        ({"shared": 1}, {"system": "Another."}, False),
        ({"shared": 1}, {"system": f" {SYSTEM}\n"}, True),
        ({"shared": 0}, {"shared": 4, "system": " "}, True),
        ({"shared": 1}, {"shared": 4}, False),
        ({"shared": 4}, {"eviction": "priority"}, False),
        ({"shared": 1}, {"eviction": "priority"}, True),  # all have the same
        ({"shared": 4, "enable_prefix_caching": False}, {"eviction": "priority"}, True),
        (GREEDY, {"seed": 8}, True),
        (GREEDY | {"temperature": 0.8}, {"seed": 8}, False),
        (GREEDY | {"lengths": "tailed"}, {"seed": 8}, False),  # they are drawn
        ({"sequences": 4, "continuations": 4}, {"every": 9}, True),  # they come together
        ({"sequences": 4, "continuations": 4}, {"continuations": 8}, True),
        ({"sequences": 5, "continuations": 4}, {"every": 9}, False),
        ({"sequences": 16, "max_num_seqs": 16}, {"max_num_seqs": 32}, True),
        ({"sequences": 17, "max_num_seqs": 16}, {"max_num_seqs": 32}, False),
    ],
)
def test_runs_are_alike_whose_inputs_differ_only_where_they_have_no_effect(
    had: dict[str, Any], changes: dict[str, Any], alike: bool
) -> None:
    before = Inputs(**had)
    assert (replace(before, **changes).asked() == before.asked()) == alike


@given(st.data())
def test_a_link_round_trips(data: st.DataObject) -> None:
    given: dict[str, Any] = {"system": data.draw(st.text(max_size=50))}
    given |= {name: data.draw(st.sampled_from(list(choices))) for name, choices in CHOICES.items()}
    given |= {name: data.draw(st.booleans()) for name in ("paged", "enable_prefix_caching")}
    given["enable_prefix_caching"] &= given["paged"]
    for name, (low, high) in BOUNDS.items():
        whole = isinstance(DEFAULTS[name], int)
        given[name] = data.draw(st.integers(int(low), int(high)) if whole else st.floats(low, high))
    assert given.keys() == set(NAMES)
    query = {name: str(int(value) if isinstance(value, bool) else value) for name, value in given.items()}
    assert from_link(query) == (Inputs(**given), [])


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"sequences": "33"}, "sequences was left out: it must be a whole number from 1 to 32"),
        ({"lengths": "<b>"}, "lengths was left out: it must be one of equal, tailed, paragraph"),
        ({"speculative": "synthetic"}, "speculative was left out"),
        ({"paged": "0", "enable_prefix_caching": "1"}, "needs paged blocks"),
        ({"eviction": "random"}, "eviction was left out: it must be one of lru, priority"),
        ({"shared": "3"}, "shared was left out: it must be one of 0, 1, 4"),
        ({"system": "x" * 5000}, "more than 4,000 characters"),
        ({"temperature": "nan"}, "temperature was left out"),
    ],
)
def test_values_left_out_of_a_link_are_named(query: dict[str, str], says: str) -> None:
    inputs, [notice] = from_link(query)
    assert says in notice
    inputs.config()


def test_without_paged_blocks_prefix_caching_is_off_without_a_notice() -> None:
    assert from_link({"paged": "0"}) == (Inputs(paged=False, enable_prefix_caching=False), [])


def test_numbers_are_read_as_a_browser_sends_them() -> None:
    values = [None if name == "seed" else float(v) if type(v) is int else v for name, v in DEFAULTS.items()]
    assert to_inputs(tuple(values)) == Inputs()
    assert isinstance(to_inputs(tuple(values)).sequences, int)


@pytest.mark.parametrize("value", [0, 33, 2.5e9, math.nan, math.inf, "many"])
def test_a_number_out_of_bounds_is_explained(value: Any) -> None:
    with pytest.raises(ConfigError, match="Sequences must be a whole number from 1 to 32"):
        Inputs(sequences=value).config()


@pytest.mark.parametrize("key", PRESETS)
def test_the_first_sequence_can_be_run_alone_in_the_lab(key: str) -> None:
    inputs = PRESETS[key].inputs
    page, _, query = in_lab(inputs).partition("?")
    assert page == PAGES["Lab"]
    asked = dict(parse_qsl(query))
    assert asked.pop("run") == "1"
    found, notices = lab_settings.from_link(asked)
    assert notices == []
    config, first = inputs.config(), inputs.jobs()[0]
    assert replace(found.engine_config(config.num_blocks), early_exit_layer=None) == config
    assert (found.prompt, found.max_tokens, found.seed) == (first.prompt, first.sampling.max_tokens, inputs.seed)
    assert found.temperature == first.sampling.temperature


def test_no_link_leads_from_inputs_that_make_no_sense_to_the_lab() -> None:
    assert in_lab(Inputs(sequences=0)) == ""
    assert in_lab(Inputs(system="x" * 4001)) == ""


def test_a_system_prompt_that_is_too_long_is_explained() -> None:
    inputs = Inputs(system="x" * 4001)
    with pytest.raises(PromptError, match="4,001 characters; the most is 4,000"):
        inputs.jobs()
    replace(inputs, shared=0).jobs()  # it is not used then


def test_fractions_are_refused_where_only_whole_numbers_make_sense() -> None:
    with pytest.raises(ConfigError, match="Max at once must be a whole number from 1 to 32"):
        Inputs(max_num_seqs=2.5).config()
    Inputs(temperature=0.35).config()
    with pytest.raises(ConfigError, match="Set paged=True"):
        Inputs(paged=False).config()
