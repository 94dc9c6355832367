"""What followers of a presenter see, and how they leave and come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil
from playwright.sync_api import Browser, Route

from lab.util.machine_info import describe_machine
from tests import followers
from tests.browser.conftest import PRESENTERS_KEY as KEY
from tests.browser.conftest import Lab, background
from tests.browser.workshop.conftest import answered, sees, state
from tests.waiting import until

Visit = Callable[..., Lab]


def test_followers_see_what_is_shown_until_they_go_their_own_way(visit: Visit, leading: Lab, code: str) -> None:
    lab = visit().open(join=code.lower())
    state(lab.page, "following")
    assert "join" not in lab.page.url
    assert lab.page.inner_text(".strip-say") == "You follow the presenter. Nothing is shown yet."
    assert lab.page.inner_text(".text .hint").startswith("What the presenter shows appears here")

    leading.choose("speculative", "Lookup")
    leading.run()
    leading.finish()
    end = leading.instant
    sees(lab.page, end)
    assert lab.seen()["text"] == leading.seen()["text"]
    assert not lab.running, "the follower's own Run stays available"
    settings = "KV format Native, paged blocks on, speculation Lookup, guesses a round 4, blocks in the pool 128, "
    assert lab.page.inner_text(".compared") == f"{settings}temperature 0.8, seed 3, max tokens 24"
    assert leading.page.inner_text(".compared") == ""
    lab.page.click(".use")
    lab.page.wait_for_selector("#speculative label.selected:has-text('Lookup')")
    state(lab.page, "following")

    for key in ("Home", "ArrowRight", "ArrowRight"):  # as the presenter scrubs
        leading.page.keyboard.press(key)
    for page in (leading.page, lab.page):  # a follower's page may be drawn before the presenter's own
        sees(page, 2)
    assert lab.page.inner_text(".say") == leading.page.inner_text(".say")
    assert lab.seen()["rounds"] == leading.seen()["rounds"]

    late = visit(viewport={"width": 390, "height": 844}).open(join=code)
    sees(late.page, 2)
    assert late.page.is_hidden("#controls"), "on a phone, a follower sees only the stage"
    leading.page.wait_for_function("document.querySelector('.strip-say').textContent.includes('2 follow')")

    lab.page.keyboard.press("End")  # the follower takes over the player
    state(lab.page, "alone")
    sees(lab.page, end)
    leading.page.keyboard.press("ArrowLeft")
    sees(late.page, 1)
    assert lab.instant == end
    assert lab.page.is_hidden(".strip-own"), "the run on the stage is the presenter's"
    leading.page.wait_for_function("document.querySelector('.strip-say').textContent.includes('1 person follows')")

    lab.page.click("[data-act=follow]")
    sees(lab.page, 1)
    lab.run()  # the follower's own run
    lab.finish()
    state(lab.page, "alone")
    assert lab.page.inner_text(".strip-own").startswith("your run: ")
    sees(late.page, 1)

    leading.toggle("enable-prefix-caching")  # and has not run with it yet
    leading.page.wait_for_function("location.search.includes('enable_prefix_caching=1')")
    leading.page.wait_for_timeout(500)
    lab.page.click("[data-act=settings]")
    lab.page.wait_for_url("**enable_prefix_caching=1**")
    assert "speculative=ngram" in lab.page.url
    lab.ready()
    state(lab.page, "alone")
    lab.page.wait_for_selector("#speculative label.selected:has-text('Lookup')")


def test_followers_see_a_reopened_run_and_keep_it_when_showing_stops(
    visit: Visit, leading: Lab, code: str, tmp_path: Path
) -> None:
    leading.run()
    leading.finish()
    file = leading.save("json", tmp_path)
    lab = visit().open(join=code)
    sees(lab.page, leading.instant)
    before = leading.page.get_attribute(".stage", "data-run")
    leading.reopen(file)
    leading.page.wait_for_function("before => document.querySelector('.stage').dataset.run !== before", arg=before)
    leading.finish()
    here = leading.page.get_attribute(".stage", "data-run")
    lab.page.wait_for_function(
        "run => JSON.parse(document.querySelector('.stage').dataset.run).run === JSON.parse(run).run", arg=here
    )
    sees(lab.page, leading.instant)
    assert lab.seen()["text"] == leading.seen()["text"]
    leading.page.click("[data-act=rest]")
    lab.page.wait_for_function("document.querySelector('.strip-say').textContent.includes('the last run stays')")
    leading.page.click("[data-act=lead]")
    lab.page.wait_for_function("document.querySelector('.strip-say').textContent.includes('what you see')")


def test_a_participant_with_a_run_is_not_pulled_into_following(visit: Visit, leading: Lab, code: str) -> None:
    leading.run()
    leading.finish()
    leading.page.click("[data-act=rest]")
    lab = visit().open(join=code)
    state(lab.page, "following")
    lab.run()
    lab.finish()
    state(lab.page, "alone")
    own = lab.page.get_attribute(".stage", "data-run")
    leading.page.click("[data-act=lead]")
    leading.page.keyboard.press("Home")
    leading.page.wait_for_function("document.querySelector('.strip-say').textContent.includes('You lead: 0')")
    assert lab.page.get_attribute(".stage", "data-run") == own

    lab.page.focus("[data-act=follow]")
    lab.page.keyboard.press("Enter")
    sees(lab.page, 0)
    lab.page.wait_for_selector("[data-act=alone]:focus")  # the button that had the focus is hidden
    assert "run=" not in lab.page.url


def test_the_presenters_run_is_not_mistaken_for_ones_own(visit: Visit, leading: Lab, code: str) -> None:
    """It is all pale until one's own run has something to show, which may take a while when many share an engine."""
    leading.run()
    leading.finish()
    lab = visit().open(join=code)
    sees(lab.page, leading.instant)
    held: list[Route] = []
    lab.page.route("**/channels/**", lambda route: held.append(route))
    lab.run()
    opacity = "part => Number(getComputedStyle(document.querySelector(part)).opacity)"
    for part in (".readouts", ".text", ".charts"):
        lab.page.wait_for_function(f"part => ({opacity})(part) < 0.5", arg=part)
    assert lab.page.inner_text(".say") == "Waiting for the engine … Pale parts are from before."
    for route in held:
        route.continue_()
    lab.finish()
    state(lab.page, "alone")
    assert lab.page.evaluate(f"['.readouts', '.text', '.charts'].map({opacity})") == [1, 1, 1]


