"""The Claims page: arithmetic is checked at once, measurements on request, and a link opens a claim."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Page

from lab.claims import CLAIMS
from tests.browser.conftest import Lab, as_on_a_phone

Visit = Callable[..., Lab]


def opened(lab: Lab, **link: Any) -> Page:
    page = lab.at("claims", **link)
    page.wait_for_selector(".verdict.fails")  # what is calculated is there at once
    return page


def verdicts(page: Page) -> dict[str, str]:
    return page.evaluate(
        """Object.fromEntries([...document.querySelectorAll(".claim")].map(
          (row) => [row.dataset.claim, row.querySelector(".verdict").className.split(" ")[1]]))"""
    )


def numbers(page: Page, claim: str) -> list[list[str]]:
    return page.eval_on_selector_all(
        f"#claim-{claim} .numbers tbody tr", "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )


def test_arithmetic_is_checked_at_once_and_measurements_on_request(visit: Visit) -> None:
    page = opened(visit())
    arithmetic = {name for name, claim in CLAIMS.items() if claim.arithmetic}
    before = verdicts(page)
    assert list(before) == list(CLAIMS)
    assert {name for name, verdict in before.items() if verdict != "unchecked"} == arithmetic
    assert before["seventy-80gb"] == "fails"
    assert page.inner_text(".tally .unchecked b") == str(len(CLAIMS) - len(arithmetic))

    page.click("[data-claim=seventy-80gb] .quote")
    assert ["as claimed", "80 GB", "claimed"] in numbers(page, "seventy-80gb")
    page.wait_for_function("location.search === '?claim=seventy-80gb'")
    page.wait_for_selector("[data-chart=seventy-80gb] .main-svg")
    assert "1.34 GB" in page.inner_text("[data-claim=seventy-80gb] .why")
    assert "59.6 such sequences" in page.inner_text("#claim-seventy-80gb .needs")

    page.focus("[data-claim=accept-by-p] .check")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-claim=accept-by-p] .verdict.conditions", timeout=60_000)
    page.wait_for_selector("body:not(.running)")
    for check in page.locator(".check").all():
        assert check.get_attribute("aria-label").startswith(f"{check.inner_text()}: "), "its name begins with its text"
    assert "Exact, at a price" in page.inner_text("[data-claim=accept-by-p] .why")
    kinds = {kind for _, _, kind in numbers(page, "accept-by-p")}
    assert kinds == {"measured", "formula"}
    after = verdicts(page)
    assert {name for name in after if after[name] != before[name]} == {"accept-by-p"}
    assert page.get_attribute("[data-claim=accept-by-p] .quote", "aria-expanded") == "true"


def test_check_all_shows_its_progress_and_can_be_stopped(visit: Visit) -> None:
    lab = visit()
    page = opened(lab)
    assert page.get_attribute(".check-stop", "aria-disabled") == "true"
    lab.listen()
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".claims-say:text-matches('Checking 2 of 25 · run [0-9]+ of')", timeout=60_000)
    assert page.get_attribute("[data-claim=thousand-operations]", "class") == "claim now"
    assert "run " in page.inner_text("[data-claim=thousand-operations] .why")
    assert page.get_attribute("[data-claim=ladder] .check", "aria-disabled") == "true"
    page.wait_for_function("document.querySelector('.heard').textContent.startsWith('Checking ')")
    page.focus(".check-stop")
    page.keyboard.press("Enter")
    page.wait_for_selector(".claims-say:text-matches('Stopped after [0-9]+ of 25')", timeout=60_000)
    assert page.evaluate("document.activeElement.className") == "check-stop", "it keeps the focus"
    page.wait_for_function("document.querySelector('.heard').textContent.startsWith('Stopped after ')")
    *under_way, _ = lab.heard
    assert under_way
    assert all(later - before > 2400 for (before, _), (later, _) in pairwise(under_way)), "steps are not all announced"
    assert verdicts(page)["million-operations"] == "conditions"
    assert verdicts(page)["both-ten"] == "unchecked"
    assert page.get_attribute("[data-claim=ladder] .check", "aria-disabled") == "false"


def test_results_last_as_long_as_the_tab_and_the_server(visit: Visit) -> None:
    page = opened(visit())
    page.click("[data-claim=accept-by-p] .check")
    page.wait_for_selector("[data-claim=accept-by-p] .verdict.conditions", timeout=60_000)
    page.wait_for_selector("body:not(.running)")
    measured = numbers(page, "accept-by-p")
    page.click("nav a:has-text('Memory')")
    page.wait_for_selector("body[data-ready]")
    kept = "JSON.parse(sessionStorage.getItem('decode-lab-claims'))"
    failed = f"const kept = {kept}; kept.checked.ladder = {{problem: 'No.'}}; return JSON.stringify(kept)"
    page.evaluate(f"sessionStorage.setItem('decode-lab-claims', (() => {{{failed}}})())")
    page.click("nav a:has-text('Claims')")
    page.wait_for_selector("[data-claim=accept-by-p] .verdict.conditions")
    page.click("[data-claim=accept-by-p] .quote")
    assert numbers(page, "accept-by-p") == measured
    page.wait_for_selector("[data-claim=ladder] .why.problem:text-is('No.')")
    page.click("[data-claim=ladder] .check")
    page.wait_for_selector("[data-claim=ladder].now .why:not(.problem):text-matches('run [0-9]+ of')", timeout=60_000)
    page.click(".check-stop")
    page.wait_for_selector("[data-claim=ladder]:not(.now) .why.problem:text-is('No.')")
    page.evaluate(f"sessionStorage.setItem('decode-lab-claims', JSON.stringify({{...{kept}, server: 'another'}}))")
    page.reload()
    page.wait_for_selector("[data-claim=seventy-80gb] .verdict.fails")
    assert verdicts(page)["accept-by-p"] == "unchecked"


def test_a_link_opens_its_claim_and_an_unknown_claim_gives_a_notice(visit: Visit) -> None:
    lab = visit()
    page = opened(lab, claim="memory-share")
    page.wait_for_selector("#claim-memory-share .main-svg")
    assert page.evaluate("document.querySelectorAll('.more:not([hidden])').length") == 1
    top = page.evaluate("document.querySelector('[data-claim=memory-share]').getBoundingClientRect().top")
    assert 0 <= top < 400
    left = "selector => document.querySelector(selector).getBoundingClientRect().left"
    word, title = (f"[data-claim=memory-share] {part}" for part in (".verdict .word", "+ .more h2"))
    assert page.evaluate(left, title) == pytest.approx(page.evaluate(left, word), abs=1)
    row = "getComputedStyle(document.querySelector('#claim-memory-share tr.formula')).backgroundImage"
    assert page.evaluate(row) == "none"
    page.click("[data-claim=both-ten] .quote")
    page.wait_for_function("location.search === '?claim=both-ten'")
    page.click("[data-claim=memory-share] .quote")
    page.wait_for_timeout(300)
    assert page.url.endswith("?claim=both-ten"), "it is still open"
    page.click("[data-claim=both-ten] .quote")
    page.wait_for_function("location.search === ''")
    opened(lab, claim="<b>none</b>")
    page.wait_for_selector(".toast-wrap:has-text('claim was left out')")


def test_stop_and_the_progress_are_in_view_at_every_width(visit: Visit) -> None:
    page = opened(visit())
    for wide in (830, 844, 920, 1024):
        page.set_viewport_size({"width": wide, "height": 600})
        halt, said = (page.locator(part).bounding_box() for part in (".check-stop", ".claims-say"))
        assert halt["x"] + halt["width"] <= wide
        assert said["width"] >= 150, wide
        assert said["x"] + said["width"] <= wide
        cut = page.eval_on_selector(
            ".claims-say",
            """say => {
              const before = say.textContent;
              const cut = ["", "problem"].map((kind) => {
                say.textContent = "What went wrong, in a long sentence. ".repeat(9);
                say.classList.toggle("problem", Boolean(kind));
                return say.scrollWidth > say.clientWidth;
              });
              say.textContent = before;
              say.classList.remove("problem");
              return cut;
            }""",
        )
        assert cut == [True, False], f"a problem can be read whole, at {wide}"


def test_the_page_fits_the_screen(visit: Visit) -> None:
    page = opened(visit(), claim="memory-share")
    page.click("[data-claim=seventy-4gb] .quote")
    page.wait_for_selector("#claim-seventy-4gb .main-svg")
    drawn = "plot => plot.querySelector('.main-svg').clientWidth === plot.clientWidth"
    for place in ("projector", "phone"):
        if place == "phone":
            as_on_a_phone(page)
        page.wait_for_function(f"({drawn})(document.querySelector('[data-chart=seventy-4gb] .plot'))")
        across, inside, down = page.evaluate(
            """(page => [page.scrollWidth - innerWidth,
              (box => box.scrollWidth - box.clientWidth)(document.querySelector(".gradio-container")),
              page.scrollHeight - innerHeight])(document.documentElement)"""
        )
        assert across == inside == 0, place
        if place == "projector":
            assert down == 0
        over = page.eval_on_selector_all(
            ".claim td, .claim th, .more td",
            "all => all.filter(cell => cell.scrollWidth > cell.clientWidth + 1).length",
        )
        assert over == 0, place
