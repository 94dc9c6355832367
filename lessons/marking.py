"""An answer compared with a run: what was said, what is right, and whether that is near."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from lab.errors import LabError
from lessons.experiments import FITTED, WORKED_OUT, by_repeat
from lessons.expressions import ExpressionError, Figures
from lessons.lesson import Answer, AnyQuestion, Choice, Curve, Slider
from lessons.template import WRITE


class Provenance(NamedTuple):
    """Presentation of a measurement: who ``says`` it, and what to do if it is ``too_noisy`` to say."""

    says: str
    too_noisy: str


HERE = Provenance("this machine measured", "Run it again when nothing else is running.")
RECORDED = Provenance("the recording has", "A quieter machine could tell.")


class AnswerError(LabError, ValueError):
    """Something that is not an answer to this question."""


@dataclass(frozen=True)
class Mark:
    """``right``: the run's answer, in the same form. ``said``: both in a sentence. ``noisy``: the answer is not near,
    but near to what one of the repeats alone gave, or between them. ``measured``: the run's answer is a measurement,
    and no calculation."""

    near: bool
    noisy: bool
    measured: bool
    right: Answer
    said: str
    feedback: str


def checked(question: AnyQuestion, answer: object) -> Answer:
    """The answer, if it is a valid one. Raises AnswerError."""
    if isinstance(question, Choice):
        if type(answer) is not int or not 0 <= answer < len(question.options):
            raise AnswerError("Choose one of the answers.")
        return answer
    low, high = question.range
    given, wanted = (answer, len(question.x.at)) if isinstance(question, Curve) else ([answer], 1)
    if (
        not isinstance(given, list)
        or len(given) != wanted
        or not all(type(value) in (int, float) and low <= value <= high for value in given)
    ):
        unit, form = WRITE[question.unit], "a number" if wanted == 1 else f"{wanted} numbers"
        raise AnswerError(f"The answer is {form} from {unit(low)} to {unit(high)}.")
    return answer


def mark(
    question: AnyQuestion, answer: Answer, figures: Figures, *, foretold: bool = True, source: Provenance = HERE
) -> Mark:
    """Compare an answer with the figures of a run.

    Args:
        foretold: given before there was a run. Otherwise the figures were there to work it out from, and what the
            repeats say beside them makes no other answer right.
        source: of the figures.

    Raises AnswerError: it is not an answer to this question; ExpressionError: the figures do not give one.
    """
    checked(question, answer)
    right = right_one(question, figures)
    each = list(in_each_repeat(question, figures)) if foretold else []
    near = is_near(question, answer, right)
    between = isinstance(question, Slider) and bool(each) and min(each) <= answer <= max(each)
    noisy = not near and (between or any(is_near(question, answer, one) for one in each))
    measured = is_measured(question, foretold)
    if isinstance(question, Choice):
        own, other = question.options[answer].text, question.options[right].text
        so = "By the medians it is" if noisy else "It is"
        said = f"You said: {own}" if near else f"You said: {own} {so}: {other}"
        spread = f"{each.count(answer)} of {len(each)} repeats agree with you."
    else:
        write, verb = WRITE[question.unit], found_by(measured, source)
        if isinstance(question, Curve):
            said = drawn(question, write(answer[0]), write(answer[-1]), right, verb)
            spread = differ(question)
        else:
            said = f"You said {write(answer)}; {verb} {write(right)}."
            spread = f"{_others(question)} gave {write(min(each))} to {write(max(each))}." if each else ""
    said_of = question.near if near else question.reply(answer, right, figures)
    feedback = too_noisy(spread, source) if noisy else said_of.fill(figures)
    return Mark(near, noisy, measured, right, said, feedback)


def too_noisy(spread: str, source: Provenance) -> str:
    """The feedback on an answer that only some of the repeats bear out."""
    return f"Too close to call: you may be right. {spread} {source.too_noisy}"


def _others(question: Slider | Curve) -> str:
    """Figures that show how certain a run's own answer is."""
    fitted = any(name.startswith(FITTED) for name in _names(question))
    return "Curves that fit nearly as well" if fitted else "The repeats"


def differ(question: Curve) -> str:
    """The same for a curve, as a sentence."""
    return f"{_others(question)} differ."


def drawn(question: Curve, first: str, last: str, right: list[float], verb: str) -> str:
    """The ends of a drawn curve beside the right ones, in words."""
    write, at = WRITE[question.unit], [f"{x:,g}" for x in question.x.at]
    return f"You drew {first} at {at[0]} and {last} at {at[-1]}; {verb} {write(right[0])} and {write(right[-1])}."


def in_each_repeat(question: AnyQuestion, figures: Figures) -> Iterator[Answer]:
    """The right answer by each repeat that gives one."""
    for one in by_repeat(figures):
        with suppress(ExpressionError):
            yield right_one(question, one)


def is_near(question: AnyQuestion, answer: Answer, right: Answer) -> bool:
    """True if an answer is near the right one; a curve is if most of its points are. What lies beyond the scale is
    near its end."""
    if isinstance(question, Choice):
        return answer == right
    low, high = question.range
    if isinstance(question, Curve):
        return 2 * sum(map(question.tolerance, answer, [min(max(one, low), high) for one in right])) > len(right)
    return question.tolerance(answer, min(max(right, low), high))


def right_one(question: AnyQuestion, figures: Figures) -> Answer:
    """The run's answer. Raises ExpressionError."""
    if isinstance(question, Curve):
        return [question.answer.number({**figures, "x": x}) for x in question.x.at]
    if isinstance(question, Slider):
        return question.answer.number(figures)
    for place, option in enumerate(question.options):
        if option.when.holds(figures):
            return place
    raise ExpressionError("None of the answers is right on this machine: the lesson did not foresee what it measured.")


def right_answer(question: AnyQuestion, figures: Figures) -> str:
    """Right answer in words. Raises ExpressionError."""
    right = right_one(question, figures)
    if isinstance(question, Choice):
        return question.options[right].text
    write = WRITE[question.unit]
    if isinstance(question, Curve):
        return ", ".join(f"{write(y)} at {x:,g}" for x, y in zip(question.x.at, right, strict=True))
    return write(right)


def is_measured(question: AnyQuestion, foretold: bool) -> bool:
    """True if the right answer is a measurement: not if it is arithmetic, or worked out from the run's figures."""
    names = _names(question)
    return foretold and not (names and all(name.startswith(WORKED_OUT) for name in names))


def found_by(measured: bool, source: Provenance) -> str:
    """Words before the right answer: nothing is called measured that was computed."""
    return source.says if measured else "it comes to"


def _names(question: AnyQuestion) -> list[str]:
    """The figures that the right answer is computed from. A curve's place, x, is none."""
    return [name for expression in question.answers for name in expression.names if name != "x"]
