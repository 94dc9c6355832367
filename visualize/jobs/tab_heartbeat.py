"""Middleware that knows which tabs are there, with and without a connection of their own.

As long as a page is there it keeps a request open, Gradio's "heartbeat", and when that breaks, Gradio notifies the
listeners to ``unload``: a run would be stopped, and could no longer be saved. But connections break though the page is
there, as networks change and proxies end what lasts, and a browser then opens another. So Gradio hears that a tab is
gone when it says so, as it is closed, or does not return in time.

And a browser opens six connections to a server, over all its tabs: the sixth tab would never load. So a tab that is
hidden, with nothing under way, says that it stays and closes its connection until it is shown (``presence.js``).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visualize.jobs.visitor_sessions import MOST

HEARTBEAT = re.compile(r"(/gradio_api/heartbeat/[\w-]+)(?:/(away|gone))?/?", re.ASCII)
ALIVE = b"data: ALIVE\n\n"
EVERY_S = 15.0
"""Seconds between signs of life: Gradio's own."""
AWAY_S = 2 * 3600.0
"""Seconds for which a tab may be away. One that is closed says so; a browser that is killed does not."""
RETURNS_S = 15.0
"""Seconds in which a tab whose connection broke may return. Browsers try again every three to five seconds, so that an
attempt or two may fail; and a run to which no page returns holds others up no longer than that."""


class _Tab:
    """A tab, for which one heartbeat is kept open within this process until it is ``gone``. ``expiry``: when it is gone
    unless it returns, if it is away or its connection broke."""

    def __init__(self) -> None:
        self.connections = 0
        self.gone = asyncio.Event()
        self.heartbeat: asyncio.Task[None]
        self.expiry: asyncio.TimerHandle | None = None

    def stay(self) -> None:
        if self.expiry:
            self.expiry.cancel()
        self.expiry = None


class HeartbeatMiddleware:
    """Stands between the tabs' connections and Gradio's heartbeats.

    A tab is gone when it says so; when it has been absent for ``RETURNS_S`` after its last connection broke, or for
    ``AWAY_S`` if it said that it is away; or when ``most`` others are absent.
    """

    def __init__(self, app: ASGIApp, most: int = MOST) -> None:
        self._app, self._most = app, most
        self._tabs: dict[str, _Tab] = {}  # by the path of their heartbeat; the last to be absent last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = HEARTBEAT.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if not found:
            await self._app(scope, receive, send)
            return
        path, news = found.groups()
        tab, method = self._tabs.get(path), "POST" if news else "GET"
        if scope["method"] != method:
            await Response(status_code=405, headers={"Allow": method})(scope, receive, send)
        elif not news:
            await self._connect(path, tab or self._begin(path, scope), scope, receive, send)
        else:
            if tab and news == "away":
                self._absent(path, tab, AWAY_S)
            elif tab:
                self._gone(path, tab)
            await Response(status_code=204 if tab else 404)(scope, receive, send)

    async def _connect(self, path: str, tab: _Tab, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a tab's request until either side ends it."""
        tab.connections += 1
        tab.stay()

        async def alive() -> AsyncIterator[bytes]:
            while not tab.gone.is_set():
                yield ALIVE
                with suppress(TimeoutError):
                    await asyncio.wait_for(tab.gone.wait(), EVERY_S)

        try:
            stream = StreamingResponse(alive(), media_type="text/event-stream")
            with suppress(ClientDisconnect):
                await stream(scope | {"asgi": {}}, receive, send)  # as by ASGI 2.0: it listens for the disconnect
        finally:
            tab.connections -= 1
            if not (tab.connections or tab.expiry or tab.gone.is_set()):
                self._absent(path, tab, RETURNS_S)

    def _begin(self, path: str, scope: Scope) -> _Tab:
        """Ask Gradio for the heartbeat of a new tab."""
        tab = self._tabs[path] = _Tab()

        async def receive() -> Message:
            await tab.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            pass

        tab.heartbeat = asyncio.ensure_future(self._app(scope, receive, send))
        tab.heartbeat.add_done_callback(lambda _: self._gone(path, tab))  # also when the server shuts down
        return tab

    def _absent(self, path: str, tab: _Tab, seconds: float) -> None:
        """Count it as gone unless it returns within ``seconds``."""
        tab.stay()
        tab.expiry = asyncio.get_running_loop().call_later(seconds, self._gone, path, tab)
        self._tabs[path] = self._tabs.pop(path)
        absent = [(path, tab) for path, tab in self._tabs.items() if tab.expiry]
        for longest in absent[: -self._most]:
            self._gone(*longest)

    def _gone(self, path: str, tab: _Tab) -> None:
        tab.stay()
        tab.gone.set()
        if self._tabs.get(path) is tab:
            del self._tabs[path]