def test_a_late_answer_does_not_take_the_stage_from_a_run(visit: Visit, leading: Lab, code: str) -> None:
    leading.run()
    leading.finish()
    lab, held = visit(), []
    for ask in (lambda: lab.open(join=code), lambda: lab.page.click("[data-act=follow]")):
        lab.page.route("**/workshop/join", lambda route: held.append(route), times=1)
        ask()
        lab.run()
        lab.finish()
        own = lab.page.get_attribute(".stage", "data-run")
        answered(lab.page, held.pop())
        state(lab.page, "alone")
        assert lab.page.get_attribute(".stage", "data-run") == own


def test_following_again_stops_ones_own_run(visit: Visit, leading: Lab, code: str) -> None:
    leading.run()
    leading.finish()
    lab = visit().open(join=code, max_tokens=900, kernels="reference")
    state(lab.page, "following")
    lab.run()
    lab.wait_for_tokens(3)
    lab.page.click("[data-act=follow]")
    state(lab.page, "following")
    lab.page.wait_for_selector("body:not(.running)")
    lab.run()  # the follower's own run has ended
    state(lab.page, "alone")
    lab.page.keyboard.press("Escape")
    lab.finish()

    lab.page.click("[data-act=settings]")
    lab.page.wait_for_function("!location.search.includes('900')")
    lab.ready()
    asked = parse_qs(urlsplit(lab.page.url).query)
    assert asked["max_tokens"] == ["24"]
    assert not {"run", "step"} & set(asked), "settings are taken over, but no run begins"


