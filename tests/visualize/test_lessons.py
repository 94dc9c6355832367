"""A lesson on its page: what is shown when, what is stored, and what is drawn."""

from __future__ import annotations

import functools
import json
import math
import re
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import Engine, EngineConfig, load_engine
from lab.trace.run import Run
from lessons.course import course, read
from lessons.experiments.base import Measured
from lessons.experiments.rules import RULES
from lessons.experiments.runs import figures
from lessons.lesson import Curve, Lesson, Slider
from lessons.marking import mark
from tests.lessons.test_course import GOOD
from tests.lessons.test_marking import CURVE
from tests.visualize import test_unmeasured
from tests.visualize.conftest import script
from tests.visualize.picture import draw
from tests.visualize.test_unmeasured import FREE, VISITOR, handlers
from visualize import pool_inputs as batch_inputs
from visualize.charts import compare_charts as compared
from visualize.charts import lesson_charts
from visualize.charts import overlap_chart as overlap
from visualize.charts.compare_charts import MARKS
from visualize.jobs.job_queue import JobQueue
from visualize.pages.lessons import instructor as instructor
from visualize.pages.lessons import lesson_view as sheet
from visualize.pages.lessons import observation
from visualize.pages.lessons import page as lessons
from visualize.pages.lessons.answer_key import Answers
from visualize.pages.lessons.learner import Learner, restored
from visualize.pages.lessons.lesson_run import LessonRun
from visualize.reduce.frames import recorded

MORE = """  - view: race
    say: Watch.
  - view: speed
  - view: bars
    title: Times
    unit: ms
    bars: {first: runs.cached.ttft_ms, "<img src=x onerror=window.pwned=1>": runs.plain.ttft_ms}
"""
FIGURES = {"runs": {"cached": {"itl_p50_ms": [1.0]}, "plain": {"itl_p50_ms": [4.0]}}}


@functools.cache
def load(pair: str) -> Engine:
    return load_engine(draft=pair)


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    path = tmp_path_factory.mktemp("lessons") / "01-good.md"
    path.write_text(GOOD.replace("    run: cached\n", "    run: cached\n" + MORE), "utf-8")
    return read(path)


@pytest.fixture(scope="module")
def task(lesson: Lesson) -> LessonRun:
    task = LessonRun(JobQueue(), load, lesson.front.preset)
    records = list(task.records())
    assert task.whole, records[-1]
    return task


def test_lessons_on_blocks_link_to_presets_of_the_pool_page(lesson: Lesson) -> None:
    assert sheet.watched(lesson) == ""
    shown = {5: ["fits"], 6: ["users", "part", "forgets"], 7: ["users", "dry"], 10: ["load"]}
    for number, keys in shown.items():
        links = re.findall(r"- \[(.*?)\]\(pool\??(.*?)\) · \w", sheet.watched(course()[number]))
        presets = [batch_inputs.PRESETS[key] for key in keys]
        assert [label for label, _ in links] == [preset.label for preset in presets]
        assert [batch_inputs.from_link(dict(parse_qsl(query))) for _, query in links] == [
            (p.inputs, []) for p in presets
        ]
    assert {key for keys in shown.values() for key in keys} == batch_inputs.PRESETS.keys()


def test_runs_that_record_distributions_are_left_out_of_timing_charts() -> None:
    configs = {"plain": EngineConfig(), "draft": EngineConfig(speculative="draft")}
    runs = {name: [Run(script(config))] for name, config in configs.items()}
    runs["recorded"] = [Run(script(configs["draft"], logprobs=4))]
    seen = observation.seen(course()[8], {"runs": Measured(figures(runs), runs)})
    chart = next(panel["chart"] for panel in seen.panels if panel["view"] == "positions")
    assert set(chart["columns"][-1]["text"]) == {MARKS[1]}
    assert seen.played is runs["recorded"][0]


def test_nothing_of_the_answer_is_revealed_before_the_run(lesson: Lesson) -> None:
    for learner in (Learner(), Learner(prediction=3.0)):
        assert sheet.explained(lesson, learner) == ""
        assert sheet.change(lesson, learner) is None
        assert sheet.check(lesson, learner) is None
        assert sheet.outcome(lesson, learner) == {"ready": learner.prediction is not None, "over": False}
        assert "mark" not in sheet.prediction(lesson, learner)


