"""Processes that need not import anything, because they are forked from one that has: importing the app takes seconds.

Each is a process of its own, with its own environment, output and end. What the tests are about must not happen while
the app is imported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

ROOT = Path(__file__).parents[1]
PATIENCE = 120.0
"""Seconds after which a process is killed."""
FORKING = """
import atexit, gc, importlib, json, os, sys

def end_here():
    if quickly:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

quickly = False
atexit.register(end_here)  # the first to be registered is the last to run
gc.disable()
import app, huggingface_hub, huggingface_hub.constants
gc.enable()

for line in sys.stdin:
    if child := os.fork():
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    else:
        asked = json.loads(line)
        break
else:
    sys.exit()
for number, (name, how) in enumerate(((os.devnull, os.O_RDONLY), *((file, os.O_WRONLY) for file in asked["files"]))):
    os.dup2(os.open(name, how | os.O_CREAT), number)
os.environ.clear()
os.environ.update(asked["environment"])
importlib.reload(huggingface_hub.constants)  # read from the environment
sys.argv = ["-c", *asked["arguments"]]
quickly, status = not asked["whole"], 1
try:
    exec(asked["code"], {"__name__": "__main__"})
    status = 0
except SystemExit as end:
    status = end.code
    raise
"""


class Forking:
    """Args:
    process: one that imports the app and then forks for each line of its input.
    errors: the file of its standard error.
    """

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process = process
        self._errors = errors

    def run(
        self, code: str, *arguments: str, whole: bool = False, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """As ``python -c CODE ARGUMENTS...`` at the root, with ``variables`` in its environment besides this one's.
        ``whole``: to the very end, where Python takes down all modules: a second. Otherwise it ends once its threads
        have ended and what is to be done at exit is done."""
        with TemporaryDirectory() as folder:
            files = [f"{folder}/{name}" for name in ("stdout", "stderr")]
            environment = os.environ | variables
            asked = {"code": code, "arguments": arguments, "environment": environment, "files": files, "whole": whole}
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            started = self._process.stdout.readline()
            assert started, self.errors
            late = Timer(PATIENCE, os.kill, (int(started), signal.SIGKILL))
            late.start()
            status = int(self._process.stdout.readline())
            late.cancel()
            return subprocess.CompletedProcess(arguments, status, *(Path(file).read_text("utf-8") for file in files))

    @property
    def errors(self) -> str:
        """What importing the app wrote to standard error."""
        return self._errors.read_text("utf-8")


@contextmanager
def forking(errors: Path) -> Iterator[Forking]:
    command = [sys.executable, "-c", FORKING]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with errors.open("w") as err, subprocess.Popen(command, cwd=ROOT, **pipes, stderr=err, text=True) as process:
        yield Forking(process, errors)
