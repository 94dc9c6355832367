"""A against B: quality is exact where it has to be. Of speeds it is only asserted that they are reported."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace

import pytest

from lab import ConfigError, EngineConfig, LabError, Run, SamplingParams
from lab.bench import __main__ as command
from lab.bench import ab_test as bench
from lab.bench.ab_test import Sample, SideMetrics, format_ab, measure_sample, run_ab, summarise
from lab.measure.difference import common_length
from lab.trace.events import FellBack
from lab.trace.run import AcceptanceStats as Stats
from lab.trace.run import acceptance_stats
from tests import tiny_models

PROMPTS = ["The king", "A fox ran", "Once upon a time", "In the wood", "A hen sat", "Long ago"]
TOKENS = 16
SPECULATIVE = EngineConfig(speculative="draft", num_speculative_tokens=3)


@pytest.fixture(scope="module")
def lab():
    return tiny_models.engine("llama", "good")


def compare(lab, a: EngineConfig, b: EngineConfig, repeats: int = 1, **changes) -> dict:
    sampling = SamplingParams(**({"max_tokens": TOKENS, "temperature": 0.0} | changes))
    return json.loads(json.dumps(run_ab(lab, a, b, PROMPTS, sampling, repeats=repeats, report=lambda line: None)))


@pytest.mark.parametrize("config", [EngineConfig(), EngineConfig(kv_dtype="int4", paged=True), SPECULATIVE])
def test_a_setting_does_not_differ_from_itself(lab, config):
    result = compare(lab, config, config)
    assert result["kl"] == {"value": 0, "low": 0, "high": 0}
    assert result["metrics"]["perplexity"]["ratio"] == {"value": 1, "low": 1, "high": 1}
    assert result["exact_match_length"] == {"value": TOKENS, "low": TOKENS, "high": TOKENS}
    assert result["identical_outputs"]["value"] == 1
    assert result["identical_outputs"]["low"] < 1  # six prompts do not prove it for all
    for name in ("ttft_ms", "itl_p50_ms", "tokens_per_second"):
        for side in ("a", "b", "ratio"):
            interval = result["metrics"][name][side]
            assert 0 < interval["low"] <= interval["value"] <= interval["high"]


@pytest.mark.parametrize("lossless", [EngineConfig(paged=True), EngineConfig(kv_cache=False), SPECULATIVE])
def test_a_lossless_setting_changes_rounding_at_most(lab, lossless):
    result = compare(lab, EngineConfig(), lossless)
    assert result["identical_outputs"]["value"] == 1
    assert abs(result["kl"]["value"]) < 1e-7


@pytest.mark.parametrize("adaptive", [False, True])
def test_proposals_of_several_runs_are_counted_like_the_metrics_of_each(lab, adaptive):
    config = replace(SPECULATIVE, adaptive_window=adaptive)
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0.8, ignore_eos=True)  # no guess follows an end
    runs = [lab.generate(prompt, config, sampling) for prompt in PROMPTS[:3]]
    for run in runs:
        one = acceptance_stats([run])
        assert one.acceptance == run.metrics.draft_acceptance_rate
        assert one.mean_acceptance_length == run.metrics.mean_acceptance_length
    whole, parts = acceptance_stats(runs), [acceptance_stats([run]) for run in runs]
    for name in ("rounds", "proposed", "accepted"):
        assert getattr(whole, name) == sum(getattr(part, name) for part in parts) > 0


def test_a_coarser_cache_diverges_more(lab):
    int8 = compare(lab, EngineConfig(), EngineConfig(kv_dtype="int8"))
    int4 = compare(lab, EngineConfig(), EngineConfig(kv_dtype="int4"))
    assert 1e-6 < int8["kl"]["low"] <= int8["kl"]["value"] < int4["kl"]["value"]
    assert int4["exact_match_length"]["value"] < TOKENS


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_swapping_a_and_b_inverts_the_result(lab, temperature):
    """Each setting finds its own text likelier than the other's: on one text alone, the one that wrote it would win."""
    plain, coarse = EngineConfig(), EngineConfig(kv_dtype="int4")
    one, other = (
        compare(lab, *sides, temperature=temperature)["metrics"]["perplexity"]
        for sides in ((plain, coarse), (coarse, plain))
    )
    assert one["ratio"]["value"] != 1
    inverse = [1 / other["ratio"][end] for end in ("value", "high", "low")]
    assert list(one["ratio"].values()) == pytest.approx(inverse)
    for a, b in ("ab", "ba"):
        assert list(one[a].values()) == pytest.approx(list(other[b].values()))


