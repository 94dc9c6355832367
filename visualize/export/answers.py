"""Marks of every possible answer, made in advance for a page without a server."""

from typing import Any

from lessons.expressions import Figures
from lessons.lesson import Answer, AnyQuestion, Choice, Curve
from lessons.marking import RECORDED, differ, drawn, found_by, in_each_repeat, mark, right_one, too_noisy
from visualize.pages.lessons.lesson_view import marked, stops

"""The measurements are not the reader's machine's."""


def key(question: AnyQuestion, figures: Figures, foretold: bool) -> dict[str, Any]:
    """The marks of all answers. ``right``: the place of the right one, and how it was ``found``, as in
    ``lesson_sheet.marked``. A curve has too many answers and is marked from its points: see ``_of_curve``. For other
    questions, ``answers`` has [kind, said, feedback] by option or stop, where feedback is an index into ``feedback``.

    Args:
        foretold: as in ``lessons.marking.mark``.

    Raises:
        ExpressionError: the figures give no answer.
    """
    if isinstance(question, Curve):
        return _of_curve(question, figures, foretold)
    given: list[Answer]
    if isinstance(question, Choice):
        given = list(range(len(question.options)))
    else:
        given = [stop for stop, _ in stops(question)]
    found = [marked(question, mark(question, answer, figures, foretold=foretold, source=RECORDED)) for answer in given]
    feedback = list(dict.fromkeys(one["feedback"] for one in found))
    answers = [[one["kind"], one["said"], feedback.index(one["feedback"])] for one in found]
    return {"right": found[0]["right"], "found": found[0]["found"], "feedback": feedback, "answers": answers}


def _of_curve(question: Curve, figures: Figures, foretold: bool) -> dict[str, Any]:
    """``near``: whether each stop is near, point by point, first by the whole run and then by each repeat alone.
    ``said`` has placeholders for the texts of the curve's ends; ``feedback`` is by kind."""
    values, right = [stop for stop, _ in stops(question)], right_one(question, figures)
    some = mark(question, values[:1] * len(right), figures, foretold=foretold)
    repeats = in_each_repeat(question, figures) if foretold else ()
    shown = marked(question, some)
    return {
        "right": shown["right"],
        "found": shown["found"],
        "near": [
            [[question.tolerance(value, at) for value in values] for at in points] for points in (right, *repeats)
        ],
        "said": drawn(question, "{first}", "{last}", right, found_by(some.measured, RECORDED)),
        "feedback": {
            "near": question.near.fill(figures),
            "far": question.far.fill(figures),
            "noisy": too_noisy(differ(question), RECORDED),
        },
    }
