"""How the Lab's page fits windows of every size, from a projector to a phone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from lab import EngineConfig, Run
from tests.browser.conftest import OVERFLOW, Lab
from tests.visualize.conftest import script
from visualize.states import DRAFTERS

Visit = Callable[..., Lab]

BOXES = """() => Object.fromEntries(
  [".readouts", ".story", ".charts", ".transport", ".say", "#run", "[data-chart=blocks] .plot"].map(
    (where) => [where, document.querySelector(where).getBoundingClientRect().toJSON()]))"""

ROOM = "document.querySelector('#settings').clientHeight - document.querySelector('#settings').scrollHeight"


OWN = {"draft": ["#pair"], "early_exit": ["#early-exit-layer"], "synthetic": ["#synthetic-acceptance-rate"]}
"""Controls that are shown only with their drafter."""

LONGEST = {
    "speed": "99999",
    "pass": "33.00",
    "accepted": "100",
    "kv": "99.9 / 99.9",
    "first": "99.9",
    "found": "99999",
    "gaps": "99.9 / 999",
    "limit": "1000",
    "memory": "9999",
}
SMALL = {
    "speed": "×0.93 of 1234",
    "accepted": "was 100",
    "kv": "held ×0.51 of 99.9 / 99.9",
    "first": "×0.21 of 46.3",
    "gaps": "p50 ×0.21 of 99.9 / 999",
    "limit": "a cache helps",
    "memory": "the same",
}
CUT = """([longest, small]) => [...document.querySelectorAll(".readout:not([hidden])")].filter((card) => {
  card.querySelector(".value").textContent = longest[card.dataset.key];
  card.querySelector(".was").textContent = small[card.dataset.key] ?? "";
  const number = document.createRange();
  number.selectNodeContents(card.querySelector(".number"));
  const { scrollWidth, clientWidth } = card.querySelector(".was");
  return number.getBoundingClientRect().right > card.getBoundingClientRect().right - 4 || scrollWidth > clientWidth;
}).map((card) => card.dataset.key)"""


def test_no_readout_is_cut_off_and_text_does_not_move_when_a_run_is_compared_with_the_one_before(visit: Visit) -> None:
    lab, tops = visit().open(max_tokens=5), []
    for _ in range(2):
        lab.run()
        lab.finish()
        tops.append(lab.page.locator(".token").first.bounding_box())
    assert lab.page.inner_text(".compared").startswith("Small: the previous run")
    assert tops[0] == tops[1]
    for enable_prefix_caching in (False, True):
        lab.page.set_viewport_size({"width": 1280, "height": 720})
        if enable_prefix_caching:
            lab.toggle("enable-prefix-caching")
        lab.run()
        lab.finish()
        assert lab.page.is_visible("[data-key=found]") == enable_prefix_caching
        for wide, high in ((1280, 720), (1600, 900), (1000, 720), (390, 844)):
            lab.page.set_viewport_size({"width": wide, "height": high})
            assert lab.page.evaluate(CUT, [LONGEST, SMALL]) == [], (enable_prefix_caching, wide)


def test_on_a_projector_no_control_needs_scrolling_and_what_was_measured_is_said_in_one_line(visit: Visit) -> None:
    lab = visit().open(speculative="off", enable_prefix_caching=1, adaptive_window=1)
    for name, who in DRAFTERS.items():
        lab.choose("speculative", who.label)
        lab.page.wait_for_function(
            "about => document.querySelector('#speculative').innerText.includes(about)", arg=who.about
        )
        for own in OWN.get(name, ()):
            lab.page.wait_for_selector(own, state="visible")
        assert lab.page.evaluate(ROOM) >= 0, name
        assert lab.page.evaluate(OVERFLOW) == [0, 0], name
    # What was measured is said in one line.
    lines = """where => {
      const text = document.createRange();
      text.selectNodeContents(document.querySelector(where));
      return new Set([...text.getClientRects()].map(({ top }) => top)).size;
    }"""
    for label in ("INT8", "INT4"):
        lab.choose("kv-dtype", label)
        lab.page.wait_for_selector("#kv-dtype :text('(on a CPU)')")
        assert lab.page.evaluate(lines, "#kv-dtype .info-text") == 1, label
    assert "(on a CPU)" in lab.page.inner_text("#logprobs")
    assert lab.page.evaluate(lines, "#logprobs .info-text") == 1


def test_on_a_projector_everything_is_in_view_and_nothing_jumps(visit: Visit) -> None:
    lab = visit().open()
    before = lab.page.evaluate(BOXES)
    lab.run()
    lab.wait_for_tokens(60)
    assert lab.page.evaluate(BOXES) == before
    assert lab.page.evaluate(OVERFLOW) == [0, 0]
    assert lab.page.evaluate(ROOM) >= 0
    lab.finish()
    lab.toggle("kv-cache")
    lab.page.wait_for_selector("#kv-dtype input:disabled")
    assert lab.page.evaluate(BOXES) == before


def test_on_a_projector_the_longest_end_is_told_in_full(visit: Visit) -> None:
    lab = visit().open(speculative="ngram", adaptive_window=1, max_tokens=1000, kv_dtype="int4")
    before = lab.page.evaluate(BOXES)
    lab.run()
    lab.finish()
    say = "document.querySelector('.say')"
    assert "guesses (" in lab.page.inner_text(".say"), "not every round had guesses"
    assert lab.page.evaluate(f"{say}.scrollHeight - {say}.clientHeight") <= 0
    after = lab.page.evaluate(BOXES)
    assert {where: box for where, box in after.items() if where != ".say"} == {
        where: box for where, box in before.items() if where != ".say"
    }
    assert lab.page.evaluate(OVERFLOW) == [0, 0]


OUT = """() => [".save summary", ".against", ".place", ".say", "#run"].filter((where) => {
  const { left, right, top, bottom } = document.querySelector(where).getBoundingClientRect();
  return left < 0 || right > innerWidth || top < 0 || bottom > innerHeight;
})"""
SQUARES = """() => {
  const plot = document.querySelector("[data-chart=rounds] .plot");
  const { _length: wide, range: [first, end] } = plot._fullLayout.xaxis;
  return Math.max(...plot._fullData.map(({ marker }) => marker.size)) - wide / (end - first);
}"""
"""By how much a square of the rounds chart is wider than its column."""


EMPTY_SCROLLBARS = """() => [...document.querySelectorAll("body *")].filter((node) => {
  const { display, borderLeftWidth, borderRightWidth } = getComputedStyle(node);
  const bar = node.offsetWidth - node.clientWidth - parseFloat(borderLeftWidth) - parseFloat(borderRightWidth);
  return display !== "inline" && node.checkVisibility() && bar > 3 && node.scrollHeight - node.clientHeight < 4;
}).map((node) => node.outerHTML.slice(0, 100))"""


@pytest.mark.parametrize("path", ["", "compare", "pool"])
def test_no_scrollbar_is_shown_where_there_is_nothing_to_scroll(visit: Visit, path: str) -> None:
    lab = visit(viewport={"width": 1440, "height": 900})
    lab.at(path, **({"tokens": 24} if path == "pool" else {}))
    if path != "compare":
        lab.page.click("#run")
        lab.page.wait_for_selector(".say:text-matches('^(Finished|Done)')", timeout=60_000)
    assert lab.page.evaluate(EMPTY_SCROLLBARS) == []


ROUNDS = """() => {
  const plot = document.querySelector("[data-chart=rounds] .plot");
  const { _length: high, range: [low, top] } = plot._fullLayout.yaxis;
  const labels = [...plot.querySelectorAll(".ytick text")].map((label) => label.getBoundingClientRect());
  return {
    row: high / (top - low),
    side: Math.max(...plot._fullData.map(({ marker }) => marker.size)),
    labels: [...plot.querySelectorAll(".ytick text")].map((label) => label.textContent),
    apart: Math.min(...labels.slice(1).map(({ bottom }, at) => labels[at].top - bottom)),
  };
}"""


DRAWN = """(plot => plot._fullData?.some(({ x }) => x?.length)
  && plot.querySelector(".main-svg").clientWidth === plot.clientWidth)"""


def test_rounds_of_many_guesses_are_drawn_row_by_row(visit: Visit, tmp_path: Path) -> None:
    """A run from a file may have more guesses a round than the page lets one choose."""
    file = tmp_path / "run.json"
    Run(script(EngineConfig(speculative="draft", num_speculative_tokens=32), max_tokens=60)).save(file)
    lab = visit().open()
    for wide, high in ((1280, 720), (390, 844)):
        lab.page.set_viewport_size({"width": wide, "height": high})
        lab.reopen(file)
        lab.page.wait_for_function(
            f"wide => innerWidth === wide && {DRAWN}(document.querySelector('[data-chart=rounds] .plot'))", arg=wide
        )
        seen = lab.page.evaluate(ROUNDS)
        assert 0 < seen["side"] <= seen["row"], wide
        assert (seen["labels"][0], seen["labels"][-1]) == ("target", "32")
        assert seen["apart"] > -4, "the boxes of text are higher than its digits"


def test_in_a_small_window_everything_can_be_reached_and_the_save_menu_is_within_it(visit: Visit) -> None:
    lab = visit(viewport={"width": 1024, "height": 768}).open(max_tokens=160)
    page = lab.page
    lab.run()
    lab.finish()
    page.wait_for_selector(".against:not([hidden])")
    for wide, high in ((1024, 768), (821, 800), (900, 700), (1100, 600), (1024, 600), (1366, 625), (1280, 720)):
        page.set_viewport_size({"width": wide, "height": high})
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_timeout(100)
        assert page.evaluate(OUT) == [], (wide, high)
        across, down = page.evaluate(OVERFLOW)
        assert across <= 0  # less by a scrollbar where there is one
        if (wide, high) in ((1024, 768), (1280, 720)):  # projectors
            assert down == 0
        box = "document.querySelector('.gradio-container')"
        assert page.evaluate(f"{box}.scrollHeight - {box}.clientHeight") == 0, "clipped content cannot be scrolled to"
        say = "document.querySelector('.say')"
        assert page.evaluate(f"{say}.scrollHeight - {say}.clientHeight") <= 0, (wide, high)
        page.wait_for_function(f"({SQUARES})() <= 0")
    page.set_viewport_size({"width": 320, "height": 640})
    page.click(".save summary")
    box = lab.page.locator(".save[open] div").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 320


def test_a_chart_can_be_chosen_before_a_run_shows_anything(visit: Visit) -> None:
    lab = visit(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True).open(max_tokens=60)
    lab.page.route("**/channels/**", lambda route: None)  # held back: the run has begun, and no frame of it arrives
    lab.run()
    lab.page.tap(".choose button[data-for=timing]")
    assert parse_qs(urlsplit(lab.page.url).query)["chart"] == ["timing"]
    lab.page.unroute_all(behavior="ignoreErrors")


def test_on_a_phone_nothing_covers_the_run_button(visit: Visit) -> None:
    """Without a cache, most settings are disabled."""
    page = visit(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True).open(kv_cache=0).page
    page.click("#folds button >> nth=0")
    page.wait_for_selector("#eviction")
    drawn = """element => {
      const z = (node) => node && (Number(getComputedStyle(node).zIndex) || z(node.parentElement) || 0);
      const { left, top, width, height } = element.getBoundingClientRect();
      const there = document.elementsFromPoint(left + width / 2, top + height / 2);
      const others = there.filter((node) => !node.contains(element));
      return there[0] === element && others.every((node) => z(node) < z(element));
    }"""
    run = page.query_selector("#run")
    for step in range(0, 700, 50):
        page.evaluate("y => scrollTo(0, y)", step)
        assert run.evaluate(drawn), step


def test_on_a_phone_the_page_is_one_column_with_one_chart_at_a_time(visit: Visit) -> None:
    lab = visit(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True).open(max_tokens=60)
    off = """[...document.querySelectorAll("#folds button.label-wrap")].map((fold) => {
      const [word, arrow] = [...fold.children].map((part) => part.getBoundingClientRect());
      return Math.abs(word.top + word.bottom - arrow.top - arrow.bottom) / 2;
    })"""
    assert max(lab.page.evaluate(off)) <= 3
    meaning = lab.page.locator(".meaning")
    lab.page.tap("[data-key=pass]")  # a readout explains itself on a tap
    assert "Tokens / passes of the target" in meaning.inner_text()
    box = meaning.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    lab.page.tap(".say")
    assert not meaning.is_visible()
    left = "selector => document.querySelector(selector).getBoundingClientRect().left"
    assert lab.page.evaluate(left, "#pair input") - lab.page.evaluate(left, "#pair .container > .wrap") <= 12
    lab.run()
    lab.finish()
    assert lab.page.evaluate(OVERFLOW)[0] == 0
    shown = "[...document.querySelectorAll('.charts .panel')].filter(p => p.offsetWidth).map(p => p.dataset.chart)"
    assert lab.page.evaluate(shown) == ["rounds"]
    tip = lab.page.locator(".tip")
    lab.page.locator(".token.bonus").first.tap()  # a token explains itself on a tap, too
    assert "bonus" in tip.inner_text()
    lab.page.tap(".say")
    assert tip.is_hidden()
    lab.page.tap(".choose button[data-for=timing]")
    assert lab.page.evaluate(shown) == ["timing"]
    assert lab.seen()["timing"]["draft"] > 0
    lab.page.reload()  # the chosen chart is in the address
    lab.ready()
    assert lab.page.evaluate(shown) == ["timing"]
    lab.page.tap(".choose button[data-for=rounds]")
    assert "chart" not in parse_qs(urlsplit(lab.page.url).query)
