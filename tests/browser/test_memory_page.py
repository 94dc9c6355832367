"""The Memory and Deploy pages: a link opens them with its settings, changes update numbers, command and link."""

from __future__ import annotations

import re
from itertools import pairwise

from playwright.sync_api import Page, expect

from tests.browser.pages import (
    CUT,
    HOSTILE,
    OVERFLOW,
    Visit,
    appeared,
    as_on_a_phone,
    is_harmless,
    link_to,
    notices,
)
from tests.browser.test_accessibility import at_rest

SHEET = ".sheet-say"
FRESH, STALE = ".sheet:not(.stale)", ".sheet.stale"


def per_token(page: Page) -> str:
    """KV bytes per token, in their unit."""
    return page.locator(".readouts .readout .value").first.inner_text()


def test_a_link_opens_its_numbers_and_a_change_updates_them(visit: Visit) -> None:
    lab = visit()
    page = lab.at("memory", model="llama-2-7b", kv_dtype="int8", mean=300)
    said, numbers = page.locator(SHEET), page.locator(".readouts .readout .value")
    expect(said).to_contain_text("Llama 2 7B")
    expect(numbers.first).to_have_text("264")
    assert "32 × 32 × 2 × 132" in page.inner_text(".formula")
    page.wait_for_selector("[data-chart=split] .main-svg")
    traces = page.evaluate("[...document.querySelectorAll('.plot')].map((plot) => plot.data.length)")
    assert traces == [9, 2, 5]  # length, fit, split
    lab.pick("model", "Falcon 7B")
    expect(numbers.first).to_have_text("4.25")  # 32 x 1 x 2 x (64 + 4) bytes
    page.fill("#longest input", "2048")  # for which it was made
    expect(said).to_contain_text("1/71")
    lab.choose("kv_dtype", "auto")
    expect(numbers.first).to_have_text("8")
    lab.until_asked(kv_dtype=None)
    assert lab.link == {"model": "falcon-7b", "mean": "300", "longest": "2048"}
    # Links to other pages have the settings before they are clicked, for who opens one in a new tab, or copies it.
    deploy = link_to(page, "Deploy")
    expect(deploy).to_have_attribute("href", re.compile(r"model=falcon-7b"))
    lab.choose("weights", "int4")
    expect(deploy).to_have_attribute("href", re.compile(r"weights=int4"))
    assert link_to(page, "Server").count() == 0  # nothing is attached
    page.focus("#model input")  # Tab moves from an open list to the next control
    page.wait_for_selector("[role=listbox]")
    page.keyboard.press("Tab")
    page.wait_for_selector("[role=listbox]", state="detached")
    assert page.evaluate("document.activeElement.closest('#weights') !== null")


def test_mistakes_are_explained_and_lose_nothing_and_the_page_and_its_charts_fit_the_screen(visit: Visit) -> None:
    lab = visit()
    page = lab.at("memory", mean="many", gpu="other", memory=48)
    assert page.evaluate(OVERFLOW) == [0, 0]
    assert page.evaluate("(box => box.clientHeight >= box.scrollHeight)(document.querySelector('#settings'))")
    assert page.evaluate("document.querySelector('.formula').getBoundingClientRect().bottom") <= 720
    said = page.locator(SHEET)
    expect(notices(page)).to_contain_text("mean")
    page.wait_for_selector("#memory input")
    appeared(page)
    fits(page)
    page.fill("#memory input", "0")
    page.wait_for_selector(f"{SHEET}.problem")
    lab.pick("gpu", "H100")
    expect(page.locator("#memory")).to_be_hidden()  # and stands in nobody's way
    page.wait_for_selector(FRESH)
    before = per_token(page)
    page.fill("#mean input", "9999")
    expect(page.locator(f"{SHEET}.problem")).to_contain_text("4,096")
    expect(page.locator(STALE)).to_have_count(1)
    assert per_token(page) == before  # greyed out, but still there
    page.fill("#mean input", "400")
    page.wait_for_selector(FRESH)

    lab.pick("model", "Another")
    hub_id = page.locator("#hub textarea, #hub input")
    expect(hub_id).to_be_visible()
    appeared(page)
    for asked, says in ((HOSTILE, "cannot be used"), ("../../etc/passwd", "passwd"), ("a/b", "a/b")):
        hub_id.fill(asked)
        hub_id.press("Enter")
        expect(said).to_contain_text(says)
    is_harmless(page)
    as_on_a_phone(page)


