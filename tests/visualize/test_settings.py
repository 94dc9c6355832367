"""The page's link: what it may set and what it may not."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from urllib.parse import parse_qsl

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from lab.config import EngineConfig, SamplingParams
from lab.errors import ConfigError
from lab.kv_cache.attention import refuse_sdpa
from lab.models.devices import has_gpu
from lab.registry import Pair, named_pair
from lab.settings import OLD_NAMES
from visualize import run_settings as page_settings
from visualize.recorded_results import KV_ERROR, kv_error, logprobs_cost
from visualize.recorded_results import LOGPROBS as LOGPROBS_COST
from visualize.run_settings import (
    BOUNDS,
    CHOICES,
    DEFAULTS,
    LABELS,
    LINK,
    LOGPROBS,
    NAMES,
    NEUTRAL,
    OTHER,
    Settings,
    from_link,
    senseless,
)
from visualize.setting_needs import SAYS, state
from visualize.states import IN_CODE
from visualize.url_settings import OldLinks


def test_an_empty_link_gives_the_defaults() -> None:
    assert from_link({}) == (Settings(), [])
    Settings().engine_config()
    Settings().sampling()


def test_without_a_draft_prompt_lookup_guesses_unless_the_link_says_who() -> None:
    alone, family = Pair("alone", "a/target"), Pair("family", "a/target", "a/draft")
    pairs = {"matched": alone, "family": family}
    link = LINK.choosing(pair={name: pair.label for name, pair in pairs.items()} | {OTHER: "Other"})
    assert from_link({}, link, pairs) == (Settings(speculative="ngram"), [])
    assert from_link({"speculative": "off"}, link, pairs)[0].speculative == "off"
    for pair in ("family", OTHER):
        assert from_link({"pair": pair}, link, pairs)[0].speculative == "draft"


def test_a_link_sets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_settings, "has_gpu", lambda: True)
    link = {
        "prompt": "A <b>fox</b> & a wolf",
        "pair": "mismatched",
        "target": "somebody/large",
        "draft": "../small",
        "kv_cache": "1",
        "kv_dtype": "int4",
        "paged": "1",
        "enable_prefix_caching": "1",
        "speculative": "early_exit",
        "early_exit_layer": "6",
        "synthetic_acceptance_rate": "0.25",
        "num_speculative_tokens": "7",
        "adaptive_window": "1",
        "block_size": "8",
        "num_blocks": "32",
        "eviction": "priority",
        "cache_priority": "9",
        "kernels": "auto",
        "cuda_graphs": "0",
        "torch_compile": "1",
        "prefill_attention": "math",
        "temperature": "0.35",
        "top_k": "40",
        "top_p": "0.9",
        "seed": "123",
        "max_tokens": "64",
        "logprobs": "5",
    }
    assert link.keys() == set(NAMES)
    settings, notices = from_link(link)
    assert notices == []
    said = {name: getattr(settings, name) for name in NAMES}
    assert said == {
        **link,
        "kv_cache": True,
        "paged": True,
        "enable_prefix_caching": True,
        "early_exit_layer": 6,
        "synthetic_acceptance_rate": 0.25,
        "num_speculative_tokens": 7,
        "adaptive_window": True,
        "block_size": 8,
        "num_blocks": 32,
        "cache_priority": 9,
        "cuda_graphs": False,
        "torch_compile": True,
        "temperature": 0.35,
        "top_k": 40,
        "top_p": 0.9,
        "seed": 123,
        "max_tokens": 64,
        "logprobs": 5,
    }
    assert settings.engine_config() == EngineConfig(
        kv_dtype="int4",
        paged=True,
        block_size=8,
        enable_prefix_caching=True,
        eviction="priority",
        cache_priority=9,
        cuda_graphs=False,
        torch_compile=True,
        prefill_attention="math",
        speculative="early_exit",
        num_speculative_tokens=7,
        adaptive_window=True,
        early_exit_layer=6,
        synthetic_acceptance_rate=0.25,
    )
    assert settings.sampling().top_p == 0.9
    assert settings.sampling().logprobs == LOGPROBS
    assert replace(settings, logprobs=0).sampling().logprobs == 0


@given(st.data())
def test_a_link_round_trips_but_for_combinations_without_effect(data: st.DataObject) -> None:
    """As the page writes it: numbers as text, switches as 0 and 1."""
    given = {name: data.draw(st.sampled_from(list(values))) for name, values in CHOICES.items()}
    given |= {name: data.draw(st.booleans()) for name in NAMES if isinstance(DEFAULTS[name], bool)}
    link = {name: str(int(value) if isinstance(value, bool) else value) for name, value in given.items()}
    settings, notices = from_link(link)
    settings.engine_config()  # valid, whatever the link said
    meant = Settings(**given)
    out = senseless(meant)
    assert settings == replace(meant, **{name: NEUTRAL[name] for name in out})
    assert len(notices) == sum(given[name] != NEUTRAL[name] for name in out)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt", "x" * 4001),
        ("pair", "../../etc/passwd"),
        ("kv_cache", "perhaps"),
        ("kv_dtype", "int2"),
        ("speculative", "1"),
        ("eviction", "fifo"),
        ("early_exit_layer", "0"),
        ("synthetic_acceptance_rate", "1.01"),
        ("cache_priority", "10"),
        ("adaptive_window", "2"),
        ("num_speculative_tokens", "0"),
        ("num_speculative_tokens", "9"),
        ("num_speculative_tokens", "4.5"),
        ("num_speculative_tokens", "1" * 5000),
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
    assert name in notices[0]


def test_a_toggle_may_be_written_as_a_number_or_a_word() -> None:
    assert from_link({"kv_cache": "false", "paged": "false"}) == from_link({"kv_cache": "0", "paged": "0"})
    for word in ("true", "True", "yes", "on"):
        assert from_link({"adaptive_window": word}) == from_link({"adaptive_window": "1"})


def test_messages_name_settings_by_the_labels_of_their_controls() -> None:
    assert set(IN_CODE.values()) <= set(LABELS.values())
    assert IN_CODE.keys() <= {field.name for kind in (EngineConfig, SamplingParams) for field in fields(kind)}


def test_a_nonsensical_combination_is_corrected_and_named() -> None:
    settings, notices = from_link({"kv_cache": "0", "kv_dtype": "int8", "paged": "1", "enable_prefix_caching": "1"})
    assert (settings.kv_dtype, settings.paged, settings.enable_prefix_caching) == ("auto", False, False)
    assert notices == [
        f"The link's {name} was left out: it needs the KV cache: without it nothing is kept."
        for name in ("kv_dtype", "paged", "enable_prefix_caching")
    ]
    settings, notices = from_link({"paged": "0", "enable_prefix_caching": "1"})
    assert settings.enable_prefix_caching is False
    assert notices == [
        "The link's enable_prefix_caching was left out: it needs paged blocks: only those can be shared."
    ]
    assert from_link({"kv_cache": "0"})[0].engine_config().kv_cache is False
    with pytest.raises(ConfigError, match="nothing is stored"):
        Settings(kv_cache=False, kv_dtype="int8", paged=False).engine_config()


@pytest.mark.parametrize(
    ("gpu", "link", "left"),
    [
        (False, {"cuda_graphs": "1"}, {"cuda_graphs": "needs a GPU"}),
        (False, {"torch_compile": "1"}, {"torch_compile": "needs kernels by Torch"}),
        (False, {"torch_compile": "1", "kernels": "reference"}, {}),
        (True, {"torch_compile": "1", "cuda_graphs": "1"}, {}),
        (True, {"cuda_graphs": "1", "kernels": "reference"}, {"cuda_graphs": "needs the KV cache and the lab's own"}),
    ],
)
def test_what_this_machine_cannot_do_is_left_out(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, link: dict[str, str], left: dict[str, str]
) -> None:
    monkeypatch.setattr(page_settings, "has_gpu", lambda: gpu)
    settings, notices = from_link({"cuda_graphs": "0"} | link)
    assert len(notices) == len(left)
    for (name, reason), notice in zip(left.items(), notices, strict=True):
        assert f"The link's {name} was left out: it {reason}" in notice
        assert getattr(settings, name) is False
    config = settings.engine_config()
    assert config.torch_compile == ("torch_compile" in link and not left)
    assert config.kernels == link.get("kernels", "auto")
    if not gpu:
        assert config.cuda_graphs  # the engine's default was not switched off


def test_only_attention_kernels_that_run_here_are_offered() -> None:
    for choice in CHOICES["prefill_attention"]:
        if not has_gpu():
            refuse_sdpa(choice, torch.device("cpu"), torch.float32, 64)
    assert {"auto", "math"} <= CHOICES["prefill_attention"].keys()


def test_an_empty_seed_lets_the_engine_pick_one() -> None:
    assert from_link({"seed": ""})[0].sampling().seed is None


def test_bounds_are_within_the_engines() -> None:
    for name, bounds in BOUNDS.items():
        for value in bounds:
            settings = Settings(**{name: value})
            settings.engine_config()
            settings.sampling()


def test_with_an_adaptive_window_no_seed_is_said_to_give_the_same_text() -> None:
    for adaptive, speculation, same in ((False, "draft", True), (True, "draft", False), (True, "off", True)):
        updates, _ = state(Settings(adaptive_window=adaptive, speculative=speculation), {})
        assert (updates["seed"]["info"] == SAYS["seed"]) == same, (adaptive, speculation)


def test_a_format_is_shown_with_its_recorded_error() -> None:
    recorded = json.loads(KV_ERROR.read_text("utf-8"))["formats"]
    assert kv_error("auto") == ""
    for row in recorded[1:]:
        said = kv_error(row["kv_dtype"])
        fewer = 1 - recorded[0]["perplexity"] / row["perplexity"]  # perplexity is 1 / the tokens' mean probability
        assert said == f"Right tokens {fewer:.2%} less likely (on a CPU)."
        updates, _ = state(Settings(kv_dtype=row["kv_dtype"]), {})
        assert updates["kv_dtype"]["info"] == said
        updates, _ = state(Settings(kv_dtype=row["kv_dtype"], pair=OTHER), {})
        assert updates["kv_dtype"]["info"] == SAYS["kv_dtype"], "another model's error is not known"


def test_recording_distributions_states_its_measured_cost() -> None:
    recorded = json.loads(LOGPROBS_COST.read_text("utf-8"))
    assert recorded["logprobs"] == LOGPROBS
    cost = f"{recorded['added_ms']['median'] / recorded['plain_ms']:+.0%}"
    assert logprobs_cost() == cost
    assert SAYS["logprobs"] == f"Shows p and q. Slower: {cost} (on a CPU)."
    for pair, said in (("matched", SAYS["logprobs"]), (OTHER, "Shows p and q. Slower.")):
        updates, _ = state(Settings(speculative="draft", pair=pair), {})
        assert updates["logprobs"]["info"] == said


def test_a_link_may_name_only_pairs_that_the_server_has() -> None:
    link = LINK.choosing(pair={"matched": "Matched", OTHER: "Other"})
    assert from_link({"pair": OTHER, "target": "a/b"}, link) == (Settings(pair=OTHER, target="a/b"), [])
    for name in ("mismatched", OTHER):
        settings, [notice] = from_link({"pair": name}, LINK.choosing(pair={"matched": "Matched"}))
        assert settings == Settings()
        assert notice == "The link's pair was left out: it must be one of matched."


def test_named_models_are_used_only_if_other_is_chosen() -> None:
    assert Settings(target="ignored/model").models() == "matched"
    assert Settings(pair=OTHER, target=" a/b ", draft="c/d").models() == named_pair("a/b", "c/d")
    with pytest.raises(ConfigError, match="Name a target model"):
        Settings(pair=OTHER).models()


def test_a_missing_draft_model_is_refused_before_the_target_loads() -> None:
    alone = Settings(pair=OTHER, target="a/b")
    with pytest.raises(ConfigError, match=r"Speculation: Draft needs a draft model.* or choose Off or Lookup"):
        alone.models()
    assert replace(alone, speculative="ngram").models() == named_pair("a/b", "")
    assert Settings(pair=OTHER, draft="c/d").models() == named_pair("", "c/d"), "a draft for the embedded target"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gamma=6&kv_format=int8&run=1&at=30", {"num_speculative_tokens": "6", "kv_dtype": "int8"}),
        ("cache=0&speculation=off&prefix_caching=1", {"kv_cache": "0", "speculative": "off"}),
        ("synthetic_rate=.5&distributions=1", {"synthetic_acceptance_rate": ".5", "logprobs": "5"}),
        ("pool_size=512&block_size=8", {"num_blocks": "64", "block_size": "8"}),
        ("pool_size=512", {"num_blocks": "32"}),
        ("pool_size=%FF&block_size=0&distributions=", {"logprobs": ""}),
        ("pool_blocks=21&speculation=draft", {"num_blocks": "21", "speculative": "draft"}),
        ("gamma=6&num_speculative_tokens=2", {"num_speculative_tokens": "2"}),
    ],
)
def test_an_old_link_is_redirected_to_the_names_of_now(old: str, new: dict[str, str]) -> None:
    pages = TestClient(OldLinks(PlainTextResponse("")), follow_redirects=False)
    answer = pages.get(f"/compare?{old}")
    where = answer.headers["location"]
    query = dict(parse_qsl(where.removeprefix("?"), keep_blank_values=True))
    assert (answer.status_code, query.keys() & OLD_NAMES.keys()) == (307, set())
    assert query.items() >= new.items()
    assert pages.get(f"/compare{where}").status_code == 200
    assert pages.get(f"/gradio_api/info?{old}").status_code == 200
