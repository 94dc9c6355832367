"""axe-core finds nothing wrong with a page, at rest or with a run on it; none is cut off on a phone or on paper, and
each says when it is hidden. Pages at rest are looked at where tests have them open."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.pages import EMPTY_SCROLLBARS, OVERFLOW, Visit, rests

PHONE = {"width": 390, "height": 844}  # where tables scroll
PAPER = {"width": 794, "height": 1123}  # A4
CUT = """() => {
  const found = [];
  const inner = document.querySelector("#view, #claims, #mistakes");
  for (let box = inner; box; box = box.parentElement)
    if (getComputedStyle(box).overflow !== "visible") found.push(box.className || box.tagName);
  return inner ? found : ["nothing to look at"];
}"""
"""The boxes around a page's contents that would be cut off: what page breaks push down would be lost."""


def violations(page: Page, within: str | None = None) -> list[str]:
    """Of the rules of WCAG 2.2 and axe's own best practices: which one, and where, in the page or one element of it."""
    found = Axe().run(page, within).response["violations"]
    return [f"{rule['id']}: {node['target']}" for rule in found for node in rule["nodes"]]


def at_rest(page: Page) -> None:
    """Nothing is wrong with this page."""
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    page.set_viewport_size(PHONE)
    assert violations(page) == []
    assert page.evaluate(OVERFLOW)[0] <= 0
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.evaluate(EMPTY_SCROLLBARS) == []
    page.set_viewport_size(PAPER)
    page.emulate_media(media="print")
    assert page.evaluate(CUT) == []
    rests(page)


KINDS = "() => [...new Set([...document.querySelectorAll('.film .card')].map((it) => it.className))].sort().join()"


@pytest.mark.parametrize("look", ["light", "dark"])
def test_every_phase_of_a_round(visit: Visit, look: str) -> None:
    page = visit(viewport=PHONE, color_scheme=look, reduced_motion="no-preference").at("./")
    page.click("[data-start=round]")
    stages, seen = set(), set()
    for _ in range(20):  # more than two rounds
        stages.add(stage := page.inner_text(".stages .now"))
        if (now := (stage, page.evaluate(KINDS))) not in seen:
            assert violations(page, ".film") == []  # as it begins, while something moves
        seen.add(now)
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(100)
    assert stages == {"Draft", "Verify", "Accept or reject", "Commit"}


def test_a_run_and_an_open_verdict(visit: Visit) -> None:
    lab = visit().ran(max_tokens=24, logprobs=5)
    aloud = lab.page.locator("div.text").aria_snapshot()
    marks = [mark for mark in lab.page.locator("div.text .above").all_inner_texts() if mark]
    assert marks
    assert not [mark for mark in marks if mark[0] in aloud], "a text that is read aloud has no marks between its words"
    assert aloud.count("paragraph: ") == 1, "all of it, spaces included, is one paragraph"
    lab.tokens("accepted").first.click()
    lab.verdict.locator(".main-svg").first.wait_for(state="attached")
    assert violations(lab.page) == []
