"""The whole site: everything is made first, and then put together."""

import html
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from lab.claims import CLAIMS
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.util.machine_info import describe_machine, hardware
from lab.util.messages import counted
from lab.util.stdio import discard
from lessons.course import course
from visualize.export import claims, index, lessons, runs
from visualize.export.pages import common_files
from visualize.export.runs import PRESETS, REPEATS


class Terminal:
    """One line for each of ``parts``. Progress within a part is shown below it, if ``stream`` can overwrite a line.

    What is made does not depend on who reads of it: nothing here raises if the stream is closed (``| head``) or full.
    """

    def __init__(self, stream: TextIO, parts: int) -> None:
        self._stream, self._parts = stream, parts
        self._part, self._began = 0, time.monotonic()

    def part(self, words: str) -> None:
        """Begin the next part."""
        self._part += 1
        self.note(f"[{self._part}/{self._parts}] {words} (after {time.monotonic() - self._began:.0f} s)")

    def note(self, words: str) -> None:
        """Print a line that stays."""
        self.step("")
        self._write(f"{words}\n")

    def step(self, words: str) -> None:
        """Show what is being done, in place of what was; nothing, in the end."""
        if self._stream.isatty():
            self._write(f"\r\x1b[K{words}"[: shutil.get_terminal_size().columns + 3])

    def _write(self, text: str) -> None:
        try:
            print(text, end="", file=self._stream, flush=True)
        except OSError:
            discard(self._stream)


@dataclass(frozen=True)
class Wanted:
    """Contents of a site. ``repeats``: how often each run is made, to take the median. ``files``: of other runs."""

    runs: Sequence[str] = tuple(PRESETS)
    repeats: int = REPEATS
    lessons: Sequence[int] = tuple(course())
    claims: Sequence[str] = tuple(CLAIMS)
    files: Sequence[Path] = ()


QUICK = Wanted(
    runs=("plain", "draft-drawn"),
    repeats=1,
    lessons=(3, 9),
    claims=tuple(name for name, claim in CLAIMS.items() if claim.arithmetic),
)
"""A sample of a site, made in seconds."""


def make(load: Callable[[str], Engine], wanted: Wanted, terminal: Terminal) -> dict[str, str]:
    """All files of the site, by path. A lesson that fails on this machine is left out, with a note on the terminal; a
    claim that fails is shown with the reason.

    Args:
        load: the engine of a model pair, "matched" or "mismatched".
        terminal: shows what is being made, and the progress.

    Raises:
        LabError: a file is not a run's, or an engine cannot do what is wanted.
    """
    files = runs.read_files(wanted.files, wanted.runs)  # first: a bad one costs no time
    terminal.part("models")
    where = _where(load("matched"))
    terminal.part(counted(len(wanted.runs), "run"))
    recordings = [*runs.record(load, wanted.runs, wanted.repeats, terminal.step), *files]
    found = []
    for number in wanted.lessons:
        lesson = course()[number]
        terminal.part(f"lesson {number}, {lesson.front.title}")
        try:
            found.append(lessons.record(load, lesson, terminal.step))
        except LabError as error:
            terminal.note(f"lesson {number} is left out: {error}")
    terminal.part(f"{len(wanted.claims)} claims")
    checked = claims.record(load, wanted.claims, terminal.step)

    contents = lessons.contents([recorded.lesson.number for recorded in found])
    said = html.escape(where)
    pages = [
        index.page(recordings, contents, checked, said),
        *(lessons.page(lesson, contents, said) for lesson in found),
        claims.page(checked, said),
    ]
    return {
        "README.md": index.readme(where),
        ".nojekyll": "",  # GitHub Pages: serve the files as they are
        **common_files(),
        **runs.files(),
        **lessons.files(contents),
        **claims.files(),
        **runs.pages(recordings),
        **{page.path: page.html() for page in pages},
    }


def _where(engine: Engine) -> str:
    machine = describe_machine(engine.device)
    on = f"{machine['date']} on {hardware(engine.device)}, torch {machine['torch']}"
    means = "“here” and “this machine” mean that one, and “your run” was made on it"
    return f"Recorded on {on}. No engine runs in these pages: {means}."
