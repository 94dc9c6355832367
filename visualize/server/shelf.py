"""The runs that visitors have on their stages: to be taken away, and opened again from a file."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.config import LabError
from lab.trace.recorder import Run
from visualize.run.takeaway import FORMATS
from visualize.run.transcript import head, line, recorded

MAX_RUN_FILE = 20 * 2**20
"""Bytes of a file that a visitor may open. A run of 1,000 tokens, the most that the page offers, has about 1 MB."""


@dataclass(frozen=True)
class Kind:
    """What lies on a shelf.

    Attributes:
        name: that files' names begin with.
        read: makes of a run's events what ``formats`` write.
        formats: what a run can be taken away as: a file's type, and the function that writes it.
        load: the events in a file. Raises LabError.
        told: the transcript of events from a file, for a run of this id. Raises LabError.
    """

    name: str
    read: Callable[[Sequence[Any]], Any]
    formats: Mapping[str, tuple[str, Callable[[Any], str]]]
    load: Callable[[Path], Sequence[Any]]
    told: Callable[[Sequence[Any], str], str]


RUN = Kind(
    name="decode-lab-run",
    read=Run,
    formats=FORMATS,
    load=lambda path: Run.load(path).events,
    told=lambda events, id: recorded(Run(events), id),
)


class Shelf:
    """By visitor, the last run and the last opened one; each gets at it by its id, which nobody can guess."""

    def __init__(self, kind: Kind = RUN) -> None:
        self._kind = kind
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
            media, write = self._kind.formats[form]
        except (KeyError, TypeError, ValueError):
            return {"problem": f"A run can be taken away as {', '.join(self._kind.formats)}."}
        with self._lock:
            events = next((runs[id] for runs in self._runs.values() if id in runs), None)
        if not events:
            return {"problem": "The server no longer has this run. Run it again, then save it."}
        try:
            name = f"{self._kind.name}-{id[:8]}.{form}"
            return {"name": name, "type": media, "text": write(self._kind.read(events))}
        except LabError as error:
            return {"problem": str(error)}

    def reopen(self, visitor: str | None, path: Path) -> str:
        """The transcript of the run in an uploaded file, or of a ``problem``. Others may open the same file."""
        id = uuid.uuid4().hex
        try:
            events = self._kind.load(path)
            text = self._kind.told(events, id)
        except LabError as error:
            return head(id) + line({"problem": str(error)})
        self.put(visitor, id, events)
        return text
