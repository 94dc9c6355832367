"""An answer held against a run: what was said, what is so, and whether that is near."""

from __future__ import annotations

from dataclasses import dataclass

from lab.config import LabError
from lessons.experiments import WORKED_OUT
from lessons.expressions import Expression, Figures
from lessons.functions import ExpressionError
from lessons.questions import Answer, AnyQuestion, Choice, Curve, Slider
from lessons.units import WRITE


class AnswerError(LabError, ValueError):
    """An answer that is none to this question."""


@dataclass(frozen=True)
class Mark:
    """``right``: the answer as the run has it, in the same form. ``said`` has both in a sentence."""

    near: bool
    right: Answer
    said: str
    feedback: str


def checked(question: AnyQuestion, answer: object) -> Answer:
    """The answer, if it is one to this question.

    Raises:
        AnswerError: it is not.
    """
    if isinstance(question, Choice):
        if type(answer) is not int or not 0 <= answer < len(question.options):
            raise AnswerError("Choose one of the answers.")
        return answer
    low, high = question.range
    unit = WRITE[question.unit]
    given = answer if isinstance(question, Curve) else [answer]
    wanted = len(question.x.at) if isinstance(question, Curve) else 1
    if not isinstance(given, list) or len(given) != wanted or not all(_within(value, low, high) for value in given):
        raise AnswerError(
            f"The answer is {'a number' if wanted == 1 else f'{wanted} numbers'} from {unit(low)} to {unit(high)}."
        )
    return answer


def _within(value: object, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def mark(question: AnyQuestion, answer: Answer, figures: Figures) -> Mark:
    """Hold an answer against the figures of a run.

    Raises:
        AnswerError: it is no answer to this question.
        ExpressionError: the figures do not give one.
    """
    checked(question, answer)
    if isinstance(question, Choice):
        right = _right_option(question, figures)
        near = answer == right
        own, other = question.options[answer].text, question.options[right].text
        said = f"You said: {own}" if near else f"You said: {own} It is: {other}"
    else:
        right = right_numbers(question, figures)
        write, verb = WRITE[question.unit], found_by(question.answers)
        if isinstance(question, Curve):
            near = 2 * sum(map(question.tolerance, answer, right)) > len(right)  # most points of it
            at = [f"{x:,g}" for x in question.x.at]
            said = (
                f"You drew {write(answer[0])} at {at[0]} and {write(answer[-1])} at {at[-1]}; {verb} "
                f"{write(right[0])} and {write(right[-1])}."
            )
        else:
            near = question.tolerance(answer, right)
            said = f"You said {write(answer)}; {verb} {write(right)}."
    feedback = (question.near if near else question.far).fill(figures)
    return Mark(near, right, said, feedback)


def right_numbers(question: Slider | Curve, figures: Figures) -> float | list[float]:
    """What the run gives. Raises ExpressionError."""
    if isinstance(question, Curve):
        return [question.answer.number({**figures, "x": x}) for x in question.x.at]
    return question.answer.number(figures)


def right_answer(question: AnyQuestion, figures: Figures) -> str:
    """What is right, in words. Raises ExpressionError."""
    if isinstance(question, Choice):
        return question.options[_right_option(question, figures)].text
    right, write = right_numbers(question, figures), WRITE[question.unit]
    if isinstance(question, Curve):
        return ", ".join(f"{write(y)} at {x:,g}" for x, y in zip(question.x.at, right, strict=True))
    return write(right)


def found_by(expressions: list[Expression]) -> str:
    """What is not measured is not said to be."""
    names = [name for expression in expressions for name in expression.names]
    arithmetic = names and all(name.startswith(WORKED_OUT) for name in names)
    return "it comes to" if arithmetic else "this machine measured"


def _right_option(question: Choice, figures: Figures) -> int:
    for place, option in enumerate(question.options):
        if option.when.holds(figures):
            return place
    raise ExpressionError("None of the answers is right on this machine: the lesson did not foresee what it measured.")
