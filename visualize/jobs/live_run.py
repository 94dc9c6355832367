"""Jobs that report to a page while they run: each in a thread of its own, with a second thread that reports it.

The engine must not wait for those who watch: its thread only appends events to a list. The second polls about ten times
a second, has new events reduced (``visualize.jobs.reducer_process``) and puts the result into a channel.
"""

import logging
import math
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from lab.measure.quiet import Gate, look
from lab.trace.events import Event
from visualize.jobs.job_queue import TICK, JobQueue, Load, QueuedJob, before_yours
from visualize.jobs.reducer_process import ReducerClient
from visualize.jobs.sse_channel import Channel
from visualize.reduce.frames import Fold, Reducer, line
from visualize.reduce.metric_cards import PreviousRun
from visualize.run_settings import FORM, Settings
from visualize.text import as_line

log = logging.getLogger(__name__)

EAGER = 0.02
"""Seconds between polls until there is news; doubled with each piece of news, up to ``TICK``."""
LONG_S = 3.0
"""Seconds from which on work has an estimate of the time left."""
ABSENT_S = 60.0
"""Seconds after which a job that no page reads is cancelled: a page that is open, or comes back, reads its channel."""

Record = dict[str, Any]
Reduce = Callable[[Sequence[Any]], Iterable[str]]
"""Turns new events, in order, into the transcript lines that they complete."""


def time_left(seconds: float) -> str:
    """An estimate in words, coarse enough not to flicker."""
    if seconds >= 90:
        return f"about {seconds / 60:.0f} min left"
    step = 1 if seconds < 10 else 5
    return f"about {max(1, math.ceil(seconds / step) * step)} s left"


class ReportedJob(QueuedJob):
    """A job that a second thread reports in ``channel``, which is closed after the last message."""

    def __init__(self, queue: JobQueue, load: Callable[[str], Any], channel: Channel) -> None:
        self.channel = channel
        super().__init__(queue, load)
        threading.Thread(target=self._report_all, name="decode-lab-report", daemon=True).start()

    @property
    def id(self) -> str:
        return self.channel.id

    @abstractmethod
    def _messages(self) -> Iterator[str]:
        """The messages as they come, until the job is done and reported."""

    def _report_all(self) -> None:
        try:
            for message in self._messages():
                self.channel.put(message)
        except Exception as error:
            log.exception("a job could not be reported")
            self.cancelled.set()
            problem = f"The run was stopped, because it could not be shown ({error})."
            self.channel.put(line({"problem": problem, "running": False}))
        finally:
            self.channel.close()

    def _end_if_absent(self) -> None:
        if self.channel.unread_s > ABSENT_S:
            self.cancelled.set()


class ProgressJob(ReportedJob):
    """A job of which only the current state matters: a measurement. (A run is reported event by event.)"""

    def __init__(self, queue: JobQueue, load: Callable[[str], Any]) -> None:
        self._gate: Gate | None = None
        self._looking = False
        self._done_at: tuple[float, float] | None = None  # since when the share that is done grows, and from where
        super().__init__(queue, load, Channel(keep=1))

    @abstractmethod
    def record(self) -> Record:
        """The current state for the page, JSON-ready."""

    def look(self, engine: Any) -> None:
        """Find out whether the machine is quiet, as part of a turn. It never blocks what comes after."""
        self._looking = True
        try:
            self._gate = None if self.cancelled.is_set() else look(engine, self.cancelled)
        finally:
            self._looking = False

    @property
    def gate(self) -> Record:
        """The look's finding, for the page; empty before."""
        return {"gate": {"busy": self._gate.busy, "said": self._gate.sentence}} if self._gate else {}

    def status(self) -> str:
        return super().status() or ("Looking whether this machine is quiet …" if self._looking else "")

    def share(self, done: float) -> Record:
        """The share that is done, 0 to 1, and the time left in words, once that can be told."""
        now = time.monotonic()
        if self._done_at is None or done < self._done_at[1]:
            self._done_at = now, done
        since, before = self._done_at
        took = now - since
        left = took * (1 - done) / (done - before) if done > before else 0.0
        return {"share": round(done, 3), "left": time_left(left) if took > LONG_S / 3 and took + left > LONG_S else ""}

    def _messages(self) -> Iterator[str]:
        yield from map(as_line, self.records())

    def records(self) -> Iterator[Record]:
        """The job's record whenever it changes, up to the last."""
        shown, over = None, False
        while not over:
            over = self.done.wait(TICK)  # checked first, so that nothing before ``done`` is missed
            self._end_if_absent()
            record = self.record()
            if (share := self.loaded) is not None:
                record = record | {"share": share}
            if record != shown:
                shown = record
                yield record


