"""From a run, or the Lab's settings, to settings and links that make them again."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.config import EngineConfig, SamplingParams
from lab.errors import LabError
from lab.models.devices import has_gpu
from lab.registry import EMBEDDED, Pair
from lab.settings import MAX_PROMPT, without_unused
from lab.trace.events import RunStarted
from tests.visualize.any_settings import LAB
from tests.visualize.conftest import script
from visualize.compare_link import against
from visualize.pages.compare.configurations import CompareInputs, from_link
from visualize.reduce.settings_from_run import settings_from_run
from visualize.run_settings import FORM, OTHER, POOL_TOKENS, Settings, with_pairs, without_unusable

STARTED = replace(script(Settings().engine_config(num_blocks=128))[0], target="stories", draft=None)
NGRAM = replace(STARTED, config=STARTED.config | {"speculative": "ngram"})
OWN_NAMES = {"pair": st.sampled_from(list(EMBEDDED)), "raw": st.just(False)}
OWN_NAMES |= dict.fromkeys(("target", "draft", "system", "messages", "thinking"), st.just(""))


def started(settings: Settings) -> RunStarted:
    """How the embedded pair's run with these settings begins."""
    config = settings.engine_config(settings.blocks)
    draft = f"stories-{settings.pair}" if settings.speculative == "draft" else None
    sampling = vars(settings.sampling()) | {"seed": settings.seed or 0}
    return replace(STARTED, prompt=settings.prompt, config=vars(config), sampling=sampling, draft=draft)


@given(st.builds(Settings, **LAB | OWN_NAMES))
def test_a_runs_settings_are_those_it_was_made_with(settings: Settings) -> None:
    settings = replace(without_unusable(settings), seed=settings.seed or 0)
    found, notices = settings_from_run(started(settings), EMBEDDED)
    assert notices == []
    if not settings.kv_cache or settings.blocks == POOL_TOKENS // settings.block_size:
        settings = replace(settings, num_blocks=found.num_blocks)  # there is no pool, or it is the usual one
    if settings.speculative != "draft":
        settings = replace(settings, pair=found.pair)  # nobody knows
    if not has_gpu():
        settings = replace(settings, cuda_graphs=found.cuda_graphs)
    assert found == settings


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"prompt": "x" * (MAX_PROMPT + 1)}, "4,000 characters"),
        ({"config": {"num_speculative_tokens": 20}}, "num_speculative_tokens"),
        ({"config": {"prompt_lookup_min": 3}}, "n-gram cannot be set here: 3"),
        ({"config": {"prompt_lookup_max": 8}}, "n-gram cannot be set here: 8"),
        ({"sampling": {"stop": ["x" * 200] * 8}}, "stop was left out"),
        ({"sampling": {"ignore_eos": True}}, "ignored"),
        ({"sampling": {"logprobs": 2}}, "logprobs"),
        ({"target": "mine\u202e", "draft": "small"}, "mine⟨RLO⟩ and small"),
    ],
)
def test_what_the_page_cannot_have_is_said(changed: dict[str, Any], named: str) -> None:
    changed |= {part: getattr(NGRAM, part) | changed.get(part, {}) for part in ("config", "sampling")}
    _, (notice,) = settings_from_run(replace(NGRAM, **changed), EMBEDDED)
    assert named in notice


def test_a_run_by_token_ids_is_made_again_by_them_and_compared_by_nobody() -> None:
    run = replace(NGRAM, prompt="a b", prompt_token_ids=(3, 1), prompt_given_as_ids=True)
    settings, notices = settings_from_run(run, EMBEDDED)
    assert (settings.asked(), notices) == ([3, 1], [])
    assert against(settings) == against(replace(settings, token_ids=False, parse_special=True)) == ""
    assert against(replace(settings, token_ids=False))


OTHERS = {"kv_dtype": "int8", "eviction": "priority", "prefill_attention": "math", "kernels": "reference"} | {
    "speculative": "synthetic",
    "synthetic_acceptance_rate": 0.5,
    "early_exit_layer": 6,
    "num_blocks": 64,
    "block_size": 32,
    "temperature": 0.5,
    "top_p": 0.5,
    "seed": 9,
    "stop": ("END",),
    "stop_token_ids": (3,),
    "logprobs": 5,
    "rejection_sample_method": "block",
    "draft_sample_method": "greedy",
    "num_speculative_tokens_per_batch_size": "1-4:2",
    "kv_cache_dtype_skip_layers": "0 15",
}


