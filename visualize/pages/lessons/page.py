"""The Lessons page: the course on the left; a lesson's stages on the right, one below the other."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import gradio as gr

from lab.errors import LabError
from lab.measure.measuring import CAREFUL
from lab.measure.reference import reference
from lessons.course import course
from lessons.lesson import Lesson
from lessons.marking import checked
from visualize import page_header as header
from visualize import stage
from visualize.charts.base import shells
from visualize.forms import component
from visualize.gradio_events import QUIET, REPEATED, begins, nothing, ready, warn
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.live_run import Record
from visualize.jobs.run_store import RunStore
from visualize.jobs.visitor_sessions import OnePerSession
from visualize.pages.lessons import lesson_view as sheet
from visualize.pages.lessons import observation
from visualize.pages.lessons.answer_key import Answers
from visualize.pages.lessons.figure import figure, figure_setup
from visualize.pages.lessons.learner import (
    MOST_CHARACTERS,
    MOST_OF_RUNS,
    Learner,
    Runs,
    packed,
    remembered,
    restored,
)
from visualize.pages.lessons.lesson_run import LessonRun
from visualize.pages.lessons.observation import LessonViews
from visualize.reduce.frames import recorded
from visualize.states import as_json
from visualize.text import as_line
from visualize.url_settings import Form

LATEX = [{"left": "$$", "right": "$$", "display": True}, {"left": "$", "right": "$", "display": False}]
BROWSER_KEEPS = f"""() => {{
  // More than the lab ever keeps would be refused, and the page would not load.
  const upTo = (most, text) => (new Blob([JSON.stringify(text)]).size > most ? "" : text);
  const numbers = {json.dumps([str(number) for number in course()])}; // without another, the first is shown
  const asked = new URLSearchParams(location.search).getAll("lesson").at(-1);
  const number = numbers.includes(asked) ? asked : numbers[0];
  try {{
    const kept = JSON.parse(localStorage.getItem("{sheet.KEPT}") ?? "{{}}").lessons?.[number];
    const runs = localStorage.getItem(`{sheet.KEPT}-runs-${{number}}`);
    return [upTo({MOST_CHARACTERS}, kept ? JSON.stringify(kept) : ""), upTo({MOST_OF_RUNS}, runs ?? "")];
  }} catch {{
    return ["", ""]; // storage is blocked, or what it holds is not the lab's
  }}
}}"""


def build(pages: gr.Blocks, load: Load, queue: JobQueue, answers: Answers) -> None:
    """Lay the page out, inside a route of ``pages``: see ``_Actions``."""
    store = RunStore()
    actions = _Actions(load, queue, answers, store)

    def take_away(wanted: list[str]) -> dict[str, str]:
        return store.take_away(wanted)

    header.build("Lessons")
    at, learner = gr.State(), gr.State()
    kept, kept_runs = gr.Textbox(visible=False), gr.Textbox(visible=False)
    with gr.Row(elem_id="lab", elem_classes="lessons"):
        with gr.Column(elem_id="controls"):
            setup = {"lessons": sheet.contents(), "kept": sheet.KEPT, "most": MOST_CHARACTERS}
            progress = component("pages/lessons/course", setup | {"served": True}, elem_id="course")
        with gr.Column(elem_id="view"):
            introduction = gr.Markdown(latex_delimiters=LATEX, elem_id="introduction")
            drawn = component("pages/lessons/figure", figure_setup(), elem_id="figure")
            asked = component("pages/lessons/question", sheet.PREDICT, elem_id="predict")
            with gr.Row(elem_id="actions"):
                press = gr.Button("Run", variant="primary", interactive=False, elem_id="run")
                halt = gr.Button("Stop", elem_id="stop")
                careful = gr.Checkbox(label=f"Careful: {CAREFUL} times the repeats", container=False, elem_id="careful")
            setup = {"shells": shells(observation.CHARTS), "vocabulary": as_json()}
            observed = component("pages/lessons/observe", setup, elem_id="observe")
            player = stage.build(take_away, visible=False)
            explained = gr.Markdown(latex_delimiters=LATEX, elem_id="explain")
            tried = component("pages/lessons/try", {"does": "Run with this change"}, elem_id="try")
            answered = component("pages/lessons/question", sheet.CHECK, elem_id="check")
    shown = [learner, progress, asked, press, explained, tried, answered]
    asked.submit(actions.predict, [at, learner], [*shown, observed], **REPEATED)
    begins(press.click(actions.run, [at, learner, careful], [*shown, observed, player], **REPEATED))
    observed.submit(actions.recorded, [at, learner], [*shown, observed, player], **REPEATED)
    tried.submit(actions.change, [at, learner, careful], [learner, progress, tried], **REPEATED)
    answered.submit(actions.check, [at, learner], [learner, progress, answered], **REPEATED)
    halt.click(actions.stop, queue=False, **REPEATED)
    everything = [at, introduction, drawn, careful, *shown, observed, player]
    ready(pages.load(actions.opened, [kept, kept_runs], everything, js=BROWSER_KEEPS, **QUIET))
    pages.unload(actions.leave)


class _Actions:
    """Actions of learners, each answered with updates of the components it changes. Their runs wait in ``queue`` with
    those of the other pages; their results become ``answers`` for the instructor, and the runs on the stage are put on
    ``store``."""

    def __init__(self, load: Load, queue: JobQueue, answers: Answers, store: RunStore) -> None:
        self._load, self._queue, self._answers, self._store = load, queue, answers, store
        self._tasks = OnePerSession()

    def opened(self, request: gr.Request, kept: str, runs: str) -> list[Any]:
        """The lesson that the address names, as the learner of this browser left it."""
        number, notice = sheet.number_of(request.query_params)
        warn([*filter(None, [notice]), *Form(()).read(request.query_params)[1]])
        lesson = course()[number]
        learner = restored(lesson, kept)
        look = self._observed(request, lesson, learner, remembered(lesson, learner, runs))
        return [
            number,
            sheet.introduction(lesson),
            as_line(figure(lesson)),
            gr.update(visible=lesson.front.preset.careful() != lesson.front.preset),
            *_shown(lesson, learner, keep=False),
            *look,
        ]

    def _observed(
        self, request: gr.Request, lesson: Lesson, learner: Learner, seen: LessonViews | None, fresh: bool = False
    ) -> list[Any]:
        """The outcome with its charts, and the run to play. ``fresh``: it was just made."""
        outcome = sheet.outcome(lesson, learner) | {"fresh": fresh}
        if learner.recorded:
            seen = observation.reference_views(lesson)
            outcome["recorded"] = reference().label
        if seen is None:
            return [as_line(outcome), gr.skip()]
        panels = seen.panels if learner.recorded else observation.with_reference(lesson, seen.panels)
        look = as_line(outcome | {"panels": panels})
        if seen.played is None:
            return [look, gr.skip()]
        id = uuid.uuid4().hex
        self._store.put(request.session_hash, id, seen.played.events)
        return [look, gr.update(value=recorded(seen.played, id, elsewhere=not fresh), visible=True)]

    def predict(self, request: gr.Request, number: int, learner: Learner | None, given: gr.EventData) -> list[Any]:
        """Take a prediction, if there was no run yet, and open what comes after it."""
        if learner is None:
            return _forgotten(8)
        lesson, task = course()[number], self._tasks.last(request.session_hash)
        try:
            if task and task.goes_on and learner.figures is None:
                raise LabError("A run is in progress. It tests the prediction that you made before it.")
            prediction = checked(lesson.front.predict, getattr(given, "answer", None))
        except LabError as error:
            said = sheet.prediction(lesson, learner) | {"problem": str(error)}
            return [learner, gr.skip(), as_line(said), *[gr.skip()] * 5]
        if learner.figures is None:  # after a run the prediction is final
            learner = Learner(prediction)
        return [*_shown(lesson, learner), as_line(sheet.outcome(lesson, learner))]

    def run(
        self, request: gr.Request, number: int, learner: Learner | None, careful: bool = False
    ) -> Iterator[list[Any]]:
        """Make the lesson's runs, and show what they measured beside the prediction."""
        if learner is None:
            yield _forgotten(9)
            return
        lesson, unchanged = course()[number], [gr.skip()] * 7
        task = None
        if learner.prediction is not None:
            start = partial(LessonRun, self._queue, self._load, lesson.front.preset, careful=careful)
            task = self._tasks.begin(request.session_hash, start)
        if task is None:
            yield nothing(9)
            return
        yield [*unchanged, as_line({"channel": task.id}), gr.skip()]
        task.done.wait()
        if task.whole:
            learner = Learner(learner.prediction, {kind: found.figures for kind, found in task.measured.items()})
            runs = task.measured["runs"].runs if "runs" in task.measured else None
            try:
                shown, seen = _shown(lesson, learner, runs), observation.seen(lesson, task.measured)
            except LabError as error:
                yield [*unchanged, as_line(_lacking(error)), gr.skip()]
                return
            self._answers.put(number, learner.figures)
            yield [*shown, *self._observed(request, lesson, learner, seen, fresh=True)]

    def recorded(self, request: gr.Request, number: int, learner: Learner | None) -> list[Any]:
        """Take the reference machine's run in place of one here."""
        if learner is None:
            return _forgotten(9)
        lesson = course()[number]
        found = restored(lesson, as_line(Learner(learner.prediction).kept(lesson) | {"recorded": True}))
        if not found.recorded or observation.reference_views(lesson) is None:
            gr.Warning("The recorded run is of an earlier version of this lesson. Press Run to measure here.")
            return nothing(9)
        self._tasks.stop(request.session_hash)
        learner = found
        return [*_shown(lesson, learner), *self._observed(request, lesson, learner, None)]

    def change(
        self, request: gr.Request, number: int, learner: Learner | None, careful: bool = False
    ) -> Iterator[list[Any]]:
        """Make the runs again as the lesson suggests, and say what changed."""
        if learner is None:
            yield _forgotten(3)
            return
        lesson = course()[number]
        task = None
        if learner.figures is not None:
            start = partial(LessonRun, self._queue, self._load, lesson.changed, careful=careful)
            task = self._tasks.begin(request.session_hash, start)
        if task is None:
            yield nothing(3)
            return
        yield [gr.skip(), gr.skip(), as_line(sheet.change(lesson, learner) | {"channel": task.id})]
        task.done.wait()
        if task.whole:
            tried = replace(learner, tried={kind: found.figures for kind, found in task.measured.items()})
            try:
                changed = sheet.change(lesson, tried)
            except LabError as error:
                yield [gr.skip(), gr.skip(), as_line(sheet.change(lesson, learner) | _lacking(error))]
                return
            yield [tried, _kept(lesson, tried), as_line(changed)]

    def check(self, number: int, learner: Learner | None, given: gr.EventData) -> list[Any]:
        """Mark the answer to the lesson's last question."""
        if learner is None:
            return _forgotten(3)
        lesson, problem = course()[number], ""
        try:
            learner = replace(learner, answer=checked(lesson.front.check, getattr(given, "answer", None)))
        except LabError as error:
            problem = str(error)
        return [learner, _kept(lesson, learner), as_line(sheet.check(lesson, learner) | {"problem": problem})]

    def stop(self, request: gr.Request) -> None:
        self._tasks.stop(request.session_hash)

    def leave(self, request: gr.Request) -> None:
        self._tasks.leave(request.session_hash)
        self._store.clear(request.session_hash)


