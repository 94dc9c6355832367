"""The runs that visitors have on their stages: to be taken away, and opened again from a file."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.config import LabError
from lab.trace.recorder import Run
from visualize.takeaway import FORMATS
from visualize.transcript import head, line, recorded

MAX_RUN_FILE = 20 * 2**20
"""Bytes of a file that a visitor may open. A run of 1,000 tokens, the most that the page offers, has about 1 MB."""
NAME = "decode-lab-run"


class Shelf:
    """By visitor, the last run and the last opened one; each gets at it by its id, which nobody can guess.

    Args:
        read: makes of a run's events what ``formats`` write.
        formats: what a run can be taken away as: a file's type, and the function that writes it.
        name: that files' names begin with.
    """

    def __init__(
        self,
        read: Callable[[Sequence[Any]], Any] = Run,
        formats: Mapping[str, tuple[str, Callable[[Any], str]]] = FORMATS,
        name: str = NAME,
    ) -> None:
        self._read, self._formats, self._name = read, formats, name
        self._lock = threading.Lock()
        self._runs: dict[str | None, dict[str, Sequence[Any]]] = {}

    def put(self, visitor: str | None, id: str, events: Sequence[Any]) -> None:
        """Keep a run, which may still grow. Of a visitor's runs the last two are kept: while one waits for its turn the
        one before is still shown."""
        with self._lock:
            runs = self._runs.get(visitor, {}) | {id: events}
            self._runs[visitor] = dict(list(runs.items())[-2:])

    def clear(self, visitor: str | None) -> None:
        """A visitor has left."""
        with self._lock:
            self._runs.pop(visitor, None)

    def take_away(self, wanted: list[str]) -> dict[str, str]:
        """A file of a run.

        Args:
            wanted: the run's id, and one of ``formats``.

        Returns:
            ``name``, ``type`` and ``text`` of the file, or a ``problem`` in a sentence.
        """
        try:
            id, form = map(str, wanted)
            kind, write = self._formats[form]
        except (KeyError, TypeError, ValueError):
            return {"problem": f"A run can be taken away as {', '.join(self._formats)}."}
        with self._lock:
            events = next((runs[id] for runs in self._runs.values() if id in runs), None)
        if not events:
            return {"problem": "The server no longer has this run. Run it again, then save it."}
        try:
            return {"name": f"{self._name}-{id[:8]}.{form}", "type": kind, "text": write(self._read(events))}
        except LabError as error:
            return {"problem": str(error)}

    def reopen(self, visitor: str | None, path: Path) -> str:
        """The transcript of the run in an uploaded file, or of a ``problem``. The file is removed."""
        id = uuid.uuid4().hex
        try:
            run = Run.load(path)
            text = recorded(run, id)
        except LabError as error:
            return head(id) + line({"problem": str(error)})
        finally:
            path.unlink(missing_ok=True)
        self.put(visitor, id, run.events)
        return text
