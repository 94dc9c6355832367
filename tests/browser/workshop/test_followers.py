"""What followers of a presenter see, and how they leave, take settings, and come back."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import Route, expect

from tests.browser.pages import LONG, Lab, Visit, background, until_asked
from tests.browser.workshop.conftest import (
    acts,
    answered,
    followed_by,
    joins,
    sees,
    state,
)
from tests.waiting import until


def run_of(lab: Lab) -> str:
    return lab.page.get_attribute(".stage", "data-run")


def test_followers_see_what_is_shown_until_they_go_their_own_way(visit: Visit, leading: Lab, code: str) -> None:
    lab = joins(visit().page, leading.server, code.lower())
    assert "join" not in lab.page.url
    leading.choose("speculative", "ngram")
    leading.ran()
    end = leading.instant
    sees(lab.page, end)
    assert lab.seen()["text"] == leading.seen()["text"]
    assert not lab.running, "the follower's own Run stays available"
    assert lab.page.inner_text(".compared")  # the settings of what is shown
    lab.page.click(".use")
    expect(lab.option("speculative", "ngram")).to_be_checked()
    state(lab.page, "following")

    leading.press("Home", "Shift+ArrowRight", "Shift+ArrowRight")  # as the presenter scrubs
    for page in (leading.page, lab.page):  # a follower's page may be drawn before the presenter's own
        sees(page, 2)
    assert lab.say.inner_text() == leading.say.inner_text()
    assert lab.seen()["rounds"] == leading.seen()["rounds"]

    late = joins(visit(viewport={"width": 390, "height": 844}).page, leading.server, code)
    sees(late.page, 2)
    assert late.page.is_hidden("#controls"), "on a phone, a follower sees only the stage"
    followed_by(leading.page, 2)
    lab.press("End")  # the follower takes over the player
    state(lab.page, "alone")
    sees(lab.page, end)
    leading.press("Shift+ArrowLeft")
    sees(late.page, 1)
    assert lab.instant == end
    assert lab.page.is_hidden(".strip-own"), "the run on the stage is the presenter's"
    followed_by(leading.page, 1)

    # A browser allows six connections to a server, and every page needs one: a hidden page disconnects.
    background(late.page, True)
    followed_by(leading.page, 0)
    leading.press("Shift+ArrowRight")
    leading.wait_for_instant(2)
    background(late.page, False)
    sees(late.page, 2)
    late.page.close()

    with leading.page.expect_response(lambda answer: "prefix_caching" in (answer.request.post_data or "")):
        leading.toggle("enable_prefix_caching")  # and has not run with it yet
    acts(lab.page, "settings")
    until_asked(lab.page, enable_prefix_caching=1, speculative="ngram")
    lab.ready()
    state(lab.page, "alone")
    leading.toggle("enable_prefix_caching")
    leading.choose("speculative", "draft")
    leading.ran()


def test_a_reopened_run_is_seen_kept_when_showing_stops_and_nobody_with_a_run_is_pulled_in(
    visit: Visit, leading: Lab, code: str, tmp_path: Path
) -> None:
    """A run that was saved midway, too, of which followers read what the presenter reads."""
    file = leading.save("json", tmp_path)
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {"events": whole["events"][:-1]}))
    lab = joins(visit().page, leading.server, code)
    sees(lab.page, leading.instant)
    before = leading.say.inner_text()
    leading.reopen(file)
    expect(leading.say).not_to_have_text(before)
    leading.finish()
    expect(lab.say).to_have_text(leading.say.inner_text())
    sees(lab.page, leading.instant)
    assert lab.seen()["text"] == leading.seen()["text"]
    said = lab.page.inner_text(".strip-say")
    acts(leading.page, "rest")
    expect(lab.page.locator(".strip-say")).not_to_have_text(said)
    assert lab.written.count() == leading.written.count()

    # What is shown is pale until one's own run has something to show, which may take a while in a full room.
    held: list[Route] = []
    lab.page.route("**/channels/**", lambda route: held.append(route), times=1)
    lab.run()
    opacity = "part => Number(getComputedStyle(document.querySelector(part)).opacity)"
    for part in (".readouts", ".text", ".charts"):
        lab.page.wait_for_function(f"part => ({opacity})(part) < 0.5", arg=part)
    held.pop().continue_()
    lab.finish()
    state(lab.page, "alone")
    assert lab.page.evaluate(f"['.readouts', '.text', '.charts'].map({opacity})") == [1, 1, 1]
    own = run_of(lab)
    acts(leading.page, "lead")
    state(leading.page, "leading")
    leading.press("Home")
    followed_by(leading.page, 0)
    assert run_of(lab) == own
    lab.page.focus("[data-act=follow]")
    lab.press("Enter")
    sees(lab.page, 0)
    lab.page.wait_for_selector("[data-act=alone]:focus")  # the button that had the focus is hidden
    assert "run" not in lab.link
    leading.ran()

    lab.page.route("**/workshop/join", lambda route: held.append(route), times=1)
    acts(lab.page, "alone")
    acts(lab.page, "follow")
    lab.ran()
    own = run_of(lab)
    answered(lab.page, held.pop())  # too late to take the stage from one's own run
    state(lab.page, "alone")
    assert run_of(lab) == own


def test_following_again_stops_ones_own_run_even_one_that_the_server_has_not_answered_yet(
    visit: Visit, leading: Lab, code: str
) -> None:
    lab, held = joins(visit().page, leading.server, code, **LONG), []
    lab.run()
    lab.wait_for_tokens(3)
    acts(lab.page, "follow")
    state(lab.page, "following")
    lab.page.wait_for_selector("body:not(.running)")
    acts(lab.page, "alone")
    lab.page.route("**/queue/join*", lambda route: held.append(route), times=1)
    lab.page.click("#run")
    until(lambda: lab.page.wait_for_timeout(20) or held)
    acts(lab.page, "follow")
    answered(lab.page, held.pop())
    state(lab.page, "following")
    lab.page.wait_for_selector("body:not(.begun, .running)")
    sees(lab.page, leading.instant)
    state(lab.page, "following")
    lab.run()  # the one before has ended
    lab.page.click("#stop")
    lab.finish()
    acts(lab.page, "settings")
    until_asked(lab.page, max_tokens=24, run=None, step=None)  # settings are taken over, but no run begins


def test_a_verdict_opened_by_the_presenter_opens_for_everyone(visit: Visit, leading: Lab, code: str) -> None:
    lab, late = (joins(visit().page, leading.server, code) for _ in range(2))
    sees(lab.page, leading.instant)
    leading.page.locator(".text .token:is(.accepted, .recovered)").first.click()
    expect(leading.verdict).to_be_visible()
    title = "h2"
    for follower in (lab, late):
        expect(follower.verdict.locator(title)).to_have_text(leading.verdict.locator(title).inner_text())
        assert follower.page.inner_text(".token.chosen") == leading.page.inner_text(".token.chosen")
    assert "guess" not in lab.link, "the address is only about the follower's own run"

    lab.press("Escape")  # a follower may close it and goes on following
    expect(lab.verdict).to_be_hidden()
    end = leading.instant
    leading.page.click("[data-do=back]")
    sees(lab.page, end - 1)
    state(lab.page, "following")
    assert lab.verdict.is_hidden()
    assert late.verdict.is_visible()
    leading.page.click("[data-verdict=on]")
    for follower in (lab, late):
        expect(follower.verdict.locator(title)).to_have_text(leading.verdict.locator(title).inner_text())
    leading.press("Home")  # it has not happened yet
    for follower in (lab, late):
        expect(follower.verdict).to_be_hidden()
