"""The middleware before Gradio: what reaches an app that only notes it, and what is refused."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.coroutines import complete
from visualize import security
from visualize.security import SecurityMiddleware

FILE = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
FORM = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.json"\r\n\r\n{}\r\n--x--\r\n'
KIND = {"Content-Type": "multipart/form-data; boundary=x"}
SLIDER, RADIO, NUMBER, STATE, OPEN = range(5)
"""The numbers of the events of ``pages``, each with one input of its own."""


def pages() -> gr.Blocks:
    with gr.Blocks() as made:
        slider, radio = gr.Slider(2, 10, value=4, label="Block size"), gr.Radio(["a", "b"])
        for one in (slider, radio, gr.Number(label="Seed"), gr.State(5)):
            gr.Button().click(print, one)
        upload = gr.UploadButton()
        upload.upload(print, upload)
        gr.HTML(server_functions=[take_away])
    return made


def take_away(wanted: list[str]) -> dict[str, str]:
    return {}


PAGES = pages()


class Guarded(TestClient):
    """Requests to a guarded app. ``reached``: the bodies of those that came through."""

    def __init__(self, uploads: Path, hosts: Sequence[str] | None = None) -> None:
        self.reached: list[bytes] = []

        async def note(request: Request) -> Response:
            self.reached.append(await request.body())
            return Response()

        arguments = {"pages": PAGES, "names": ("run",), "hosts": hosts, "uploads": uploads}
        self.stack = Starlette(
            routes=[Route("/{path:path}", note, methods=["GET", "POST"])],
            middleware=[Middleware(SecurityMiddleware, **arguments)],
        )
        super().__init__(self.stack, base_url="http://lab.example")

    def event(self, number: int, value: Any, **more: Any) -> dict[str, Any]:
        """What reaches Gradio of an event, or {status, detail}. NaN and Infinity are sent as Python writes them."""
        document = {"data": [value], "fn_index": number, "session_hash": "abc"} | more
        answer = self.post("/gradio_api/queue/join", content=json.dumps(document))
        return json.loads(self.reached[-1]) if answer.is_success else {"status": answer.status_code, **answer.json()}


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Guarded]:
    with Guarded(tmp_path) as client:
        yield client


def test_of_an_event_only_what_gradio_uses_is_passed_on(app: Guarded) -> None:
    got = app.event(NUMBER, 5, event_data={"index": 2}, trigger_id=7, username="another", request={})
    assert got == {"data": [5], "fn_index": NUMBER, "session_hash": "abc", "event_data": {"index": 2}, "trigger_id": 7}
    assert app.event(NUMBER, 5, event_data="no object")["event_data"] == {}


@pytest.mark.parametrize(
    ("number", "value", "becomes"),
    [(SLIDER, 3, 3), (SLIDER, 30, 10), (SLIDER, 0, 2), (SLIDER, None, 4), (RADIO, "b", "b"), (STATE, None, None)],
)
def test_while_a_number_is_typed_a_sliders_is_put_within_its_bounds(
    app: Guarded, number: int, value: Any, becomes: Any
) -> None:
    assert app.event(number, value)["data"] == [becomes]


@pytest.mark.parametrize(
    ("number", "value", "more", "word"),
    [
        (SLIDER, float("nan"), {}, "“Block size” must be a number from 2 to 10"),
        (NUMBER, float("inf"), {}, "Seed"),
        (RADIO, "c", {}, "page offers"),
        (RADIO, None, {}, "page offers"),
        (NUMBER, FILE, {}, "a file"),
        (NUMBER, 5, {"event_data": {"value": FILE}}, "a file"),
        (OPEN, FILE, {}, "not sent here"),
        (OPEN, FILE | {"path": "/etc"}, {}, "not sent here"),
        (NUMBER, 5, {"session_hash": "a b"}, "session_hash"),
        (NUMBER, 5, {"fn_index": True}, "fn_index"),
        (NUMBER, "\ud800", {}, "half a character"),
    ],
)
def test_other_values_are_refused(app: Guarded, number: int, value: Any, more: dict[str, Any], word: str) -> None:
    got = app.event(number, value, **more)
    assert (got["status"], word in got["detail"]) == (422, True), got
    assert not app.reached


def test_an_upload_brings_its_file_as_long_as_that_is_kept_and_nothing_else(app: Guarded, tmp_path: Path) -> None:
    (path := tmp_path / "run.json").touch()
    got = app.event(OPEN, FILE | {"path": str(path), "url": "http://evil.example"}, event_data={"value": FILE})
    assert (got["data"], got["event_data"]) == ([FILE | {"path": str(path)}], {})
    path.unlink()
    assert app.event(OPEN, FILE | {"path": str(path)})["status"] == 422


def test_no_file_comes_in_by_a_tool_or_a_component(app: Guarded) -> None:
    call = {"id": 7, "params": {"arguments": {"prompt": FILE}}}
    assert app.post("/gradio_api/mcp/", json=call).status_code == 422
    number = next(number for number, block in PAGES.blocks.items() if isinstance(block, gr.HTML))
    asked = {"component_id": number, "fn_name": "take_away", "session_hash": "abc", "data": [FILE]}
    assert app.post("/gradio_api/component_server", json=asked).status_code == 422
    assert app.post("/gradio_api/component_server", json=asked | {"fn_name": "get_config"}).status_code == 404
    assert app.post("/gradio_api/component_server", json=asked | {"data": ["id", "csv"]}).status_code == 200


def test_uploads_are_bounded_and_deleted(app: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MOST_STORED", 3 * 2**12)
    (old := tmp_path / "old.json").touch()
    os.utime(old, (0, 0))
    status = []
    for number in range(4):
        status.append(app.post("/gradio_api/upload", content=FORM, headers=KIND).status_code)
        (tmp_path / f"{number}.json").touch()
    assert status == [200, 200, 200, 507]
    assert not old.exists()
    assert app.reached == [FORM] * 3


def test_an_upload_is_deleted_though_no_other_follows(
    app: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "STORED_S", -0.9)
    app.post("/gradio_api/upload", content=FORM, headers=KIND)
    (stored := tmp_path / "a.json").touch()
    until = time.monotonic() + 10
    while stored.exists() and time.monotonic() < until:
        app.get("/")
    assert not stored.exists()


def test_of_an_upload_that_is_too_large_the_rest_is_read(app: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is cut off while sending misses the answer."""
    monkeypatch.setattr(security, "MOST_UPLOAD", 10)
    parts, answers = [b"1234"] * 9, []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(), "more_body": bool(parts)}

    async def send(message: dict[str, Any]) -> None:
        answers.append(message)

    complete(app.stack(upload(), receive, send))
    assert (answers[0]["status"], parts, app.reached) == (413, [], [])


