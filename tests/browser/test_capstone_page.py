"""The capstone's page: a case is simulated by keyboard, graded and corrected, in the dark and on a phone."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.pages import OVERFLOW, Visit, as_on_a_phone
from tests.browser.test_accessibility import violations


def test_a_case_is_simulated_graded_and_its_command_shown(visit: Visit) -> None:
    page = visit(color_scheme="dark").at("capstone", task="chat")
    expect(page.locator(".brief h1")).to_contain_text("One user")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".marks .missed >> nth=0")).to_have_text("✗ missed")
    expect(page.locator(".serve")).to_contain_text("vllm serve")
    assert violations(page) == []
    page.fill("#max-num-seqs input", "0")
    expect(page.locator(".graded.before")).to_be_visible()
    page.click(".capstone .go")
    expect(page.locator(".progress.problem")).to_contain_text("Nothing was simulated.")
    as_on_a_phone(page)
    assert page.evaluate(OVERFLOW)[0] <= 0
