"""Scripts and styles that do not come, once or at all."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.browser.conftest import Lab

ENTRY, LAZY, PRELOADED, STYLE, PARTS_STYLE = (
    f"**/assets/{name}" for name in ("index-*.js", "core-*.js", "statustracker-*.js", "index-*.css", "HTML-*.css")
)


def without(browser: Browser, server: str, file: str, times: int | None) -> tuple[Lab, list[Route]]:
    """A page for which the first ``times`` requests for a file fail, or all, and those requests."""
    lab = Lab(browser.new_page(), server)  # not ``visit``: the browser logs each as an error
    failed: list[Route] = []

    def fail(route: Route) -> None:
        failed.append(route)
        route.abort()

    lab.page.route(file, fail, times=times)
    lab.page.goto(server)
    return lab, failed


@pytest.mark.parametrize("file", [ENTRY, LAZY])
def test_a_page_whose_scripts_do_not_come_says_so_once(browser: Browser, server: str, file: str) -> None:
    lab, _ = without(browser, server, file, None)
    told = "The lab did not come whole. Is the server still running? Load this page again."
    expect(lab.page.locator("p[role=alert]")).to_have_text([told])
    lab.page.close()


@pytest.mark.parametrize("file", [PRELOADED, STYLE, PARTS_STYLE])
def test_what_fails_once_and_then_comes_is_not_missed(browser: Browser, server: str, file: str) -> None:
    lab, failed = without(browser, server, file, 1)
    lab.ready()
    assert len(failed) == 1
    assert lab.page.locator("p[role=alert]").count() == 0
    lab.page.close()


@pytest.mark.parametrize("file", [STYLE, PARTS_STYLE])
def test_a_page_works_without_a_style_and_says_so(browser: Browser, server: str, file: str) -> None:
    lab, failed = without(browser, server, file, None)
    lab.ready()
    expect(lab.page.locator("p[role=alert]")).to_have_count(1)
    assert len(failed) == 2
    lab.page.close()
