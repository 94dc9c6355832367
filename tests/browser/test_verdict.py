"""Choosing a draft token by mouse or keyboard opens its verdict: the chart of the distributions behind it."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import Page, expect

from lab import Run
from tests.browser.pages import Lab, Visit
from tests.browser.test_accessibility import violations
from tests.browser.test_player import assert_shows as assert_stage_shows
from visualize.reduce.frames import Reducer

LINK = {"seed": 3, "max_tokens": 40, "logprobs": 5}
OPENED = """() => {
  const panel = document.querySelector(".verdict");
  if (panel.hidden) return null;
  const plot = panel.querySelector(".plot");
  return {
    title: panel.querySelector("h2").textContent,
    say: [...panel.querySelector(".rule").childNodes]
      .filter((node) => node.className !== "top").map((node) => node.textContent).join(""),
    heights: plot.hidden ? null : plot.data.map((trace) => [...trace.y]),
    names: plot.hidden ? null : plot.layout.xaxis.ticktext,
    token: document.querySelector(".token.chosen .word")?.textContent ?? null,
  };
}"""
MARKED = """() => {
  const { shapes, xaxis } = document.querySelector("[data-chart=rounds] .plot")._fullLayout;
  const [first, last] = xaxis.range;
  return [shapes.map(({ x0, x1 }) => [x0, x1])[0], first <= shapes[0].x0 && shapes[0].x1 <= last];
}"""
SQUARE = """([x, y]) => {
  const plot = document.querySelector("[data-chart=rounds] .plot");
  const { xaxis, yaxis } = plot._fullLayout, box = plot.getBoundingClientRect();
  return [box.left + xaxis._offset + xaxis.l2p(x), box.top + yaxis._offset + yaxis.l2p(y)];
}"""
POINTED = """([x, y]) => document.querySelector("[data-chart=rounds] .plot")._hoverdata?.some(
  (point) => point.x === x && point.y === y)"""
"""The chart has noticed which square the pointer is on: it checks ten times a second."""


def drawn(page: Page, script: str) -> Any:
    """What the script finds once the chart of what was opened is drawn."""
    page.wait_for_selector(".verdict:not([aria-busy=true])", state="attached")
    return page.evaluate(script)


def page_tops(lab: Lab) -> list[list[Any]]:
    """The likeliest tokens at each position of the run, as its file has them."""
    with TemporaryDirectory() as folder:
        frames = Reducer().feed(Run.load(lab.save("json", Path(folder))).events)
    return [token["top"] for frame in frames for token in frame.get("tokens", [])]


def assert_shows(seen: dict[str, Any] | None, reported: dict[str, Any]) -> None:
    assert seen is not None
    assert (seen["title"], seen["say"]) == (reported["title"], reported["say"])
    assert seen["heights"] == [trace["y"] for trace in reported["columns"]]
    assert seen["names"] == reported["layout"]["xaxis.ticktext"]


def test_tokens_squares_and_keys_open_the_recorded_verdict_and_a_link_opens_it_again(
    visit: Visit, tmp_path: Path
) -> None:
    lab = visit().ran(**LINK)
    page = lab.page
    assert drawn(page, OPENED) is None
    frames = Reducer().feed(Run.load(lab.save("json", tmp_path)).events)
    reported = [(frame["step"], i, each) for frame in frames for i, each in enumerate(frame.get("verdicts", []))]
    verdicts = [each for *_, each in reported]
    lab.tokens("recovered").first.click()
    of_recovered = drawn(page, OPENED)
    assert_shows(of_recovered, next(each for each in verdicts if each["title"] == of_recovered["title"]))
    assert not page.is_visible("[data-chart=blocks]")
    assert page.is_visible("[data-chart=rounds]")
    for token in (lab.tokens("accepted").last, lab.tokens("accepted").first):
        token.click()
        step = int(page.inner_text(".verdict h2").split()[1].rstrip(","))
        assert drawn(page, MARKED) == [[step - 0.5, step + 0.5], True], "its round is marked and in view"
    assert_shows(drawn(page, OPENED), verdicts[0])
    everything = [
        each
        for frame in frames
        if frame.get("round")
        for each in [*frame.get("verdicts", []), *[None] * (frame["tokens"][-1]["origin"] == "bonus")]
    ]
    at = 0
    for button, by in (("on", 1), ("on", 1), ("back", -1)):
        page.click(f"[data-verdict={button}]")
        at += by
        if everything[at]:
            assert_shows(drawn(page, OPENED), everything[at])
        else:
            assert drawn(page, OPENED)["title"].endswith("bonus token")
    page.focus(".text")
    page.keyboard.press("Escape")
    assert drawn(page, OPENED) is None
    assert page.is_visible("[data-chart=blocks]")

    last = reported[-1][0]
    for position, each in [(position, each) for step, position, each in reported if step == last][:2]:
        square = page.evaluate(SQUARE, [last, position + 1])
        page.mouse.move(*square)
        page.wait_for_function(POINTED, arg=[last, position + 1])  # a person points before clicking
        page.mouse.click(*square)
        expect(lab.verdict.locator("h2")).to_have_text(each["title"])
        assert_shows(drawn(page, OPENED), each)

    page.focus(".text")
    lab.press("Escape", "Home", "Enter")
    assert drawn(page, OPENED) is None  # prompt tokens have no verdict
    lab.press(*["ArrowRight"] * (lab.tokens("prompt").count() + 1), "Enter")  # the first comes from the prefill
    assert_shows(drawn(page, OPENED), verdicts[0])
    lab.press("ArrowRight")
    assert_shows(drawn(page, OPENED), verdicts[1])

    lab.scrub(9)
    assert drawn(page, OPENED) is not None
    page.click("[data-verdict=close]")
    lab.finish()
    page.wait_for_selector("[data-chart=blocks] .main-svg", state="visible")
    page.wait_for_timeout(200)
    assert_stage_shows(lab, frames, 9)  # including the charts that were covered

    lab.tokens("recovered").first.click()
    page.wait_for_function("location.search.includes('guess=') && location.search.includes('step=')")
    seen = drawn(page, OPENED)
    page.goto(f"{re.sub('step=[^&]*&?', '', page.url)}&run=1")  # without a step: at the run's end
    lab.ready()
    expect(lab.verdict).to_be_visible()
    assert drawn(page, OPENED) == seen
    lab.finish()
    assert lab.instant == lab.last

    is_read_aloud_without_marks(page)
    every_token_shows_the_targets_likeliest(lab)
    shows_probabilities_by_colour(lab)
    lab.toggle("paged")  # the draft token belonged to other settings
    lab.until_asked(guess=None)


def is_read_aloud_without_marks(page: Page) -> None:
    aloud = page.locator("div.text").aria_snapshot()
    marks = [mark for mark in page.locator("div.text .above").all_inner_texts() if mark]
    assert marks
    assert not [mark for mark in marks if mark[0] in aloud], "a text that is read aloud has no marks between its words"
    assert aloud.count("paragraph: ") == 1, "all of it, spaces included, is one paragraph"


def every_token_shows_the_targets_likeliest(lab: Lab) -> None:
    page, tops = lab.page, page_tops(lab)
    for origin in ("plain", "recovered", "bonus", "accepted"):
        token = lab.tokens(origin).first
        token.click()
        rows = page.locator(".rule .top tr")
        expect(rows).to_have_count(5)
        told = [float(p) for p in rows.locator("td:nth-of-type(1)").all_inner_texts()]
        assert told == sorted(told, reverse=True)
        assert told == [p for _, p in tops[int(token.get_attribute("data-index")) - lab.tokens("prompt").count()]]
    lab.verdict.locator(".main-svg").first.wait_for(state="attached")
    assert violations(page) == []


def shows_probabilities_by_colour(lab: Lab) -> None:
    page = lab.page
    page.focus(".tint")
    lab.press("ArrowDown")  # to probability
    lab.until_asked(colour="p")
    shade = "tokens => tokens.map((token) => getComputedStyle(token.firstChild).backgroundColor)"
    assert len(set(lab.tokens("accepted").evaluate_all(shade))) > 2
    assert violations(page, ".text", ["color-contrast"]) == []
    lab.press("ArrowDown")
    lab.until_asked(colour="bits")
    expect(page.locator(".scale")).to_contain_text("bits")
