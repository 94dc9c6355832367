"""A learner's progress in a lesson, and how that is kept in the browser.

What comes back from a browser may be anything, so all of it is checked: answers have to fit their questions, and
figures have to be numbers. What is arithmetic is calculated again.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from lab.engine.engine import Engine
from lab.errors import LabError
from lab.measure.reference import reference
from lab.trace.run import Run, parse_json
from lessons.experiments import Preset
from lessons.experiments.base import Experiment, Measured, whole
from lessons.experiments.runs import figures as figures_of
from lessons.lesson import Answer, Lesson
from lessons.marking import HERE, RECORDED, Provenance, checked, mark
from visualize.pages.lessons.observation import LessonViews, seen

MOST_CHARACTERS = 500_000
"""Most that is kept of a lesson: its figures take about ten thousand."""
MOST_NUMBERS = 2000
"""Most numbers in one figure."""
NONSENSE = (LabError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
"""What is raised by data from a browser that was never kept there."""


@dataclass(frozen=True)
class Learner:
    """A learner's progress. ``figures``: of the run; ``tried``: of the run with the change. None: not there yet.
    ``recorded``: the figures are those of the reference machine."""

    prediction: Answer | None = None
    figures: Mapping[str, Any] | None = None
    tried: Mapping[str, Any] | None = None
    answer: Answer | None = None
    recorded: bool = False

    @property
    def source(self) -> Provenance:
        """The provenance of the figures."""
        return RECORDED if self.recorded else HERE

    def finished(self, lesson: Lesson) -> bool:
        """True if the check question was answered right."""
        if self.answer is None or self.figures is None:
            return False
        return mark(lesson.front.check, self.answer, self.figures, foretold=False).near

    def kept(self, lesson: Lesson) -> dict[str, Any]:
        """JSON-ready progress for the browser to keep. ``done``: the completed stages."""
        done = {
            "predict": self.prediction is not None,
            "run": self.figures is not None,
            "try": self.tried is not None,
            "check": self.finished(lesson),
        }
        return {
            "name": lesson.name,
            "done": [stage for stage, over in done.items() if over],
            "prediction": self.prediction,
            "recorded": self.recorded,
            "figures": None if self.recorded else _measured(self.figures, lesson.front.preset),
            "tried": _measured(self.tried, lesson.changed),
            "answer": self.answer,
        }


def restored(lesson: Lesson, text: str | None) -> Learner:
    """The learner from what the browser kept, as far as it makes sense."""
    learner = Learner()
    if text and len(text) <= MOST_CHARACTERS:
        with suppress(*NONSENSE):
            stages = _stages(lesson, json.loads(text))
            while found := next(stages, None):
                learner = found
    return learner


def _stages(lesson: Lesson, kept: Any) -> Iterator[Learner]:
    """The learner stage by stage; raises where the next makes no sense."""
    if kept["name"] != lesson.name:  # another lesson had this number
        return
    prediction = checked(lesson.front.predict, kept["prediction"])
    yield Learner(prediction)
    recorded = kept.get("recorded") is True
    figures = reference_figures(lesson) if recorded else _figures(lesson.front.preset, kept["figures"])
    mark(lesson.front.predict, prediction, figures)
    lesson.explain.fill(figures)
    learner = Learner(prediction, figures, recorded=recorded)
    yield learner
    answer = None if kept["answer"] is None else checked(lesson.front.check, kept["answer"])
    yield (learner := replace(learner, answer=answer))
    tried = _figures(lesson.changed, kept["tried"])
    lesson.front.change.see.fill({**tried, "before": figures})
    yield replace(learner, tried=tried)


def reference_figures(lesson: Lesson) -> dict[str, Any]:
    """The figures that the reference machine measured. Raises LookupError: it has none for this lesson; ValueError:
    they are of an earlier preset."""
    found = reference()
    return _figures(lesson.front.preset, (found.lessons if found else {})[lesson.name]["figures"])


def _figures(preset: Preset, given: Any) -> dict[str, Any]:
    """The given figures by experiment, group and name, all of them numbers; those that are arithmetic are calculated.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: they are not those of this preset.
    """
    found: dict[str, Any] = {}
    for kind, experiment in preset.experiments.items():
        if experiment.arithmetic:
            found[kind] = worked_out(experiment)
            continue
        names = experiment.names()
        found[kind] = {
            group: {name: _numbers(value) for name, value in figures.items() if name in names[group]}
            for group, figures in given[kind].items()
        }
    return found


def worked_out(experiment: Experiment) -> dict[str, Any]:
    """The figures of an experiment that needs no engine."""
    return whole(experiment.work(_no_engine, threading.Event(), lambda words, share: None)).figures


def _no_engine(pair: str) -> Engine:
    raise AssertionError("arithmetic that asks for an engine")


def _numbers(value: Any) -> float | list[float]:
    several = value if isinstance(value, list) else [value]
    if len(several) > MOST_NUMBERS or not all(type(one) in (int, float) and math.isfinite(one) for one in several):
        raise ValueError("a figure is a number, or a list of them.")
    return value


def _measured(figures: Mapping[str, Any] | None, preset: Preset) -> dict[str, Any] | None:
    if figures is None:
        return None
    return {name: found for name, found in figures.items() if not preset.experiments[name].arithmetic}


# -- recorded runs, so that the charts come back after a reload -----------------------------------------

Runs = Mapping[str, Sequence[Run]]
"""Runs by setting, in the order of the repeats."""

MOST_OF_RUNS = 1_000_000
"""Most of a lesson's runs. A browser keeps about five million for a whole site; the course's lessons take up to
400,000."""
MOST_BYTES = 20 * 2**20
"""Most bytes of the same before compression."""
MOST_VALUES = 500_000
"""Most numbers, texts and lists in it."""


def packed(runs: Runs) -> str:
    """All runs by setting, as ``Run.to_json`` writes them, compressed; empty if that is too much to keep."""
    document = {name: [json.loads(run.to_json()) for run in some] for name, some in runs.items()}
    text = base64.b64encode(gzip.compress(json.dumps(document).encode(), 6)).decode()
    return text if len(text) <= MOST_OF_RUNS else ""


def unpacked(text: str) -> dict[str, list[Run]]:
    """The runs in a text that ``packed`` made.

    Raises:
        NONSENSE, zlib.error: it is not such a text.
    """
    if len(text) > MOST_OF_RUNS:
        raise ValueError("more than is ever kept")
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
    plain = inflate.decompress(base64.b64decode(text, validate=True), MOST_BYTES)
    if not inflate.eof:
        raise ValueError("more than was ever packed")
    documents = parse_json(plain, "what was kept", MOST_VALUES)
    return {name: [Run.of(document) for document in some] for name, some in documents.items()}


def remembered(lesson: Lesson, learner: Learner, text: str | None) -> LessonViews | None:
    """Views of the learner's last run. None: there was none, or its recorded runs are missing, or are not those of the
    figures that were kept."""
    if learner.figures is None:
        return None
    measured = {kind: Measured(dict(found)) for kind, found in learner.figures.items()}
    with suppress(*NONSENSE, zlib.error):
        if preset := lesson.front.preset.runs:
            runs = unpacked(text or "")
            if list(runs) != list(preset.settings) or figures_of(runs) != learner.figures["runs"]:
                return None
            measured["runs"] = Measured(dict(learner.figures["runs"]), runs)
        return seen(lesson, measured)
    return None
