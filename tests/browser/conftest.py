"""The real app in its own process, and a real Chromium in which any error fails the test."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests import ensure_chromium, forked
from tests.browser.pages import POLL, Lab
from tests.vllm import scripted_vllm
from tests.vllm.scripted_vllm import ScriptedVLLM

ROOT = Path(__file__).parents[2]
PATIENCE_MS = 60_000
"""On a machine that is busy with other tests, too."""
expect.set_options(timeout=PATIENCE_MS)
Page.wait_for_function.__kwdefaults__["polling"] = POLL
WITHOUT = (
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup"),  # the browser's own pages, two in every new window
    "ScriptStreaming",  # parses scripts as they arrive that another page has already compiled: Plotly, above all
    # What Playwright disables itself: this list replaces its own.
    *("AimEnabled", "AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync"),
    *("DestroyProfileOnBrowserClose", "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades", "LensOverlay"),
    *("MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints", "PaintHolding", "PreconnectToSearch"),
    *("TcpPortRandomizationWin", "ThirdPartyStoragePartitioning"),
)
QUIET = (
    "--no-sandbox",  # tests often run as root, where the sandbox does not work
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--disable-features={','.join(WITHOUT)}",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost, EXCLUDE *.localhost",
    # Optimizing, and threads, cost more than they save in seconds; what a page before has compiled is kept.
    "--js-flags=--no-opt,--no-maglev,--single-threaded,--no-flush-bytecode",
    "--process-per-site",  # pages of a context share compiled scripts: ready in half the time
)


def chromium() -> str:
    """CHROMIUM, else the first on the path, else Playwright's own; without one these tests fail."""
    return ensure_chromium.find() or pytest.fail("No Chromium found: tests/ensure_chromium.py installs one.")


OUTSIDE = range(20_000, 32_000)
"""Ports that no system gives to connections: a server listens only seconds after its port was found to be free."""


def free_port(port: int = 0) -> int:
    """This port, if it is free; 0: any free port."""
    while True:
        tried = port or random.SystemRandom().choice(OUTSIDE)  # Hypothesis may have seeded the other
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", tried))
                return tried
            except OSError:
                if port:
                    raise


ALWAYS = {"GRADIO_IS_E2E_TEST": "1", "HF_HUB_OFFLINE": "1"}


@contextmanager
def started(
    log: Path, *options: str, port: int = 0, host: str = "127.0.0.1", **variables: str
) -> Iterator[tuple[str, subprocess.Popen]]:
    """A running ``python app.py`` with these options and environment variables: its address and its process. Its
    output goes to ``log``. ``port`` 0: any free port. ``host``: the one in the address."""
    port, command = free_port(port), [sys.executable, "app.py", "--port"]
    with log.open("w") as out:
        env = os.environ | ALWAYS | variables
        app = subprocess.Popen([*command, str(port), *options], cwd=ROOT, env=env, stdout=out, stderr=out)
        try:
            _await_answers(log, lambda: app.poll() is None)
            yield f"http://{host}:{port}", app
        finally:
            app.terminate()
            app.wait(60)


@contextmanager
def forking(
    log: Path, *options: str, port: int = 0, host: str = "127.0.0.1", **variables: str
) -> Iterator[tuple[str, BaseProcess]]:
    """The address and the process of such an app that has its imports from another: see ``tests.forked``, also for
    which ``variables`` it can be given."""
    port = free_port(port)
    app = forked.start(log, ["--port", str(port), *options], os.environ | ALWAYS | variables)
    try:
        _await_answers(log, app.is_alive)
        yield f"http://{host}:{port}", app
    finally:
        app.terminate()
        app.join(60)
        assert app.exitcode is not None, "it does not end"


@contextmanager
def serving(log: Path, *options: str, **how: Any) -> Iterator[str]:
    """The address of such a process."""
    with forking(log, *options, **how) as (address, _):
        yield address