def test_after_the_run_prediction_and_measurement_are_side_by_side(lesson: Lesson) -> None:
    learner = Learner(3.0, FIGURES)
    assert sheet.outcome(lesson, learner)["said"] == "You said 3.00×; this machine measured 4.00×."
    asked = sheet.prediction(lesson, learner)
    assert asked["locked"]
    assert 0 < asked["mark"]["right"] < 1
    assert "It took 1.00 ms." in sheet.explained(lesson, learner)
    assert sheet.change(lesson, learner)["rows"] == [["time", "1.00 ms", ""]]
    tried = {"runs": {"cached": {"itl_p50_ms": [2.0]}, "plain": {"itl_p50_ms": [4.0]}}}
    change = sheet.change(lesson, Learner(3.0, FIGURES, tried))
    assert change["rows"] == [["time", "1.00 ms", "2.00 ms"]]
    assert change["see"] == "From 1.00 ms to 2.00 ms."
    assert "mark" not in sheet.check(lesson, learner)
    assert sheet.check(lesson, Learner(3.0, FIGURES, answer=0))["mark"]["kind"] == "near"


def test_a_lesson_is_done_when_its_check_is_answered_right(lesson: Lesson) -> None:
    """In one of three repeats, the uncached run was the faster one: that does not make it the answer."""
    noisy = {"runs": {"cached": {"itl_p50_ms": [1.0, 1.0, 3.0]}, "plain": {"itl_p50_ms": [4.0, 4.0, 2.0]}}}
    for answer, kind in enumerate(("near", "far")):
        learner = Learner(3.0, noisy, answer=answer)
        assert sheet.check(lesson, learner)["mark"]["kind"] == kind
        assert ("check" in learner.kept(lesson)["done"]) == (kind == "near")


@pytest.mark.parametrize(("scale", "low", "ms", "there"), [("linear", 0, 100.0, 2), ("log", 1, 500.0, 1.5)])
def test_values_beyond_a_curves_scale_are_drawn_where_they_are(scale: str, low: float, ms: float, there: float) -> None:
    curve = CURVE.model_copy(update={"range": [low, 100], "scale": scale})
    right = sheet.marked(curve, mark(curve, [50.0] * 3, {"runs": {"a": {"ms": [ms]}}}))["right"]
    assert right[1] == pytest.approx(there)


@pytest.mark.slow
def test_a_lessons_run_gives_figures_charts_and_a_run_to_play(lesson: Lesson, task: LessonRun) -> None:
    (player, race, speed, bars), run = observation.seen(lesson, task.measured)
    assert player["title"]
    assert player["say"] == ""
    runs = task.measured["runs"]
    thrice = replace(runs, runs={name: [*some] * 3 for name, some in runs.runs.items()})
    (player, *_), _ = observation.seen(lesson, task.measured | {"runs": thrice})
    assert "the one of median speed among 3 runs" in player["say"]
    assert [lane["name"] for lane in race["race"]["lanes"]] == ["cached", "plain"]
    one, other = (found["tokens_per_second"][0] for found in runs.figures.values())
    assert speed["title"] == "Speed / speed of cached"
    bars_of, _, circles, said = speed["chart"]["columns"]
    assert bars_of["x"] == circles["x"] == pytest.approx([1, other / one])
    assert said["text"] == ["1.00×<br>(one run)", f"{lesson_charts.times(other / one)}<br>(one run)"]
    assert bars["chart"]["columns"][1]["text"] == ["first", "&lt;img src=x onerror=window.pwned=1&gt;"]
    assert bars["chart"]["columns"][0]["x"] == [found["ttft_ms"][0] for found in task.measured["runs"].figures.values()]
    assert len(run.token_ids) == 4
    first, *_ = (json.loads(line) for line in recorded(run, "id", elsewhere=False).splitlines()[1:])
    assert first["head"]["recorded"] is False
    assert "notice" not in first


def test_every_view_of_the_course_has_a_chart() -> None:
    views = {view.view for lesson in course().values() for view in lesson.front.observe}
    charts = views - {"player", "race", "overlap"} | {"proposed", "written"}  # an overlap's two
    assert charts <= set(observation.CHARTS)
    assert set(compared.CHARTS) - {"bars", "gains", "cache"} <= set(observation.CHARTS)


def test_distances_are_drawn_for_each_rule() -> None:
    lesson = course()[9]
    task = LessonRun(JobQueue(), load, lesson.front.preset)
    list(task.records())
    chart = observation.seen(lesson, task.measured).panels[1]["chart"]
    lines = chart["columns"]
    assert [len(line["x"]) for line in lines] == [8] * len(RULES)
    assert lines[list(RULES).index("redrawn_from_p")]["y"][-1] > 5 * lines[list(RULES).index("residual")]["y"][-1]
    for axis in ("x", "y"):
        low, high = chart["layout"][f"{axis}axis.range"]
        drawn = [math.log10(at) for line in lines for at in line[axis] if at]
        assert low < min(drawn) <= max(drawn) < high