def test_a_client_that_leaves_while_still_sending_leaves_nothing_and_no_error(app: Guarded) -> None:
    messages = [{"type": "http.disconnect"}, {"type": "http.request", "body": FORM[:20], "more_body": True}]

    async def receive() -> dict[str, Any]:
        return messages.pop()

    async def send(message: dict[str, Any]) -> None:
        raise AssertionError(message)

    complete(app.stack(upload(), receive, send))
    assert app.reached == []


def upload() -> dict[str, Any]:
    path = "/gradio_api/upload"
    return {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}


HOSTS = ("127.0.0.1", "lab.example", "::1")


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("lab.example", None, 200),
        ("LAB.example:7860", "https://lab.example", 200),
        ("[::1]:7860", "http://127.0.0.1:80", 200),
        ("evil.example:7860", None, 421),  # a name that points to this machine (DNS rebinding): browsers still send it
        ("127.0.0.1.evil.example", None, 421),
        ("user@evil.example", None, 421),
        ("[", None, 421),
        ("lab.example", "http://evil.example", 403),  # though the page could not read the answer
        ("lab.example", "null", 403),
        ("lab.example", "http://[", 403),
        ("lab.example", "", 403),
    ],
)
def test_only_requests_by_the_servers_names_and_from_its_own_pages_are_answered(
    tmp_path: Path, host: str, origin: str | None, status: int
) -> None:
    app = Guarded(tmp_path, HOSTS)
    for path in ("/", "/health", "/gradio_api/info", "/channels/x"):
        answer = app.get(path, headers={"Host": host} | ({} if origin is None else {"Origin": origin}))
        assert answer.status_code == status
        assert answer.headers["content-security-policy"] == "frame-ancestors 'self' 127.0.0.1:* lab.example:*"
    assert len(app.reached) == 4 * (status == 200)
    assert "content-security-policy" not in Guarded(tmp_path).get("/").headers, "where any name may reach it"
