"""The Lessons and Instructor pages: from the prediction to the marked answer, and what the browser stores of it."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.pages import Visit, as_on_a_phone
from tests.browser.test_accessibility import at_rest
from tests.waiting import until

COSTS = 3  # a lesson whose answers are arithmetic: the same on every machine
BYTES = [kib * 1024 for kib in (512, 320, 2560)]
HOSTILE = "<img src=x onerror=window.pwned=1>"
MADE = "#stage .token"
RUNS = f"decode-lab-course-runs-{COSTS}"


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
    """The steps of a lesson that are done, by the words of the list of lessons."""
    title = page.get_attribute(f".course li:nth-child({lesson}) .steps", "title")
    return re.findall("predict|run|try|check", title)


def predict(page: Page, option: int = 2) -> None:
    page.click(f"#predict label >> nth={option}")
    page.click("#predict .main")
    expect(page.locator("#run")).to_be_enabled()


def begun(visit: Visit, run: bool = True) -> Page:
    """The lesson with its prediction, and its run, made."""
    page = visit(color_scheme="dark").at("lessons", lesson=COSTS)
    predict(page)
    if run:
        page.click("#run")
        page.wait_for_selector(MADE)
    return page


def ready(page: Page) -> None:
    page.wait_for_selector("body[data-ready]")


def test_a_lesson_works_from_the_prediction_to_the_marked_answer(visit: Visit) -> None:
    page = visit().at("lessons", lesson=COSTS)
    expect(page.locator("#introduction h1")).to_contain_text("3.")
    page.press("#figure input", "ArrowRight")
    page.click("#figure [aria-label=Next]")
    expect(page.locator("#figure .tells")).to_contain_text("10 tokens in the cache")  # 8 of the prompt, and two steps
    assert page.locator("#figure .columns .computed").count() == 6  # K and V of the newest, in three formats
    page.press("#figure input", "Home")
    expect(page.locator("#figure .reached")).to_have_text(re.compile("^1 of"))
    for button in ("#run", "#stop"):
        expect(page.locator(button)).to_be_disabled()
    for later in ("#explain .md", "#try section", "#check section", ".observe .found"):
        expect(page.locator(later)).to_be_hidden()
    assert "Llama 2 7B" not in page.content()  # the answer is not in the page
    page.focus("[data-does=export]")
    expect(page.locator(".meaning")).to_be_visible()  # says why it is disabled
    page.click("#predict .main")
    expect(page.locator("#predict .verdict.problem")).to_be_visible()
    expect(page.locator("#run")).to_be_disabled()
    predict(page, 1)
    assert done(page, COSTS) == ["predict"]

    outcome = page.locator(".observe .outcome")
    page.keyboard.press("Control+Enter")
    expect(outcome).to_contain_text("The small one")
    page.wait_for_selector(".observe [data-chart] .main-svg")
    page.wait_for_selector(MADE)
    expect(page.locator("#predict label.right")).to_contain_text("The small one")
    expect(page.locator("#predict input").first).to_be_disabled()
    drawn = "document.querySelector('[data-chart=chart-0] .plot').data[0].x"
    assert page.evaluate(drawn) == BYTES
    explained = page.locator("#explain")
    expect(explained).to_contain_text("0.625×")
    assert explained.locator(".katex").count() >= 4
    assert page.evaluate("document.documentElement.scrollHeight - innerHeight") == 0  # the column scrolls

    page.click("#try .main")
    expect(page.locator("#try .see")).to_contain_text("25.0%")
    assert page.inner_text("#try tbody").split("\n")[0].split("\t")[1:] == ["32", "8"]

    slider, verdict = page.locator("#check input[type=range]"), page.locator("#check .verdict")
    slider.press("Enter")  # answers with the value it shows
    at = page.get_attribute(".stage", "data-at")
    slider.press("Space")  # does so too, and does not play the run from its beginning
    assert page.get_attribute(".stage", "data-at") == at > "0"
    expect(page.locator("#check output")).to_have_text(slider.get_attribute("aria-valuetext"))
    for value, steps in (("84", 3), ("16", 4)):
        slide(page, "#check", value)
        page.click("#check .main")
        expect(verdict).to_have_text(re.compile(rf"\b{value}\b.*\b16\b"))
        expect(page.locator(".course li:nth-child(3) .steps")).to_have_attribute("title", re.compile("."))
        assert len(done(page, COSTS)) == steps
    expect(page.locator("#check .onwards a")).to_contain_text("4.")

    page.reload()
    ready(page)
    assert done(page, COSTS) == ["predict", "run", "try", "check"]
    expect(page.locator(".course summary")).to_contain_text("1 of ")
    expect(outcome).to_contain_text("The small one")
    page.wait_for_selector(".observe [data-chart] .main-svg")
    page.wait_for_selector(MADE)
    assert page.evaluate(drawn) == BYTES
    assert page.evaluate("document.querySelector('#view').scrollTop") == 0  # a reload does not scroll
    expect(explained).to_contain_text("0.625×")
    expect(verdict).to_contain_text("16")
    page.click("[data-does=again]")
    ready(page)
    expect(page.locator("#run")).to_be_disabled()
    expect(page.locator("#explain .md")).to_be_hidden()
    assert done(page, COSTS) == []


def test_a_prediction_changed_before_the_first_was_answered_is_kept_and_the_progress_is_heard_now_and_then(
    visit: Visit,
) -> None:
    """Also where the browser can store no more, of which the page tells."""
    lab = visit()
    page = lab.at("lessons", lesson=COSTS)
    lab.slow()
    for option in (0, 1):
        page.click(f"#predict label >> nth={option}")
        page.click("#predict .main")
    expect(page.locator("#run")).to_be_enabled()
    page.wait_for_timeout(700)
    expect(page.locator("#predict label >> nth=1").locator("input")).to_be_checked()
    page.evaluate(
        """() => { localStorage.setItem("full", "");
        for (let size = 2 ** 22; size >= 2048; size /= 2)
          try { localStorage.setItem("full", localStorage.getItem("full") + "x".repeat(size)); } catch {} }"""
    )
    lab.listen()
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".observe .outcome:visible")
    expect(page.locator(".course-say")).not_to_be_empty()
    progress = [(at, text) for at, text in lab.heard if re.search(r"warm|repeat \d|tokens|ready", text)]
    assert not any("tokens" in text for _, text in progress)
    assert all(later - before > 2400 for (before, _), (later, _) in itertools.pairwise(progress))


def test_a_curve_is_drawn_by_mouse_and_keys_and_a_run_can_be_stopped(visit: Visit) -> None:
    page = visit(color_scheme="dark").at("lessons", lesson=2)
    page.click("#predict .main")
    expect(page.locator("#predict .verdict.problem")).to_be_visible()
    plot, handles = page.locator("#predict svg"), page.locator("#predict .handle")
    plot.scroll_into_view_if_needed()
    box, ends = plot.bounding_box(), [handles.first.bounding_box(), handles.last.bounding_box()]
    left, right = (end["x"] + end["width"] / 2 for end in ends)
    top, bottom = box["y"] + 0.15 * box["height"], box["y"] + 0.75 * box["height"]
    page.mouse.move(left - 10, bottom)  # in one stroke: each point takes the height at which it passes
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
    for key in ("Home", "PageUp"):
        handles.first.press(key)
    expect(handles.first).to_have_attribute("aria-valuenow", "10")
    found = drawn()
    page.reload()  # as Gradio does when it has lost the server
    ready(page)
    assert drawn() == found
    page.click("#predict .main")
    expect(page.locator("#predict .verdict:not(.problem)")).to_be_visible()
    page.click("#run")
    progress = page.locator(".observe .progress")
    expect(progress).to_contain_text("tokens")
    page.locator("#predict .main").press("Enter")  # the mouse cannot press it now
    page.keyboard.press("Escape")
    expect(progress).not_to_contain_text("tokens")
    expect(page.locator("#run")).to_be_enabled()
    expect(page.locator(".observe .found")).to_be_hidden()
    assert done(page, 2) == ["predict"]
    at_rest(page)


def test_a_lesson_shows_its_last_run_only_in_the_browser_that_made_it(visit: Visit, tmp_path: Path) -> None:
    page = visit().at("lessons", lesson=COSTS)
    as_on_a_phone(page)
    predict(page)
    page.click("#run")
    page.wait_for_selector(MADE)
    expect(page.locator("#view .outcome")).to_be_in_viewport()  # not scrolled past it, to the player
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    expect(page.locator("#check .verdict")).to_have_css("white-space", "normal")  # long text wraps
    with page.expect_download() as download:
        page.click("[data-does=export]")
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert json.loads(file.read_text())["lessons"]["3"]["prediction"] == 2

    other = visit().at("lessons", lesson=COSTS)
    said = other.locator(".course-say")

    def bring(text: str) -> None:
        path = tmp_path / "brought.json"
        path.write_text(text)
        other.set_input_files(".course input[type=file]", path)

    bring("{")
    expect(said).to_contain_text("JSON")
    refused = said.inner_text()
    bring('{"format": "something else", "lessons": {}}')
    expect(said).not_to_have_text(refused)
    hostile = json.loads(file.read_text())
    hostile["lessons"]["1"] = {"name": HOSTILE, "done": [HOSTILE], "prediction": HOSTILE, "figures": HOSTILE}
    with other.expect_navigation():
        bring(json.dumps(hostile))
    ready(other)
    expect(other.locator(".observe .outcome")).to_contain_text("The small one")
    expect(other.locator("#stage")).to_be_hidden()
    other.click(".course li:nth-child(1) a")
    ready(other)
    expect(other.locator("#run")).to_be_disabled()
    assert other.evaluate("window.pwned") is None


def test_a_tab_that_stayed_behind_erases_nothing(visit: Visit) -> None:
    lab = visit()
    ahead = lab.at("lessons", lesson=COSTS)
    stays = visit(beside=lab).at("lessons", lesson=COSTS)
    predict(ahead)
    ahead.click("#run")
    ahead.wait_for_selector("#explain .md")
    ahead.wait_for_function("localStorage.getItem('decode-lab-course').includes('figures\":{')")
    expect(stays.locator(".course-say")).not_to_be_empty()  # it went on in another tab
    assert done(stays, COSTS) == ["predict", "run"]
    before = ahead.evaluate("localStorage.getItem('decode-lab-course')")
    predict(stays, 1)
    assert stays.evaluate("localStorage.getItem('decode-lab-course')") == before
    stays.reload()  # now both have the run
    stays.wait_for_selector(MADE)
    slide(ahead, "#check", "84")
    ahead.click("#check .main")
    expect(ahead.locator("#check .verdict")).to_contain_text("84")
    stays.click("#try .main")
    expect(stays.locator("#try .see")).to_contain_text("25.0%")
    ahead.reload()
    ahead.wait_for_selector(MADE)
    expect(ahead.locator("#check .verdict")).to_contain_text("84")
    expect(ahead.locator("#try .see")).to_contain_text("25.0%")


def test_the_instructors_answers_are_measured_on_request_and_can_be_stopped_and_the_page_prints_in_full(
    visit: Visit,
) -> None:
    page = begun(visit)
    page.click(".course-about a[data-to=instructor]")
    page.wait_for_url("**/instructor")
    ready(page)
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    assert page.inner_text("#guide table >> nth=0")
    assert page.locator(".told .katex-error").count() == 0
    answer = page.locator(f"#lesson-{COSTS} blockquote").first
    expect(answer).to_have_text("The small one.")  # a learner's results are filled in
    lossless, blank = page.locator("#lesson-9"), "▢"
    expect(lossless).to_contain_text(blank)
    measured = page.locator(".teaching li .measure")
    measured.nth(8).click()
    expect(lossless).not_to_contain_text(blank)
    expect(page.locator("#lesson-8")).to_contain_text(blank)
    page.click(".teaching a[href='#lesson-12']")
    expect(page.locator("#lesson-12 h2")).to_be_in_viewport()

    progress, every = page.locator(".teaching .progress"), page.locator("[data-does=measure]")
    every.click()
    expect(progress).to_contain_text("tokens")
    page.focus("[data-does=stop]")
    page.keyboard.press("Escape")
    expect(every).to_be_enabled()
    expect(page.locator("[data-does=stop]")).to_be_focused()
    expect(progress).not_to_contain_text("tokens")
    page.reload()
    ready(page)
    expect(lossless).not_to_contain_text(blank)
    expect(page.locator("#lesson-8")).to_contain_text(blank)

    as_on_a_phone(page)
    page.emulate_media(media="print")
    expect(page.locator("#controls")).to_be_hidden()
    expect(page.locator("#lesson-12 h2")).to_be_visible()
    whole = "(view => view.scrollHeight <= view.clientHeight + 1)(document.querySelector('#view'))"
    assert page.evaluate(whole)


def test_p_and_q_are_shown_under_every_rule_and_can_be_moved(visit: Visit) -> None:
    lab = visit()
    page = lab.at("lessons", lesson=9)
    predict(page, 0)
    page.click("#run")
    page.wait_for_selector("[data-chart=written] .main-svg")

    def too_much() -> float:
        """By how much the word with the largest excess stands above p."""
        heights = "document.querySelector('[data-chart=written] .plot').data.map((trace) => [...trace.y])"
        return max(a + b - c for a, b, c in zip(*page.evaluate(heights), strict=True))

    rules = page.locator(".overlap [role=radio], .overlap input[type=radio]")
    assert too_much() < 1e-3
    said = page.inner_text(".overlap .said-of")
    rules.first.press("ArrowRight")
    expect(page.locator(".overlap .said-of")).not_to_have_text(said)
    until(lambda: too_much() > 0.05)  # the chart is drawn after the words
    page.locator(".overlap input[type=range]").press("Home")
    expect(page.locator(".overlap output")).to_have_text(re.compile(r"^0%"))
    until(lambda: too_much() < 1e-3)
