"""A lesson's stages as JSON for the page: what is asked, what was answered, and the outcome. Texts are plain."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lab.measure.reference import reference
from lab.util.messages import listed
from lessons.course import course
from lessons.expressions import Figures
from lessons.lesson import AnyQuestion, Choice, Curve, Lesson, Slider
from lessons.marking import Mark, mark
from lessons.template import WRITE
from visualize.pages.lessons.learner import Learner
from visualize.pool_inputs import PRESETS, address

PREDICT = {
    "title": "1 · Predict",
    "does": "Lock in",
    "unanswered": "Give your prediction first. An estimate will do.",
    "kept": "Prediction saved. Press Run.",
    "next": "#run",
}
CHECK = {"title": "4 · Check", "does": "Check", "unanswered": "Answer it first."}
KEPT = "decode-lab-course"
"""Where the browser keeps the learner's progress."""
ENDED = re.compile(r"(?<!\$)\$([^$\n]+)\$([.,;:])")
"""A formula, and the punctuation after it."""
OTHER = re.compile(r"\]\(0*(\d+)-[\w-]+\.md\)")
"""The end of a link from one lesson's file to another's."""
STOPS = 120
"""Places of a slider, one arrow key apart."""


def contents() -> list[dict[str, Any]]:
    """All lessons, in order."""
    return [
        {
            "number": number,
            "href": f"lessons?lesson={number}",
            "name": lesson.name,
            "title": lesson.front.title,
            "minutes": lesson.front.minutes,
            "needs": lesson.front.needs,
        }
        for number, lesson in course().items()
    ]


def introduction(lesson: Lesson) -> str:
    """Markdown: the title and what is read first."""
    about = f"About {lesson.front.minutes} minutes."
    if needed := lesson.front.needs:
        about += f" Comes after lesson{'s' * (len(needed) > 1)} {listed([*map(str, needed)])}."
    return f"# {lesson.number}. {lesson.front.title}\n\n*{about}*\n\n{held(lesson.introduction)}"


def explained(lesson: Lesson, learner: Learner) -> str:
    """Markdown: the explanation with the run's numbers. Empty before there are any."""
    if not learner.figures:
        return ""
    where = f"*Here: {reference().label}, recorded.*\n\n" if learner.recorded else ""
    return f"## Explain\n\n{where}{held(lesson.explain.fill(learner.figures))}"


def watched(lesson: Lesson) -> str:
    """Markdown: where on the Pool page the lesson's subject can be watched, if it can, and what to do next."""
    pools = [(PRESETS[pool.preset], pool.say) for pool in lesson.front.pool]
    links = [f"- [{preset.label}]({address(preset.inputs)}) · {say}" for preset, say in pools]
    pool = "\n".join(["\n\n**Watch it on the Pool page:**\n", *links]) if links else ""
    return pool + (f"\n\n{lesson.front.beyond.markdown(lesson.number)}" if lesson.front.beyond else "")


def held(text: str) -> str:
    """Markdown with punctuation moved into the formula before it: after a formula a browser may break the line.
    Links to other lessons' files lead to their pages."""
    text = OTHER.sub(r"](lessons?lesson=\1)", text)
    return ENDED.sub(r"$\1\\text{\2}$", text)


def prediction(lesson: Lesson, learner: Learner) -> dict[str, Any]:
    """The question before the run. It reveals nothing about the answer until there was a run."""
    asked = lesson.front.predict
    record = _asked("predict", asked, {}) | {"given": learner.prediction, "locked": learner.figures is not None}
    if learner.figures is None or learner.prediction is None:
        return record
    return record | {"mark": marked(asked, mark(asked, learner.prediction, learner.figures, source=learner.source))}


def outcome(lesson: Lesson, learner: Learner) -> dict[str, Any]:
    """Outcome of the prediction; ``ready``: there is one; ``over``: there was a run."""
    if learner.figures is None:
        record = reference()
        carries = {"carries": record.label} if record and lesson.name in record.lessons else {}
        return {"ready": learner.prediction is not None, "over": False} | carries
    found = mark(lesson.front.predict, learner.prediction, learner.figures, source=learner.source)
    return {"ready": True, "over": True, "said": found.said, "feedback": found.feedback, "kind": kind(found)}


def check(lesson: Lesson, learner: Learner) -> dict[str, Any] | None:
    """The question after the run; None before."""
    if learner.figures is None:
        return None
    asked = lesson.front.check
    record = _asked("check", asked, learner.figures) | {"given": learner.answer, "locked": False}
    if learner.answer is None:
        return record
    found = mark(asked, learner.answer, learner.figures, foretold=False, source=learner.source)
    return record | {"mark": marked(asked, found), "next": onwards(lesson, contents(), "claims")}


