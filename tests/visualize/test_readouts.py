"""The numbers shown, and their comparison with the previous run."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from lab.config import EngineConfig
from lab.trace.events import Committed, Judged, Prefilled, Proposed, RunStarted, StepTimed
from lab.trace.metrics import measure
from tests.visualize.conftest import CONFIGS, script
from visualize.amounts import three
from visualize.run.readouts import DASH, Before, Reading, beside, described, difference, labels, rows
from visualize.run.settings import Settings

CONFIG = asdict(EngineConfig())
STARTED = script(CONFIGS["plain"], max_tokens=1)[0]


def started(config: EngineConfig | dict[str, Any], **changes: Any) -> RunStarted:
    """The first event of a run with this configuration."""
    return replace(STARTED, config=config if isinstance(config, dict) else asdict(config), **changes)


def test_nothing_measured_is_shown_as_a_dash() -> None:
    shown = rows(measure([]), CONFIG)
    assert shown.keys() == {label["key"] for label in labels() if label["always"]}
    assert {value for value, _, _ in shown.values()} == {DASH}


def test_numbers_agree_with_the_metrics() -> None:
    metrics = measure(script(CONFIGS["speculative"]))
    shown = rows(metrics, CONFIG)
    assert shown["speed"] == [three(metrics.tokens_per_second), "tok/s", ""]
    assert shown["pass"][0] == f"{1 / metrics.target_passes_per_token:.2f}"
    assert shown["accepted"][:2] == [f"{100 * metrics.draft_acceptance_rate:.0f}", "%"]
    assert shown["kv"][1] == "kB"
    assert shown["limit"][:2] == [f"{100 * metrics.limit_share:.0f}", "%"]


@pytest.mark.parametrize(("speed", "text"), [(0.0834, "0.08"), (7.6, "7.60"), (91.44, "91.4"), (147.2, "147")])
def test_a_large_model_on_a_cpu_has_a_speed_too(speed: float, text: str) -> None:
    shown = rows(replace(measure(script(CONFIGS["plain"])), tokens_per_second=speed), CONFIG)
    assert shown["speed"][0] == text


def test_what_is_kept_is_also_told_by_its_place_in_a_round() -> None:
    metrics = replace(measure(script(CONFIGS["speculative"])), acceptance_by_position=(0.574, 0.27, 0.0))
    assert rows(metrics, CONFIG)["accepted"][3] == "Kept in 57, 27, 0% of the rounds, from the first guess to the last."


def test_no_guess_kept_is_a_rate_and_not_a_dash() -> None:
    metrics = measure(script(CONFIGS["speculative"]))
    assert rows(replace(metrics, draft_acceptance_rate=0.0), CONFIG)["accepted"][:2] == ["0", "%"]


def test_plain_decoding_is_one_token_a_pass() -> None:
    shown = rows(measure(script(CONFIGS["plain"])), CONFIG)
    assert shown["pass"][0] == "1.00"
    assert shown["accepted"][0] == DASH


def test_a_pass_without_guesses_counts() -> None:
    """A drafter that finds nothing, as Lookup may, proposes nothing: such a pass gives one token."""
    events = script(EngineConfig(speculative="ngram"), max_tokens=40)
    idle = {event.step for event in events if isinstance(event, StepTimed) and event.step % 3 == 0}
    some = [event for event in events if not (isinstance(event, Proposed | Judged) and event.step in idle)]
    some = [
        replace(event, token_ids=event.token_ids[:1])
        if getattr(event, "step", 0) in idle and isinstance(event, Committed)
        else event
        for event in some
    ]
    metrics = measure(some)
    passes = sum(isinstance(event, StepTimed) and event.step_kind != "prefill" for event in some)
    tokens = sum(len(event.token_ids) for event in some if isinstance(event, Committed))
    assert rows(metrics, CONFIG)["pass"][0] == f"{(tokens - 1) / passes:.2f}"
    assert (tokens - 1) / passes < metrics.mean_acceptance_length - 0.3


def test_the_previous_run_is_shown_beside() -> None:
    plain, fast = (measure(script(CONFIGS[name])) for name in ("plain", "speculative"))
    before = Before(STARTED, plain)
    shown = rows(fast, CONFIG, before)
    ratio = fast.tokens_per_second / plain.tokens_per_second
    assert shown["speed"][2] == f"×{ratio:.2g} of {plain.tokens_per_second:.0f}"
    assert rows(fast, CONFIG, before, over=False)["speed"][2] == f"was {plain.tokens_per_second:.0f}"
    assert shown["accepted"][2] == ""
    assert rows(plain, CONFIG, Before(STARTED, fast))["accepted"][2].startswith("was ")


def test_of_two_numbers_in_a_readout_one_is_compared_and_named() -> None:
    """The bytes held, not those used; the median gap, not the longest."""
    metrics = measure(script(CONFIGS["plain"]))
    was = replace(metrics, kv_used_bytes=10_000, kv_reserved_bytes=20_000, itl_p50_ms=10.0, itl_p99_ms=20.0)
    now = replace(metrics, kv_used_bytes=10_000, kv_reserved_bytes=60_000, itl_p50_ms=10.0, itl_p99_ms=80.0)
    shown = rows(now, CONFIG, Before(STARTED, was))
    assert shown["kv"][2] == "held ×3 of 10 / 20"
    assert shown["gaps"][2] == "p50 ×1 of 10.0 / 20.0"


@pytest.mark.parametrize(("bound", "said"), [("memory", "a cache helps"), ("compute", "another kernel")])
def test_a_share_of_more_than_the_limit_is_explained_beside_it(bound: str, said: str) -> None:
    metrics = replace(measure(script(CONFIGS["plain"])), limit_share=1.294, limit_bound=bound)
    assert rows(metrics, CONFIG)["limit"] == ["129", "%", said]
    assert rows(replace(metrics, limit_share=0.97), CONFIG)["limit"][2] == ""
    assert rows(metrics, CONFIG, Before(STARTED, replace(metrics, limit_share=0.6)))["limit"][2] == "was 60"


def test_shares_are_shown_side_by_side_and_equal_numbers_as_the_same() -> None:
    assert beside(Reading("50", "%", 0.5), Reading("55", "%", 0.55), over=True) == "was 55"
    assert beside(Reading("7", "%", 0.07), Reading("7", "%", 0.0744), over=True) == "the same"
    assert beside(Reading("7", "%", 0.07), Reading("7", "%", 0.07), over=False) == "was 7"
    assert beside(Reading("7", "ms", 7.0), Reading("7", "s", 7000.0), over=True) == "×0.001 of 7 s"


@pytest.mark.parametrize(
    ("times", "said"), [(0.0312, "×0.03"), (0.996, "×1"), (7.04, "×7"), (31.2, "×31"), (99.7, "×100"), (1234, "×1234")]
)
def test_a_ratio_has_two_digits_and_no_power_of_ten(times: float, said: str) -> None:
    assert beside(Reading("", "", 10 * times), Reading("10", "", 10), over=True) == f"{said} of 10"


def test_large_numbers_change_units_in_comparisons_too() -> None:
    metrics = measure(script(CONFIGS["plain"]))
    slow = replace(
        metrics,
        ttft_ms=1234.5,
        itl_p50_ms=99.96,
        itl_p99_ms=12_345.0,
        kv_used_bytes=999_600_000,
        kv_reserved_bytes=64_000_000_000,
        peak_memory_bytes=140_200_000_000,
    )
    shown = {name: row[:2] for name, row in rows(slow, CONFIG).items()}
    assert shown["first"] == ["1.23", "s"]
    assert shown["gaps"] == ["0.1 / 12.3", "s"]
    assert shown["kv"] == ["1 / 64", "GB"]
    assert shown["memory"] == ["140", "GB"]
    assert rows(replace(metrics, peak_memory_bytes=9_876_543_210), CONFIG)["memory"][:2] == ["9877", "MB"]
    kv = {"kv_used_bytes": 999_600_000, "kv_reserved_bytes": 999_700_000}
    assert rows(replace(metrics, **kv), CONFIG)["kv"][:2] == ["1,000 / 1,000", "MB"]
    edges = replace(metrics, ttft_ms=999.7, itl_p50_ms=9.96, itl_p99_ms=99.96)
    shown = {name: row[:2] for name, row in rows(edges, CONFIG).items()}
    assert (shown["first"], shown["gaps"]) == (["1", "s"], ["10.0 / 100", "ms"])
    assert rows(metrics, CONFIG, Before(STARTED, slow), over=False)["first"][2] == "was 1.23 s"


def test_changed_settings_are_named() -> None:
    assert difference(STARTED, STARTED) == "Small: the previous run, with the same settings."
    now = EngineConfig(
        kv_dtype="int4", paged=True, enable_prefix_caching=True, speculative="synthetic", adaptive_window=True
    )
    assert difference(STARTED, started(now)) == (
        "Small: the previous run. Changed: KV format Native → INT4, paged blocks off → on, "
        "prefix caching off → on, speculation Off → Synthetic, adaptive window off → on."
    )


def test_every_setting_of_the_page_is_named_when_it_changes() -> None:
    before = asdict(Settings().engine_config())

    def said(**changes: Any) -> str:
        return difference(started(before), started(before | changes))

    for name in ("kv_cache", "paged", "enable_prefix_caching", "adaptive_window", "cuda_graphs", "torch_compile"):
        assert "same" not in said(**{name: not before[name]})
    for name in ("num_speculative_tokens", "block_size"):
        assert "→ 77" in said(**{name: 77})
    for speculative, name in (("early_exit", "early_exit_layer"), ("synthetic", "synthetic_acceptance_rate")):
        assert "→ 77" in said(speculative=speculative, **{name: 77})
        assert said(**{name: 77}).endswith("with the same settings.")  # without its drafter it has no effect
    usual = EngineConfig(speculative="early_exit")
    assert "layers a quarter → 2" in difference(started(usual), started(replace(usual, early_exit_layer=2)))
    assert "kernels The lab's own → Torch" in said(kernels="reference")
    assert "prompt attention Auto → Flash" in said(prefill_attention="flash")
    assert "cache priority 0 → 5" in said(cache_priority=5)
    assert "least recently used → lowest priority" in said(eviction="priority")


@pytest.mark.parametrize(
    ("sampled", "said"),
    [
        ({"temperature": 0.0}, "temperature 0.8 → 0.0"),
        ({"top_k": 50}, "top-k 0 → 50"),
        ({"top_p": 0.9}, "top-p 1.0 → 0.9"),
        ({"seed": 8}, "seed 3 → 8"),
        ({"max_tokens": 90}, "max tokens 1 → 90"),
        ({"logprobs": 5}, "recorded distributions off → on"),
    ],
)
def test_changed_sampling_is_named(sampled: dict[str, Any], said: str) -> None:
    now = replace(STARTED, sampling=STARTED.sampling | sampled)
    assert difference(STARTED, now) == f"Small: the previous run. Changed: {said}."


def test_settings_without_effect_are_not_named() -> None:
    cached = EngineConfig(paged=True, num_blocks=128, enable_prefix_caching=True, eviction="priority", cache_priority=5)
    before, off = asdict(cached), CONFIG | {"kv_cache": False}
    assert difference(started(before), started(off)).endswith("Changed: KV cache on → off.")
    drafted = EngineConfig(speculative="draft", num_speculative_tokens=6, adaptive_window=True)
    assert difference(started(drafted), started(CONFIG)).endswith("Changed: speculation Draft → Off.")
    assert "blocks in the pool as memory allows → 128" in difference(started(off), started(before))


def test_changed_models_and_prompts_are_named() -> None:
    drafted = started(EngineConfig(speculative="draft"), draft="stories-matched")
    assert "same" in difference(drafted, drafted)
    now = replace(drafted, draft="stories-mismatched", prompt="The king")
    assert (
        difference(drafted, now)
        == "Small: the previous run. Changed: draft model matched → mismatched, another prompt."
    )
    other = replace(drafted, target="qwen\n", draft="tiny\n")
    assert difference(drafted, other) == (
        "Small: the previous run. Changed: target stories → qwen↵, draft model matched → tiny↵."
    )
    assert "target qwen↵ → stories" in difference(other, drafted)
    assert difference(STARTED, drafted) == "Small: the previous run. Changed: speculation Off → Draft."


def test_a_setting_missing_from_an_older_run_has_its_default() -> None:
    older = {name: value for name, value in CONFIG.items() if name not in ("kernels", "cuda_graphs", "torch_compile")}
    assert "same" in difference(started(older), started(CONFIG))
    assert described(older, {"temperature": 0.8, "seed": 7}) == described(CONFIG, {"temperature": 0.8, "seed": 7})


def test_cached_tokens_found_are_shown_if_any_could_be() -> None:
    events = script(CONFIGS["paged"])
    assert "found" not in rows(measure(events), CONFIG)
    assert rows(measure(events), CONFIG | {"enable_prefix_caching": True})["found"] == ["0", "", ""]
    events = [replace(event, cached_tokens=48) if isinstance(event, Prefilled) else event for event in events]
    assert rows(measure(events), CONFIG)["found"][0] == "48"


def test_only_settings_that_mattered_are_described() -> None:
    sampling = {"temperature": 0.8, "seed": 7}
    now = asdict(EngineConfig(paged=True, speculative="draft", num_speculative_tokens=6, early_exit_layer=4))
    assert described(now, sampling) == (
        "KV format Native, paged blocks on, speculation Draft, guesses a round 6, temperature 0.8, seed 7"
    )
    assert "early-exit layers 4" in described(now | {"speculative": "early_exit"}, sampling)
    assert "guesses" not in described(now | {"speculative": "off"}, sampling)
    assert "KV cache off" in described(asdict(EngineConfig(kv_cache=False)), sampling)
