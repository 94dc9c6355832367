"""The Compare page: settings are raced, their outputs compared, and theory shown beside them."""

from __future__ import annotations

import io
import re
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Lab, appeared, as_on_a_phone, unfold
from tests.waiting import until
from visualize.pages.compare.configurations import LINK, presets
from visualize.pages.compare.report import COLUMNS

Visit = Callable[..., Lab]
HOSTILE = "<img src=x onerror=window.pwned=1>${window.pwned=1}{{value}}"


def compared(page: Page) -> None:
    page.click("#run")
    page.wait_for_selector(".contest[data-over=true] .lane", timeout=90_000)


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
    page = lab.at("compare", lanes="cache,draft-4", max_tokens=40, repeats=2, prompt=HOSTILE)
    lab.listen()
    compared(page)
    page.wait_for_function("document.querySelector('.contest-say').textContent.startsWith('Identical outputs')")
    page.wait_for_function("document.querySelector('.heard').textContent.startsWith('Identical outputs')")
    *under_way, (_, outcome) = lab.heard
    assert outcome == page.inner_text(".contest-say")
    assert not any("tokens" in text for _, text in under_way), "a screen reader announces runs, not tokens"
    assert all(later - before > 2400 for (before, _), (later, _) in pairwise(under_way))
    assert "both settings wrote the same 40 tokens" in page.inner_text(".contest-say")

    table = page.eval_on_selector_all(
        ".contest-lower tbody tr", "rows => rows.map(row => [...row.children].map(cell => cell.textContent.trim()))"
    )
    assert [row[0] for row in table] == ["● Cache", "■ Draft γ4"]
    assert page.get_by_role("region", name="The figures").count() == 1
    assert [row[-1] for row in table] == ["reference", "identical"]
    assert all(float(row[1].split()[0]) > 0 for row in table)
    assert table[0][5] == "–"
    assert table[1][5].endswith("%")
    traces = page.evaluate("document.querySelector('[data-chart=bars] .plot').data.map(trace => trace.x.length)")
    assert traces == [2, 6, 4, 2]  # medians, quartiles with gaps, runs, words

    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    none, ends = scrubbed(page, 0, 1)
    assert none == {"Cache": 0, "Draft γ4": 0}
    assert ends == {"Cache": 40, "Draft γ4": 40}
    assert page.eval_on_selector_all(".lane .done", "bars => bars.map((bar) => bar.style.width)") == ["100%", "100%"]
    back = scrubbed(page, *(share / 100 for share in range(100, -1, -1)))
    for lane in ends:
        counts = [shown[lane] for shown in back]
        assert counts == sorted(counts, reverse=True)
        assert len(set(counts)) > 3
    scrubbed(page, 1)
    kinds = page.eval_on_selector_all(
        "[data-lane='Draft γ4'] .piece", "all => [...new Set(all.map(piece => piece.classList[1]))]"
    )
    assert {"prompt", "plain", "accepted"} <= set(kinds)
    assert {"prompt", *page.locator(".race .legend li:visible").all_inner_texts()} == set(kinds)
    texts = page.eval_on_selector_all(".lane-text", "all => all.map(text => text.textContent)")
    assert texts[0] == texts[1]
    assert HOSTILE in texts[0]
    assert page.evaluate("window.pwned") is None

    assert page.input_value(".pace") == "", "slow enough to watch"
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
    page.wait_for_function(
        """() => {
          const play = document.querySelector(".play");
          const under = play.textContent === "Pause" && document.querySelector(".lane .piece.accepted");
          if (under) play.click();
          return under;
        }"""
    )
    stands = page.inner_text(".now")
    page.wait_for_timeout(150)
    assert page.inner_text(".now") == stands
    assert asked == []
    page.select_option(".pace", "0.01")
    page.click(".play")

    page.click("[data-shows=theory]")
    page.wait_for_selector("[data-chart=speedup] .main-svg")
    assert page.inner_text(".theory tbody th") == "■ Draft γ4"
    marks = page.evaluate("document.querySelector('[data-chart=tokens] .plot').data.at(-1)")
    assert marks["text"] == ["■"]
    assert 0 <= marks["x"][0] <= 1
    assert 1 <= marks["y"][0] <= 5

    page.fill("#prompt textarea", "Once")  # without a cache, it is computed again for every token
    page.wait_for_function("location.search.includes('prompt=Once')")
    page.click(".grow")
    page.wait_for_selector(".grown:has-text('without a cache: ')")  # its progress
    assert page.locator(".play").text_content() == "Play", "the race takes no time from what is measured"
    page.wait_for_selector(".grown:has-text('A token after n others takes')", timeout=60_000)  # grown or not
    dots = page.evaluate("document.querySelector('[data-chart=growth] .plot').data.map(trace => trace.x.length)")
    assert dots == [199, 199, 104, 2]  # the steps after the prefill, two curves with a gap after each, two names


