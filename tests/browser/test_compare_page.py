"""The Compare page: settings are raced, their outputs compared, and theory shown beside them."""

from __future__ import annotations

import io
import re
import urllib.request
from collections.abc import Callable
from itertools import pairwise

import pytest
from PIL import Image
from playwright.sync_api import Page, Route, expect

from tests.browser.pages import CUT, HOSTILE, LONG, OVERFLOW, STOPPED, Lab, appeared, as_on_a_phone, notices, unfold
from tests.waiting import until
from visualize.pages.compare.configurations import FORM, presets
from visualize.reduce.compare_report import COLUMNS

Visit = Callable[..., Lab]
OVER = ".contest[data-over=true] .lane"


def compared(page: Page) -> None:
    page.click("#run")
    page.wait_for_selector(OVER, timeout=120_000)


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
    lab = visit()
    page = lab.at("compare", lanes="cache,draft-4", max_tokens=30, repeats=2, prompt=HOSTILE[:-1])
    lab.listen()
    compared(page)
    page.wait_for_function(
        "document.querySelector('.heard').textContent === document.querySelector('.contest-say').textContent"
    )
    *under_way, (_, outcome) = lab.heard
    assert "dentical" in outcome
    assert not any("tokens" in text for _, text in under_way), "a screen reader announces runs, not tokens"
    assert all(later - before > 2400 for (before, _), (later, _) in pairwise(under_way))

    table = page.eval_on_selector_all(
        ".contest-lower tbody tr", "rows => rows.map(row => [...row.children].map(cell => cell.textContent.trim()))"
    )
    assert len(table) == 2
    assert all(float(row[1].split()[0]) > 0 for row in table)
    assert (table[0][5], table[1][5][-1]) == ("–", "%")
    traces = page.evaluate("document.querySelector('[data-chart=bars] .plot').data.map(trace => trace.x.length)")
    assert traces == [2, 6, 4, 2]  # medians, quartiles with gaps, runs, words

    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    none, ends = scrubbed(page, 0, 1)
    assert list(none.values()) == [0, 0]
    assert list(ends.values()) == [30, 30]
    back = scrubbed(page, *(share / 20 for share in range(20, -1, -1)))
    for name in ends:
        counts = [shown[name] for shown in back]
        assert counts == sorted(counts, reverse=True)
        assert len(set(counts)) > 3
    scrubbed(page, 1)
    kinds = page.eval_on_selector_all(
        ".lane >> nth=1 >> .piece", "all => [...new Set(all.map(piece => piece.classList[1]))]"
    )
    assert {"prompt", "plain", "accepted"} <= set(kinds)
    assert page.locator(".race .legend li:visible").count() == len(kinds) - 1
    texts = page.eval_on_selector_all(".lane-text", "all => all.map(text => text.textContent)")
    assert texts[0] == texts[1]
    assert HOSTILE[:-1] in texts[0]
    assert page.evaluate("window.pwned") is None

    page.select_option(".pace", "0.01")
    # Again, from the start; clicks before the next animation frame make it no faster.
    moved = page.evaluate(
        """async () => {
          const [play, clock] = ["play", "clock"].map((name) => document.querySelector(`.${name}`));
          for (let i = 0; i < 5; i++) play.click();
          const began = performance.now();
          await new Promise((done) => setTimeout(done, 300));
          return clock.value / (performance.now() - began);
        }"""
    )
    assert 0 < moved < 0.02
    page.select_option(".pace", "0.1")
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
    marks = page.evaluate("document.querySelector('[data-chart=tokens] .plot').data.at(-1)")
    assert marks["text"] == ["■"]
    assert 0 <= marks["x"][0] <= 1
    assert 1 <= marks["y"][0] <= 5
    page.fill("#prompt textarea", "Once")  # without a cache, it is computed again for every token
    lab.until_asked(prompt="Once")
    before = page.inner_text(".grown")
    page.click(".grow")
    expect(page.locator(".play")).to_have_text(idle)  # the race takes no time from what is measured
    page.wait_for_function(
        "() => (plot => plot.data?.[0]?.x?.length > 100)(document.querySelector('[data-chart=growth] .plot'))",
        timeout=120_000,
    )
    expect(page.locator(".grown")).not_to_have_text(before)
    dots = page.evaluate("document.querySelector('[data-chart=growth] .plot').data.map(trace => trace.x.length)")
    assert dots == [199, 199, 104, 2]  # the steps after the prefill, two curves with a gap after each, two names


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
    for wide, high in ((1280, 720), (1000, 720), (768, 1024)):
        page.set_viewport_size({"width": wide, "height": high})
        assert_fits(page, wide)
    left = "nodes => Math.min(...nodes.map((node) => node.getBoundingClientRect().left))"
    plot, names = (page.eval_on_selector_all(f"[data-chart=bars] {part}", left) for part in (".plot", ".ytick text"))
    assert plot <= names, "no name is cut off"
    told = page.evaluate("document.querySelector('[data-chart=positions] .plot').ariaDescription")
    assert len(re.findall(r"[1-4]:", told)) >= 4, "although they are drawn side by side"
    as_on_a_phone(page)
    assert_fits(page, 390)

    # While another comparison goes on, the one before is shown as such; it can be stopped.
    page = lab.at("compare", lanes="cache,paged", own=HOSTILE[:-1], max_tokens=16, repeats=1)
    page.set_viewport_size({"width": 1280, "height": 720})
    page.click("#run")
    expect(page.locator(".contest-say.problem")).to_be_visible()
    page.fill("#own textarea", "")
    compared(page)
    page.fill("#repeats input[type=number]", "9")
    page.fill("#max-tokens input[type=number]", "500")
    page.keyboard.press("Tab")
    page.click("#run")
    page.wait_for_selector(".contest[data-over=false] .contest-lower.stale", timeout=60_000)
    page.wait_for_selector(".contest-say:text-matches('[3-9]')")
    page.focus(".contest-lower th >> nth=1")
    about = page.inner_text("#meaning")
    drawn = page.evaluate(
        """async () => {
          const [said, plot] = [".contest-say", "[data-chart=bars] .plot"].map((part) => document.querySelector(part));
          let [drawings, changes] = [0, 0];
          const run = () => parseInt(said.textContent.match(/[0-9]+/)?.[0] ?? 0);
          const before = run();
          plot.on("plotly_afterplot", () => (drawings += 1));
          await new Promise((done) => {
            new MutationObserver(() => (changes += 1) > 10 && done()).observe(said, { childList: true });
          });
          return drawings - (run() - before);
        }"""
    )
    assert drawn <= 1, "once per run, and not whenever a token is counted"
    assert (about, page.inner_text("#meaning")) == (COLUMNS[1][1],) * 2, "what has the focus stays"
    page.keyboard.press("Escape")
    expect(page.locator(".contest-say")).to_have_text(STOPPED)
    page.wait_for_selector(".contest[data-over=true]")
    assert page.evaluate("window.pwned") is None


