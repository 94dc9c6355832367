"""Press Run with each toggle in turn, and see everything change during the run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import Lab

Visit = Callable[..., Lab]
PLAIN = {"speculative": "off", "paged": 0}
LONG = {"max_tokens": 900, "kernels": "reference"}
"""Takes seconds even on the fastest processor."""
ENDLESS = {"max_tokens": 900, "kv_cache": 0}
"""Takes a minute, or ten seconds on the fastest: no test waits for its end."""


def observe(lab: Lab, seconds: float = 30) -> list[dict[str, Any]]:
    """Distinct views of the stage during the run, and the final one."""
    views: list[dict[str, Any]] = []
    until = time.monotonic() + seconds
    while lab.running and time.monotonic() < until:
        view = lab.seen()
        if not views or view["pass"] != views[-1]["pass"]:
            views.append(view)
        lab.page.wait_for_timeout(50)
    lab.finish()
    return [*views, lab.seen()]


def test_text_and_charts_change_several_times_during_a_run(visit: Visit) -> None:
    lab = visit().open(paged=0, max_tokens=900)
    lab.run()
    views = observe(lab)
    assert len(views) >= 3
    made = [sum(view["tokens"].values()) for view in views]
    assert made == sorted(made)
    assert len(set(made)) >= 3
    passes = [view["pass"] for view in views if view["pass"]]
    assert len(set(passes)) >= 2, (
        "a chart waits five times as long as drawing it took: a slow machine shows one view, and the end"
    )
    assert max(view["blocks"]["live"] for view in views) > views[-1]["blocks"]["live"] == 0


def ended(lab: Lab) -> dict[str, Any]:
    """Make a run. Returns what is seen at its end, which is as after any run."""
    lab.run()
    lab.finish()
    end = lab.seen()
    assert end["say"].startswith("Finished")
    assert end["numbers"]["speed"] != "–"
    assert float(end["numbers"]["limit"]) > 0
    assert re.fullmatch(
        r"Pass \d+: ((memory|compute)-bound, \d+% of the limit|\d+% of the ((memory|compute) limit|limit \(.+\)))",
        lab.page.inner_text("[data-chart=timing] .caption"),
    )
    return end


def test_formats_paging_speculation_and_no_cache_take_visible_effect(visit: Visit) -> None:
    lab = visit().open(**PLAIN, max_tokens=50)
    for on in ("", "INT8", "paged", "Draft"):
        if on == "paged":
            lab.toggle(on)
        elif on:
            lab.choose("kv-dtype" if on == "INT8" else "speculative", on)
        end = ended(lab)
        kinds = end["tokens"].keys() - {"prompt"}
        if on == "Draft":
            assert kinds >= {"accepted", "recovered"}
            assert end["rounds"]["rejected"] > 0
            assert end["rounds"]["accepted"] == end["tokens"]["accepted"]
            assert float(end["numbers"]["pass"]) > 1.2
        else:
            assert kinds == {"plain"}
            assert end["numbers"]["pass"] == "1.00"
        assert end["blocks"]["live"] == 0 < 2 < end["blocks"]["fill"]  # blocks given back stay visible
        for key in ("Home", "ArrowRight"):
            lab.page.keyboard.press(key)
        lab.page.wait_for_function("document.querySelector('[data-chart=blocks] .plot').data[1].y.length > 0")
        first = lab.seen()["blocks"]
        empty = first["live"] - first["fill"]
        assert empty <= 1 if on in ("paged", "Draft") else empty > 1, "without paging, all are reserved at the start"
    lab.choose("speculative", "Off")
    tokens = 50
    lab.toggle("kv-cache")
    end = ended(lab)
    assert end["tokens"].keys() == {"prompt", "plain"}
    assert end["numbers"]["pass"] == "1.00"
    assert end["recomputed"] == {"again": tokens, "new": tokens}  # a point a pass, in place of the blocks
    known = end["tokens"]["prompt"]
    says = f"{sum(range(known, known + tokens - 1)):,} of {sum(range(known, known + tokens)):,} tokens"
    assert lab.page.inner_text("[data-chart=recomputed] .caption") == says
    assert not lab.page.is_visible("[data-chart=blocks]")
    assert lab.page.locator("#kv-dtype input >> nth=1").is_disabled()
    assert "Needs the KV cache" in lab.page.inner_text("#kv-dtype")


AHEAD = """() => {
  window.ahead = [];
  const passOf = (name) => {
    const plot = document.querySelector(`[data-chart=${name}] .plot`);
    const data = getComputedStyle(plot).visibility === "hidden" ? [] : (plot.data ?? []);
    return Math.max(...data.filter(({ yaxis }) => yaxis !== "y3").map(({ x }) => x?.at(-1) ?? -1));
  };
  const look = () => {
    const at = /^pass (\\d+)/.exec(document.querySelector(".place").textContent);
    const blocks = document.querySelector("[data-chart=blocks] .caption").textContent;
    const of = [at?.[1], passOf("rounds"), passOf("timing"), blocks];
    if (at && (Math.max(of[1], of[2]) > Number(at[1]) || / given back/.test(blocks))) ahead.push(of);
    requestAnimationFrame(look);
  };
  look();
}"""


def test_when_a_run_begins_no_chart_shows_the_one_before_and_repeated_runs_leave_no_nodes_behind(visit: Visit) -> None:
    lab = visit().open(max_tokens=100)
    lab.run()
    lab.finish()
    lab.page.evaluate(AHEAD)
    nodes = []
    for _ in range(3):
        lab.run()
        lab.finish()
        nodes.append(lab.page.evaluate("document.querySelectorAll('*').length"))
    assert lab.page.evaluate("ahead") == []
    assert max(nodes) - min(nodes) < 60  # the same run, drawn again


STOP = """() => new Promise((stopped) => {
  const began = performance.now();
  new MutationObserver(() => {
    if (!document.body.classList.contains("running")) stopped(performance.now() - began);
  }).observe(document.body, { attributes: true });
  document.querySelector("#stop").click();
})"""


def test_stop_stops_within_a_second_and_gives_the_blocks_back(visit: Visit) -> None:
    lab, took_ms = visit().open(**PLAIN, **LONG), []
    while len(took_ms) < 3 and min(took_ms, default=1000) >= 1000:  # the machine may be busy with something else
        lab.run()
        lab.wait_for_tokens(10)
        lab.page.wait_for_function("document.querySelector('[data-chart=blocks] .plot').data[1].y.length > 0")
        assert lab.seen()["blocks"]["live"] > 0
        took_ms.append(lab.page.evaluate(STOP))
        lab.finish()
        end = lab.seen()
        assert "s: it was stopped. Its blocks, " in end["say"]
        assert end["blocks"]["live"] == 0
        assert 10 <= end["tokens"]["plain"] < 900
    assert min(took_ms) < 1000


def test_while_a_run_goes_on_none_begins_and_no_file_is_opened(visit: Visit) -> None:
    """Nor by a key; and nothing moves for its own sake."""
    lab = visit().open(**PLAIN, **ENDLESS)
    page, asked = lab.page, []
    page.focus("#prompt textarea")
    page.keyboard.press("Control+Enter")
    lab.wait_for_tokens(5)
    assert page.evaluate("document.getAnimations().length") == 0
    page.on("filechooser", lambda chooser: asked.append("a file"))
    page.on("request", lambda request: "queue/join" in request.url and asked.append(request.url))
    for button in ("#run", "#open"):
        expect(page.locator(button)).to_have_attribute("aria-disabled", "true")
        page.focus(button)
        page.keyboard.press("Enter")
    page.keyboard.press("Control+Enter")
    page.wait_for_timeout(500)
    assert lab.running
    assert asked == []

    page.focus("#replays input")
    expect(page.locator("#replays input")).to_have_attribute("aria-disabled", "true")
    with page.expect_request("**/queue/join*"):
        for key in ("ArrowDown", "ArrowDown", "Enter"):
            page.keyboard.press(key)
    expect(page.locator("#replays input")).to_have_value("GPU recordings")
    assert lab.running
    assert page.inner_text(".notice") == ""

    page.click("#openings input")
    page.wait_for_selector("[role=listbox]")
    page.keyboard.press("Escape")  # closes what is open first
    page.wait_for_selector("[role=listbox]", state="detached")
    assert lab.running
    page.keyboard.press("Escape")
    page.wait_for_selector("body:not(.running)")
    lab.finish()  # the last frame comes a little later
    assert "s: it was stopped." in lab.seen()["say"]
    for button in ("#run", "#open"):
        expect(page.locator(button)).to_have_attribute("aria-disabled", "false")

    held: list[Route] = []  # stop works although an earlier stop is still unanswered
    page.route("**/run/predict*", lambda route: held.append(route), times=1)
    lab.run()
    page.click("#stop")
    page.wait_for_timeout(300)
    assert len(held) == 1
    assert lab.running
    page.click("#stop")
    lab.finish()
    assert "stopped" in lab.seen()["say"]
    held[0].continue_()


@pytest.mark.parametrize("path", ["", "compare"])
def test_stop_works_from_the_moment_run_is_pressed(visit: Visit, path: str) -> None:
    """Even when pressed before the page has received anything of its run."""
    lab = visit()
    page = lab.page
    page.goto(f"{lab.server}/{path}?max_tokens=900&speculative=off&kv_cache=0&paged=0")
    page.wait_for_selector("#stop[aria-disabled=true]")
    # Watched within the page: all may be over before Playwright looks.
    page.evaluate("""() => {
      const body = document.body, stop = document.querySelector("#stop");
      new MutationObserver(() => {
        if (body.matches(".running")) window.began ??= performance.now();
        else if (window.began) window.took ??= performance.now() - window.began;
      }).observe(body, { attributeFilter: ["class"] });
      const look = () => (window.useful ??= stop.ariaDisabled === "false" && !window.took);
      new MutationObserver(look).observe(stop, { attributeFilter: ["aria-disabled"] });
      for (const button of [document.querySelector("#run"), stop]) button.click();
    }""")
    page.wait_for_function("window.took")
    assert page.evaluate("window.useful")
    assert page.evaluate("window.took") < 8000, "left alone, such a run takes far longer"
    page.wait_for_selector("#stop[aria-disabled=true]")


def test_a_run_waits_for_another_can_be_stopped_then_and_begins_when_the_others_page_is_closed(visit: Visit) -> None:
    ahead, lab = visit().open(**PLAIN, **ENDLESS), visit().open(max_tokens=5)
    ahead.run()
    ahead.wait_for_tokens(3)
    lab.run()
    lab.page.keyboard.press("Escape")
    lab.page.wait_for_selector(".say:text-is('Stopped before it began.')")
    lab.finish()
    assert lab.page.query_selector(".say.problem") is None, "it is what was asked for"
    lab.run()
    lab.page.wait_for_function("document.querySelector('.say').textContent.startsWith('Waiting: 1 run')")
    ahead.page.close()
    lab.page.wait_for_function("document.querySelectorAll('.token').length > 0", timeout=8000)
    lab.finish()
    assert lab.seen()["say"].startswith("Finished")

    lab.open(**ENDLESS)  # pressed again after an early stop, it runs
    lab.slow(150)
    lab.page.evaluate("for (const button of ['#run', '#stop', '#run']) document.querySelector(button).click()")
    lab.page.wait_for_selector("body.running")
    lab.page.wait_for_timeout(800)
    assert lab.running
    lab.page.click("#stop")
    lab.finish()


def test_the_mismatched_draft_is_rejected_more(visit: Visit) -> None:
    lab, kept = visit().open(max_tokens=120), []
    for pair in ("Matched", "Mismatched"):
        if pair == "Mismatched":
            lab.pick("pair", pair)
            lab.page.wait_for_function("location.search.includes('pair=mismatched')")
        lab.run()
        lab.finish()
        kept.append(float(lab.seen()["numbers"]["accepted"]))
    matched, mismatched = kept
    assert matched > 1.5 * mismatched


def test_everything_works_in_a_browser_without_storage(visit: Visit) -> None:
    lab = visit()
    lab.page.add_init_script(
        "for (const store of ['localStorage', 'sessionStorage']) Object.defineProperty(window, store, "
        "{ get() { throw new DOMException('Access is denied for this document.', 'SecurityError') } })"
    )
    lab.open(max_tokens=5)
    lab.page.click("#look")
    lab.run()
    lab.finish()
    assert lab.seen()["say"].startswith("Finished")
    lab.page.goto(f"{lab.server}/lessons?lesson=3")
    lab.page.wait_for_selector("body[data-ready]")
    assert lab.page.inner_text("#introduction h1") == "3. What the cache costs"
