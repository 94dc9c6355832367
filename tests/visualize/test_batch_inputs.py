"""The Pool page's inputs: its presets, its link, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.config import ConfigError, EngineConfig, PromptError
from visualize.batch.inputs import (
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
        paged=False, prefix_caching=False, kv_format="int8", speculation="ngram", block_size=8, pool_blocks=99, seed=5
    )
    assert inputs.config() == EngineConfig(kv_dtype="int8", speculative="ngram", block_size=8, num_blocks=99)
    jobs = inputs.jobs()
    assert all(job.prompt.startswith(SYSTEM) for job in jobs)
    assert [job.sampling.seed for job in jobs[:2]] == [5, 6]
    several = replace(inputs, sequences=10, continuations=4).jobs()
    assert [(job.continuations, job.sampling.seed) for job in several] == [(4, 5), (4, 9), (2, 13)]
    assert not any(SYSTEM in job.prompt for job in replace(inputs, shared=False).jobs())
    assert not any(job.prompt.startswith("\n") for job in replace(inputs, system="  ").jobs())


GREEDY = {"temperature": 0.0, "lengths": "equal"}


@pytest.mark.parametrize(
    ("had", "changes", "alike"),
    [
        ({"shared": False}, {"system": "Another."}, True),
        ({"shared": True}, {"system": "Another."}, False),
        ({"shared": True}, {"system": f" {SYSTEM}\n"}, True),
        ({"shared": False}, {"shared": True, "system": " "}, True),
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
    given |= {name: data.draw(st.booleans()) for name in ("shared", "paged", "prefix_caching")}
    given["prefix_caching"] &= given["paged"]
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
        ({"speculation": "synthetic"}, "speculation was left out"),
        ({"paged": "0", "prefix_caching": "1"}, "needs paged blocks"),
        ({"system": "x" * 5000}, "more than 4,000 characters"),
        ({"temperature": "nan"}, "temperature was left out"),
    ],
)
def test_values_left_out_of_a_link_are_named(query: dict[str, str], says: str) -> None:
    inputs, [notice] = from_link(query)
    assert says in notice
    inputs.config()


def test_without_paged_blocks_prefix_caching_is_off_without_a_notice() -> None:
    assert from_link({"paged": "0"}) == (Inputs(paged=False, prefix_caching=False), [])


def test_numbers_are_read_as_a_browser_sends_them() -> None:
    values = [None if name == "seed" else float(v) if type(v) is int else v for name, v in DEFAULTS.items()]
    assert to_inputs(tuple(values)) == Inputs()
    assert isinstance(to_inputs(tuple(values)).sequences, int)


@pytest.mark.parametrize("value", [0, 33, 2.5e9, math.nan, math.inf, "many"])
def test_a_number_out_of_bounds_is_explained(value: Any) -> None:
    with pytest.raises(ConfigError, match="Sequences must be a whole number from 1 to 32"):
        Inputs(sequences=value).config()


def test_a_system_prompt_that_is_too_long_is_explained() -> None:
    inputs = Inputs(system="x" * 4001)
    with pytest.raises(PromptError, match="4,001 characters; the most is 4,000"):
        inputs.jobs()
    replace(inputs, shared=False).jobs()  # it is not used then


def test_fractions_are_refused_where_only_whole_numbers_make_sense() -> None:
    with pytest.raises(ConfigError, match="Max at once must be a whole number from 1 to 32"):
        Inputs(max_num_seqs=2.5).config()
    Inputs(temperature=0.35).config()
    with pytest.raises(ConfigError, match="Set paged=True"):
        Inputs(paged=False).config()
