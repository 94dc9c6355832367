"""What stands in Gradio's way, before an app that only notes what reaches it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.coroutines import complete
from visualize import upload_cleanup as sent
from visualize.security import Guard

FILE = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.json"\r\n\r\n{}\r\n--x--\r\n'


class Guarded:
    """Requests to a guarded app. ``reached``: the bodies of those that came through."""

    def __init__(self, hosts: Sequence[str] | None = None) -> None:
        self.reached: list[bytes] = []
        self._guard = Guard(self._app, names=("run",), hosts=hosts)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def post(self, path: str, *messages: dict[str, Any], host: str = "") -> list[dict[str, Any]]:
        """Send these messages. Returns those that came back."""
        answered: list[dict[str, Any]] = []
        waiting = list(messages)

        async def receive() -> dict[str, Any]:
            return waiting.pop(0)

        async def send(message: dict[str, Any]) -> None:
            answered.append(message)

        pages = SimpleNamespace(config={"page": {}})
        headers = [(b"content-type", b"multipart/form-data; boundary=x"), (b"host", host.encode())]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        complete(self._guard(scope | {"app": SimpleNamespace(get_blocks=lambda: pages)}, receive, send))
        return answered


def body(content: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": content, "more_body": more}


def test_no_more_files_reach_the_disk_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent, "MOST_STORED", 2 * sent.A_FILE)
    app = Guarded()
    status = [app.post("/gradio_api/upload", body(FILE))[0]["status"] for _ in range(3)]
    assert status == [200, 200, 507]
    assert app.reached == [FILE] * 2


@pytest.mark.parametrize("path", ["/gradio_api/upload", "/gradio_api/reset"])
def test_who_leaves_while_still_sending_leaves_nothing_and_no_error(path: str) -> None:
    app = Guarded()
    assert app.post(path, body(FILE[:20], more=True), {"type": "http.disconnect"}) == []
    assert app.reached == []


def test_pages_may_be_framed_by_the_hosts_that_the_server_answers_to_and_if_by_any_by_all() -> None:
    [start] = Guarded(("lab.example", "::1")).post("/", body(b""), host="lab.example")
    assert start["headers"] == [(b"content-security-policy", b"frame-ancestors 'self' lab.example:*")]
    [start] = Guarded().post("/", body(b""))
    assert start["headers"] == []
