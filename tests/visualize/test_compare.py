"""The Compare page's inputs, its runs, and its text."""

from __future__ import annotations

import gc
import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from lab.config import EngineConfig, SamplingParams
from lab.errors import ConfigError
from lab.measure.comparison import summarise
from lab.measure.difference import Difference, DivergentToken
from lab.measure.interval import factor_interval
from lab.measure.measuring import Spread, shuffled
from lab.registry import Pair
from lab.settings import unused_settings
from lab.trace.events import Committed
from lab.trace.run import Run, acceptance_stats
from tests.visualize.compared import HOSTILE, configs, made
from tests.visualize.scripted import ScriptedEngine
from tests.waiting import until
from visualize.charts.compare_charts import MARKS, bars, times
from visualize.jobs.job_queue import JobQueue
from visualize.pages.compare.compare_job import Comparison
from visualize.pages.compare.configurations import FORM, LANES, CompareInputs, from_link, preset_of, presets
from visualize.reduce.compare_report import COLUMNS, PARTINGS, REPEATS, faster, race, so_far, whole
from visualize.run_settings import with_pairs


def shifted(run: Run, place: int) -> Run:
    """The same run, with different tokens from this place on."""
    seen, events = 0, []
    for event in run.events:
        if isinstance(event, Committed):
            ids = enumerate(event.token_ids, seen)
            seen += len(event.token_ids)
            event = replace(event, token_ids=tuple(token + 1000 * (at >= place) for at, token in ids))
        events.append(event)
    return Run(events)


# -- inputs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", [True, False])
def test_every_preset_is_valid_and_recognised(draft: bool) -> None:
    for key, (_, lanes) in presets(draft=draft).items():
        assert len(CompareInputs(lanes=lanes).configs()) == len(lanes)
        assert preset_of(tuple(reversed(lanes)), draft) == key
    assert preset_of(("cache", "int4"), draft) is None
    assert CompareInputs().configs()["Cache"] == EngineConfig()


def test_without_a_draft_no_preset_needs_one() -> None:
    pairs = {"matched": Pair("alone", "a/target"), "family": Pair("family", "a/target", "a/draft")}
    form = with_pairs(FORM, {name: pair.label for name, pair in pairs.items()})
    inputs, notices = from_link({}, form, pairs)
    assert notices == []
    for lanes in (inputs.lanes, *(lanes for _, lanes in presets(draft=False).values())):
        assert all(config.speculative != "draft" for config in CompareInputs(lanes=lanes).configs().values())
    assert preset_of(inputs.lanes, draft=False) == "ladder"
    assert from_link({"pair": "family"}, form, pairs)[0].lanes == CompareInputs().lanes
    assert from_link({"lanes": "cache,draft-2"}, form, pairs)[0].lanes == ("cache", "draft-2")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lanes": ("cache",)}, "Choose 2 to 6 settings to compare, not 1"),
        ({"lanes": tuple(LANES)[:7]}, "not 7"),
        ({"own": "kv_dtype=int3"}, "kv_dtype must be one of"),
        ({"own": HOSTILE}, "there is no setting .<img src"),
        ({"own": "paged=true\npaged=true"}, "paged=true is listed twice"),
        ({"own": "A: paged=true\nA: kv_dtype=int8"}, "A is listed twice"),
        ({"own": "Cache: paged=true"}, "Cache is listed twice"),
        ({"own": "kv_cache=false, paged=true"}, "there are no blocks"),
        ({"own": "x" * 700}, "at most 600 characters"),
        ({"repeats": 0}, "Repeats must be a whole number from 1 to 9"),
        ({"max_tokens": 1}, "must be a whole number from 2 to 500"),
        ({"temperature": float("nan")}, "Temperature must be a number from 0 to 2"),
    ],
)
def test_a_mistake_is_explained(changes: dict[str, Any], says: str) -> None:
    inputs = CompareInputs(**changes)
    with pytest.raises(ConfigError, match=says):
        inputs.configs(), inputs.sampling()


# -- the runs --------------------------------------------------------------------------------