def test_acceptance_is_reported_only_for_settings_with_a_drafter():
    lab = tiny_models.engine("llama", "identical")
    acceptance = compare(lab, EngineConfig(), SPECULATIVE)["metrics"]["draft_acceptance_rate"]
    assert acceptance["a"] is acceptance["ratio"] is None
    assert acceptance["b"]["value"] == 1
    both = compare(lab, replace(SPECULATIVE, num_speculative_tokens=1), SPECULATIVE)["metrics"]
    assert both["mean_acceptance_length"]["ratio"]["value"] > 1.5


def test_outputs_are_compared_greedily_at_any_temperature(lab):
    """Sampled outputs differ by chance alone: speculation uses other random numbers."""
    result = compare(lab, EngineConfig(), SPECULATIVE, temperature=0.9)
    assert result["identical_outputs"]["value"] == 1
    greedy = compare(lab, EngineConfig(), SPECULATIVE)
    assert result["metrics"]["perplexity"]["a"]["value"] > greedy["metrics"]["perplexity"]["a"]["value"]


def test_outputs_are_drawn_as_asked(lab):
    """What top-p leaves is likelier to both settings than what is drawn from the whole distribution."""
    whole, cut = (compare(lab, EngineConfig(), SPECULATIVE, temperature=0.9, top_p=top_p) for top_p in (1.0, 0.5))
    for side in "ab":
        drawn = [result["metrics"]["perplexity"][side]["value"] for result in (cut, whole)]
        assert drawn[0] < drawn[1]
    assert (cut["top_p"], cut["temperature"]) == (0.5, 0.9)


@pytest.mark.parametrize("b_first", [False, True])
def test_a_and_b_alternate_in_going_first(lab, monkeypatch, b_first):
    turns = []
    decode = bench._decode
    monkeypatch.setattr(bench, "_decode", lambda *given: (turns.append(given[2].paged), decode(*given))[1])
    a, b = EngineConfig(), EngineConfig(paged=True)
    measure_sample(lab, a, b, "A fox", SamplingParams(max_tokens=3, ignore_eos=True), 4, b_first=b_first)
    assert turns == [b_first, not b_first, not b_first, b_first] * 2


def test_each_repeat_is_drawn_with_a_seed_of_its_own(lab, monkeypatch):
    decode, drawn = bench._decode, []

    def spy(engine, prompt, config, sampling):
        if not sampling.greedy:
            drawn.append((config.paged, sampling.seed))
        return decode(engine, prompt, config, sampling)

    monkeypatch.setattr(bench, "_decode", spy)
    sampling = SamplingParams(max_tokens=3, temperature=1.0, seed=0, ignore_eos=True)
    measure_sample(lab, EngineConfig(), EngineConfig(paged=True), PROMPTS[0], sampling, repeats=3)
    assert sorted(drawn) == [(paged, seed) for paged in (False, True) for seed in range(3)]


def test_matching_stops_at_the_first_difference():
    assert common_length([1, 2, 3], [1, 2, 4]) == 2
    assert common_length([1, 2], [1, 2, 4]) == 2
    assert common_length([5], [1]) == 0


