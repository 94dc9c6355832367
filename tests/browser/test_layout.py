"""How the Lab's page fits windows of every size, from a projector to a phone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from lab import EngineConfig, Run
from lab.settings import SETTINGS
from tests.browser.pages import OVERFLOW, Lab
from tests.visualize.conftest import script

Visit = Callable[..., Lab]
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
BOXES = """() => Object.fromEntries(
  [".readouts", ".story", ".charts", ".transport", ".say", "#run", "[data-chart=blocks] .plot"].map(
    (where) => [where, document.querySelector(where).getBoundingClientRect().toJSON()]))"""
ROOM = "document.querySelector('#settings').clientHeight - document.querySelector('#settings').scrollHeight"
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
    "speed": "0.93× (was 1234)",
    "accepted": "was 100",
    "kv": "allocated 0.51×",
    "first": "0.21× (was 46.3)",
    "gaps": "p50 0.21×",
    "limit": "a cache helps",
    "memory": "the same",
}
CUT = """([longest, small]) => [...document.querySelectorAll(".readout:not([hidden])")].filter((card) => {
  card.querySelector(".value").textContent = longest[card.dataset.key];
  card.querySelector(".was").textContent = small[card.dataset.key] ?? "";
  const number = document.createRange();
  number.selectNodeContents(card.querySelector(".number"));
  const texts = [...card.querySelectorAll(".label, .was")];
  return number.getBoundingClientRect().right > card.getBoundingClientRect().right - 4
    || texts.some(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth);
}).map((card) => card.dataset.key)"""
"""The readouts in which such numbers, small texts or their labels are cut off."""


def test_on_a_projector_everything_is_in_view_nothing_jumps_and_no_readout_is_cut_off(visit: Visit) -> None:
    lab = visit().open()
    before = lab.page.evaluate(BOXES)
    lab.run()
    lab.wait_for_tokens(30)
    assert lab.page.evaluate(BOXES) == before
    assert lab.page.evaluate(OVERFLOW) == [0, 0]
    assert lab.page.evaluate(ROOM) >= 0
    lab.finish()
    top = lab.page.evaluate("document.querySelector('.token').offsetTop")
    lab.choose("speculative", "ngram")
    lab.toggle("adaptive_window")
    lab.choose("kv_dtype", "int4")
    lab.ran()  # of which the most is said at its end, compared with the run before
    assert lab.page.inner_text(".compared")
    assert lab.page.evaluate("document.querySelector('.token').offsetTop") == top
    say = "document.querySelector('.say')"
    assert lab.page.evaluate(f"{say}.scrollHeight - {say}.clientHeight") <= 0
    after = lab.page.evaluate(BOXES)
    assert {where: box for where, box in after.items() if where != ".say"} == {
        where: box for where, box in before.items() if where != ".say"
    }
    assert lab.page.evaluate(OVERFLOW) == [0, 0]
    for prefix_caching in (False, True):  # with which there is one more
        lab.page.set_viewport_size({"width": 1280, "height": 720})
        if prefix_caching:
            lab.toggle("enable_prefix_caching")
        lab.ran()
        assert lab.page.is_visible("[data-key=found]") == prefix_caching
        for wide, high in ((1280, 720), (1600, 900), (1000, 720), (390, 844)):
            lab.page.set_viewport_size({"width": wide, "height": high})
            assert lab.page.evaluate(CUT, [LONGEST, SMALL]) == [], (prefix_caching, wide)


def test_on_a_projector_no_control_needs_scrolling(visit: Visit) -> None:
    lab = visit().open(speculative="off", enable_prefix_caching=1, adaptive_window=1)
    for name, about in SETTINGS["speculative"].about.items():
        lab.choose("speculative", name)
        expect(lab.control("speculative")).to_contain_text(about)
        assert [lab.page.evaluate(ROOM) >= 0, lab.page.evaluate(OVERFLOW)] == [True, [0, 0]], name
    # What was measured is said in one line.
    lines = """part => {
      const text = document.createRange();
      text.selectNodeContents(part);
      return new Set([...text.getClientRects()].map(({ top }) => top)).size;
    }"""
    for value in ("int8", "int4"):
        lab.choose("kv_dtype", value)
        assert lab.control("kv_dtype").locator(".info-text").evaluate(lines) == 1, value
    assert lab.control("logprobs").locator(".info-text").evaluate(lines) == 1


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


@pytest.mark.parametrize("path", ["compare", "pool"])
def test_no_scrollbar_is_shown_where_there_is_nothing_to_scroll(visit: Visit, path: str) -> None:
    page = visit(viewport={"width": 1440, "height": 900}).at(path)
    assert page.evaluate(EMPTY_SCROLLBARS) == []


ROUNDS = """() => {
  const plot = document.querySelector("[data-chart=rounds] .plot");
  const { _length: high, range: [low, top] } = plot._fullLayout.yaxis;
  const labels = [...plot.querySelectorAll(".ytick text")];
  const boxes = labels.map((label) => label.getBoundingClientRect());
  return {
    row: high / (top - low),
    side: Math.max(...plot._fullData.map(({ marker }) => marker.size)),
    last: labels.at(-1).textContent,
    apart: Math.min(...boxes.slice(1).map(({ bottom }, at) => boxes[at].top - bottom)),
  };
}"""
DRAWN = """(plot => plot._fullData?.some(({ x }) => x?.length)
  && plot.querySelector(".main-svg").clientWidth === plot.clientWidth)"""


def test_in_a_small_window_everything_can_be_reached_and_rounds_of_many_drafts_are_drawn_row_by_row(
    visit: Visit, tmp_path: Path
) -> None:
    lab = visit(viewport={"width": 1440, "height": 900}).open(max_tokens=100)
    page = lab.page
    lab.ran()
    assert page.evaluate(EMPTY_SCROLLBARS) == []
    page.wait_for_selector(".against:not([hidden])")
    say, box = (f"document.querySelector('{part}')" for part in (".say", ".gradio-container"))
    for wide, high in ((1024, 768), (821, 800), (900, 700), (1100, 600), (1366, 625), (1280, 720)):
        page.set_viewport_size({"width": wide, "height": high})
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_function(f"({SQUARES})() <= 0 && ({OUT})().length === 0")
        across, down = page.evaluate(OVERFLOW)
        assert across <= 0  # less by a scrollbar where there is one
        if (wide, high) in ((1024, 768), (1280, 720)):  # projectors
            assert down == 0
        assert page.evaluate(f"{box}.scrollHeight - {box}.clientHeight") == 0, "clipped content cannot be scrolled to"
        assert page.evaluate(f"{say}.scrollHeight - {say}.clientHeight") <= 0, (wide, high)

    # A run from a file may have more draft tokens a round than the page lets one choose.
    file = tmp_path / "run.json"
    Run(script(EngineConfig(speculative="draft", num_speculative_tokens=32), max_tokens=60)).save(file)
    for wide, high in ((1280, 720), (390, 844)):
        page.set_viewport_size({"width": wide, "height": high})
        lab.reopen(file)
        page.wait_for_function(
            f"""wide => innerWidth === wide && {DRAWN}(document.querySelector('[data-chart=rounds] .plot'))
              && ({ROUNDS})().last === "32" """,
            arg=wide,
        )
        seen = page.evaluate(ROUNDS)
        assert 0 < seen["side"] <= seen["row"], wide
        assert seen["apart"] > -4, "the boxes of text are higher than its digits"
    page.set_viewport_size({"width": 320, "height": 640})
    page.click(".save summary")
    menu = page.locator(".save[open] div").bounding_box()
    assert menu["x"] >= 0
    assert menu["x"] + menu["width"] <= 320


def test_on_a_phone_the_page_is_one_column_with_one_chart_at_a_time_and_nothing_covers_the_run_button(
    visit: Visit,
) -> None:
    lab = visit(**PHONE).open(kv_cache=0)  # most settings are disabled
    page = lab.page
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

    lab.open(max_tokens=60)
    off = """[...document.querySelectorAll("#folds button.label-wrap")].map((fold) => {
      const [word, arrow] = [...fold.children].map((part) => part.getBoundingClientRect());
      return Math.abs(word.top + word.bottom - arrow.top - arrow.bottom) / 2;
    })"""
    assert max(page.evaluate(off)) <= 3
    meaning = page.locator(".meaning")
    page.tap("[data-key=pass]")  # a readout explains itself on a tap
    box = meaning.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    page.tap(".say")
    assert not meaning.is_visible()
    left = "selector => document.querySelector(selector).getBoundingClientRect().left"
    assert page.evaluate(left, "#pair input") - page.evaluate(left, "#pair .container > .wrap") <= 12
    page.route("**/channels/**", lambda route: None)  # held back: the run has begun, and no frame of it arrives
    lab.run()
    page.tap(".choose button[data-for=timing]")
    assert lab.link["chart"] == "timing"
    page.unroute_all(behavior="ignoreErrors")

    lab.ran(max_tokens=60)
    page.wait_for_function(f"{OVERFLOW}[0] === 0")
    shown = "[...document.querySelectorAll('.charts .panel')].filter(p => p.offsetWidth).map(p => p.dataset.chart)"
    assert page.evaluate(shown) == ["rounds"]
    lab.tokens("bonus").first.tap()  # a token explains itself on a tap, too
    assert "bonus" in lab.tip.inner_text()
    page.tap(".say")
    assert lab.tip.is_hidden()
    page.tap(".choose button[data-for=timing]")
    assert page.evaluate(shown) == ["timing"]
    assert lab.seen()["timing"]["draft"] > 0
    page.reload()  # the chosen chart is in the address
    lab.ready()
    assert page.evaluate(shown) == ["timing"]
    page.tap(".choose button[data-for=rounds]")
    assert "chart" not in lab.link
