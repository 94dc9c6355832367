"""The Compare page: settings are raced, their outputs compared, and theory shown beside them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from playwright.sync_api import Page, expect

from tests.browser.pages import (
    CUT,
    HOSTILE,
    OVERFLOW,
    STOPPED,
    Visit,
    appeared,
    as_on_a_phone,
    asked,
    notices,
    unfold,
)
from visualize.pages.compare.configurations import FORM
from visualize.reduce.compare_report import COLUMNS

OVER = ".contest[data-over=true] .lane"


def compared(page: Page) -> None:
    page.click("#run")
    page.wait_for_selector(OVER)


def lane(name: str) -> str:
    """The selector of the button that chooses a configuration."""
    return f"#lanes label:has(input[name='{name}'])"


def scrubbed(page: Page, *shares: float) -> list[dict[str, int]]:
    """Scrub the race to each of these shares of its length; the tokens that each lane then shows."""
    return page.evaluate(
        """shares => shares.map((share) => {
          const clock = document.querySelector(".clock");
          clock.value = share * clock.max;
          clock.dispatchEvent(new Event("input"));
          return Object.fromEntries([...document.querySelectorAll(".lane")].map(
            (lane) => [lane.dataset.lane, lane.querySelectorAll(".piece:not(.prompt)").length]));
        })""",
        shares,
    )


def test_two_settings_race_and_write_identical_outputs(visit: Visit) -> None:
    lab = visit(reduced_motion="no-preference")
    page = lab.at("compare", lanes="cache,draft-4", max_tokens=24, repeats=2, prompt=HOSTILE[:-1])
    lab.listen()
    compared(page)
    page.wait_for_function(
        "document.querySelector('.heard').textContent === document.querySelector('.contest-say').textContent"
    )
    *under_way, (_, outcome) = lab.heard
    assert "dentical" in outcome
    assert not any("tokens" in text for _, text in under_way), "a screen reader announces runs, not tokens"
    assert all(later - before > 2400 for (before, _), (later, _) in pairwise(under_way))

    assert page.locator(".contest-lower tbody tr").count() == 2
    traces = page.evaluate("document.querySelector('[data-chart=bars] .plot').data.map(trace => trace.x.length)")
    # Medians, those of what gains apart; quartiles with gaps, runs, words.
    assert (traces[0] + traces[4], *traces[1:4]) == (2, 6, 4, 2)

    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    none, ends = scrubbed(page, 0, 1)
    assert list(none.values()) == [0, 0]
    assert list(ends.values()) == [24, 24]
    kinds = page.eval_on_selector_all(
        ".lane >> nth=1 >> .piece", "all => [...new Set(all.map(piece => piece.classList[1]))]"
    )
    assert {"prompt", "plain", "accepted"} <= set(kinds)
    assert page.locator(".race .legend li:visible").count() == len(kinds) - 1
    texts = page.eval_on_selector_all(".lane-text", "all => all.map(text => text.textContent)")
    assert texts[0] == texts[1]
    assert HOSTILE[:-1] in texts[0]
    assert page.evaluate("window.pwned") is None

    page.select_option(".pace", "0.1")
    page.click(".play")  # again, from the start
    page.wait_for_selector(".lane .piece.accepted")
    page.click(".play")
    stands = page.inner_text(".now")
    page.wait_for_timeout(150)
    assert page.inner_text(".now") == stands
    assert requests == []
    idle = page.inner_text(".play")
    page.select_option(".pace", "0.01")
    page.click(".play")

    page.click("[data-shows=theory]")
    page.wait_for_selector("[data-chart=speedup] .main-svg")
    page.fill("#prompt textarea", "Once")  # without a cache, it is computed again for every token
    lab.until_asked(prompt="Once")
    page.click(".grow")
    expect(page.locator(".play")).to_have_text(idle)  # the race takes no time from what is measured
    page.wait_for_function(
        "() => (plot => plot.data?.[0]?.x?.length > 40)(document.querySelector('[data-chart=growth] .plot'))",
        timeout=120_000,
        polling=500,
    )


def test_where_two_outputs_diverge_both_margins_are_shown_and_the_page_fits_the_screen(visit: Visit) -> None:
    lab = visit()
    own = f"{'漢字' * 7}: kv_dtype=int8,paged=true,speculative=draft"
    page = lab.at("compare", lanes="cache,int8,paged,draft-4", own=own, max_tokens=32, repeats=1, temperature=1, seed=2)
    assert page.is_hidden(".partings")
    places = "[...document.querySelectorAll('.race, .contest-lower')].map(part => part.getBoundingClientRect().top)"
    before = page.evaluate(places)
    compared(page)
    page.wait_for_selector(".partings tbody tr")  # differences are listed below and move nothing
    assert page.evaluate(places) == before
    assert page.locator(".stale").count() == 0
    rows = page.eval_on_selector_all(
        ".partings tbody tr", "rows => rows.map(row => [...row.children].map(cell => cell.firstChild.textContent))"
    )
    for _, alike, _, margin, _, other_margin in rows:
        assert 0 <= int(alike) < 32
        assert all(0 <= float(one) <= 1 for one in (margin, other_margin))
    for wide, high in ((1280, 720), (768, 1024)):
        page.set_viewport_size({"width": wide, "height": high})
        assert_fits(page, wide)
    as_on_a_phone(page)
    assert_fits(page, 390)

    # While another comparison goes on, the one before is shown as such; it can be stopped.
    page.set_viewport_size({"width": 1280, "height": 720})
    page.fill("#own textarea", HOSTILE[:-1])
    page.click("#run")
    expect(page.locator(".contest-say.problem")).to_be_visible()
    page.fill("#own textarea", "")
    for name, value in (("repeats", 9), ("max_tokens", 500)):
        lab.fill(name, value)
    page.wait_for_selector("body:not(.begun, .running)")  # what was refused is over
    page.click("#run")
    page.wait_for_selector(".contest[data-over=false] .contest-lower.stale")
    page.wait_for_selector(".contest-say:text-matches('[3-9]')")
    page.focus(".contest-lower th >> nth=1")
    assert page.inner_text("#meaning") == COLUMNS[1][1]
    page.keyboard.press("Escape")
    expect(page.locator(".contest-say")).to_have_text(STOPPED)
    page.wait_for_selector(".contest[data-over=true]")
    assert page.evaluate("window.pwned") is None


def assert_fits(page: Page, wide: int) -> None:
    for face in ("theory", "race"):
        page.click(f"[data-shows={face}]")
        assert page.locator("thead th:empty").count() == 0
        across, down = page.evaluate(OVERFLOW)
        assert across <= 0  # less by a scrollbar where there is one
        assert page.evaluate("innerWidth") == wide
        if wide > 820:
            assert down == 0
    cut = page.evaluate(
        """() => {
          const { bottom } = document.querySelector(".race").getBoundingClientRect();
          return [...document.querySelectorAll(".lane")].filter((lane) => lane.scrollHeight > lane.clientHeight + 1
            || lane.getBoundingClientRect().bottom > bottom).map((lane) => lane.dataset.lane);
        }"""
    )
    assert cut == []
    unseen = (
        "texts => texts.map(({ scrollHeight, scrollTop, clientHeight }) => scrollHeight - scrollTop - clientHeight)"
    )
    assert max(page.eval_on_selector_all(".lane-text", unseen)) < 2, "the newest line is in view"
    page.wait_for_function(
        "(plot => plot.querySelector('.main-svg').clientWidth === plot.clientWidth)"
        "(document.querySelector('[data-chart=bars] .plot'))"
    )
    if wide > 820:
        assert page.evaluate("(box => box.scrollWidth <= box.clientWidth)(document.querySelector('.figures'))")


def test_links_carry_the_settings_and_presets_choose_lanes(visit: Visit) -> None:
    lab = visit()
    page = lab.at("compare", lanes="cache,int4", face="theory", repeats=0, pair="mismatched", seed=3)
    expect(notices(page)).to_contain_text("repeats")
    assert page.is_visible("#pair"), "in a fold, where nobody would see that the draft is another"
    page.wait_for_selector("[data-chart=growth]")
    assert page.eval_on_selector_all(".theory-charts .caption", CUT) == []
    assert page.inner_text(".missing")
    assert page.is_hidden("[data-chart=round]")
    assert page.is_hidden(".figures.theory table")
    lab.choose("preset", "formats")
    lab.until_asked(lanes="cache,int8,int4,paged")
    page.click("[data-shows=race]")
    lab.until_asked(face=None)
    page.click(lane("int8"))
    expect(page.locator("#preset label.selected")).to_have_count(0)
    page.wait_for_function("!location.search.includes('int8')")
    assert set(lab.link["lanes"].split(",")) == {"cache", "paged", "int4"}
    lab.choose("preset", "ladder")
    lab.until_asked(lanes=None)  # the default

    appeared(page)
    expect(page.locator("#seed input")).to_have_value("3")
    page.click("#seed input")
    lab.press("End", "Backspace", "Tab")
    lab.until_asked(seed=None)
    page.reload()
    page.wait_for_selector("body[data-ready]")
    unfold(page, "pool")
    assert page.input_value("#seed input") == str(FORM["seed"].default)


def test_a_link_reopens_the_race_where_it_was_left(visit: Visit) -> None:
    lab = visit(reduced_motion="no-preference")
    page = lab.at("compare", lanes="cache,paged", max_tokens=40, repeats=1, speed=1)
    compared(page)
    lab.until_asked(run=1)
    expect(page.locator(".lane.over")).to_have_count(2)
    again = "Again"
    expect(page.locator(".play")).to_have_text(again)
    assert "at" not in lab.link
    scrubbed(page, 0.437)
    lab.until_asked(at=43.7)
    assert page.get_attribute(".clock", "aria-valuetext") == page.inner_text(".now")
    page.select_option(".pace", "0.1")
    lab.until_asked(speed=0.1)
    page.goto(page.url)
    page.wait_for_selector(OVER)
    assert page.inner_text(".play") != again  # it waits there
    assert page.eval_on_selector(".clock", "clock => clock.value / clock.max") == pytest.approx(0.437, abs=1e-3)
    assert page.input_value(".pace") == "0.1"
    page.click(".play")  # to its end
    lab.until_asked(at=None)
    expect(page.locator(".play")).to_have_text(again)
    scrubbed(page, 0.5)
    lab.until_asked(at="50.0")
    page.locator("#lanes input").first.press("Home")  # of which a checkbox makes no use
    page.wait_for_function("document.querySelector('.clock').value === '0'")
    page.click(".contest-say")
    page.keyboard.press("Space")
    expect(page.locator(".play")).not_to_have_text(again)
    page.keyboard.press("End")
    expect(page.locator(".play")).to_have_text(again)
    scrubbed(page, 0.5)
    lab.until_asked(at="50.0")
    lab.choose("preset", "ladder")  # an instant belongs to its settings
    lab.until_asked(at=None)


def test_a_run_in_the_lab_leads_to_a_comparison_of_its_settings(visit: Visit) -> None:
    own = {"speculative": "off", "kv_dtype": "int8", "paged": 0, "temperature": 0, "prompt": HOSTILE[:-1]}
    lab = visit().open(**own, max_tokens=12, kernels="reference")
    page, link = lab.page, lab.page.locator(".against")
    assert link.is_hidden()
    lab.ran()
    assert link.get_attribute("href").startswith("compare?")
    link.click()
    page.wait_for_selector("body[data-ready]")
    assert page.input_value("#own textarea").startswith("Yours: ")
    assert "run" not in asked(page.url), "a click in the Lab does not begin a measurement"
    page.click("#run")
    page.wait_for_selector(OVER)
    assert page.locator(".lane").count() == 2
