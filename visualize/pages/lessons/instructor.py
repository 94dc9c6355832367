"""The instructor's page: how to teach the course, and for each lesson what to say and what this machine measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from lessons.course import course
from lessons.teaching import guide
from visualize import page_header as header
from visualize.forms import component
from visualize.gradio_events import QUIET, REPEATED, nothing, ready, stops
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.live_run import Record
from visualize.jobs.visitor_sessions import OnePerSession
from visualize.pages.lessons.answer_key import Answers, lesson_records, notes_on
from visualize.pages.lessons.lesson_run import LessonRun
from visualize.pages.lessons.page import LATEX
from visualize.text import as_line


def build(pages: gr.Blocks, load: Load, queue: JobQueue, answers: Answers) -> None:
    """Lay the page out, inside a route of ``pages``. What it measures waits in ``queue`` with all other runs."""
    tasks, lessons = OnePerSession(), course()
    unchanged = dict.fromkeys(lessons, gr.skip())

    def outputs(record: Record, texts: dict[int, Any]) -> list[Any]:
        return [as_line({"lessons": lesson_records(answers)} | record), *texts.values()]

    def opened() -> list[Any]:
        last = answers.last
        return outputs(
            {"running": False}, {number: notes_on(lesson, last.get(number)) for number, lesson in lessons.items()}
        )

    def measure(request: gr.Request, asked: gr.EventData) -> Iterator[list[Any]]:
        given = getattr(asked, "lessons", None)
        wanted = [number for number in lessons if isinstance(given, list) and number in given]
        if not wanted:
            said = "No lesson was named. Press Measure all, or ↻ beside a lesson."
            yield outputs({"running": False, "progress": said}, unchanged)
        task = None
        for place, number in enumerate(wanted):
            said = f"Stopped after {place} of {len(wanted)}."
            if task and task.cancelled.is_set():  # Stop was pressed between two lessons
                yield outputs({"running": False, "progress": said}, unchanged)
                return
            preset = lessons[number].front.preset
            task = tasks.begin(request.session_hash, lambda preset=preset: LessonRun(queue, load, preset))
            if task is None:
                yield nothing(1 + len(lessons))
                return
            at = {"channel": task.id, "more": True, "now": number, "place": place, "of": len(wanted)}
            yield outputs(at, unchanged)
            task.done.wait()
            if not task.whole:
                yield outputs({"running": False, "progress": task.problem or said}, unchanged)
                return
            answers.put(number, {kind: found.figures for kind, found in task.measured.items()})
            yield outputs(
                {"running": place + 1 < len(wanted)},
                unchanged | {number: notes_on(lessons[number], answers.last[number])},
            )

    header.build("Instructor")
    with gr.Row(elem_id="lab", elem_classes="lessons"):
        with gr.Column(elem_id="controls"):
            contents = component("pages/lessons/instructor", {}, elem_id="instructor")
        with gr.Column(elem_id="view"):
            gr.Markdown(guide(), latex_delimiters=LATEX, elem_id="guide", elem_classes="told")
            texts = [
                gr.Markdown(latex_delimiters=LATEX, elem_id=f"lesson-{number}", elem_classes="told")
                for number in lessons
            ]
    contents.submit(measure, None, [contents, *texts], **REPEATED)
    stops(pages, contents.stop, tasks)
    ready(pages.load(opened, None, [contents, *texts], **QUIET))
