"""Settings compared on one prompt: the order of runs, the summary, and how times grow."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from itertools import groupby

import pytest

from lab.config import EngineConfig, SamplingParams
from lab.errors import ConfigError, LabError, PromptError
from lab.measure.comparison import compare, summarise, typical
from lab.measure.difference import first_difference
from lab.measure.measuring import Spread, turns
from lab.measure.scaling_fit import CACHED, TOGETHER, UNCACHED, measure_growth
from lab.trace.events import Committed, FellBack
from lab.trace.run import Run
from tests import tiny_models

PROMPT = "The king had three sons"
SAMPLING = SamplingParams(max_tokens=24, seed=3)
CONFIGS = {
    "cache": EngineConfig(),
    "draft": EngineConfig(speculative="draft", num_speculative_tokens=3),
    "no cache": EngineConfig(kv_cache=False),
}


@pytest.fixture(scope="module")
def engine():
    return tiny_models.engine("llama", "good")


def test_every_setting_runs_equally_often_in_a_changing_order():
    names = list("abcd")
    order = turns(names, 12)
    assert [turn.number for turn in order] == list(range(1, order[0].of + 1))
    rounds = [[turn.name for turn in some] for _, some in groupby(order, key=lambda turn: turn.repeat)]
    assert rounds[0] == names  # to warm up
    assert len(rounds) == 13
    assert all(sorted(some) == names for some in rounds)
    assert len({tuple(some) for some in rounds}) > 6
    assert set(Counter(some[0] for some in rounds[1:])) == set(names)  # each goes first at times
    assert order == turns(names, 12)


def test_runs_use_their_own_settings_and_greedy_outputs_are_the_same(engine):
    """No stop string ends an output early: that setting would be compared on less work than the others."""
    said, asked = [], replace(SAMPLING, stop=(engine.generate(PROMPT, EngineConfig(), SAMPLING).text[2:4],))
    runs = {name: [] for name in CONFIGS}
    for turn, run in compare(
        engine, PROMPT, CONFIGS, asked, 2, watch=lambda turn, tokens, event: said.append((turn, tokens))
    ):
        assert run.config == CONFIGS[turn.name]
        assert len(run.token_ids) == (24 if turn.repeat else 16)
        assert said[-1] == (turn, len(run.token_ids))
        if turn.repeat:
            runs[turn.name].append(run)
    assert {name: len(some) for name, some in runs.items()} == dict.fromkeys(CONFIGS, 2)
    assert first_difference(runs["cache"][0], runs["draft"][1]) is None
    assert first_difference(runs["cache"][0], runs["no cache"][0]) is None
    summaries = summarise(runs)
    assert summaries["cache"].speedup == Spread(1.0, 1.0, 1.0)
    assert summaries["draft"].acceptance > 0.3
    assert summaries["cache"].acceptance is None
    assert summaries["no cache"].kv_reserved_bytes == 0 < summaries["cache"].kv_used_bytes


def test_speed_ups_compare_runs_of_the_same_repeat(engine):
    slow, fast, faster = (timed(engine, pace) for pace in (10.0, 5.0, 2.5))
    summaries = summarise({"a": [slow, fast], "b": [fast, faster], "c": [faster], "d": []})
    assert list(summaries) == ["a", "b", "c"]
    assert summaries["a"].rates == pytest.approx((100, 200))
    assert summaries["b"].speedup == Spread(2.0, 2.0, 2.0)
    assert summaries["c"].speedup == Spread(4.0, 4.0, 4.0)
    assert [(summaries[name].one_run, summaries[name].clear) for name in "bc"] == [(False, True), (True, False)]
    assert summaries["a"].tokens_per_second == Spread(125.0, 150.0, 175.0)
    assert typical([faster, slow, fast]) is fast
    assert typical([faster, slow]) is slow
    paces = {"first": (2, 2), "slower": (4, 4.1), "faster": (1, 1.02), "either": (1.9, 2.2)}
    runs = {name: [timed(engine, pace) for pace in some] for name, some in paces.items()}
    clear = {name: summary.clear for name, summary in summarise(runs).items()}
    assert clear == {"first": True, "slower": True, "faster": True, "either": False}
    assert not any(summary.clear for summary in summarise({name: some[:1] for name, some in runs.items()}).values())


def timed(engine, pace: float) -> Run:
    """A run of one token every ``pace`` milliseconds."""
    events = list(engine.stream(PROMPT, EngineConfig(), SamplingParams(max_tokens=8, ignore_eos=True)))
    place = 0
    for i, event in enumerate(events):
        if isinstance(event, Committed):
            place += 1
            events[i] = replace(event, t_ms=pace * place)
    return Run(events)


def test_a_cancelled_comparison_yields_no_partial_run(engine):
    cancelled = threading.Event()
    steps = compare(
        engine,
        PROMPT,
        CONFIGS,
        SAMPLING,
        3,
        cancelled=cancelled,
        watch=lambda turn, tokens, event: cancelled.set() if (turn.number, tokens > 4) == (5, True) else None,
    )
    assert [turn.number for turn, _ in steps] == [1, 2, 3, 4]


ONE, EARLY = {"default": EngineConfig()}, EngineConfig(speculative="early_exit", early_exit_layer=99)


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"configs": {"one": EngineConfig()}}, ConfigError, "2 to 6 settings, not 1"),
        ({"configs": {str(i): EngineConfig() for i in range(7)}}, ConfigError, "not 7"),
        ({"sampling": SamplingParams(max_tokens=1, seed=1)}, ConfigError, "at least one repeat and two tokens"),
        ({"sampling": SamplingParams()}, ConfigError, "a seed that all share"),
        ({"repeats": 0}, ConfigError, "at least one repeat"),
        ({"prompt": ""}, PromptError, r"^The prompt is empty"),  # not blamed on a setting
        ({"prompt": "x" * (tiny_models.CONTEXT - 1)}, LabError, "one token only"),
        ({"configs": ONE | {"odd": EARLY}}, ConfigError, "^odd: early_exit_layer=99"),
        ({"configs": ONE | {"odd": EngineConfig(num_blocks=1)}}, PromptError, r"^odd: \d+ tokens .* the pool has 1"),
    ],
)
def test_invalid_comparisons_are_refused_before_the_first_run_with_the_reason(engine, changes, kind, says):
    asked = {"prompt": PROMPT, "configs": CONFIGS, "sampling": SAMPLING, "repeats": 1} | changes
    with pytest.raises(kind, match=says):
        next(compare(engine, **asked))


def test_a_run_that_fell_back_from_its_setting_is_not_compared(engine, monkeypatch):
    real = engine.stream

    def fall(*args, **options):
        for event in real(*args, **options):
            yield event
            if event.kind == "admitted":
                yield FellBack(t_ms=event.t_ms, part="drafter", reason="It broke.")

    monkeypatch.setattr(engine, "stream", fall)
    with pytest.raises(LabError, match=r"^cache: .* went on without its drafter: It broke\."):
        list(compare(engine, PROMPT, CONFIGS, SAMPLING, 1))


# -- growth ----------------------------------------------------------------------------------


def test_both_runs_are_timed_over_the_same_lengths_unless_cancelled_or_too_short(engine):
    said = []
    curves = measure_growth(
        engine, PROMPT, 61, cancelled=threading.Event(), watch=lambda name, tokens: said.append((name, tokens))
    )
    ids = len(engine.tokenizer(PROMPT)["input_ids"])
    for name in (CACHED, UNCACHED):
        assert curves[name].lengths == tuple(range(ids + 1, ids + 61))
        assert len(curves[name].medians[0]) == 60 // TOGETHER
        assert min(curves[name].ms) > 0
        assert (name, 61) in said
    cancelled = threading.Event()
    assert measure_growth(engine, PROMPT, 60, cancelled=cancelled, watch=lambda *_: cancelled.set()) == {}
    with pytest.raises(ConfigError, match="takes 51 tokens or more, not 30"):
        measure_growth(engine, PROMPT, 30, cancelled=threading.Event())
    with pytest.raises(ConfigError, match="leaves room for 20 tokens"):
        measure_growth(engine, "x" * (tiny_models.CONTEXT - 20), 60, cancelled=threading.Event())
