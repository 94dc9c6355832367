"""From a run to the settings that make it again."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.config import EngineConfig, SamplingParams
from lab.errors import ConfigError
from lab.models.devices import has_gpu
from lab.registry import EMBEDDED, Pair
from lab.trace.events import RunStarted
from tests.visualize.conftest import script
from tests.visualize.test_against import VALUES
from visualize.reduce.settings_from_run import again
from visualize.run_settings import LINK, MAX_PROMPT, NEUTRAL, POOL_TOKENS, Settings, senseless

STARTED = replace(script(Settings().engine_config(num_blocks=128))[0], target="stories", draft=None)
LOOKUP = replace(STARTED, config=STARTED.config | {"speculative": "ngram"})


def started(settings: Settings) -> RunStarted:
    """How the embedded pair's run with these settings begins."""
    config = settings.engine_config(num_blocks=settings.blocks)
    draft = f"stories-{settings.pair}" if settings.speculative == "draft" else None
    sampling = vars(settings.sampling()) | {"seed": settings.seed or 0}
    return replace(STARTED, prompt=settings.prompt, config=vars(config), sampling=sampling, draft=draft)


@given(st.builds(Settings, **VALUES))
def test_a_runs_settings_are_those_it_was_made_with(settings: Settings) -> None:
    settings = replace(settings, **{name: NEUTRAL[name] for name in senseless(settings)}, seed=settings.seed or 0)
    try:
        run = started(settings)
    except ConfigError:
        return
    found, notices = again(run, EMBEDDED)
    assert notices == []
    if not settings.kv_cache or settings.blocks == POOL_TOKENS // settings.block_size:
        settings = replace(settings, num_blocks=found.num_blocks)  # there is no pool
    if settings.speculative != "draft":
        settings = replace(settings, pair=found.pair)  # nobody knows
    if not has_gpu():
        settings = replace(settings, cuda_graphs=found.cuda_graphs)
    assert found == settings


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"prompt": "x" * (MAX_PROMPT + 1)}, "The run's prompt was left out: it has more than 4,000 characters."),
        (
            {"config": {"num_speculative_tokens": 20}},
            "The run's num_speculative_tokens was left out: it must be a whole number",
        ),
        ({"config": {"prompt_lookup_min": 3}}, "The run's shortest match cannot be set here: 3."),
        ({"config": {"prompt_lookup_max": 8}}, "The run's longest match cannot be set here: 8."),
        ({"sampling": {"stop": ["END\u202e"]}}, "The run's stop strings cannot be set here: “END⟨RLO⟩”."),
        ({"sampling": {"stop": "END"}}, "The run's stop strings cannot be set here: “END”."),
        ({"sampling": {"ignore_eos": True}}, "The run's end of text cannot be set here: ignored."),
        ({"sampling": {"logprobs": 2}}, "The run's logprobs was left out: it must be one of 0, 5."),
        ({"target": "mine\u202e", "draft": "small"}, "The run's models cannot be chosen here: mine⟨RLO⟩ and small."),
    ],
)
def test_what_the_page_cannot_have_is_said(changed: dict[str, Any], said: str) -> None:
    changed |= {part: getattr(LOOKUP, part) | changed.get(part, {}) for part in ("config", "sampling")}
    _, (notice,) = again(replace(LOOKUP, **changed), EMBEDDED)
    assert notice.startswith(said)


OTHER = {
    "kv_cache": False,
    "kv_dtype": "int8",
    "paged": False,
    "block_size": 32,
    "num_blocks": 64,
    "enable_prefix_caching": True,
    "eviction": "priority",
    "prefill_attention": "math",
    "kernels": "reference",
    "cuda_graphs": False,
    "torch_compile": True,
    "cache_priority": 3,
    "speculative": "synthetic",
    "num_speculative_tokens": 5,
    "adaptive_window": True,
    "prompt_lookup_min": 3,
    "prompt_lookup_max": 8,
    "early_exit_layer": 6,
    "synthetic_acceptance_rate": 0.5,
    "max_tokens": 90,
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.5,
    "seed": 9,
    "stop": ("END",),
    "ignore_eos": True,
    "logprobs": 5,
}
"""For every setting, another value than that of ``LOOKUP``."""


@pytest.mark.parametrize("name", [field.name for field in fields(EngineConfig) + fields(SamplingParams)])
def test_every_setting_of_a_run_is_on_the_page_or_said_not_to_be(name: str) -> None:
    if name == "cuda_graphs" and not has_gpu():
        pytest.skip("without a GPU there is nothing to switch off")
    part = "config" if name in LOOKUP.config else "sampling"
    run = replace(LOOKUP, **{part: getattr(LOOKUP, part) | {name: OTHER[name]}})
    assert again(run, EMBEDDED) != again(LOOKUP, EMBEDDED)


def test_a_setting_that_did_nothing_is_not_missed() -> None:
    assert again(replace(STARTED, config=STARTED.config | {"prompt_lookup_max": 8}), EMBEDDED)[1] == []


def test_a_file_that_predates_a_setting_has_its_default() -> None:
    config = {name: value for name, value in STARTED.config.items() if name != "prefill_attention"}
    assert again(replace(STARTED, config=config), EMBEDDED)[1] == []


def test_models_are_found_by_the_names_that_runs_call_them() -> None:
    pairs = {"a": Pair("A", "org/a", "org/b"), "b": Pair("B", "org/a", "org/c")}
    link = LINK.choosing(pair={"a": "A", "b": "B"})
    for draft, pair in ((None, "a"), ("org/b", "a"), ("org/c", "b")):
        found, notices = again(replace(STARTED, target="org/a", draft=draft), pairs, link)
        assert (found.pair, notices) == (pair, [])