def test_where_two_outputs_diverge_both_margins_are_shown(visit: Visit) -> None:
    page = visit().at("compare", lanes="cache,paged,draft-4", max_tokens=40, repeats=1, temperature=1)
    assert page.is_hidden(".partings")
    compared(page)
    assert page.locator(".stale").count() == 0
    rows = page.eval_on_selector_all(
        ".partings tbody tr", "rows => rows.map(row => [...row.children].map(cell => cell.firstChild.textContent))"
    )
    assert [row[0] for row in rows] == ["● ◆", "■ ◆"]  # cached and paged write the same
    for _, alike, _, margin, _, other_margin in rows:
        assert 0 <= int(alike) < 40
        assert margin == other_margin  # other draws from the same distribution
        assert 0 <= float(margin) <= 1
    page.fill("#repeats input[type=number]", "9")  # so that it is not over before the next lines look
    page.fill("#max-tokens input[type=number]", "500")
    page.keyboard.press("Tab")
    page.click("#run")
    page.wait_for_selector(".contest[data-over=false] .contest-lower.stale:has-text('the comparison before')")
    assert page.is_hidden(".partings")
    assert page.inner_text(".race .caption") == "the comparison before"
    page.click("#stop")
    page.wait_for_selector(".contest[data-over=true]")
    assert page.inner_text(".race .caption") == "the comparison before", "it had no race of its own yet"
    assert page.locator(".face.stale").count() == 2


def test_links_carry_the_settings_and_presets_choose_lanes(visit: Visit) -> None:
    page = visit().at("compare", lanes="cache,int4", face="theory", repeats=0, pair="mismatched")
    assert "repeats was left out" in page.inner_text(".toast-wrap")
    assert page.is_visible("#pair"), "in a fold, where nobody would see that the draft is another"
    page.wait_for_selector("[data-chart=growth]")
    cut = "lines => lines.filter((line) => line.scrollWidth > line.clientWidth).map((line) => line.textContent)"
    assert page.eval_on_selector_all(".theory-charts .caption", cut) == []
    assert page.inner_text(".missing").startswith("To place runs on these curves, compare a setting with speculation")
    assert page.is_hidden("[data-chart=round]")
    assert page.is_hidden(".figures.theory table")
    page.click("#preset label:has-text('Blocks')")
    page.wait_for_function("location.search.includes('lanes=cache%2Cpaged')")
    page.click("[data-shows=race]")
    page.wait_for_function("!location.search.includes('face')")
    page.click("#lanes label:has-text('INT8') >> nth=0")
    page.wait_for_selector("#preset:not(:has(label.selected))")
    page.wait_for_function("location.search.includes('int8')")
    assert set(parse_qs(urlsplit(page.url).query)["lanes"][0].split(",")) == {"cache", "paged", "int8"}
    page.click("#preset label:has-text('Ladder')")
    page.wait_for_function("!location.search.includes('lanes')")  # the default