def _await_answers(log: Path, alive: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while "Decode Lab is at " not in log.read_text():  # printed a moment after it starts answering
        assert alive(), log.read_text()
        assert time.monotonic() < until, f"the app did not start: {log.read_text()}"
        time.sleep(0.1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running app, whose log may hold no traceback."""
    log = tmp_path_factory.mktemp("app") / "log.txt"
    with serving(log) as address:
        yield address
    assert "Traceback" not in log.read_text(), log.read_text()


PRESENTERS_KEY = "the presenter's key"


@pytest.fixture(scope="session")
def vllm() -> ScriptedVLLM:
    return ScriptedVLLM()


@pytest.fixture(scope="session")
def vllm_address(vllm: ScriptedVLLM) -> Iterator[str]:
    with scripted_vllm.serving(vllm) as address:
        yield address


@pytest.fixture(scope="session")
def hosting(vllm_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Another app, which hosts a workshop and is attached to a vLLM server."""
    log = tmp_path_factory.mktemp("hosting") / "log.txt"
    key = {"DECODE_LAB_PRESENTER_KEY": PRESENTERS_KEY}
    with serving(log, "--workshop", "--attach", vllm_address, **key) as address:
        yield address
    said = log.read_text()
    assert "Traceback" not in said, said
    assert PRESENTERS_KEY not in said, "a key chosen by the operator must not appear in the log"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        # With scrollbars that take room, as on most desktops: Playwright hides them all.
        browser = playwright.chromium.launch(
            executable_path=path, args=list(QUIET), ignore_default_args=["--hide-scrollbars"]
        )
        yield browser
        browser.close()


MEDIA = {"color_scheme", "forced_colors", "reduced_motion"}


class Rooms:
    """Reusable browser contexts, each with a page that stays open to keep its process, and thus its scripts: in a new
    context, a page takes 2.7 s of CPU time to get ready, in one of these 1.1."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: dict[str, list[tuple[BrowserContext, Page]]] = {}
        self._taken: list[tuple[str, tuple[BrowserContext, Page]]] = []
        self._origins: set[str] = set()

    def take(self, server: str, options: dict[str, Any]) -> BrowserContext:
        """An empty context that is not in use."""
        key = repr(sorted(options.items()))
        if free := self._free.get(key):
            room = free.pop()
        else:
            context = self._browser.new_context(**options)
            context.set_default_timeout(PATIENCE_MS)
            context.on("request", self._note)
            keeper = context.new_page()
            keeper.goto(f"{server}/health")
            room = context, keeper
        self._taken.append((key, room))
        return room[0]

    def page(self, server: str, options: dict[str, Any]) -> Page:
        """An empty page in a context that is not in use. Its window and media are its own, not the context's, so that
        contexts, of which each has a process, are shared by more tests. Nothing moves in it, which would cost the more
        the busier the machine is, unless a test is about that."""
        viewport = options.get("viewport", {"width": 1280, "height": 720})
        media = {"reduced_motion": "reduce"} | {name: options[name] for name in MEDIA & options.keys()}
        rest = {name: value for name, value in options.items() if name not in {"viewport", *MEDIA}}
        page = self.take(server, rest).new_page()
        page.set_viewport_size(viewport)
        page.emulate_media(**media)
        return page

    def _note(self, request: Any) -> None:
        where = urlsplit(request.url)
        if where.scheme in ("http", "https"):
            self._origins.add(f"{where.scheme}://{where.netloc}")

    def clear(self) -> None:
        """Close the pages of every context taken, and clear what they stored."""
        for key, (context, keeper) in self._taken:
            for page in context.pages:
                if page is not keeper:
                    page.close()
            devtools = context.new_cdp_session(keeper)
            for origin in self._origins:
                devtools.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
            devtools.detach()
            self._free.setdefault(key, []).append((context, keeper))
        self._taken.clear()
        self._origins.clear()


@pytest.fixture(scope="session")
def rooms(browser: Browser) -> Rooms:
    return Rooms(browser)


@pytest.fixture
def complaints() -> list[str]:
    """What visited pages have done that none may do."""
    return []


@pytest.fixture
def visit(rooms: Rooms, server: str, complaints: list[str]) -> Iterator[Callable[..., Lab]]:
    """Opens pages, each as in a browser of its own, or as another tab ``beside`` one; none may log an error or request
    anything from another host."""
    left: set[Page] = set()

    def complain(page: Page, text: str) -> None:
        """As a page is left, Gradio ends its streams, and logs first that, then every answer that was still to come."""
        if "AbortError: signal is aborted without reason" in text:
            left.add(page)
        elif not (page in left and "Connection errored out" in text):
            complaints.append(text)

    def hear(message: Any) -> None:
        if message.type == "error":
            complain(message.page, message.text)

    def watch(request: Any) -> None:
        where = urlsplit(request.url)
        if where.scheme in ("http", "https", "ws", "wss") and where.hostname != "127.0.0.1":
            complaints.append(f"asked {request.url}")

    def start(beside: Lab | None = None, **options: Any) -> Lab:
        page = beside.page.context.new_page() if beside else rooms.page(server, options)
        page.on("console", hear)
        page.on("pageerror", lambda error: complain(page, str(error)))
        page.on("request", watch)
        page.on("domcontentloaded", lambda page: left.discard(page))
        return Lab(page, server)

    yield start
    rooms.clear()
    assert complaints == []


@pytest.fixture
def troubled(rooms: Rooms, server: str) -> Iterator[Callable[..., Lab]]:
    """Opens pages as ``visit`` does, or those of another server, which may log errors and ask other hosts: the browser
    logs every request that fails."""
    yield lambda at=server, **options: Lab(rooms.page(at, options), at)
    rooms.clear()


@pytest.fixture(scope="session")
def offline(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """A browser without a network. A page of it stays open to keep its process, and thus the scripts of saved pages."""
    context = browser.new_context(offline=True, reduced_motion="reduce", viewport={"width": 1280, "height": 720})
    context.set_default_timeout(PATIENCE_MS)
    empty = tmp_path_factory.mktemp("keeper") / "empty.html"
    empty.write_text("<!doctype html>")
    context.new_page().goto(empty.as_uri())
    yield context
    context.close()


@pytest.fixture
def alone(offline: BrowserContext) -> Iterator[Page]:
    """A page in it, when nothing is stored yet; it may log nothing, and request nothing but files that are there."""
    page, complaints = offline.new_page(), []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: complaints.append(asked.url) if asked.url.startswith("http") else None)
    page.on(
        "requestfailed",  # or the page was left while it was still loading
        lambda asked: complaints.append(asked.url) if asked.failure != "net::ERR_ABORTED" else None,
    )
    yield page
    page.close()
    offline.pages[0].evaluate("localStorage.clear()")
    assert complaints == []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One that fails is run up to twice more, and named in the summary (``-rR``): a browser on a busy machine may be
    late for reasons of its own. One that is named there again and again shows a fault, of the page or its own."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.flaky(reruns=2))
