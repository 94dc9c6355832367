"""The room: what the engine does for everybody in it, reported about ten times a second while somebody watches."""

import logging
import threading
import time
from collections import deque
from typing import Any

from lab.engine.engine import Engine
from lab.trace.events import Committed, Event
from lab.trace.recorder import EventListener
from visualize.charts import pool_charts as figures
from visualize.jobs.job_queue import TICK, JobQueue
from visualize.jobs.sse_channel import Channel
from visualize.pages.workshop.presenter import Presenter
from visualize.pages.workshop.shared_pools import IGNORED, SharedPools
from visualize.text import as_line

log = logging.getLogger(__name__)


class RoomFeed:
    """Receives all events of the engines, and reports them in ``channel``: each message is the whole state, so only the
    newest counts.

        pool       {name, block_size, blocks: {state, owners, fill, mark}, occupancy, guests}, or null
        others     the other pools in use, a few words each
        running, waiting, done, speed, followers
        charts     of the last minute (``figures.room``)
    """

    def __init__(self, queue: JobQueue, lead: Presenter) -> None:
        self.channel = Channel(keep=1)
        self._queue, self._lead = queue, lead
        self._heard: deque[tuple[str, int, Event]] = deque()
        self._pools = SharedPools()
        self._points: deque[tuple[int, int, int]] = deque(maxlen=figures.ROOM_SECONDS + 1)  # running, waiting, tokens
        self._tokens = 0
        self._second = time.monotonic()
        threading.Thread(target=self._report, name="decode-lab-room", daemon=True).start()

    # -- a monitor of engines (``lab.registry.EngineMonitor``) ------------------------------------------

    def watch(self, model: str) -> EventListener:
        heard = self._heard

        def take(owner: int, seconds: float, event: Event) -> None:
            if not isinstance(event, IGNORED):
                heard.append((model, owner, event))

        return take

    def add(self, model: str, engine: Engine) -> None:
        """Nothing to do: the engine's events say everything."""

    # -- telling -------------------------------------------------------------------------------

    def _report(self) -> None:
        reported: int | None = None  # followers; None: nobody watches, so whoever comes next is reported at once
        while not self._queue.closed:
            time.sleep(TICK)
            try:
                changed, followers = self._listen(), self._lead.followers
                if not self.channel.readers:
                    reported = None
                elif changed or followers != reported:
                    reported = followers
                    self.channel.put(as_line(self._record() | {"followers": followers}))
            except Exception:
                log.exception("the room could not be reported")
                self._pools = SharedPools()  # starts over with the next sequence
        for channel in (self.channel, self._lead.channel):  # else a server that shuts down would wait for followers
            channel.close()

    def _listen(self) -> bool:
        """Process new events. Returns whether anything visible has changed."""
        news = bool(self._heard)
        while self._heard:
            model, owner, event = self._heard.popleft()
            self._pools.take(model, owner, event)
            if isinstance(event, Committed):
                self._tokens += len(event.token_ids)
        now = time.monotonic()
        if now - self._second < 1:
            return news
        per_second, self._tokens = round(self._tokens / (now - self._second)), 0
        self._second = now
        self._points.append((*self._pools.counts(), per_second))
        return news or any(map(any, self._points))

    def _record(self) -> dict[str, Any]:
        running, waiting = self._pools.counts()
        shown = self._pools.shown()
        return {
            "pool": shown and shown.record(),
            "others": self._pools.others(),
            "running": running,
            "waiting": waiting,
            "done": self._pools.done,
            "speed": self._points[-1][2] if self._points else 0,
            "charts": figures.room(self._points),
        }
