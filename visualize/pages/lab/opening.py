"""The recorded run with which the Lab opens: a round in motion before anything is pressed."""

import functools

from lab.trace.run import Run, RunFileError
from visualize.compare_link import against
from visualize.recorded_results import OPENING
from visualize.reduce.frames import Reducer, line, lines
from visualize.run_settings import Settings


@functools.cache
def opening() -> str:
    """The transcript of a run of the default settings. Empty without its file."""
    try:
        run = Run.load(OPENING)
    except RunFileError:
        return ""
    head = {"run": "opening", "opening": True, "against": against(Settings())}
    return line(head) + "".join(lines(Reducer(recorded=True), run.events))
