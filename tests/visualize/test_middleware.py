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
from visualize.assets import CHARTS, FOR_EVER, PLOTLY, ROUTES
from visualize.jobs import sse_channel
from visualize.jobs.sse_channel import Channel
from visualize.middleware import GZIP, PagesMiddleware

TEXT = "a page with many words, many of them the same\n" * 100


def served(answer: Any) -> TestClient:
    """A browser of an app whose answer to every address is this."""
    around = [GZIP, Middleware(PagesMiddleware, names={"/": "Lab", "/compare": "Compare"})]
    app = Starlette(routes=[Route("/{path:path}", answer)], middleware=around)
    return TestClient(app, follow_redirects=False)


@pytest.mark.parametrize(
    ("root", "path", "left"),
    [
        ("", "/memory", "/memory"),
        ("/lab/", "/lab/", "/"),
        ("/lab", "/lab", "/"),
        ("/lab", "/memory", "/memory"),  # by a proxy that takes it off
        ("/lab", "/laboratory", "/laboratory"),
        ("/lab", "/lab/lab/memory", "/lab/memory"),  # once
        ("https://example.org/my/lab", "/my/lab/gradio_api/info", "/gradio_api/info"),
    ],
)
def test_a_proxys_path_is_taken_off_once(root: str, path: str, left: str) -> None:
    seen: list[dict[str, Any]] = []

    async def app(scope: dict[str, Any], receive: object, send: object) -> None:
        seen.append(scope)

    asked = {"type": "http", "method": "GET", "root_path": root, "path": path, "query_string": b""}
    complete(PagesMiddleware(app, {})(asked, None, None))
    assert (seen[0]["path"], seen[0]["root_path"]) == (left, ""), "else routes would take it off again"


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [("text/html", "gzip"), ("application/json", "gzip"), ("text/javascript", None), ("text/event-stream", None)],
)
def test_pages_are_compressed_but_not_what_gradio_compresses_or_what_a_stream_would_be_held_back_by(
    kind: str, encoding: str | None
) -> None:
    answer = served(lambda request: PlainTextResponse(TEXT, media_type=kind)).get("/memory")
    assert (answer.headers.get("content-encoding"), answer.text) == (encoding, TEXT)


def test_browsers_keep_the_files_whose_addresses_change_with_their_contents() -> None:
    for path, status, kept in (("/assets/a-1f.js", 200, FOR_EVER), ("/assets/a-1f.js", 404, None), ("/x", 200, None)):
        answer = served(lambda request, status=status: PlainTextResponse(TEXT, status)).get(path)
        assert answer.headers.get("cache-control") == kept
    answer = TestClient(Starlette(routes=ROUTES)).get(f"/{CHARTS}")
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
    asked = {"type": "http", "method": "GET", "path": f"/channels/{channel.id}", "query_string": b""}

    async def send(message: dict) -> None:
        if message["type"] == "http.response.start":
            assert (b"content-encoding", b"gzip") in message["headers"]
            return
        heard.append(reader.decompress(message["body"]).decode())
        if len(heard) <= 3:  # the next is put only when the one before has arrived
            channel.put(f"message {len(heard)}")
        else:
            channel.close()

    app = Starlette(routes=[sse_channel.ROUTE])
    stays = asyncio.Event().wait
    complete(asyncio.wait_for(app(asked | {"headers": [(b"accept-encoding", b"gzip")]}, stays, send), 30))
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

    browser = served(page)
    assert browser.get("/health").text == HTML.replace("{}", more, 1)
    assert "<title>Decode Lab</title>" in browser.get("/").text
    html = browser.get("/compare").text
    assert "<title>Compare · Decode Lab</title>" in html
    assert 'content="Gradio"' not in html
    order = ["addEventListener", CONFIG, "gradio_config.root = document", "const root = gradio_config.root;"]
    assert sorted(order, key=html.index) == order
