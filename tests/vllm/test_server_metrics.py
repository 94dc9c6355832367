"""Rates from two readings of a vLLM server's metrics, whatever the counters do and whatever the page contains."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.vllm import server_metrics as metrics
from lab.vllm.server_metrics import (
    ACCEPTED,
    COUNTERS,
    DRAFTED,
    DRAFTS,
    GENERATED,
    HITS,
    KV_USAGE,
    QUERIED,
    RUNNING,
    MetricsError,
    ServerMetrics,
    parse,
    rates,
)

PAGE = (Path(__file__).parents[1] / "fixtures/vllm-0.32-metrics.txt").read_text("utf-8")


def test_a_recorded_metrics_page_is_parsed() -> None:
    reading = parse(PAGE, at=1.0)
    assert reading.missing == ()
    assert reading.values[DRAFTS] == 12
    assert reading.values[DRAFTED] == 36
    assert reading.values[ACCEPTED] == 23
    assert reading.accepted_at == (9, 6, 4, 4)
    assert (reading.block_size, reading.num_blocks) == (32, 21845)


def test_rates_since_the_start_of_a_server_are_as_vllm_defines_them() -> None:
    """Mean acceptance length = 1 + accepted / drafts, acceptance rate = accepted / drafted, by position over drafts."""
    now = parse(PAGE, at=2.0)
    found = rates(ServerMetrics(0.0, dict.fromkeys(COUNTERS, 0.0), started=now.started), now)
    assert found.mean_acceptance_length == pytest.approx(1 + 23 / 12)
    assert found.draft_acceptance_rate == pytest.approx(23 / 36)
    assert found.acceptance_by_position == pytest.approx((9 / 12, 6 / 12, 4 / 12, 4 / 12))
    assert found.tokens_per_second == pytest.approx(40 / 2)
    assert found.prefix_hit_share == 0
    assert not found.restarted


@pytest.mark.parametrize("unknown", ["None", "", "9" * 10])
def test_blocks_of_several_engines_are_added_and_lines_may_be_indented(unknown: str) -> None:
    """One that has not counted its blocks yet says "None"; no server has 9,999,999,999."""
    page = "".join(
        f'  vllm:cache_config_info{{block_size="{size}",engine="{i}",num_gpu_blocks="{n}"}} 1\n'
        for i, (size, n) in enumerate(((16, 100), (16, 900), (unknown, unknown)))
    )
    reading = parse(page + "\tvllm:num_requests_running 1\n", at=0.0)
    assert (reading.block_size, reading.num_blocks, reading.values[RUNNING]) == (16, 1000, 1)


def test_a_value_missing_from_one_reading_is_not_taken_for_a_restart() -> None:
    """For instance because a proxy cut the page short."""
    whole = ServerMetrics(0.0, {GENERATED: 1e6, DRAFTS: 9}, started=7.0)
    for before, after in (
        (replace(whole, started=None), replace(whole, at=1.0)),
        (whole, replace(whole, at=1.0, started=None)),
    ):
        found = rates(before, after)
        assert not found.restarted
        assert found.tokens_per_second == 0
    found = rates(ServerMetrics(0.0, {DRAFTS: 9}, started=7.0), replace(whole, at=1.0))
    assert found.tokens_per_second is None
    assert not found.restarted


COUNTS = st.lists(st.integers(0, 50), min_size=5, max_size=5)


def reading(at: float, total: list[int], started: float) -> ServerMetrics:
    rounds, kept, wasted, generated, looked_up = total
    values = {DRAFTS: rounds + kept, ACCEPTED: kept, DRAFTED: kept + wasted, GENERATED: generated}
    return ServerMetrics(at, values | {QUERIED: looked_up + kept, HITS: kept}, (kept, kept / 2), started)


@given(st.lists(st.tuples(COUNTS, st.booleans()), min_size=2, max_size=8))
def test_rates_count_what_happened_and_nothing_across_a_restart(steps: list[tuple[list[int], bool]]) -> None:
    total, started, before = [0] * 5, 0.0, reading(0.0, [0] * 5, 0.0)
    for second, (more, restart) in enumerate(steps, 1):
        started = float(second) if restart else started
        total = more if restart else [a + b for a, b in zip(total, more, strict=True)]
        after = reading(float(second), total, started)
        found = rates(before, after)
        shares = (found.draft_acceptance_rate, found.prefix_hit_share, *found.acceptance_by_position)
        assert all(0 <= share <= 1 for share in shares if share is not None)
        drafts, kept = more[0] + more[1], more[1]
        assert found.mean_acceptance_length == (1 + kept / drafts if drafts and not restart else None)
        assert found.restarted == restart
        assert found.tokens_per_second == (None if restart else more[3])
        before = after


HOSTILE = ("", "<html><body>404</body></html>", "vllm:num_requests_running{", 'vllm:num_requests_running{a="} 1')
HOSTILE += ("vllm:num_requests_running one", "up 1\n", "\x00" * 50)


@pytest.mark.parametrize("page", HOSTILE)
def test_a_page_without_vllm_metrics_is_refused(page: str) -> None:
    with pytest.raises(MetricsError, match="vLLM"):
        parse(page, at=0.0)


HUGE = 2**21
COSTLY = {
    "of others": 'other{a="' + "\\\\" * HUGE + '"} 1',
    "commented": "# HELP vllm:num_requests_running " + "\\\\" * HUGE,
    "alike": "vllm:num_requests_running_too{" + ",".join(f'a{i}="x"' for i in range(HUGE // 8)) + "} 1",
}
BEYOND = {
    "line": 'vllm:num_requests_running{a="' + "x" * metrics.MAX_LINE + '"} 1',
    "lines": "vllm:num_requests_running 1\n" * (HUGE // 28),
}


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many characters of each page the parser was given: its time grows with the square of a line's length."""
    sizes: list[int] = []
    honest = metrics.text_string_to_metric_families
    monkeypatch.setattr(metrics, "text_string_to_metric_families", lambda text: sizes.append(len(text)) or honest(text))
    return sizes