def test_figures_summarise_the_samples():
    slow, fast = SideMetrics(10, 4, 100, Stats(0, 0, 0)), SideMetrics(20, 2, 300, Stats(2, 6, 3))
    samples = [Sample(slow, fast, 10, True, 10, 1.0, 20, 20), Sample(slow, fast, 4, False, 30, 0.0, 60, 60)] * 3
    result = summarise(samples)
    assert result["kl"]["value"] == 1 / 40  # the mean over tokens, not over prompts
    assert result["exact_match_length"]["value"] == 7
    assert result["identical_outputs"]["value"] == 0.5
    assert result["metrics"]["tokens_per_second"]["ratio"] == {"value": 3, "low": 3, "high": 3}
    assert result["metrics"]["perplexity"]["a"]["value"] == pytest.approx(2.718281828**2)
    assert result["metrics"]["draft_acceptance_rate"]["b"] == {"value": 0.5, "low": 0.5, "high": 0.5}
    assert result["metrics"]["mean_acceptance_length"]["b"] == {"value": 2.5, "low": 2.5, "high": 2.5}


def test_the_ratio_of_perplexities_is_that_of_b_to_a():
    side = SideMetrics(1, 1, 1, Stats(0, 0, 0))
    found = summarise([Sample(side, side, 1, True, 10, 0.0, 20.0, 25.0)] * 6)["metrics"]["perplexity"]
    assert found["ratio"]["value"] == pytest.approx(found["b"]["value"] / found["a"]["value"])
    assert found["ratio"]["value"] == pytest.approx(math.exp(0.5))


def test_a_prompt_without_proposals_does_not_count_for_acceptance():
    """A prompt for which nothing was proposed says nothing about acceptance, and a prompt counts by its proposals: a
    mean of rates would give 0.3."""
    guesses = [Stats(0, 0, 0), Stats(10, 40, 20), Stats(1, 4, 0)] + [
        Stats(5, 20, 10),
        Stats(5, 20, 4),
    ] * 2
    samples = [Sample(one := SideMetrics(1, 1, 1, some), one, 1, True, 2, 0, 1, 1) for some in guesses]
    metrics = summarise(samples)["metrics"]
    accepted = metrics["draft_acceptance_rate"]
    assert accepted["a"]["value"] == 48 / 124
    assert 0.1 < accepted["a"]["low"] < 48 / 124 < accepted["a"]["high"] <= 0.5
    assert accepted["ratio"]["value"] == accepted["ratio"]["low"] == 1
    assert metrics["mean_acceptance_length"]["a"]["value"] == 1 + 48 / 31
    json.dumps(metrics, allow_nan=False)


def test_an_acceptance_rate_of_0_has_no_ratio_to_it():
    samples = [
        Sample(
            SideMetrics(1, 1, 1, Stats(5, 20, 0)),
            SideMetrics(1, 1, 1, Stats(5, 20, 9)),
            1,
            True,
            2,
            0,
            1,
            1,
        )
    ] * 6
    metrics = summarise(samples)["metrics"]
    assert metrics["draft_acceptance_rate"]["a"]["value"] == 0
    assert metrics["draft_acceptance_rate"]["ratio"] is None
    assert metrics["mean_acceptance_length"]["ratio"]["value"] == pytest.approx(2.8)


def test_small_numbers_do_not_run_into_the_next_column(lab):
    """A bad draft's acceptance has leading zeros, which are no digits."""
    result = compare(lab, SPECULATIVE, SPECULATIVE)
    few = {"value": 0.0123456, "low": 0.00987654, "high": 0.0154321}
    result["metrics"]["draft_acceptance_rate"] = dict.fromkeys(("a", "b", "ratio"), few)
    row = next(line for line in format_ab(result).splitlines() if line.startswith("draft_acceptance_rate"))
    assert re.split("  +", row)[1:] == ["0.012346 (0.0098765 to 0.015432)"] * 3


def spoilt(run: Run, how: str) -> Run:
    if how == "error":
        return Run([*run.events[:-1], replace(run.finished, reason="error", message="It broke.")])
    return Run([*run.events[:-1], FellBack(t_ms=1.0, part="drafter", reason="It broke."), run.finished])


@pytest.mark.parametrize(("how", "message"), [("error", "failed: It broke"), ("fall", "without its drafter: It broke")])
def test_a_run_that_failed_or_fell_back_is_not_measured(lab, monkeypatch, how, message):
    run = lab.generate("A fox", EngineConfig(), SamplingParams(max_tokens=3))
    monkeypatch.setattr(lab, "generate", lambda *_: spoilt(run, how))
    with pytest.raises(LabError, match=message):
        compare(lab, EngineConfig(), EngineConfig())