@pytest.mark.parametrize("preset_first", [True, False])
def test_a_preset_and_lanes_turned_at_once_agree(visit: Visit, preset_first: bool) -> None:
    """However late the server's answers are: the later of the two decides."""
    lab = visit()
    page = lab.at("compare")
    lab.slow()
    preset, lane = "#preset label:has-text('Gamma')", "#lanes label:has-text('INT4') >> nth=0"
    for control in (preset, lane) if preset_first else (lane, preset):
        page.click(control)
        page.wait_for_timeout(50)
    page.wait_for_timeout(2000)
    gamma = set(presets()["gamma"][1])
    chosen = parse_qs(urlsplit(page.url).query)["lanes"][0].split(",")
    assert set(chosen) == (gamma | {"int4"} if preset_first else gamma)
    expect(page.locator("#preset label.selected")).to_have_text([] if preset_first else ["Gamma"])


def test_an_emptied_seed_is_the_usual_one(visit: Visit) -> None:
    page = visit().at("compare", seed=3)
    appeared(page)
    expect(page.locator("#seed input")).to_have_value("3")
    page.click("#seed input")
    page.keyboard.press("End")
    page.keyboard.press("Backspace")
    page.keyboard.press("Tab")
    page.wait_for_function("!location.search.includes('seed')")
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.locator(".toast-wrap:has-text('left out')").count() == 0
    unfold(page, "pool")
    assert page.input_value("#seed input") == str(LINK.defaults["seed"])


