"""The lab as static files: exported from a shell, opened from disk without a network, played and answered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from lab import Engine, Run
from lessons.course import course
from lessons.lesson import Curve
from lessons.marking import mark
from tests import forked
from tests.browser.pages import Lab
from tests.browser.test_accessibility import violations
from visualize.export import folder, lessons, runs
from visualize.export.answers import RECORDED
from visualize.export.pages import common_files
from visualize.pages.lessons.learner import worked_out
from visualize.pages.lessons.lesson_view import stops

COSTS, LOSSLESS = 3, 9  # the lessons of a quick export; their answers are arithmetic: the same on every machine
HOSTILE = "<img src=x onerror=window.pwned=1>"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "a site & more"
    exported = "import runpy; runpy.run_module('lab.export', run_name='__main__')"
    told = forked.run(exported, str(folder), "--quick")
    assert told.returncode == 0, told.stderr
    assert told.stdout == f"Written: {folder / 'index.html'}\n"
    assert "[5/5] " in told.stderr
    return folder


@pytest.fixture(scope="module")
def offline(browser: Browser, site: Path) -> Iterator[BrowserContext]:
    """A browser without a network. A page of it stays open to keep its process, and thus the site's scripts."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
    context.new_page().goto((site / "index.html").as_uri())
    yield context
    context.close()


@pytest.fixture
def alone(offline: BrowserContext) -> Iterator[Page]:
    """A page in it, when nothing is stored yet."""
    page = offline.new_page()
    yield page
    page.close()
    offline.pages[0].evaluate("localStorage.clear()")


@pytest.fixture
def page(alone: Page, site: Path) -> Iterator[Page]:
    """A page at the site's index; it may log nothing and request nothing but the site's own files."""
    page, complaints = alone, []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request", lambda asked: None if asked.url.startswith(site.as_uri() + "/") else complaints.append(asked.url)
    )
    page.on(
        "requestfailed", lambda asked: None if left(asked.failure) else complaints.append(f"not there: {asked.url}")
    )
    page.goto((site / "index.html").as_uri())
    yield page
    assert [text for text in complaints if not text.startswith(("data:", "blob:"))] == []


def left(failure: str | None) -> bool:
    """The request was aborted: the page was left while it was still loading."""
    return failure == "net::ERR_ABORTED"


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
    page.keyboard.press("ArrowRight")
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
    assert page.evaluate("getComputedStyle(document.querySelector('[data-do=play]')).borderTopWidth") == "1px"
    page.click("text=Runs")
    expect(page.locator("h2").first).to_have_text("Runs")


def test_a_lesson_takes_a_prediction_shows_the_run_and_marks_the_answer(page: Page) -> None:
    page.click("text=What the cache costs")
    expect(page.locator("#introduction h1")).to_contain_text("3.")
    for later in ("#run:enabled", "#explain .md", "#try section", "#check section", ".observe .found", "#stage .stage"):
        expect(page.locator(later)).to_be_hidden()
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
    expect(page.locator("#try .see")).to_contain_text("4.00×")
    slider = page.locator("#check input[type=range]")
    slider.press("End")
    page.click("#check .main")
    expect(page.locator("#check .verdict.far")).to_contain_text("16")
    slider.press("Home")
    while page.inner_text("#check output") != "16":
        slider.press("ArrowRight")
    page.click("#check .main")
    expect(page.locator("#check .verdict.near")).to_contain_text("16")
    expect(page.locator(".course summary")).to_contain_text("1 of 2")

    page.reload()
    expect(page.locator(".course summary")).to_contain_text("1 of 2")
    expect(page.locator("#predict input").nth(0)).to_be_checked()
    page.click("#run")
    expect(page.locator("#check .verdict.near")).to_contain_text("16")
    page.click("#check .onwards a")
    expect(page.locator("#introduction h1")).to_contain_text("9.")
    expect(page.locator("#run")).to_be_disabled()