class LiveJob(ReportedJob):
    """Decodes something when its turn comes. ``events`` only grows; ``done`` is set after the last one. What
    ``reducer`` makes of them goes into the channel."""

    _alone = True
    """True if it measures something that other runs would spoil."""

    def __init__(self, queue: JobQueue, load: Callable[[str], Any], reducer: Fold) -> None:
        self.events: list[Any] = []
        self._reducer = reducer
        self._after: Any = None
        super().__init__(queue, load, Channel())

    @property
    def goes_on(self) -> bool:
        """False once it is reported to its end or cancelled."""
        return not self.channel.closed and not self.cancelled.is_set()

    def after(self) -> Any:
        """The basis of comparison for the visitor's next run."""
        return self._after

    @abstractmethod
    def _decode(self) -> Iterator[Any]:
        """The events as they come."""

    def _work(self) -> None:
        with self.turn(alone=self._alone):
            if not self.cancelled.is_set():
                for event in self._decode():
                    self.events.append(event)

    def _messages(self) -> Iterator[str]:
        reducer = ReducerClient(self._reducer)
        yield from self.transcript(reducer.feed)
        self._after = reducer.after()

    def transcript(self, reduce: Reduce) -> Iterator[str]:
        """The run's transcript (``visualize.reduce.frames``) in portions, as it grows, to its end."""
        seen, shown, wait = 0, "", EAGER
        over, due = False, time.monotonic()
        while not over:
            due = max(due + wait, time.monotonic())  # a poll's own time is not added to the wait
            over = self.done.wait(due - time.monotonic())  # checked first, so that nothing before ``done`` is missed
            self._end_if_absent()
            events = self.events[seen:]
            seen += len(events)
            if events and (news := "".join(reduce(events))):
                yield news
                wait = min(2 * wait, TICK)
            elif (status := self.status()) != shown:
                shown = status
                share = self.loaded
                yield line({"status": status} | ({} if share is None else {"share": share}))
        if self.problem:
            yield line({"problem": self.problem})
        elif not self.events:
            yield line({"stopped": "Stopped before it began."})


class LiveRun(LiveJob):
    """One run in progress: a prompt and its events. In a workshop it shares the engine's steps and blocks."""

    _alone = False

    def __init__(self, queue: JobQueue, load: Load, settings: Settings, before: PreviousRun | None = None) -> None:
        self._settings = settings
        super().__init__(queue, load, Reducer(before))

    def status(self) -> str:
        engine = self._engine  # its own thread drops it when it ends
        ahead = engine.place_in_queue(self.cancelled) if engine else None
        if ahead is None:
            return super().status()
        return f"Waiting for room in the pool: {before_yours(ahead) if ahead else 'you are next.'}"

    def _decode(self) -> Iterator[Event]:
        settings = self._settings
        FORM.check(vars(settings))  # what the page accepts, a link to it must be able to say
        settings.engine_config()  # refuses a combination that makes no sense before any model is loaded
        prompt = settings.asked()
        sampling = settings.sampling()
        engine = self.engine(settings.models())
        if engine.chat_template and settings.chats:
            prompt = settings.chat()
        blocks = settings.blocks  # few enough for each to be seen, but no more than fit in memory
        blocks = blocks and min(blocks, engine.default_num_blocks(settings.engine_config()))
        config = settings.engine_config(num_blocks=blocks)
        self.compile(engine, [config])
        if not self.cancelled.is_set():
            yield from engine.stream(prompt, config, sampling, cancelled=self.cancelled)
