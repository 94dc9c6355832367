"""Press Run with each toggle in turn, see everything change during the run, and stop it."""

from __future__ import annotations

import time
from typing import Any

from playwright.sync_api import expect

from tests.browser.pages import ENDLESS, LONG, STOPPED, Lab, Visit

PLAIN = {"speculative": "off", "paged": 0}


def observe(lab: Lab, seconds: float = 60) -> list[dict[str, Any]]:
    """Distinct views of the stage during the run, and the final one."""
    views: list[dict[str, Any]] = []
    until = time.monotonic() + seconds
    while lab.running and time.monotonic() < until:
        view = lab.seen()
        if not views or any(view[part] != views[-1][part] for part in ("pass", "tokens")):
            views.append(view)
        lab.page.wait_for_timeout(100)  # a look costs the page about as much as a picture
    lab.finish()
    return [*views, lab.seen()]


def test_everything_changes_during_a_run_and_repeated_runs_leave_no_nodes_behind(visit: Visit) -> None:
    lab = visit().open(paged=0, seed=3, **LONG | {"max_tokens": 600})
    lab.run()
    views = observe(lab)
    made = [sum(view["tokens"].values()) for view in views]
    assert made == sorted(made)
    assert len(set(made)) >= 3
    assert len({view["pass"] for view in views if view["pass"]}) >= 2
    assert max(view["squares"]["live"] for view in views) > views[-1]["squares"]["live"] == 0
    assert lab.page.evaluate("document.getAnimations().length") == 0
    nodes = []
    lab.fill("max_tokens", 24)
    for _ in range(3):
        lab.ran()
        nodes.append(lab.page.evaluate("document.querySelectorAll('*').length"))
    assert max(nodes[1:]) - min(nodes[1:]) < 60  # the same run, drawn again


SHOWN = """() => {
  const stage = document.querySelector(".stage");
  const plots = ["rounds", "timing"].map((name) => document.querySelector(`[data-chart=${name}] .plot`));
  const newest = (plot) => Math.round(Math.max(...(plot.data ?? []).map(({ x }) => x?.at(-1) ?? -1))); // a bar's side
  const points = () => document.querySelector("[data-chart=blocks] .plot").data?.[0].x?.length ?? 0;
  window.shown = [];
  new MutationObserver(() => document.body.classList.contains("running") && shown.push({
    text: document.querySelectorAll(".token:not(.prompt)").length - 1,
    charts: [...plots.map(newest), points() - 1],
    said: Number(document.querySelector(".say").textContent.match(/^Step (\\d+)/)?.[1] ?? 0),
  })).observe(stage, { attributes: true, attributeFilter: ["data-seq"] });
}"""
"""At every picture of a run without draft tokens: the pass up to which the text goes, each chart, and the sentence."""
MOVED = """() => !document.body.matches(".running") || [0, 1, 2].every((chart) =>
  new Set(shown.filter(({ text }) => text > 0).map(({ charts }) => charts[chart])).size > 2)"""
"""Whether each chart was drawn again: several pictures may pass before the next of a chart. Or else the run is over."""


def test_charts_follow_a_run_and_the_sentence_is_in_step_with_the_text(visit: Visit) -> None:
    lab = visit().open(**PLAIN, **LONG)
    lab.page.evaluate(SHOWN)
    lab.run()
    lab.page.wait_for_function(MOVED)
    shown = [one for one in lab.page.evaluate("shown") if one["text"] > 0]
    assert len(shown) >= 3
    for now in shown:
        assert max(now["charts"]) <= now["text"]
        assert now["said"] == now["text"]
    for chart in range(3):
        assert len({now["charts"][chart] for now in shown}) > 1, "drawn while it runs"


def test_formats_paging_speculation_and_no_cache_take_visible_effect(visit: Visit) -> None:
    lab = visit(viewport={"width": 1280, "height": 720}).open(**PLAIN, max_tokens=30)
    for name, value in (
        (None, None),
        ("kv_dtype", "int8"),
        ("paged", 1),
        ("speculative", "draft"),
    ):
        if name == "paged":
            lab.toggle(name)
        elif name:
            lab.choose(name, value)
        end = lab.ran().seen()
        lab.came_to_its_end()
        assert float(end["numbers"]["limit"]) > 0
        kinds = end["tokens"].keys() - {"prompt"}
        if value == "draft":
            assert kinds >= {"accepted", "recovered"}
            assert end["rounds"]["accepted"] == end["tokens"]["accepted"]
            assert float(end["numbers"]["pass"]) > 1
        else:
            assert kinds == {"plain"}
            assert float(end["numbers"]["pass"]) == 1
        if name == "kv_dtype":
            assert lab.ratio("kv") < 0.75
            assert value.upper() in lab.page.inner_text(".compared")
        assert end["squares"]["live"] == 0 < end["squares"]["fill"]  # blocks given back stay visible
        lab.press("Home", "Shift+ArrowRight")
        lab.page.wait_for_selector(".squares .square.live")
        first = lab.seen()["squares"]
        empty = first["live"] - first["fill"]
        assert empty <= 1 if name in ("paged", "speculative") else empty > 1, (
            "without paging, all are reserved at first"
        )
    lab.choose("speculative", "off")
    lab.toggle("kv_cache")
    end = lab.ran().seen()
    assert end["tokens"].keys() == {"prompt", "plain"}
    assert end["recomputed"] == {"again": 30, "new": 30}  # a point a pass, in place of the blocks
    assert not lab.page.is_visible("[data-chart=blocks]")