def test_a_comparison_shows_progress_and_its_results_at_the_end() -> None:
    task = Comparison(
        JobQueue(), lambda pair: ScriptedEngine(0.004), CompareInputs(lanes=("cache", "draft-4"), max_tokens=20)
    )
    records = list(task.records())
    progress = [record["progress"] for record in records]
    assert any(text.startswith("Run ") and " of 6: " in text for text in progress)
    assert not any("token" in text for text in progress), "progress names runs; tokens are counted in a separate field"
    assert max(record.get("tokens", 0) for record in records) > 0
    last = records[-1]
    assert not last["running"]
    assert last["progress"] == ""
    assert {"race", "said", "theory", "rows", "charts"} <= last.keys()
    assert all("race" not in record for record in records[:-1])
    assert json.loads(json.dumps(last)) == last
    assert task.count == 6


def test_a_finished_comparison_keeps_no_runs() -> None:
    """They take megabytes, and the task is remembered until the tab closes."""

    def kept() -> int:
        gc.collect()
        return sum(isinstance(it, Run) for it in gc.get_objects())

    before = kept()
    task = Comparison(
        JobQueue(), lambda pair: ScriptedEngine(), CompareInputs(lanes=("cache", "draft-4"), max_tokens=20)
    )
    assert list(task.records())[-1]["race"]
    assert kept() == before


@pytest.mark.slow
def test_other_visitors_get_their_turn_between_runs() -> None:
    """A visitor who asks for one run does not wait for all the runs of a comparison."""
    queue, engine = JobQueue(), ScriptedEngine(0.01)
    task = Comparison(queue, lambda pair: engine, CompareInputs(lanes=("cache", "paged"), max_tokens=20))
    until(lambda: task.count)
    who = object()
    with queue.turn(who, threading.Event()):
        assert not task.done.is_set()
        until(lambda: queue.ahead(task) == 1)
        assert task.record()["progress"] == "Waiting: 1 run is before yours."
    assert task.done.wait(10)
    assert not task.problem


@pytest.mark.slow
def test_a_stopped_comparison_says_after_what_and_whether_the_settings_wrote_the_same() -> None:
    """The page shows the progress in the place of the verdict."""
    load, inputs = lambda pair: ScriptedEngine(0.01), CompareInputs(lanes=("cache", "paged"), max_tokens=30)
    for runs in (1, 2):
        task = Comparison(JobQueue(), load, inputs)
        until(lambda task=task, runs=runs: task.count >= runs)
        task.cancelled.set()
        assert task.done.wait(10)
        last = task.record()
        reported = last["said"][:1] if "said" in last else []
        assert last["progress"] == " ".join([f"Stopped after {task.count} of 6 runs.", *reported])
        assert last["rows"]
        assert ("race" in last) == (task.count > 1)
    assert reported == ["Identical outputs: both settings wrote the same 30 tokens."]


def test_a_comparison_stopped_while_waiting_never_runs() -> None:
    queue, asked = JobQueue(), []

    class Watched(ScriptedEngine):
        def stream(self, *args: Any, **options: Any) -> Any:
            asked.append(args)
            return super().stream(*args, **options)

    who = object()
    with queue.turn(who, threading.Event()):
        task = Comparison(queue, lambda pair: Watched(), CompareInputs(lanes=("cache", "paged")))
        until(lambda: queue.ahead(task) == 1)
        task.cancelled.set()
        assert task.done.wait(10)
    assert asked == []
    assert task.record()["progress"] == "Stopped before a run was done."


# -- the text --------------------------------------------------------------------------------


def test_each_random_order_is_followed_by_its_reverse() -> None:
    one, back, two, again = shuffled("abcd", 4)
    assert back == one[::-1]
    assert again == two[::-1]
    assert list(shuffled("ab", 2)) in ([["a", "b"], ["b", "a"]], [["b", "a"], ["a", "b"]])


def test_the_verdict_counts_the_settings_that_wrote_the_same() -> None:
    for names, said in ((("cache", "paged"), "both settings"), (("cache", "paged", "draft-4"), "all 3 settings")):
        runs = made(*names)
        record = whole(configs(runs), runs, {})
        assert record["said"] == [f"Identical outputs: {said} wrote the same 40 tokens.", REPEATS]
        assert {row["cells"][-1][0] for row in record["rows"]} == {"reference", "identical"}
        assert record["partings"] == []
    four = made("cache", "paged", "int8", "draft-4")
    for name in list(four)[2:]:
        four[name] = [shifted(run, 7) for run in four[name]]
    said = whole(configs(four), four, {})["said"][0]
    assert said == "Cache and Paged wrote the same 40 tokens; the others differ."


