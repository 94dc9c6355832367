"""Records a run, saves it, and reads it back with no model loaded."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from lab.config import EngineConfig, LabError, SamplingParams
from lab.trace.as_json import dumped, from_dict, to_dict
from lab.trace.events import Committed, Event, Finished, RunStarted, StopReason
from lab.trace.metrics import Metrics, measure

log = logging.getLogger(__name__)

FORMAT = "decode-lab-run"
VERSION = 4
MAX_FILE_BYTES = 64 * 2**20


class RunFileError(LabError):
    """A file that is not a recorded run."""


class Entry(NamedTuple):
    """An event among those of many sequences: ``owner`` is its sequence's number, as in block events, and ``t_ms`` the
    time on a clock that they all share."""

    t_ms: float
    owner: int
    event: Event


class Step(NamedTuple):
    """What happened in one step of an engine that decodes many sequences, arrivals just before it included. ``last``:
    no sequence is left."""

    entries: list[Entry]
    last: bool


Watch = Callable[[int, float, Event], None]
"""Called as ``watch(owner, seconds, event)``, ``seconds`` by ``time.perf_counter``."""


class Recorder:
    """Stamps events with the time since the first one and holds them until they are drained.

    Args:
        owner: the sequence's number, for ``watch``, which is called at once with every event.
    """

    def __init__(self, owner: int = 0, watch: Watch | None = None) -> None:
        self._owner, self._watch = owner, watch
        self._began: float | None = None
        self._pending: deque[Event] = deque()  # one thread may add while others drain

    def emit(self, event_type: type[Event], **fields: Any) -> None:
        """Make an event of ``fields`` and the time, hold it, and tell the watcher. The first one starts the clock."""
        now = time.perf_counter()
        self._began = now if self._began is None else self._began
        event = event_type(t_ms=(now - self._began) * 1000, **fields)
        self._pending.append(event)
        if self._watch:
            try:
                self._watch(self._owner, now, event)
            except Exception:  # a watcher must not end what it watches
                log.exception("what watches the engine failed at an event %s", event.kind)

    @property
    def began(self) -> bool:
        """Whether there has been an event."""
        return self._began is not None

    @property
    def pending(self) -> bool:
        """Whether there are events to drain."""
        return bool(self._pending)

    def drain(self) -> Iterator[Event]:
        """The pending events, until there are no more. If several threads drain, each event goes to one of them."""
        while True:
            try:
                event = self._pending.popleft()
            except IndexError:
                return
            yield event


def read_json(path: str | Path, most_bytes: int | None = None, most_values: int | None = None) -> Any:
    """The contents of a run's file.

    Raises:
        RunFileError: it cannot be read, is not JSON, is larger than ``most_bytes`` (64 MiB), or ``parsed`` refuses it.
    """
    path, most_bytes = Path(path), most_bytes or MAX_FILE_BYTES
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)  # what is not a regular file has no size, and perhaps no end
        if len(data) > most_bytes:
            has = max(size, len(data))
            raise RunFileError(f"{path.name} has {has:,} bytes; a run's file has at most {most_bytes:,}.")
        return parsed(data, path.name, most_values)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        raise RunFileError(f"{path.name} cannot be read: {getattr(error, 'strerror', error)}.") from error


def parsed(data: bytes, name: str, most_values: int | None = None) -> Any:
    """The contents of a run's file, from its bytes. While JSON is parsed no other thread runs, for up to a microsecond
    per value: so values are counted first.

    Raises:
        RunFileError: not JSON, more than ``most_values``, or more lists and objects than a quarter of ``most_values``.
    """
    if most_values is not None:
        nested = data.count(b"[") + data.count(b"{")
        if nested > most_values // 4 or nested + data.count(b",") > most_values:
            raise RunFileError(
                f"{name} was not read: it holds more than {most_values:,} values, or {most_values // 4:,} lists and "
                "objects; a page's run has fewer."
            )
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunFileError(f"{name} is not a run's file: it is not readable as JSON.") from error


@dataclass(frozen=True)
class Run:
    """A recorded run: its events, and what follows from them.

    Raises:
        RunFileError: the first event is not a ``RunStarted``.
    """

    events: tuple[Event, ...]

    def __init__(self, events: Iterable[Event]) -> None:
        object.__setattr__(self, "events", tuple(events))
        if not self.events or not isinstance(self.events[0], RunStarted):
            raise RunFileError("a run begins with a run_started event; this list of events does not.")

    @property
    def started(self) -> RunStarted:
        return self.events[0]

    @property
    def finished(self) -> Finished | None:
        """None for a run whose end was not recorded."""
        return self.events[-1] if isinstance(self.events[-1], Finished) else None

    @property
    def reason(self) -> StopReason | None:
        return self.finished.reason if self.finished else None

    @property
    def prompt(self) -> str:
        return self.started.prompt

    @property
    def prompt_token_ids(self) -> list[int]:
        return list(self.started.prompt_token_ids)

    @property
    def token_ids(self) -> list[int]:
        """The generated tokens, an end-of-text token included."""
        return [token for event in self._commits for token in event.token_ids]

    @property
    def text(self) -> str:
        """The generated text, without the prompt."""
        return "".join(event.text for event in self._commits) + (self.finished.text if self.finished else "")

    @property
    def config(self) -> EngineConfig:
        return EngineConfig(**self.started.config)

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(**self.started.sampling)

    @cached_property
    def metrics(self) -> Metrics:
        return measure(self.events)

    @property
    def _commits(self) -> list[Committed]:
        return [event for event in self.events if isinstance(event, Committed)]

    def to_json(self) -> str:
        """The run as the text of a run's file."""
        document = {"format": FORMAT, "version": VERSION, "events": [to_dict(event) for event in self.events]}
        return dumped(document)

    def save(self, path: str | Path) -> None:
        """Write the run as one JSON file."""
        Path(path).write_text(self.to_json(), "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a saved run; no model is needed.

        Raises:
            RunFileError: not a run's file, of another version, damaged or larger than 64 MiB.
        """
        return cls.of(read_json(path), Path(path).name)

    @classmethod
    def of(cls, document: Any, name: str = "this document") -> Run:
        """The run in a document that ``to_json`` wrote, parsed as JSON.

        Raises:
            RunFileError: not a run, of another version or damaged.
        """
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise RunFileError(f"{name} is not a run's file: its format is not {FORMAT!r}.")
        if document.get("version") != VERSION:
            raise RunFileError(f"{name} has version {document.get('version')!r}; this lab reads {VERSION}.")
        try:
            run = cls(from_dict(record) for record in document["events"])
            _ = run.config, run.sampling  # a run must be one the lab could have made
        except (LabError, ValueError, TypeError, KeyError) as error:
            raise RunFileError(f"{name} is damaged: {error}") from error
        try:
            _ = run.metrics
        except (ArithmeticError, LookupError, ValueError) as error:
            raise RunFileError(
                f"{name} is damaged: its events do not go together, or no run has such numbers."
            ) from error
        return run
