"""Middleware that knows which tabs are there, with and without a connection of their own.

As long as a page is there it keeps a request open, its "heartbeat". When that breaks, Gradio itself would notify the
listeners to ``unload``: a run would be stopped, and could no longer be saved. But connections break though the page is
there, as networks change and proxies end what lasts, and a browser then opens another. So the listeners hear that a tab
is gone when it says so, as it is closed, or does not return in time.

And a browser opens six connections to a server, over all its tabs: the sixth tab would never load. So a tab that is
hidden, with nothing under way, says that it stays and closes its connection until it is shown (``presence.js``).
"""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from visualize.jobs.visitor_sessions import MOST

HEARTBEAT = re.compile(r"/gradio_api/heartbeat/([\w-]+)(?:/(away|gone))?/?", re.ASCII)
ALIVE = b"data: ALIVE\n\n"
EVERY_S = 15
"""Seconds between signs of life: Gradio's own."""
AWAY_S = 2 * 3600.0
"""Seconds for which a tab may be away. One that is closed says so; a browser that is killed does not."""
RETURNS_S = 15.0
"""Seconds in which a tab whose connection broke may return. Browsers try again every three to five seconds, so that an
attempt or two may fail; and a run to which no page returns holds others up no longer than that."""


class _Tab:
    """``expiry``: when the tab is gone unless it returns, if it is away or its connection broke."""

    def __init__(self) -> None:
        self.connections = 0
        self.gone = asyncio.Event()
        self.expiry: asyncio.TimerHandle | None = None

    def stay(self) -> None:
        if self.expiry:
            self.expiry.cancel()
        self.expiry = None


class HeartbeatMiddleware:
    """Answers the tabs' heartbeats, in place of Gradio.

    A tab is gone when it says so; when it has been absent for ``RETURNS_S`` after its last connection broke, or for
    ``AWAY_S`` if it said that it is away; or when ``most`` others are absent. ``leave`` is then told its session.
    Once the server is ``closed``, all connections end.
    """

    def __init__(
        self, app: ASGIApp, leave: Callable[[str], None], closed: Callable[[], bool], most: int = MOST
    ) -> None:
        self._app, self._leave, self._closed, self._most = app, leave, closed, most
        self._tabs: dict[str, _Tab] = {}  # by session; the last to be absent last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = HEARTBEAT.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if not found:
            await self._app(scope, receive, send)
            return
        session, news = found.groups()
        tab, method = self._tabs.get(session), "POST" if news else "GET"
        if scope["method"] != method:
            await Response(status_code=405, headers={"Allow": method})(scope, receive, send)
        elif not news:
            await self._connect(session, self._tabs.setdefault(session, _Tab()), scope, receive, send)
        else:
            if tab and news == "away":
                self._absent(session, tab, AWAY_S)
            elif tab:
                self._gone(session, tab)
            await Response(status_code=204 if tab else 404)(scope, receive, send)

    async def _connect(self, session: str, tab: _Tab, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a tab's request until either side ends it."""
        tab.connections += 1
        tab.stay()

        async def alive() -> AsyncIterator[bytes]:
            for second in itertools.count():
                if second % EVERY_S == 0:
                    yield ALIVE
                with suppress(TimeoutError):
                    await asyncio.wait_for(tab.gone.wait(), 1)
                if tab.gone.is_set() or self._closed():
                    return

        try:
            stream = StreamingResponse(alive(), media_type="text/event-stream")
            with suppress(ClientDisconnect):
                await stream(scope | {"asgi": {}}, receive, send)  # as by ASGI 2.0: it listens for the disconnect
        finally:
            tab.connections -= 1
            if not (tab.connections or tab.expiry or tab.gone.is_set()):
                self._absent(session, tab, RETURNS_S)

    def _absent(self, session: str, tab: _Tab, seconds: float) -> None:
        """Count it as gone unless it returns within ``seconds``."""
        tab.stay()
        tab.expiry = asyncio.get_running_loop().call_later(seconds, self._gone, session, tab)
        self._tabs[session] = self._tabs.pop(session)
        absent = [(session, tab) for session, tab in self._tabs.items() if tab.expiry]
        for longest in absent[: -self._most]:
            self._gone(*longest)

    def _gone(self, session: str, tab: _Tab) -> None:
        tab.stay()
        tab.gone.set()
        if self._tabs.get(session) is tab:
            del self._tabs[session]
            self._leave(session)