@pytest.mark.parametrize("name", [field.name for field in fields(EngineConfig) + fields(SamplingParams)])
def test_every_setting_of_a_run_is_on_the_page_or_said_not_to_be(name: str) -> None:
    if name == "cuda_graphs" and not has_gpu():
        pytest.skip("without a GPU there is nothing to switch off")
    part = "config" if name in NGRAM.config else "sampling"
    had = getattr(NGRAM, part)[name]
    other = OTHERS[name] if name in OTHERS else not had if isinstance(had, bool) else had + 3
    run = replace(NGRAM, **{part: getattr(NGRAM, part) | {name: other}})
    assert settings_from_run(run, EMBEDDED) != settings_from_run(NGRAM, EMBEDDED)


def test_a_setting_without_effect_and_one_that_a_file_predates_are_not_missed() -> None:
    for config in (
        STARTED.config | {"prompt_lookup_max": 8},
        {name: value for name, value in STARTED.config.items() if name != "prefill_attention"},
    ):
        assert settings_from_run(replace(STARTED, config=config), EMBEDDED)[1] == []


def test_models_are_found_by_the_names_that_runs_call_them() -> None:
    pairs = {"a": Pair("A", "org/a", "org/b"), "b": Pair("B", "org/a", "org/c")}
    form = with_pairs(FORM, {"a": "A", "b": "B"})
    for draft, pair in ((None, "a"), ("org/b", "a"), ("org/c", "b")):
        found, notices = settings_from_run(replace(STARTED, target="org/a", draft=draft), pairs, form)
        assert (found.pair, notices) == (pair, [])


# -- the link to a comparison --------------------------------------------------------------------


def asked(address: str) -> CompareInputs:
    """The inputs that the Compare page reads from the address, which must be valid in full, but for too many tokens."""
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True))
    assert (parts.scheme, parts.netloc, parts.path) == ("", "", "compare")
    assert "run" not in query, "nothing is measured before somebody asks for it"
    inputs, notices = from_link(query)
    assert len(notices) == (int(query["max_tokens"]) > 500)
    return inputs


@given(st.builds(Settings, **LAB | OWN_NAMES))
def test_the_baseline_runs_first_and_then_these_settings(settings: Settings) -> None:
    try:
        config = without_unused(settings.engine_config(settings.num_blocks if settings.kv_cache else None))
        settings.asked()
    except LabError:
        assert against(settings) == ""
        return
    address = against(settings)
    if not address:
        assert settings.parse_special or config == EngineConfig(cuda_graphs=config.cuda_graphs)
        return
    inputs = asked(address)
    plain, own = inputs.configs().values()
    assert own == config, "no setting is lost"
    if config.speculative == "off":
        assert plain == EngineConfig()
    else:
        assert plain == without_unused(replace(own, speculative="off"))
    assert (inputs.prompt, inputs.pair) == (settings.prompt, settings.pair)
    assert inputs.sampling().temperature == settings.temperature
    assert settings.seed in (None, inputs.seed)
    assert inputs.max_tokens == min(max(settings.max_tokens, 2), 500)


@pytest.mark.parametrize(
    ("settings", "lanes", "own"),
    [
        (Settings(paged=False), ("cache", "draft-4"), 0),
        (Settings(), ("paged",), 1),
        (Settings(speculative="off", kv_dtype="int8", paged=False), ("cache", "int8"), 0),
        (Settings(speculative="off", kv_cache=False, paged=False), ("cache", "no-cache"), 0),
        (Settings(kv_dtype="int8"), (), 2),  # has a named lane, but its baseline has none and must come first
        (Settings(paged=False, speculative="early_exit", early_exit_layer=6), ("cache",), 1),
    ],
)
def test_named_lanes_are_used_where_they_exist(settings: Settings, lanes: tuple[str, ...], own: int) -> None:
    inputs = asked(against(settings))
    assert (inputs.lanes, len(inputs.own.splitlines())) == (lanes, own)


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
