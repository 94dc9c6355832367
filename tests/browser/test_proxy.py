"""Behind a proxy, which serves the lab by a name and below a path of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.api.calls import get
from tests.browser.conftest import serving
from tests.browser.pages import ENDLESS, Lab, link_to

Visit = Callable[..., Lab]

TAKEN_OFF = "/elsewhere"
ROOT = "/lab"


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on as proxies do by default: with the server's address as ``Host``, the browser's ``Origin`` as
    it is, and an answer's parts as they come."""

    seconds = 0.0
    """From one part of a stream to the next, at least."""

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
        streams = answer.getheader("Content-Type", "").startswith("text/event-stream")
        try:
            for part in self.parts(answer):
                self.wfile.write(part)
                time.sleep(self.seconds if streams else 0)
        except OSError:
            pass  # the browser has left
        finally:
            connection.close()

    do_POST = do_GET

    def parts(self, answer: HTTPResponse) -> Iterator[bytes]:
        """Those of the answer that the browser gets."""
        while part := answer.read1(2**16):
            yield part

    def log_message(self, *about) -> None:
        pass


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an app that only this machine reaches, and that is told a proxy's name and path."""
    log = tmp_path_factory.mktemp("behind") / "log.txt"
    with serving(log, "--allowed-hosts", "lab.localhost", GRADIO_ROOT_PATH=ROOT) as address:
        yield address
    assert "Traceback" not in Path(log).read_text()


@contextmanager
def passing_on(server: str, proxy: type[Proxy] = Proxy) -> Iterator[int]:
    """The port of a proxy of ``server``."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(proxy, server)) as listens:
        listens.daemon_threads = True
        threading.Thread(target=listens.serve_forever, daemon=True).start()
        yield listens.server_port
        listens.shutdown()


@pytest.fixture(scope="module")
def proxy(behind: str) -> Iterator[int]:
    """The proxy's port."""
    with passing_on(behind) as port:
        yield port


@pytest.mark.parametrize("path", [TAKEN_OFF, ROOT], ids=["taken off", "passed on"])
def test_the_lab_works_below_a_proxys_path(troubled: Visit, proxy: int, path: str) -> None:
    address = f"http://lab.localhost:{proxy}{path}"
    lab, asked = troubled(address), []
    lab.page.on("request", lambda request: asked.append(request.url))
    lab.ran(max_tokens=30)
    lab.came_to_its_end(30)
    link_to(lab.page, "Pool").click()
    lab.page.wait_for_selector("body[data-ready]")
    assert lab.page.url == f"{address}/pool"
    link_to(lab.page, "Memory").click()
    lab.page.wait_for_selector("body[data-ready]")
    assert lab.page.url == f"{address}/memory"
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    lab.page.goto(f"http://other.localhost:{proxy}{TAKEN_OFF}/")  # a name that the server was not told
    expect(lab.page.get_by_role("alert")).to_contain_text("--allowed-hosts")


class Slow(Proxy):
    """A stream's end arrives after the answer to what a page asks for meanwhile, as over a bad line."""

    seconds = 0.5


def test_a_page_gets_its_answers_when_the_end_of_a_stream_comes_late(troubled: Visit, behind: str) -> None:
    with passing_on(behind, Slow) as port:
        lab = troubled(f"http://lab.localhost:{port}{ROOT}")
        asked: list[str] = []
        lab.page.on("request", lambda request: asked.append(urlsplit(request.url).path))
        for page in ("memory", "lessons"):
            lab.at(page)
            lab.page.wait_for_timeout(2000)  # for what the page asks for when it is ready
            streams = asked.count(f"{ROOT}/gradio_api/queue/data")
            assert streams <= asked.count(f"{ROOT}/gradio_api/queue/join"), "none is opened without need"
        lab.page.close()


class Cutting(Proxy):
    """Ends a page's first connection by which the server knows that it is there, as proxies do whose time is up."""

    cut = threading.Event()
    known: ClassVar[set[str]] = set()

    def parts(self, answer: HTTPResponse) -> Iterator[bytes]:
        if "/heartbeat/" not in self.path or self.path in self.known:
            yield from super().parts(answer)
        else:
            self.known.add(self.path)
            yield answer.read1(2**16)
            self.cut.wait()


def test_a_run_goes_on_although_the_connection_breaks_by_which_its_page_is_known(troubled: Visit, behind: str) -> None:
    with passing_on(behind, Cutting) as port:
        lab = troubled(f"http://lab.localhost:{port}{ROOT}").open(**ENDLESS | {"max_tokens": 100})
        lab.run()
        lab.wait_for_tokens(5)
        with lab.page.expect_request("**/heartbeat/*"):
            Cutting.cut.set()
        lab.finish()
        lab.came_to_its_end(100)
        lab.page.close()


def test_below_the_path_nothing_is_open_that_is_not_open_elsewhere(behind: str) -> None:
    for path in ("/gradio_api/queue/status", "/gradio_api/vibe-edit/", "/gradio_api/call/nothing"):
        refused = get(f"{behind}{path}")
        assert refused[0] == 404
        assert get(f"{behind}{ROOT}{path}") == refused
        assert get(f"{behind}{ROOT}{ROOT}{path}")[0] == 404
    assert get(f"{behind}{ROOT}/health")[0] == 200
