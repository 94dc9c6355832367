"""Codes and keys: how participants and presenters get in, and stay in."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Route

from tests.browser.conftest import PRESENTERS_KEY as KEY
from tests.browser.conftest import Lab
from tests.browser.workshop.conftest import HASTY, answered, state
from visualize.pages.workshop.auth import WorkshopAuth

Visit = Callable[..., Lab]


def test_a_wrong_code_and_a_wrong_key_are_explained(troubled: Visit) -> None:
    lab = troubled().open(join="AAAAA")
    lab.page.wait_for_selector(".strip-say.problem")
    assert "not this workshop's code" in lab.page.inner_text(".strip-say")
    state(lab.page, "out")
    lab.page.goto(f"{lab.server}/#lead=nonsense")
    lab.page.wait_for_selector('.strip-say.problem:has-text("not this workshop\'s key")')
    lab.page.goto(f"{lab.server}/room#lead=nonsense")
    lab.page.wait_for_selector(".sheet-say.problem")
    assert "not this workshop's key" in lab.page.inner_text(".sheet-say")
    assert lab.page.is_hidden(".room-join")
    assert lab.page.inner_text(".squares .hint").startswith("Join")  # outsiders do not see the room


def test_a_wrong_key_or_code_does_not_displace_the_right_one(troubled: Visit, server: str, code: str) -> None:
    page = troubled().page
    for right, wrong, well in (
        (f"?join={code}", "?join=AAAAA", "following"),
        (f"#lead={KEY}", "#lead=nonsense", "ready"),  # and the browser keeps a code
    ):
        page.goto(f"{server}/{right}")
        state(page, well)
        for path, says in ("room", ".sheet-say"), ("", ".strip-say"):
            page.goto(f"{server}/{path}{wrong}")
            page.wait_for_selector(f"{says}.problem")
        page.goto(server)
        state(page, well)
        page.evaluate("localStorage.removeItem('decode-lab-key')")


@pytest.mark.parametrize("answers", ["at once", "when asked again"])
def test_who_keeps_an_old_key_joins_by_link(troubled: Visit, server: str, code: str, answers: str) -> None:
    page = troubled().page
    page.goto(f"{server}/health")
    page.evaluate("localStorage.setItem('decode-lab-key', 'of last week')")
    if answers != "at once":
        page.route("**/workshop/presenter", lambda route: route.abort(), times=1)
    page.goto(f"{server}/?join={code}")
    page.wait_for_selector(".strip[data-state=following]", timeout=15_000)
    assert page.evaluate("localStorage.getItem('decode-lab-key')") is None


def test_any_key_works_in_the_address_as_printed(troubled: Visit, server: str) -> None:
    page = troubled().page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.post_data) if "presenter" in request.url else None)
    for key in ("pass+word&x", "100%", "ä b", "a%41b"):
        page.goto("about:blank")  # else the browser, which shows that page already, loads nothing
        asked.clear()
        page.goto(f"{server}/room#lead={key}")
        page.wait_for_selector(".sheet-say.problem")
        WorkshopAuth(key).lead(json.loads(asked[0])["key"])


@pytest.mark.parametrize("path", ["", "room"])
def test_the_presenters_link_also_works_in_a_tab_that_shows_the_page(troubled: Visit, server: str, path: str) -> None:
    page = troubled().page
    page.goto(f"{server}/{path}")
    page.wait_for_selector("text=Join with the code on the presenter's screen")
    page.evaluate("key => (location.hash = `lead=${key}`)", KEY)  # as a pasted address: the browser loads nothing
    page.wait_for_selector(".strip[data-state=ready], .room-code:not(:empty)")
    assert "lead" not in page.url


def test_a_participant_stays_in_after_leaving_in_another_tab(visit: Visit, leading: Lab, code: str) -> None:
    lab = visit().open(join=code)
    state(lab.page, "following")
    other = lab.page.context.new_page()
    for act, then in (("follow", "following"), ("settings", "alone")):
        other.goto(f"{lab.server}/?join={code}")
        state(other, "following")
        lab.page.bring_to_front()
        lab.page.click("[data-act=alone]")
        other.bring_to_front()
        other.click("[data-act=out]")
        lab.page.bring_to_front()
        if act == "follow":
            lab.page.click("[data-act=follow]")
        else:
            with lab.page.expect_event("load"):
                lab.page.click("[data-act=settings]")
        state(lab.page, then)
    assert "join" not in lab.page.url


def test_a_workshop_needs_nothing_that_the_browser_keeps(troubled: Visit, leading: Lab, server: str, code: str) -> None:
    page = troubled().page
    denied = "{ get() { throw new DOMException('denied', 'SecurityError') } }"
    for store in ("localStorage", "sessionStorage"):
        page.add_init_script(f"Object.defineProperty(window, '{store}', {denied})")
    page.route("**/workshop/join", lambda route: route.abort(), times=1)
    page.goto(f"{server}/?join={code}")
    page.wait_for_selector(".strip-say.problem:has-text('does not answer')")
    page.wait_for_selector(".strip[data-state=following]", timeout=15_000)
    page.click("[data-act=alone]")
    page.click("[data-act=follow]")
    state(page, "following")
    page.click("[data-act=alone]")
    with page.expect_event("load"):
        page.click("[data-act=settings]")
    state(page, "following")

    page.route("**/workshop/presenter", lambda route: route.abort(), times=1)
    page.goto(f"{server}/room#lead={KEY}")
    page.wait_for_selector(".sheet-say.problem:has-text('does not answer')")
    page.wait_for_selector(".room-code:not(:empty)")


@pytest.mark.parametrize(("path", "says"), [("", "You follow"), ("room", "Everybody's runs")], ids=["lab", "room"])
def test_joining_is_tried_again_when_a_connection_died(
    troubled: Visit, server: str, code: str, path: str, says: str
) -> None:
    page = troubled().page
    page.add_init_script(HASTY)
    held: list[Route] = []
    page.route("**/workshop/join", lambda route: held.append(route), times=1)  # never answered
    page.goto(f"{server}/{path}?join={code}")
    page.wait_for_selector(":is(.strip-say, .sheet-say).problem:has-text('does not answer')", timeout=10_000)
    page.wait_for_selector(f':is(.strip-say, .sheet-say):not(.problem):has-text("{says}")', timeout=15_000)


@pytest.mark.parametrize("path", ["", "room"], ids=["lab", "room"])
def test_of_two_codes_the_last_counts_whichever_is_answered_last(
    troubled: Visit, server: str, code: str, path: str
) -> None:
    page = troubled().page
    held: list[Route] = []
    page.route("**/workshop/join", lambda route: held.append(route), times=1)
    page.goto(f"{server}/{path}")
    page.fill("[name=code]", "AAAAA")
    page.keyboard.press("Enter")
    page.fill("[name=code]", code)
    page.keyboard.press("Enter")
    page.wait_for_selector("[name=code]", state="hidden")
    answered(page, held[0])
    assert page.is_hidden("[name=code]")
    assert page.locator(":is(.strip-say, .sheet-say).problem").count() == 0


def test_who_left_stays_out_although_an_answer_comes_late(visit: Visit, leading: Lab, code: str) -> None:
    lab, held = visit().open(join=code), []
    for act in ("follow", "settings"):
        state(lab.page, "following")
        lab.page.click("[data-act=alone]")
        lab.page.route("**/workshop/join", lambda route: held.append(route), times=1)
        lab.page.click(f"[data-act={act}]")
        lab.page.click("[data-act=out]")
        answered(lab.page, held.pop())
        state(lab.page, "out")
        assert lab.page.evaluate("localStorage.getItem('decode-lab-code')") is None
        lab.page.fill("[name=code]", code)
        lab.page.keyboard.press("Enter")
