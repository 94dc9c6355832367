"""The Mistakes page: one card through all five steps, by keyboard, by its link, on a phone and in the dark."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.pages import OVERFLOW, Visit, as_on_a_phone, notices
from tests.browser.test_accessibility import at_rest, violations


def test_a_card_is_predicted_run_seen_repaired_and_run_again(visit: Visit) -> None:
    lab = visit(color_scheme="dark")
    page = lab.at("mistakes", card="ratio")
    expect(page.locator(".card h2")).to_contain_text("min(1, p/q)")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".progress.problem")).to_have_text("Answer both questions first.")
    page.focus("[data-ask=outcome] input[value=crash]")
    page.keyboard.press("ArrowDown")
    page.focus("[data-ask=noticed] input[value=false]")
    page.keyboard.press("Space")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#mistakes .evidence >> nth=0")).to_be_visible()
    assert "something else" in page.inner_text(".conclusion.other")
    assert page.locator("[data-ask=outcome] .right input").get_attribute("value") == "other"
    expect(page.locator(".code mark")).to_contain_text("chance = p[drafted]")
    page.wait_for_selector("[data-chart=found-ratio] .main-svg")
    assert violations(page) == []

    for place, verdict in ((2, "not this one"), (1, "right")):
        page.check(f".repair label >> nth={place} >> input")
        page.keyboard.press("Control+Enter")
        expect(page.locator(f".repair label >> nth={place} >> small")).to_contain_text(verdict)
    expect(page.locator(".repaired .conclusion.right")).to_be_visible()
    page.wait_for_selector("[data-chart=repaired-ratio] .main-svg")
    expect(page.locator(".cards-list .whole")).to_have_count(1)
    at_rest(page)

    page.click(".cards-list [data-card=blocks] a")
    lab.until_asked(card="blocks")
    expect(page.locator("#mistakes .evidence:visible")).to_have_count(0)
    lab.at("mistakes", card="<b>none</b>")
    expect(notices(page)).to_contain_text("card")
    as_on_a_phone(page)
    assert page.evaluate(OVERFLOW)[0] <= 0
