"""A recorded run: saved, and read back with no model loaded."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lab.config import EngineConfig, SamplingParams
from lab.errors import LabError
from lab.trace.events import Committed, Event, Finished, Proposed, RunStarted, StopReason, Verified
from lab.trace.json_codec import dump_json, from_dict, to_dict
from lab.trace.metrics import Metrics, measure

FORMAT = "decode-lab-run"
VERSION = 4
MAX_FILE_BYTES = 64 * 2**20


class RunFileError(LabError):
    """A file that is not a recorded run."""


def read_json(path: str | Path, most_bytes: int | None = None, most_values: int | None = None) -> Any:
    """The contents of a run's file. Raises RunFileError: unreadable, not JSON, larger than ``most_bytes`` (64 MiB), or
    refused by ``parse_json``."""
    path, most_bytes = Path(path), most_bytes or MAX_FILE_BYTES
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)  # what is not a regular file has no size, and perhaps no end
        if len(data) > most_bytes:
            has = max(size, len(data))
            raise RunFileError(f"{path.name} has {has:,} bytes; a run's file has at most {most_bytes:,}.")
        return parse_json(data, path.name, most_values)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        raise RunFileError(f"{path.name} cannot be read: {getattr(error, 'strerror', error)}.") from error


def parse_json(data: bytes, name: str, most_values: int | None = None) -> Any:
    """The contents of a run's file, from its bytes. Raises RunFileError: not JSON, more than ``most_values``, or more
    lists and objects than a quarter of that. While JSON is parsed no other thread runs, for up to a microsecond per
    value: so values are counted first."""
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
    """A recorded run: its events, and what follows from them. Raises RunFileError if it does not begin
    with a ``RunStarted``."""

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
        return [token for event in self._commits for token in event.token_ids]

    @property
    def text(self) -> str:
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
        document = {"format": FORMAT, "version": VERSION, "events": [to_dict(event) for event in self.events]}
        return dump_json(document)

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_json(), "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Run":
        """Read a saved run; no model is needed. Raises RunFileError: not a run's file, of another version, damaged or
        larger than 64 MiB."""
        return cls.of(read_json(path), Path(path).name)

    @classmethod
    def of(cls, document: Any, name: str = "this document") -> "Run":
        """The run in a document that ``to_json`` wrote, parsed as JSON. Raises RunFileError, as ``load`` does."""
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise RunFileError(f"{name} is not a run's file: its format is not {FORMAT!r}.")
        if document.get("version") != VERSION:
            raise RunFileError(f"{name} has version {document.get('version')!r}; this lab reads {VERSION}.")
        if not isinstance(document.get("events"), list):
            raise RunFileError(f"{name} is damaged: it has no list of events.")
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


@dataclass(frozen=True)
class AcceptanceStats:
    """Counts over several runs: rounds that had draft tokens, those tokens, and the accepted ones among them."""

    rounds: int
    proposed: int
    accepted: int

    @property
    def acceptance(self) -> float | None:
        """``Metrics.draft_acceptance_rate`` over all of them. None: nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """``Metrics.mean_acceptance_length`` over all of them. None: there was no round."""
        return 1 + self.accepted / self.rounds if self.rounds else None


def acceptance_stats(runs: Iterable[Run]) -> AcceptanceStats:
    rounds = proposed = accepted = 0
    for run in runs:
        proposals = [event for event in run.events if isinstance(event, Proposed)]
        rounds += len({event.step for event in proposals})
        proposed += len(proposals)
        accepted += sum(isinstance(event, Verified) and event.accepted for event in run.events)
    return AcceptanceStats(rounds, proposed, accepted)
