"""The Compare page's charts, by their data: measurements, and what theory predicts for them."""

from __future__ import annotations

import re
from itertools import pairwise
from statistics import median

import numpy as np
import pytest

from lab.engine.adaptive_window import tokens_per_round
from lab.measure.measuring import Spread
from lab.measure.scaling_fit import CACHED, UNCACHED, StepTimes
from lab.measure.theory import Parts, Speculated
from lab.trace.events import StepTimed
from lab.trace.run import Run
from tests.visualize.compared import BYTES, HOSTILE, configs, made
from tests.visualize.picture import draw
from visualize.charts import theory_charts as figures
from visualize.charts.compare_charts import CHARTS, MARKS
from visualize.charts.theory_charts import cache_columns, growth_columns
from visualize.reduce.compare_report import so_far
from visualize.reduce.theory_report import growth, theory


@pytest.mark.parametrize("dark", [False, True])
def test_charts_take_their_columns(dark: bool) -> None:
    runs = made("cache", "draft-2", "draft-4")
    curve = StepTimes(tuple(range(60)), tuple(float(i) for i in range(60)))
    charts = so_far(runs)["charts"] | theory(configs(runs), runs, BYTES)["charts"]
    charts |= growth({CACHED: curve, UNCACHED: curve})["charts"]
    assert charts.keys() == CHARTS.keys()
    for name, chart in charts.items():
        drawn = draw(CHARTS[name](dark), chart["columns"], chart["layout"])
        for trace, values in zip(drawn.data, chart["columns"], strict=True):
            assert len(trace.x) == len(trace.y) == len(values["y"])


def test_bars_are_medians_and_every_run_is_a_point() -> None:
    runs = made("cache", "draft-4", repeats=3) | {HOSTILE: []}
    chart = so_far(runs)["charts"]["bars"]
    bar, quartiles, points, words, faster = chart["columns"]
    assert [*bar["y"], *faster["y"]] == words["y"] == [0, 1]
    assert sorted(points["x"][:3])[1] == bar["x"][0]
    assert len(points["x"]) == 6
    assert quartiles["x"][0] < bar["x"][0] < quartiles["x"][1]
    assert bar["customdata"][0].endswith(", 3 runs")
    assert so_far(made("cache", repeats=1))["charts"]["bars"]["columns"][0]["customdata"][0].endswith(", 1 run")
    assert words["text"][0] == "<b>1.00×</b>"
    assert max(points["x"]) < chart["layout"]["xaxis.range"][1]
    assert chart["layout"]["yaxis.ticktext"][2] == "&lt;img src=x o… ◆ "


def test_a_round_is_drawn_above_the_same_tokens_one_by_one() -> None:
    runs = made("cache", "draft-2", "no-cache")
    chart = theory(configs(runs), runs, BYTES)["charts"]["round"]
    draft, target, other, names = chart["columns"]
    proposed_tokens, alone = chart["layout"]["yaxis.ticktext"]
    tokens = float(proposed_tokens.removeprefix(f"{MARKS[1]} ").removesuffix(" tokens"))
    assert alone == "no speculation"
    plain, speculating, _ = runs.values()
    rounds = [step for run in speculating for step in timed(run) if step.batch_tokens == 3]
    drafting, verifying = (median(getattr(step, part) for step in rounds) for part in ("draft_ms", "verify_ms"))
    one = median(step.verify_ms for run in plain for step in timed(run) if step.step_kind == "decode")
    assert draft["x"] == pytest.approx([drafting / 2] * 2)
    assert draft["base"] == pytest.approx([0, drafting / 2])
    assert (target["base"][0], target["x"][0]) == pytest.approx((drafting, verifying))
    around = median(step.sample_ms + step.rest_ms for step in rounds)
    assert (other["base"][0], other["x"][0]) == pytest.approx((drafting + verifying, around))
    assert sum(target["x"][1:]) == pytest.approx(tokens * one, rel=0.05)
    assert target["customdata"][0].startswith("the target's pass over 3 tokens: ")
    assert target["y"] == [0] + [1] * (len(target["x"]) - 1)
    for row, end in enumerate(names["x"]):  # box after box, without gaps
        boxes = [box for part in (draft, target, other) for box in zip(part["base"], part["x"], part["y"], strict=True)]
        begins, ends = zip(*sorted((base, base + x) for base, x, y in boxes if y == row), strict=True)
        assert (*begins, end) == pytest.approx((0, *ends))
        assert names["text"][row] == f" {end:.2f} ms"
    low, high = sorted(chart["layout"]["yaxis.range"])
    assert low < -0.36, "a bar is 0.72 high"
    assert high > 1.36
    assert chart["layout"]["xaxis.range"][1] > max(names["x"])


def timed(run: Run) -> list[StepTimed]:
    return [event for event in run.events if isinstance(event, StepTimed)]