def _shown(lesson: Lesson, learner: Learner, runs: Runs | None = None, keep: bool = True) -> list[Any]:
    """Updates of all stages for a learner, except what there is to observe. ``runs``: those just made, if any."""
    explained = sheet.explained(lesson, learner)
    return [
        learner,
        _kept(lesson, learner, runs) if keep else as_line({"number": lesson.number}),
        as_line(sheet.prediction(lesson, learner)),
        gr.update(interactive=learner.prediction is not None),
        explained and explained + sheet.watched(lesson),
        as_line(sheet.change(lesson, learner)),
        as_line(sheet.check(lesson, learner)),
    ]


def _lacking(error: LabError) -> Record:
    """Sentence for runs whose figures do not suffice, as where a machine's limits could not be measured."""
    return {"running": False, "problem": f"The runs are over, but not all that is shown here is known: {error}"}


def _forgotten(outputs: int) -> list[Any]:
    """The server was restarted, or very many visitors came since: it does not know this page's learner."""
    gr.Warning("The server has forgotten this page. Load this page again: what you did is kept in this browser.")
    return nothing(outputs)


def _kept(lesson: Lesson, learner: Learner, runs: Runs | None = None) -> str:
    """The record for the browser to keep. ``runs`` that are too large are empty in it."""
    record = {"number": lesson.number, "keep": learner.kept(lesson)}
    return as_line(record | ({} if runs is None else {"runs": packed(runs)}))
