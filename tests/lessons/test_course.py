"""Reading lessons: errors in a file are reported with their line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from lessons.__main__ import main
from lessons.course import FOLDER, LessonError, Source, course, read
from lessons.experiments import Preset
from lessons.lesson import AnyView
from lessons.template import UNITS

GOOD = """---
title: A lesson
minutes: 5
needs: []
preset:
  runs:
    prompts:
      opening: Once upon a time
    settings:
      cached: {}
      plain: {kv_cache: false, max_tokens: 8}
    sampling: {max_tokens: 4}
    repeats: 1
predict:
  kind: slider
  question: How many times?
  label: times
  unit: times
  range: [1, 100]
  scale: log
  answer: ratio(runs.plain.itl_p50_ms, runs.cached.itl_p50_ms)
  tolerance: 25%
observe:
  - view: player
    run: cached
try:
  title: More
  why: It grows.
  change:
    runs:
      sampling: {max_tokens: 8}
  shows:
    - label: time
      value: runs.cached.itl_p50_ms
      unit: ms
  see: From {{ before.runs.cached.itl_p50_ms | ms }} to {{ runs.cached.itl_p50_ms | ms }}.
check:
  kind: choice
  question: Which is faster?
  options:
    - text: This.
      when: runs.cached.itl_p50_ms < runs.plain.itl_p50_ms
    - text: That.
      when: runs.cached.itl_p50_ms >= runs.plain.itl_p50_ms
  near: Yes.
  far: No.
---

Read *this* first.

## Explain

