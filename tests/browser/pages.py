"""Pages as a person uses them. The names, ids and words of a page that tests depend on are in this module."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from playwright.sync_api import Locator, Page, expect

from lab.settings import SETTINGS

TOGGLES = {name for name, one in SETTINGS.items() if one.kind == "switch"}
PAIRS = {"matched": "Matched", "mismatched": "Mismatched", "other": "Custom…"}
ENDED = re.compile("^(Finished|Done)")
"""The first word of what is said of a run that came to its end."""
STOPPED = re.compile("stopped|Stopped|[Ee]nded early")
UNREACHED = "The lab does not answer. Trying again"
POLL = 50
"""Milliseconds between two looks at a page: Playwright's own were one a frame, each of which the browser would draw."""
OVERFLOW = "[document.documentElement.scrollWidth - innerWidth, document.documentElement.scrollHeight - innerHeight]"
"""Pixels by which a page is wider and higher than its window; less than 0 by a scrollbar where there is one. On a
phone, a page that is too wide widens the window: there, ``innerWidth`` is to be looked at, too."""
CUT = "all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"
"""The texts that are cut off."""
EMPTY_SCROLLBARS = """() => [...document.querySelectorAll("body *")].filter((node) => {
  const { display, borderLeftWidth, borderRightWidth } = getComputedStyle(node);
  const bar = node.offsetWidth - node.clientWidth - parseFloat(borderLeftWidth) - parseFloat(borderRightWidth);
  return display !== "inline" && node.checkVisibility() && bar > 3 && node.scrollHeight - node.clientHeight < 4;
}).map((node) => node.outerHTML.slice(0, 100))"""
HOSTILE = "<img src=x onerror=window.pwned=1>${window.pwned=1}{{value}}</script>\u202e"
LONG = {"max_tokens": 900, "kernels": "reference"}
"""A run of seconds even on the fastest processor."""
ENDLESS = {"max_tokens": 900, "kv_cache": 0, "speculative": "off", "paged": 0}
"""A run of a minute, or of ten seconds on the fastest: no test waits for its end."""


def id_of(name: str) -> str:
    """The CSS selector of a setting's control."""
    prefix = "toggle-" if name in TOGGLES else ""
    return "#stop-strings" if name == "stop" else f"#{prefix}{name.replace('_', '-')}"


def asked(url: str) -> dict[str, str]:
    """The settings that an address has."""
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query, keep_blank_values=True).items()}


def until_asked(page: Page, **wanted: Any) -> None:
    """Wait until the address has these values; None: does not have that setting."""

    def has(url: str) -> bool:
        link = asked(url)
        return all(link.get(name) == (None if value is None else str(value)) for name, value in wanted.items())

    page.wait_for_url(has)


def is_harmless(page: Page) -> None:
    """Nothing that ``HOSTILE`` says was done."""
    assert page.evaluate("window.pwned") is None
    assert page.locator("img[src=x]").count() == 0


def unfold(page: Page, fold: str) -> None:
    """Open an accordion, and wait until its fields can be filled in."""
    page.click(f"#{fold} > button")
    page.wait_for_selector(f"#{fold} :is(input, textarea)")
    appeared(page)


def as_on_a_phone(page: Page) -> None:
    """From here on, the page is shown as on a phone that is held upright."""
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    page.context.new_cdp_session(page).send("Emulation.setDeviceMetricsOverride", phone)
    page.wait_for_function(f"innerWidth === 390 && {OVERFLOW}[0] <= 0")  # a phone zooms out on what is wider


def appeared(page: Page) -> None:
    """Gradio gives fields their values once more a frame after they have appeared, and would undo what a test, faster
    than a person, has filled in by then."""
    page.evaluate("async () => { for (let i = 0; i < 6; i++) await new Promise(requestAnimationFrame); }")


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


def link_to(page: Page, name: str) -> Locator:
    """The link in the header to another page."""
    return page.locator("nav").get_by_role("link", name=name, exact=True)


def notices(page: Page) -> Locator:
    """What the page says of a link or a file, beside it."""
    return page.locator(".toast-wrap")


