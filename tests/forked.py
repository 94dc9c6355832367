"""Processes that are forked from one that has imported the app, which takes 6 of the 8 s of CPU time of its start.

Each has its own environment, output and end. What a test is about must not happen while the app is imported, and what a
library reads from the environment in doing so is as it was then: but for that of huggingface_hub, which reads it anew.
"""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"  # all that Windows has
PATIENCE = 120.0
"""Seconds after which a process is killed."""


def start(log: Path, options: list[str], environment: dict[str, str]) -> BaseProcess:
    """Begin ``python app.py`` with these options and no other environment variables. Its output goes to ``log``."""
    log.write_text("")  # of a start before
    return _fork(_start, environment, (log, log), ["app.py", *options])


def run(code: str, *arguments: str, **variables: str) -> CompletedProcess[str]:
    """As ``python -c CODE ARGUMENTS...`` at the root, with ``variables`` in its environment besides this one's."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "stdout"), Path(folder, "stderr")
        process = _fork(_execute, os.environ | variables, files, ["-c", *arguments], code)
        process.join(PATIENCE)
        process.kill()
        process.join()
        return CompletedProcess(arguments, process.exitcode, *(file.read_text("utf-8") for file in files))


def _fork(does: Callable[..., None], environment: dict[str, str], *about: object) -> BaseProcess:
    context = multiprocessing.get_context(METHOD)
    context.set_forkserver_preload(["app", __name__])
    process = context.Process(target=does, args=(environment, *about))
    with chdir(ROOT), patch.dict(os.environ, environment, clear=True):  # for the imports, the first time
        process.start()
    return process


def _start(*about: object) -> None:
    _become(*about)
    _rest_when_idle()
    runpy.run_path("app.py", run_name="__main__")


def _rest_when_idle() -> None:
    """Gradio's queue looks for work a thousand times a second: a twentieth of a core for every app that only waits."""
    from gradio.queueing import Queue

    plain = Queue.__init__

    def begin(self: Queue, *about: Any, **more: Any) -> None:
        plain(self, *about, **more)
        self.sleep_when_free = 0.02

    Queue.__init__ = begin


def _execute(environment: dict[str, str], files: tuple[Path, Path], arguments: list[str], code: str) -> None:
    _become(environment, files, arguments)
    try:
        exec(code, {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()  # which multiprocessing does not


def _become(environment: dict[str, str], files: tuple[Path, Path], arguments: list[str]) -> None:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    importlib.reload(sys.modules["huggingface_hub.constants"])
    tempfile.tempdir = None  # so that TMPDIR counts
    sys.argv = arguments
