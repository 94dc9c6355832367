"""The room page: everybody's blocks, and nobody's text."""

from __future__ import annotations

import json
import re

from playwright.sync_api import Page, expect

from tests.browser.pages import LONG, OVERFLOW, Lab, Visit, background
from tests.browser.test_accessibility import violations
from tests.browser.workshop.conftest import PROBLEM, acts, joins
from tests.waiting import until
from visualize.jobs.sse_channel import END

OVER = {"content_type": "text/event-stream", "body": END}
"""A channel that is gone."""


def chosen(room: Page) -> set[str]:
    """The runs that the room shows as one's own, when it shows some run."""
    room.wait_for_selector(".chips[data-state=running] li")
    marked = room.locator(".chip.chosen b").all_inner_texts()
    assert room.is_visible(".room-mine") == (marked != [])
    assert (room.locator(".squares .square.chosen").count() > 0) == (marked != [])
    return set(marked)


def number(lab: Lab) -> str:
    """The number by which the room knows this page's run."""
    own = lab.page.locator(".strip-own")
    expect(own).to_have_text(re.compile(r"\d"))
    return own.inner_text().split()[-1]


def value(room: Page, key: str) -> int:
    return int(room.inner_text(f"[data-key={key}] .value"))


def test_the_room_shows_everyones_blocks_and_nobodys_text_and_marks_ones_own(visit: Visit, code: str) -> None:
    one, other = visit().open(join=code, prompt="A beautiful garden", **LONG), visit().open(join=code, **LONG)
    room = one.page.context.new_page()  # in the same browser, it marks one's own blocks
    room.goto(f"{one.server}/room")
    room.wait_for_selector("body[data-ready]")
    for lab in (one, other):
        lab.run()
    room.wait_for_function(
        "new Set([...document.querySelectorAll('.squares .square.own')].map((square) => square.textContent)).size === 2"
    )
    until(lambda: room.wait_for_timeout(20) or value(room, "running") == 2)
    for lab in (one, other):
        lab.wait_for_tokens(1)
    assert {number(lab) for lab in (one, other)} == set(room.locator(".chips[data-state=running] b").all_inner_texts())
    assert "garden" not in room.content()
    if one.running:  # not on a machine that is faster than this page
        assert chosen(room) <= {number(one)}
    assert room.is_hidden(".room-join")
    for lab in (one, other):
        lab.press("Escape")  # does nothing if the run is over
        lab.finish()
    expect(room.locator("[data-key=running] .value")).to_have_text("0")
    assert room.locator(".squares .square.own").count() == 0

    # A restarted server numbers runs from 0 again: the room of before gave this number, and it is somebody else's now.
    room.evaluate(
        "localStorage.setItem('decode-lab-number', `${parseInt(localStorage['decode-lab-number']) + 2} before`)"
    )
    room.reload()
    other.run()
    assert chosen(room) == set()
    other.press("Escape")
    room.close()
    another = {"room": "another"}
    one.page.route("**/workshop/join", lambda route: route.fulfill(json=route.fetch().json() | another))
    acts(one.page, "follow")
    expect(one.page.locator(".strip-own")).to_be_hidden()


def test_a_room_page_keeps_one_connection_and_rejoins_after_the_server_restarts(troubled: Visit, code: str) -> None:
    lab = troubled()
    page = lab.page
    page.add_init_script(
        """window.opened = [];
        window.EventSource = class extends EventSource {
          constructor(...where) {
            super(...where);
            if (this.url.includes("/channels/")) opened.push(this);
          }
        };"""
    )
    page.goto(f"{lab.server}/room")
    page.fill("[name=code]", code)
    for count in (1, 2):  # joined twice
        page.evaluate("document.querySelector('.strip-join').requestSubmit()")
        page.wait_for_function("n => opened.length === n && opened.at(-1).readyState === EventSource.OPEN", arg=count)
    assert page.evaluate("opened[0].readyState === EventSource.CLOSED")
    page.wait_for_function("Number(document.querySelector('[data-key=followers] .value').textContent) >= 0")

    background(page, True)
    page.route("**/channels/*", lambda route: route.fulfill(**OVER))
    with page.expect_response("**/workshop/join"):  # so it rejoins
        background(page, False)
    page.unroute("**/channels/*")
    page.wait_for_selector(".squares .square")


def test_followers_and_the_room_say_that_the_server_does_not_answer(troubled: Visit, leading: Lab, code: str) -> None:
    follower = troubled().page
    room = follower.context.new_page()
    joins(follower, leading.server, code)
    room.goto(f"{leading.server}/room")
    room.wait_for_selector(".squares .square")
    for page in (follower, room):
        background(page, True)
        page.route("**/channels/*", lambda route: route.fulfill(status=502))
        background(page, False)
        page.wait_for_selector(PROBLEM)
        page.unroute("**/channels/*")
        expect(page.locator(PROBLEM)).to_have_count(0)
    shown = json.loads(leading.page.get_attribute(".stage", "data-run"))["run"]
    follower.route(f"**/channels/{shown}?*", lambda route: route.fulfill(**OVER))  # as if it were forgotten
    follower.reload()
    expect(follower.locator(".say.problem")).to_contain_text("server")  # not that one should press Run


CUT = """() => [...document.querySelectorAll('.readout .label')]
  .filter((label) => label.scrollWidth > label.clientWidth).map((label) => label.textContent)"""
UNDER_ARROWS = """() => [...document.querySelectorAll('#lists input')].filter((input) => {
  const text = Object.assign(document.createElement('canvas').getContext('2d'), { font: getComputedStyle(input).font });
  const arrow = input.parentElement.querySelector('path').getBoundingClientRect();
  return input.getBoundingClientRect().left + text.measureText(input.value || input.placeholder).width > arrow.left;
}).map((input) => input.ariaLabel)"""


def test_the_pages_fit_the_screen_and_are_accessible(troubled: Visit, server: str, code: str) -> None:
    page = troubled().page
    for address in (f"{server}/?join={code}", f"{server}/room"):
        page.set_viewport_size({"width": 1280, "height": 720})
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        page.wait_for_selector(".strip[data-state=following], .room .squares")
        assert max(page.evaluate(OVERFLOW)) <= 0, address
        assert page.evaluate(UNDER_ARROWS) == [], "what the Lab's lists are called"
        page.set_viewport_size({"width": 1366, "height": 625})
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_function("document.querySelector('.say').getBoundingClientRect().bottom <= innerHeight")
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_function(f"{OVERFLOW}[0] <= 0")
        assert page.evaluate(CUT) == [], address
        assert violations(page) == [], address