It took {{ runs.cached.itl_p50_ms | ms }}.
"""


def written(folder: Path, text: str, name: str = "01-good.md") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def test_a_lesson_is_read_and_a_change_may_remove_a_setting(tmp_path: Path) -> None:
    lesson = read(written(tmp_path, GOOD))
    assert (lesson.number, lesson.name, lesson.front.title) == (1, "01-good", "A lesson")
    assert lesson.introduction == "Read *this* first."
    runs = lesson.front.preset.runs
    assert runs.config("plain").kv_cache is False
    assert [runs.how(name).max_tokens for name in runs.settings] == [4, 8]
    assert lesson.changed.runs.how("cached").max_tokens == 8
    assert lesson.changed.runs.prompts == runs.prompts
    removed = GOOD.replace("      sampling: {max_tokens: 8}\n", "      settings: {plain: null}\n")
    lesson = read(written(tmp_path, removed))
    assert list(lesson.front.preset.runs.settings) == ["cached", "plain"]
    assert list(lesson.changed.runs.settings) == ["cached"]


# The text replaced, its replacement, the line reported (given by text in it), and the message.
MISTAKES = [
    ("minutes: 5\n", "", "title", "minutes is missing"),
    ("minutes: 5", "minutes: five", "minutes", "minutes: Input should be a valid integer"),
    ("minutes: 5", "minuets: 5", "title", "there is no 'minuets' here; there are title, minutes, needs, preset"),
    ("title: A lesson", "title: [A lesson", "minutes", "the front matter is not YAML"),
    ("kv_cache: false", "kv_cash: false", "plain:", "there is no 'kv_cash'; there are prompt, draft, kv_cache"),
    ("kv_cache: false", "kv_cache: 7", "runs:", "plain: kv_cache must be True or False, not 7."),
    ("      plain:", "      no cache:", "plain:", "'no cache' cannot stand in an expression"),
    ("kind: slider", "kind: dial", "predict:", "'slider', 'curve', 'choice'"),
    ("range: [1, 100]", "range: [0, 100]", "predict:", "on a log scale both above 0"),
    ("unit: times", "unit: furlongs", "unit: times", "'number', 'count', 'tokens'"),
    ("tolerance: 25%", "tolerance: true", "tolerance", "a tolerance is a share of the answer, as 25%"),
    ("ratio(runs.plain", "ratio(runs.plan", "predict:", "there is no 'plan' in runs; there are cached, plain"),
    ("answer: ratio(", "answer: eval(", "answer", "there is no function eval"),
    ("run: cached", "run: cash", "observe", "there is no setting 'cash' to show; there are cached, plain"),
    ("view: player", "view: pie", "view: player", "'player', 'speed', 'race'"),
    ("view: player\n    run: cached", "view: growth", "observe", "growth shows growth, and the preset has none"),
    (
        "{max_tokens: 8}\n  shows",
        "{max_tokens: 0}\n  shows",
        "  change:",
        "try.change makes a senseless preset: cached",
    ),
    ("value: runs.cached.itl_p50_ms", "value: runs.cached.speed", "  shows:", "there is no 'speed'"),
    ("{{ before.runs", "{{ after.runs", "  see:", "there is no 'after'; there are runs, before"),
    ("  near: Yes.\n", "", "check:", "check: it needs both near"),
    ("when: runs.cached.itl_p50_ms <", "when: runs.cached.x <", "check:", "there is no 'x' in runs.cached"),
    ("## Explain", "## Explained", "\nRead", "one heading '## Explain'"),
    ("It took {{", "It took 5 ms, not {{", "## Explain", "the text below '## Explain' says 5. A result comes"),
    ("It took {{ runs.cached.itl_p50_ms", "{{ runs.cached.itl", "## Explain", "explain: 'runs.cached.itl'"),
    ("itl_p50_ms | ms }}.\n", "itl_p50_ms | seconds }}.\n", "see:", "there is no unit 'seconds'"),
]


@pytest.mark.parametrize(("old", "new", "blamed", "said"), MISTAKES)
def test_errors_are_reported_with_their_line(tmp_path: Path, old: str, new: str, blamed: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(LessonError) as caught:
        read(written(tmp_path, GOOD.replace(old, new, 1)))
    line = GOOD[: GOOD.index(blamed)].count("\n") + 1
    assert f"01-good.md, line {line}: " in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["", "# Heading\n", "---\ntitle: x\n", "--- \n---\n", "---\n- a\n---\n\n## Explain\n"])
def test_a_file_that_is_not_a_lesson_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(LessonError, match=r"01-good\.md, line \d+: "):
        read(written(tmp_path, text))


def test_file_names_numbers_and_needs_are_checked(tmp_path: Path) -> None:
    with pytest.raises(LessonError, match=r"is called NN-name\.md"):
        read(written(tmp_path, GOOD, "1-good.md"))
    (tmp_path / "1-good.md").unlink()
    written(tmp_path, GOOD)
    written(tmp_path, GOOD.replace("needs: []", "needs: [1]"), "02-better.md")
    assert list(course(tmp_path)) == [1, 2]
    written(tmp_path, GOOD.replace("needs: []", "needs: [4]"), "03-best.md")
    course.cache_clear()
    with pytest.raises(LessonError, match=r"03-best\.md, line 1: needs: there is no lesson 4 before this one"):
        course(tmp_path)
    written(tmp_path, GOOD, "02-another.md")
    course.cache_clear()
    with pytest.raises(LessonError, match="there are two lessons 2"):
        course(tmp_path)


def test_the_example_in_the_readme_is_a_valid_lesson(tmp_path: Path) -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    lesson = read(written(tmp_path, text.split("````markdown\n")[1].split("````")[0], "02-the-kv-cache.md"))
    assert lesson.front.title == course()[2].front.title


def test_the_readme_names_every_experiment_unit_and_view() -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    views = [get_args(shape.model_fields["view"].annotation) for shape in get_args(get_args(AnyView)[0])]
    for name in (*Preset.model_fields, *UNITS, *(name for some in views for name in some)):
        assert re.search(rf"\b{name}\b", text), name


def texts(given: object) -> Iterator[str]:
    """All texts in a front matter."""
    if isinstance(given, str):
        yield given
    for part in given.values() if isinstance(given, dict) else given if isinstance(given, list) else ():
        yield from texts(part)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("[0-9]*.md")), ids=lambda path: path.stem)
def test_no_text_has_yaml_in_it(path: Path) -> None:
    """A block that begins within another one is text to YAML, and would be shown to learners."""
    source = Source.read(path)
    for text in (*texts(source.given), source.body):
        assert not re.search(r"[>|][-+](\s|$)", text), text


@pytest.mark.slow
@pytest.mark.parametrize("number", [number for number, lesson in course().items() if lesson.front.beyond])
def test_the_code_of_a_lesson_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(number)]) == 0
    code = course()[number].front.beyond.code.strip()
    said = capsys.readouterr().out.removeprefix(code).strip()
    assert re.search(r"\d", said), "it prints a number"


def test_there_is_no_code_of_a_lesson_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "99"]) == 2
    assert f"There are lessons 1 to {len(course())}" in capsys.readouterr().err


def test_files_to_read_are_there() -> None:
    beyond = [lesson.front.beyond for lesson in course().values() if lesson.front.beyond]
    assert [name for one in beyond for name in one.files if not Path(name).is_file()] == []