def test_the_curves_of_theory_go_through_points_worked_out_by_hand() -> None:
    runs = made("cache", "draft-2", "draft-4")
    found = theory(configs(runs), runs, BYTES)
    assert [row["mark"] for row in found["rows"]] == [MARKS[1], MARKS[2]]
    assert found["missing"] == ""
    assert all(re.fullmatch(r"\d+ of \d+ verified", row["cells"][0][1]) for row in found["rows"])
    assert all(re.fullmatch(r"\d+ of \d+ passes", row["cells"][1][1]) for row in found["rows"])
    line, names, marks = found["charts"]["tokens"]["columns"]
    assert names["text"] == ["γ 1", "γ 2", "γ 4", "γ 8"]
    assert names["y"] == [2, 3, 5, 9]  # all accepted: gamma + 1
    assert marks["text"] == [MARKS[1], MARKS[2]]
    half = line["x"].index(0.5)
    assert line["y"][half] == 1.5
    assert all(y is None or y >= 1 for y in line["y"])
    line, names, whiskers, marks = found["charts"]["speedup"]["columns"]
    assert names["text"] == ["1×", MARKS[1], MARKS[2]]
    assert min(names["x"]) > 8  # to the right of a mark at the last gamma, not behind it
    assert line["y"][:3] == [1, 1, None]
    assert whiskers["x"][::3] == marks["x"] == [2, 4]
    assert whiskers["y"][0] <= marks["y"][0] <= whiskers["y"][1]
    a, c = (float(found["rows"][1]["cells"][i][0]) for i in (0, 2))
    drawn = line["y"][3 + 9 + 3]  # gamma 4 of the second curve: after the line at 1× and the first curve
    assert drawn == pytest.approx(tokens_per_round(a, 4) / (4 * c + 1), rel=0.01)
    line, names, whiskers, marks = found["charts"]["gains"]["columns"]
    assert names["text"] == ["1×", "γ 1", "γ 2", "γ 4", "γ 8"]
    assert (line["x"][:3], line["y"][:3]) == ([0, 1, None], [1, 1, None])
    assert whiskers["x"][::3] == marks["x"] == found["charts"]["tokens"]["columns"][2]["x"]
    assert whiskers["y"] == found["charts"]["speedup"]["columns"][2]["y"]
    assert marks["y"] == found["charts"]["speedup"]["columns"][3]["y"]
    costs = [float(row["cells"][2][0]) for row in found["rows"]]
    assert names["y"][1] == pytest.approx(2 / (1 + sum(costs) / 2), rel=0.01)  # one draft token, always accepted
    line, _, whiskers, marks = found["charts"]["positions"]["columns"]
    assert line["y"] == [level for a in found["charts"]["tokens"]["columns"][2]["x"] for level in (a, a, None)]
    assert all(begin < 1 and gamma < end for begin, end, gamma in ((*line["x"][:2], 2), (*line["x"][3:5], 4)))
    assert marks["text"] == [MARKS[1]] * 2 + [MARKS[2]] * 4
    assert whiskers["x"][::3] == marks["x"]
    assert [round(x) for x in marks["x"]] == [1, 2, 1, 2, 3, 4]
    assert 0.6 < marks["x"][0] < 1 < marks["x"][2] < 1.4, "side by side"
    for i, y in enumerate(marks["y"]):
        assert whiskers["y"][3 * i] <= y <= whiskers["y"][3 * i + 1]
        said, sure = marks["customdata"][i].split("<br>")
        assert sure.startswith("95% if independent: ")
        kept, verified = map(int, said.removesuffix(" accepted").split(" of "))
        assert y == kept / verified


def test_cache_bytes_lie_on_the_line_of_their_format() -> None:
    runs = made("cache", "no-cache", "draft-2")
    line, names, marks = theory(configs(runs), runs, BYTES)["charts"]["cache"]["columns"]
    assert names["text"] == ["Auto", "INT8", "INT4"]
    assert marks["text"] == [MARKS[0], MARKS[2]]
    tokens, held = marks["x"][0], marks["y"][0]
    assert tokens == max(step.kv_tokens for step in timed(runs["Cache"][0]))
    assert held == tokens * BYTES["auto"] / 1000
    assert line["y"][1] == pytest.approx(line["x"][1] * BYTES["auto"] / 1000)
    assert marks["customdata"][0] == f"{held:.3g} kB"
    assert (line["x"][0], line["y"][0]) == (0, 0)
    empty = theory({}, {}, {})["charts"]
    assert empty["cache"]["columns"][0]["x"] == empty["gains"]["columns"][0]["x"] == []
    assert empty["tokens"]["columns"][0]["x"], "these curves need no measurement"


