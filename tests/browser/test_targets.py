"""Every page for whoever has no mouse, a large finger, or bad eyes: one visit each, measured in the page."""

from __future__ import annotations

import pytest

from tests.browser.pages import Visit
from tests.browser.test_accessibility import PHONE, at_rest, violations

SMALL = """(least) => {
  const usable = "a[href], button, input, select, textarea, summary, [role=button]";
  const found = new Set();
  for (const node of document.querySelectorAll(usable)) {
    const target = node.matches("input:is([type=radio], [type=checkbox], [type=file])") ? node.closest("label") : node;
    if (!target?.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    const { display, clipPath } = getComputedStyle(target);
    if (clipPath !== "none" || (target.matches("a") && display === "inline")) continue; // a skip link; a link in a text
    const { width, height } = target.getBoundingClientRect();
    if (width && height && Math.min(width, height) < least - 0.5)
      found.add(`${target.tagName} ${target.id || target.ariaLabel || target.textContent}: ${width} x ${height}`);
  }
  return [...found];
}"""
"""Targets with less than so many pixels."""
TINY = """() => [...document.querySelectorAll(".mark, .above, s, del")]
  .filter((node) => node.checkVisibility() && node.textContent.trim())
  .filter((node) => parseFloat(getComputedStyle(node).fontSize) < 13)
  .map((node) => node.outerHTML)"""
"""Marks and struck text of less than 13 px."""
NAMES = """() => [...document.querySelectorAll("[aria-label]")].map((node) => node.ariaLabel)"""
LISTS = """() => [...document.querySelectorAll("[role=listbox], details.menu[open]")]
  .filter((it) => it.checkVisibility()).length"""
NOT_OURS = ("number input for", "range slider for", "Reset to default", "Plotly", "Gradio")
SHIFTED = """() => new Promise((done) => {
  let sum = 0;
  new PerformanceObserver((list) => {
    for (const { value, hadRecentInput } of list.getEntries()) sum += hadRecentInput ? 0 : value;
  }).observe({ type: "layout-shift", buffered: true });
  setTimeout(() => done(sum), 100);
})"""
"""How much has moved since the page was opened: the cumulative layout shift."""
RUNS = {"./": "run", "compare": "run", "pool": "run", "claims": "check-all"}
"""Pages on which something can be run, and the button's id or class."""
AT_REST = ("./", "compare", "memory")
"""Pages that no other test looks at in the dark, on a phone and on paper."""


@pytest.mark.parametrize("path", [*RUNS, "lessons", "memory", "deploy", "glossary", "instructor"])
def test_a_page(visit: Visit, path: str) -> None:
    page = visit(viewport={"width": 1280, "height": 720}).at(path)
    page.wait_for_timeout(200)
    assert page.evaluate(SHIFTED) < 0.03, "what comes later has its place"
    page.keyboard.press("Tab")
    if path in RUNS:
        page.keyboard.press("Enter")
        assert RUNS[path] in page.evaluate("document.activeElement.id + document.activeElement.className")
        page.focus(".lab-header nav a")
    for _ in range(16 if path == "./" else 4):
        page.keyboard.press("Tab")
        assert page.evaluate(LISTS) == 0, "a list opened because it got the focus"
    assert page.evaluate(SMALL, 24) == []
    assert page.evaluate(TINY) == []
    assert [name for name in page.evaluate(NAMES) if any(words in name for words in NOT_OURS)] == []
    assert violations(page) == []
    if path in AT_REST:
        page.click("#look")  # the rest in the dark
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(200)
    assert page.evaluate(SMALL, 44) == []
    if path in AT_REST:
        at_rest(page)


def test_run_is_within_ten_stops_without_a_skip_link_and_keys_lead_through_pages_and_lists(visit: Visit) -> None:
    lab = visit().open()
    page, models = lab.page, lab.page.locator("#pair input")
    for _ in range(10):
        lab.press("Tab")
        if page.evaluate("document.activeElement.id") == "run":
            break
    assert page.evaluate("document.activeElement.id") == "run"
    focused = page.locator("nav a:focus")
    page.focus("nav a[tabindex='0']")
    for key, name in (("ArrowRight", "Compare"), ("End", "Deploy"), ("ArrowLeft", "Mistakes"), ("Home", "Lab")):
        lab.press(key)
        assert focused.inner_text() == name

    page.focus("#pair input")  # a list that Tab reached opens by key and by click
    lab.press("Shift+Tab", "Tab")
    assert models.evaluate("node => node === document.activeElement")
    lab.press("ArrowDown", "ArrowDown", "Enter")
    page.wait_for_function("location.search.includes('pair=')")
    lab.press("Shift+Tab", "Tab")
    models.click()
    page.click("[role=option]:has-text('Matched')")
    lab.until_asked(pair=None)
