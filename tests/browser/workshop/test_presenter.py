"""The presenter's page: who leads, and what becomes of what is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, Route, expect

from tests.browser.conftest import Lab
from tests.browser.workshop.conftest import HASTY, sees, state

Visit = Callable[..., Lab]


def test_of_two_presenters_the_last_to_press_lead_leads(
    visit: Visit, presenter: BrowserContext, leading: Lab, code: str
) -> None:
    leading.run()
    leading.finish()
    lab = visit().open(join=code)
    sees(lab.page, leading.instant)

    other = Lab(presenter.new_page(), leading.server).open(seed=5, max_tokens=12)
    state(other.page, "ready")
    other.run()
    other.finish()
    other.page.click("[data-act=lead]")
    state(other.page, "leading")
    other.page.keyboard.press("Home")
    sees(lab.page, 0)

    leading.page.bring_to_front()
    leading.page.keyboard.press("ArrowLeft")
    state(leading.page, "ready")  # it learns that another presenter leads
    with leading.page.expect_response("**/workshop/presenter"):
        pass  # the message survives the next poll
    leading.page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
    assert "Another presenter leads" in leading.page.inner_text(".strip-say")
    other.page.bring_to_front()
    other.page.keyboard.press("ArrowRight")
    sees(lab.page, 1)
    assert other.page.get_attribute(".strip", "data-state") == "leading"

    leading.page.bring_to_front()
    leading.page.click("[data-act=lead]")  # takes over again
    state(leading.page, "leading")
    sees(lab.page, leading.instant)
    other.page.bring_to_front()
    other.page.wait_for_selector(".strip[data-state=ready]", timeout=15_000)  # even an idle presenter is told
    leading.page.bring_to_front()
    leading.page.keyboard.press("Home")
    sees(lab.page, 0)
    other.page.close()


def test_followers_are_told_when_the_presenter_closes_the_page_and_when_one_is_back(
    visit: Visit, presenter: BrowserContext, server: str, code: str
) -> None:
    follower = visit().open(join=code)
    says = "words => document.querySelector('.strip-say').textContent.includes(words)"
    for left in ("The presenter has left. It goes on when one comes back.", "has left: the last run stays here."):
        lab = Lab(presenter.new_page(), server).open(max_tokens=12)
        state(lab.page, "ready")
        lab.page.click("[data-act=lead]")
        state(lab.page, "leading")
        if "last run" in left:
            lab.run()
            lab.finish()
            sees(follower.page, lab.instant)
        follower.page.wait_for_function(f"!({says})('has left')")
        lab.page.close(run_before_unload=True)
        follower.page.wait_for_function(says, arg=left)
        state(follower.page, "following")
    lab = Lab(presenter.new_page(), server).open()
    state(lab.page, "ready")
    for act, then in (("lead", "leading"), ("rest", "ready")):
        lab.page.click(f"[data-act={act}]")
        state(lab.page, then)
        follower.page.wait_for_function(f"!({says})('has left')")
    lab.page.close()


def test_what_a_presenter_who_left_showed_can_still_be_used_and_saved(
    visit: Visit, presenter: BrowserContext, server: str, code: str, tmp_path: Path
) -> None:
    follower = visit().open(join=code)
    lab = Lab(presenter.new_page(), server).open(max_tokens=12, speculative="ngram")
    state(lab.page, "ready")
    lab.page.click("[data-act=lead]")
    lab.run()
    lab.finish()
    sees(follower.page, lab.instant)
    lab.page.close(run_before_unload=True)
    follower.page.wait_for_selector(".strip-say:has-text('has left: the last run stays here')")
    follower.page.click(".use")
    follower.page.wait_for_selector("#speculative label.selected:has-text('Lookup')")
    saved = json.loads(follower.save("json", tmp_path).read_text())
    assert saved["events"][0]["config"]["speculative"] == "ngram"


def test_followers_read_what_the_presenter_reads_of_a_run_saved_midway(
    visit: Visit, leading: Lab, code: str, tmp_path: Path
) -> None:
    leading.run()
    leading.finish()
    file = leading.save("json", tmp_path)
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {"events": whole["events"][:-1]}))
    leading.reopen(file)
    says = ".say:not(.problem):text-is('This run was saved while it was going on: its file ends here.')"
    leading.page.wait_for_selector(says)
    lab = visit().open(join=code)
    lab.page.wait_for_selector(says)
    tokens = ".token:not(.prompt)"
    expect(lab.page.locator(tokens)).to_have_count(leading.page.locator(tokens).count())
    lab.page.wait_for_timeout(500)
    assert lab.page.is_visible(says), "it stays"


def test_the_last_to_press_lead_leads_even_before_any_run(presenter: BrowserContext, server: str) -> None:
    one, other = (Lab(presenter.new_page(), server).open() for _ in range(2))
    for lab in (one, other):
        lab.page.bring_to_front()
        state(lab.page, "ready")
        lab.page.click("[data-act=lead]")
        state(lab.page, "leading")
    one.page.bring_to_front()
    one.page.wait_for_selector(".strip[data-state=ready] :text('Another presenter leads')", timeout=15_000)
    other.page.bring_to_front()
    other.page.click("[data-act=rest]")
    state(other.page, "ready")
    one.page.bring_to_front()
    one.page.wait_for_selector(".strip-say:has-text('You can lead')", timeout=15_000)
    for lab in (one, other):
        lab.page.close()


def test_what_is_shown_stays_when_the_presenter_closes_the_page(
    visit: Visit, presenter: BrowserContext, shown: Lab, code: str
) -> None:
    leaving = Lab(presenter.new_page(), shown.server).open(seed=5, max_tokens=900, kv_cache=0, paged=0)
    state(leaving.page, "ready")
    leaving.page.click("[data-act=lead]")
    state(leaving.page, "leading")
    lab = visit().open(join=code)
    leaving.run()
    leaving.wait_for_tokens(5)
    lab.wait_for_tokens(5)
    leaving.page.close()
    lab.page.wait_for_function("document.querySelector('.say').textContent.includes('it was stopped')", timeout=20_000)
    end = lab.instant
    state(lab.page, "following")
    lab.page.keyboard.press("Home")
    sees(lab.page, 0)
    late = visit().open(join=code)
    late.wait_for_instant(end)

    shown.page.bring_to_front()
    shown.run()
    shown.finish()
    shown.page.click("[data-act=lead]")  # another presenter takes over
    state(shown.page, "leading")
    late.page.wait_for_function(
        "run => JSON.parse(document.querySelector('.stage').dataset.run).run === JSON.parse(run).run",
        arg=shown.page.get_attribute(".stage", "data-run"),
    )
    shown.page.click("[data-act=rest]")
    state(shown.page, "ready")


def test_the_presenter_is_told_of_an_unreachable_server_and_it_is_retried(
    visit: Visit, presenter: BrowserContext, leading: Lab, code: str
) -> None:
    leading.run()
    leading.finish()
    room = presenter.new_page()
    presenter.route("**/workshop/*", lambda route: route.abort())
    leading.page.bring_to_front()
    lab = visit().open(join=code)
    leading.page.keyboard.press("Home")
    leading.page.wait_for_selector(".strip-say.problem:has-text('does not answer')", timeout=15_000)
    room.bring_to_front()
    room.goto(f"{leading.server}/room")
    room.wait_for_selector(".sheet-say.problem:has-text('does not answer')")
    assert room.is_hidden(".room-join")
    presenter.unroute("**/workshop/*")
    room.wait_for_selector(f".room-code:has-text('{code}')")
    room.close()
    leading.page.bring_to_front()
    leading.page.wait_for_selector(".strip-say:not(.problem):has-text('You lead')", timeout=15_000)
    sees(lab.page, 0)  # the instant that could not be sent arrives


def test_what_is_shown_arrives_although_a_connection_died(
    visit: Visit, presenter: BrowserContext, server: str, code: str
) -> None:
    leading = Lab(presenter.new_page(), server)
    leading.page.add_init_script(HASTY)
    leading.open(seed=3, max_tokens=24)
    state(leading.page, "ready")
    leading.page.click("[data-act=lead]")
    leading.run()
    leading.finish()
    lab = visit().open(join=code)
    sees(lab.page, leading.instant)
    leading.page.bring_to_front()
    held: list[Route] = []
    leading.page.route("**/workshop/lead", lambda route: held.append(route))  # never answered
    leading.page.keyboard.press("Home")
    leading.page.wait_for_selector(".strip-say.problem:has-text('does not answer')", timeout=10_000)
    leading.page.unroute("**/workshop/lead")
    leading.page.wait_for_selector(".strip-say:not(.problem):has-text('You lead: 1')", timeout=15_000)
    sees(lab.page, 0)
    leading.page.close()


def test_a_presenters_page_tries_again_until_the_server_answers(presenter: BrowserContext, server: str) -> None:
    page = presenter.new_page()
    page.route("**/workshop/presenter", lambda route: route.abort(), times=2)
    page.goto(server)
    page.wait_for_selector(".strip[data-state=out] .problem:has-text('does not answer')")
    page.wait_for_selector(".strip[data-state=ready]", timeout=20_000)
    page.close()
