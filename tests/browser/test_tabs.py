"""More tabs than a browser opens connections to a server."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Route

from tests.browser.conftest import Lab, background, rests

Visit = Callable[..., Lab]
CONNECTIONS = 6
"""To one server, in Chromium, Firefox and Safari, as long as they speak HTTP/1.1."""


def test_any_number_of_tabs_can_be_open(visit: Visit) -> None:
    first = visit()
    labs = [first, *(visit(beside=first) for _ in range(CONNECTIONS))]
    for lab in labs:
        lab.at("" if lab is first else "deploy")
        rests(lab.page)
    with first.page.expect_request("**/heartbeat/*"):
        background(first.page, False)
    first.run()
    first.finish()
    assert first.seen()["tokens"]


def test_a_hidden_tab_stays_connected_while_it_has_something_under_way(visit: Visit) -> None:
    lab = visit().open(max_tokens=900, kernels="reference")
    said: list[str] = []
    lab.page.on("request", lambda request: request.url.endswith("/away") and said.append(request.url))
    lab.run()
    background(lab.page, True)
    lab.page.wait_for_timeout(1500)  # the tab would say it after a second
    assert lab.running
    assert not said
    with lab.page.expect_response("**/away"):
        lab.page.click("#stop")
    # Playwright reports no beacons.
    lab.page.evaluate("navigator.sendBeacon = (address) => localStorage.setItem('beacon', address)")
    lab.page.goto(f"{lab.server}/health")
    assert lab.page.evaluate("localStorage.getItem('beacon')").endswith("/gone")


def test_a_tab_that_is_closed_while_it_says_that_it_is_away_says_that_it_is_gone(visit: Visit) -> None:
    """Else the server, which sees the connection break after that, would keep its session for two hours."""
    lab = visit().open(max_tokens=5)
    held: list[Route] = []
    lab.page.route("**/away", lambda route: held.append(route))
    background(lab.page, True)
    while not held:
        lab.page.wait_for_timeout(100)
    lab.page.evaluate("navigator.sendBeacon = (address) => localStorage.setItem('beacon', address)")
    lab.page.goto(f"{lab.server}/health")
    assert str(lab.page.evaluate("localStorage.getItem('beacon')")).endswith("/gone")


def test_a_tab_may_say_twice_that_it_is_away_and_one_that_the_browser_brings_back_is_loaded_again(visit: Visit) -> None:
    """Hidden, shown and hidden again before the first answer."""
    lab = visit().open(max_tokens=5)
    page = lab.page
    held: list[Route] = []
    page.route("**/away", lambda route: held.append(route))
    for said in (1, 2):
        background(page, True)
        while len(held) < said:
            page.wait_for_timeout(100)
        background(page, False)
    background(page, True)
    for route in held:
        route.continue_()
    page.unroute("**/away")
    page.wait_for_timeout(500)  # ``visit`` fails for an error on the page
    with page.expect_request("**/heartbeat/*"):
        background(page, False)

    # The server ended its session when it was left. Playwright switches the browser's own cache of pages off.
    with page.expect_navigation():
        page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    lab.ready()
