"""The Server page: a scripted vLLM is watched, prompted, lost and found again, and its output is treated as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import OVERFLOW, Lab
from tests.browser.test_accessibility import violations
from tests.vllm.scripted_vllm import ACCEPTED, WORDS, ScriptedVLLM

Visit = Callable[..., Lab]
HOSTILE = "<img src=x onerror=window.pwned=1>${window.pwned=1}{{value}}"
POINTS = (
    "name => document.querySelector(`[data-chart=${name}] .plot`).data?.[0].y?.filter((y) => y !== null).length ?? 0"
)


@pytest.fixture(scope="module")
def server(hosting: str) -> str:
    """Replaces the session's server: an app attached to vLLM."""
    return hosting


@pytest.fixture(autouse=True)
def _well_behaved(vllm: ScriptedVLLM) -> Iterator[None]:
    yield
    vllm.__init__()


def says(page: Page, selector: str, words: str) -> None:
    page.wait_for_function(
        "([selector, words]) => document.querySelector(selector).textContent.includes(words)", arg=[selector, words]
    )


def test_charts_update_and_a_prompt_is_answered_with_its_rounds(visit: Visit, vllm: ScriptedVLLM) -> None:
    page = visit().at("server")
    page.wait_for_function(f"({POINTS})('speed') >= 2")
    page.wait_for_function(f"({POINTS})('acceptance') === 4")
    before = page.evaluate(POINTS, "usage")
    says(page, ".sheet-say", "serves tiny-qwen3, 21,845 blocks of 32")
    numbers = {
        key: page.inner_text(f"[data-key={key}] .value") for key in ("usage", "running", "waiting", "hits", "length")
    }
    assert numbers == {"usage": "25", "running": "3", "waiting": "2", "hits": "75", "length": "3.25"}
    vllm.words, vllm.gauges["kv_cache_usage_perc"] = (*WORDS, HOSTILE), 0.5
    page.fill("#prompt textarea", f"{HOSTILE}\n\u202e")  # which would reverse the answer after it
    page.keyboard.press("Control+Enter")
    says(page, ".answer-say", "Answered: 10 tokens")
    assert page.inner_text(".answer-text") == f"{HOSTILE}\n⟨RLO⟩" + "".join(f" {word}" for word in vllm.words)
    assert [asked["prompt"] for asked in vllm.asked if isinstance(asked, dict)] == [f"{HOSTILE}\n\u202e"]
    assert page.query_selector(".answer-text img") is None
    says(page, ".rounds-say", "4 rounds with draft tokens, 8 of 14 draft tokens accepted.")
    page.wait_for_function(f"document.querySelector('[data-chart=rounds] .plot').data[1].x.length === {sum(ACCEPTED)}")
    vllm.spec = False
    page.click("#run")
    says(page, ".rounds-say", "The server reports nothing about your prompt's rounds")
    page.wait_for_function("document.querySelector('[data-chart=rounds] .plot').data[1].x.length === 0")
    says(page, "[data-key=usage] .value", "50")
    assert page.evaluate(POINTS, "usage") > before
    assert page.evaluate("window.pwned") is None
    assert page.evaluate(OVERFLOW) == [0, 0]  # at 1280 x 720


def test_an_answer_that_cannot_be_heard_is_asked_for_again(troubled: Visit, vllm: ScriptedVLLM) -> None:
    vllm.endless, vllm.pause = True, 0.2  # 13 s of 64 tokens
    page = troubled().at("server")
    says(page, ".sheet-say", "serves")
    page.route("**/channels/*", lambda route: route.fulfill(status=502))
    page.fill("#prompt textarea", "Once")
    page.click("#run")
    says(page, ".answer-say", "The lab does not answer. Trying again")
    page.unroute("**/channels/*")
    page.wait_for_function("document.querySelector('.answer-text').textContent.split(' ').length > 10")
    says(page, ".answer-say", "Receiving the answer")
    page.click("#stop")
    says(page, ".answer-say", "Stopped")


def test_an_answer_can_be_stopped_and_an_empty_prompt_is_refused(visit: Visit, vllm: ScriptedVLLM) -> None:
    vllm.endless, vllm.pause = True, 0.2  # 13 s of 64 tokens
    page = visit().at("server")
    says(page, ".sheet-say", "serves")
    page.fill("#prompt textarea", "  ")
    page.click("#run")
    says(page, ".answer-say", "The prompt is empty")
    page.fill("#prompt textarea", "Once")
    page.click("#run")
    says(page, ".answer-text", "miller")
    page.keyboard.press("Escape")
    says(page, ".answer-say", "Stopped.")
    page.wait_for_selector("body:not(.running)")
    assert "miller" in page.inner_text(".answer-text")


