"""axe-core finds nothing wrong with a round; nor with a page, at rest or with a run on it, where tests have one open.
None is cut off on a phone or on paper, and each says when it is hidden."""

from __future__ import annotations

from collections.abc import Sequence

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


VIOLATED = """async ([within, rules]) => {
  const only = rules.length ? { runOnly: { type: "rule", values: rules } } : {};
  const { violations } = await axe.run(within ?? document, { resultTypes: ["violations"], ...only });
  return violations.flatMap(({ id, nodes }) => nodes.map(({ target }) => `${id}: ${target}`));
}"""


def violations(page: Page, within: str | None = None, rules: Sequence[str] = ()) -> list[str]:
    """Of the rules of WCAG 2.2 and axe's own best practices, or of some: which one, and where, in the page or one
    element of it."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    return page.evaluate(VIOLATED, [within, list(rules)])


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


def test_every_phase_of_a_round(visit: Visit) -> None:
    """In the dark, of which only colours are looked at."""
    page = visit(viewport=PHONE, reduced_motion="no-preference").at("./")
    for rules in ([], ["color-contrast"]):
        page.click("[data-start=round]")
        stages, seen = set(), set()
        for _ in range(20):  # more than two rounds
            stages.add(stage := page.inner_text(".stages .now"))
            if (now := (stage, page.evaluate(KINDS))) not in seen:
                assert violations(page, ".film", rules) == []  # as it begins, while something moves
            seen.add(now)
            page.keyboard.press("ArrowRight")
            page.wait_for_timeout(100)
        assert stages == {"Draft", "Verify", "Accept or reject", "Commit"}
        page.click("#look")
