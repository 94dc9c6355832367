"""What goes over the wire: compressed, whole, at once, and only once."""

from __future__ import annotations

import asyncio
import zlib

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.coroutines import complete
from visualize.server import channel
from visualize.server.channel import Channel
from visualize.server.wire import ANSWERS

TEXT = "a page with many words, many of them the same\n" * 100


def served(kind: str, headers: dict[str, str] | None = None) -> Response:
    """The answer to a browser whose page, script and so on is ``TEXT``."""

    def answer(request: Request) -> Response:
        return PlainTextResponse(TEXT, media_type=kind, headers=headers)

    app = Starlette(routes=[Route("/{path:path}", answer)], middleware=[ANSWERS])
    return TestClient(app).get("/assets/index-DphvyggB.js" if kind == "text/javascript" else "/")


def test_pages_are_compressed_but_not_what_gradio_compresses_better() -> None:
    encodings = {"text/html": "gzip", "application/json": "gzip", "text/javascript": None, "text/css": None}
    for kind, encoding in encodings.items():
        answer = served(kind)
        assert (answer.headers.get("content-encoding"), answer.text) == (encoding, TEXT), kind


def test_a_message_can_be_read_as_soon_as_it_is_sent() -> None:
    told, reader, heard = Channel(), zlib.decompressobj(16 + zlib.MAX_WBITS), []
    headers = [(b"accept-encoding", b"gzip")]
    scope = {"type": "http", "method": "GET", "path": f"/channels/{told.id}", "query_string": b"", "headers": headers}

    async def send(message: dict) -> None:
        if message["type"] == "http.response.start":
            assert (b"content-encoding", b"gzip") in message["headers"]
            return
        heard.append(reader.decompress(message["body"]).decode())
        if len(heard) <= 3:  # the next is put only when the one before has arrived
            told.put(f"message {len(heard)}")
        else:
            told.close()

    async def receive() -> dict:
        return await asyncio.Event().wait()  # the browser stays

    complete(asyncio.wait_for(Starlette(routes=[channel.ROUTE])(scope, receive, send), 30))
    assert [text.partition("data: ")[2].strip() for text in heard[1:4]] == ["message 1", "message 2", "message 3"]
