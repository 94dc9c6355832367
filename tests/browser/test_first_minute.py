"""What a newcomer finds in the first minute: recordings that play, two runs side by side, the last runs, help, and a
page for a projector and for a phone."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.pages import Lab, Visit, asked, link_to


def test_a_switch_runs_two_settings_side_by_side_and_keys_models_words_and_settings_explain_themselves(
    visit: Visit,
) -> None:
    lab = visit().open(max_tokens=24)
    one_switch_runs_with_and_without_speculation(lab.page)
    keys_open_help_and_the_presentation(lab.page)
    models_are_named(lab)
    words_and_settings_explain_themselves(lab.page)


def one_switch_runs_with_and_without_speculation(page: Page) -> None:
    """Side by side, and both can be seen again."""
    page.click(".twice")
    expect(page.locator(".beside .lane")).to_have_count(2)  # as they are computed
    page.wait_for_selector(".faster b")
    said = page.inner_text(".faster")
    fast, slow = (float(speed.replace(",", "")) for speed in re.findall(r"([\d,.]+) tok/s", said))
    ratio = page.inner_text(".faster b")
    assert ratio == (f"{fast / slow:.1f}×" if fast > 1.1 * slow else "≈ 1×"), "also above a thousand tokens per second"
    assert re.search(r"\d+ target passes instead of \d+", said)
    assert sorted(page.locator(".beside .lane b").all_inner_texts()) == [
        "Speculative decoding: Draft",
        "Speculative decoding: Off",
    ]
    page.click("[data-close]")
    assert page.locator(".film").is_visible()
    assert page.inner_text("[data-key=pass] .value") == "1.00"
    assert "worse" in page.get_attribute("[data-key=pass] .was", "class")
    page.click(".runs summary")
    rows = page.locator(".runs tr:has(td)")
    expect(rows).to_have_count(2)
    rows.last.locator("th button").click()
    expect(page.locator("[data-key=pass] .value")).not_to_have_text("1.00")
    page.click(".runs summary")
    rows.first.get_by_text("⇄").click()
    expect(page.locator(".beside .lane")).to_have_count(2)
    page.click("[data-close]")
    page.click(".twice")  # of the run that is shown, only the other one is computed
    page.wait_for_selector(".faster b")
    expect(rows).to_have_count(3)
    page.click("[data-close]")
    page.click("#toggle-paged input")
    page.click(".twice:text('Before and after')")
    page.wait_for_selector(".faster b")
    names = page.locator(".beside .lane b").all_inner_texts()
    assert {name.partition(",")[0] for name in names} == {"Paged KV cache: off", "Paged KV cache: on"}
    page.click("[data-close]")


def keys_open_help_and_the_presentation(page: Page) -> None:
    page.keyboard.press("?")
    page.click(".help .tour")
    for stop in range(1, 6):
        assert page.inner_text(".tour-note").count(f"{stop} of 5") == 1
        page.keyboard.press("Enter")
    assert page.locator(".tour-note, .toured").count() == 0
    page.keyboard.press("p")
    assert not page.is_visible("#controls")
    assert page.locator(".charts .panel:visible").count() == 1
    assert float(page.eval_on_selector(".text", "text => parseFloat(getComputedStyle(text).fontSize)")) >= 26
    page.keyboard.press("p")
    assert page.is_visible("#controls")


def models_are_named(lab: Lab) -> None:
    """And a prompt unlike their books gets a word."""
    page = lab.page
    expect(page.locator("#models")).to_contain_text("children's books")
    assert page.locator("#models .unlike").count() == 0
    lab.prompt.fill("def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)")
    expect(page.locator("#models .unlike")).to_be_visible()


def words_and_settings_explain_themselves(page: Page) -> None:
    """With their meanings, and links to lessons."""
    said = page.locator("#meaning")
    page.hover("[data-key=gaps]")
    expect(said).to_have_text(re.compile("^Time from one token to the next.*Median and 99th"))
    page.hover(".legend .recovered .piece")
    expect(said).to_contain_text("in place of a rejected token")
    page.hover("#toggle-kv-cache label span")
    expect(said).to_contain_text("Keys and values of past tokens")
    assert page.get_attribute("#toggle-kv-cache .to-lesson", "href") == "lessons?lesson=2"
    page.focus("#toggle-paged input")
    page.keyboard.press("?")
    expect(page.locator(".help .setting")).to_contain_text("Paged KV cache")
    assert page.get_attribute(".help .setting a", "href") == "lessons?lesson=5"
    page.click(".help >> text=Glossary")
    expect(page.locator(".glossary")).to_contain_text("KV cache")


def test_who_leaves_by_the_header_and_comes_back_finds_run_and_settings(visit: Visit) -> None:
    lab = visit().ran(max_tokens=24, temperature=0.5)
    page, runs = lab.page, []
    text, speed = page.inner_text(".text"), page.inner_text("[data-key=speed] .value")
    page.on("request", lambda request: runs.append(request.url) if "/channels/" in request.url else None)
    for other in ("Memory", "Pool"):
        link_to(page, other).click()
        page.wait_for_url(f"**/{other.lower()}*")
        page.wait_for_selector("body[data-ready]")
    link_to(page, "Lab").click()
    lab.until_asked(max_tokens=24)
    lab.ready()
    assert (page.inner_text(".text"), page.inner_text("[data-key=speed] .value")) == (text, speed)
    assert lab.number("temperature").input_value() == "0.5"
    lab.came_to_its_end(24)
    assert runs == []
    link_to(page, "Lab").click()  # from the page itself: as it is at first
    page.wait_for_selector(".opening")


def test_on_a_phone_the_picture_comes_first_and_the_settings_behind_a_button(visit: Visit) -> None:
    page = visit(viewport={"width": 390, "height": 844}).at("./")
    assert page.is_visible(".film")
    assert page.is_visible("#run")
    assert not page.is_visible("#prompt")
    page.wait_for_selector(".film .card")  # the recording plays
    assert page.evaluate("scrollY") == 0
    page.click("#show-settings")
    assert page.is_visible("#prompt")
    for other, picture in (("Compare", ".lane .piece"), ("Memory", ".sheet .readouts")):
        link_to(page, other).click()
        page.wait_for_selector("body[data-ready]")
        page.wait_for_selector(picture)
        assert page.locator(picture).first.bounding_box()["y"] < 700
        assert not page.is_visible("#settings")


@pytest.mark.parametrize(
    ("address", "badge", "filled"),
    [("pool", ".recording", ".squares .cached"), ("compare", "[data-recording]", ".lanes .lane .piece.accepted")],
)
def test_other_pages_open_on_a_recording_too_unless_a_link_asks_for_something(
    visit: Visit, address: str, badge: str, filled: str
) -> None:
    lab = visit()
    page = lab.at(address)
    page.wait_for_selector(badge)
    page.wait_for_selector(filled)
    assert "run" not in asked(page.url), "a link to it would run something"
    assert page.locator(":is(.map, .race) .take").count() == 1, "it is a picture to take away"
    page = lab.at(address, seed=3)
    assert not page.is_visible(badge)
    assert page.locator(filled).count() == 0
