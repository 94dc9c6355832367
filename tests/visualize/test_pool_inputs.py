"""The Pool page's inputs: its presets, its link, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import pytest

from lab.config import EngineConfig
from lab.errors import ConfigError, PromptError
from visualize import run_settings as lab_settings
from visualize.page_list import PAGES
from visualize.pool_inputs import PRESETS, SYSTEM, PoolInputs, address, from_link, in_lab, preset_of


@pytest.mark.parametrize("key", PRESETS)
def test_every_preset_is_valid_recognised_and_opened_by_its_address(key: str) -> None:
    inputs = PRESETS[key].inputs
    page, _, query = address(inputs).partition("?")
    assert page == "pool"
    assert from_link(dict(parse_qsl(query))) == (inputs, [])
    assert preset_of(inputs) == key
    inputs.config()
    assert sum(job.continuations for job in inputs.jobs()) == inputs.sequences
    assert preset_of(replace(inputs, sequences=3)) is None


def test_inputs_become_the_engines_settings_and_jobs() -> None:
    inputs = PoolInputs(
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
        ({"speculative": "off"}, {"num_speculative_tokens_per_batch_size": "1-4:2"}, True),
        ({"speculative": "draft"}, {"num_speculative_tokens_per_batch_size": "1-4:2"}, False),
    ],
)
def test_runs_are_alike_whose_inputs_differ_only_where_they_have_no_effect(
    had: dict[str, Any], changes: dict[str, Any], alike: bool
) -> None:
    before = PoolInputs(**had)
    assert (replace(before, **changes).asked() == before.asked()) == alike


@pytest.mark.parametrize("key", PRESETS)
def test_the_first_sequence_can_be_run_alone_in_the_lab(key: str) -> None:
    inputs = PRESETS[key].inputs
    page, _, query = in_lab(inputs).partition("?")
    assert page == PAGES["Lab"]
    asked = dict(parse_qsl(query))
    assert asked.pop("run") == "1"
    found, notices = lab_settings.from_link(asked)
    assert notices == []
    config, first = replace(inputs.config(), num_speculative_tokens_per_batch_size=""), inputs.jobs()[0]
    assert replace(found.engine_config(config.num_blocks), early_exit_layer=None) == config
    assert (found.prompt, found.max_tokens, found.seed) == (first.prompt, first.sampling.max_tokens, inputs.seed)
    assert found.temperature == first.sampling.temperature


@pytest.mark.parametrize(("table", "speculative", "gamma"), [("1:2 2-8:0", "draft", 2), ("1:0 2-8:4", "off", 4)])
def test_alone_in_the_lab_a_sequence_drafts_as_a_batch_of_one(table: str, speculative: str, gamma: int) -> None:
    inputs = PoolInputs(speculative="draft", num_speculative_tokens_per_batch_size=table)
    found, _ = lab_settings.from_link(dict(parse_qsl(in_lab(inputs).partition("?")[2])))
    assert (found.speculative, found.num_speculative_tokens) == (speculative, gamma)


def test_no_link_leads_from_inputs_that_make_no_sense_to_the_lab() -> None:
    assert in_lab(PoolInputs(sequences=0)) == ""
    assert in_lab(PoolInputs(system="x" * 4001)) == ""


def test_prefix_caching_is_left_out_of_a_link_without_a_paged_cache() -> None:
    assert from_link({"paged": "0"}) == (PoolInputs(paged=False, enable_prefix_caching=False), [])
    inputs, [notice] = from_link({"paged": "0", "enable_prefix_caching": "1"})
    assert "enable_prefix_caching" in notice
    inputs.config()


@pytest.mark.parametrize(
    "changes", [{"max_num_seqs": 2.5}, {"sequences": 33}, {"paged": False}, {"system": "x" * 4001}]
)
def test_inputs_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    inputs = PoolInputs(**changes)
    with pytest.raises((ConfigError, PromptError)):
        inputs.config(), inputs.jobs()
