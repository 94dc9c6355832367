"""Compression of answers, and how long browsers may keep them.

Gradio compresses scripts and styles, each time anew, but no page and no stream. It does not say how long a browser may
keep a file, and sends all of it again to a browser that asks whether its copy is still good.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visualize.assets import CHARTS, PLOTLY

LEVEL = 5
"""Of compression: a third of the time that the highest level takes, for a tenth more bytes."""
HASHED = "/assets/"
"""The address of Gradio's files whose names change with their contents."""
FOR_EVER = "public, max-age=31536000, immutable"


class CompressedStream(GZipMiddleware):
    """Compresses a stream, and holds back no part of it; not for Jupyter's proxy, which passes the bytes of streams on,
    but not that they are compressed."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app, compresslevel=LEVEL, exclude_content_types=())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        by_jupyter = "x-proxycontextpath" in Headers(scope=scope)
        await (self.app if by_jupyter else super().__call__)(scope, receive, send)


class CacheMiddleware:
    """Lets browsers keep the files below ``HASHED``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def lasting(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                MutableHeaders(scope=message)["cache-control"] = FOR_EVER
            await send(message)

        hashed = scope["type"] == "http" and scope["path"].startswith(HASHED)
        await self._app(scope, receive, lasting if hashed else send)


MIDDLEWARE = [
    Middleware(
        GZipMiddleware,
        compresslevel=LEVEL,
        exclude_content_types=(  # those that Gradio compresses better
            *DEFAULT_EXCLUDED_CONTENT_TYPES,
            "text/javascript",
            "application/javascript",
            "text/css",
        ),
    ),
    Middleware(CacheMiddleware),
]


async def _charts(request: Request) -> Response:
    return FileResponse(PLOTLY, media_type="text/javascript", headers={"Cache-Control": FOR_EVER})


ROUTE = Route(f"/{CHARTS}", _charts)
"""The address of the script that draws charts: three quarters of a first visit's bytes."""
