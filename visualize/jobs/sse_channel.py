"""A job's messages while it is in progress, for any number of readers, each at its own pace.

A page reads a channel as server-sent events: one long answer that costs the server a fraction of a millisecond per
message. A page that lost its connection resumes after the last message it got (``Last-Event-ID``, or ``after``). A
stream with no news sends a sign of life, so that silence means a lost connection.
"""

import asyncio
import threading
import time
import uuid
import weakref
from collections.abc import AsyncIterator, Callable

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

RETRY_MS = 500
"""Time after which a page that lost its connection reconnects."""
ALIVE_S = 5.0
"""Seconds of silence after which a stream sends a sign of life; ``sse.js`` gives up one that is silent longer."""
ALIVE, END = "event: alive\ndata:\n\n", "event: end\ndata:\n\n"
"""The events of a stream that have no number; after ``END`` a page does not ask again."""
FRESH = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Keep a proxy from holding back what is sent."""

_open: "weakref.WeakValueDictionary[str, Channel]" = weakref.WeakValueDictionary()


class Channel:
    """An append-only list of messages, readable under its ``id`` for as long as something holds a reference to it.

    Args:
        keep: the number of newest messages that are kept; an endless channel must have a limit. None: all.
        id: anyone who knows it may read. None: a random one.
    """

    def __init__(self, keep: int | None = None, id: str | None = None) -> None:
        self.id = id or uuid.uuid4().hex
        self._messages: dict[int, str] = {}  # by number
        self._next = 0
        self._keep = keep
        self.closed = False
        self._left: float | None = None  # time.monotonic() when the last reader left
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._wake: set[Callable[[], None]] = set()  # one a reader
        _open[self.id] = self

    @property
    def whole(self) -> bool:
        """True if all messages are kept, as those of a run are."""
        return self._keep is None

    @property
    def readers(self) -> int:
        return len(self._wake)

    @property
    def unread_s(self) -> float:
        """Seconds for which the channel has had no reader."""
        return 0.0 if self._wake else time.monotonic() - (self._left or self._begun)

    def put(self, message: str) -> None:
        """Append a message, from any thread."""
        with self._lock:  # else two at once might give two messages the same number
            self._messages[self._next] = message
            self._next += 1
            if self._keep is not None:
                self._messages.pop(self._next - 1 - self._keep, None)
            self._notify()

    def close(self) -> None:
        """Mark the end: there will be no more messages."""
        with self._lock:
            self.closed = True
            self._notify()

    def _notify(self) -> None:
        for wake in self._wake:
            wake()

    async def read(self, begin: int = 0, quiet_s: float | None = None) -> AsyncIterator[tuple[int, str]]:
        """The kept messages from number ``begin`` on, each with its number, until the channel is closed; and an empty
        one after every ``quiet_s`` seconds without any."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.set)

        with self._lock:
            self._wake.add(wake)
        try:
            while True:
                news.clear()
                closed = self.closed  # checked first, so that nothing put before the close is missed
                while begin < self._next:
                    begin = max(begin, self._next - len(self._messages))
                    number, begin = begin, begin + 1
                    if (message := self._messages.get(number)) is not None:
                        yield number, message
                if closed:
                    return
                try:
                    async with asyncio.timeout(quiet_s):
                        await news.wait()
                except TimeoutError:
                    yield begin, ""
        finally:
            with self._lock:
                self._left = time.monotonic()
                self._wake.discard(wake)


def find(id: str) -> Channel | None:
    """The channel with this id, if it still exists."""
    return _open.get(id)


async def _events(channel: Channel, begin: int) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    async for number, message in channel.read(begin, ALIVE_S):
        if not message:
            yield ALIVE
            continue
        lines = "".join(f"data: {line}\n" for line in message.strip("\n").split("\n"))
        yield f"id: {number}\n{lines}\n"
    yield END


async def _answer(request: Request) -> Response:
    channel = find(request.path_params["id"])
    if channel is None:  # an end, because a page cannot tell one refusal from another, a proxy's for example
        return Response(END, media_type="text/event-stream", headers=FRESH)
    last = request.headers.get("last-event-id") or request.query_params.get("after", "")
    begin = int(last) + 1 if last.isdecimal() and len(last) < 20 else 0
    return StreamingResponse(_events(channel, begin), media_type="text/event-stream", headers=FRESH)


class CompressedStream(GZipMiddleware):
    """Compresses a stream, and holds back no part of it; not for Jupyter's proxy, which passes the bytes of streams on,
    but not that they are compressed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        by_jupyter = "x-proxycontextpath" in Headers(scope=scope)
        await (self.app if by_jupyter else super().__call__)(scope, receive, send)


ROUTE = Route(
    "/channels/{id}", _answer, middleware=[Middleware(CompressedStream, compresslevel=5, exclude_content_types=())]
)
"""The address at which pages read channels."""
