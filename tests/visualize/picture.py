"""The whole stage at one instant: the frames so far, applied in order.

The page's script does the same with the same frames. Tests compare the page with this version, which also proves that
frames leave nothing out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go

from visualize.charts import CHARTS
from visualize.charts.base import Columns, Patch, empty
from visualize.reduce.frames import Frame

MARKER = {"color": "marker_color", "pattern": "marker_pattern_shape"}
"""The columns that set properties of a trace's markers."""


def apply(columns: Columns, patches: list[Patch]) -> None:
    """Apply ``patches`` to ``columns`` in place."""
    for trace, index, row in patches:
        for name, value in row.items():
            column = columns[trace].setdefault(name, [])
            if index is None:
                column.append(value)
            else:
                column[index] = value


def draw(figure: go.Figure, columns: Columns, layout: dict[str, Any] | None = None) -> go.Figure:
    """``figure`` with its data and current axis ranges, as the page's script draws it."""
    for trace, values in zip(figure.data, columns, strict=True):
        trace.update({MARKER.get(name, name): value for name, value in values.items()})
    for path, value in (layout or {}).items():
        figure.update_layout({path.replace(".", "_"): value})
    return figure


class Picture:
    """What the stage shows. ``apply`` advances it by one frame.

    Args:
        columns: each chart's columns before a run; None: those of the Lab's stage.
    """

    def __init__(self, columns: dict[str, Columns] | None = None) -> None:
        self.seq = -1
        self.head: dict[str, Any] = {}
        self.tokens: list[dict[str, Any]] = []
        self.columns = empty(CHARTS) if columns is None else columns
        self.layout: dict[str, dict[str, Any]] = {name: {} for name in self.columns}
        self.captions: dict[str, str] = {}
        self.readouts: dict[str, list[str]] = {}
        self.say = self.notice = self.compared = ""
        self.finished: dict[str, str] | None = None

    def apply(self, frame: Frame) -> Picture:
        """Apply the next frame.

        Raises:
            ValueError: a frame was skipped or repeated.
        """
        if frame["seq"] != self.seq + 1:
            raise ValueError(f"frame {self.seq + 1} is next, not {frame['seq']}")
        self.seq = frame["seq"]
        self.head = frame.get("head", self.head)
        self.columns |= copy.deepcopy(frame.get("columns", {}))  # patches change columns, never a frame
        self.tokens += frame.get("tokens", [])
        for name, patches in frame.get("charts", {}).items():
            apply(self.columns[name], patches)
        for name, changes in frame.get("layout", {}).items():
            self.layout[name] |= changes
        self.captions |= frame.get("captions", {})
        self.readouts |= frame.get("readouts", {})
        self.compared = frame.get("compared", self.compared)
        self.say = frame.get("say", self.say)
        self.notice = frame.get("notice", self.notice)
        self.finished = frame.get("finished", self.finished)
        return self

    def figure(self, chart: str, dark: bool = False) -> go.Figure:
        """One of the stage's charts in its current state."""
        return draw(CHARTS[chart](dark), self.columns[chart], self.layout[chart])


def picture(frames: Iterable[Frame]) -> Picture:
    """What is shown after these frames."""
    shown = Picture()
    for frame in frames:
        shown.apply(frame)
    return shown
