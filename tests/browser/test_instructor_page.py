"""The Instructor page: answers are blank until they are measured, here or on the Lessons page."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from itertools import pairwise

from playwright.sync_api import Route, expect

from tests.browser.conftest import Lab, as_on_a_phone

Visit = Callable[..., Lab]
COSTS = 3  # a lesson whose answers are arithmetic, over in a second


def test_answers_are_measured_on_request_and_the_page_fits_a_phone_and_prints_in_full(visit: Visit) -> None:
    page = visit().at("instructor")
    expect(page).to_have_title("Instructor · Decode Lab")
    expect(page.get_by_role("heading", level=1)).to_have_text("Teaching this course")  # the only one
    assert "0:03\t1. Decoding one token at a time" in page.inner_text("#guide table >> nth=0")
    assert page.locator(".told .katex-error").count() == 0
    lossless = page.locator("#lesson-9")
    expect(lossless).to_contain_text("▢")
    page.click(".teaching li:has-text('Why it is lossless') .measure")
    expect(lossless).not_to_contain_text("▢", timeout=60_000)
    expect(lossless.locator("blockquote").first).to_have_text("A and C.")
    expect(page.locator("#lesson-8")).to_contain_text("▢")
    when = page.eval_on_selector_all(".teaching a[href^='#lesson-']", "links => links.map((link) => link.title)")
    assert [re.sub(r" \d.*", "", title) for title in when] == ["Not measured yet"] * 8 + ["Measured"] + [
        "Not measured yet"
    ] * 3
    page.click(".teaching a:has-text('All together')")
    expect(page.locator("#lesson-12 h2")).to_be_in_viewport()
    page.keyboard.press("Tab")
    expect(page.locator("#lesson-12 a").first).to_be_focused()
    held: list[Route] = []
    answering = threading.Event()
    page.route("**/queue/join*", lambda route: route.continue_() if answering.is_set() else held.append(route))
    page.reload()
    every = page.locator("[data-does=measure]")
    every.click(force=True)  # before the page knows its lessons
    expect(every).to_be_disabled()
    answering.set()
    for route in held:
        route.continue_()
    page.wait_for_selector("body[data-ready]")
    expect(every).to_be_enabled()
    expect(lossless.locator("blockquote").first).to_have_text("A and C.")
    page.wait_for_timeout(500)
    expect(page.locator("#lesson-8")).to_contain_text("▢")
    assert page.inner_text(".teaching .progress") == ""

    as_on_a_phone(page)
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    at = page.locator(".told td:first-child").filter(has_text=re.compile(r"^\d:\d\d$"))
    lines = """cells => cells.map((cell) => {
      const text = document.createRange();
      text.selectNodeContents(cell);
      return text.getClientRects().length;
    })"""
    assert set(at.evaluate_all(lines)) == {1}, "a time is not broken in two"
    page.emulate_media(media="print")
    expect(page.locator("#controls")).to_be_hidden()
    expect(page.locator("#lesson-12 h2")).to_be_visible()
    assert page.evaluate(
        "document.querySelector('#view').scrollHeight <= document.querySelector('#view').clientHeight + 1"
    )


def test_a_learners_results_are_filled_in_and_measuring_is_heard_and_can_be_stopped(visit: Visit) -> None:
    lab = visit()
    page = lab.at("lessons", lesson=COSTS)
    page.click("#predict label:has-text('Both about the same')")
    page.click("#predict .main")
    page.click("#run:enabled")
    page.wait_for_selector(".observe .outcome:visible", timeout=60_000)
    page.click(".course-about a")
    page.wait_for_url("**/instructor")
    page.wait_for_selector("body[data-ready]")
    expect(page.locator(f"#lesson-{COSTS} blockquote").first).to_have_text("The small one.")
    page.click("[data-does=measure]")
    page.wait_for_selector(".teaching .progress:text-matches('tokens')")
    page.focus("[data-does=stop]")
    page.keyboard.press("Escape")
    expect(page.locator(".teaching .progress")).to_contain_text("Stopped after ", timeout=20_000)
    expect(page.locator("[data-does=stop]")).to_be_focused()
    expect(page.locator("[data-does=measure]")).to_be_enabled()

    lab.listen()  # screen readers hear the progress now and then, without its tokens
    page.click(".teaching li:has-text('When it pays') .measure")
    page.wait_for_selector(".teaching .progress:text-matches('tokens')", timeout=60_000)
    twice = "heard.filter(([, text]) => /warming up|repeat/.test(text)).length >= 2"
    page.wait_for_function(twice, polling=200, timeout=60_000)
    page.click("[data-does=stop]")
    page.wait_for_selector(".teaching .heard:text-matches('Stopped after ')", state="attached", timeout=20_000)
    assert page.inner_text(".teaching .progress").startswith("Stopped after ")
    *under_way, _ = lab.heard
    assert not any("tokens" in text for _, text in under_way)
    assert all(later - before > 2400 for (before, _), (later, _) in pairwise(under_way))
