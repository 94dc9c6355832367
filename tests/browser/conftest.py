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
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests import ensure_chromium, forked
from tests.vllm import scripted_vllm
from tests.vllm.scripted_vllm import ScriptedVLLM

ROOT = Path(__file__).parents[2]
expect.set_options(timeout=30_000)  # Playwright's default for everything else
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
    "--js-flags=--no-opt,--no-maglev",  # optimizing scripts costs more than it saves on pages that are open for seconds
    "--process-per-site",  # pages of a context share compiled scripts: ready in half the time
)


OVERFLOW = "[document.documentElement.scrollWidth - innerWidth, document.documentElement.scrollHeight - innerHeight]"
"""Pixels by which a page is wider and higher than its window; less than 0 by a scrollbar where there is one. On a
phone, a page that is too wide widens the window: there, ``innerWidth`` is to be looked at, too."""


def chromium() -> str:
    """CHROMIUM, else the first on the path, else Playwright's own; without one these tests fail."""
    found = ensure_chromium.find()
    if not found:
        pytest.fail(
            "No Chromium found. Install one (Debian: apt-get install chromium; anywhere: "
            "python -m playwright install chromium), or set CHROMIUM to its path."
        )
    return found


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
    port = free_port(port)
    with log.open("w") as out:
        app = subprocess.Popen(
            [sys.executable, "app.py", "--port", str(port), *options],
            cwd=ROOT,
            env=os.environ | ALWAYS | variables,
            stdout=out,
            stderr=out,
        )
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
def serving(log: Path, *options: str, port: int = 0, host: str = "127.0.0.1", **variables: str) -> Iterator[str]:
    """The address of such a process."""
    with forking(log, *options, port=port, host=host, **variables) as (address, _):
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


def unfold(page: Page, fold: str) -> None:
    """Open an accordion, and wait until its fields can be filled in."""
    page.click(f"#{fold} > button")
    page.wait_for_selector(f"#{fold} :is(input, textarea)")
    appeared(page)


def as_on_a_phone(page: Page) -> None:
    """From here on, the page is shown as on a phone that is held upright."""
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    page.context.new_cdp_session(page).send("Emulation.setDeviceMetricsOverride", phone)


def appeared(page: Page) -> None:
    """Gradio gives fields their values once more a frame after they have appeared, and would undo what a test, faster
    than a person, has filled in by then."""
    page.evaluate("async () => { for (let i = 0; i < 6; i++) await new Promise(requestAnimationFrame); }")