@pytest.mark.parametrize("line", COSTLY.values(), ids=COSTLY)
def test_lines_that_are_not_needed_are_not_parsed(line: str, parsed: list[int]) -> None:
    assert parse(f"{line}\n{PAGE}{line}\n", at=1.0) == parse(PAGE, at=1.0)
    assert parsed[0] == parsed[1] < len(PAGE)


@pytest.mark.parametrize("page", BEYOND.values(), ids=BEYOND)
def test_an_oversized_page_is_refused_unparsed(page: str, parsed: list[int]) -> None:
    with pytest.raises(MetricsError, match="no vLLM's have"):
        parse(PAGE + page, at=0.0)
    assert not parsed


@given(st.text(max_size=200), st.sampled_from(["NaN", "+Inf", "-1", "1e400", "1e308", "4"]), st.integers(0, 10**12))
def test_parsed_numbers_are_finite_whatever_the_page_contains(text: str, number: str, position: int) -> None:
    page = (
        f"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc {number}\nvllm:generation_tokens_total {number}\n"
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}} {number}\n'
        + "".join(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{at}"}} 1\n' for at in (30, 32, 40))
    )
    found = parse(page, at=0.0)
    assert all(math.isfinite(value) and value >= 0 for value in (*found.values.values(), *found.accepted_at))
    assert found.values.get(KV_USAGE, 0) <= 1
    assert 31 <= len(found.accepted_at) <= 32, "positions beyond the longest window are left out"
    with contextlib.suppress(MetricsError):  # and nothing else is raised
        parse(text, at=0.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ServerMetrics(0.0, {GENERATED: 90, DRAFTS: 9, ACCEPTED: 0}), ServerMetrics(1.0, {GENERATED: 5, DRAFTS: 9})),
        (ServerMetrics(0.0, {GENERATED: 5, DRAFTS: 9}, (7, 3)), ServerMetrics(1.0, {GENERATED: 90, DRAFTS: 9}, (8, 2))),
    ],
    ids=["tokens", "accepted at a position"],
)
def test_without_a_start_time_a_restart_shows_in_falling_counters(before: ServerMetrics, after: ServerMetrics) -> None:
    found = rates(before, after)
    assert found.restarted
    assert (found.tokens_per_second, found.mean_acceptance_length) == (None, None)
