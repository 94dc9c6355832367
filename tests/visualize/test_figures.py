"""Figures, by their data."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest

from lab.trace.events import Event
from tests.visualize.picture import Picture, apply, draw
from visualize.charts import CHARTS
from visualize.charts import rounds_chart as rounds
from visualize.charts.base import TURN, WINDOW, empty, nice_ceiling, shells, window
from visualize.reduce.frames import Reducer
from visualize.reduce.pass_times import axis_top
from visualize.states import STATES


def test_shells_are_the_same_chart_in_light_and_dark() -> None:
    for name, chart in shells(CHARTS, start=True).items():
        kinds = [[trace["type"] for trace in chart[look]["data"]] for look in ("light", "dark")]
        assert kinds[0] == kinds[1], name
        assert len(chart["start"]) == len(kinds[0]), name
        assert chart["light"]["layout"]["font"]["color"] != chart["dark"]["layout"]["font"]["color"]
        assert "heatmap" not in kinds[0]  # each redraw of one leaks memory in the page


@pytest.mark.parametrize("dark", [False, True])
def test_a_run_can_be_drawn(events: list[Event], dark: bool) -> None:
    shown, frames = Picture(), Reducer().feed(events)
    for seq, frame in enumerate(frames):
        shown.apply(frame)
        if seq not in (
            1,
            len(frames) // 2,
            len(frames) - 1,
        ):  # Plotly checks every value of every figure, which is slow
            continue
        for chart in CHARTS:
            drawn = json.loads(shown.figure(chart, dark).to_json())
            for trace in drawn["data"]:
                assert len(trace.get("x", [])) == len(trace.get("y", []))
            for path, value in shown.layout[chart].items():
                axis, key = path.split(".")
                assert drawn["layout"][axis][key] == value


def test_a_round_is_drawn_in_one_column() -> None:
    columns = empty(CHARTS)["rounds"]
    points = [("accepted", 1), ("rejected", 2), ("unjudged", 3), ("recovered", 0)]
    apply(columns, [rounds.point(7, row, state, "x", {"p": 0.5}) for state, row in points])
    figure = draw(rounds.figure(), columns)
    seen = {trace.name: (trace.x, trace.y, trace.text) for trace in figure.data if trace.x}
    assert seen == {STATES[state].label: ((7,), (row,), STATES[state].glyph) for state, row in points}


@pytest.mark.parametrize(
    ("draft_tokens", "labels"),
    [
        (0, "target"),
        (4, "target, draft 1, 2, 3, 4"),
        (8, "target, draft 1, 2, 3, 4, 5, 6, 7, 8"),
        (12, "target, draft 2, 4, 6, 8, 10, 12"),
        (32, "target, draft 4, 8, 12, 16, 20, 24, 28, 32"),
    ],
)
def test_rows_are_labelled_up_to_the_last_draft_token_but_no_more_than_there_is_room_for(
    draft_tokens: int, labels: str
) -> None:
    axis = draw(rounds.figure(), empty(CHARTS)["rounds"], rounds.rows(draft_tokens)).layout.yaxis
    assert ", ".join(axis.ticktext) == labels
    assert [0, *(int(label.split()[-1]) for label in axis.ticktext[1:])] == list(axis.tickvals)
    assert axis.range == (-0.6, draft_tokens + 0.6)


def test_states_differ_in_shape_when_glyphs_are_not_drawn() -> None:
    shapes = {trace.name: trace.meta for trace in rounds.figure().data}
    draft_tokens = ("accepted", "rejected", "unjudged")
    own = ("plain", "recovered", "bonus")
    for row in (draft_tokens, own):
        assert len({shapes[STATES[key].label] for key in row}) == len(row)


def test_axes_move_rarely() -> None:
    assert [nice_ceiling(value) for value in (0, 0.9, 1, 1.2, 4, 51, 700)] == [1, 1, 1, 1.5, 5, 75, 750]
    assert axis_top(10, 6) == 10
    assert axis_top(10, 10) == 10
    assert axis_top(10, 10.5) == 15
    assert axis_top(100, 2) == 3
    assert window(0) == [-0.5, WINDOW - 0.5]
    windows = [window(step) for step in range(100)]
    assert all(first < step < last for step, (first, last) in enumerate(windows))
    assert all(round(after[0] - before[0], 6) in (0, TURN) for before, after in pairwise(windows))
    assert sum(before != after for before, after in pairwise(windows)) == math.ceil((100 - WINDOW) / TURN)
