"""Apps that a process forks which has imported all that they import: each takes 2.5 s of CPU time to start, not 10.

Only what the app reads by itself may differ from start to start: options, its own environment variables, TMPDIR.
What libraries read while they are imported (HF_HOME, SPACE_ID) would be read too late.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from contextlib import chdir
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"  # on Windows


def start(log: Path, options: list[str], environment: dict[str, str]) -> BaseProcess:
    """Begin ``python app.py`` with these options and no other environment variables. Its output goes to ``log``."""
    context = multiprocessing.get_context(METHOD)
    context.set_forkserver_preload(["app", __name__])
    app = context.Process(target=_be_the_app, args=(log, options, environment))
    with chdir(ROOT), patch.dict(os.environ, environment, clear=True):  # for the imports, the first time
        app.start()
    return app


def _be_the_app(log: Path, options: list[str], environment: dict[str, str]) -> None:
    with log.open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # so that TMPDIR counts
    sys.argv = ["app.py", *options]
    runpy.run_path("app.py", run_name="__main__")
