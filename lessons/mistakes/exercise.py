"""Exercises: a starter file with a hole, and hidden tests that run on what somebody wrote into it.

The tests run in a process of their own, with a limit of time: ``python -m lessons.mistakes.exercise rows FILE`` prints
what they found as JSON.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import fill
from typing import Any

from lab.errors import LabError
from lab.util.messages import error_summary
from lessons.mistakes.mistake import HOLE, MISTAKES, HiddenTest, Mistake

SECONDS = 300.0
"""The most that all hidden tests of an exercise may take together."""


def numbered(number: int) -> Mistake:
    """The mistake that an exercise is about. Raises LabError."""
    for mistake in MISTAKES.values():
        if mistake.number == number:
            return mistake
    raise LabError(
        f"There is no exercise {number}. There are 1 to {len(MISTAKES)}: python -m lessons exercise lists them."
    )


def write_starter(mistake: Mistake, folder: Path) -> Path:
    """Write the file with the hole. Raises LabError: there is such a file already."""
    path = folder / f"exercise_{mistake.number}_{mistake.id}.py"
    check_it = f"python -m lessons exercise {mistake.number} --check {path.name}"
    about = fill(mistake.does, 100, break_long_words=False)
    head = f'"""Exercise {mistake.number}, lesson {mistake.lesson}.\n\n{about}'
    head += f"\n\nWrite your lines in place of {HOLE}. Then:\n\n    {check_it}\n"
    _, _, rest = mistake.starter().partition('"""')
    _, _, code = rest.partition('"""')
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(f'{head}"""{code}')
    except FileExistsError:
        raise LabError(f"{path} exists already. Move it away, or go on in it.") from None
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror}.") from None
    return path


def check(mistake: Mistake, file: Path, seconds: float = SECONDS) -> list[HiddenTest]:
    """Run the hidden tests on a file. Raises LabError in a sentence: it does not import, or takes too long."""
    if not file.is_file():
        raise LabError(
            f"There is no file {file}. python -m lessons exercise {mistake.number} writes one to begin with."
        )
    command = [sys.executable, "-m", "lessons.mistakes.exercise", mistake.id, str(file.resolve())]
    root = Path(__file__).parents[2]
    try:
        ran = subprocess.run(
            command,
            cwd=root,
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # models so small are slower with more
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise LabError(
            f"{file.name} did not end within {seconds:.0f} seconds. Is there a loop whose end is never reached?"
        ) from None
    last = (ran.stdout.splitlines() or [""])[-1]
    try:
        answer = json.loads(last)
    except json.JSONDecodeError:
        raise LabError(f"{file.name} ended Python before the tests had ended (exit status {ran.returncode}).") from None
    if isinstance(answer, str):
        raise LabError(answer)
    return [HiddenTest(*row) for row in answer]


# -- in the process of the tests -------------------------------------------------------------


def _answer(mistake: Mistake, file: Path) -> str | list[HiddenTest]:
    program: dict[str, Any] = {"__name__": "exercise"}
    try:
        exec(compile(file.read_text("utf-8"), str(file), "exec"), program)
    except SyntaxError as error:
        return f"{file.name} is not Python: {error.msg}, line {error.lineno}."
    except Exception as error:
        return f"{file.name} does not import: {error_summary(error)}."
    if missing := [name for name in _called(mistake) if not callable(program.get(name))]:
        return f"{file.name} has no {missing[0]}, which the tests call. Keep its name as in the starter file."
    from lessons.mistakes.hidden_tests import hidden_tests  # torch takes seconds, which no typing error has to wait for

    return hidden_tests(mistake, program)


def _called(mistake: Mistake) -> list[str]:
    """The functions and classes of a file that the tests call."""
    defined = {getattr(line, "name", "") for line in ast.parse(mistake.sample).body}
    return sorted({"Cache", "speculate", "verify"} & defined)


if __name__ == "__main__":
    try:
        found: Any = _answer(MISTAKES[sys.argv[1]], Path(sys.argv[2]))
    except LabError as error:
        found = str(error)
    print(f"\n{json.dumps(found)}")