def test_invalid_stored_progress_is_ignored_and_missing_storage_is_reported(page: Page) -> None:
    own = {"name": "03-what-the-cache-costs", "done": [], "answer": None}
    senseless = [
        own | {"prediction": 77},
        own | {"prediction": [0, 1]},
        own | {"prediction": "0"},
        {"name": "another", "done": ["check"], "prediction": 1},
        {"name": HOSTILE, "done": [HOSTILE], "prediction": HOSTILE},
    ]
    texts = [json.dumps({"format": "decode-lab-progress", "lessons": {COSTS: kept}}) for kept in senseless]
    page.click("text=What the cache costs")
    expect(page.locator(".kept-here")).to_be_visible()
    for text in [*texts, "[[[", "null"]:
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
    page.goto((site / "claims.html").as_uri() + "?claim=nonsense")
    expect(page.locator("tr.claim").first).to_be_visible()
    expect(page.locator("tr.claim.open")).to_have_count(0)
    expect(page.locator("tr.more .none").first).not_to_be_empty()  # a quick export checks only what is arithmetic


CURVE = {
    "kind": "curve",
    "question": "How many of so many guesses are accepted by rule C?",
    "label": "Guesses",
    "range": [0, 10],
    "x": {"label": "guesses", "at": [2, 4, 8, 16]},
    "answer": "x * rules.without_q.law_accepted",
    "tolerance": 0.5,
    "near": "As many.",
    "far": "Not as many.",
}


def refuse(pair: str) -> Engine:
    raise AssertionError("arithmetic asks for no engine")


def test_a_curve_is_marked_the_same_as_in_the_lab(alone: Page, tmp_path: Path) -> None:
    lesson = course()[LOSSLESS]
    curve = Curve.model_validate(CURVE)
    lesson = replace(lesson, front=lesson.front.model_copy(update={"predict": curve}))
    measured = {name: worked_out(one) for name, one in lesson.front.preset.experiments.items()}
    found = lessons.record(refuse, lesson, lambda step: None)
    contents = lessons.contents([LOSSLESS])
    made = lessons.page(found, contents, "Made up.")
    folder.write(tmp_path, {**common_files(), **runs.files(), **lessons.files(contents), made.path: made.html()})
    page = alone
    page.goto((tmp_path / made.path).as_uri())
    values, kinds = [value for value, _ in stops(curve)], []
    for places in ([0, 0, 0, 0], [0, 6, 0, 0], [0, 6, 12, 0]):  # one, two and three of four points are near
        for handle, place in zip(page.locator("#predict .handle").all(), places, strict=True):
            for key in ["Home", *["ArrowUp"] * place]:
                handle.press(key)
        page.click("#predict .main")
        page.click("#run")
        one = mark(curve, [values[place] for place in places], measured, source=RECORDED)
        expect(page.locator(".observe .outcome")).to_have_text(one.said)
        expect(page.locator(".observe .feedback")).to_have_text(one.feedback)
        expect(page.locator("#predict .drawing-key .right")).to_have_text("◆ calculated")
        kinds.append(page.get_attribute(".observe .outcome", "class"))
        page.evaluate("localStorage.clear()")
        page.reload()
    assert kinds == ["outcome far", "outcome far", "outcome near"]


SMALL = """[...document.querySelectorAll("nav a, button, summary, select, input[type=range]")].filter(
  (control) => control.checkVisibility() && control.getBoundingClientRect().height < 24).map((one) => one.outerHTML)"""


RECORDED_ELSEWHERE = """for (const notice of document.querySelectorAll(".notice:not(:empty)"))
  notice.textContent = "recorded on 1 of 96 CPU cores (AMD Ryzen Threadripper PRO 7995WX 96-Cores)";"""
"""The notice is the longer, the longer a processor's name is."""


ALIKE = ("plain", "draft-drawn")
"""Runs whose pages stand for those of all others: without guesses and with them."""


def test_every_page_fits_a_phone_and_is_accessible(alone: Page, site: Path) -> None:
    alone.set_viewport_size({"width": 360, "height": 760})
    for path in sorted(site.rglob("*.html")):
        alone.goto(path.as_uri())
        alone.evaluate(RECORDED_ELSEWHERE)
        assert alone.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert alone.evaluate(SMALL) == [], path
        if path.parent.name != "runs" or path.stem in ALIKE:
            assert violations(alone) == [], path


def test_without_javascript_every_page_says_so_and_shows_no_dead_controls(browser: Browser, site: Path) -> None:
    context = browser.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        expect(page.locator("noscript p")).to_be_visible()
        assert page.locator("button:visible, select:visible, input:visible").count() == 0, path
        assert "Press Run" not in path.read_text("utf-8"), path
    context.close()
