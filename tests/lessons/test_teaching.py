"""The guide for instructors: the course's file, its timetables, and each lesson's part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lessons import clock
from lessons.course import LessonError, Source, course, read
from lessons.teaching import BEGIN, END, GUIDE, Plans, guide
from tests.lessons.test_course import GOOD, written

FILE = f"""---
plans:
  - title: Short
    minutes: 20
    opening: 2
    closing: 3
    pause: {{after: 1, minutes: 4}}
    lessons: [1, 2]
---

# Teaching this course

Be kind.

{BEGIN}
| what was there |
{END}

Be done.
"""


@pytest.fixture
def lessons(tmp_path: Path) -> Path:
    (tmp_path / "lessons").mkdir()
    written(tmp_path / "lessons", GOOD)
    written(tmp_path / "lessons", GOOD.replace("needs: []", "needs: [1]"), "02-better.md")
    return tmp_path / "lessons"


def test_a_timetable_is_made_from_the_lessons_minutes(lessons: Path) -> None:
    path = written(lessons, FILE, "INSTRUCTOR.md")
    text = guide(path, course(lessons))
    assert "what was there" not in text
    assert "All 2 lessons take 10 minutes" in text
    assert "20 minutes. 1 minute to spare." in text
    assert not re.search(r"^\|.*\| \|", text, re.MULTILINE), "every column has a name"
    rows = [line for line in text.splitlines() if line.startswith("| 0")]
    assert rows == [
        "| 0:00 | Opening | 2 |",
        "| 0:02 | 1. A lesson | 5 |",
        "| 0:07 | Break | 4 |",
        "| 0:11 | 2. A lesson | 5 |",
        "| 0:16 | Closing | 3 |",
    ]
    longer = FILE.replace("minutes: 20", "minutes: 100")
    assert "81 minutes to spare" in guide(written(lessons, longer, "INSTRUCTOR.md"), course(lessons))


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("minutes: 20", "minutes: 18", 3, "Short: it takes 19 minutes and has 18."),
        ("lessons: [1, 2]", "lessons: [2, 1]", 3, "Short: lesson 2 needs 1 before it."),
        ("lessons: [1, 2]", "lessons: [1, 7]", 3, "Short: there is no lesson 7; there are 1, 2."),
        ("after: 1", "after: 3", 3, "Short: a break after lesson 3, which is not in it."),
        ("    closing: 3\n", "", 3, "closing is missing"),
        ("lessons: [1, 2]", "lessons: []", 8, "should have at least 1 item"),
        (BEGIN, "", 10, "between which timetables stand"),
        ("Be kind.", "It is 3 times as fast.", 11, "says 3. A result comes from the run"),
    ],
)
def test_errors_are_reported_with_their_line(lessons: Path, old: str, new: str, line: int, said: str) -> None:
    path = written(lessons, FILE.replace(old, new, 1), "INSTRUCTOR.md")
    with pytest.raises(LessonError) as caught:
        guide(path, course(lessons))
    assert f"INSTRUCTOR.md, line {line}: " in str(caught.value)
    assert said in str(caught.value)


def test_the_file_matches_the_page_and_plans_two_classes() -> None:
    made = guide()
    written_there = Source.read(GUIDE).body.strip()
    assert written_there == made, f"put these timetables into {GUIDE.name}:\n{made.split(BEGIN)[1].split(END)[0]}"
    plans = Plans.model_validate(Source.read(GUIDE).given).plans
    assert [plan.minutes for plan in plans] == [75, 240]
    essentials = [str(number) for number in plans[0].lessons]
    page = (GUIDE.parents[1] / "visualize" / "pages" / "lessons" / "course.html").read_text("utf-8")
    assert f"lessons {', '.join(essentials[:-1])} and {essentials[-1]}: {plans[0].minutes} minutes" in page


def test_a_lessons_minutes_hold_its_words_its_runs_and_its_questions() -> None:
    for number, lesson in course().items():
        assert set(clock.record()["calm"]["seconds"]) == {one.name for one in course().values()}
        assert clock.needed(lesson) <= lesson.front.minutes, f"lesson {number} needs {clock.needed(lesson):.1f} minutes"


def test_words_are_those_that_a_learner_reads(tmp_path: Path) -> None:
    before = clock.words(read(written(tmp_path, GOOD)))
    assert (
        clock.words(read(written(tmp_path, GOOD.replace("## Explain", "Four words more here.\n\n## Explain"))))
        == before + 4
    )
    assert clock.words(read(written(tmp_path, INSTRUCTED))) == before


INSTRUCTED = f"""{GOOD}
## For the instructor

### What to say

Ask.

### Wrong answers

- **None.** Wait.

### The answer

It took {{{{ runs.cached.itl_p50_ms | ms }}}}.

### CPU, small GPU, large GPU

Nothing differs.
"""


def test_the_instructors_part_of_a_lesson_is_read(tmp_path: Path) -> None:
    lesson = read(written(tmp_path, INSTRUCTED))
    assert lesson.explain.text == "It took {{ runs.cached.itl_p50_ms | ms }}."
    assert lesson.instructor.fill({"runs": {"cached": {"itl_p50_ms": [2.0]}}}).count("It took 2.00 ms.") == 1
    assert "It took ?." in lesson.instructor.blank("?")
    assert read(written(tmp_path, GOOD)).instructor.text == ""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("### Wrong answers\n", "### Answers\n", "below '## For the instructor' are the headings ### What to say, ###"),
        ("### What to say\n\nAsk.\n\n", "", "### What to say, ### Wrong answers, ### The answer"),
        ("Ask.", "Say that it is twice as fast.", "the text below '## For the instructor' says twice"),
        ("It took {{ runs.cached.itl_p50_ms | ms }}.\n\n### CPU", "5 ms.\n\n### CPU", "says 5. A result comes from"),
        ("itl_p50_ms | ms }}.\n\n### CPU", "itl | ms }}.\n\n### CPU", "instructor: 'runs.cached.itl': there is"),
        ("p50_ms | ms }}.\n\n### CPU", "p50_ms | s }}.\n\n### CPU", "there is no unit 's'"),
    ],
)
def test_errors_in_the_instructors_part_are_reported(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in INSTRUCTED
    before, after = INSTRUCTED.rsplit(old, 1)
    with pytest.raises(LessonError) as caught:
        read(written(tmp_path, before + new + after))
    line = INSTRUCTED[: INSTRUCTED.index("## For the instructor")].count("\n") + 1
    assert f"01-good.md, line {line}: " in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("number", course())
def test_every_lesson_gives_the_instructor_wrong_answers_and_the_right_one(number: int) -> None:
    lesson = course()[number]
    *_, answer, machines = lesson.instructor.text.split("### ")
    assert "{{" in answer  # from this machine's measurement, not a recorded one
    assert "{{" not in machines
    assert lesson.instructor.text.count("\n- **") >= 3