def assert_fits(page: Page, wide: int) -> None:
    for face in ("theory", "race"):
        page.click(f"[data-shows={face}]")
        assert page.locator("thead th:empty").count() == 0
        line = "getComputedStyle(document.querySelector('.source a')).textDecorationLine"
        assert page.evaluate(line) == "underline", "within text, colour alone does not mark a link"
        for plot in page.locator(".plot:has(.main-svg):visible").all():
            assert plot.get_attribute("role") == "img"
            assert plot.get_attribute("aria-labelledby")
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
    assert "repeats" in notices(page).inner_text()
    assert page.is_visible("#pair"), "in a fold, where nobody would see that the draft is another"
    page.wait_for_selector("[data-chart=growth]")
    assert page.eval_on_selector_all(".theory-charts .caption", CUT) == []
    assert page.inner_text(".missing")
    assert page.is_hidden("[data-chart=round]")
    assert page.is_hidden(".figures.theory table")
    lab.choose("preset", "blocks")
    lab.until_asked(lanes="cache,paged")
    page.click("[data-shows=race]")
    lab.until_asked(face=None)
    page.click(lane("int8"))
    expect(page.locator("#preset label.selected")).to_have_count(0)
    page.wait_for_function("location.search.includes('int8')")
    assert set(lab.link["lanes"].split(",")) == {"cache", "paged", "int8"}
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

    lab.slow()  # a preset and lanes turned at once agree, however late the answers are: the later of the two decides
    gamma = set(presets()["gamma"][1])
    for preset_first in (True, False):
        controls = "#preset label:has(input[value=gamma])", lane("int4")
        for control in controls if preset_first else controls[::-1]:
            page.click(control)
            page.wait_for_timeout(50)
        page.wait_for_timeout(1500)
        assert set(lab.link["lanes"].split(",")) == (gamma | {"int4"} if preset_first else gamma)
        expect(page.locator("#preset label.selected")).to_have_count(0 if preset_first else 1)


