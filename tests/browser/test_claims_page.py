"""The Claims page: arithmetic is checked at once, measurements on request, and a link opens a claim."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from playwright.sync_api import Locator, Page, expect

from lab.claims import CLAIMS
from tests.browser.pages import OVERFLOW, Lab, Visit, as_on_a_phone, notices
from tests.browser.test_accessibility import at_rest
from visualize.pages.claims.checks import recorded


def opened(lab: Lab, **link: Any) -> Page:
    page = lab.at("claims", **link)
    page.wait_for_selector(".verdict.fails")  # what is calculated is there at once
    return page


def verdict(page: Page, claim: str, found: str) -> None:
    page.wait_for_selector(f"[data-claim={claim}] .verdict.{found}")


def verdicts(page: Page) -> dict[str, str]:
    return page.evaluate(
        """Object.fromEntries([...document.querySelectorAll(".claim")].map(
          (row) => [row.dataset.claim, row.querySelector(".verdict").className.split(" ")[1]]))"""
    )


def part(page: Page, claim: str, which: str) -> Locator:
    return page.locator(f"[data-claim={claim}] .{which}")


def numbers(page: Page, claim: str) -> list[list[str]]:
    return page.eval_on_selector_all(
        f"#claim-{claim} .numbers tbody tr", "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )


def test_arithmetic_is_checked_at_once_measurements_on_request_and_all_until_stopped(visit: Visit) -> None:
    lab = visit(color_scheme="dark")
    page = opened(lab)
    arithmetic = {name for name, claim in CLAIMS.items() if claim.arithmetic}
    before = verdicts(page)
    assert list(before) == list(CLAIMS)
    known = arithmetic | set(recorded())
    assert {name for name, found in before.items() if found != "unchecked"} == known
    assert page.inner_text(".tally .unchecked b") == str(len(CLAIMS) - len(known))
    part(page, "seventy-80gb", "quote").click()
    assert "80 GB" in str(numbers(page, "seventy-80gb"))
    lab.until_asked(claim="seventy-80gb")
    page.wait_for_selector("[data-chart=seventy-80gb] .main-svg")

    part(page, "accept-by-p", "check").focus()
    page.keyboard.press("Enter")
    expect(part(page, "accept-by-p", "check")).to_have_text("Check again", timeout=60_000)
    verdict(page, "accept-by-p", "part")
    page.wait_for_selector("body:not(.running)")
    measured = numbers(page, "accept-by-p")
    assert {kind for _, _, kind in measured} == {"measured", "formula"}
    after = verdicts(page)
    assert {name for name in after if after[name] != before[name]} <= {"accept-by-p"}

    # Results last as long as the tab and the server, also where there is a recorded one.
    assert {"accept-by-p", "ladder"} <= set(recorded())
    page.goto(f"{lab.server}/health")
    kept = "JSON.parse(sessionStorage.getItem('decode-lab-claims'))"
    failed = f"const kept = {kept}; kept.checked.ladder = {{problem: 'No.'}}; return JSON.stringify(kept)"
    page.evaluate(f"sessionStorage.setItem('decode-lab-claims', (() => {{{failed}}})())")
    opened(lab)
    verdict(page, "accept-by-p", "part")
    part(page, "accept-by-p", "quote").click()
    assert numbers(page, "accept-by-p") == measured
    problem = part(page, "ladder", "why.problem")
    expect(problem).to_have_text("No.")
    part(page, "ladder", "check").click()
    expect(part(page, "ladder", "why:not(.problem)")).to_have_text(re.compile(r"\d+ of"))
    page.click(".check-stop")
    expect(problem).to_have_text("No.")
    page.evaluate(f"sessionStorage.setItem('decode-lab-claims', JSON.stringify({{...{kept}, server: 'another'}}))")
    page.reload()
    page.wait_for_selector("[data-claim=seventy-80gb] .verdict.fails")
    assert verdicts(page)["accept-by-p"] == before["accept-by-p"]

    # All of them are checked, which can be stopped.
    page.wait_for_selector("body[data-ready]")
    said, halt = page.locator(".claims-say"), page.locator(".check-stop")
    expect(halt).to_have_attribute("aria-disabled", "true")
    lab.listen()
    lab.press("Control+Enter")
    expect(said).to_have_text(re.compile(rf"\b2 of {len(CLAIMS)}\b.*\d+ of"))
    expect(page.locator(".claim.now")).to_have_count(1)
    expect(part(page, "ladder", "check")).to_have_attribute("aria-disabled", "true")
    halt.focus()
    lab.press("Enter")
    expect(halt).to_have_attribute("aria-disabled", "true")
    expect(said).to_have_text(re.compile(rf"\d+ of {len(CLAIMS)}"))
    expect(halt).to_be_focused()
    page.wait_for_function(f"document.querySelector('.heard').textContent.includes('of {len(CLAIMS)}')")
    *under_way, _ = lab.heard
    assert all(later - before > 2400 for (before, _), (later, _) in pairwise(under_way)), "steps are not all announced"
    assert verdicts(page)["both-ten"] == before["both-ten"]
    expect(part(page, "ladder", "check")).to_have_attribute("aria-disabled", "false")
    at_rest(page)


def test_a_link_opens_its_claim_and_the_page_fits_the_screen(visit: Visit) -> None:
    lab = visit()
    page = opened(lab, claim="memory-share")
    page.wait_for_selector("#claim-memory-share .main-svg")
    expect(page.locator(".more:not([hidden])")).to_have_count(1)
    expect(page.locator("[data-claim=memory-share]")).to_be_in_viewport()
    part(page, "both-ten", "quote").click()
    lab.until_asked(claim="both-ten")
    part(page, "memory-share", "quote").click()
    part(page, "both-ten", "quote").click()
    lab.until_asked(claim=None)
    page = opened(lab, claim="<b>none</b>")
    expect(notices(page)).to_contain_text("claim")
    part(page, "seventy-4gb", "quote").click()
    page.wait_for_selector("#claim-seventy-4gb .main-svg")
    drawn = "plot => plot.querySelector('.main-svg').clientWidth === plot.clientWidth"
    for wide in (1280, 830, 390):  # Stop and the progress are in view at every width
        if wide == 390:
            as_on_a_phone(page)
        else:
            page.set_viewport_size({"width": wide, "height": 720 if wide == 1280 else 600})
            halt, said = (page.locator(where).bounding_box() for where in (".check-stop", ".claims-say"))
            assert halt["x"] + halt["width"] <= wide
            assert said["width"] >= 150, wide
            assert said["x"] + said["width"] <= wide
        page.wait_for_function(f"({drawn})(document.querySelector('[data-chart=seventy-4gb] .plot'))")
        across, down = page.evaluate(OVERFLOW)
        assert across <= 0, wide
        if wide == 1280:
            assert down == 0
        over = page.eval_on_selector_all(
            ".claim td, .claim th, .more td",
            "all => all.filter(cell => cell.scrollWidth > cell.clientWidth + 1).length",
        )
        assert over == 0, wide