NO_ROOM = """() => [...document.querySelectorAll(".readout .label, .lab-header p")]
  .filter((label) => label.scrollWidth > label.clientWidth).map((label) => label.textContent)"""


def test_on_a_projector_no_label_is_cut_and_a_lost_server_moves_nothing(visit: Visit, vllm: ScriptedVLLM) -> None:
    vllm.by_position = tuple(0.9**position for position in range(16))
    page = visit().at("server")
    says(page, ".sheet-say", "serves")
    page.wait_for_selector("[data-key=length] .was:not(:empty)")
    assert page.evaluate(NO_ROOM) == []
    page.wait_for_function(f"({POINTS})('acceptance') === 16")
    labels = "ticks => ticks.map((tick) => [tick.textContent, tick.transform.baseVal[1]?.angle ?? 0])"
    positions = page.eval_on_selector_all("[data-chart=acceptance] .xtick text", labels)
    assert positions == [["draft 2", 0], *([f"{position}", 0] for position in range(4, 17, 2))]
    charts = page.locator(".remote-charts")
    before = charts.bounding_box()
    vllm.wrong["/metrics"] = "html"
    page.wait_for_selector(".sheet-say.problem")
    assert charts.bounding_box() == before
    page.focus(".sheet-say")  # what does not fit can be read by Tab, too
    assert page.inner_text(".meaning") == page.text_content(".sheet-say")
    vllm.wrong.clear()
    page.wait_for_selector(".sheet-say:not(.problem)")
    assert charts.bounding_box() == before


def test_a_lost_server_is_reported_and_the_charts_resume_when_it_is_back(visit: Visit, vllm: ScriptedVLLM) -> None:
    page = visit().at("server")
    page.wait_for_function(f"({POINTS})('speed') >= 1")
    vllm.wrong["/metrics"] = "html"
    page.wait_for_selector(".sheet-say.problem")
    says(page, ".sheet-say", "not Prometheus text")
    page.wait_for_selector(".readouts.old")
    assert page.inner_text(".sheet-say").endswith("What is shown is from before.")
    opacity = "getComputedStyle(document.querySelector('.readouts.old')).opacity"
    assert page.evaluate(opacity) == "1", "old numbers stay as easy to read"
    vllm.wrong.clear()
    vllm.restart()
    vllm.model = HOSTILE
    page.wait_for_selector(".sheet-say:not(.problem)")
    assert page.locator(".readouts.old").count() == 0
    says(page, ".sheet-say", HOSTILE)
    gaps = "document.querySelector('[data-chart=usage] .plot').data[0].y.filter((y) => y === null).length"
    assert page.evaluate(gaps) >= 1
    assert page.query_selector(".sheet-say img") is None
    assert page.evaluate("window.pwned") is None


def test_the_other_pages_link_to_it_and_a_link_fills_in_the_prompt(visit: Visit) -> None:
    lab = visit(color_scheme="dark")
    lab.page.goto(f"{lab.server}/memory")
    lab.page.wait_for_selector("body[data-ready]")
    lab.page.click("nav a:has-text('Server')")
    lab.page.wait_for_selector("[data-chart=usage] .main-svg")
    assert urlsplit(lab.page.url).path == "/server"
    lab.page.wait_for_selector("body[data-ready]")
    lab.page.goto(f"{lab.server}/server?prompt=Long+ago&max_tokens=7&temperature=9")
    lab.page.wait_for_selector("body[data-ready]")
    assert lab.page.input_value("#prompt textarea") == "Long ago"
    assert lab.page.input_value("#max-tokens input[type=number]") == "7"
    assert "temperature was left out" in lab.page.inner_text(".toast-wrap")


def test_the_page_fits_a_phone_and_is_accessible(visit: Visit) -> None:
    page = visit(viewport={"width": 390, "height": 844}, is_mobile=True).at("server")
    page.wait_for_function(f"({POINTS})('speed') >= 1")
    across, _ = page.evaluate(OVERFLOW)
    assert (across, page.evaluate("innerWidth")) == (0, 390)
    box = page.locator("nav [aria-current]").bounding_box()
    assert box["x"] + box["width"] <= 390
    assert violations(page) == []
    page.set_viewport_size({"width": 1024, "height": 768})
    cut = "texts => texts.filter((text) => text.scrollWidth > text.clientWidth).map((text) => text.textContent)"
    assert page.eval_on_selector_all(".remote-charts .caption", cut) == []
    assert page.locator(".answer").bounding_box()["y"] < page.locator(".remote-charts").bounding_box()["y"]
