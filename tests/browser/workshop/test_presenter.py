"""The presenter's page: who leads, and what becomes of what is shown."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import BrowserContext, expect

from tests.browser.pages import LONG, STOPPED, Lab, Visit
from tests.browser.workshop.conftest import HASTY, PROBLEM, acts, joins, presents, sees, state


def test_followers_are_reported_when_the_presenter_closes_the_page_even_during_a_run_and_keep_what_was_shown(
    visit: Visit, presenter: BrowserContext, shown: Lab, code: str, tmp_path: Path
) -> None:
    follower = joins(visit().page, shown.server, code)
    said = follower.page.locator(".strip-say")
    leaving = presents(presenter, shown.server, speculative="ngram", seed=5, **LONG)
    acts(leaving.page, "lead")
    state(leaving.page, "leading")
    leaving.run()
    for page in (leaving, follower):
        page.wait_for_tokens(5)
    led = said.inner_text()
    leaving.page.close(run_before_unload=True)
    expect(follower.say).to_have_text(STOPPED)
    expect(said).not_to_have_text(led)
    state(follower.page, "following")
    end = follower.instant
    follower.page.click(".use")
    expect(follower.option("speculative", "ngram")).to_be_checked()
    saved = json.loads(follower.save("json", tmp_path).read_text())
    assert saved["events"][0]["config"]["speculative"] == "ngram"
    late = joins(visit().page, shown.server, code)
    late.wait_for_instant(end)

    left = said.inner_text()
    shown.page.bring_to_front()
    acts(shown.page, "lead")  # another presenter takes over
    state(shown.page, "leading")
    expect(said).not_to_have_text(left)
    late.page.wait_for_function(
        "run => JSON.parse(document.querySelector('.stage').dataset.run).run === JSON.parse(run).run",
        arg=shown.page.get_attribute(".stage", "data-run"),
    )
    acts(shown.page, "rest")
    state(shown.page, "ready")


def test_the_presenter_is_reported_of_an_unreachable_server_and_it_is_retried(
    visit: Visit, presenter: BrowserContext, server: str, code: str
) -> None:
    leading = Lab(presenter.new_page(), server)
    leading.page.add_init_script(HASTY)
    leading.page.route("**/workshop/presenter", lambda route: route.abort(), times=2)
    leading.page.goto(f"{server}/?seed=3&max_tokens=24")
    leading.page.wait_for_selector(f".strip[data-state=out] {PROBLEM}")
    state(leading.page, "ready")
    leading.ready()
    acts(leading.page, "lead")
    leading.ran()
    lab = joins(visit().page, server, code)
    sees(lab.page, leading.instant)
    room = presenter.new_page()
    presenter.route(f"{server}/workshop/*", lambda route: route.abort())
    leading.page.bring_to_front()
    leading.press("Home")
    leading.page.wait_for_selector(PROBLEM)
    room.bring_to_front()
    room.goto(f"{server}/room")
    room.wait_for_selector(PROBLEM)
    assert room.is_hidden(".room-join")
    presenter.unroute(f"{server}/workshop/*")
    room.wait_for_selector(f".room-code:has-text('{code}')")
    room.close()
    leading.page.bring_to_front()
    expect(leading.page.locator(PROBLEM)).to_have_count(0)
    sees(lab.page, 0)  # the instant that could not be sent arrives

    leading.page.close()
