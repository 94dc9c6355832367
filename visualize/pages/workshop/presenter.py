"""The presenter's view: a run, and the instant of it that all followers see."""

import json
import secrets
import threading
import time

from visualize.jobs.run_store import RunStore
from visualize.jobs.sse_channel import Channel, find
from visualize.reduce.frames import line
from visualize.text import as_line

MOST_OPENED = 32_000_000
"""Most characters of runs from files kept to be shown, over all visitors. The largest a page can open has 4,000,000."""
PORTION = 64 * 1024
"""Characters of such a run in a message, and the rest of its last frame. Over a slow line each that arrives is a sign
of life, and a page that lost its connection goes on after it."""


LATE_S = 2.0
"""Seconds for which nothing of a page that led and was closed is heard: it may have been under way."""


class Presenter:
    """The view, as messages {run, at, guess} in ``channel``, of which only the newest counts. ``run``: the id of
    the run's channel; None: nothing is shown. ``at``: the frame; None: the newest. ``guess``: the draft token whose
    verdict is open, as the frame and the place in its round; None: none. ``left`` is added, as true, when the page
    that leads was closed: what it showed stays.

    Args:
        store: the runs of the Lab's visitors. The last two shown are kept there for followers, who use their settings
            and save them, also when the presenter has left.

    Attributes:
        query: the presenter's settings, as in the Lab's address; None: nobody leads, nor has left any.
        leader: the presenter's page that leads, by the id it gave itself. Of several, the one that took over last.
    """

    def __init__(self, store: RunStore) -> None:
        self.channel = Channel(keep=1)
        self._store, self._place = store, secrets.token_hex()  # there, as if of a visitor whom nobody can be
        self.query: str | None = None
        self.leader: str | None = None
        self._lock = threading.Lock()
        self._session: str | None = None  # the leader's
        self._left: tuple[str | None, float] = None, 0.0  # the leader who left last, and when
        self._shown: Channel | None = None  # kept alive as long as somebody may want to read it
        self._opened: dict[str | None, tuple[Channel, int]] = {}  # by visitor, the last run from a file, and its length
        self.rest()

    @property
    def followers(self) -> int:
        return self.channel.readers

    def show(self, run: str, at: int | None, draft_token: list[int] | None, query: str) -> bool:
        """Show a run's frame. Returns False if there is no such run (any more): what was shown stays."""
        self.query = query
        channel = find(run)
        if channel is None or not channel.whole:
            return False
        if channel is not self._shown and (events := self._store.events(run)):
            self._store.put(self._place, run, events)
        self._shown = channel
        self._announce(run, at, draft_token)
        return True

    def leads(self, page: str, session: str | None, *, take: bool) -> bool:
        """True if this presenter's page leads. It does if no page led so far, or if it is to ``take`` over.
        ``session``: the page's visitor."""
        left, when = self._left
        if session and session == left and not take and time.monotonic() < when + LATE_S:
            return False  # sent before the page was closed, and answered after
        if take or self.leader is None:
            self.leader, self._session = page, session
        return self.leader == page

    def rest(self) -> None:
        """Show nothing, and let any of the presenter's pages lead."""
        self.leader = self._session = None
        self.stop(None)

    def stop(self, query: str | None) -> None:
        """Show nothing but settings. Whoever leads still does: a page may lead before it has a run to show."""
        self._shown, self.query = None, query
        self._announce(None, None, None)

    def opened(self, visitor: str | None, transcript: str) -> None:
        """Keep a run that a visitor opened from a file: it can be shown like one decoded here, until too much has been
        opened since. A file that was refused changes nothing."""
        head, _, frames = transcript.partition("\n")
        if frames.startswith('{"problem"'):
            return
        channel = Channel(id=json.loads(head)["run"])
        begin = 0
        while begin < len(frames):
            end = frames.find("\n", begin + PORTION) + 1 or len(frames)
            channel.put(frames[begin:end])
            begin = end
        last = frames.removesuffix("\n").rpartition("\n")[2]
        if last and "finished" not in json.loads(last):
            channel.put(line({"cut": True}))
        channel.close()
        with self._lock:
            self._opened.pop(visitor, None)
            self._opened[visitor] = channel, len(frames)
            while len(self._opened) > 1 and sum(length for _, length in self._opened.values()) > MOST_OPENED:
                del self._opened[next(iter(self._opened))]

    def left(self, visitor: str | None) -> None:
        """Forget the run of a visitor who has closed the page. If that page led, any of the presenter's may."""
        with self._lock:
            self._opened.pop(visitor, None)
        if visitor is not None and visitor == self._session:
            self._left = visitor, time.monotonic()
            self.leader = self._session = None
            self.channel.put(as_line(self._message | {"left": True}))

    def _announce(self, run: str | None, at: int | None, draft_token: list[int] | None) -> None:
        self._message = {"run": run, "at": at, "guess": draft_token}
        self.channel.put(as_line(self._message))