def as_measured(gamma: int, *speedup: float) -> Speculated:
    parts = Parts(0.1 * gamma, 1.2, 0.2), Parts(0.0, 1.0, 0.1)
    counts = {"rounds": 10, "passes": 12, "verified": (10,) * gamma, "accepted": (7,) * gamma}
    return Speculated(gamma, 0.7, **counts, tokens=3.3, round=parts[0], plain=parts[1], speedup=Spread(*speedup))


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"●": as_measured(2, 0.3, 0.4, 0.5)},
        {"●": as_measured(2, 1.1, 1.3, 1.4), "■": as_measured(32, 11.0, 12.0, 14.5)},
    ],
    ids=["nothing", "slow", "two"],
)
def test_axes_hold_what_is_drawn_and_as_many_labels_as_there_is_room_for(found: dict[str, Speculated]) -> None:
    lengths = tuple(range(20, 80))
    curves = {
        CACHED: StepTimes(lengths, (5.0,) * 60),
        UNCACHED: StepTimes(lengths, tuple(9 + 0.1 * n for n in lengths)),
    }
    used = dict.fromkeys(found, (300, 450_000))
    charts = figures.columns(found) | {"cache": cache_columns(BYTES, used), "growth": growth_columns(curves)}
    for name, (columns, layout) in charts.items():
        empty = CHARTS[name]().layout
        axes = {axis: layout.get(f"{axis}axis.range", empty[f"{axis}axis"].range) for axis in "xy"}
        for axis, (low, high) in ((axis, sorted(ends)) for axis, ends in axes.items()):
            drawn = [at for trace in columns for at in trace[axis] if at is not None]
            if axis == "x":
                bars = (zip(trace.get("base", ()), trace["x"], strict=False) for trace in columns)
                drawn += [base + length for some in bars for base, length in some]
            if drawn:
                assert low <= min(drawn) <= max(drawn) <= high < 2.5 * max(drawn), (name, axis)
        every = layout.get("xaxis.dtick", empty.xaxis.dtick)
        assert every is None or (axes["x"][1] - axes["x"][0]) / every < 10, name
    rows = charts["round"][1]["yaxis.tickvals"]
    assert len(rows) == 2 * len(found)
    assert all(later - before > 0.72 for before, later in pairwise(rows)), "a bar is 0.72 high"


def test_a_setting_whose_draft_tokens_never_filled_a_window_is_named() -> None:
    """As of a lookup that finds too little: its speed and the tokens of its rounds would not be the formula's."""
    runs = {name: [short(run) for run in some] for name, some in made("cache", "draft-4").items()}
    found = theory(configs(runs), runs, BYTES)
    assert found["missing"] == "Not on these curves, because no round had all its draft tokens: Draft γ4."
    runs |= made("draft-2")
    found = theory(configs(runs), runs, BYTES)
    assert [row["name"] for row in found["rows"]] == ["Draft γ2"]
    assert found["missing"].endswith(": Draft γ4.")


def short(run: Run) -> Run:
    """The same run without the last draft token of every round."""
    most = run.config.num_speculative_tokens - 1
    return Run(event for event in run.events if getattr(event, "position", None) != most)


def test_growth_is_given_as_a_power_with_its_interval() -> None:
    lengths = tuple(range(100, 160))
    scatter = [0.1 if x % 20 < 10 else -0.1 for x in lengths]
    flat = StepTimes(lengths, tuple(5 + off for off in scatter))
    steep = StepTimes(lengths, tuple(2 + 0.001 * x**2 + off for x, off in zip(lengths, scatter, strict=True)))
    drawn = growth({CACHED: flat, UNCACHED: steep})
    fit = steep.fit
    assert 1 < fit.low < fit.exponent < fit.high < 4
    assert f"n^{fit.exponent:.2f} ms (power {fit.low:.2f} to {fit.high:.2f}, 95%); with one" in drawn["progress"]
    assert "with one, 5 ms, with no growth above the scatter." in drawn["progress"]
    with_cache, without, line, names = drawn["charts"]["growth"]["columns"]
    assert with_cache == {"x": list(lengths), "y": [round(ms, 3) for ms in flat.ms]}
    assert without["y"][-1] == round(steep.ms[-1], 3)
    ends = [line["y"][at] for at in (0, 50, 52, 102)]
    assert ends == pytest.approx([5, 5, steep.fit(100), steep.fit(159)])
    assert names["text"] == [CACHED, UNCACHED]


def test_what_is_said_of_growth_is_what_the_curve_shows() -> None:
    """Of times that seem to rise a little, but not above their scatter, and of those of a machine that got busy."""
    lengths, random = tuple(range(20, 220)), np.random.default_rng(1)
    level = StepTimes(lengths, tuple(5 + 0.001 * x + random.normal(0, 2) for x in lengths))
    busy = StepTimes(lengths, tuple((60 if x > 90 else 15) + random.normal(0, 4) for x in lengths))
    assert level.fit.factor > 0
    drawn = growth({CACHED: level, UNCACHED: busy})
    *_, line, _ = drawn["charts"]["growth"]["columns"]
    assert line["y"][0] == line["y"][50] == pytest.approx(np.mean(level.medians[1]), rel=0.01)
    assert f"with one, {line['y'][0]:.3g} ms, with no growth above the scatter." in drawn["progress"]
    first, last = (f"{busy.fit(end):.3g}" for end in (lengths[0], lengths[-1]))
    assert (
        f"without a cache, {first} ms rising to {last}, too unsteadily to tell whether n is why;" in drawn["progress"]
    )
    assert [line["y"][52], line["y"][102]] == pytest.approx([float(first), float(last)], rel=0.01)