def test_a_difference_is_shown_with_its_position_and_both_margins() -> None:
    runs = made("cache", "int8", "paged")
    runs["INT8"] = [shifted(run, 7) for run in runs["INT8"]]
    found = Difference(7, DivergentToken(" took", 0.4, 0.0, 0.1), DivergentToken(HOSTILE, 0.36, 0.00031, 0.008))
    ended = Difference(7, None, DivergentToken(" took", 0.4, None, 0.1))
    record = whole(configs(runs), runs, {("Cache", "INT8"): found, ("INT8", "Paged"): ended})
    assert record["said"][0] == "Cache and Paged wrote the same 40 tokens; the other differs."
    assert "Greedy outputs part where rounding" in record["said"][1]
    assert record["rows"][1]["cells"][-1] == ["differs", "after 7"]
    first, second = record["partings"]
    assert (first["mark"], first["name"]) == (f"{MARKS[0]} {MARKS[1]}", "Cache, INT8")
    assert first["cells"] == [
        ["7", ""],
        ["“ took”", "p 0.400, the other's 0.000"],
        ["0.100", ""],
        ["“<img src=x onerror=window.pwned=1>⟨RLO⟩”", "p 0.360, the other's 3.1e-04"],
        ["0.008", ""],
    ]
    assert second["cells"][1:] == [["ended", ""], ["–", ""], ["“ took”", "p 0.400"], ["0.100", ""]]
    assert len(first["cells"]) == len(second["cells"]) == len(PARTINGS)


@pytest.mark.parametrize(
    ("names", "differ", "temperature", "by_draws"),
    [
        (("cache", "draft-4"), (1,), 0.8, True),
        (("cache", "paged", "early-exit"), (2,), 0.8, True),
        (("cache", "lookup"), (1,), 0.8, True),
        (("draft-2", "draft-4"), (1,), 0.8, True),
        (("cache", "draft-4"), (1,), 0.0, False),
        (("cache", "int8", "draft-4"), (1, 2), 0.8, False),  # not INT8
        (("cache", "all"), (1,), 0.8, False),
        (("cache", "paged"), (1,), 0.8, False),  # should have been the same
    ],
)
def test_differences_due_to_the_draws_of_draft_tokens_are_said_to_be_just_that(
    names: tuple[str, ...], differ: tuple[int, ...], temperature: float, by_draws: bool
) -> None:
    runs = made(*names, temperature=temperature)
    for i in differ:
        runs[list(runs)[i]] = [shifted(run, 7) for run in list(runs.values())[i]]
    said = whole(configs(runs), runs, {})["said"]
    assert (": at this temperature speculation changes the draws" in said[0]) == by_draws
    draft_tokens = any(configs(runs)[name].speculative != "off" for name in runs)
    assert ("Above temperature 0, speculation uses the seed's draws differently" in " ".join(said)) == (
        draft_tokens and temperature > 0
    )


def test_what_does_nothing_in_a_setting_is_said() -> None:
    """As on the command line: whoever asks for more draft tokens, but for nobody to make them, sees a speed-up of 1."""
    runs = made("cache", "paged")
    known = configs(runs)
    mine = known | {"Paged": EngineConfig(paged=True, num_speculative_tokens=8)}
    assert not any("nothing" in said for said in whole(known, runs, {})["said"])
    assert any("Paged: num_speculative_tokens does nothing" in text for text in whole(mine, runs, {})["said"])
    assert not [said for _, config in LANES.values() for said in unused_settings(config, SamplingParams())]


def test_a_setting_that_does_not_repeat_its_output_is_named() -> None:
    runs = made("cache", "paged", repeats=3)
    runs["Paged"][2] = shifted(runs["Paged"][2], 3)
    assert "Paged did not write the same every time." in whole(configs(runs), runs, {})["said"]


