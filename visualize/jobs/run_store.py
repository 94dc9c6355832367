"""The runs on visitors' stages: to be downloaded, and opened again from a file."""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lab.errors import LabError
from lab.trace.run import Run, RunFileError, read_json
from visualize.jobs.downloads import FORMATS
from visualize.reduce.frames import head, line, recorded

MAX_RUN_FILE = 16 * 2**20
"""Most bytes of an uploaded file. The largest that a page makes is the Pool's of 32 sequences: 12.6 MB."""
MOST_VISITORS = 500
"""Most visitors whose runs are kept: as many as Gradio keeps sessions of."""
MOST_KEPT = 512 * 2**20
"""Most bytes of runs that are kept, roughly. 250 visitors with two runs of 160 tokens each take a quarter of it."""
BUSY = "Many files are being opened and saved here now. Try again in a minute."
RIGHT = "Open the .json that this page's Save › Run wrote."
"""Said of a file that is not a run's."""
AN_EVENT = 500
"""Bytes of memory per event, roughly; most take fewer."""


@dataclass(frozen=True)
class RunKind:
    """The kind of runs in a store.

    Attributes:
        name: what the files' names begin with.
        read: makes a run's events into what ``formats`` write.
        formats: the formats a run can be downloaded in: the MIME type, and the function that writes the file.
        most_bytes, most_values: limits for a file that a visitor opens (``lab.trace.run.read_json``).
        load: the events in a file, given its parsed JSON and its name. Raises LabError.
        told: the transcript of events from a file, given them and the run's id. Raises LabError.
        count: how many events there are.
    """

    name: str
    read: Callable[[Sequence[Any]], Any]
    formats: Mapping[str, tuple[str, Callable[[Any], str]]]
    most_bytes: int
    most_values: int
    load: Callable[[Any, str], Sequence[Any]]
    reported: Callable[[Sequence[Any], str], str]
    count: Callable[[Sequence[Any]], int] = len


RUN = RunKind(
    name="decode-lab-run",
    read=Run,
    formats=FORMATS,
    most_bytes=8 * 2**20,  # 1,000 tokens with eight proposals a round take 2.4 MB; with 32 and logprobs=20, 6.6 MB
    most_values=500_000,  # those have 150,000 and 410,000
    load=lambda document, name: Run.of(document, name).events,
    reported=lambda events, id: recorded(Run(events), id),
)


PATIENCE_S = 20.0
"""Seconds that a file waits for those before it."""
MOST_WAITING = 32
"""Most files that wait: each takes up a thread of the server."""
_turn = threading.Lock()
_waiting = threading.BoundedSemaphore(MOST_WAITING)


@contextmanager
def _in_turn() -> Iterator[None]:
    """One file is read, or written, at a time: a large one is seconds of Python, in which everybody else waits. Raises
    LabError after ``PATIENCE_S``, or if too many wait."""
    if not _waiting.acquire(blocking=False):
        raise LabError(BUSY)
    try:
        if not _turn.acquire(timeout=PATIENCE_S):
            raise LabError(BUSY)
        try:
            yield
        finally:
            _turn.release()
    finally:
        _waiting.release()


class StoredRun(NamedTuple):
    """A run, and the size of the file it comes from; 0: it does not come from a file."""

    events: Sequence[Any]
    file_bytes: int


class RunStore:
    """The last two runs of each visitor, accessible by their ids, which nobody can guess.

    Visitors may leave without notice: when there are too many, or their runs are too large, the runs of the visitor
    whose latest was put here longest ago go first.
    """

    def __init__(self, kind: RunKind = RUN) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._runs: dict[str | None, dict[str, StoredRun]] = {}  # ordered by each visitor's latest put

    @property
    def visitors(self) -> set[str | None]:
        """The visitors whose runs are kept."""
        with self._lock:
            return set(self._runs)

    def put(self, visitor: str | None, id: str, events: Sequence[Any], file_bytes: int = 0) -> None:
        """Keep a run, which may still grow. A visitor's last two runs are kept: while one waits for its turn, the
        previous one is still shown. Of one that was refused there is nothing to keep."""
        with self._lock:
            before = {id: kept for id, kept in self._runs.pop(visitor, {}).items() if kept.events}
            runs = before | {id: StoredRun(events, file_bytes)}
            self._runs[visitor] = dict(list(runs.items())[-2:])
            sizes = {
                who: sum(max(AN_EVENT * self._kind.count(events), 2 * read) for events, read in runs.values())
                for who, runs in self._runs.items()
            }
            while len(sizes) > 1 and (len(sizes) > MOST_VISITORS or sum(sizes.values()) > MOST_KEPT):
                sizes.pop(first := next(iter(sizes)))
                del self._runs[first]

    def clear(self, visitor: str | None) -> None:
        """Forget the runs of a visitor."""
        with self._lock:
            self._runs.pop(visitor, None)

    def events(self, id: str) -> Sequence[Any]:
        """A run's events so far; none if it is not kept (any more)."""
        with self._lock:
            return next((runs[id].events for runs in self._runs.values() if id in runs), ())

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
        if not (events := self.events(id)):
            return {"problem": "The server no longer has this run. Run it again, then save it."}
        try:
            name = f"{self._kind.name}-{id[:8]}.{form}"
            with _in_turn():
                return {"name": name, "type": media, "text": write(self._kind.read(events))}
        except LabError as error:
            return {"problem": str(error)}

    def reopen(self, visitor: str | None, path: Path, accepted: Callable[[], None] = lambda: None) -> str:
        """The transcript of the run in an uploaded file, or a ``problem``, which changes nothing. Others may open the
        same file. ``accepted`` is called before the run is kept, and may still refuse it with a LabError."""
        id = uuid.uuid4().hex
        try:
            with _in_turn():
                document, size = read_json(path, self._kind.most_bytes, self._kind.most_values), path.stat().st_size
                events = self._kind.load(document, path.name)
                text = self._kind.reported(events, id)
            accepted()
        except RunFileError as error:
            return head(id) + line({"problem": f"{str(error).removesuffix('.')}. {RIGHT}"})
        except LabError as error:
            return head(id) + line({"problem": str(error)})
        self.put(visitor, id, events, size)
        return text
