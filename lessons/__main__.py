"""The course in a terminal: ``python -m lessons run 8`` runs a lesson's code, ``exercise 3`` writes an exercise."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.cli.arguments import Parser, path
from lab.errors import LabError
from lab.util.stdio import print_notes, print_utf8


def main(arguments: list[str] | None = None) -> int:
    """Carry out a command. Returns 0, 1 (a hidden test failed) or 2 (an error that the user can fix)."""
    parser = Parser(prog="python -m lessons", description="A lesson's code, and exercises.")
    commands = parser.add_subparsers(dest="command", required=True)
    about = "write an exercise's starter file into this folder, or check yours; without a number, list the exercises"
    command = commands.add_parser("exercise", help=about, description=about)
    command.add_argument("number", type=int, nargs="?", help="of the exercise")
    command.add_argument("--check", type=path, metavar="FILE", help="run the hidden tests on this file")
    about = "run the code of a lesson"
    commands.add_parser("run", help=about, description=about).add_argument("number", type=int, help="of the lesson")
    options = parser.parse_args(arguments)
    print_utf8()
    try:
        return _run(options.number) if options.command == "run" else _exercise(options)
    except LabError as error:
        print_notes([f"{parser.prog} {options.command}: {error}"])
        return 2


def _run(number: int) -> int:
    from transformers.utils import logging

    from lessons.course import course

    logging.disable_progress_bar()
    lesson = course().get(number)
    if lesson is None or lesson.front.beyond is None:
        raise LabError(f"There is no code of a lesson {number}. There are lessons 1 to {len(course())}.")
    print(f"{lesson.front.beyond.code.strip()}\n")
    exec(compile(lesson.front.beyond.code, f"{lesson.name}.md", "exec"), {})  # the lesson's own, as its page shows it
    return 0


def _exercise(options: argparse.Namespace) -> int:
    from lessons.mistakes.exercise import check, numbered, write_starter  # torch takes seconds
    from lessons.mistakes.mistake import MISTAKES

    if options.number is None:
        if options.check:
            raise LabError("--check needs the exercise's number, as in: exercise 3 --check FILE.")
        for mistake in MISTAKES.values():
            print(f"{mistake.number}  {mistake.title} (lesson {mistake.lesson})")
        return 0
    mistake = numbered(options.number)
    if options.check is None:
        written = write_starter(mistake, Path())
        print(f"{written} is written. {mistake.hole}")
        print(f"Then: python -m lessons exercise {mistake.number} --check {written}")
        return 0
    checked = check(mistake, options.check)
    for one in checked:
        print(f"✗ {one.test} {one.problem}" if one.problem else f"✓ {one.test}")
    if any(one.problem for one in checked):
        return 1
    print(mistake.repairs[mistake.right].reply)
    return 0


if __name__ == "__main__":
    sys.exit(main())