def test_punctuation_after_an_inline_formula_becomes_part_of_it() -> None:
    assert sheet.held("if $u < p$, so $q$ and $p$.") == r"if $u < p\text{,}$ so $q$ and $p\text{.}$"
    alone = "$$\\frac{1}{2}$$. From $a$ to $b$"
    assert sheet.held(alone) == alone
    assert all(r"$." not in sheet.introduction(lesson) for lesson in course().values())


def test_p_and_q_are_drawn_for_every_rule_and_every_distance() -> None:
    """Worked out by hand, with two words: q is 1/5 where p is 1/2, so A rejects 3 in 10, and p exceeds q by 3/10."""
    found = observation.overlap_pictures({"p": [0.5, 0.5], "q": [0.8, 0.2]})
    assert len(found["frames"]) == len(found["rules"]) == 3
    assert {len(frames) for frames in found["frames"]} == {len(found["stops"])}
    assert found["stops"][0] == "0% apart"
    assert found["stops"][found["start"]] == "30.0% apart"
    a, b, c = ([frames[0], frames[found["start"]]] for frames in found["frames"])

    def heights(frame: dict[str, Any], chart: str) -> list[list[float]]:
        return [pytest.approx(trace["y"], abs=1e-3) for trace in frame[chart]]

    # In the order of p over q: the word that is proposed too rarely first.
    assert heights(a[0], "proposed") == [[0.5, 0.5], [0, 0], [0, 0], [0.5, 0.5]]
    assert heights(a[1], "proposed") == [[0.2, 0.5], [0, 0.3], [0.3, 0], [0.5, 0.5]]
    assert a[1]["proposed"][2]["base"] == [0.2, 0.8]  # the excess of p over q is stacked on q
    assert heights(a[1], "written") == [[0.2, 0.5], [0.3, 0], [0.5, 0.5]]
    assert heights(b[1], "proposed") == [[0.2, 0.5], [0, 0.3], [0, 0], [0.5, 0.5]]
    assert heights(b[1], "written") == [[0.2, 0.5], [0.15, 0.15], [0.5, 0.5]]
    assert heights(c[1], "proposed") == [[0.1, 0.4], [0.1, 0.4], [0, 0], [0.5, 0.5]]
    assert heights(c[1], "written") == [[0.1, 0.4], [0.4, 0.1], [0.5, 0.5]]
    first, last = overlap.layout(2, 0.5)["xaxis.range"]
    assert first < 1 - 0.4, "the first word's bar, which is 0.8 wide, begins within the chart"
    assert last > 2 + 0.4
    assert a[1]["said"].startswith("Accepted: 70.0%, rejected: 30.0%. p has 30.0% over q, exactly as much")
    assert [frame[1]["said"].endswith("The written words follow p.") for frame in (a, b, c)] == [True, False, True]
    assert b[1]["said"].endswith("The written words are 15.0% away from p.")
    assert b[0]["said"].endswith("The written words follow p.")
    for name, make in (("proposed", overlap.proposed_figure), ("written", overlap.written_figure)):
        figure = draw(make(), a[1][name], found["layout"])
        tops = [base + y for bar in figure.data for base, y in zip(bar.base or [0, 0], bar.y, strict=True)]
        assert figure.layout.yaxis.range[0] == 0
        assert max(tops) <= figure.layout.yaxis.range[1]


def test_a_lessons_run_can_be_stopped(lesson: Lesson) -> None:
    load("matched")  # else it may be stopped while loading
    task = LessonRun(JobQueue(), load, course()[2].front.preset)
    for record in task.records():
        if record.get("share", 0) > 0:
            task.cancelled.set()
    assert (record["running"], record["progress"]) == (False, "Stopped. Nothing was kept.")
    assert not task.whole


def test_arithmetic_waits_for_no_ones_turn() -> None:
    queue = JobQueue()
    with queue.turn("another visitor", threading.Event()):
        rules = LessonRun(queue, load, course()[9].front.preset)
        assert rules.done.wait(30)
        assert rules.whole
        timed = LessonRun(queue, load, course()[2].front.preset)
        assert not timed.done.wait(0.2)
        assert timed.status().startswith("Waiting")
        timed.cancelled.set()
        assert timed.done.wait(10)


# -- what the browser stores -----------------------------------------------------------------


def test_a_learners_progress_is_restored() -> None:
    models = course()[3]
    task = LessonRun(JobQueue(), load, models.front.preset)
    list(task.records())
    figures = {name: found.figures for name, found in task.measured.items()}
    for learner in (Learner(), Learner(2), Learner(2, figures), Learner(2, figures, answer=16.0)):
        text = json.dumps(learner.kept(models))
        assert "Llama" not in text
        assert restored(models, text) == learner
    kept = Learner(2, figures, figures, 16.0).kept(models)
    assert kept["done"] == ["predict", "run", "try", "check"]
    tried = restored(models, json.dumps(kept)).tried
    assert tried["runs"] == figures["runs"]
    assert tried["models"]["small"]["name"] != figures["models"]["small"]["name"]  # recalculated with the change tried


