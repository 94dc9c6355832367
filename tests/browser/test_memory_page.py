"""The Memory and Deploy pages: a link opens them with its settings, changes update numbers, command and link."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from lab.memory.capacity import POLICIES
from lab.settings import KV_DTYPES
from tests import hub, tiny_models
from tests.browser.conftest import serving
from tests.browser.pages import CUT, HOSTILE, OVERFLOW, Lab, appeared, as_on_a_phone, is_harmless, link_to, notices
from tests.waiting import until
from visualize.page_list import ABOUT

Visit = Callable[..., Lab]
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
    assert traces == [5, 2, 5]  # length, fit, split
    fit = page.locator("[data-chart=fit]").get_by_role("img")
    expect(fit).to_have_count(1)  # no image nested in it
    drawn = page.evaluate("document.querySelector('[data-chart=fit] .plot').data.map((trace) => trace.text)")
    told = fit.evaluate("one => one.ariaDescription")
    for policy, counts in zip(POLICIES, drawn, strict=True):
        for name, count in zip(KV_DTYPES.values(), counts, strict=True):
            assert f"{name}, {policy}: {count}" in told

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
    cut = """abouts => abouts.filter((about) => {
      const line = document.querySelector(".lab-header p");
      line.textContent = about;
      return line.scrollWidth > line.clientWidth;
    })"""
    abouts = [about for name, about in ABOUT.items() if name not in ("Lab", "Server", "Room")]
    assert page.evaluate(cut, abouts) == [], "every page's description fits its line on a projector"

    # The address is not rewritten with every step of a slider: Safari allows it a hundred times in ten seconds.
    page.evaluate(
        """() => {
          [window.writings, window.began] = [0, performance.now()];
          const write = history.replaceState;
          history.replaceState = (...what) => (window.writings += 1, write.apply(history, what));
        }"""
    )
    page.evaluate("for (let i = 1; i <= 90; i += 1) decodeLab.link(['set_aside'], [10], [], [i])")
    page.wait_for_function("location.search.includes('set_aside=90')")
    assert page.evaluate("writings <= 21 + (performance.now() - began) / 200")
    page.focus("#model input")  # Tab moves from an open list to the next control
    page.wait_for_selector("[role=listbox]")
    page.keyboard.press("Tab")
    page.wait_for_selector("[role=listbox]", state="detached")
    assert page.evaluate("document.activeElement.closest('#weights') !== null")


def test_mistakes_are_explained_and_lose_nothing(visit: Visit) -> None:
    lab = visit()
    page = lab.at("memory", mean="many")
    said = page.locator(SHEET)
    assert "mean" in notices(page).inner_text()
    before = per_token(page)
    page.fill("#mean input", "9999")
    expect(page.locator(f"{SHEET}.problem")).to_contain_text("4,096")
    expect(page.locator(STALE)).to_have_count(1)
    assert per_token(page) == before  # greyed out, but still there
    page.fill("#mean input", "400")
    page.wait_for_selector(FRESH)

    # A number typed beyond a slider counts as the nearest, and none as the first: the box is put right as it is left.
    box = page.locator("#set-aside input[type=number]")
    shown = notices(page).inner_text()
    box.fill("9000")
    page.wait_for_selector(f"{SHEET}.problem")
    page.keyboard.press("Tab")
    expect(box).to_have_value("90")
    box.fill("")
    page.wait_for_selector(FRESH)
    assert notices(page).inner_text() in (shown, "")

    lab.pick("model", "Another")
    hub_id = page.locator("#hub textarea, #hub input")
    expect(hub_id).to_be_visible()
    appeared(page)
    for asked, says in ((HOSTILE, "cannot be used"), ("../../etc/passwd", "passwd"), ("a/b", "a/b")):
        hub_id.fill(asked)
        hub_id.press("Enter")
        expect(said).to_contain_text(says)
    is_harmless(page)


def test_an_older_answer_does_not_replace_a_newer_one(visit: Visit) -> None:
    """However late what was asked first, as the page opened, comes to the server."""
    lab, held, answering = visit(), [], []
    page, asked = lab.page, 0

    def hold(route: Route) -> None:
        nonlocal asked
        asked += 1
        if asked <= 3 or answering:  # the link's settings, their sheet, and whether a model is to be looked up
            route.continue_()
        else:
            held.append(route)

    page.route("**/queue/join*", hold)
    lab.at("memory")
    page.wait_for_timeout(1000)  # for what the page asks for by itself
    page.fill("#mean input", "9999")
    until(lambda: page.wait_for_timeout(20) or any("9999" in (route.request.post_data or "") for route in held))
    answering.append(True)
    held.pop().continue_()
    page.wait_for_selector(f"{SHEET}.problem")
    for route in held:
        with page.expect_response(lambda answer, route=route: answer.request == route.request):
            route.continue_()
    page.wait_for_timeout(1000)
    assert page.locator(f"{SHEET}.problem").count() == 1
    page.fill("#mean input", "400")
    page.wait_for_selector(FRESH)


def test_a_model_chosen_during_a_look_up_stays(troubled: Visit, tmp_path: Path) -> None:
    """Whether the look-up began on Enter or with the page."""
    for id in ("some/model", "some/other"):
        tiny_models.random_model("llama").config.save_pretrained(tmp_path / "hub" / id)
    cache = {"HF_HOME": str(tmp_path / "cache")}
    with (
        hub.serving(tmp_path / "hub", seconds=1.0) as slow,
        serving(tmp_path / "log.txt", **slow.variables, **cache) as address,
    ):
        lab = Lab(troubled().page, address)
        page, said = lab.page, lab.page.locator(SHEET)
        lab.at("memory", model="other", hub="nobody/nothing")
        expect(said).to_contain_text("nobody/nothing")
        for count, id in enumerate(("some/model", "some/other"), 1):
            if count == 1:
                page.fill("#hub textarea, #hub input", id)
                page.keyboard.press("Enter")
            else:
                lab.at("memory", model="other", hub=id)
            expect(said).to_contain_text(id)
            lab.pick("model", "Llama 3.1 8B")
            expect(said).to_contain_text("Llama 3.1 8B")
            until(lambda count=count: page.wait_for_timeout(20) or len(slow.sent) == 2 * count)  # card and config.json
            page.wait_for_timeout(1000)  # for the look-up, now answered, to end
            expect(said).to_contain_text("Llama 3.1 8B")
            lab.until_asked(model=None)
            lab.pick("model", "Another")
            expect(said).to_contain_text(id)
            expect(page.locator(FRESH)).to_have_count(1)
        page.close()


@pytest.mark.parametrize("path", ["memory", "deploy"])
def test_a_field_that_is_hidden_stands_in_nobodys_way(visit: Visit, path: str) -> None:
    lab = visit()
    page = lab.at(path, gpu="other")
    page.wait_for_selector("#memory input")
    appeared(page)
    page.fill("#memory input", "0")
    page.wait_for_selector(f"{SHEET}.problem")
    lab.pick("gpu", "H100")
    expect(page.locator("#memory")).to_be_hidden()
    page.wait_for_selector(FRESH)


LABELS = """() => [...document.querySelectorAll("[data-chart=fit] .bartext")]
  .map((label) => label.getBoundingClientRect()).map(({ top, bottom, right }) => [top, bottom, right])"""


def test_the_page_and_its_charts_fit_the_screen_for_devices_of_any_size(visit: Visit) -> None:
    page = visit().at("memory", gpu="other", memory=48)
    assert page.evaluate(OVERFLOW) == [0, 0]
    assert page.evaluate("(box => box.clientHeight >= box.scrollHeight)(document.querySelector('#settings'))")
    assert page.evaluate("document.querySelector('.formula').getBoundingClientRect().bottom") <= 720
    appeared(page)
    shown = page.locator("[data-chart=split] .xtick")
    for memory, last in ((80, "80"), (100_000, "100,000"), (16, "device: 16 GiB")):
        page.fill("#memory input", str(memory))
        expect(shown.last).to_have_text(last)
        expect(shown.last.locator("text")).to_be_visible()
    page.fill("#mean input", "20")  # very many sequences fit
    page.fill("#memory input", "100000")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 720})
        expect(page.locator("[data-chart=fit] .bartext").last).to_have_text(re.compile(r"^\d\d,\d{3},\d{3}$"))
        labels = sorted(page.evaluate(LABELS))
        assert len(labels) == 6
        assert all(one[1] <= other[0] for one, other in pairwise(labels)), "they do not overlap"
        panel = page.locator("[data-chart=fit]").bounding_box()
        assert max(right for *_, right in labels) <= panel["x"] + panel["width"]
    page.set_viewport_size({"width": 1024, "height": 600})
    page.wait_for_function("document.querySelector('[data-chart=fit] .main-svg').clientWidth > 250")
    parts = page.eval_on_selector_all(
        ".sheet > *", "all => all.map(part => part.getBoundingClientRect()).map(({ top, bottom }) => [top, bottom])"
    )
    assert all(above[1] <= below[0] for above, below in pairwise(parts)), "the parts do not overlap"
    assert page.evaluate(f"(say => say.scrollHeight <= say.clientHeight)(document.querySelector('{SHEET}'))")
    page.evaluate("document.querySelector('.sheet').scrollTo(0, 9999)")
    page.evaluate("scrollTo(0, 9999)")
    assert page.evaluate("document.querySelector('.formula').getBoundingClientRect().bottom <= innerHeight")
    as_on_a_phone(page)


def test_deploy_takes_settings_over_and_a_change_updates_the_command(visit: Visit) -> None:
    lab = visit()
    page = lab.at("memory", model="llama-3.1-70b", kv_dtype="int8", batch=9)
    link_to(page, "Deploy").click()
    command = page.locator(".serve")
    expect(command).to_contain_text("vllm serve meta-llama/Llama-3.1-70B")
    page.wait_for_selector("body[data-ready]")
    assert lab.link == {"model": "llama-3.1-70b", "kv_dtype": "int8"}
    for flag in ("--kv-cache-dtype int8_per_token_head", "--tensor-parallel-size 2"):
        expect(command).to_contain_text(flag)
    assert page.inner_text(".splits .chosen th") == "2"
    verdicts = page.locator(".splits tbody td:last-child").all_inner_texts()
    assert [text[0] for text in verdicts] == ["✗", "✓", "✓", "✓"]
    assert page.locator("thead th:empty").count() == 0
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

    lab.at("deploy", num_speculative_tokens=7)  # a slider that is put right or reset changes the command
    expect(command).to_contain_text('"num_speculative_tokens": 7')
    lab.control("num_speculative_tokens").locator("button").click()
    expect(command).to_contain_text('"num_speculative_tokens": 4')
    lab.fill("set_aside", 30)
    expect(command).to_contain_text("--gpu-memory-utilization 0.7")
    lab.at("deploy", model="qwen2.5-7b", tensor_parallel=8, speculative="off")  # a split that is impossible
    expect(page.locator(f"{SHEET}.problem")).to_contain_text("8 GPUs")


def test_a_command_can_be_copied_on_a_phone(visit: Visit) -> None:
    phone = {"width": 390, "height": 844}
    lab = visit(viewport=phone, is_mobile=True, permissions=["clipboard-read", "clipboard-write"])
    page = lab.at("deploy", speculative="off", kv_cache=0)
    expect(page.locator(".differs li").first).to_be_visible()
    copy = page.locator(".command .copy").first
    before = copy.inner_text()
    copy.click()
    expect(copy).not_to_have_text(before)
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.evaluate("document.querySelector('.serve').textContent")
    assert copied.startswith("vllm serve ")
    copy.click()  # while it says so
    expect(copy).to_have_text(before)
    assert page.evaluate(OVERFLOW)[0] == 0
    assert page.eval_on_selector_all(".splits", CUT) == [], "whether so many GPUs are enough is in view"
    rows = page.eval_on_selector_all(".splits tbody tr", "rows => rows.map((row) => row.offsetHeight)")
    assert max(rows) < 30, "each row is one line"
    assert urlsplit(page.url).path == "/deploy"
