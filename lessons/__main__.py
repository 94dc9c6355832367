"""The course's exercises in a terminal: ``python -m lessons exercise 3``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.cli.arguments import Parser, path
from lab.errors import LabError
from lab.util.stdio import print_notes, print_utf8


def main(arguments: list[str] | None = None) -> int:
    """Carry out a command. Returns 0, 1 (a hidden test failed) or 2 (an error that the user can fix)."""
    parser = Parser(prog="python -m lessons", description="Exercises of the course.")
    commands = parser.add_subparsers(dest="command", required=True)
    about = "write an exercise's starter file into this folder, or check yours; without a number, list the exercises"
    command = commands.add_parser("exercise", help=about, description=about)
    command.add_argument("number", type=int, nargs="?", help="of the exercise")
    command.add_argument("--check", type=path, metavar="FILE", help="run the hidden tests on this file")
    options = parser.parse_args(arguments)
    print_utf8()
    try:
        return _exercise(options)
    except LabError as error:
        print_notes([f"python -m lessons exercise: {error}"])
        return 2


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
