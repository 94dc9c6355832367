"""A connection that breaks, is refused, dies without a word, or is slow."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import Lab

Visit = Callable[..., Lab]
UNREACHED = "The lab does not answer. Trying again …"
HASTY = """
const plain = setTimeout;
const instead = { %s };
window.setTimeout = (act, milliseconds, ...more) => plain(act, instead[milliseconds] ?? milliseconds, ...more);
"""
REFUSED = HASTY % "3000: 300, 15000: 600_000"  # tried again sooner, and not because of silence
SILENT = HASTY % "15000: 700"  # silence counts after less than a second
SLOW = HASTY % "15000: 700, 30000: 1400"


@pytest.mark.parametrize(("trouble", "hasty"), [("refused", REFUSED), ("silent", SILENT)], ids=["refused", "silent"])
def test_a_run_is_heard_to_its_end_although_the_connection_fails(troubled: Visit, trouble: str, hasty: str) -> None:
    lab = troubled()
    lab.page.add_init_script(hasty)
    held: list[Route] = []

    def fail(route: Route) -> None:
        held.append(route)
        if trouble == "refused" and len(held) < 3:  # by a proxy, whose server is away for a moment
            route.fulfill(status=502)
        elif trouble == "silent" and len(held) == 1:
            pass  # never answered
        else:
            route.continue_()

    lab.page.route("**/channels/*", fail)
    lab.open(speculative="off", max_tokens=100)
    lab.listen()
    lab.run()
    lab.finish()
    said = [text for _, text in lab.heard]
    assert said.count(UNREACHED) == 1, "once, not at every attempt"
    assert "The lab answers again." in said[said.index(UNREACHED) :]
    assert re.match(r"Finished with 100 tokens", said[-1]), said
    assert len(held) == (3 if trouble == "refused" else 2)
    assert lab.page.locator(".token:not(.prompt)").count() == 100


def stream(lab: Lab, speak: str) -> None:
    """From here on, the page's streams are its own instead of the server's, counted in ``opened``. Each does what the
    script ``speak`` says, which gets the stream and returns the timer that closing it ends."""
    lab.page.evaluate(
        """(speak) => {
          window.opened = 0;
          window.EventSource = class extends EventTarget {
            static CLOSED = 2;
            constructor() {
              super();
              window.opened += 1;
              this.timer = eval(speak)(this);
            }
            close() { clearTimeout(this.timer); } // or an interval: their numbers are of one kind
          };
        }""",
        speak,
    )


def test_a_run_is_heard_although_every_answer_begins_late(troubled: Visit) -> None:
    lab = troubled()
    lab.page.add_init_script(SLOW)

    def late(route: Route) -> None:
        lab.page.wait_for_timeout(900)
        route.continue_()

    lab.page.route("**/channels/*", late)
    lab.open(speculative="off", max_tokens=20)
    lab.run()
    lab.page.wait_for_selector(".say:text-matches('^Finished with 20 tokens')", timeout=10_000)


def test_a_run_is_heard_although_every_answer_begins_at_once_and_its_first_message_is_slow(troubled: Visit) -> None:
    lab = troubled()
    lab.page.add_init_script(SLOW)
    lab.open(speculative="off", max_tokens=20)
    stream(
        lab,
        """(stream) => {
          setTimeout(() => stream.onopen());
          const message = { data: '{"stopped": "It has come."}', lastEventId: "0" };
          return setTimeout(() => stream.onmessage(message), 900);
        }""",
    )
    lab.run()
    lab.page.wait_for_selector(".say:text-is('It has come.')", timeout=10_000)


def test_a_stream_that_only_says_that_it_is_alive_is_kept(troubled: Visit) -> None:
    lab = troubled()
    lab.page.add_init_script(SILENT)
    lab.open(speculative="off", max_tokens=20)
    stream(lab, "(stream) => setInterval(() => stream.dispatchEvent(new Event('alive')), 300)")
    lab.run()
    lab.page.wait_for_timeout(2000)
    assert lab.page.evaluate("opened") == 1
    assert lab.page.inner_text(".say") != UNREACHED


SAID = "getComputedStyle(document.querySelector('[data-chart=rounds] .plot'), '::before').content"


def test_text_and_numbers_do_not_wait_for_plotly(visit: Visit) -> None:
    lab, held = visit(), []
    lab.page.route("**/plotly.min.js", lambda route: held.append(route))
    lab.page.goto(f"{lab.server}/?speculative=draft&logprobs=5&max_tokens=30")
    lab.page.wait_for_selector("body[data-ready]")
    lab.run()
    lab.page.wait_for_selector("body:not(.running)")
    lab.page.wait_for_selector(".say:text-matches('^Finished with 30 tokens')")
    assert lab.page.locator(".token:not(.prompt)").count() == 30
    assert lab.page.inner_text("[data-key=speed] .value") != "–"
    lab.page.locator(".text .token:is(.accepted, .recovered)").first.click()
    lab.page.wait_for_selector(".verdict:not([hidden])")
    assert lab.page.evaluate(SAID) == '"Loading the charts …"'
    (script,) = held  # both of the page's scripts that draw charts ask for it once
    script.continue_()
    lab.finish()
    assert lab.page.evaluate("document.querySelector('[data-chart=rounds] .plot').layout.shapes.length") == 1
    assert lab.page.evaluate("document.querySelector('.verdict .plot').data.some(({ y }) => y?.length)")
    lab.page.keyboard.press("Escape")
    lab.page.wait_for_selector(".verdict", state="hidden")
    for chart in ("rounds", "blocks", "timing"):
        lab.page.wait_for_selector(f"[data-chart={chart}] .main-svg")


def test_charts_that_cannot_be_loaded_are_said_to_be_missing(troubled: Visit) -> None:
    lab = troubled()
    lab.page.route("**/plotly.min.js", lambda route: route.abort())
    lab.page.goto(f"{lab.server}/?max_tokens=10")
    lab.page.wait_for_selector("body[data-ready]")
    lab.run()
    lab.page.wait_for_selector(".say:text-matches('^Finished')")
    assert "could not be loaded" in lab.page.evaluate(SAID)


def test_the_connection_by_which_a_tab_is_known_is_asked_for_again(troubled: Visit) -> None:
    lab = troubled()
    lab.page.add_init_script(REFUSED)
    asked: list[Route] = []

    def refuse_once(route: Route) -> None:
        asked.append(route)
        if len(asked) == 1:
            route.fulfill(status=502)
        else:
            route.continue_()

    lab.page.route("**/heartbeat/*", refuse_once)
    with lab.page.expect_response(lambda answer: "/heartbeat/" in answer.url and answer.ok):
        lab.open()
    assert len(asked) == 2


def test_until_the_links_settings_are_there_nothing_begins_and_the_page_says_why(visit: Visit) -> None:
    lab = visit()
    page = lab.page
    page.add_init_script(HASTY % "20000: 300")
    held: list[Route] = []
    answering = threading.Event()
    page.route("**/queue/join*", lambda route: route.continue_() if answering.is_set() else held.append(route))
    page.goto(f"{lab.server}/?speculative=off&max_tokens=12")
    about = page.locator(".lab-header p")
    expect(about).to_have_text("The server has not answered yet. If it stays so, load this page again.")
    expect(page.locator("#settings")).to_have_css("pointer-events", "none")
    page.click("#run", force=True)
    page.keyboard.press("Control+Enter")
    answering.set()
    for route in held:
        route.continue_()
    lab.ready()
    expect(about).to_have_text("A language model decoding with nothing hidden: guesses, verdicts, cache, time.")
    expect(page.locator("#settings")).not_to_have_css("pointer-events", "none")
    assert page.locator(".token").count() == 0
    lab.run()
    lab.finish()
    assert lab.seen()["say"].startswith("Finished with 12 tokens")


def test_a_page_that_lost_its_server_begins_nothing_anew_when_it_is_loaded_again(visit: Visit) -> None:
    lab = visit().open(max_tokens=12, run=1)
    page = lab.page
    page.wait_for_selector("body[data-ready]:not(.running):not(.begun) .token:not(.prompt)")
    page.evaluate("sessionStorage.setItem('decode-lab-lost', 'yes')")  # as answers.js does
    page.reload()
    lab.ready()
    said = "The connection was lost, and this page was loaded again. Whatever ran has ended."
    expect(page.locator(".lab-header p")).to_have_text(said)
    page.wait_for_timeout(500)
    assert page.locator(".token").count() == 0
    page.reload()  # by a person
    page.wait_for_selector(".token:not(.prompt)")
    page.evaluate("sessionStorage.setItem('decode-lab-lost', 'yes')")
    lab.open(max_tokens=14, run=1)  # a link that was followed instead
    page.wait_for_selector(".token:not(.prompt)")


def test_a_page_that_is_returned_to_begins_nothing_by_itself(visit: Visit) -> None:
    lab = visit().open(max_tokens=12, run=1)
    page, about = lab.page, lab.page.locator(".lab-header p")
    page.wait_for_selector("body[data-ready]:not(.running):not(.begun) .token:not(.prompt)")
    page.goto(f"{lab.server}/compare?run=0")
    page.wait_for_selector("body[data-ready]")
    page.go_back()
    lab.ready()
    expect(about).to_have_text("You came back to this page. Its run has not been started again.")
    page.wait_for_timeout(500)
    assert page.locator(".token").count() == 0
    lab.run()
    expect(about).to_have_text("A language model decoding with nothing hidden: guesses, verdicts, cache, time.")
    lab.finish()
    page.go_forward()  # to a link that asks for no run
    page.wait_for_selector("body[data-ready]")
    expect(about).not_to_have_class("told")
