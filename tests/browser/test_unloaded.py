"""Scripts and styles that do not come, once or at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import Lab

Visit = Callable[..., Lab]
ENTRY, LAZY, PRELOADED, STYLE, PARTS_STYLE = (
    f"**/assets/{name}" for name in ("index-*.js", "core-*.js", "statustracker-*.js", "index-*.css", "HTML-*.css")
)


def without(troubled: Visit, file: str, times: int | None) -> tuple[Lab, list[Route]]:
    """A page for which the first ``times`` requests for a file fail, or all, and those requests."""
    lab = troubled()
    failed: list[Route] = []

    def fail(route: Route) -> None:
        failed.append(route)
        route.abort()

    lab.page.route(file, fail, times=times)
    lab.page.goto(lab.server)
    return lab, failed


@pytest.mark.parametrize("file", [ENTRY, LAZY])
def test_a_page_whose_scripts_do_not_come_says_so_once(troubled: Visit, file: str) -> None:
    lab, _ = without(troubled, file, None)
    told = "The lab did not come whole. Is the server still running? Load this page again."
    expect(lab.page.locator("p[role=alert]")).to_have_text([told])


@pytest.mark.parametrize("file", [PRELOADED, STYLE, PARTS_STYLE])
def test_what_fails_once_and_then_comes_is_not_missed(troubled: Visit, file: str) -> None:
    lab, failed = without(troubled, file, 1)
    lab.ready()
    assert len(failed) == 1
    assert lab.page.locator("p[role=alert]").count() == 0


@pytest.mark.parametrize("file", [STYLE, PARTS_STYLE])
def test_a_page_works_without_a_style_and_says_so(troubled: Visit, file: str) -> None:
    lab, failed = without(troubled, file, None)
    lab.ready()
    expect(lab.page.locator("p[role=alert]")).to_have_count(1)
    assert len(failed) == 2
