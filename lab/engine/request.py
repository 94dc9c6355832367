"""The caller's handle on a request while it is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from lab.engine.sequence import Sequence
from lab.trace.events import Event
from lab.trace.run import Run


class Stepper(Protocol):
    """The engine that a request belongs to."""

    def advance(self, sequence: Sequence) -> None: ...

    def abandon(self, sequence: Sequence) -> None: ...


class Request:
    """A request in progress. Iterate it for its events; if several threads do, each event goes to one of them."""

    def __init__(self, engine: Stepper, sequence: Sequence) -> None:
        self._engine = engine
        self._sequence = sequence

    def __iter__(self) -> Iterator[Event]:
        """The events as they come. Closing this iterator before the end cancels the request, and so does Ctrl-C while
        it waits. A request that is not iterated goes on with the others.

        Waiting for an event is what steps the engine, for all of its requests at once.
        """
        recorder = self._sequence.recorder
        try:
            while True:
                yield from recorder.drain()
                if self._sequence.finished and not recorder.pending:
                    return
                self._engine.advance(self._sequence)
        finally:
            if not self._sequence.finished:
                self._engine.abandon(self._sequence)

    def result(self) -> Run:
        """Wait for the end and return the run, for a request whose events were not read yet."""
        return Run(self)

    def cancel(self) -> None:
        """End the request before its next step: its blocks are freed, and a ``Finished`` event follows."""
        self._sequence.prompt.cancelled.set()

    @property
    def finished(self) -> bool:
        return self._sequence.finished