class Lab:
    """The page, as a person uses it."""

    def __init__(self, page: Page, server: str) -> None:
        self.page, self.server = page, server

    def open(self, **link: Any) -> Lab:
        self.page.goto(f"{self.server}/?{urlencode(link)}" if link else self.server)
        return self.ready()

    def at(self, page: str, **link: Any) -> Page:
        """Another page, opened by its link, when its settings are applied."""
        self.page.goto(f"{self.server}/{page}?{urlencode(link)}")
        self.page.wait_for_selector("body[data-ready]")
        return self.page

    def ready(self) -> Lab:
        """Wait until the charts are drawn and the link's settings are applied."""
        self.page.wait_for_selector(".plot .main-svg", state="attached")
        self.page.wait_for_selector("body[data-ready]")
        return self

    def slow(self, latency: int = 300) -> None:
        """From here on, every answer of the server takes so many ms longer."""
        network = self.page.context.new_cdp_session(self.page)
        slow = {"offline": False, "latency": latency, "downloadThroughput": -1, "uploadThroughput": -1}
        network.send("Network.emulateNetworkConditions", slow)

    def toggle(self, name: str) -> None:
        self.page.click(f"#toggle-{name} input")

    def choose(self, name: str, label: str) -> None:
        """Choose a radio button by its label. Waits until it is selected."""
        self.page.click(f"#{name} label:has-text('{label}')")
        self.page.wait_for_selector(f"#{name} label.selected:has-text('{label}')")

    def pick(self, name: str, label: str) -> None:
        """Choose an option of a dropdown."""
        self.page.click(f"#{name} input")
        self.page.click(f"[role=option]:has-text('{label}')")

    def run(self) -> None:
        """Press Run and wait for the run to begin."""
        before = self.page.get_attribute(".stage", "data-run")
        self.page.click("#run")
        self.page.wait_for_function(
            "before => document.querySelector('.stage').dataset.run !== before", arg=before or ""
        )

    def finish(self, seconds: float = 60) -> None:
        self.page.wait_for_selector("body:not(.running)", timeout=1000 * seconds)
        drawn = """() => {
          const { dataset: { at, seq }, ariaBusy } = document.querySelector(".stage");
          return at === undefined || (at === seq && ariaBusy === "false");
        }"""
        self.page.wait_for_function(drawn, timeout=1000 * seconds)

    @property
    def instant(self) -> int:
        """The number of the frame that is shown."""
        return int(self.page.get_attribute(".stage", "data-seq"))

    def wait_for_instant(self, seq: int) -> None:
        """Wait until this frame is drawn."""
        self.page.wait_for_selector(f".stage[data-seq='{seq}']")

    def save(self, form: str, folder: Path) -> Path:
        """Save the run on the stage. Returns its file."""
        self.page.click(".save summary")
        with self.page.expect_download() as download:
            self.page.click(f"[data-save={form}]")
        path = folder / download.value.suggested_filename
        download.value.save_as(path)
        return path

    def reopen(self, file: Path) -> None:
        """Open a run's file with the page's button."""
        with self.page.expect_file_chooser() as chooser:
            self.page.click("#open")
        chooser.value.set_files(file)

    def wait_for_tokens(self, count: int) -> None:
        self.page.wait_for_function(
            "count => document.querySelectorAll('.token:not(.prompt)').length >= count", arg=count, timeout=60_000
        )

    def seen(self) -> dict[str, Any]:
        """What is on the stage now: tokens counted by origin, points counted by chart and trace.
        Without a cache, the chart of recomputed tokens replaces that of the blocks."""
        return self.page.evaluate(
            """() => {
              const points = (name) => Object.fromEntries(
                (document.querySelector(`[data-chart=${name}] .plot`).data ?? []).map(
                  (trace) => [trace.name, (trace.y ?? []).filter((y) => y !== null).length]));
              const tokens = {};
              for (const token of document.querySelectorAll(".token")) {
                const origin = token.classList[1];
                tokens[origin] = (tokens[origin] ?? 0) + 1;
              }
              const numbers = Object.fromEntries([...document.querySelectorAll(".readout")].map(
                (card) => [card.dataset.key, card.querySelector(".value").textContent]));
              const pass = document.querySelector("[data-chart=timing] .plot").data[0].x?.at(-1);
              const say = document.querySelector(".say").textContent;
              const text = [...document.querySelectorAll(".token .word")].map((word) => word.textContent).join("|");
              const second = document.querySelector(".stage").matches(".cacheless") ? "recomputed" : "blocks";
              return { tokens, numbers, pass, say, text,
                       rounds: points("rounds"), [second]: points(second), timing: points("timing") };
            }"""
        )

    def listen(self) -> None:
        """From here on, record what a screen reader announces, with the page's clock in ms: see ``heard``."""
        self.page.evaluate(
            """() => {
              window.heard = [];
              const said = { childList: true, characterData: true, subtree: true };
              for (const node of document.querySelectorAll("[role=status], output")) {
                const hear = () => node.ariaLive !== "off" && heard.push([performance.now(), node.textContent]);
                new MutationObserver(hear).observe(node, said);
              }
            }"""
        )

    @property
    def heard(self) -> list[tuple[float, str]]:
        return self.page.evaluate("heard.splice(0)")

    def ratio(self, readout: str) -> float:
        """The ratio to the previous run that a readout shows in small print."""
        return float(self.page.inner_text(f"[data-key={readout}] .was").split(" of ")[0].rpartition("×")[2])

    @property
    def running(self) -> bool:
        return self.page.evaluate("document.body.classList.contains('running')")


def background(page: Page, hidden: bool) -> None:
    """As if another tab were in front."""
    page.evaluate(
        "hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
        "document.dispatchEvent(new Event('visibilitychange')) }",
        hidden,
    )


def rests(page: Page) -> None:
    """Hide the tab, and wait until it has said that it is away."""
    with page.expect_response("**/away") as answer:
        background(page, True)
    assert answer.value.status == 204


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
            context.on("request", self._note)
            keeper = context.new_page()
            keeper.goto(f"{server}/health")
            room = context, keeper
        self._taken.append((key, room))
        return room[0]

    def page(self, server: str, options: dict[str, Any]) -> Page:
        """An empty page in a context that is not in use. Its window and media are its own, not the context's, so that
        contexts, of which each has a process, are shared by more tests."""
        viewport = options.get("viewport", {"width": 1280, "height": 720})
        media = {name: options[name] for name in MEDIA & options.keys()}
        rest = {name: value for name, value in options.items() if name not in {"viewport", *MEDIA}}
        page = self.take(server, rest).new_page()
        page.set_viewport_size(viewport)
        if media:
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