def kept(**changes: Any) -> dict[str, Any]:
    entry = {"name": "01-good", "prediction": 3.0, "figures": FIGURES, "tried": FIGURES, "answer": 0}
    return entry | changes


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, Learner(3.0, FIGURES, FIGURES, 0)),
        ({"name": "01-other"}, Learner()),
        ({"prediction": 1e9}, Learner()),
        ({"figures": None}, Learner(3.0)),
        ({"figures": {"runs": {"cached": {"itl_p50_ms": [1.0]}}}}, Learner(3.0)),
        ({"figures": {"runs": {"cached": {"itl_p50_ms": ["x"]}, "plain": {}}}}, Learner(3.0)),
        ({"figures": {"runs": {"cached": {"itl_p50_ms": "<img>"}, "plain": {"itl_p50_ms": 1}}}}, Learner(3.0)),
        ({"figures": {"runs": {"cached": {"itl_p50_ms": 0}, "plain": {"itl_p50_ms": 0}}}}, Learner(3.0)),
        ({"answer": 7}, Learner(3.0, FIGURES)),
        ({"answer": None}, Learner(3.0, FIGURES, FIGURES)),
        ({"tried": {}}, Learner(3.0, FIGURES, answer=0)),
    ],
)
def test_nonsensical_values_are_ignored(lesson: Lesson, changes: dict[str, Any], found: Learner) -> None:
    assert restored(lesson, json.dumps(kept(**changes))) == found


@pytest.mark.parametrize("text", [None, "", "null", "[]", "{", '{"name": "01-good"}', "[" * 5000, "NaN", "x" * 600_000])
def test_invalid_stored_text_gives_a_new_learner(lesson: Lesson, text: str | None) -> None:
    assert restored(lesson, text) == Learner()


KEYS = st.sampled_from(["runs", "cached", "plain", "itl_p50_ms", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner),
    max_leaves=12,
)


@settings(max_examples=25)
@given(st.dictionaries(st.sampled_from(["prediction", "figures", "tried", "answer"]), JSON))
def test_a_page_can_be_shown_whatever_was_stored(lesson: Lesson, changes: dict[str, Any]) -> None:
    learner = restored(lesson, json.dumps(kept(**changes)))
    sheet.prediction(lesson, learner)
    sheet.check(lesson, learner)
    sheet.change(lesson, learner)
    sheet.explained(lesson, learner)


# -- questions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", course())
def test_every_slider_stop_is_a_distinct_answer(number: int) -> None:
    for question in (course()[number].front.predict, course()[number].front.check):
        if isinstance(question, (Slider, Curve)):
            values = [value for value, _ in sheet.stops(question)]
            assert values == sorted(set(values))
            assert [values[0], values[-1]] == question.range
            assert len({text for _, text in sheet.stops(question)}) == len(values) > 20
            for i, value in enumerate(values):
                assert sheet.place(question, value) == pytest.approx(i / (len(values) - 1))
            assert sheet.place(question, values[0] - 1) == 0
            assert sheet.place(question, values[-1] * 2) == 1


def test_a_link_names_a_lesson() -> None:
    assert sheet.number_of({}) == (1, "")
    assert sheet.number_of({"lesson": "2"}) == (2, "")
    for wrong in ("0", "x", "²", "01", "1" * 5000):
        number, said = sheet.number_of({"lesson": wrong})
        assert number == 1
        assert said.startswith("There is no such lesson; the lessons are 1, 2, ")


def test_a_second_click_empties_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Gradio empties the outputs of a generator that yields nothing."""
    queue = JobQueue()
    monkeypatch.setattr(test_unmeasured, "JobQueue", lambda: queue)
    learns, teaches = (handlers(page.build, Answers()) for page in (lessons, instructor))
    *_, (learner, *_) = learns["run"](VISITOR, FREE, Learner(0))
    for act, early in (learns["run"], Learner()), (learns["change"], Learner(0)):
        (answer,) = act(VISITOR, FREE, early)
        assert answer == [gr.skip()] * len(answer)
    with queue.turn("another", threading.Event()):  # what was clicked first waits for it, and is not over
        for act, *what in (
            (learns["run"], FREE, learner),
            (learns["change"], FREE, learner),
            (teaches["measure"], SimpleNamespace(lessons=[FREE])),
        ):
            visitor = SimpleNamespace(session_hash=act.__name__)
            first = act(visitor, *what)
            next(first)
            (answer,) = act(visitor, *what)
            assert answer == [gr.skip()] * len(answer)
            first.close()
