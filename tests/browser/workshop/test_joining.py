"""Codes and keys: how participants and presenters get in, and stay in."""

from __future__ import annotations

import json
from contextlib import suppress

from playwright.sync_api import Error, Route, expect

from tests.browser.conftest import PRESENTERS_KEY as KEY
from tests.browser.pages import Lab, Visit
from tests.browser.workshop.conftest import HASTY, PROBLEM, acts, answered, fails_once, joins, state
from visualize.pages.workshop.auth import WorkshopAuth

KEPT_KEY = "localStorage.getItem('decode-lab-key')"


def test_a_wrong_code_or_key_is_explained_and_does_not_displace_the_right_one(
    troubled: Visit, server: str, code: str
) -> None:
    page = troubled().page
    page.goto(f"{server}/room#lead=nonsense")
    expect(page.locator(PROBLEM)).to_contain_text("key")
    expect(page.locator(".room-join")).to_be_hidden()
    expect(page.locator(".squares .square")).to_have_count(0)  # outsiders do not see the room
    for right, wrong, well in (
        (f"?join={code}", "?join=AAAAA", "following"),
        (f"#lead={KEY}", "#lead=nonsense", "ready"),  # and the browser keeps a code
    ):
        page.goto(f"{server}/room{right}")
        expect(page.locator(".sheet-say")).to_contain_text("Everybody")  # it is let in
        page.goto(f"{server}/room{wrong}")
        expect(page.locator(PROBLEM)).to_contain_text("code" if "join" in wrong else "key")
        page.goto(server)
        state(page, well)
    page.evaluate("localStorage.clear()")

    sent: list[str] = []  # any key works in the address as printed
    page.on("request", lambda request: sent.append(request.post_data) if "presenter" in request.url else None)
    page.goto(f"{server}/room#lead={(key := 'pass+word&x ä 100%')}")
    page.wait_for_selector(PROBLEM)
    WorkshopAuth(key).lead(json.loads(sent[0])["key"])


def test_joining_works_in_a_tab_that_shows_the_page_with_an_old_key_when_tried_again_and_of_two_codes_the_last_counts(
    troubled: Visit, server: str, code: str
) -> None:
    page = troubled().page
    page.goto(f"{server}/room")
    page.wait_for_selector("[name=code]")
    page.evaluate("key => (location.hash = `lead=${key}`)", KEY)  # as a pasted address: the browser loads nothing
    page.wait_for_selector(".room-code:not(:empty)")
    assert "lead" not in page.url

    page.evaluate("localStorage.clear(); localStorage.setItem('decode-lab-key', 'of last week')")
    fails_once(page, "presenter")
    page.add_init_script(HASTY)
    held: list[Route] = []
    page.route("**/workshop/join", lambda route: held.append(route), times=1)  # never answered
    joins(page, server, code)
    expect(page.locator(PROBLEM)).to_have_count(0)
    assert held
    assert page.evaluate(KEPT_KEY) is None

    page.evaluate("localStorage.clear()")
    held.clear()
    page.route("**/workshop/join", lambda route: held.append(route), times=1)
    page.goto(f"{server}/room")
    for given in ("AAAAA", code):
        page.fill("[name=code]", given)
        page.keyboard.press("Enter")
    page.wait_for_selector("[name=code]", state="hidden")
    with suppress(Error):  # unless the page has given it up by now
        held[0].continue_()
    page.wait_for_timeout(300)
    assert page.is_hidden("[name=code]")
    assert page.locator(PROBLEM).count() == 0


def test_a_participant_stays_in_after_leaving_in_another_tab_and_out_although_an_answer_comes_late(
    visit: Visit, leading: Lab, code: str
) -> None:
    lab = joins(visit().page, leading.server, code)
    acts(lab.page, "alone")
    other = joins(visit(beside=lab).page, lab.server, code).page
    acts(other, "out")
    other.close()
    with lab.page.expect_event("load"):
        acts(lab.page, "settings")
    state(lab.page, "alone")
    assert "join" not in lab.page.url

    held: list[Route] = []
    for act in ("follow", "settings"):
        lab.page.route("**/workshop/join", lambda route: held.append(route), times=1)
        acts(lab.page, act)
        acts(lab.page, "out")
        while not held:
            lab.page.wait_for_timeout(20)
        answered(lab.page, held.pop())
        state(lab.page, "out")
        assert lab.page.evaluate("localStorage.getItem('decode-lab-code')") is None
        lab.page.fill("[name=code]", code)
        lab.page.keyboard.press("Enter")
        state(lab.page, "following")
        acts(lab.page, "alone")