LABELS = """() => [...document.querySelectorAll("[data-chart=fit] .bartext")]
  .map((label) => label.getBoundingClientRect()).map(({ top, bottom, right }) => [top, bottom, right])"""


def fits(page: Page) -> None:
    """The page and its charts fit the screen, for devices of any size."""
    page.fill("#mean input", "20")  # very many sequences fit
    page.fill("#memory input", "100000")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 720})
        expect(page.locator("[data-chart=fit] .bartext").last).to_have_text(re.compile(r"^\d{2,3},\d{3},\d{3}$"))
        labels = sorted(page.evaluate(LABELS))
        assert len(labels) == 14
        assert all(one[1] <= other[0] for one, other in pairwise(labels)), "they do not overlap"
        panel = page.locator("[data-chart=fit]").bounding_box()
        assert max(right for *_, right in labels) <= panel["x"] + panel["width"]
    page.set_viewport_size({"width": 1024, "height": 600})
    page.wait_for_function("document.querySelector('[data-chart=fit] .main-svg').clientWidth > 250")
    parts = page.eval_on_selector_all(
        ".sheet > *", "all => all.map(part => part.getBoundingClientRect()).map(({ top, bottom }) => [top, bottom])"
    )
    assert all(above[1] <= below[0] for above, below in pairwise(parts)), "the parts do not overlap"
    page.evaluate("document.querySelector('.sheet').scrollTo(0, 9999)")
    page.evaluate("scrollTo(0, 9999)")
    assert page.evaluate("document.querySelector('.formula').getBoundingClientRect().bottom <= innerHeight")
    page.set_viewport_size({"width": 1280, "height": 720})


def test_deploy_takes_settings_over_and_a_change_updates_the_command(visit: Visit) -> None:
    lab = visit(color_scheme="dark")
    page = lab.at("memory", model="llama-3.1-70b", kv_dtype="int8", batch=9)
    link_to(page, "Deploy").click()
    command = page.locator(".serve")
    expect(command).to_contain_text("vllm serve meta-llama/Llama-3.1-70B")
    page.wait_for_selector("body[data-ready]")
    assert lab.link == {"model": "llama-3.1-70b", "kv_dtype": "int8"}
    for flag in ("--kv-cache-dtype int8_per_token_head", "--tensor-parallel-size 2"):
        expect(command).to_contain_text(flag)
    assert page.inner_text(".splits .chosen th") == "2"
    lab.choose("speculative", "ngram")
    expect(command).to_contain_text('"method": "ngram"')
    expect(page.locator("#draft-model")).to_be_hidden()
    page.fill("#at-once input", "0")
    page.wait_for_selector(f"{SHEET}.problem")
    expect(command).to_contain_text("ngram")  # greyed out, but still there
    page.fill("#at-once input", "8")
    page.wait_for_selector(FRESH)
    lab.pick("model", "Another")
    page.fill("#hub textarea, #hub input", HOSTILE[:-1])
    expect(command).to_contain_text(HOSTILE[:-1])
    is_harmless(page)
    assert page.is_hidden(".splits")  # of a model that is not known
    assert page.evaluate(OVERFLOW) == [0, 0]
    lab.until_asked(at_once=8, hub=HOSTILE[:-1])
    lab.choose("block_size", "128")  # the Lab has no such blocks
    lab.until_asked(block_size=128)
    link_to(page, "Lab").click()
    page.wait_for_selector("body[data-ready]")
    assert lab.link == {"kv_dtype": "int8", "speculative": "ngram"}
    expect(lab.option("kv_dtype", "int8")).to_be_checked()
    assert notices(page).inner_text() == ""

    lab.at("deploy", model="qwen2.5-7b", tensor_parallel=8, speculative="off", kv_cache=0)  # an impossible split
    expect(page.locator(f"{SHEET}.problem")).to_contain_text("8 GPUs")
    lab.pick("model", "Llama 3.1 8B")
    page.wait_for_selector(FRESH)
    expect(page.locator(".differs li").first).to_be_visible()
    as_on_a_phone(page)
    assert page.eval_on_selector_all(".splits", CUT) == [], "whether so many GPUs are enough is in view"
    page.evaluate("navigator.clipboard.writeText = async (text) => (window.copied = text)")  # it asks for permission
    copy = page.locator(".command .copy").first
    before = copy.inner_text()
    copy.click()
    expect(copy).not_to_have_text(before)
    assert page.evaluate("copied") == page.text_content(".serve")
    at_rest(page)
