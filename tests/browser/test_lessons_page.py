"""The Lessons page: a lesson from the prediction to the marked answer, and what the browser stores of it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Lab
from visualize.pages.lessons.lesson_view import KEPT

Visit = Callable[..., Lab]
COSTS = 3  # a lesson whose answers are arithmetic: the same on every machine
BYTES = [kib * 1024 for kib in (512, 320, 2560)]
HOSTILE = "<img src=x onerror=window.pwned=1>"


def slide(page: Page, where: str, text: str) -> None:
    """Move the slider to the stop with this text."""
    found = page.evaluate(
        """([where, text]) => {
          const slider = document.querySelector(`${where} input[type=range]`);
          const output = document.querySelector(`${where} output`);
          for (slider.value = 0; ; slider.value = Number(slider.value) + 1) {
            slider.dispatchEvent(new Event("input"));
            if (output.textContent === text || slider.value === slider.max) return output.textContent;
          }
        }""",
        [where, text],
    )
    assert found == text


def done(page: Page, lesson: int) -> list[str]:
    title = page.get_attribute(f".course li:nth-child({lesson}) .steps", "title")
    return title.removeprefix("Done: ").split(", ") if title != "Not begun" else []


def test_a_lesson_works_from_the_prediction_to_the_marked_answer(visit: Visit) -> None:
    page = visit().at("lessons", lesson=COSTS)
    expect(page.locator("#introduction h1")).to_have_text("3. What the cache costs")
    for button in ("#run", "#stop"):
        expect(page.locator(button)).to_be_disabled()
    for later in ("#explain .md", "#try section", "#check section", ".observe .found"):
        expect(page.locator(later)).to_be_hidden()
    assert "Llama 2 7B" not in page.content()  # the answer is not in the page
    for does, why in {"again": "nothing done in this lesson yet", "export": "no progress yet"}.items():
        expect(page.locator(f"[data-does={does}]")).to_be_disabled()
        page.focus(f"[data-does={does}]")
        page.wait_for_selector(f".meaning:visible:has-text('{why}')")
        page.keyboard.press("Enter")  # does nothing
        page.wait_for_timeout(100)
        assert page.is_visible(".meaning"), "scrolling to it does not hide it"

    page.click("#predict .main")
    expect(page.locator("#predict .verdict")).to_have_text("Say what you expect first. A guess will do.")
    page.click("#predict label:has-text('about ten times as much')")
    page.click("#predict .main")
    expect(page.locator("#run")).to_be_enabled()
    assert done(page, COSTS) == ["predict"]

    outcome = page.locator(".observe .outcome")
    said = "You said: The large one, about ten times as much. It is: The small one."
    page.keyboard.press("Control+Enter")
    expect(outcome).to_have_text(said, timeout=60_000)
    page.wait_for_selector(".observe [data-chart] .main-svg")
    page.wait_for_selector("#stage .token")
    expect(page.locator("#predict label.right")).to_have_text(re.compile(r"The small one\..*◆ correct"))
    expect(page.locator(".raced")).to_be_hidden()  # nothing races here
    assert page.get_attribute("#predict [role=radiogroup]", "aria-label") == page.inner_text("#predict .asked")
    expect(page.locator("#predict input").first).to_be_disabled()
    assert page.evaluate("document.querySelector('[data-chart=chart-0] .plot').data[0].x") == BYTES
    explained = page.locator("#explain")
    expect(explained).to_contain_text("0.625× the cache of the small one")
    assert explained.locator(".katex").count() >= 4
    assert "{{" not in page.inner_text("#view")
    assert "$" not in page.inner_text("#explain")

    scrolls = "document.documentElement.scrollHeight - innerHeight"
    assert page.evaluate(scrolls) == 0  # the column scrolls, not the page

    before = page.locator("#stage").get_attribute("data-run") or page.get_attribute(".stage", "data-run")
    first = page.query_selector("[data-chart=chart-0] .plot")
    page.keyboard.press("Control+Enter")  # again
    page.wait_for_function("run => document.querySelector('.stage').dataset.run !== run", arg=before, timeout=60_000)
    page.wait_for_selector(".observe [data-chart] .main-svg")
    named = page.eval_on_selector_all("[id^=beside-]", "all => all.map(({ id }) => id)")
    assert len(named) == len(set(named)), "the elements that name a chart have unique ids"
    assert not first.evaluate("plot => plot.isConnected || Boolean(plot.data)"), "the replaced plot is released"

    page.click("#try .main")
    expect(page.locator("#try .see")).to_contain_text("a cache 4.00× as large", timeout=60_000)
    assert page.inner_text("#try tbody").split("\n")[0].split("\t") == ["KV heads of the small model", "32", "8"]

    slider = page.locator("#check input[type=range]")
    assert slider.get_attribute("aria-valuetext").startswith("not answered yet")
    slider.press("Enter")  # answers with the value it shows
    at = page.get_attribute(".stage", "data-at")
    slider.press("Space")  # does so too, and does not play the run from its beginning
    assert page.get_attribute(".stage", "data-at") == at > "0"
    expect(page.locator("#check output")).to_have_text(slider.get_attribute("aria-valuetext"))
    slide(page, "#check", "84")
    page.click("#check .main")
    expect(page.locator("#check .verdict")).to_have_text("You said 84; it comes to 16.")
    expect(page.locator("#check .track-line .right")).to_have_attribute("title", "calculated")
    assert done(page, COSTS) == ["predict", "run", "try"]
    assert page.title() == "Lessons · Decode Lab"
    line = "getComputedStyle(document.querySelector('.course-about a')).textDecorationLine"
    assert page.evaluate(line) == "underline", "within text, colour alone does not mark a link"
    shown = "3 What the cache costs 10 min begun: predict, run, try"
    assert page.get_by_role("link", name=shown, exact=True).count() == 1, "a link's accessible name is its visible text"
    slide(page, "#check", "16")
    page.click("#check .main")
    expect(page.locator("#check .verdict")).to_have_text("You said 16; it comes to 16.")
    expect(page.locator("#check .onwards a")).to_contain_text("Next: 4.")
    right = page.eval_on_selector("#check .right", "mark => Number(mark.style.getPropertyValue('--at'))")
    assert right == pytest.approx(slider.evaluate("({ value, max }) => value / max"), abs=0.01)

    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert done(page, COSTS) == ["predict", "run", "try", "check"]
    expect(page.locator(".course summary")).to_have_text(re.compile(r"^1 of \d+ lessons done$"))
    assert page.locator("[data-does][data-about], [data-does][aria-disabled=true]").count() == 0
    expect(outcome).to_contain_text("It is: The small one.")
    expect(page.locator(".observe .progress")).to_contain_text("This is your last run")
    page.wait_for_selector(".observe [data-chart] .main-svg")
    page.wait_for_selector("#stage .token")
    assert page.evaluate("document.querySelector('[data-chart=chart-0] .plot').data[0].x") == BYTES
    assert page.evaluate("document.querySelector('#view').scrollTop") == 0  # a reload does not scroll
    expect(explained).to_contain_text("0.625× the cache of the small one")
    expect(page.locator("#check .verdict")).to_have_text("You said 16; it comes to 16.")
    page.click(".course li:nth-child(1) a")
    expect(page.locator("#introduction h1")).to_contain_text("1. Decoding one token")
    page.go_back()
    page.wait_for_selector("body[data-ready]")
    page.click("[data-does=again]")
    page.wait_for_selector("body[data-ready]")
    expect(page.locator("#run")).to_be_disabled()
    expect(page.locator("#explain .md")).to_be_hidden()
    assert done(page, COSTS) == []


def test_a_prediction_changed_before_the_first_was_answered_is_kept_and_the_run_shortcut_needs_no_plotly(
    visit: Visit,
) -> None:
    lab, held = visit(), []
    lab.page.route("**/plotly.min.js", lambda route: held.append(route))
    page = lab.at("lessons", lesson=COSTS)
    lab.slow()
    for said in ("The small one.", "about ten times as much"):
        page.click(f"#predict label:has-text('{said}')")
        page.click("#predict .main")
    page.wait_for_timeout(1500)
    assert page.is_checked("#predict label:has-text('about ten times as much') input")
    expect(page.locator("#run")).to_be_enabled()
    with page.expect_request("**/queue/join*"):
        page.keyboard.press("Control+Enter")
    assert held
    for route in held:
        route.continue_()
    said = "You said: The large one, about ten times as much. It is: The small one."
    expect(page.locator(".observe .outcome")).to_have_text(said, timeout=60_000)


def test_a_curve_is_drawn_by_mouse_and_keys_and_a_run_can_be_stopped(visit: Visit) -> None:
    page = visit().at("lessons", lesson=2)
    page.click("#predict .main")
    expect(page.locator("#predict .verdict")).to_have_class("verdict problem")
    last = page.locator("#predict .handle").last
    box = last.bounding_box()
    page.mouse.move(box["x"] + 9, box["y"] + 9)
    page.mouse.down()
    page.mouse.move(box["x"] + 9, box["y"] - 40)
    page.mouse.up()
    assert float(last.get_attribute("aria-valuetext").rstrip("×")) > 30  # it began at a third of 80
    page.locator("#predict .handle").first.press("Home")
    page.locator("#predict .handle").first.press("PageUp")
    expect(page.locator("#predict .handle").first).to_have_attribute("aria-valuenow", "10")
    page.locator("#predict .handle").first.press("PageDown")
    expect(page.locator("#predict .handle").first).to_have_attribute("aria-valuetext", re.compile(r"^0(\.00)?×$"))
    page.click("#predict .main")
    page.click("#run")
    page.wait_for_selector(".observe .progress:text-matches('cached, .* tokens')")
    page.locator("#predict .main").press("Enter")  # the mouse cannot press it now
    expect(page.locator("#predict .verdict")).to_contain_text("It tests the prediction that you made before it.")
    page.keyboard.press("Escape")
    expect(page.locator(".observe .progress")).to_have_text("Stopped. Nothing was kept.")
    expect(page.locator(".observe .found")).to_be_hidden()
    expect(page.locator("#run")).to_be_enabled()
    assert done(page, 2) == ["predict"]


def test_screen_readers_hear_the_progress_now_and_then_without_its_tokens(visit: Visit) -> None:
    lab = visit()
    page = lab.at("lessons", lesson=COSTS)
    page.click("#predict label >> nth=0")
    page.click("#predict .main")
    expect(page.locator("#run")).to_be_enabled()
    lab.page.wait_for_timeout(500)  # until the verdict was announced
    lab.listen()
    for press, where in (("#run", ".observe"), ("#try .main", ".try")):
        page.click(press)
        page.wait_for_selector("body.running")
        page.wait_for_selector(f"{where} .progress:text-matches(' tokens$')")
        page.wait_for_selector("body:not(.running)", timeout=60_000)
        page.wait_for_timeout(200)
        progress = [(at, text) for at, text in lab.heard if re.search(r"warming up|repeat \d|tokens|ready", text)]
        assert not any("tokens" in text for _, text in progress), where
        assert all(later - before > 2400 for (before, _), (later, _) in itertools.pairwise(progress)), where


def test_a_curve_can_be_drawn_in_one_stroke(visit: Visit) -> None:
    """Dragged across the plot: each point takes the height at which the stroke passes it."""
    page = visit().at("lessons", lesson=2)
    plot, handles = page.locator("#predict svg"), page.locator("#predict .handle")
    plot.scroll_into_view_if_needed()
    box, ends = plot.bounding_box(), [handles.first.bounding_box(), handles.last.bounding_box()]
    left, right = (end["x"] + end["width"] / 2 for end in ends)
    top, bottom = box["y"] + 0.15 * box["height"], box["y"] + 0.75 * box["height"]
    page.mouse.move(left - 10, bottom)
    page.mouse.down()
    page.mouse.move(right + 10, top, steps=7)
    page.mouse.up()

    def drawn() -> list[int]:
        return [int(handle.get_attribute("aria-valuenow")) for handle in handles.all()]

    found = drawn()
    steps = [b - a for a, b in itertools.pairwise(found)]
    assert min(steps) > 0.8 * max(steps) > 0  # a straight line
    page.mouse.move(left, bottom)  # no longer pressed
    assert drawn() == found
    assert page.evaluate("getSelection().toString()") == ""
    middle = handles.nth(2).bounding_box()
    page.mouse.click(middle["x"] + 9, middle["y"] + 9)
    page.keyboard.press("ArrowUp")  # a clicked point can be moved on with the keys
    assert drawn()[2] in range(found[2], found[2] + 4)
    assert drawn() == [*found[:2], drawn()[2], *found[3:]]
    expect(handles.nth(2)).to_be_focused()
    found = drawn()
    page.reload()  # as Gradio does when it has lost the server
    page.wait_for_selector("body[data-ready]")
    assert drawn() == found
    page.click("#predict .main")
    expect(page.locator("#predict .verdict")).to_have_text("Kept. Now press Run.")


def test_p_and_q_are_shown_under_every_rule_and_can_be_moved(visit: Visit) -> None:
    page = visit().at("lessons", lesson=9)
    page.click("#predict label >> nth=0")
    page.click("#predict .main")
    page.click("#run")
    page.wait_for_selector("[data-chart=written] .main-svg", timeout=60_000)
    said = page.locator(".overlap .said-of")

    def heights(chart: str) -> list[list[float]]:
        return page.evaluate(f"document.querySelector('[data-chart={chart}] .plot').data.map((trace) => [...trace.y])")

    def too_much() -> float:
        """By how much the word with the largest excess stands above p."""
        accepted, instead, p = heights("written")
        return max(a + b - c for a, b, c in zip(accepted, instead, p, strict=True))

    expect(said).to_contain_text("What comes out is p.")
    assert too_much() < 1e-3
    _, rejected, residual, _ = heights("proposed")
    assert sum(rejected) == pytest.approx(sum(residual), abs=1e-3)
    page.get_by_role("radio", name="A, the residual").press("ArrowRight")
    expect(said).to_contain_text("away from p.")
    assert too_much() > 0.05
    expect(page.locator(".overlap output")).to_have_text(re.compile(r"\d% apart, as in your run$"))
    page.get_by_role("slider", name="How far q is from p").press("Home")
    expect(page.locator(".overlap output")).to_have_text("0% apart")
    expect(said).to_contain_text("Accepted: 100%, rejected: 0%.")
    assert too_much() < 1e-3
    page.get_by_role("radio", name="C, without q").check()
    assert sum(heights("proposed")[1]) > 0.5  # rejected, although q equals p


def run_of(page: Page) -> str:
    return page.evaluate(f"localStorage.getItem('decode-lab-course-runs-{COSTS}')")


def test_a_lesson_shows_its_last_run_only_in_the_browser_that_made_it(visit: Visit, tmp_path: Path) -> None:
    page = visit().at("lessons", lesson=COSTS)
    page.click("#predict label:has-text('Both about the same')")
    page.click("#predict .main")
    page.click("#run:enabled")
    page.wait_for_selector("#stage .token", timeout=60_000)
    page.set_viewport_size({"width": 2560, "height": 1440})  # the column stays as wide as it is
    cut = """() => [...document.querySelectorAll("#stage .readout:not([hidden]) .number, #stage .say")].filter(
      (node) => node.scrollWidth > node.clientWidth || node.clientHeight < 20).map((node) => node.textContent)"""
    assert page.evaluate(cut) == []
    with page.expect_download() as download:
        page.click("[data-does=export]")
    download.value.save_as(tmp_path / "progress.json")
    page.goto(f"{page.url.split('?')[0]}?lesson=1")
    page.wait_for_selector("body[data-ready]")
    expect(page.locator(".observe .found")).to_be_hidden()
    page.click(f".course li:nth-child({COSTS}) a")
    page.wait_for_selector("#stage .token")

    page.evaluate(f"localStorage.setItem('decode-lab-course-runs-{COSTS}', 'H4sIAAAAAAAA')")  # damaged
    page.reload()
    page.wait_for_selector("body[data-ready]")
    expect(page.locator(".observe .progress")).to_have_text(
        "The charts of this run were not kept in this browser. Run again to see them."
    )
    expect(page.locator("#explain")).to_contain_text("0.625×")
    page.click("#run:enabled")
    page.wait_for_selector("#stage .token", timeout=60_000)
    page.wait_for_function(f"localStorage.getItem('decode-lab-course-runs-{COSTS}').length > 1000")

    other = visit().at("lessons", lesson=COSTS)
    with other.expect_navigation():
        other.set_input_files(".course input[type=file]", tmp_path / "progress.json")
    other.wait_for_selector("body[data-ready]")
    expect(other.locator(".observe .outcome")).to_contain_text("It is: The small one.")
    expect(other.locator("#stage")).to_be_hidden()
    other.evaluate(
        f"runs => localStorage.setItem('decode-lab-course-runs-{COSTS}', runs)", run_of(page)
    )  # of a run other than the one in the progress
    other.reload()
    other.wait_for_selector("body[data-ready]")
    expect(other.locator(".observe .progress")).to_contain_text("were not kept in this browser")


def test_a_tab_that_stayed_behind_erases_nothing(visit: Visit) -> None:
    ahead = visit().at("lessons", lesson=COSTS)
    behind = Lab(ahead.context.new_page(), ahead.url.split("/lessons")[0])
    stays = behind.at("lessons", lesson=COSTS)
    ahead.click("#predict label:has-text('Both about the same')")
    ahead.click("#predict .main")
    ahead.click("#run:enabled")
    ahead.wait_for_selector("#explain .md", timeout=60_000)
    ahead.wait_for_function("localStorage.getItem('decode-lab-course').includes('figures\":{')")
    expect(stays.locator(".course-say")).to_contain_text("This lesson went on in another tab.")
    assert done(stays, COSTS) == ["predict", "run"]
    before = ahead.evaluate("localStorage.getItem('decode-lab-course')")
    stays.click("#predict label:has-text('about ten times as much')")
    stays.click("#predict .main")
    expect(stays.locator("#run")).to_be_enabled()
    assert stays.evaluate("localStorage.getItem('decode-lab-course')") == before

    stays.reload()  # now both have the run
    stays.wait_for_selector("#stage .token")
    slide(ahead, "#check", "84")
    ahead.click("#check .main")
    expect(ahead.locator("#check .verdict")).to_contain_text("You said 84")
    stays.click("#try .main")
    expect(stays.locator("#try .see")).to_contain_text("a cache 4.00× as large", timeout=60_000)
    ahead.reload()
    ahead.wait_for_selector("#stage .token")
    expect(ahead.locator("#check .verdict")).to_contain_text("You said 84")
    expect(ahead.locator("#try .see")).to_contain_text("a cache 4.00× as large")


def test_full_browser_storage_is_reported(visit: Visit) -> None:
    page = visit().at("lessons", lesson=COSTS)
    page.evaluate("localStorage.setItem('full', '')")
    page.click("#predict label:has-text('Both about the same')")
    page.click("#predict .main")
    page.evaluate(
        """() => { for (let size = 2 ** 22; size >= 2048; size /= 2)
          try { localStorage.setItem('full', localStorage.getItem('full') + 'x'.repeat(size)); } catch {} }"""
    )
    page.click("#run:enabled")
    page.wait_for_selector("#stage .token", timeout=60_000)
    expect(page.locator(".course-say")).to_contain_text("has no room for what this lesson recorded")


def test_more_than_a_lesson_ever_keeps_does_not_keep_the_page_from_loading(visit: Visit) -> None:
    page = visit().at("lessons", lesson=COSTS)
    page.evaluate(
        """([kept, lesson]) => {
          localStorage.setItem(kept, JSON.stringify({ lessons: { [lesson]: { name: "x".repeat(1e6) } } }));
          localStorage.setItem(`${kept}-runs-${lesson}`, "x".repeat(3e6));
        }""",
        [KEPT, COSTS],
    )
    page.reload()
    page.wait_for_selector("body[data-ready]")
    page.click("#predict label:has-text('Both about the same')")


def test_progress_can_be_exported_and_imported(visit: Visit, tmp_path: Path) -> None:
    page = visit().at("lessons", lesson=COSTS)
    page.click("#predict label:has-text('Both about the same')")
    page.click("#predict .main")
    expect(page.locator("#run")).to_be_enabled()
    with page.expect_download() as download:
        page.click("[data-does=export]")
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert json.loads(file.read_text())["lessons"]["3"]["prediction"] == 2

    other = visit().at("lessons", lesson=COSTS)

    def bring(text: str) -> None:
        path = tmp_path / "brought.json"
        path.write_text(text)
        other.set_input_files(".course input[type=file]", path)

    bring("{")
    expect(other.locator(".course-say")).to_contain_text("cannot be read as JSON")
    bring('{"format": "something else", "lessons": {}}')
    expect(other.locator(".course-say")).to_contain_text("no progress of this course")
    hostile = json.loads(file.read_text())
    hostile["lessons"]["1"] = {"name": HOSTILE, "done": [HOSTILE], "prediction": HOSTILE, "figures": HOSTILE}
    with other.expect_navigation():
        bring(json.dumps(hostile))
    other.wait_for_selector("body[data-ready]")
    expect(other.locator("#run")).to_be_enabled()
    assert done(other, COSTS) == ["predict"]
    Lab(other, page.url.split("/lessons")[0]).at("lessons", lesson=1)
    expect(other.locator("#run")).to_be_disabled()
    assert other.evaluate("window.pwned") is None


def test_a_link_to_an_unknown_lesson_gives_a_notice_and_shows_what_was_done_in_the_first(visit: Visit) -> None:
    lab = visit()
    page = lab.at("lessons", lesson="99")
    assert "There is no such lesson; the lessons are 1, 2," in page.inner_text(".toast-wrap")
    expect(page.locator("#introduction h1")).to_contain_text("1.")
    page.press("#predict input", "Enter")
    page.click("#predict .main")
    expect(page.locator("#run")).to_be_enabled()
    for asked in ("99", ""):
        lab.at("lessons", lesson=asked)
        expect(page.locator("#run")).to_be_enabled()
    page.goto(f"{lab.server}/lessons?lesson={COSTS}&lesson=1")  # the last counts
    expect(page.locator("#run")).to_be_enabled()


def test_the_page_fits_a_phone(visit: Visit) -> None:
    page = visit(viewport={"width": 390, "height": 844}, is_mobile=True).at("lessons", lesson=COSTS)
    page.click("#predict label:has-text('Both about the same')")
    page.click("#predict .main")
    expect(page.locator("#run")).to_be_enabled()
    page.click("#run")
    page.wait_for_selector("#stage .token", timeout=60_000)
    page.wait_for_timeout(1500)  # it scrolls smoothly
    expect(page.locator("#view .outcome")).to_be_in_viewport()  # not scrolled past it, to the player
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    expect(page.locator("#check .verdict")).to_have_css("white-space", "normal")  # long text wraps


def test_a_server_that_lost_the_session_says_so_and_no_progress_is_lost(visit: Visit) -> None:
    """It was restarted, or very many others have come since: to the server, the page's session is then unknown."""
    page = visit().at("lessons", lesson=COSTS)
    page.click("#predict label:has-text('Both about the same')")
    page.click("#predict .main")
    expect(page.locator("#run")).to_be_enabled()
    kept = "JSON.stringify(localStorage)"
    before = page.evaluate(kept)

    def as_another(route: Route) -> None:
        old, new = r'(session_hash(?:=|": ?"))\w+', r"\1another"
        url, data = re.sub(old, new, route.request.url), route.request.post_data
        route.continue_(url=url, post_data=re.sub(old, new, data) if data else None)

    page.route("**/gradio_api/queue/**", as_another)
    forgotten = page.locator(".toast-body").filter(has_text="Load this page again")
    for button in ("#predict .main", "#run"):
        page.click(button)
        expect(forgotten).to_be_visible()
        forgotten.locator(".toast-close").click()
        expect(forgotten).to_have_count(0)
    assert page.evaluate(kept) == before
    page.unroute_all()
    page.reload()
    page.wait_for_selector("body[data-ready]")
    expect(page.locator("#run")).to_be_enabled()
    assert done(page, COSTS) == ["predict"]
