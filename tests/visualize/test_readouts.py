"""The numbers shown, and their comparison with the previous run."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from lab.config import EngineConfig, SamplingParams
from lab.load import new_engine
from lab.trace.events import BlockFreed, Prefilled, RecurrentRolledBack
from lab.trace.metrics import measure
from tests.engine.test_recurrent import hybrid
from tests.engine.test_windows import windowed
from tests.tiny_models import tokenizer
from tests.visualize.conftest import CONFIGS, script
from visualize.format_numbers import three
from visualize.reduce.frames import Reducer
from visualize.reduce.metric_cards import DASH, PreviousRun, Reading, beside, labels, rows, shown_ms, trend

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
    assert shown["limit"][:2] == [f"{100 * metrics.roofline_fraction:.0f}", "%"]


def test_the_previous_run_is_shown_beside() -> None:
    plain, fast = (measure(script(CONFIGS[name])) for name in ("plain", "speculative"))
    before = PreviousRun(STARTED, plain)
    shown = rows(fast, CONFIG, before)
    ratio = fast.tokens_per_second / plain.tokens_per_second
    assert shown["speed"][2] == f"▲ {ratio:.2g}× (was {plain.tokens_per_second:.0f})"
    assert shown["speed"][4] == "better"
    assert rows(fast, CONFIG, before, over=False)["speed"][2] == f"was {plain.tokens_per_second:.0f}"
    assert shown["accepted"][2] == ""
    slower = rows(plain, CONFIG, PreviousRun(STARTED, fast))
    assert slower["accepted"][2].startswith("was ")
    assert slower["speed"][4] == "worse"


def test_of_two_numbers_in_a_readout_one_is_compared() -> None:
    """The bytes held, not those used; the median gap, not the longest. What was is said to whoever points there."""
    metrics = measure(script(CONFIGS["plain"]))
    was = replace(metrics, kv_used_bytes=10_000, kv_reserved_bytes=20_000, itl_p50_ms=10.0, itl_p99_ms=20.0)
    now = replace(metrics, kv_used_bytes=10_000, kv_reserved_bytes=60_000, itl_p50_ms=10.0, itl_p99_ms=80.0)
    shown = rows(now, CONFIG, PreviousRun(STARTED, was))
    assert shown["kv"][2:] == ["▲ 3×", "Previous run: 10 / 20 kB.", "worse"]
    assert shown["gaps"][2:] == ["▼ 1×", "Previous run: 10.0 / 20.0 ms."]


@pytest.mark.parametrize(
    ("now", "better", "said"), [(120, 1, "better"), (120, -1, "worse"), (80, 1, "worse"), (120, 0, ""), (105, 1, "")]
)
def test_a_change_is_for_the_better_or_the_worse_unless_it_may_be_noise(now: int, better: int, said: str) -> None:
    assert trend(Reading(str(now), "", now), Reading("100", "", 100), better) == said


def test_a_share_of_more_than_the_limit_is_explained_beside_it() -> None:
    metrics = replace(measure(script(CONFIGS["plain"])), roofline_fraction=1.294)
    assert rows(metrics, CONFIG)["limit"] == ["129", "%", "limit measured too low"]
    assert rows(replace(metrics, roofline_fraction=1.1), CONFIG)["limit"][2] == ""  # times scatter so much
    *_, note, more = rows(replace(metrics, roofline_fraction=0.01), CONFIG)["limit"]  # the embedded pair on a GPU
    assert (note, "the model is too small for it" in more) == ("not the limit", True)
    before = PreviousRun(STARTED, replace(metrics, roofline_fraction=0.6))
    assert rows(metrics, CONFIG, before)["limit"][2] == "▲ 69 points"


def test_shares_are_shown_side_by_side_and_equal_numbers_as_the_same() -> None:
    assert beside(Reading("50", "%", 0.5), Reading("55", "%", 0.55), over=True) == "▼ 5 points (was 55)"
    assert beside(Reading("7", "%", 0.07), Reading("7", "%", 0.0744), over=True) == "the same"
    assert beside(Reading("7", "%", 0.07), Reading("7", "%", 0.07), over=False) == "was 7"
    assert beside(Reading("7", "ms", 7.0), Reading("7", "s", 7000.0), over=True) == "▼ 0.001× (was 7 s)"


@pytest.mark.parametrize(
    ("times", "said"), [(0.0312, "0.03×"), (0.996, "1×"), (7.04, "7×"), (31.2, "31×"), (99.7, "100×"), (1234, "1234×")]
)
def test_a_ratio_has_two_digits_and_no_power_of_ten(times: float, said: str) -> None:
    assert beside(Reading("", "", 10 * times), Reading("10", "", 10), over=True)[2:] == f"{said} (was 10)"


def test_cached_tokens_found_are_shown_if_any_could_be() -> None:
    events = script(CONFIGS["paged"])
    assert "found" not in rows(measure(events), CONFIG)
    assert rows(measure(events), CONFIG | {"enable_prefix_caching": True})["found"] == ["0", "", ""]
    events = [replace(event, cached_tokens=48) if isinstance(event, Prefilled) else event for event in events]
    assert rows(measure(events), CONFIG)["found"][0] == "48"


def test_what_slid_out_of_a_window_is_told_once() -> None:
    config = EngineConfig(paged=True, block_size=4)
    run = new_engine(windowed("mistral"), tokenizer()).generate("Once", config, SamplingParams(max_tokens=24))
    frames = Reducer().feed(run.events)
    told = [frame for frame in frames if "slid out" in frame.get("say", "")]
    assert [frame["linger"] for frame in told] == [True]
    assert sum(isinstance(event, BlockFreed) and event.slid_out for event in run.events) > 2
    assert sum(frame.get("linger", False) for frame in frames) == 1


def test_a_recurrent_rollback_is_told_once_and_its_cost_is_shown_beside_the_other_way() -> None:
    lab = hybrid()
    lab.target.recurrent.rollback = "recompute"
    sampling = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    run = lab.generate("Once", EngineConfig(speculative="early_exit"), sampling)
    frames = Reducer().feed(run.events)
    told = [frame["say"] for frame in frames if "recurrent state" in frame.get("say", "")]
    assert len(told) == sum(frame.get("linger", False) for frame in frames) == 1
    first, *_, last = (event for event in run.events if isinstance(event, RecurrentRolledBack))
    costs = (" ".join(shown_ms(ms)) for ms in (first.recompute_ms, first.snapshots_ms))
    assert "({} a round; with snapshots {})".format(*costs) in told[0]
    value, unit, _, more = rows(run.metrics, run.started.config)["rollback"]
    assert [value, unit] == [*shown_ms(run.metrics.rollback_ms)]
    for ms in (last.snapshots_ms, last.recompute_ms):
        assert " ".join(shown_ms(ms)) in more
    assert "computing again" in more
    assert "rollback" not in rows(measure(script(CONFIGS["speculative"])), CONFIG)
