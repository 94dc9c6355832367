"""A page without a server marks every answer of every question as Python does."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lessons.course import course
from lessons.expressions import Figures
from lessons.lesson import AnyQuestion, Choice
from lessons.marking import mark
from tests.lessons.test_marking import CHOICE, CURVE, FIGURES, NOISY, slider
from visualize.export.answers import RECORDED, key
from visualize.pages.lessons.learner import worked_out
from visualize.pages.lessons.lesson_view import marked, stops


def compare(question: AnyQuestion, figures: Figures, foretold: bool = True) -> set[str]:
    """Mark every answer by the key and by Python. Returns the kinds of marks given."""
    given = range(len(question.options)) if isinstance(question, Choice) else [stop for stop, _ in stops(question)]
    found = key(question, figures, foretold)
    assert len(found["answers"]) == len(given)
    for answer, (kind, said, feedback) in zip(given, found["answers"], strict=True):
        reported = {"kind": kind, "said": said, "feedback": found["feedback"][feedback]}
        reported |= {"right": found["right"], "found": found["found"]}
        assert reported == marked(question, mark(question, answer, figures, foretold=foretold, source=RECORDED))
        assert "this machine" not in said
    return {kind for kind, _, _ in found["answers"]}


@pytest.mark.parametrize("number", [3, 9])
def test_every_answer_is_marked_the_same_as_in_the_lab(number: int) -> None:
    lesson = course()[number]
    figures = {name: worked_out(one) for name, one in lesson.front.preset.experiments.items() if one.arithmetic}
    assert compare(lesson.front.predict, figures) == {"near", "far"}
    assert compare(lesson.front.check, figures, foretold=False) == {"near", "far"}


def test_an_answer_that_only_some_repeats_confirm_is_too_close_to_call() -> None:
    assert compare(slider(), NOISY) == {"near", "noisy", "far"}
    assert compare(slider(), FIGURES) == {"near", "noisy", "far"}
    assert compare(CHOICE, NOISY) == {"near", "noisy"}
    assert compare(CHOICE, FIGURES) == {"near", "far"}
    assert compare(slider(), NOISY, foretold=False) == {"near", "far"}
    reported = key(slider(), NOISY, True)
    assert [text for text in reported["feedback"] if "too close" in text.lower()] == [
        "Too close to call: you may be right. The repeats gave 4.00× to 9.00×. A quieter machine could tell."
    ]
    assert "; the recording has 5.00×." in reported["answers"][0][1]


@functools.cache
def curve_key(noisy: bool, foretold: bool) -> dict[str, Any]:
    return key(CURVE, NOISY if noisy else FIGURES, foretold)


@given(st.lists(st.integers(0, 20), min_size=3, max_size=3), st.booleans(), st.booleans())
def test_a_curve_is_marked_by_its_points(places: list[int], noisy: bool, foretold: bool) -> None:
    figures, found, values = NOISY if noisy else FIGURES, curve_key(noisy, foretold), stops(CURVE)
    places = [min(place * (i + 1), len(values) - 1) for i, place in enumerate(places)]
    near, *repeats = (
        2 * sum(points[place] for points, place in zip(table, places, strict=True)) > 3 for table in found["near"]
    )
    kind = "near" if near else "noisy" if any(repeats) else "far"
    said = found["said"].replace("{first}", values[places[0]][1]).replace("{last}", values[places[-1]][1])
    reported = {"kind": kind, "said": said, "feedback": found["feedback"][kind]}
    reported |= {"right": found["right"], "found": found["found"]}
    one = mark(CURVE, [values[place][0] for place in places], figures, foretold=foretold, source=RECORDED)
    assert reported == marked(CURVE, one)
