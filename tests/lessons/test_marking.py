"""Answers marked by comparison with figures."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from lab.measure.scaling_fit import StepTimes
from lessons.experiments import by_repeat
from lessons.experiments.growth_experiments import figures as of_growth
from lessons.expressions import Expression, ExpressionError
from lessons.lesson import AnyQuestion
from lessons.marking import AnswerError, checked, mark

FIGURES = {"runs": {"a": {"ms": [4.0, 6.0, 5.0]}, "b": {"ms": 1.0}}, "models": {"m": {"bytes": 2048}}}
NOISY = {"runs": {"a": {"ms": [4.0, 5.0, 9.0]}, "b": {"ms": [5.0, 1.0, 2.0]}}}
"""Medians 5 and 2; repeat by repeat, a takes less, more, more than b."""


def question(**given: Any) -> AnyQuestion:
    return TypeAdapter(AnyQuestion).validate_python({"question": "How much?", "near": "Good.", "far": "Far."} | given)


def slider(**given: Any) -> AnyQuestion:
    usual = {"kind": "slider", "label": "times", "unit": "times", "range": [1, 100], "answer": "ratio(runs.a.ms, 1)"}
    return question(**usual | {"tolerance": "20%"} | given)


def curve(answer: str, *at: float, **given: Any) -> AnyQuestion:
    usual = {"kind": "curve", "label": "ms", "unit": "ms", "range": [0, 100], "tolerance": "20%", "answer": answer}
    return question(**usual | {"x": {"label": "length", "at": list(at)}} | given)


CURVE = curve("runs.a.ms * x", 1, 2, 3)
CHOICE = question(
    kind="choice",
    options=[{"text": "A.", "when": "runs.a.ms < runs.b.ms"}, {"text": "B.", "when": "runs.a.ms >= runs.b.ms"}],
)
BYTES = slider(unit="bytes", range=[1, 10000], answer="models.m.bytes")


def test_a_number_is_near_or_far_by_its_tolerance_a_share_or_a_distance() -> None:
    near, far = mark(slider(), 5.5, FIGURES), mark(slider(), 9, FIGURES)
    assert (near.near, near.right, near.feedback) == (True, 5.0, "Good.")
    assert near.said == "You said 5.50×; this machine measured 5.00×."
    assert (far.near, far.feedback) == (False, "Far.")
    for tolerance, answer, is_near in (("20%", 6, 1), ("20%", 6.1, 0), ("20%", 3.9, 0), (2, 7, 1), (2, 7.5, 0)):
        assert mark(slider(tolerance=tolerance), answer, FIGURES).near == is_near
    assert mark(slider(near="It is {{ runs.b.ms | ms }}."), 5, FIGURES).feedback == "It is 1.00 ms."
    beyond = slider(range=[1, 3])  # of the scale: nobody can answer more than its end
    assert mark(beyond, 3, FIGURES).near
    assert not mark(beyond, 2, FIGURES).near


def test_a_curve_is_near_if_most_of_its_points_are() -> None:
    assert mark(CURVE, [5, 10, 15], FIGURES).right == [5, 10, 15]
    assert mark(CURVE, [5, 10, 99], FIGURES).near
    found = mark(CURVE, [5, 20, 60], FIGURES)
    assert not found.near
    assert found.said == "You drew 5.00 ms at 1 and 60.0 ms at 3; this machine measured 5.00 ms and 15.0 ms."


def test_the_option_that_holds_is_the_right_one() -> None:
    assert (mark(CHOICE, 1, FIGURES).near, mark(CHOICE, 1, FIGURES).said) == (True, "You said: B.")
    assert mark(CHOICE, 0, FIGURES).said == "You said: A. It is: B."
    neither = question(kind="choice", options=[{"text": "A", "when": "1 > 2"}, {"text": "B", "when": "2 > 3"}])
    with pytest.raises(ExpressionError, match="None of the answers is right"):
        mark(neither, 0, FIGURES)


def test_every_kind_of_wrong_answer_may_have_its_own_reply() -> None:
    replies = [{"when": "given > 2 * right", "say": "Too much."}, {"when": "given > right", "say": "More."}]
    answered = {answer: mark(slider(replies=replies), answer, FIGURES).feedback for answer in (5, 20, 8, 2)}
    assert answered == {5: "Good.", 20: "Too much.", 8: "More.", 2: "Far."}
    level = [{"when": "last < 1.5 * first and right_last > 2 * right_first", "say": "Level."}]
    rising = curve("runs.a.ms * x", 1, 2, 3, replies=level)
    assert mark(rising, [9, 9, 9], FIGURES).feedback == "Level."
    assert mark(rising, [1, 20, 60], FIGURES).feedback == "Far."
    options = [{"text": "A.", "say": "Why not {{ runs.b.ms | ms }}?"}, {"text": "B."}, {"text": "C.", "when": "1 > 0"}]
    choice = question(kind="choice", options=options)
    assert [mark(choice, i, FIGURES).feedback for i in range(3)] == ["Why not 1.00 ms?", "Far.", "Good."]


def test_an_answer_that_a_repeat_confirms_is_not_called_wrong() -> None:
    found = mark(slider(), 9.5, NOISY)
    assert (found.near, found.noisy) == (False, True)
    assert found.said == "You said 9.50×; this machine measured 5.00×."
    assert found.feedback.startswith("Too close to call: you may be right. The repeats gave 4.00× to 9.00×.")
    assert mark(slider(), 7, NOISY).noisy  # between two repeats
    far = mark(slider(), 20, NOISY)
    assert (far.near, far.noisy, far.feedback) == (False, False, "Far.")
    assert mark(slider(), 5.5, NOISY).near
    choice = mark(CHOICE, 0, NOISY)
    assert choice.noisy
    assert choice.said == "You said: A. By the medians it is: B."
    assert "1 of 3 repeats agree with you." in choice.feedback
    assert not mark(CHOICE, 0, {"runs": NOISY["runs"] | {"b": {"ms": 1.0}}}).noisy
    assert mark(CURVE, [9, 18, 27], NOISY).noisy


def grown(scatter: float) -> dict[str, Any]:
    """Figures of a flat curve and one that grows as a power of 1.5, alternating ten steps above and ten below."""
    lengths = tuple(range(10, 260))
    off = [scatter if x // 10 % 2 else -scatter for x in lengths]
    with_cache = StepTimes(lengths, tuple(5 + x for x in off))
    without = StepTimes(lengths, tuple(1 + 0.01 * n**1.5 + x for n, x in zip(lengths, off, strict=True)))
    return {"growth": {"cached": of_growth(with_cache), "uncached": of_growth(without)}}


def test_a_curve_measured_once_is_as_uncertain_as_its_fit() -> None:
    at = "near(growth.uncached.lengths, growth.uncached.ms, {})"
    doubled = slider(answer=f"{at.format(240)} / {at.format(120)}")
    assert mark(doubled, 2.8, grown(0.1)).near
    assert mark(doubled, 4.1, grown(0.1)).feedback == "Far."
    found = mark(doubled, 4.1, grown(8))
    assert (found.near, found.noisy) == (False, True)
    low, high = (one["growth"]["uncached"] for one in by_repeat(grown(8)))
    assert high["ms"][-1] / high["ms"][110] > low["ms"][-1] / low["ms"][110] > 1
    assert "Curves that fit nearly as well gave " in found.feedback
    assert not mark(doubled, 20, grown(8)).noisy
    drawn = curve(at.format("x"), 20, 120, 240, unit="number", range=[0, 60], tolerance="10%")
    steep = mark(drawn, [high["ms"][int(at) - 10] for at in drawn.x.at], grown(8))
    assert steep.noisy
    assert "Curves that fit nearly as well differ." in steep.feedback


def test_each_repeat_alone_has_its_own_figures() -> None:
    assert [one["runs"]["b"]["ms"] for one in by_repeat(NOISY)] == [5.0, 1.0, 2.0]
    assert by_repeat({"runs": {"a": {"ms": [4.0]}}}) == []
    lists = {"rules": {"residual": {"draws": [1.0, 2.0, 3.0]}}, "models": {"m": {"bytes": 2048}}}
    assert by_repeat(lists) == []  # one number a step, not one a repeat
    both = by_repeat(NOISY | lists)
    assert both[1]["runs"]["a"]["ms"] == 5.0
    assert both[1]["rules"] is lists["rules"]
    assert len(by_repeat(NOISY | grown(0.1))) == 2


def test_only_a_measurement_is_called_measured_and_an_answer_worked_out_from_the_run_is_right_or_wrong() -> None:
    """However noisy the run: the question itself gives the numbers to compute with."""
    assert mark(BYTES, 1024, FIGURES).said == "You said 1.00 KiB; it comes to 2.00 KiB."
    twice = mark(slider(answer="runs.a.ms * 2"), 10, FIGURES, foretold=False)
    assert twice.said == "You said 10.0×; it comes to 10.0×."
    drawn = CURVE.model_copy(update={"answer": Expression("models.m.bytes * x")})
    for asked, answer, foretold, measured in (
        (slider(), 5, True, True),
        (slider(), 5, False, False),
        (BYTES, 1024, True, False),
        (CURVE, [5, 10, 15], True, True),
        (drawn, [5, 10, 15], True, False),
    ):
        assert mark(asked, answer, FIGURES, foretold=foretold).measured == measured
    for answer in (7, 9.5):
        assert mark(slider(), answer, NOISY).noisy
        found = mark(slider(), answer, NOISY, foretold=False)
        assert (found.near, found.noisy, found.feedback) == (False, False, "Far.")
    assert not mark(CHOICE, 0, NOISY, foretold=False).noisy


@given(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.lists(st.none() | st.floats() | st.text() | st.booleans(), max_size=5) | st.dictionaries(st.text(), st.text())
)  # fmt: skip
def test_invalid_answers_are_refused(answer: Any) -> None:
    for asked, beyond in ((slider(), 100.5), (slider(), 0.5), (slider(), True), (CURVE, [5, 10, 101]), (CHOICE, 2)):
        with pytest.raises(AnswerError):
            checked(asked, beyond)
    for asked in (slider(), CURVE, CHOICE):
        try:
            checked(asked, answer)
        except AnswerError:
            continue
        mark(asked, answer, FIGURES)