class Lab:
    """The page, as a person uses it."""

    def __init__(self, page: Page, server: str) -> None:
        self.page, self.server = page, server
        self.prompt = page.locator("#prompt textarea")
        self.say = page.locator(".say")  # what the page says of the run or the moment that is shown
        self.problem = page.locator(".say.problem")  # what went wrong, when something did
        self.tip = page.locator(".tip")  # what the token under the pointer or the focus is
        self.verdict = page.locator(".verdict")  # the panel with the distributions behind a draft token
        self.written = page.locator(".token:not(.prompt)")

    def open(self, **link: Any) -> Lab:
        """Open the Lab with these settings, and its player at real time: a run is followed as it comes."""
        self.page.goto(f"{self.server}/?{urlencode({'speed': 'real'} | link)}")
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

    @property
    def link(self) -> dict[str, str]:
        """The settings in the address, but for the speed with which ``open`` begins."""
        return {name: value for name, value in asked(self.page.url).items() if (name, value) != ("speed", "real")}

    def until_asked(self, **wanted: Any) -> None:
        until_asked(self.page, **wanted)

    def control(self, name: str) -> Locator:
        return self.page.locator(id_of(name))

    def switch(self, name: str) -> Locator:
        return self.page.locator(f"{id_of(name)} input")

    def number(self, name: str) -> Locator:
        return self.page.locator(f"{id_of(name)} input[type=number]")

    def option(self, name: str, value: str) -> Locator:
        """A radio button by its value."""
        return self.page.locator(f"{id_of(name)} input[value='{value}']")

    def toggle(self, name: str) -> None:
        self.page.click(f"{id_of(name)} input")

    def choose(self, name: str, value: str) -> None:
        """Choose a radio button by its value. Waits until it is selected."""
        label = f"{id_of(name)} label:has(input[value='{value}'])"
        self.page.click(label)
        self.page.wait_for_selector(f"{label}.selected")

    def pick(self, name: str, label: str) -> None:
        """Choose an option of a dropdown; of the model pairs, by its name in ``PAIRS``."""
        self.page.click(f"{id_of(name)} input")
        self.page.click(f"[role=option]:has-text('{PAIRS.get(label, label)}')")

    def fill(self, name: str, value: object) -> None:
        """Type a number, and leave its box."""
        self.number(name).fill(str(value))
        self.page.keyboard.press("Tab")

    def tokens(self, origin: str) -> Locator:
        return self.page.locator(f".text .token.{origin}")

    def run(self) -> None:
        """Press Run and wait for the run to begin."""
        before = self.page.get_attribute(".stage", "data-run")
        self.page.click("#run")
        self.page.wait_for_function(
            "before => document.querySelector('.stage').dataset.run !== before", arg=before or "", polling=POLL
        )

    def finish(self, seconds: float = 90) -> None:
        self.page.wait_for_selector("body:not(.running)", timeout=1000 * seconds)
        drawn = """() => {
          const { dataset: { at, seq }, ariaBusy } = document.querySelector(".stage");
          return at === undefined || (at === seq && ariaBusy === "false");
        }"""
        self.page.wait_for_function(drawn, timeout=1000 * seconds)

    def ran(self, **link: Any) -> Lab:
        """Open a link, if there is one, and make a run of it to its end."""
        if link:
            self.open(**link)
        self.run()
        self.finish()
        return self

    def came_to_its_end(self, tokens: int | None = None) -> None:
        expect(self.say).to_have_text(ENDED)
        assert self.problem.count() == 0
        if tokens is not None:
            assert self.written.count() == tokens

    @property
    def instant(self) -> int:
        """The number of the frame that is shown."""
        return int(self.page.get_attribute(".stage", "data-seq"))

    @property
    def last(self) -> int:
        """The number of the last frame."""
        return int(self.page.get_attribute(".bar", "max"))

    def wait_for_instant(self, seq: int) -> None:
        """Wait until this frame is drawn."""
        self.page.wait_for_selector(f".stage[data-seq='{seq}']")

    def scrub(self, seq: int) -> None:
        self.page.locator(".bar").fill(str(seq))
        self.wait_for_instant(seq)

    def pace(self, name: str) -> None:
        """Choose how fast Play plays; "real": as it was."""
        self.page.select_option(".speed", name)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def leave_controls(self) -> None:
        """Click where nothing is, so that keys are the player's."""
        self.page.click(".story h2")

    def plays(self, playing: bool = True) -> None:
        """Wait until Play plays, or no longer does."""
        self.page.wait_for_selector(f"[data-do=play][aria-label={'Pause' if playing else 'Play'}]", timeout=60_000)

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
            "count => document.querySelectorAll('.token:not(.prompt)').length >= count", arg=count, polling=POLL
        )

    def seen(self) -> dict[str, Any]:
        """What is on the stage now: tokens counted by origin, points counted by chart and trace, squares by state and
        those that are filled.
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
              const squares = { live: 0, cached: 0, free: 0, fill: 0 };
              for (const square of document.querySelectorAll("[data-chart=blocks] .squares .square")) {
                squares[square.classList[1]] += 1;
                squares.fill += square.style.getPropertyValue("--part") > "0%";
              }
              return { tokens, numbers, pass, say, text, squares,
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
        return float(re.search(r"([\d.]+)×", self.page.inner_text(f"[data-key={readout}] .was"))[1])

    @property
    def running(self) -> bool:
        return self.page.evaluate("document.body.classList.contains('running')")


Visit = Callable[..., Lab]
