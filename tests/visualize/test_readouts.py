"""The numbers shown, and their comparison with the previous run."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from lab.config import EngineConfig, SamplingParams
from lab.trace.events import Committed, Judged, Prefilled, Proposed, StepTimed
from lab.trace.metrics import measure
from tests import tiny_models
from tests.visualize.conftest import CONFIGS, script
from visualize.format_numbers import three
from visualize.reduce.metric_cards import DASH, PreviousRun, Reading, beside, labels, rows

CONFIG = asdict(EngineConfig())
STARTED = script(CONFIGS["plain"], max_tokens=1)[0]


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
    metrics = replace(metrics, draft_acceptance_rate=(0.574 + 0.27) / 3)
    assert (
        rows(metrics, CONFIG)["accepted"][3]
        == "Accepted in 57, 27, 0% of the rounds, from the first draft token to the last."
    )
    alone = replace(metrics, acceptance_by_position=(0.57,), draft_acceptance_rate=0.57)
    assert rows(alone, CONFIG)["accepted"][3] == "Accepted in 57% of the rounds."


def test_rounds_with_fewer_guesses_are_told_of_beside_the_shares_that_they_lower() -> None:
    """With every guess kept, the last is not kept in all rounds: the text's end leaves no room for it."""
    run = tiny_models.engine("llama", "good").generate(
        "The king",
        EngineConfig(speculative="synthetic", synthetic_acceptance_rate=1.0),
        SamplingParams(max_tokens=8, ignore_eos=True),
    )
    shown = rows(run.metrics, CONFIG)["accepted"]
    assert shown[:2] == ["100", "%"]
    assert "100, 50, 50, 50%" in shown[3]
    assert "Not all rounds" in shown[3]


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
    before = PreviousRun(STARTED, plain)
    shown = rows(fast, CONFIG, before)
    ratio = fast.tokens_per_second / plain.tokens_per_second
    assert shown["speed"][2] == f"{ratio:.2g}× (was {plain.tokens_per_second:.0f})"
    assert rows(fast, CONFIG, before, over=False)["speed"][2] == f"was {plain.tokens_per_second:.0f}"
    assert shown["accepted"][2] == ""
    assert rows(plain, CONFIG, PreviousRun(STARTED, fast))["accepted"][2].startswith("was ")


def test_of_two_numbers_in_a_readout_one_is_compared_and_named() -> None:
    """The bytes held, not those used; the median gap, not the longest."""
    metrics = measure(script(CONFIGS["plain"]))
    was = replace(metrics, kv_used_bytes=10_000, kv_reserved_bytes=20_000, itl_p50_ms=10.0, itl_p99_ms=20.0)
    now = replace(metrics, kv_used_bytes=10_000, kv_reserved_bytes=60_000, itl_p50_ms=10.0, itl_p99_ms=80.0)
    shown = rows(now, CONFIG, PreviousRun(STARTED, was))
    assert shown["kv"][2] == "allocated 3×"
    assert shown["gaps"][2] == "p50 1×"


@pytest.mark.parametrize(("bound", "said"), [("memory", "a cache helps"), ("compute", "another kernel")])
def test_a_share_of_more_than_the_limit_is_explained_beside_it(bound: str, said: str) -> None:
    metrics = replace(measure(script(CONFIGS["plain"])), limit_share=1.294, limit_bound=bound)
    assert rows(metrics, CONFIG)["limit"] == ["129", "%", said]
    assert rows(replace(metrics, limit_share=0.97), CONFIG)["limit"][2] == ""
    assert rows(metrics, CONFIG, PreviousRun(STARTED, replace(metrics, limit_share=0.6)))["limit"][2] == "was 60"


def test_shares_are_shown_side_by_side_and_equal_numbers_as_the_same() -> None:
    assert beside(Reading("50", "%", 0.5), Reading("55", "%", 0.55), over=True) == "was 55"
    assert beside(Reading("7", "%", 0.07), Reading("7", "%", 0.0744), over=True) == "the same"
    assert beside(Reading("7", "%", 0.07), Reading("7", "%", 0.07), over=False) == "was 7"
    assert beside(Reading("7", "ms", 7.0), Reading("7", "s", 7000.0), over=True) == "0.001× (was 7 s)"


@pytest.mark.parametrize(
    ("times", "said"), [(0.0312, "0.03×"), (0.996, "1×"), (7.04, "7×"), (31.2, "31×"), (99.7, "100×"), (1234, "1234×")]
)
def test_a_ratio_has_two_digits_and_no_power_of_ten(times: float, said: str) -> None:
    assert beside(Reading("", "", 10 * times), Reading("10", "", 10), over=True) == f"{said} (was 10)"


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
    assert rows(metrics, CONFIG, PreviousRun(STARTED, slow), over=False)["first"][2] == "was 1.23 s"


def test_cached_tokens_found_are_shown_if_any_could_be() -> None:
    events = script(CONFIGS["paged"])
    assert "found" not in rows(measure(events), CONFIG)
    assert rows(measure(events), CONFIG | {"enable_prefix_caching": True})["found"] == ["0", "", ""]
    events = [replace(event, cached_tokens=48) if isinstance(event, Prefilled) else event for event in events]
    assert rows(measure(events), CONFIG)["found"][0] == "48"