def test_a_link_reopens_the_race_where_it_was_left(visit: Visit) -> None:
    lab = visit()
    page = lab.at("compare", lanes="cache,paged", max_tokens=40, repeats=1, speed=1)
    held: list[Route] = []  # the link claims no comparison of settings chosen after it was asked for
    page.route("**/queue/join*", lambda route: held.append(route), times=1)
    page.click("#run")
    until(lambda: page.wait_for_timeout(20) or held)
    page.click(lane("int8"))
    page.wait_for_function("location.search.includes('int8')")
    held.pop().continue_()
    page.wait_for_selector(OVER, timeout=120_000)
    assert "run" not in lab.link
    page.click(lane("int8"))
    lab.until_asked(lanes="cache,paged")
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
    page.wait_for_selector(OVER, timeout=120_000)
    assert page.inner_text(".play") != again  # it waits there
    assert page.eval_on_selector(".clock", "clock => clock.value / clock.max") == pytest.approx(0.437, abs=1e-3)
    assert page.input_value(".pace") == "0.1"
    page.click("#look")
    page.mouse.move(0, 0)
    clock = Image.open(io.BytesIO(page.locator(".clock").screenshot())).convert("L")
    assert clock.getpixel((clock.width * 9 // 10, clock.height // 2)) < 100, "what is to come is as dark as the page"
    page.click(".play")  # to its end
    lab.until_asked(at=None)
    expect(page.locator(".play")).to_have_text(again)
    for keys, moves in (
        (lambda: page.locator("#lanes input").first.press("Home"), True),
        (lambda: page.get_by_role("region").last.press("Home"), False),
    ):
        scrubbed(page, 0.5)
        lab.until_asked(at="50.0")
        keys()  # of which a checkbox makes no use, and which scrolls a table
        if moves:
            page.wait_for_function("document.querySelector('.clock').value === '0'")
        assert moves or page.input_value(".clock") != "0"
    page.click(".contest-say")
    page.keyboard.press("Space")
    expect(page.locator(".play")).not_to_have_text(again)
    page.keyboard.press("End")
    expect(page.locator(".play")).to_have_text(again)
    scrubbed(page, 0.5)
    lab.until_asked(at="50.0")
    lab.choose("preset", "ladder")  # an instant belongs to its settings
    lab.until_asked(at=None)

    still = visit(reduced_motion="reduce")  # a link with a value left out still links to its comparison
    page = still.at("compare", lanes="cache,paged", max_tokens=10, repeats=0, speed="0.01", run=1)
    page.wait_for_selector(OVER, timeout=120_000)
    expect(page.locator(".lane.over")).to_have_count(2)  # nothing moves by itself
    assert still.link["run"] == "1"


def test_a_run_in_the_lab_leads_to_a_comparison_of_its_settings(visit: Visit) -> None:
    lab = visit().open(speculative="draft", paged=0, temperature=0, prompt=HOSTILE[:-1], **LONG)
    page, link = lab.page, lab.page.locator(".against")
    assert link.is_hidden()
    lab.run()
    lab.wait_for_tokens(5)
    assert link.is_hidden()
    lab.press("Escape")
    link.wait_for()
    assert link.get_attribute("href").startswith("compare?")
    link.click()
    expect(notices(page)).to_contain_text("500")  # tokens at most
    assert page.input_value("#own textarea") == "Yours: speculative=draft, kernels=reference", "its text is unfolded"
    page.keyboard.press("Escape")

    lab.ran(speculative="off", kv_dtype="int8", paged=0, max_tokens=12, temperature=0, prompt=HOSTILE[:-1])
    link.click()
    page.wait_for_selector(OVER, timeout=120_000)
    assert page.locator(".lane").count() == 2
    lab.ran(speculative="off", paged=0, max_tokens=2)
    assert link.is_hidden()
    lab.ran(paged=1, max_tokens=12)
    assert link.is_visible()
    ended = 'data: {"problem": "The engine stumbled."}\n\nevent: end\ndata: \n\n'  # before its first frame
    page.route("**/channels/**", lambda route: route.fulfill(content_type="text/event-stream", body=ended))
    page.click("#run")
    expect(lab.problem).to_be_visible()
    assert link.is_hidden()


def test_a_closed_page_ends_its_comparison(visit: Visit) -> None:
    """Which would take minutes."""
    lab = visit()
    page = lab.at("compare", lanes="cache,no-cache", max_tokens=500, repeats=9)

    def busy(times: int = 1) -> bool:
        """At one of so many looks."""
        metrics = (urllib.request.urlopen(f"{lab.server}/metrics", timeout=60).read() for _ in range(times))
        return any(re.search(rb"^decode_lab:visits (.*)$", one, re.MULTILINE)[1] != b"0.0" for one in metrics)

    until(lambda: not busy(20))  # whatever the tests before have left
    page.click("#run")
    until(busy)
    page.close()
    until(lambda: not busy(20), 60)  # for longer than between two of its runs
