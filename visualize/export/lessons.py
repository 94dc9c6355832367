"""The site's lessons: measured once; predictions are taken, compared and marked in the browser alone."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.engine.engine import Engine
from lab.trace.run import Run
from lessons.experiments import Preset
from lessons.experiments.base import Measured, whole
from lessons.lesson import Lesson
from visualize.assets import read
from visualize.charts.base import shells
from visualize.export.answers import key
from visualize.export.pages import CHARTS, Page, filled
from visualize.markdown import to_html
from visualize.pages.lessons import lesson_view as sheet
from visualize.pages.lessons import observation
from visualize.pages.lessons.figure import figure, figure_setup
from visualize.pages.lessons.learner import MOST_CHARACTERS, Learner
from visualize.reduce.frames import recorded
from visualize.states import as_json
from visualize.static_page import component
from visualize.text import as_line

ABOUT = "Twenty-two lessons: predict, see a recorded run, explain."
PREDICT = sheet.PREDICT | {"kept": "Prediction saved. See what was recorded."}
TRY = {"does": "See what was recorded"}
TO_LESSON = re.compile(r'<a [^>]*href="lessons\?lesson=(\d+)"[^>]*>(.*?)</a>')


@dataclass(frozen=True)
class RecordedLesson:
    """A lesson with all that its page shows except what comes next. ``played``: the run in its player, if any."""

    lesson: Lesson
    data: dict[str, Any]
    explanation: str
    played: Run | None


def record(load: Callable[[str], Engine], lesson: Lesson, step: Callable[[str], None]) -> RecordedLesson:
    """Run both presets of a lesson, and check that its questions have answers. ``step`` is told what is being done.

    Raises:
        LabError: something in a preset cannot be done, or a question has no answer in what was measured.
    """
    measured, tried = (_measured(load, preset, step) for preset in (lesson.front.preset, lesson.changed))
    figures = _figures(measured)
    asked, after = Learner(figures=figures), Learner(figures=figures, tried=_figures(tried))
    seen = observation.seen(lesson, measured)
    data = {
        "number": lesson.number,
        "name": lesson.name,
        "kept": sheet.KEPT,
        "figure": figure(lesson),
        "predict": {
            "asked": sheet.prediction(lesson, Learner()),
            "key": key(lesson.front.predict, figures, foretold=True),
        },
        "panels": seen.panels,
        "try": {"before": sheet.change(lesson, asked), "after": sheet.change(lesson, after)},
        "check": {"asked": sheet.check(lesson, asked), "key": key(lesson.front.check, figures, foretold=False)},
    }
    return RecordedLesson(lesson, data, sheet.explained(lesson, asked), seen.played)


def _measured(load: Callable[[str], Engine], preset: Preset, step: Callable[[str], None]) -> dict[str, Measured]:
    def watch(words: str, share: float, *_: Any) -> None:
        step(words)

    return {name: whole(one.work(load, threading.Event(), watch)) for name, one in preset.experiments.items()}


def _figures(measured: Mapping[str, Measured]) -> dict[str, Any]:
    return {kind: found.figures for kind, found in measured.items()}


def page(found: RecordedLesson, contents: Sequence[Mapping[str, Any]], where: str) -> Page:
    """The lesson.

    Args:
        contents: the site's lessons.
        where: a sentence that says on which machine everything was recorded.
    """
    lesson, played = found.lesson, found.played
    data = found.data | {"next": sheet.onwards(lesson, contents, "../claims.html")}
    hrefs = {str(other["number"]): other["href"] for other in contents}
    explanation = TO_LESSON.sub(
        lambda link: f'<a href="{hrefs[link[1]]}">{link[2]}</a>' if link[1] in hrefs else link[2],
        to_html(found.explanation),
    )
    return Page(
        path=address(lesson.number),
        under="Lessons",
        title=f"{lesson.number}. {lesson.front.title}",
        about=ABOUT,
        body=filled(
            "export/lesson.html",
            where=where,
            introduction=to_html(sheet.introduction(lesson)),
            explanation=explanation,
        ),
        scripts=(*CHARTS, "stage", "lesson"),
        data={"recorded": as_line(data), "transcript": recorded(played, lesson.name) if played else ""},
    )


def address(number: int) -> str:
    return f"lessons/{number}.html"


def contents(numbers: Sequence[int]) -> list[dict[str, Any]]:
    """These lessons, as in ``lesson_sheet.contents``, with addresses relative to one another."""
    return [entry | {"href": f"{entry['number']}.html"} for entry in sheet.contents() if entry["number"] in numbers]


def files(contents: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The script of all lessons: the parts of the Lab's page, and what takes the place of its server."""
    course = {"lessons": contents, "kept": sheet.KEPT, "most": MOST_CHARACTERS}
    observe = {"shells": shells(observation.CHARTS), "vocabulary": as_json()}
    parts = [
        component("course", "pages/lessons/course.js", course),
        component("figure", "pages/lessons/figure.js", figure_setup()),
        component("predict", "pages/lessons/question.js", PREDICT),
        component("observe", "pages/lessons/observe.js", observe),
        component("change", "pages/lessons/try.js", TRY),
        component("check", "pages/lessons/question.js", sheet.CHECK),
    ]
    return {"assets/lesson.js": "\n".join([*parts, read("export/lesson.js")])}
