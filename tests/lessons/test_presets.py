"""Every lesson of the course on the embedded pair: it runs, is marked, and explains itself with its measurements."""

from __future__ import annotations

import functools
import math
import threading
from typing import Any

import pytest

from lab import Engine, load_engine
from lessons.course import course
from lessons.experiments import Preset
from lessons.experiments.base import Experiment, Measured, whole
from lessons.experiments.batches import Batches
from lessons.experiments.caches import Formats
from lessons.experiments.counts import Turns
from lessons.experiments.growth_experiments import Growth
from lessons.experiments.invariance import Company
from lessons.experiments.kept import Kept
from lessons.experiments.noise import Noise
from lessons.experiments.numerics import EightBits, Temperatures
from lessons.experiments.runs import Runs
from lessons.experiments.traffic import Traffic
from lessons.lesson import AnyQuestion, Choice, Curve
from lessons.marking import mark

pytestmark = pytest.mark.slow

FEW = 12


@pytest.fixture(scope="module")
def load() -> Any:
    @functools.cache
    def load(draft: str) -> Engine:
        return load_engine(draft=draft)

    return load


def shortened(experiment: Experiment) -> Experiment:
    """The same experiment, with as few tokens as suffice."""
    match experiment:
        case Runs():
            fewer = {"max_tokens": FEW}
            settings = {
                name: setting.model_copy(update={"sampling": setting.sampling | fewer})
                for name, setting in experiment.settings.items()
            }
            return experiment.model_copy(update={"settings": settings, "repeats": 1})
        case Growth():
            return experiment.model_copy(update={"tokens": 52})
        case Formats():
            return experiment.model_copy(update={"texts": 2, "tokens": 16})
        case Company():
            beside = {
                name: one.model_copy(update={"batch": min(4, one.batch)}) for name, one in experiment.settings.items()
            }
            return experiment.model_copy(update={"settings": beside, "tokens": FEW})
        case Turns():
            return experiment.model_copy(update={"turns": min(experiment.turns, 6)})
        case Temperatures():
            return experiment.model_copy(update={"texts": 2, "tokens": 16})
        case EightBits():
            return experiment.model_copy(update={"tokens": 16})
        case Kept():
            return experiment.model_copy(update={"tokens": 96})
        case Noise():
            return experiment.model_copy(update={"tokens": 11, "more": 2, "repeats": 6})
        case Traffic():
            ways = {
                name: way.model_copy(update={"long_prompt": min(way.long_prompt, 80)})
                for name, way in experiment.settings.items()
            }
            return experiment.model_copy(update={"settings": ways, "requests": 4, "output_tokens": 4, "repeats": 1})
        case Batches():
            batches = {}
            for name, batch in experiment.settings.items():
                fewer = {"requests": min(6, batch.requests), "system_tokens": min(40, batch.system_tokens)}
                batches[name] = batch.model_copy(update={"output_tokens": FEW, **fewer})
            return experiment.model_copy(update={"settings": batches, "repeats": 1})
    return experiment


def measured(preset: Preset, load: Any, before: dict[str, Measured]) -> dict[str, Measured]:
    """``before``: by experiment, what was measured and is not again: shortened, two of them may be the same."""
    found = {}
    for name, experiment in preset.experiments.items():
        shares: list[float] = []
        short = shortened(experiment)
        if (key := repr(short)) not in before:
            work = short.work(load, threading.Event(), lambda words, share, *_, into=shares: into.append(share))
            before[key] = whole(work)
        found[name] = before[key]
        assert shares == sorted(shares)
        assert all(0 <= share <= 1 for share in shares)
    return found


def answers(question: AnyQuestion) -> list[Any]:
    if isinstance(question, Choice):
        return list(range(len(question.options)))
    return [[end] * len(question.x.at) if isinstance(question, Curve) else end for end in question.range]


@pytest.mark.parametrize("number", course())
def test_every_lesson_runs_is_marked_and_explains_itself(number: int, load: Any) -> None:
    lesson = course()[number]
    before: dict[str, Measured] = {}
    found = measured(lesson.front.preset, load, before)
    figures = {name: one.figures for name, one in found.items()}
    for name, experiment in lesson.front.preset.experiments.items():
        for group, given in figures[name].items():
            assert set(given) <= set(experiment.names()[group]), (name, group)
    for question in (lesson.front.predict, lesson.front.check):
        marks = [mark(question, answer, figures) for answer in answers(question)]
        assert all(one.said for one in marks)
        assert not all(one.near for one in marks)  # a question that every answer satisfies asks nothing
        assert "{{" not in question.question.fill(figures) + "".join(one.feedback for one in marks)
    filled = lesson.explain.fill(figures)
    assert "{{" not in filled
    assert "–" not in filled
    for where, expression, _ in lesson.expressions():
        assert where != "observe" or math.isfinite(expression.number(figures))
    after = {name: one.figures for name, one in measured(lesson.changed, load, before).items()}
    assert "{{" not in lesson.front.change.see.fill(after | {"before": figures})
    for shown in lesson.front.change.shows:
        assert shown.value.number(after) >= 0


def test_a_cancelled_experiment_has_no_figures(load: Any) -> None:
    cancelled = threading.Event()
    for name, experiment in course()[2].front.preset.experiments.items():
        cancelled.clear()
        reported = []

        def watch(words: str, share: float, *_: Any, reported: list[str] = reported) -> None:
            reported.append(words)
            if len(reported) == 20:
                cancelled.set()

        assert whole(experiment.work(load, cancelled, watch)).figures == {}, name
        assert len(reported) < 60
