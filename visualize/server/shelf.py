"""The runs that visitors have on their stages: to be taken away, and opened again from a file."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lab.config import LabError
from lab.trace.recorder import Run, read_json
from visualize.run.takeaway import FORMATS
from visualize.run.transcript import head, line, recorded

MAX_RUN_FILE = 16 * 2**20
"""Bytes of a file that a visitor may send. The largest that a page makes is the Pool's of 32 sequences: 12.6 MB."""
MOST_VISITORS = 500
"""Whose runs are kept: as many as Gradio keeps sessions of."""
MOST_KEPT = 512 * 2**20
"""Bytes of runs that are kept, roughly. Of 250 visitors with two runs of 160 tokens each they are a quarter of it."""
AN_EVENT = 500
"""Bytes of memory, roughly; most have fewer."""


@dataclass(frozen=True)
class Kind:
    """What lies on a shelf.

    Attributes:
        name: that files' names begin with.
        read: makes of a run's events what ``formats`` write.
        formats: what a run can be taken away as: a file's type, and the function that writes it.
        most_bytes, most_values: of a file that a visitor opens (``lab.trace.recorder.read_json``).
        load: the events in what a file of a name holds as JSON. Raises LabError.
        told: the transcript of events from a file, for a run of this id. Raises LabError.
        count: how many events there are.
    """

    name: str
    read: Callable[[Sequence[Any]], Any]
    formats: Mapping[str, tuple[str, Callable[[Any], str]]]
    most_bytes: int
    most_values: int
    load: Callable[[Any, str], Sequence[Any]]
    told: Callable[[Sequence[Any], str], str]
    count: Callable[[Sequence[Any]], int] = len


RUN = Kind(
    name="decode-lab-run",
    read=Run,
    formats=FORMATS,
    most_bytes=8 * 2**20,  # 1,000 tokens with eight proposals a round have 2.4 MB; with 32 and logprobs=20, 6.6 MB
    most_values=500_000,  # those have 150,000 and 410,000
    load=lambda document, name: Run.of(document, name).events,
    told=lambda events, id: recorded(Run(events), id),
)


class Kept(NamedTuple):
    """A run, and how many bytes it had as a file; 0: it comes from none."""

    events: Sequence[Any]
    file_bytes: int


class Shelf:
    """By visitor, the last run and the last opened one; each gets at it by its id, which nobody can guess.

    Not all who come say when they leave: of too many, or too large, those of the visitors go first whose last run was
    put here longest ago.
    """

    def __init__(self, kind: Kind = RUN) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._runs: dict[str | None, dict[str, Kept]] = {}  # who put one last is last

    @property
    def visitors(self) -> set[str | None]:
        """Whose runs are kept."""
        with self._lock:
            return set(self._runs)

    def put(self, visitor: str | None, id: str, events: Sequence[Any], file_bytes: int = 0) -> None:
        """Keep a run, which may still grow. Of a visitor's runs the last two are kept: while one waits for its turn the
        one before is still shown."""
        with self._lock:
            runs = self._runs.pop(visitor, {}) | {id: Kept(events, file_bytes)}
            self._runs[visitor] = dict(list(runs.items())[-2:])
            sizes = {who: self._size(runs) for who, runs in self._runs.items()}
            while len(sizes) > 1 and (len(sizes) > MOST_VISITORS or sum(sizes.values()) > MOST_KEPT):
                sizes.pop(first := next(iter(sizes)))
                del self._runs[first]

    def _size(self, runs: Mapping[str, Kept]) -> int:
        return sum(max(AN_EVENT * self._kind.count(events), 2 * read) for events, read in runs.values())

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
            return {"problem": f"A run can be saved as {', '.join(self._kind.formats)}."}
        with self._lock:
            events = next((runs[id].events for runs in self._runs.values() if id in runs), None)
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
            document, size = read_json(path, self._kind.most_bytes, self._kind.most_values), path.stat().st_size
            events = self._kind.load(document, path.name)
            text = self._kind.told(events, id)
        except LabError as error:
            return head(id) + line({"problem": str(error)})
        self.put(visitor, id, events, size)
        return text