def onwards(lesson: Lesson, contents: Sequence[Mapping[str, Any]], claims: str) -> dict[str, str]:
    """Link to the next of the lessons in ``contents``, or after the last to the claims."""
    for other in contents:
        if other["number"] > lesson.number:
            return {"href": other["href"], "said": f"Next: {other['number']}. {other['title']}"}
    return {"href": claims, "said": "That was the last lesson. Next: popular claims, tested"}


def change(lesson: Lesson, learner: Learner) -> dict[str, Any] | None:
    """The change that can be tried, and its result; None before the run."""
    if learner.figures is None:
        return None
    tried, asked = learner.tried, lesson.front.change
    rows = []
    for shown in asked.shows:
        write = WRITE[shown.unit]
        after = write(shown.value.number(tried)) if tried else ""
        rows.append([shown.label, write(shown.value.number(learner.figures)), after])
    see = asked.see.fill({**tried, "before": learner.figures}) if tried else ""
    why = f"{asked.why} Before: {reference().label}." if learner.recorded else asked.why
    return {"title": asked.title, "why": why, "rows": rows, "see": see}


def _asked(stage: str, question: AnyQuestion, figures: Figures) -> dict[str, Any]:
    record: dict[str, Any] = {"stage": stage, "kind": question.kind, "question": question.question.fill(figures)}
    if isinstance(question, Choice):
        return record | {"options": [option.text for option in question.options]}
    steps = " (each step multiplies)" if question.scale == "log" else ""
    record |= {"label": f"{question.label}{steps}", "stops": stops(question)}
    if isinstance(question, Curve):
        record["x"] = {"label": question.x.label, "at": question.x.at}
    return record


def stops(question: Slider | Curve) -> list[list[Any]]:
    """The values that can be chosen, each with its text: rounded to what its text says, or to whole numbers."""
    low, high = question.range
    write = WRITE[question.unit]
    found: dict[str, float] = {}
    for step in range(STOPS + 1):
        share = step / STOPS
        value = low * (high / low) ** share if question.scale == "log" else low + (high - low) * share
        if question.unit in ("count", "tokens"):
            value = round(value)
        elif question.unit != "bytes":
            value = float(f"{value:.3g}")
        found.setdefault(write(value), min(max(value, low), high))
    return [[value, text] for text, value in found.items()]


def marked(question: AnyQuestion, found: Mark) -> dict[str, Any]:
    """A mark for the page. ``right``: the place of the right answer; for a curve, those of its points. On a scale a
    place is from 0 to 1; a curve's point beyond the scale is above 1, and the page draws as much as the scale shows.
    ``found``: how the right answer was, in a word."""
    places: Any = found.right
    if isinstance(question, Curve):
        places = [height(question, value) for value in found.right]
    elif isinstance(question, Slider):
        places = place(question, found.right)
    by = "measured" if found.measured else "calculated"
    return {"kind": kind(found), "said": found.said, "feedback": found.feedback, "right": places, "found": by}


def kind(found: Mark) -> str:
    """The mark in a word, for the page's style."""
    return "near" if found.near else "noisy" if found.noisy else "far"


def place(question: Slider | Curve, value: float) -> float:
    """A value's place among the stops, from 0 to 1; a value beyond them is at their end."""
    values = [stop for stop, _ in stops(question)]
    if value <= values[0]:
        return 0.0
    above = next((i for i, stop in enumerate(values) if stop >= value), None)
    if above is None:
        return 1.0
    low, high = values[above - 1], values[above]
    return (above - 1 + (value - low) / (high - low)) / (len(values) - 1)


def height(curve: Curve, value: float) -> float:
    """A value's place on a curve's scale; above 1 beyond it."""
    low, high = curve.range
    if value <= high:
        return place(curve, value)
    return math.log(value / low) / math.log(high / low) if curve.scale == "log" else (value - low) / (high - low)


def number_of(query: Mapping[str, str]) -> tuple[int, str]:
    """The lesson that a link asks for; if there is no such lesson, the first, and a sentence that says so."""
    asked = str(query.get("lesson", ""))
    numbers = {str(number): number for number in course()}
    if asked in numbers:
        return numbers[asked], ""
    said = f"There is no such lesson; the lessons are {', '.join(numbers)}." if asked else ""
    return next(iter(numbers.values())), said