def test_the_table_has_a_figure_for_every_column() -> None:
    runs = made("no-cache", "cache", "draft-4")
    *_, fast = so_far(runs)["rows"]
    draft_tokens = acceptance_stats(runs["Draft γ4"])
    cells = dict(zip((name for name, _ in COLUMNS), fast["cells"], strict=True))
    assert cells["accepted"][0] == f"{draft_tokens.accepted / draft_tokens.proposed:.0%}"
    assert cells["KV cache"] == ["43 kB", "of 48 kB"]  # at 1,000 bytes a token
    assert cells["memory"] == ["500 MB", "process"]
    assert cells["speed-up"][1] != "reference"
    assert so_far(runs)["rows"][0]["cells"][1] == ["1.00×", "reference"]
    assert so_far({"a": [], "b": []}) == {}
    partly = so_far({"a": [], "b": runs["Cache"]})["rows"]
    assert [row["cells"][0][0] == "–" for row in partly] == [True, False]
    assert [times(ratio) for ratio in (0.5, 9.994, 9.996, 51.49)] == ["0.50×", "9.99×", "10.0×", "51.5×"]


@pytest.mark.parametrize(
    ("factors", "cell", "word"),
    [
        ((0.6, 0.7, 0.8), ["0.70×", "0.65 to 0.75"], "<b>0.70×</b>"),
        ((0.8, 0.97, 1.2), ["0.59 to 1.62", "≈ same (n.s.)"], "≈ same"),
        ((1.5, 1.74, 2.0), ["1.74×", "1.62 to 1.87"], "<b>1.74×</b>"),
        (
            (1.05, 1.3, 1.6),
            ["0.769 to 2.19", "≈ same (n.s.)"],
            "≈ same",
        ),  # by chance, all three repeats fall on one side one time in four
        ((1.3, 1.5), ["1.35 to 1.45", "too few repeats"], "too few<br>repeats"),
        ((1.4, 1.401), ["1.40×", "1.4 to 1.4"], "<b>1.40×</b>"),
        ((1.333,), ["1.33×", "one repeat"], "1.33×,<br>one run"),
    ],
)
def test_a_factor_that_may_be_chance_is_no_clear_difference(
    factors: tuple[float, ...], cell: list[str], word: str
) -> None:
    """Shown beside its bar, a factor of 0.97 would call the setting with the longer bar the slower one."""
    (summary,) = summarise(made("cache")).values()
    likely = factor_interval(factors)
    found = replace(summary, rates=factors, factors=factors, speedup=Spread.of(factors), likely_speedup=likely)
    assert faster(found) == cell
    *_, words, gains = bars(["reference", "a"], {"a": found})[0]
    assert words["text"] == [word]
    assert bool(gains["x"]) == (word.startswith("<b>") and float(cell[0].rstrip("×")) > 1), (
        "only what is clearly faster is tinted"
    )


def test_a_race_shows_every_token_at_its_time() -> None:
    runs = {name: some[0] for name, some in made("cache", "draft-4", words=[HOSTILE, " b"]).items()}
    drawn = race(runs)
    assert drawn["ms"] == max(lane["commits"][-1][0] for lane in drawn["lanes"])
    for (name, run), lane, mark in zip(runs.items(), drawn["lanes"], MARKS, strict=False):
        commits = [event for event in run.events if isinstance(event, Committed)]
        assert (lane["name"], lane["mark"]) == (name, mark)
        assert [at for at, _ in lane["commits"]] == [round(event.t_ms, 2) for event in commits]
        assert [how for _, pieces in lane["commits"] for _, how in pieces] == [o for e in commits for o in e.origins]
    assert drawn["lanes"][0]["commits"][0][1][0] == ["<img src=x onerror=window.pwned=1>⟨RLO⟩", "plain"]


def test_text_held_back_to_the_end_is_no_further_token_of_a_race() -> None:
    """A run that ends inside a character: its bytes so far come with the end, and are of a token counted before."""
    ((run,),) = made("cache", repeats=1).values()
    begun, *events, end = run.events
    lane = race({"Cache": run})["lanes"][0]["commits"]
    drawn = race({"Cache": Run([replace(begun, prompt="A\u202e"), *events, replace(end, text="�\u202e")])})
    assert drawn["prompt"] == "A⟨RLO⟩"
    held = drawn["lanes"][0]["commits"]
    assert sum(len(pieces) for _, pieces in held) == len(run.token_ids)
    assert held[-1][1][-1] == [lane[-1][1][-1][0] + "�⟨RLO⟩", "plain"]
