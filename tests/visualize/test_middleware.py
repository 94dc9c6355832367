"""What stands around Gradio's pages: a proxy's path, compression, what browsers keep, and the pages' heads."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.coroutines import complete
from visualize import compression
from visualize.assets import CHARTS, PLOTLY
from visualize.compression import FOR_EVER
from visualize.jobs import sse_channel
from visualize.jobs.sse_channel import Channel
from visualize.page_head import PageHeadMiddleware
from visualize.root_path import RootPathMiddleware

TEXT = "a page with many words, many of them the same\n" * 100


@pytest.mark.parametrize(
    ("root", "path", "left"),
    [
        ("", "/compare", "/compare"),
        ("/lab", "/lab/compare", "/compare"),
        ("/lab/", "/lab/", "/"),
        ("/", "/compare", "/compare"),
        ("/lab", "/lab", "/"),
        ("/lab", "/compare", "/compare"),  # by a proxy that takes it off
        ("/lab", "/laboratory", "/laboratory"),
        ("/lab", "/lab/lab/compare", "/lab/compare"),  # once
        ("https://example.org/my/lab", "/my/lab/gradio_api/info", "/gradio_api/info"),
        ("https://example.org", "/compare", "/compare"),
        ("/lab", None, None),  # a server's start has no path
    ],
)
def test_a_proxys_path_is_taken_off_once(root: str, path: str | None, left: str | None) -> None:
    seen: list[dict[str, Any]] = []

    async def app(scope: dict[str, Any], receive: object, send: object) -> None:
        seen.append(scope)

    asked = {"type": "http", "root_path": root} | ({} if path is None else {"path": path})
    complete(RootPathMiddleware(app)(asked, None, None))
    assert seen[0].get("path") == left
    if left != path:
        assert seen[0]["root_path"] == "", "otherwise routes would take it off again"


def served(kind: str, status: int = 200) -> Response:
    """The answer to a browser whose page, script and so on is ``TEXT``."""

    def answer(request: Request) -> Response:
        return PlainTextResponse(TEXT, status, media_type=kind)

    app = Starlette(routes=[Route("/{path:path}", answer)], middleware=compression.MIDDLEWARE)
    return TestClient(app).get("/assets/index-DphvyggB.js" if kind == "text/javascript" else "/")


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [
        ("text/html", "gzip"),
        ("application/json", "gzip"),
        ("text/javascript", None),  # Gradio compresses scripts and styles better
        ("text/css", None),
        ("text/event-stream", None),  # a stream of Gradio's would be held back until there is enough of it
    ],
)
def test_pages_are_compressed_but_not_what_gradio_compresses(kind: str, encoding: str | None) -> None:
    answer = served(kind)
    assert (answer.headers.get("content-encoding"), answer.text) == (encoding, TEXT)


def test_browsers_keep_the_files_whose_names_change_with_their_contents() -> None:
    assert served("text/javascript").headers["cache-control"] == FOR_EVER
    assert "cache-control" not in served("text/html").headers
    assert "cache-control" not in served("text/javascript", 404).headers, "it may be there the next time"


def test_browsers_keep_the_script_that_draws_charts() -> None:
    answer = TestClient(Starlette(routes=[compression.ROUTE])).get(f"/{CHARTS}")
    assert answer.headers["cache-control"] == FOR_EVER
    assert answer.content == PLOTLY.read_bytes()


def test_jupyters_proxy_which_would_not_say_so_gets_streams_uncompressed() -> None:
    channel = Channel()
    channel.put("a message")
    channel.close()
    client = TestClient(Starlette(routes=[sse_channel.ROUTE]))
    for headers, encoding in (({}, "gzip"), ({"X-ProxyContextPath": "/user/me/proxy/7860"}, None)):
        answer = client.get(f"/channels/{channel.id}", headers={"Accept-Encoding": "gzip"} | headers)
        assert answer.headers.get("content-encoding") == encoding
        assert "data: a message" in answer.text


def test_a_message_can_be_read_as_soon_as_it_is_sent() -> None:
    channel, reader, heard = Channel(), zlib.decompressobj(16 + zlib.MAX_WBITS), []
    headers = [(b"accept-encoding", b"gzip")]
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/channels/{channel.id}",
        "query_string": b"",
        "headers": headers,
    }

    async def send(message: dict) -> None:
        if message["type"] == "http.response.start":
            assert (b"content-encoding", b"gzip") in message["headers"]
            return
        heard.append(reader.decompress(message["body"]).decode())
        if len(heard) <= 3:  # the next is put only when the one before has arrived
            channel.put(f"message {len(heard)}")
        else:
            channel.close()

    async def receive() -> dict:
        return await asyncio.Event().wait()  # the browser stays

    complete(asyncio.wait_for(Starlette(routes=[sse_channel.ROUTE])(scope, receive, send), 30))
    assert [text.partition("data: ")[2].strip() for text in heard[1:4]] == ["message 1", "message 2", "message 3"]


CONFIG = '<script>window.gradio_config = {"title": "Gradio", "root": "http://proxy"};</script>'
HTML = (
    '<html><head><meta charset="utf-8" /><meta property="og:title" content="Gradio" />' + CONFIG + "{}"
    "<script data-gradio-mode></script>"
    '<script>const root = "http://proxy";</script><script type="module" src="x.js"></script></head><body></body></html>'
)


@pytest.mark.parametrize("more", ["", "<script>window.gradio_api_info = {};</script>"])  # as versions differ
def test_a_page_has_its_own_title_and_address_before_any_script_of_gradios(more: str) -> None:
    async def page(request: Request) -> Response:
        return HTMLResponse(HTML.replace("{}", more, 1))

    app = Starlette(
        routes=[Route("/{path:path}", page)],
        middleware=[Middleware(PageHeadMiddleware, names={"/": "Lab", "/compare": "Compare"})],
    )
    client = TestClient(app)
    assert client.get("/health").text == HTML.replace("{}", more, 1)
    assert "<title>Decode Lab</title>" in client.get("/").text
    html = client.get("/compare").text
    assert "<title>Compare · Decode Lab</title>" in html
    assert 'content="Gradio"' not in html
    assert html.index("addEventListener") < html.index("gradio_config")
    assert (
        html.index(CONFIG)
        < html.index("gradio_config.root = document")
        < html.index("const root = gradio_config.root;")
    )
