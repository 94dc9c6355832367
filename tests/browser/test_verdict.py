"""Choosing a draft token by mouse or keyboard opens its verdict: the chart of the distributions behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from lab import Run
from tests.browser.pages import ENDLESS, Lab
from tests.browser.test_player import assert_shows as assert_stage_shows
from visualize.reduce.frames import Reducer

Visit = Callable[..., Lab]
LINK = {"seed": 3, "max_tokens": 40, "logprobs": 5}
OPENED = """() => {
  const panel = document.querySelector(".verdict");
  if (panel.hidden) return null;
  const plot = panel.querySelector(".plot");
  return {
    title: panel.querySelector("h2").textContent,
    say: panel.querySelector(".rule").textContent,
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


def assert_shows(seen: dict[str, Any] | None, told: dict[str, Any]) -> None:
    assert seen is not None
    assert (seen["title"], seen["say"]) == (told["title"], told["say"])
    assert seen["heights"] == [trace["y"] for trace in told["columns"]]
    assert seen["names"] == told["layout"]["xaxis.ticktext"]


def test_tokens_squares_and_keys_open_the_recorded_verdict_and_a_link_opens_it_again(
    visit: Visit, tmp_path: Path
) -> None:
    lab = visit().ran(**LINK)
    page = lab.page
    assert page.evaluate(OPENED) is None
    file = lab.save("json", tmp_path)
    run = Run.load(file)
    frames = Reducer().feed(run.events)
    told = [(frame["step"], i, each) for frame in frames for i, each in enumerate(frame.get("verdicts", []))]
    verdicts = [each for *_, each in told]
    lab.tokens("recovered").first.click()
    of_recovered = page.evaluate(OPENED)
    assert_shows(of_recovered, next(each for each in verdicts if each["title"] == of_recovered["title"]))
    assert not page.is_visible("[data-chart=blocks]")
    assert page.is_visible("[data-chart=rounds]")
    for token in (lab.tokens("accepted").last, lab.tokens("accepted").first):
        token.click()
        step = int(page.inner_text(".verdict h2").split()[1].rstrip(","))
        assert page.evaluate(MARKED) == [[step - 0.5, step + 0.5], True], "its round is marked and in view"
    assert_shows(page.evaluate(OPENED), verdicts[0])
    at = 0
    for button, by in (("on", 1), ("on", 1), ("back", -1)):
        page.click(f"[data-verdict={button}]")
        at += by
        assert_shows(page.evaluate(OPENED), verdicts[at])
    page.focus(".text")
    page.keyboard.press("Escape")
    assert page.evaluate(OPENED) is None
    assert page.is_visible("[data-chart=blocks]")

    last = told[-1][0]
    for position, each in [(position, each) for step, position, each in told if step == last][:2]:
        square = page.evaluate(SQUARE, [last, position + 1])
        page.mouse.move(*square)
        page.wait_for_function(POINTED, arg=[last, position + 1])  # a person points before clicking
        page.mouse.click(*square)
        expect(lab.verdict.locator("h2")).to_have_text(each["title"])
        assert_shows(page.evaluate(OPENED), each)

    page.focus(".text")
    lab.press("Escape", "Home", "Enter")
    assert page.evaluate(OPENED) is None  # prompt tokens have no verdict
    lab.press(*["ArrowRight"] * (lab.tokens("prompt").count() + 1), "Enter")  # the first comes from the prefill
    assert_shows(page.evaluate(OPENED), verdicts[0])
    lab.press("ArrowRight")
    assert_shows(page.evaluate(OPENED), verdicts[1])

    lab.scrub(9)
    assert page.evaluate(OPENED) is not None
    page.click("[data-verdict=close]")
    lab.finish()
    page.wait_for_selector("[data-chart=blocks] .main-svg", state="visible")
    page.wait_for_timeout(200)
    assert_stage_shows(lab, frames, 9)  # including the charts that were covered
    lab.tokens("accepted").first.click()
    page.focus("[data-verdict=close]")
    lab.press("Home")
    expect(lab.verdict).to_be_hidden()  # it has not happened yet
    for step in (1, 2):
        lab.press("ArrowRight")  # still a key of the player
        lab.wait_for_instant(step)

    lab.scrub(9)
    lab.tokens("recovered").first.click()
    page.wait_for_function("location.search.includes('guess=') && location.search.includes('step=')")
    seen, link = page.evaluate(OPENED), page.url
    page.click("[data-verdict=close]")
    lab.until_asked(guess=None)
    other = visit()
    for shared, instant in ((link, 9), (link.replace("step=", "nothing="), None)):  # without a step: at the run's end
        other.page.goto(f"{shared}&run=1")
        other.ready()
        expect(other.verdict).to_be_visible()
        assert other.page.evaluate(OPENED) == seen
        other.finish()
        assert other.instant == (instant or other.last)
    other.toggle("paged")  # the draft token belonged to other settings
    other.until_asked(guess=None)
    other.open()
    other.reopen(file)
    other.tokens("recovered").first.wait_for()
    other.finish()
    other.tokens("recovered").first.click()
    assert other.page.evaluate(OPENED) == of_recovered


def test_a_run_without_distributions_says_so_and_links_to_a_run_with_them(visit: Visit) -> None:
    lab = visit().ran(**LINK | {"logprobs": 0})
    lab.tokens("recovered").first.click()
    seen = lab.page.evaluate(OPENED)
    assert seen["heights"] is None
    text = lab.seen()["text"]
    lab.page.click(".rule a")
    lab.page.wait_for_function("location.search.includes('run=1')")
    lab.ready()
    expect(lab.verdict).to_be_visible()
    lab.finish()
    assert lab.seen()["text"] == text
    again = lab.page.evaluate(OPENED)
    assert again["title"].startswith(seen["title"])
    assert again["heights"]
    lab.choose("logprobs", "0")
    lab.until_asked(run=None)
    lab.ran()
    assert lab.page.evaluate(OPENED) is None  # a new run begins closed
    lab.choose("speculative", "off")
    expect(lab.option("logprobs", "5")).to_be_disabled()


def test_during_a_run_the_chosen_draft_token_stays_in_view(visit: Visit) -> None:
    lab = visit().open(**ENDLESS | {"speculative": "draft"}, logprobs=5)
    page = lab.page
    lab.run()
    page.wait_for_function("document.querySelectorAll('.token.recovered').length >= 3", timeout=60_000)
    lab.tokens("recovered").last.click()
    seen, there, last = page.evaluate(OPENED), int(page.get_attribute(".stage", "data-at")), lab.instant
    assert seen["heights"]
    lab.wait_for_instant(there)
    page.wait_for_function("last => Number(document.querySelector('.bar').max) > last + 6", arg=last)
    assert lab.running
    assert lab.instant == there
    assert page.evaluate(OPENED) == seen
    assert lab.tip.is_hidden()
    for button in ("back", "back", "on"):
        page.click(f"[data-verdict={button}]")
        assert page.evaluate(
            """() => {
              const text = document.querySelector(".text").getBoundingClientRect();
              const token = document.querySelector(".token.chosen").getBoundingClientRect();
              return token.top >= text.top - 1 && token.bottom <= text.bottom + 1;
            }"""
        )
    lab.press("Escape")
    assert page.evaluate(OPENED) is None
    assert lab.running  # the first Escape closes what is open
    page.click("[data-do=live]")
    box = page.locator("div.text").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 30)  # and stays there
    later = "there => Number(document.querySelector('.stage').dataset.seq) > there"
    page.wait_for_function(later, arg=there + 12)
    expect(lab.tip).to_be_hidden()
    page.wait_for_function(later, arg=lab.instant + 8)
    assert lab.tip.is_hidden()  # though other tokens slid under the pointer
    lab.press("Escape")
    page.wait_for_selector("body:not(.running)")


def test_on_a_phone_the_verdict_takes_the_charts_place_within_reach(visit: Visit) -> None:
    phone = {"width": 390, "height": 844}
    lab = visit(viewport=phone, is_mobile=True, has_touch=True, reduced_motion="reduce").ran(**LINK)
    page = lab.page
    page.evaluate("document.querySelector('.story').scrollIntoView({ block: 'end' })")
    lab.tokens("recovered").first.tap()
    expect(lab.verdict).to_be_visible()
    actions = "document.querySelector('#actions').getBoundingClientRect().top"
    page.wait_for_function(
        f"(({{ top, bottom }}) => top >= 0 && bottom <= {actions})"
        "(document.querySelector('.verdict').getBoundingClientRect())"
    )
    assert not page.is_visible("[data-chart=rounds]")
    for button in page.locator("[data-verdict]").all():
        assert button.get_attribute("aria-label")
        assert min(button.bounding_box()["width"], button.bounding_box()["height"]) >= 40
    page.tap("[data-verdict=close]")
    assert page.is_visible("[data-chart=rounds]")
    lab.tokens("recovered").first.tap()
    expect(lab.verdict).to_be_visible()
    page.tap(".choose button[data-for=timing]")  # choosing a chart closes the verdict
    assert page.is_visible("[data-chart=timing]")
    assert lab.verdict.is_hidden()
    lab.tokens("recovered").first.tap()  # with the rounds chart out of sight
    expect(lab.verdict).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
