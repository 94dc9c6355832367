"""Every page, opened and used: ``visit`` fails if a request goes to another host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Lab
from visualize.pages import PAGES

Visit = Callable[..., Lab]


def lab(page: Page) -> None:
    page.click("#run")
    page.wait_for_selector(".token.accepted", timeout=60_000)
    page.wait_for_selector("body:not(.running)", timeout=60_000)


def compare(page: Page) -> None:
    page.click("#run")
    page.wait_for_selector(".contest[data-over=true] .lane", timeout=90_000)


def lessons(page: Page) -> None:
    page.click("#predict label:has-text('about ten times as much')")
    page.click("#predict .main")
    expect(page.locator("#run")).to_be_enabled()
    page.click("#run")
    page.wait_for_selector(".observe [data-chart] .main-svg", timeout=60_000)
    page.wait_for_selector("#explain .katex")


def pool(page: Page) -> None:
    page.click("#run")
    page.wait_for_function("document.querySelector('.place').textContent.startsWith('end')", timeout=60_000)


def memory(page: Page) -> None:
    page.click("#kv-format label:has-text('INT8')")
    page.wait_for_selector("[data-chart=split] .main-svg")


def claims(page: Page) -> None:
    page.click("[data-claim=accept-by-p] .check")
    page.wait_for_selector("#claim-accept-by-p .numbers td", timeout=90_000)


def deploy(page: Page) -> None:
    page.click("#speculation label:has-text('Lookup')")
    page.wait_for_selector('.serve:has-text(\'"method": "ngram"\')')


def instructor(page: Page) -> None:
    page.wait_for_selector("#guide h1, #guide h2")


DONE = {
    "Lab": (lab, {"max_tokens": 24}),
    "Compare": (compare, {"lanes": "cache,draft-4", "repeats": 1, "max_tokens": 12}),
    "Lessons": (lessons, {"lesson": 3}),
    "Pool": (pool, {"sequences": 3, "tokens": 16}),
    "Memory": (memory, {}),
    "Claims": (claims, {}),
    "Deploy": (deploy, {}),
    "Instructor": (instructor, {}),
}
ADDRESSES = PAGES | {"Instructor": "instructor"}  # not in the header's navigation


@pytest.mark.parametrize("name", ADDRESSES)
def test_every_page_works_without_any_other_host(visit: Visit, name: str) -> None:
    do, link = DONE[name]
    opened = visit()
    query = "&".join(f"{key}={value}" for key, value in link.items())
    opened.page.goto(f"{opened.server}/{ADDRESSES[name].removeprefix('./')}?{query}")
    opened.page.wait_for_selector("body[data-ready]", timeout=60_000)
    do(opened.page)
