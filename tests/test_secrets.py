"""Secrets are sent only to those they are for, and never appear in a log, a page or an answer."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lab.errors import ConfigError
from lab.vllm.client import Server, ServerError
from tests import forked
from tests.browser.conftest import free_port, serving
from tests.coroutines import complete

pytestmark = pytest.mark.slow

TOKEN, KEY = "hf_" + "RecognisableToken" * 2, "sk-RecognisableKey"
PAGES = (
    "",
    "compare",
    "lessons",
    "pool",
    "memory",
    "claims",
    "mistakes",
    "deploy",
    "server",
    "instructor",
    "capstone",
    "config",
    "health",
)
PAGES += ("metrics", "gradio_api/info", "gradio_api/mcp/schema", "gradio_api/nothing", "environ", "%2e%2e/app.py")


class Refusing(ThreadingHTTPServer):
    """A hub or a vLLM server that refuses every secret. ``sent``: the Authorization headers it received."""

    def __init__(self) -> None:
        self.sent: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def refuse(self) -> None:
                self.server.sent.append(self.headers.get("Authorization", ""))
                self.send_response(401)
                self.send_header("X-Error-Message", "Invalid credentials")
                self.end_headers()

            do_GET = do_HEAD = do_POST = refuse

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    server = Refusing()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def variables(hub: Refusing, cache: Path) -> dict[str, str]:
    secrets = {"HF_TOKEN": TOKEN, "VLLM_API_KEY": KEY}
    return secrets | {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(cache)}


def fetched(address: str, body: bytes | None = None) -> str:
    """The answer with its headers, whatever its status."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, body, {"Content-Type": "application/json"})) as it:
            return f"{it.headers}{it.read().decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.headers}{error.read().decode()}"


def test_an_unavailable_private_model_does_not_reveal_the_token(refusing: Refusing, tmp_path: Path) -> None:
    app = "import runpy\nrunpy.run_path('app.py', run_name='__main__')"
    done = forked.run(app, "--port", str(free_port()), "--target", "somebody/private", **variables(refusing, tmp_path))
    assert done.returncode == 2
    assert "somebody/private" in done.stderr
    assert f"Bearer {TOKEN}" in refusing.sent  # so there was a token to reveal
    assert "Recognisable" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_server_reveals_no_secret_whatever_goes_wrong(refusing: Refusing, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with serving(log, "--attach", refusing.address, **variables(refusing, tmp_path)) as address:
        seen = [fetched(f"{address}/{page}") for page in PAGES]
        for name, asked in (
            ("calculator", {"model": "somebody/private"}),
            ("run", {"prompt": "A fox", "pair": "somebody/private"}),
            ("run", {"prompt": "A fox", "max_tokens": 2, "events": True}),
            ("run", {"prompt": 1}),
        ):
            joined = fetched(f"{address}/gradio_api/call/v2/{name}", json.dumps(asked).encode())
            event = json.loads(joined[joined.index("{") :])["event_id"]
            seen.append(fetched(f"{address}/gradio_api/call/{name}/{event}"))
        seen.append(fetched(f"{address}/gradio_api/call/run", b'{"data": []}'))
        seen += [fetched(f"{address}/{page}") for page in ("health", "metrics")]
    assert "" in refusing.sent  # the hub was asked, without the owner's token
    assert f"Bearer {TOKEN}" not in refusing.sent
    assert "The hub did not give the configuration of somebody/private" in "".join(seen)
    assert "Recognisable" not in "".join(seen)
    assert "Recognisable" not in log.read_text()


@pytest.mark.parametrize("key", [KEY, f"{KEY}\n"])
def test_a_refused_key_is_sent_and_not_revealed(refusing: Refusing, key: str) -> None:
    server = Server(refusing.address, key)
    with pytest.raises(ServerError) as caught:
        complete(server.read())
    assert "Recognisable" not in f"{caught.value} {server!r}"
    assert refusing.sent == [f"Bearer {KEY}"]


@pytest.mark.parametrize("key", [f"{KEY} é", f"{KEY}\n{KEY}", f"{KEY}\0"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_revealed(key: str) -> None:
    with pytest.raises(ConfigError, match="printable ASCII") as caught:
        Server("http://127.0.0.1:8000", key)
    assert "Recognisable" not in str(caught.value)
