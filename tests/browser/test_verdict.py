"""Choosing a guess by mouse or keyboard opens its verdict: the chart of the distributions behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from lab import Run
from tests.browser.conftest import Lab
from tests.browser.test_player import assert_shows as assert_stage_shows
from visualize.reduce.frames import Reducer

Visit = Callable[..., Lab]
LINK = {"seed": 3, "max_tokens": 40, "logprobs": 1}
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


def recorded(visit: Visit, **context: Any) -> Lab:
    lab = visit(**context).open(**LINK)
    lab.run()
    lab.finish()
    return lab


def verdicts(run: Run) -> list[tuple[int, int, dict[str, Any]]]:
    """Step, position and verdict of every judged guess."""
    frames = Reducer().feed(run.events)
    return [(frame["step"], i, each) for frame in frames for i, each in enumerate(frame.get("verdicts", []))]


def assert_shows(seen: dict[str, Any] | None, told: dict[str, Any]) -> None:
    assert seen is not None
    assert (seen["title"], seen["say"]) == (told["title"], told["say"])
    assert seen["heights"] == [trace["y"] for trace in told["columns"]]
    assert seen["names"] == told["layout"]["xaxis.ticktext"]


def test_tokens_squares_and_keys_open_the_recorded_verdict(visit: Visit, tmp_path: Path) -> None:
    lab = recorded(visit)
    page = lab.page
    assert page.evaluate(OPENED) is None
    run = Run.load(lab.save("json", tmp_path))
    told = verdicts(run)
    rejected = [each for _, _, each in told if "rejected" in each["say"]]
    page.locator(".token.recovered").first.click()
    assert_shows(page.evaluate(OPENED), rejected[0])
    assert not page.is_visible("[data-chart=blocks]")
    assert page.is_visible("[data-chart=rounds]")
    rounds, verdict = (page.locator(f".charts {part}").bounding_box() for part in ("[data-chart=rounds]", ".verdict"))
    assert verdict["width"] > 1.9 * rounds["width"]  # as wide as two charts
    page.locator(".token.accepted").first.click()
    assert_shows(page.evaluate(OPENED), told[0][2])
    for token in (page.locator(".token.accepted").first, page.locator(".token.accepted").last):
        token.click()
        step = int(page.inner_text(".verdict h2").split()[1].rstrip(","))
        assert page.evaluate(MARKED) == [[step - 0.5, step + 0.5], True], "its round is marked and in view"
    page.locator(".token.accepted").first.click()
    at = 0
    for button, by in (("on", 1), ("on", 1), ("back", -1)):
        page.click(f"[data-verdict={button}]")
        at += by
        assert_shows(page.evaluate(OPENED), told[at][2])
    page.focus(".text")
    page.keyboard.press("Escape")
    assert page.evaluate(OPENED) is None
    assert page.is_visible("[data-chart=blocks]")

    last = told[-1][0]
    here = [(position, each) for step, position, each in told if step == last]
    for position, each in here:
        square = page.evaluate(SQUARE, [last, position + 1])
        page.mouse.move(*square)
        page.wait_for_function(POINTED, arg=[last, position + 1])  # a person points before clicking
        page.mouse.click(*square)
        page.wait_for_function(
            "title => document.querySelector('.verdict h2').textContent === title", arg=each["title"]
        )
        assert_shows(page.evaluate(OPENED), each)

    page.focus(".text")
    page.keyboard.press("Escape")
    prompt = page.locator(".token.prompt").count()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert page.evaluate(OPENED) is None  # prompt tokens have no verdict
    for _ in range(prompt + 1):  # the first token comes from the prefill
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert_shows(page.evaluate(OPENED), told[0][2])
    page.keyboard.press("ArrowRight")
    assert_shows(page.evaluate(OPENED), told[1][2])

    frames = Reducer().feed(run.events)
    page.locator(".bar").fill("9")
    lab.wait_for_instant(9)
    assert page.evaluate(OPENED) is not None
    page.click("[data-verdict=close]")
    page.wait_for_timeout(200)
    lab.finish()
    assert_stage_shows(lab, frames, 9)  # including the charts that were covered
    page.locator(".token.accepted").first.click()
    page.focus("[data-verdict=close]")
    page.keyboard.press("Home")
    page.wait_for_function("document.querySelector('.verdict').hidden")  # it has not happened yet
    for step in (1, 2):
        page.keyboard.press("ArrowRight")  # still a key of the player
        lab.wait_for_instant(step)


def test_a_run_without_distributions_says_so_and_links_to_a_run_with_them(visit: Visit) -> None:
    lab = visit().open(**LINK | {"logprobs": 0})
    lab.run()
    lab.finish()
    lab.page.locator(".token.recovered").first.click()
    seen = lab.page.evaluate(OPENED)
    assert seen["heights"] is None
    assert "So it is kept with probability p / q" in seen["say"]
    text = lab.seen()["text"]
    link = lab.page.locator(".rule a:has-text('Run it again with them')")
    expect(link).to_have_css("text-decoration-line", "underline")
    link.click()
    lab.page.wait_for_url("**logprobs=5**")
    lab.ready()
    lab.page.wait_for_selector(".verdict:not([hidden])")
    assert lab.seen()["text"] == text
    again = lab.page.evaluate(OPENED)
    assert again["title"].startswith(seen["title"])
    assert again["heights"]
    lab.choose("logprobs", "Top 5")
    lab.page.wait_for_function("!location.search.includes('run=1')")
    lab.run()
    lab.finish()
    assert lab.page.evaluate(OPENED) is None  # a new run begins closed
    lab.toggle("paged")  # removes the run's settings from the address
    lab.page.wait_for_function("!location.search.includes('run=1')")
    lab.page.locator(".token.recovered").first.click()
    assert "Set “Record distributions” to Top 5 and run again." in lab.page.evaluate(OPENED)["say"]
    lab.choose("speculative", "Off")
    lab.page.wait_for_selector("#logprobs input:disabled")
    assert "Needs speculation" in lab.page.inner_text("#logprobs")


def test_a_link_opens_the_chosen_guess(visit: Visit) -> None:
    lab = recorded(visit)
    lab.page.locator(".bar").fill("9")
    lab.wait_for_instant(9)
    lab.page.locator(".token.recovered").first.click()
    lab.page.wait_for_function("location.search.includes('guess=') && location.search.includes('step=')")
    seen, link = lab.page.evaluate(OPENED), lab.page.url
    lab.page.click("[data-verdict=close]")
    lab.page.wait_for_function("!location.search.includes('guess')")
    other = visit()
    for shared, instant in ((link, 9), (link.replace("step=", "nothing="), None)):  # without a step: at the run's end
        other.page.goto(f"{shared}&run=1")
        other.ready()
        other.page.wait_for_selector(".verdict:not([hidden])")
        assert other.page.evaluate(OPENED) == seen
        other.finish()
        assert other.instant == (instant or int(other.page.get_attribute(".bar", "max")))
        other.toggle("paged")  # the guess belonged to other settings
        other.page.wait_for_function("!location.search.includes('guess')")


def test_during_a_run_the_chosen_guess_stays_in_view(visit: Visit) -> None:
    lab = visit().open(max_tokens=900, kv_cache=0, paged=0, logprobs=5)
    page = lab.page
    lab.run()
    page.wait_for_function("document.querySelectorAll('.token.recovered').length >= 3")
    page.locator(".token.recovered").last.click()
    seen, there, last = page.evaluate(OPENED), int(page.get_attribute(".stage", "data-at")), lab.instant
    assert seen["heights"]
    lab.wait_for_instant(there)
    page.wait_for_function("last => Number(document.querySelector('.bar').max) > last + 6", arg=last)
    assert lab.running
    assert lab.instant == there
    assert page.evaluate(OPENED) == seen
    assert page.is_hidden(".tip")
    for button in ("back", "back", "back", "on"):
        page.click(f"[data-verdict={button}]")
        assert page.evaluate(
            """() => {
              const text = document.querySelector(".text").getBoundingClientRect();
              const token = document.querySelector(".token.chosen").getBoundingClientRect();
              return token.top >= text.top - 1 && token.bottom <= text.bottom + 1;
            }"""
        )
    page.keyboard.press("Escape")
    assert page.evaluate(OPENED) is None
    assert lab.running  # the first Escape closes what is open
    page.click("[data-do=live]")
    box = page.locator("div.text").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 30)  # and stays there
    later = "there => Number(document.querySelector('.stage').dataset.seq) > there"
    page.wait_for_function(later, arg=there + 12)
    page.wait_for_selector(".tip", state="hidden")
    page.wait_for_function(later, arg=lab.instant + 8)
    assert page.is_hidden(".tip")  # though other tokens slid under the pointer
    page.keyboard.press("Escape")
    page.wait_for_selector("body:not(.running)")


def test_a_reopened_run_shows_its_verdicts(visit: Visit, tmp_path: Path) -> None:
    lab = recorded(visit)
    file = lab.save("json", tmp_path)
    lab.page.locator(".token.recovered").first.click()
    seen = lab.page.evaluate(OPENED)
    lab.open()
    lab.reopen(file)
    lab.page.wait_for_selector(".token.recovered")
    lab.finish()
    lab.page.locator(".token.recovered").first.click()
    assert lab.page.evaluate(OPENED) == seen is not None


def test_on_a_phone_the_verdict_takes_the_charts_place_within_reach(visit: Visit) -> None:
    lab = recorded(
        visit, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True, reduced_motion="reduce"
    )
    lab.page.evaluate("document.querySelector('.story').scrollIntoView({ block: 'end' })")
    lab.page.locator(".token.recovered").first.tap()
    lab.page.wait_for_timeout(200)
    box = lab.page.locator(".verdict").bounding_box()
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= lab.page.locator("#actions").bounding_box()["y"]
    assert not lab.page.is_visible("[data-chart=rounds]")
    for button in lab.page.locator("[data-verdict]").all():
        assert button.get_attribute("aria-label")
        assert min(button.bounding_box()["width"], button.bounding_box()["height"]) >= 40
    lab.page.tap("[data-verdict=close]")
    assert lab.page.is_visible("[data-chart=rounds]")
    lab.page.locator(".token.recovered").first.tap()
    lab.page.wait_for_selector(".verdict:not([hidden])")
    lab.page.tap(".choose button[data-for=blocks]")  # choosing a chart closes the verdict
    assert lab.page.is_visible("[data-chart=blocks]")
    assert lab.page.is_hidden(".verdict")
    lab.open(chart="timing", **LINK)  # with the rounds chart out of sight
    lab.run()
    lab.finish()
    lab.page.locator(".token.recovered").first.tap()
    lab.page.wait_for_selector(".verdict:not([hidden])")
    assert lab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
