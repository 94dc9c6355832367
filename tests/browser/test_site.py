"""The lab as static files: exported from a shell, opened from disk without a network, played and answered."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from lab import Run
from tests import forked
from tests.browser.pages import Lab
from tests.browser.test_accessibility import violations
from tests.browser.test_lessons_page import slide

COSTS, LOSSLESS = 3, 9  # the lessons of a quick export; their answers are arithmetic: the same on every machine
HOSTILE = "<img src=x onerror=window.pwned=1>"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "a site & more"
    exported = "import runpy; runpy.run_module('lab.export', run_name='__main__')"
    reported = forked.run(exported, str(folder), "--quick")
    assert reported.returncode == 0, reported.stderr
    assert reported.stdout == f"Written: {folder / 'index.html'}\n"
    assert "[5/5] " in reported.stderr
    return folder


@pytest.fixture
def page(alone: Page, site: Path) -> Page:
    """A page at the site's index."""
    alone.emulate_media(reduced_motion="reduce")
    alone.goto((site / "index.html").as_uri())
    return alone


def test_a_recorded_run_plays(page: Page, site: Path) -> None:
    page.click("a[href*=draft-drawn]")
    run = Run.load(site / "runs" / "draft-drawn.json")
    page.wait_for_selector(".token")
    lab = Lab(page, "")
    seen = lab.seen()
    origins = [origin for event in run.events if event.kind == "committed" for origin in event.origins]
    assert {name: count for name, count in seen["tokens"].items() if name != "prompt"} == {
        name: origins.count(name) for name in set(origins)
    }
    assert run.started.hardware in page.inner_text(".notice")
    assert not page.is_visible(".save")
    page.keyboard.press("Home")
    lab.wait_for_instant(0)
    page.keyboard.press("Shift+ArrowRight")
    lab.wait_for_instant(1)
    page.locator(".bar").fill("9")
    lab.wait_for_instant(9)
    expect(page).to_have_url(re.compile(r"\?step=8$"))  # the prefill is pass 0
    page.reload()
    lab.wait_for_instant(9)
    expect(page).to_have_url(re.compile(r"\?step=8$"))
    page.keyboard.press("End")
    page.wait_for_selector(".place:has-text('end')")
    page.locator(".token.accepted").first.click()
    expect(page.locator(".verdict h2")).to_contain_text("draft token")
    expect(page.locator(".verdict .main-svg").first).to_be_visible()  # its distributions were recorded
    assert page.locator("#stage .verdict").bounding_box()["width"] > 800  # as wide as two charts


def test_a_lesson_takes_a_prediction_shows_the_run_and_marks_the_answer(page: Page) -> None:
    page.click("text=What the cache costs")
    expect(page.locator("#introduction h1")).to_contain_text("3.")
    page.click("#predict .main")
    expect(page.locator("#predict .verdict.problem")).to_be_visible()
    page.click("#predict label >> nth=0")
    page.click("#predict .main")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".observe .outcome")).to_contain_text("The small one.")
    expect(page.locator("#predict label.right")).to_contain_text("The small one.")
    expect(page.locator("#explain")).to_contain_text("0.625×")
    assert page.locator("#explain math").count() >= 4
    assert page.evaluate("document.querySelector('[data-chart=chart-0] .plot').data[0].x.length") == 3
    page.wait_for_selector("#stage .token")
    assert "$" not in page.inner_text("#explain")
    page.click("#try .main")
    expect(page.locator("#try .see")).to_contain_text("25.0%")
    slider = page.locator("#check input[type=range]")
    slider.press("End")
    page.click("#check .main")
    expect(page.locator("#check .verdict.far")).to_contain_text("16")
    slide(page, "#check", "16")
    page.click("#check .main")
    expect(page.locator("#check .verdict.near")).to_contain_text("16")
    expect(page.locator(".course summary")).to_contain_text("1 of 2")

    page.reload()
    expect(page.locator(".course summary")).to_contain_text("1 of 2")
    expect(page.locator("#predict input").nth(0)).to_be_checked()
    page.click("#run")
    expect(page.locator("#check .verdict.near")).to_contain_text("16")


def test_invalid_stored_progress_is_ignored_and_missing_storage_is_reported(page: Page) -> None:
    page.click("text=What the cache costs")
    expect(page.locator(".kept-here")).to_be_visible()
    kept = {"name": "03-what-the-cache-costs", "done": [HOSTILE], "answer": None, "prediction": [0, 77]}
    for text in (json.dumps({"format": "decode-lab-progress", "lessons": {COSTS: kept}}), "[[["):
        page.evaluate("kept => localStorage.setItem('decode-lab-course', kept)", text)
        page.reload()
        expect(page.locator("#predict section")).to_be_visible()
        expect(page.locator("#run")).to_be_disabled()
        assert page.locator("#predict input:checked").count() == 0
    page.add_init_script("Object.defineProperty(window, 'localStorage', { get() { throw new Error('blocked'); } })")
    page.reload()
    page.locator("#predict input").first.check()
    page.click("#predict .main")
    expect(page.locator(".course-say")).not_to_be_empty()
    expect(page.locator(".kept-here")).to_be_hidden()


def test_a_claim_can_be_opened_by_its_url(page: Page, site: Path) -> None:
    page.goto((site / "claims.html").as_uri() + "?claim=seventy-80gb")
    expect(page.locator("tr.claim.open .verdict.fails")).to_be_visible()
    page.wait_for_selector(".more:not([hidden]) .main-svg")
    assert page.locator(".act button:visible, .claims-actions button:visible").count() == 0
    page.locator("tr.claim.open .quote").click()
    expect(page.locator("tr.claim.open")).to_have_count(0)
    assert "claim=" not in page.url
    expect(page.locator("tr.more .none").first).not_to_be_empty()  # a quick export checks only what is arithmetic


SMALL = """[...document.querySelectorAll("nav a, button, summary, select, input[type=range]")].filter(
  (control) => control.checkVisibility() && control.getBoundingClientRect().height < 24).map((one) => one.outerHTML)"""


RECORDED_ELSEWHERE = """for (const notice of document.querySelectorAll(".notice:not(:empty)"))
  notice.textContent = "recorded on 1 of 96 CPU cores (AMD Ryzen Threadripper PRO 7995WX 96-Cores)";"""
"""The notice is the longer, the longer a processor's name is."""


def stands_for_others(path: Path) -> bool:
    """Of the runs, the pages of one without draft tokens and of one with them are looked at."""
    return path.parent.name != "runs" or path.stem in ("plain", "draft-drawn")


def test_every_page_fits_a_phone_is_accessible_and_without_javascript_says_so(
    offline: BrowserContext, browser: Browser, site: Path
) -> None:
    looked, context = offline.new_page(), browser.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    looked.set_viewport_size({"width": 360, "height": 760})
    for path in filter(stands_for_others, sorted(site.rglob("*.html"))):
        looked.goto(path.as_uri())
        looked.evaluate(RECORDED_ELSEWHERE)
        assert looked.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert looked.evaluate(SMALL) == [], path
        assert violations(looked) == [], path
        page.goto(path.as_uri())
        expect(page.locator("noscript p")).to_be_visible()
        assert page.locator("button:visible, select:visible, input:visible").count() == 0, "no dead controls"
        assert "Press Run" not in path.read_text("utf-8"), path
    looked.close()
    context.close()
