"""A connection that breaks, is refused, dies without a word, or is slow; scripts and styles that do not come."""

from __future__ import annotations

import threading

import pytest
from playwright.sync_api import Route, expect

from tests.browser.pages import LONG, UNREACHED, Lab, Visit, background, rests
from tests.waiting import until

HASTY = """
const plain = setTimeout;
const instead = { %s };
window.setTimeout = (act, milliseconds, ...more) => plain(act, instead[milliseconds] ?? milliseconds, ...more);
"""
REFUSED = HASTY % "20000: 300, 3000: 300"  # tried again sooner
SILENT = HASTY % "3000: 300, 15000: 700, 30000: 1400"  # silence counts after less than a second, at first after two


def test_a_run_is_heard_to_its_end_although_the_connection_fails(troubled: Visit) -> None:
    lab = troubled()
    lab.page.add_init_script(SILENT)
    held: list[Route] = []

    def fail(route: Route) -> None:
        held.append(route)
        if len(held) < 3:  # by a proxy, whose server is away for a moment
            route.fulfill(status=502)
        elif len(held) > 3:  # the third is never answered
            route.continue_()

    lab.page.route("**/channels/*", fail)
    lab.open(speculative="off", max_tokens=60)
    lab.listen()
    lab.run()
    lab.finish()
    lab.came_to_its_end(60)
    said = sum(text.startswith(UNREACHED) for _, text in lab.heard)
    assert 1 <= said <= len(held) - 3, "once, not at every attempt; a slow machine may lose it again, once it was found"


def test_a_run_is_heard_although_every_answer_is_slow(troubled: Visit) -> None:
    lab = troubled()
    lab.page.add_init_script(SILENT)

    def late(route: Route) -> None:
        lab.page.wait_for_timeout(900)
        route.continue_()

    lab.page.route("**/channels/*", late)
    lab.ran(speculative="off", max_tokens=20)
    lab.came_to_its_end(20)


SAID = "getComputedStyle(document.querySelector('[data-chart=rounds] .plot'), '::before').content"


def test_text_and_numbers_do_not_wait_for_plotly_and_charts_that_do_not_come_are_said_to_be_missing(
    visit: Visit,
) -> None:
    lab, held = visit(), []
    lab.page.route("**/plotly.min.js", lambda route: held.append(route))
    lab.at("", speculative="draft", logprobs=5, max_tokens=30)
    lab.run()
    lab.page.wait_for_selector("body:not(.running)")
    expect(lab.written).to_have_count(30)
    assert lab.page.inner_text("[data-key=speed] .value") != "–"
    lab.page.locator(".text .token:is(.accepted, .recovered)").first.click()
    expect(lab.verdict).to_be_visible()
    assert len(lab.page.evaluate(SAID)) > 2
    (script,) = held  # both of the page's scripts that draw charts ask for it once
    script.continue_()
    lab.finish()
    assert lab.page.evaluate("document.querySelector('[data-chart=rounds] .plot').layout.shapes.length") == 1
    assert lab.page.evaluate("document.querySelector('.verdict .plot').data.some(({ y }) => y?.length)")
    lab.press("Escape")
    for chart in ("rounds", "blocks", "timing"):
        lab.page.wait_for_selector(f"[data-chart={chart}] .main-svg")


def test_until_the_links_settings_are_there_nothing_begins_and_the_page_says_why(troubled: Visit) -> None:
    lab = troubled()
    page = lab.page
    page.add_init_script(REFUSED)
    held: list[Route] = []
    answering = threading.Event()
    page.route("**/heartbeat/*", lambda route: route.fulfill(status=502), times=1)
    page.route("**/queue/join*", lambda route: route.continue_() if answering.is_set() else held.append(route))
    page.goto(f"{lab.server}/?max_tokens=12")
    about = page.locator(".lab-header p")
    expect(about).to_have_class("told")
    expect(page.locator("#settings")).to_have_css("visibility", "hidden")
    page.click("#run", force=True)
    page.keyboard.press("Control+Enter")
    answering.set()
    for route in held:
        route.continue_()
    lab.ready()
    expect(about).not_to_have_class("told")
    expect(page.locator("#settings")).to_have_css("visibility", "visible")
    assert page.locator(".token").count() == 0
    lab.ran()
    lab.came_to_its_end(12)


