"""Taking the presenter's settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import BrowserContext, Page, Route

from tests.browser.conftest import Lab
from tests.browser.workshop.conftest import state

Visit = Callable[..., Lab]


def begin_to_lead(presenter: BrowserContext, server: str, **link: Any) -> Lab:
    """A presenter's page of its own, which leads and has run nothing."""
    lab = Lab(presenter.new_page(), server).open(**link)
    state(lab.page, "ready")
    lab.page.click("[data-act=lead]")
    lab.page.wait_for_function("/You lead: [0-9]/.test(document.querySelector('.strip-say').textContent)")
    return lab


def on_their_own(troubled: Visit, server: str, code: str) -> Page:
    """The page of somebody who has joined and then left what is shown."""
    page = troubled().page
    page.goto(f"{server}/?join={code}")
    state(page, "following")
    page.click("[data-act=alone]")
    return page


def stop_leading(lab: Lab) -> None:
    lab.page.bring_to_front()
    # It asks to lead first, and may still wait for the answer to that.
    with lab.page.expect_response(lambda answer: '"rest":true' in (answer.request.post_data or "")):
        lab.page.click("[data-act=rest]")
    lab.page.close()


def test_settings_can_be_taken_before_the_presenter_has_run_anything(
    visit: Visit, presenter: BrowserContext, server: str, code: str
) -> None:
    leads = begin_to_lead(presenter, server)
    with leads.page.expect_response(lambda answer: "speculative=ngram" in (answer.request.post_data or "")):
        leads.choose("speculative", "Lookup")
    lab = visit().open(join=code, temperature=0.3)
    state(lab.page, "following")
    lab.page.click("[data-act=alone]")
    lab.page.click("[data-act=settings]")
    lab.page.wait_for_url("**speculative=ngram**")
    lab.ready()
    state(lab.page, "alone")
    lab.page.wait_for_selector("#speculative label.selected:has-text('Lookup')")
    assert "temperature" not in lab.page.url
    stop_leading(leads)


def test_without_a_presenter_ones_own_settings_and_run_stay(
    visit: Visit, presenter: BrowserContext, server: str, code: str
) -> None:
    stop_leading(begin_to_lead(presenter, server))
    lab = visit().open(join=code, temperature=0.3, max_tokens=900, kernels="reference")
    state(lab.page, "following")
    lab.run()
    lab.wait_for_tokens(3)
    own = lab.page.get_attribute(".stage", "data-run")
    lab.page.click("[data-act=settings]")
    lab.page.wait_for_selector(".strip-say.problem:has-text('Nobody leads now')")
    assert "temperature=0.3" in lab.page.url
    state(lab.page, "alone")
    if lab.running:  # unless it has come to its end meanwhile
        lab.page.keyboard.press("Escape")
    lab.finish()
    assert lab.page.get_attribute(".stage", "data-run") == own
    assert lab.page.locator(".token:not(.prompt)").count() >= 3


def test_the_presenters_settings_can_be_asked_for_again_when_the_server_did_not_answer(
    troubled: Visit, leading: Lab, server: str, code: str
) -> None:
    page = on_their_own(troubled, server, code)
    page.route("**/workshop/join", lambda route: route.abort(), times=1)
    page.click("[data-act=settings]")
    page.wait_for_selector(".strip[data-state=alone] .problem:has-text('does not answer')")
    with page.expect_event("load"):
        page.click("[data-act=settings]")
    state(page, "alone")


def test_who_took_the_settings_is_on_their_own_although_the_server_answers_later(
    troubled: Visit, leading: Lab, server: str, code: str
) -> None:
    page = on_their_own(troubled, server, code)
    asked: list[Route] = []

    def lose_the_second(route: Route) -> None:
        asked.append(route)
        if len(asked) == 2:  # the first is for the settings
            route.abort()
        else:
            route.continue_()

    page.route("**/workshop/join", lose_the_second)
    page.click("[data-act=settings]")
    page.wait_for_selector(".strip[data-state=out] .problem:has-text('does not answer')")
    page.wait_for_selector(".strip:is([data-state=following], [data-state=alone])", timeout=15_000)
    page.wait_for_timeout(500)
    state(page, "alone")
    page.click("[data-act=follow]")
    state(page, "following")
    page.reload()
    state(page, "following")
