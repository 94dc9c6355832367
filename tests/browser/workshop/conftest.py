"""A workshop, as its presenter and its participants see it in their browsers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from tests.browser.conftest import PATIENCE_MS
from tests.browser.conftest import PRESENTERS_KEY as KEY
from tests.browser.pages import Lab
from visualize.pages.workshop.auth import WorkshopAuth

CODE = WorkshopAuth(KEY).code
HASTY = "const { timeout } = AbortSignal; AbortSignal.timeout = () => timeout.call(AbortSignal, 3000)"
"""Doors that do not answer are given up after three seconds."""
PROBLEM = ":is(.strip-say, .sheet-say).problem"
"""What went wrong, on the bar of a page or on the room's page."""


@pytest.fixture(scope="package")
def server(hosting: str) -> str:
    """Replaces the session's server: an app that hosts a workshop."""
    return hosting


@pytest.fixture(scope="package")
def presenter(browser: Browser, server: str) -> Iterator[BrowserContext]:
    """A browser context that has the presenter's key."""
    context = browser.new_context(reduced_motion="reduce", viewport={"width": 1280, "height": 720})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(f"{server}/room#lead={KEY}")
    page.wait_for_selector(f".room-code:text-is('{CODE}')")
    assert "lead" not in page.url, "a key in the address could be read off the projection"
    page.goto("about:blank")  # else it would draw everybody's runs during all tests
    yield context
    context.close()


@pytest.fixture(scope="package")
def code(presenter: BrowserContext) -> str:
    return CODE


@pytest.fixture(scope="package")
def shown(presenter: BrowserContext, server: str) -> Lab:
    """The presenter's Lab page, with a run."""
    return presents(presenter, server, seed=3, max_tokens=24).ran()


@pytest.fixture
def leading(shown: Lab) -> Iterator[Lab]:
    """The same page while it is shown to everyone, at the end of its run."""
    shown.page.bring_to_front()
    acts(shown.page, "lead")
    state(shown.page, "leading")
    yield shown
    shown.page.bring_to_front()
    acts(shown.page, "rest")
    state(shown.page, "ready")


def presents(presenter: BrowserContext, server: str, **link: Any) -> Lab:
    """Another page of a presenter."""
    lab = Lab(presenter.new_page(), server).open(**link)
    state(lab.page, "ready")
    return lab


def joins(page: Page, server: str, code: str, **link: Any) -> Lab:
    """Join by a link, and follow."""
    lab = Lab(page, server).open(join=code, **link)
    state(page, "following")
    return lab


def sees(page: Page, seq: int) -> None:
    page.wait_for_selector(f".stage[data-seq='{seq}'][aria-busy=false]")


def state(page: Page, wanted: str) -> None:
    page.wait_for_selector(f".strip[data-state={wanted}]")


def acts(page: Page, act: str) -> None:
    """Press a button of the workshop's bar: lead, rest, follow, alone, settings, out."""
    page.click(f"[data-act={act}]")


def followed_by(page: Page, count: int) -> None:
    """Wait until the presenter's bar says how many follow."""
    expect(page.locator(".strip-say")).to_contain_text(str(count))


def fails_once(page: Page, door: str) -> None:
    """The next question at this door of the workshop is not answered."""
    page.route(f"**/workshop/{door}", lambda route: route.abort(), times=1)


def answered(page: Page, held: Route) -> None:
    """Let a request that was held be answered, and wait until the page has dealt with that."""
    with page.expect_response(lambda answer: answer.request == held.request) as response:
        held.continue_()
    response.value.finished()
    page.wait_for_timeout(200)
