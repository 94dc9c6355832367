"""Behind a proxy, which serves the lab by a name and below a path of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.api.calls import get
from tests.browser.conftest import serving
from tests.browser.pages import Visit, link_to

TAKEN_OFF = "/elsewhere"
ROOT = "/lab"


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on as proxies do by default: with the server's address as ``Host``, the browser's ``Origin`` as
    it is, and an answer's parts as they come."""

    def __init__(self, server: str, *about) -> None:
        self._server = urlsplit(server).netloc
        super().__init__(*about)

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        connection = HTTPConnection(self._server)
        connection.request(self.command, self.path.removeprefix(TAKEN_OFF), body or None, headers)
        answer = connection.getresponse()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        self.end_headers()
        try:
            while part := answer.read1(2**16):
                self.wfile.write(part)
        except OSError:
            pass  # the browser has left
        finally:
            connection.close()

    do_POST = do_GET

    def log_message(self, *about) -> None:
        pass


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an app that only this machine reaches, and that is told a proxy's name and path."""
    log = tmp_path_factory.mktemp("behind") / "log.txt"
    with serving(log, "--allowed-hosts", "lab.localhost", GRADIO_ROOT_PATH=ROOT) as address:
        yield address
    assert "Traceback" not in Path(log).read_text()


@pytest.fixture(scope="module")
def proxy(behind: str) -> Iterator[int]:
    """The proxy's port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Proxy, behind)) as listens:
        listens.daemon_threads = True
        threading.Thread(target=listens.serve_forever, daemon=True).start()
        yield listens.server_port
        listens.shutdown()


def test_the_lab_works_below_a_path_that_a_proxy_takes_off(troubled: Visit, proxy: int) -> None:
    address = f"http://lab.localhost:{proxy}{TAKEN_OFF}"
    lab, asked = troubled(address), []
    lab.page.on("request", lambda request: asked.append(request.url))
    lab.ran(max_tokens=12)
    lab.came_to_its_end(12)
    link_to(lab.page, "Deploy").click()
    lab.page.wait_for_selector("body[data-ready]")
    assert urlsplit(lab.page.url).path == f"{TAKEN_OFF}/deploy"
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    lab.page.goto(f"http://other.localhost:{proxy}{TAKEN_OFF}/")  # a name that the server was not told
    expect(lab.page.get_by_role("alert")).to_contain_text("--allowed-hosts")


def test_below_the_path_nothing_is_open_that_is_not_open_elsewhere(behind: str) -> None:
    for path in ("/gradio_api/queue/status", "/gradio_api/vibe-edit/", "/gradio_api/call/nothing"):
        refused = get(f"{behind}{path}")
        assert refused[0] == 404
        assert get(f"{behind}{ROOT}{path}") == refused
        assert get(f"{behind}{ROOT}{ROOT}{path}")[0] == 404
    assert get(f"{behind}{ROOT}/health")[0] == 200
