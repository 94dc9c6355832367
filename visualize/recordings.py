"""The recorded runs that the repository keeps, to be replayed in the Lab."""

from __future__ import annotations

import functools
from pathlib import Path

from lab.trace.run import Run, RunFileError
from visualize.compare_link import against
from visualize.recorded_results import OPENING, run_files
from visualize.reduce.frames import Reducer
from visualize.reduce.ndjson import line, lines
from visualize.reduce.settings_text import in_short
from visualize.run_settings import Settings
from visualize.text import visible


@functools.cache
def runs() -> dict[str, Path]:
    """Those of ``run_files`` that can be read, by what they are in a few words: where they were recorded, with which
    settings, and after which of their prompts."""
    found: dict[str, Path] = {}
    prompts: dict[str, int] = {}
    for file in run_files():
        try:
            started = Run.load(file).started
        except RunFileError:
            continue
        number = prompts.setdefault(started.prompt, len(prompts) + 1)
        name = visible(f"{_model(started.accelerator)}: {in_short(started.config)}, prompt {number}")
        found[f"{name} ({visible(file.stem)})" if name in found else name] = file
    return found


@functools.cache
def opening() -> str:
    """The transcript with which the Lab opens: a recorded run of the default settings. Empty without its file."""
    try:
        run = Run.load(OPENING)
    except RunFileError:
        return ""
    head = {"run": "opening", "opening": True, "against": against(Settings())}
    return line(head) + "".join(lines(Reducer(recorded=True), run.events))


def _model(hardware: str) -> str:
    """The word that tells a device from others of its maker: "H100" of "NVIDIA H100 80GB HBM3"."""
    return next((word for word in hardware.split() if any(map(str.isdigit, word))), hardware)