def test_following_again_ends_a_run_that_the_server_has_not_answered_yet(visit: Visit, leading: Lab, code: str) -> None:
    leading.run()
    leading.finish()
    lab, held = visit().open(join=code, max_tokens=900, kernels="reference"), []
    state(lab.page, "following")
    lab.page.click("[data-act=alone]")
    state(lab.page, "alone")
    lab.page.route("**/queue/join*", lambda route: held.append(route), times=1)
    lab.page.click("#run")
    until(lambda: lab.page.wait_for_timeout(20) or held)
    lab.page.click("[data-act=follow]")
    lab.page.wait_for_timeout(300)
    answered(lab.page, held.pop())
    state(lab.page, "following")
    lab.page.wait_for_selector("body:not(.begun, .running)")
    sees(lab.page, leading.instant)
    lab.page.wait_for_timeout(500)
    assert lab.page.get_attribute(".strip", "data-state") == "following"
    lab.run()  # the one before has ended
    lab.page.click("#stop")
    lab.finish()


def test_a_hidden_page_disconnects_and_catches_up_when_shown(visit: Visit, leading: Lab, code: str) -> None:
    """A browser allows six connections to a server, and every page needs one."""
    lab = visit().open(join=code)
    leading.run()
    leading.finish()
    leading.page.keyboard.press("Home")
    sees(lab.page, 0)
    background(lab.page, True)
    leading.page.wait_for_function("document.querySelector('.strip-say').textContent.includes('You lead: 0')")
    leading.page.keyboard.press("ArrowRight")
    leading.wait_for_instant(1)
    background(lab.page, False)
    sees(lab.page, 1)


def test_a_verdict_opened_by_the_presenter_opens_for_everyone(visit: Visit, leading: Lab, code: str) -> None:
    leading.run()
    leading.finish()
    lab = visit().open(join=code)
    sees(lab.page, leading.instant)
    leading.page.locator(".text .token:is(.accepted, .recovered)").first.click()
    leading.page.wait_for_selector(".verdict:not([hidden])")
    late = visit().open(join=code)
    first = leading.page.inner_text(".verdict h2")
    for page in (lab.page, late.page):
        page.wait_for_selector(f".verdict:not([hidden]) h2:has-text('{first}')")
        assert page.inner_text(".token.chosen") == leading.page.inner_text(".token.chosen")
    assert "guess=" not in lab.page.url, "the address is only about the follower's own run"

    lab.page.keyboard.press("Escape")  # a follower may close it and goes on following
    lab.page.wait_for_selector(".verdict", state="hidden")
    end = leading.instant
    leading.page.click("[data-do=back]")
    sees(lab.page, end - 1)
    state(lab.page, "following")
    assert lab.page.is_hidden(".verdict")
    assert late.page.is_visible(".verdict")

    leading.page.click("[data-verdict=on]")
    for page in (lab.page, late.page):
        page.wait_for_selector(f".verdict:not([hidden]) h2:has-text('{leading.page.inner_text('.verdict h2')}')")
    leading.page.keyboard.press("Home")  # it has not happened yet
    for page in (lab.page, late.page):
        page.wait_for_selector(".verdict", state="hidden")

    leading.page.click("[data-do=last]")
    sees(late.page, end)
    late.page.click("[data-act=alone]")  # a verdict opened while not following is their own
    late.page.locator(".text .token:is(.accepted, .recovered)").first.click()
    late.page.wait_for_selector(".verdict:not([hidden])")
    late.page.click("[data-act=follow]")
    late.page.wait_for_selector(".verdict", state="hidden")


def test_the_cost_of_followers_is_measured_while_they_follow(browser: Browser, server: str) -> None:
    """``python -m tests.followers`` in small. Of instants shown in quick succession, only the last may arrive."""
    found = followers.measure(server, psutil.Process(), KEY, browser, followers=3, hz=5, seconds=1, rounds=1)
    assert 0.5 < found["messages_arrived"] <= 1
    assert found["machine"] == describe_machine("cpu")