def test_a_page_that_lost_its_server_or_is_returned_to_begins_nothing_anew(visit: Visit) -> None:
    lab = visit().open(max_tokens=12, run=1)
    page, about = lab.page, lab.page.locator(".lab-header p")
    lab.written.first.wait_for()
    page.wait_for_selector("body:not(.running):not(.begun)")
    page.evaluate("sessionStorage.setItem('decode-lab-lost', 'yes')")  # as when a server was lost
    page.reload()
    lab.ready()
    expect(about).to_have_class("told")
    page.wait_for_timeout(300)
    assert page.locator(".token").count() == 0
    page.reload()  # by a person
    lab.written.first.wait_for()

    page.goto(f"{lab.server}/health")
    page.evaluate("sessionStorage.clear()")  # as where a browser keeps nothing of so long a run
    page.go_back()
    lab.ready()
    expect(about).to_have_class("told")
    page.wait_for_timeout(300)
    assert page.locator(".token").count() == 0
    lab.ran()
    expect(about).not_to_have_class("told")


BEACON = "navigator.sendBeacon = (address) => localStorage.setItem('beacon', address)"  # Playwright reports none


def gone(lab: Lab) -> bool:
    """The page that is left has told the server so."""
    lab.page.evaluate(BEACON)
    lab.page.goto(f"{lab.server}/health")
    return str(lab.page.evaluate("localStorage.getItem('beacon')")).endswith("/gone")


def test_a_hidden_tab_stays_connected_while_something_is_under_way_and_says_when_it_is_away_or_gone(
    visit: Visit,
) -> None:
    """Away, it has no connection open: a browser has six to a server, and any number of tabs."""
    lab = visit()
    page, connections = lab.page, []
    page.on("request", lambda request: connections.append(request.url))
    for over in ("requestfinished", "requestfailed"):
        page.on(over, lambda request: request.url in connections and connections.remove(request.url))
    lab.open(**LONG)
    lab.run()
    background(page, True)
    page.wait_for_timeout(1200)  # the tab would say it after a second
    assert lab.running
    assert any("heartbeat" in url for url in connections)
    with page.expect_response("**/away"):
        page.click("#stop")
    until(lambda: page.wait_for_timeout(20) or not connections)
    with page.expect_request("**/heartbeat/*"):
        background(page, False)
    rests(page)
    assert gone(lab)

    lab.open(max_tokens=5)
    # The server ended its session when it was left. Playwright switches the browser's own cache of pages off.
    with page.expect_navigation():
        page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    lab.ready()

    # Closed while it says that it is away: else the server would keep its session for two hours.
    held: list[Route] = []
    page.evaluate("localStorage.clear()")
    page.route("**/away", lambda route: held.append(route))
    background(page, True)
    until(lambda: page.wait_for_timeout(20) or held)
    assert gone(lab)


LAZY, PRELOADED, STYLE = (f"**/assets/{name}" for name in ("core-*.js", "statustracker-*.js", "index-*.css"))


@pytest.mark.parametrize(("file", "times"), [(LAZY, None), (PRELOADED, 1), (STYLE, None)])
def test_a_page_whose_scripts_or_styles_do_not_come_says_so_once(troubled: Visit, file: str, times: int | None) -> None:
    """Some browsers ask again for a script whose preload failed, and then the page is whole."""
    lab, failed = troubled(), []
    lab.page.route(file, lambda route: failed.append(route) or route.abort(), times=times)
    lab.page.goto(f"{lab.server}/?speed=real")
    if file == STYLE:
        lab.ready()
    said = lab.page.locator("p[role=alert]")
    if file == PRELOADED:
        expect(said.or_(lab.page.locator(".plot .main-svg")).first).to_be_visible(timeout=30_000)
        assert said.count() <= 1
    else:
        expect(said).to_have_count(1)
    assert failed


def test_a_request_to_another_host_is_noticed(visit: Visit, complaints: list[str]) -> None:
    """Nothing is ever asked of another host: every test whose pages ``visit`` opens and uses fails if one is."""
    lab = visit()
    lab.page.goto(f"{lab.server}/health")
    assert complaints == []
    lab.page.evaluate("fetch('http://elsewhere.invalid/font').catch(() => {})")
    until(lambda: lab.page.wait_for_timeout(20) or len(complaints) == 2)  # asked, and logged as failed
    assert complaints[0] == "asked http://elsewhere.invalid/font"
    complaints.clear()