def test_a_link_reopens_the_race_where_it_was_left(visit: Visit) -> None:
    page = visit().at("compare", lanes="cache,paged", max_tokens=40, repeats=1, speed=1)
    compared(page)
    page.wait_for_selector(".play:has-text('Again')")
    assert "at=" not in page.url
    expect(page.locator(".race .legend li:visible")).to_have_text(["plain"])
    scrubbed(page, 0.437)
    page.wait_for_function("location.search.includes('at=43.7')")
    assert page.get_attribute(".clock", "aria-valuetext") == page.inner_text(".now")
    page.select_option(".pace", "0.1")
    page.wait_for_function("location.search.includes('speed=0.1')")
    page.goto(f"{page.url}&run=1")
    page.wait_for_selector(".contest[data-over=true] .lane", timeout=90_000)
    assert page.inner_text(".play") == "Play"  # it waits there
    assert page.eval_on_selector(".clock", "clock => clock.value / clock.max") == pytest.approx(0.437, abs=1e-3)
    assert page.input_value(".pace") == "0.1"
    page.click("#look")
    page.mouse.move(0, 0)
    clock = Image.open(io.BytesIO(page.locator(".clock").screenshot())).convert("L")
    assert clock.getpixel((clock.width * 9 // 10, clock.height // 2)) < 100, "what is to come is as dark as the page"
    shown, whole = page.locator(".lane:not(.over) .count").first.inner_text().split(" of ")
    assert int(shown) < int(whole) == 40  # on a busy machine the first may have come late
    page.click(".play")  # to its end
    page.wait_for_function("!location.search.includes('at=')")
    assert page.inner_text(".play") == "Again"
    scrubbed(page, 0.5)
    page.wait_for_function("location.search.includes('at=50')")
    page.locator("#lanes input").first.press("Home")  # of which a checkbox makes no use
    page.wait_for_function("document.querySelector('.clock').value === '0'")
    scrubbed(page, 0.5)
    page.get_by_role("region", name="The figures").press("Home")  # which scrolls it
    assert page.input_value(".clock") != "0"
    page.click(".contest-say")
    page.keyboard.press("Space")
    page.wait_for_selector(".play:has-text('Pause')")
    page.keyboard.press("End")
    page.wait_for_selector(".play:has-text('Again')")
    scrubbed(page, 0.5)
    page.wait_for_function("location.search.includes('at=50')")
    page.click("#preset label:has-text('Ladder')")  # an instant belongs to its settings
    page.wait_for_function("!location.search.includes('at=')")
    scrubbed(page, 0.3)
    page.wait_for_timeout(400)
    assert "at=" not in page.url


def test_the_link_claims_no_comparison_of_settings_chosen_after_it_was_asked_for(visit: Visit) -> None:
    page = visit().at("compare", lanes="cache,paged", max_tokens=10, repeats=1)
    held: list[Route] = []
    page.route("**/queue/join*", lambda route: held.append(route), times=1)
    page.click("#run")
    until(lambda: page.wait_for_timeout(20) or held)
    page.click("#lanes label:has-text('INT8') >> nth=0")
    page.wait_for_function("location.search.includes('int8')")
    held.pop().continue_()
    page.wait_for_selector(".contest[data-over=true] .lane", timeout=90_000)
    assert "run" not in parse_qs(urlsplit(page.url).query)
    page.click("#run")
    page.wait_for_function("location.search.includes('run=1')")


def test_a_link_with_a_value_left_out_still_links_to_its_comparison(visit: Visit) -> None:
    page = visit(reduced_motion="reduce").at("compare", lanes="cache,paged", repeats=0, speed="0.01", run=1)
    page.wait_for_selector(".contest[data-over=true] .lane", timeout=90_000)
    expect(page.locator(".lane.over")).to_have_count(2, timeout=5000)  # nothing moves by itself, for ten seconds
    assert page.inner_text(".play") == "Again"
    assert parse_qs(urlsplit(page.url).query)["run"] == ["1"]


def test_mistakes_are_explained_and_a_comparison_can_be_stopped(visit: Visit) -> None:
    page = visit().at("compare", lanes="cache,paged", own=HOSTILE, max_tokens=500, repeats=9)
    page.click("#run")
    page.wait_for_selector(".contest-say.problem")
    assert "Your own settings: there is no setting" in page.inner_text(".contest-say")
    page.fill("#own textarea", "")
    page.click("#run")
    page.wait_for_selector(".contest-say:text-matches('Run [3-9]+ of 18: .*, [1-9][0-9]* tokens')")
    page.focus(".contest-lower th >> nth=1")
    about = page.inner_text("#meaning")
    drawn = page.evaluate(
        """async () => {
          const [said, plot] = [".contest-say", "[data-chart=bars] .plot"].map((part) => document.querySelector(part));
          let [drawings, changes] = [0, 0];
          const run = () => parseInt(said.textContent.slice("Run ".length));
          const before = run();
          plot.on("plotly_afterplot", () => (drawings += 1));
          await new Promise((done) => {
            new MutationObserver(() => (changes += 1) > 15 && done()).observe(said, { childList: true });
          });
          return drawings - (run() - before);
        }"""
    )
    assert drawn <= 1, "once per run, and not whenever a token is counted"
    assert (about, page.inner_text("#meaning")) == (COLUMNS[1][1],) * 2, "what has the focus stays"
    page.keyboard.press("Escape")
    page.wait_for_function("document.querySelector('.contest-say').textContent.startsWith('Stopped')")
    assert page.evaluate("window.pwned") is None


def test_the_page_fits_the_screen(visit: Visit) -> None:
    page = visit().at(
        "compare",
        lanes="cache,int8,paged,draft-4",
        own=f"{'漢字' * 7}: kv_dtype=int8,paged=true,speculative=draft",
        max_tokens=32,
        repeats=1,
        temperature=0.6,
        seed=2,
    )
    places = "[...document.querySelectorAll('.race, .contest-lower')].map(part => part.getBoundingClientRect().top)"
    before = page.evaluate(places)
    compared(page)
    page.wait_for_selector(".partings tbody tr")  # differences are listed below and move nothing
    assert page.evaluate(places) == before
    for wide, high in ((1280, 720), (1000, 720), (768, 1024)):
        page.set_viewport_size({"width": wide, "height": high})
        assert_fits(page, wide)
    left = "nodes => Math.min(...nodes.map((node) => node.getBoundingClientRect().left))"
    plot, names = (page.eval_on_selector_all(f"[data-chart=bars] {part}", left) for part in (".plot", ".ytick text"))
    assert plot <= names, "no name is cut off"
    told = page.evaluate("document.querySelector('[data-chart=positions] .plot').ariaDescription")
    assert set(re.findall(r"guess (.+?):", told)) == set("1234"), "although they are drawn side by side"
    as_on_a_phone(page)
    assert_fits(page, 390)


def assert_fits(page: Page, wide: int) -> None:
    over = "[document.documentElement.scrollWidth - innerWidth, document.documentElement.scrollHeight - innerHeight]"
    for face in ("theory", "race"):
        page.click(f"[data-shows={face}]")
        assert page.locator("thead th:empty").count() == 0
        line = "getComputedStyle(document.querySelector('.source a')).textDecorationLine"
        assert page.evaluate(line) == "underline", "within text, colour alone does not mark a link"
        for plot in page.locator(".plot:has(.main-svg):visible").all():
            assert plot.get_attribute("role") == "img"
            assert plot.get_attribute("aria-labelledby")
        across, down = page.evaluate(over)
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


def test_a_run_in_the_lab_leads_to_a_comparison_of_its_settings(visit: Visit) -> None:
    long = {"max_tokens": 1000, "kernels": "reference"}
    lab = visit().open(speculative="draft", paged=0, temperature=0, prompt=HOSTILE, **long)
    link = lab.page.locator(".against")
    assert link.is_hidden()
    lab.run()
    lab.wait_for_tokens(5)
    assert link.is_hidden()
    lab.page.keyboard.press("Escape")
    link.wait_for()
    assert link.get_attribute("title") == "Compare with the same settings without guesses"
    assert link.get_attribute("href").startswith("compare?")
    link.click()
    page = lab.page
    page.wait_for_selector(".toast-wrap:has-text('at most 500 tokens: 500, not 1,000.')")
    page.wait_for_selector(".contest-say:text-is('Warm-up 2 of 2: Yours, 16 tokens'), .contest-say:has-text('Run ')")
    assert page.input_value("#own textarea") == "Yours: speculative=draft, kernels=reference", "its text is unfolded"
    page.keyboard.press("Escape")

    lab.open(speculative="off", kv_dtype="int8", paged=0, max_tokens=12, temperature=0, prompt=HOSTILE)
    lab.run()
    lab.finish()
    assert link.get_attribute("title") == "Compare with the cache alone"
    link.click()
    lab.page.wait_for_selector(".contest[data-over=true] .lane", timeout=90_000)
    assert lab.page.locator(".lane").evaluate_all("lanes => lanes.map(lane => lane.dataset.lane)") == ["Cache", "INT8"]

    lab.open(speculative="off", paged=0, max_tokens=2)
    lab.run()
    lab.finish()
    assert link.is_hidden()


def test_a_run_that_fails_before_its_first_frame_hides_the_compare_link(visit: Visit) -> None:
    lab = visit().open(paged=1, max_tokens=12)
    link = lab.page.locator(".against")
    lab.run()
    lab.finish()
    assert link.is_visible()
    ended = 'data: {"problem": "The engine stumbled."}\n\nevent: end\ndata: \n\n'  # before its first frame
    lab.page.route("**/channels/**", lambda route: route.fulfill(content_type="text/event-stream", body=ended))
    lab.page.click("#run")
    lab.page.wait_for_selector(".say.problem")
    assert link.is_hidden()


def test_a_closed_page_ends_its_comparison(visit: Visit) -> None:
    """Which would take minutes."""
    lab = visit()
    page = lab.at("compare", lanes="cache,no-cache", max_tokens=500, repeats=9)

    def busy() -> bool:
        told = urllib.request.urlopen(f"{lab.server}/metrics", timeout=30).read().decode()
        return re.search(r"^decode_lab:visits (.*)$", told, re.MULTILINE)[1] != "0.0"

    def idle() -> bool:
        """For longer than between two of its runs."""
        return not any(busy() for _ in range(30))

    until(idle)  # whatever the tests before have left
    page.click("#run")
    until(busy)
    page.close()
    until(idle)
