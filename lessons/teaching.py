"""Guide for teachers of the whole course: ``INSTRUCTOR.md``, with plans for classes of several lengths.

A plan's timetable is computed from the lessons' own minutes. In the file it stands between two comments, so that it
can be read there too; here it is computed anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import Field

from lessons import clock
from lessons.course import FOLDER, Source, course
from lessons.experiments.base import Part
from lessons.lesson import Lesson

GUIDE = FOLDER / "INSTRUCTOR.md"
TITLE = "# Teaching this course"
BEGIN, END = "<!-- timetables -->", "<!-- end -->"


class Pause(Part):
    """A break ``after`` a lesson, given by its number."""

    after: int
    minutes: int = Field(ge=1, le=60)


class ClassPlan(Part):
    """A class of ``minutes`` minutes: some to open and to close it, and the lessons in between."""

    title: str
    minutes: int = Field(ge=1, le=600)
    opening: int = Field(ge=0)
    closing: int = Field(ge=0)
    pause: Pause | None = None
    lessons: list[int] = Field(min_length=1)

    def parts(self, lessons: Mapping[int, Lesson]) -> Iterator[tuple[str, int]]:
        """Parts in order, each with its minutes."""
        yield "Opening", self.opening
        for number in self.lessons:
            front = lessons[number].front
            yield f"{number}. {front.title}", front.minutes
            if self.pause and self.pause.after == number:
                yield "Break", self.pause.minutes
        yield "Closing", self.closing

    def contradictions(self, lessons: Mapping[int, Lesson]) -> Iterator[str]:
        """Problems of the plan."""
        given: set[int] = set()
        for number in self.lessons:
            if number not in lessons:
                yield f"there is no lesson {number}; there are {', '.join(map(str, lessons))}."
                return
            if missing := set(lessons[number].front.needs) - given:
                yield f"lesson {number} needs {', '.join(map(str, sorted(missing)))} before it."
            given.add(number)
        if self.pause and self.pause.after not in given:
            yield f"a break after lesson {self.pause.after}, which is not in it."
        if (taken := sum(minutes for _, minutes in self.parts(lessons))) > self.minutes:
            yield f"it takes {taken} minutes and has {self.minutes}."


class Plans(Part):
    """The front matter."""

    plans: list[ClassPlan] = Field(min_length=1)


def guide(path: Path = GUIDE, lessons: Mapping[int, Lesson] | None = None) -> str:
    """The file's Markdown, with its timetables computed anew. Raises LessonError: the first thing in it that is
    wrong."""
    lessons = course() if lessons is None else lessons
    source = Source.read(path)
    plans = source.as_part(Plans).plans
    for place, plan in enumerate(plans):
        for problem in plan.contradictions(lessons):
            raise source.error(source.line(("plans", place)), f"{plan.title}: {problem}")
    before, begin, rest = source.body.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(f"{END}\n")
    if not (begin and end and TITLE in before):
        said = f"the text has the heading {TITLE!r}, and below it {BEGIN} and {END}, between which timetables stand."
        raise source.error(source.first, said)
    source.template(before + after, TITLE)
    return f"{before}{begin}\n{timetables(plans, lessons)}\n{end}{after}".strip()


def timetables(plans: list[ClassPlan], lessons: Mapping[int, Lesson]) -> str:
    """Markdown: how long the lessons take and why, and a table for each plan."""
    minutes = sum(lesson.front.minutes for lesson in lessons.values())
    texts = [f"All {len(lessons)} lessons take {minutes} minutes, breaks not counted.", clock.table(lessons.values())]
    for plan in plans:
        at, rows = 0, []
        for what, taken in plan.parts(lessons):
            rows.append(f"| {at // 60}:{at % 60:02} | {what} | {taken} |")
            at += taken
        left = plan.minutes - at
        spare = f" {left} minute{'s' * (left != 1)} to spare." if left else ""
        busy = clock.longer_when_busy(lessons[number] for number in plan.lessons)
        spare += "" if busy is None else f" On the busy machine the runs took {busy:.0f} minutes longer."
        head = f"### {plan.title}\n\n{plan.minutes} minutes.{spare}\n\n| at | what | minutes |\n| --- | --- | --- |\n"
        texts.append(head + "\n".join(rows))
    return "\n\n".join(texts) + "\n"