@pytest.mark.parametrize("changes", [{"max_tokens": 1}, {"repeats": 0}])
def test_too_little_to_measure_is_refused(lab, changes):
    with pytest.raises(ConfigError, match="at least a prompt, a repeat and two tokens"):
        compare(lab, EngineConfig(), EngineConfig(), **changes)


def test_a_prompt_that_fills_the_context_is_refused(lab):
    with pytest.raises(LabError, match="room for one token only"):
        bench._decode(lab, "x" * (tiny_models.CONTEXT - 1), EngineConfig(), SamplingParams(max_tokens=9))


@pytest.mark.parametrize("length", [tiny_models.CONTEXT - 1, 3 * tiny_models.CONTEXT])
def test_a_prompt_that_leaves_nothing_to_time_is_to_be_shortened(lab, length):
    """Fewer tokens are no way out: the command takes two or more."""
    with pytest.raises(LabError, match=f"the longest prompt has {length} tokens, .* Shorten it.$"):
        run_ab(lab, EngineConfig(), EngineConfig(), ["A", "x" * length], SamplingParams(), repeats=1, report=print)


def test_a_prompt_that_a_setting_has_no_room_for_is_refused_before_the_first_run(lab, monkeypatch):
    monkeypatch.setattr(bench, "_decode", lambda *_: pytest.fail("decoded before all had been checked"))
    few = EngineConfig(paged=True, num_blocks=2, block_size=16)
    with pytest.raises(LabError, match="the pool has 2"):
        run_ab(lab, EngineConfig(), few, ["A", "x" * 100], SamplingParams(max_tokens=8), repeats=1, report=print)


def test_the_command_compares_over_a_file_of_prompts(lab, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "load_engine", lambda *_, **__: lab)
    (tmp_path / "prompts.txt").write_text("The king\n\nA fox\n")
    out = tmp_path / "ab.json"
    argv = ["bench", "ab", "--b", "kv_dtype=int8,speculative=draft", "--prompts", str(tmp_path / "prompts.txt")]
    monkeypatch.setattr(sys, "argv", [*argv, "--max-tokens", "8", "--json", str(out)])
    command.main()
    result = json.loads(out.read_text())
    assert (result["bench"], result["prompts"], len(result["samples"])) == ("ab", 2, 2)
    assert (result["a"]["kv_dtype"], result["b"]["kv_dtype"]) == ("auto", "int8")
    printed = capsys.readouterr().out
    assert "A: the default settings" in printed
    assert "B: kv_dtype=int8, speculative=draft" in printed
    assert "intervals take 6 prompts" in printed
    assert "perplexity, both texts" in printed


def test_a_file_of_prompts_has_one_a_line_and_no_byte_order_mark(lab, monkeypatch, tmp_path):
    """The mark, which some editors write, would be a token of the first prompt. Other separators are text."""
    asked = []
    monkeypatch.setattr(command, "load_engine", lambda *_, **__: lab)
    monkeypatch.setattr(command, "run_ab", lambda engine, a, b, prompts, *_, **__: asked.extend(prompts) or {})
    monkeypatch.setattr(command, "format_ab", lambda result: "")
    (file := tmp_path / "prompts.txt").write_bytes("\ufeffThe king\r\n \r\nA\u2028fox\x0c".encode())
    argv = ["bench", "ab", "--b", "kv_dtype=int8", "--prompts", str(file), "--json", str(tmp_path / "ab.json")]
    monkeypatch.setattr(sys, "argv", argv)
    assert command.main() == 0
    assert asked == ["The king", "A\u2028fox\x0c"]


def test_the_command_reports_what_is_wrong_with_a_setting(lab, monkeypatch, capsys):
    monkeypatch.setattr(command, "load_engine", lambda *_, **__: lab)
    monkeypatch.setattr(sys, "argv", ["bench", "ab", "--b", "kv_cache=false,kv_dtype=int8"])
    with pytest.raises(SystemExit):
        command.main()
    assert "nothing is stored" in capsys.readouterr().err