def test_while_a_run_goes_on_none_begins_and_no_file_is_opened_and_stop_gives_the_blocks_back(visit: Visit) -> None:
    lab = visit().open(**PLAIN, **LONG | {"max_tokens": 1000})
    page, begun = lab.page, []
    lab.prompt.focus()
    page.keyboard.press("Control+Enter")
    lab.wait_for_tokens(5)
    page.on("filechooser", lambda chooser: begun.append("a file"))
    page.on("request", lambda request: "queue/join" in request.url and begun.append(request.url))
    for button in ("#run", "#open"):
        expect(page.locator(button)).to_have_attribute("aria-disabled", "true")
        page.focus(button)
        page.keyboard.press("Enter")
    page.keyboard.press("Control+Enter")
    assert begun == []
    page.click("#openings input")
    page.wait_for_selector("[role=listbox]")
    page.keyboard.press("Escape")  # closes what is open first
    page.wait_for_selector("[role=listbox]", state="detached")
    assert lab.running
    page.wait_for_selector(".squares .square.live")
    page.click("#stop")
    lab.finish()
    end = lab.seen()
    expect(lab.say).to_have_text(STOPPED)
    assert end["squares"]["live"] == 0
    assert 5 <= end["tokens"]["plain"] < 1000
    for button in ("#run", "#open"):
        expect(page.locator(button)).to_have_attribute("aria-disabled", "false")


def test_stop_works_from_the_moment_run_is_pressed_and_after_a_refused_run_stops_nothing(troubled: Visit) -> None:
    """Even when pressed before the page has received anything of its run."""
    page = troubled().at("compare", **ENDLESS | {"max_tokens": 500})
    # Watched within the page: all may be over before Playwright looks.
    page.evaluate("""() => {
      const body = document.body, stop = document.querySelector("#stop");
      new MutationObserver(() => {
        if (body.matches(".running")) window.began = true;
        else if (window.began) window.ended = true;
      }).observe(body, { attributeFilter: ["class"] });
      for (const button of [document.querySelector("#run"), stop]) button.click();
    }""")
    page.wait_for_function("window.ended")
    page.wait_for_selector("#stop[aria-disabled=true]")
    page.route("**/queue/join*", lambda route: route.fulfill(status=422, json={"detail": "That is too much."}))
    page.click("#run")
    page.wait_for_selector(".toast-wrap:has-text('too much')")
    expect(page.locator("body:not(.begun)")).to_have_count(1)
    assert page.get_attribute("#stop", "aria-disabled") == "true"


def test_a_run_waits_for_another_can_be_stopped_then_and_begins_when_the_others_page_is_closed(visit: Visit) -> None:
    ahead, lab = visit().open(**ENDLESS), visit().open(max_tokens=5)
    ahead.run()
    ahead.wait_for_tokens(3)
    lab.run()
    lab.page.keyboard.press("Escape")
    expect(lab.say).to_have_text(STOPPED)
    lab.finish()
    assert lab.problem.count() == 0, "it is what was asked for"
    lab.run()
    expect(lab.say).to_contain_text("1 run")
    assert lab.written.count() == 0
    ahead.page.close()
    lab.finish()
    lab.came_to_its_end(5)


def test_everything_works_in_a_browser_without_storage(visit: Visit) -> None:
    lab = visit()
    lab.page.add_init_script(
        "for (const store of ['localStorage', 'sessionStorage']) Object.defineProperty(window, store, "
        "{ get() { throw new DOMException('Access is denied for this document.', 'SecurityError') } })"
    )
    lab.open(max_tokens=5)
    lab.page.click("#look")
    lab.ran()
    lab.came_to_its_end(5)
    assert lab.at("lessons", lesson=3).inner_text("#introduction h1")
