"""The course in a terminal: ``python -m lessons run 8`` runs a lesson's code, ``exercise 3`` writes an exercise,
``capstone chat`` grades settings of a server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.cli.arguments import Parser, path
from lab.errors import LabError
from lab.util.stdio import print_notes, print_utf8
from lessons.mistakes.exercise import check, numbered, write_starter
from lessons.mistakes.mistake import MISTAKES

CHOICES = {
    "kv_dtype": str,
    "gpu_memory_utilization": float,
    "max_num_seqs": int,
    "max_num_batched_tokens": int,
    "enable_prefix_caching": bool,
    "speculative": str,
    "num_speculative_tokens": int,
}
"""What the capstone lets choose (``lessons.capstone.cases.ServerChoices``)."""


def main(arguments: list[str] | None = None) -> int:
    """Carry out a command. Returns 0, 1 (a hidden test failed) or 2 (an error that the user can fix)."""
    parser = Parser(prog="python -m lessons", description="A lesson's code, exercises, and the capstone.")
    commands = parser.add_subparsers(dest="command", required=True)
    about = "write an exercise's starter file into this folder, or check yours; without a number, list the exercises"
    command = commands.add_parser("exercise", help=about, description=about)
    command.add_argument("number", type=int, nargs="?", help="of the exercise")
    command.add_argument("--check", type=path, metavar="FILE", help="run the hidden tests on this file")
    about = "run the code of a lesson"
    commands.add_parser("run", help=about, description=about).add_argument("number", type=int, help="of the lesson")
    about = "choose a server's settings for a case, simulated and graded; without a case, list the cases"
    command = commands.add_parser("capstone", help=about, description=about)
    command.add_argument("case", nargs="?", help="chat, agents or batch")
    for name, kind in CHOICES.items():
        more = {"action": "store_true"} if kind is bool else {"type": kind}
        command.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, **more)
    options = parser.parse_args(arguments)
    print_utf8()
    try:
        return {"run": _run, "exercise": _exercise, "capstone": _capstone}[options.command](options)
    except LabError as error:
        print_notes([f"{parser.prog} {options.command}: {error}"])
        return 2


def _capstone(options: argparse.Namespace) -> int:
    from lessons.capstone.cases import ASSUMED, CASES, ServerChoices, attempt  # torch takes seconds

    if options.case not in CASES:
        for name, case in CASES.items():
            print(f"{name}: {case.title}. {case.about}")
        if options.case:
            raise LabError(f"There is no case {options.case!r}. There are {', '.join(CASES)}.")
        return 0
    case = CASES[options.case]
    chosen = ServerChoices(**{name: value for name, value in vars(options).items() if name in CHOICES})
    graded = attempt(case, chosen)
    print(f"{case.title}. {case.about}\n{case.given}\n")
    for mark in graded.marks:
        print(f"{'✓' if mark.passed else '✗'} {mark.name}: {mark.found} ({mark.wanted}). {mark.limited}".rstrip())
    for part in filter(None, (graded.figures, ASSUMED, graded.command)):
        print(f"\n{part}")
    return 0 if graded.passed else 1


def _run(options: argparse.Namespace) -> int:
    from transformers.utils import logging

    from lessons.course import course

    logging.disable_progress_bar()
    number = options.number
    lesson = course().get(number)
    if lesson is None or lesson.front.beyond is None:
        raise LabError(f"There is no code of a lesson {number}. There are lessons 1 to {len(course())}.")
    print(f"{lesson.front.beyond.code.strip()}\n")
    exec(compile(lesson.front.beyond.code, f"{lesson.name}.md", "exec"), {})  # the lesson's own, as its page shows it
    return 0


def _exercise(options: argparse.Namespace) -> int:
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
