"""What goes over the wire: compressed, whole, at once, and only once."""

from __future__ import annotations

import asyncio
import functools
import gzip
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.coroutines import complete
from visualize import compression as wire
from visualize.assets import PLOTLY
from visualize.compression import ANSWERS, CHARTS, FOR_EVER, ROUTE, Lasting
from visualize.jobs import sse_channel as channel
from visualize.jobs.sse_channel import Channel

TEXT = "a page with many words, many of them the same\n" * 100


def served(kind: str, status: int = 200) -> Response:
    """The answer to a browser whose page, script and so on is ``TEXT``."""

    def answer(request: Request) -> Response:
        return PlainTextResponse(TEXT, status, media_type=kind)

    app = Starlette(routes=[Route("/{path:path}", answer), ROUTE], middleware=[ANSWERS, Middleware(Lasting)])
    return TestClient(app).get("/assets/index-DphvyggB.js" if kind == "text/javascript" else "/")


def test_pages_are_compressed_but_not_what_gradio_compresses_better() -> None:
    encodings = {"text/html": "gzip", "application/json": "gzip", "text/javascript": None, "text/css": None}
    encodings["text/event-stream"] = None  # a stream of Gradio's would be held back until there is enough of it
    for kind, encoding in encodings.items():
        answer = served(kind)
        assert (answer.headers.get("content-encoding"), answer.text) == (encoding, TEXT), kind


def test_browsers_keep_the_files_whose_names_change_with_their_contents() -> None:
    assert served("text/javascript").headers["cache-control"] == FOR_EVER
    assert "cache-control" not in served("text/html").headers
    assert "cache-control" not in served("text/javascript", 404).headers, "it may be there the next time"


def test_the_script_that_draws_charts_is_compressed_and_kept() -> None:
    client, script = TestClient(Starlette(routes=[ROUTE])), PLOTLY.read_bytes()
    for how in ("gzip", "identity"):
        answer = client.get(f"/{CHARTS}", headers={"Accept-Encoding": how})
        assert answer.headers.get("content-encoding", "identity") == how
        assert answer.headers["cache-control"] == FOR_EVER
        assert answer.headers["vary"] == "Accept-Encoding", "a cache on the way keeps both"
        assert answer.content == script
    del client.headers["accept-encoding"]
    assert "content-encoding" not in client.get(f"/{CHARTS}").headers


def test_the_script_that_draws_charts_is_compressed_once_for_a_whole_class(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bytes] = []

    def compress(script: bytes) -> bytes:
        begun.append(script)
        time.sleep(0.05)  # so that others arrive meanwhile
        return gzip.compress(b"packed")

    def ask(_: int) -> str:
        return TestClient(Starlette(routes=[ROUTE])).get(f"/{CHARTS}").text

    monkeypatch.setattr(wire, "gzip", SimpleNamespace(compress=compress))
    monkeypatch.setattr(wire, "_packed", functools.cache(wire._packed.__wrapped__))
    with ThreadPoolExecutor(4) as browsers:
        assert list(browsers.map(ask, range(5))) == ["packed"] * 5
    assert len(begun) == 1


def test_jupyters_proxy_which_would_not_say_so_gets_streams_uncompressed() -> None:
    told = Channel()
    told.put("a message")
    told.close()
    client = TestClient(Starlette(routes=[channel.ROUTE]))
    for headers, encoding in (({}, "gzip"), ({"X-ProxyContextPath": "/user/somebody/proxy/7860"}, None)):
        answer = client.get(f"/channels/{told.id}", headers={"Accept-Encoding": "gzip"} | headers)
        assert answer.headers.get("content-encoding") == encoding
        assert "data: a message" in answer.text


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
