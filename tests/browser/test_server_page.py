"""The Server page: a scripted vLLM is watched, prompted, lost and found again, and its output is treated as text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.pages import (
    CUT,
    HOSTILE,
    OVERFLOW,
    UNREACHED,
    Visit,
    as_on_a_phone,
    is_harmless,
    link_to,
    notices,
)
from tests.browser.test_accessibility import violations
from tests.vllm.scripted_vllm import ACCEPTED, WORDS, ScriptedVLLM

POINTS = (
    "name => document.querySelector(`[data-chart=${name}] .plot`)?.data?.[0].y?.filter((y) => y !== null).length ?? 0"
)


@pytest.fixture(scope="module")
def server(hosting: str) -> str:
    """Replaces the session's server: an app attached to vLLM."""
    return hosting


@pytest.fixture(autouse=True)
def _well_behaved(vllm: ScriptedVLLM) -> Iterator[None]:
    yield
    vllm.__init__()


def watching(page: Page) -> Page:
    page.wait_for_function(f"({POINTS})('speed') >= 1")
    return page


def answers(page: Page, words: str, where: str = ".answer-say") -> None:
    expect(page.locator(where)).to_contain_text(words)


def test_charts_update_a_prompt_is_answered_with_its_rounds_and_a_lost_server_is_reported(
    visit: Visit, vllm: ScriptedVLLM
) -> None:
    lab = visit(color_scheme="dark")
    link_to(lab.at("memory"), "Server").click()
    page = watching(lab.page)
    page.wait_for_function(f"({POINTS})('acceptance') === 4")
    expect(page.locator(".sheet-say")).to_contain_text("tiny-qwen3")
    numbers = {
        key: page.inner_text(f"[data-key={key}] .value") for key in ("usage", "running", "waiting", "hits", "length")
    }
    assert numbers == {"usage": "25", "running": "3", "waiting": "2", "hits": "75", "length": "3.25"}
    hostile = HOSTILE[:-1]
    vllm.words, vllm.gauges["kv_cache_usage_perc"] = (*WORDS, hostile), 0.5
    page.wait_for_selector("body[data-ready]")
    lab.prompt.fill("  ")
    page.click("#run")
    answers(page, "prompt")  # is empty
    lab.prompt.fill(f"{hostile}\n\u202e")  # which would reverse the answer after it
    lab.press("Control+Enter")
    answers(page, "10 tokens")
    assert page.inner_text(".answer-text") == f"{hostile}\n⟨RLO⟩" + "".join(f" {word}" for word in vllm.words)
    assert [asked["prompt"] for asked in vllm.asked if isinstance(asked, dict)] == [f"{hostile}\n\u202e"]
    for number in ("4", "8 of 14"):
        answers(page, number, ".rounds-say")
    rounds = "document.querySelector('[data-chart=rounds] .plot').data[1].x.length"
    page.wait_for_function(f"{rounds} === {sum(ACCEPTED)}")
    vllm.spec = False
    page.click("#run")
    page.wait_for_function(f"{rounds} === 0")
    expect(page.locator("[data-key=usage] .value")).to_have_text("50")
    assert page.evaluate(OVERFLOW) == [0, 0]  # at 1280 x 720

    vllm.wrong["/metrics"] = "html"
    expect(page.locator(".sheet-say.problem")).to_contain_text("Prometheus")
    page.wait_for_selector(".readouts.old")
    vllm.wrong.clear()
    vllm.restart()
    vllm.model = hostile
    expect(page.locator(".sheet-say:not(.problem)")).to_contain_text(hostile)
    assert page.locator(".readouts.old").count() == 0
    gaps = "document.querySelector('[data-chart=usage] .plot').data[0].y.filter((y) => y === null).length"
    assert page.evaluate(gaps) >= 1
    is_harmless(page)
    lab.at("server", prompt="Long ago", max_tokens=7, temperature=9)
    assert lab.prompt.input_value() == "Long ago"
    expect(lab.number("max_tokens")).to_have_value("7")
    expect(notices(page)).to_contain_text("temperature")


def test_an_answer_that_cannot_be_heard_is_asked_for_again_and_can_be_stopped(
    troubled: Visit, vllm: ScriptedVLLM
) -> None:
    vllm.endless, vllm.pause = True, 0.2  # 13 s of 64 tokens
    lab = troubled()
    page = watching(lab.at("server"))
    page.route("**/channels/*", lambda route: route.fulfill(status=502))
    lab.prompt.fill("Once")
    page.click("#run")
    answers(page, UNREACHED)
    page.unroute("**/channels/*")
    page.wait_for_function("document.querySelector('.answer-text').textContent.split(' ').length > 5")
    lab.press("Escape")
    page.wait_for_selector("body:not(.running)")
    assert len(page.inner_text(".answer-text").split()) > 5


NO_ROOM = """() => [...document.querySelectorAll(".readout .label, .lab-header p")]
  .filter((label) => label.scrollWidth > label.clientWidth).map((label) => label.textContent)"""


def test_no_label_is_cut_a_lost_server_moves_nothing_and_the_page_fits_a_phone(
    visit: Visit, vllm: ScriptedVLLM
) -> None:
    vllm.by_position = tuple(0.9**position for position in range(16))
    page = watching(visit().at("server"))
    page.wait_for_selector("[data-key=length] .was:not(:empty)")
    assert page.evaluate(NO_ROOM) == []
    page.wait_for_function(f"({POINTS})('acceptance') === 16")
    charts = page.locator(".remote-charts")
    before = charts.bounding_box()
    vllm.wrong["/metrics"] = "html"
    page.wait_for_selector(".sheet-say.problem")
    assert charts.bounding_box() == before
    vllm.wrong.clear()
    page.wait_for_selector(".sheet-say:not(.problem)")

    page.set_viewport_size({"width": 1024, "height": 768})
    assert page.eval_on_selector_all(".remote-charts .caption", CUT) == []
    as_on_a_phone(page)
    assert violations(page) == []
    assert page.locator(".answer").bounding_box()["y"] < charts.bounding_box()["y"]
