"""The Memory page: a link opens it with its settings, changes update numbers and link, and it fits the screen."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from lab.memory.capacity import POLICIES
from tests import hub, tiny_models
from tests.browser.conftest import OVERFLOW, Lab, appeared, as_on_a_phone, serving
from tests.waiting import until
from visualize.page_list import ABOUT
from visualize.states import KV_FORMATS

Visit = Callable[..., Lab]


def number(page: Page, label: str) -> str:
    return page.inner_text(f"[data-key='{label}'] .number").replace("\n", "")


def becomes(page: Page, label: str, value: str) -> None:
    said = "[...document.querySelectorAll('.readout')].find((card) => card.dataset.key === label)"
    page.wait_for_function(
        f"([label, value]) => {said}.querySelector('.value').textContent === value", arg=[label, value]
    )


def test_a_link_opens_its_numbers_and_a_change_updates_them(visit: Visit) -> None:
    page = visit().at("memory", model="llama-2-7b", kv_dtype="int8", mean=300)
    page.wait_for_selector(".sheet-say:has-text('Llama 2 7B: 32 layers')")
    assert number(page, "KV a token") == "264KiB"
    assert page.inner_text("[data-key='mean sequence'] .was") == "longest 1.03 GiB"
    assert "32 × 32 × 2 × 132" in page.inner_text(".formula")
    page.wait_for_selector("[data-chart=split] .main-svg")
    traces = page.evaluate("[...document.querySelectorAll('.plot')].map((plot) => plot.data.length)")
    assert traces == [5, 2, 5]  # length, fit, split
    fit = page.get_by_role("img", name="Sequences that fit at once, by KV format", exact=True)
    numbers = page.evaluate("document.querySelector('[data-chart=fit] .plot').data.map((trace) => trace.text)")
    expect(fit).to_have_accessible_description(
        "; ".join(
            f"{name}, {policy}: {count} sequences"
            for policy, counts in zip(POLICIES, numbers, strict=True)
            for name, count in zip(KV_FORMATS.values(), counts, strict=True)
        )
    )
    expect(fit.get_by_role("img")).to_have_count(0)  # no image nested in it

    page.click("#model input")
    page.click("[role=option]:has-text('Falcon 7B')")
    becomes(page, "KV a token", "4.25")  # 32 x 1 x 2 x (64 + 4) bytes
    assert "MQA: 1/71" not in page.inner_text(".sheet-say")  # instead: that it was made for 2,048 positions
    page.fill("#longest input", "2048")
    page.wait_for_function("document.querySelector('.sheet-say').textContent.includes('MQA: 1/71')")
    page.click("#kv-dtype label:has-text('Native')")
    becomes(page, "KV a token", "8")
    page.wait_for_function("!location.search.includes('kv_dtype')")
    assert urlsplit(page.url).path == "/memory"
    said = {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}
    assert said == {"model": "falcon-7b", "mean": "300", "longest": "2048"}


LABELS = """() => [...document.querySelectorAll("[data-chart=fit] .bartext")]
  .map((label) => label.getBoundingClientRect()).map(({ top, bottom, right }) => [top, bottom, right])"""


def test_charts_are_legible_on_devices_of_any_size(visit: Visit) -> None:
    page = visit().at("memory", gpu="other", memory=80)
    shown = page.locator("[data-chart=split] .xtick")
    fits = (80, ["0 GiB", "20", "40", "60", "80"]), (100_000, ["0 GiB", "50,000", "100,000"])
    for memory, ticks in (*fits, (16, ["device: 16 GiB"]), (0.1, ["device: 102 MiB"])):
        page.fill("#memory input", str(memory))
        expect(shown).to_have_text(ticks)
        expect(shown.last.locator("text")).to_be_visible()
    page.fill("#mean input", "20")  # very many sequences fit
    for width, memory in ((1280, 100_000), (390, 90_000)):
        page.set_viewport_size({"width": width, "height": 720})
        page.fill("#memory input", str(memory))
        page.wait_for_function("memory => location.search.includes(`memory=${memory}&`)", arg=memory)
        expect(page.locator("[data-chart=fit] .bartext").last).to_have_text(re.compile(r"^\d\d,\d{3},\d{3}$"))
        labels = sorted(page.evaluate(LABELS))
        assert len(labels) == 6
        assert all(one[1] <= other[0] for one, other in pairwise(labels)), "they do not overlap"
        panel = page.locator("[data-chart=fit]").bounding_box()
        assert max(right for *_, right in labels) <= panel["x"] + panel["width"]


def test_mistakes_are_explained_and_lose_nothing(visit: Visit) -> None:
    page = visit().at("memory", mean="many")
    assert "mean was left out" in page.inner_text(".toast-wrap")
    assert number(page, "KV a token") == "128KiB"
    page.fill("#mean input", "9999")
    page.wait_for_selector(".sheet-say.problem")
    assert "The mean length must be between 1 token and the longest" in page.inner_text(".sheet-say")
    assert page.inner_text(".sheet-say").endswith("What is shown is from before.")
    assert page.locator(".sheet.stale").count() == 1
    assert number(page, "KV a token") == "128KiB"  # greyed out, but still there
    page.fill("#mean input", "400")
    page.wait_for_selector(".sheet:not(.stale)")

    page.click("#model input")
    page.click("[role=option]:has-text('Another')")
    page.wait_for_function("document.querySelector('.sheet-say').textContent.includes('Write the hub id')")
    hostile = "<img src=x onerror=window.pwned=1>${window.pwned=1}{{value}}\u202e"
    for asked, says in (
        (hostile, "cannot be used as a hub id"),
        ("../../etc/passwd", "passwd"),
        ("a/b", "of a/b"),
    ):
        box = page.locator("#hub textarea, #hub input")
        box.click()
        box.fill(asked)
        expect(box).to_have_value(asked)
        box.press("Enter")
        expect(page.locator(".sheet-say")).to_contain_text(says, timeout=30_000)
    assert page.evaluate("window.pwned") is None
    assert page.query_selector(".sheet img") is None


def test_a_model_chosen_during_a_look_up_stays(troubled: Visit, tmp_path: Path) -> None:
    """Whether the look-up began on Enter or with the page."""
    for id in ("some/model", "some/other"):
        tiny_models.random_model("llama").config.save_pretrained(tmp_path / "hub" / id)
    cache = {"HF_HOME": str(tmp_path / "cache")}
    with (
        hub.serving(tmp_path / "hub", seconds=1.0) as slow,
        serving(tmp_path / "log.txt", **slow.variables, **cache) as address,
    ):
        page = troubled().page
        page.goto(f"{address}/memory?model=other&hub=nobody/nothing")
        said = page.locator(".sheet-say")
        expect(said).to_contain_text("of nobody/nothing")
        page.fill("#hub textarea, #hub input", "some/model")
        for number, id, begin in (
            (1, "some/model", lambda: page.keyboard.press("Enter")),
            (2, "some/other", lambda: page.goto(f"{address}/memory?model=other&hub=some/other")),
        ):
            begin()
            expect(said).to_contain_text(f"Asking the hub for {id}")
            page.click("#model input")
            page.click("[role=option]:has-text('Llama 3.1 8B')")
            expect(said).to_contain_text("Llama 3.1 8B: 32 layers")
            until(lambda number=number: len(slow.sent) == 2 * number)  # what the hub knows of it, and its config.json
            page.wait_for_timeout(1000)  # for the look-up, now answered, to end
            expect(said).to_contain_text("Llama 3.1 8B: 32 layers")
            page.wait_for_function("!location.search.includes('model=')")
            page.click("#model input")
            page.click("[role=option]:has-text('Another')")
            expect(said).to_contain_text(f"{id} was made for")
        page.close()


def test_a_number_typed_beyond_a_slider_counts_as_the_nearest_and_none_as_the_first(visit: Visit) -> None:
    """No message interrupts whoever types one: the browser puts it right when the box is left."""
    page = visit().at("memory", set_aside=90)
    box, said = page.locator("#set-aside input[type=number]"), page.locator(".sheet-say")
    page.wait_for_selector(".sheet-say.problem")
    at_most = said.inner_text()
    box.fill("10")
    expect(said).not_to_have_text(at_most)
    box.fill("9000")
    expect(said).to_have_text(at_most)
    expect(page.locator(".toast-wrap")).to_have_text("")
    page.keyboard.press("Tab")
    expect(box).to_have_value("90")
    expect(said).to_have_text(at_most)
    box.fill("")
    page.wait_for_selector(".sheet:not(.stale)")
    expect(page.locator(".toast-wrap")).to_have_text("")


@pytest.mark.parametrize("path", ["memory", "deploy"])
def test_a_field_that_is_hidden_stands_in_nobodys_way(visit: Visit, path: str) -> None:
    lab = visit()
    page = lab.page
    lab.at(path, gpu="other")
    page.wait_for_selector("#memory input")
    appeared(page)
    page.fill("#memory input", "0")
    page.wait_for_selector(".sheet-say.problem:has-text('Memory, GiB must be a number')")
    lab.pick("gpu", "H100")
    expect(page.locator("#memory")).to_be_hidden()
    page.wait_for_selector(".sheet:not(.stale)")


def test_pages_link_to_each_other_and_share_the_theme(visit: Visit) -> None:
    lab = visit(color_scheme="light")
    page = lab.at("memory")
    ink = "document.querySelector('[data-chart=length] .plot').layout.font.color"
    page.wait_for_selector("[data-chart=length] .main-svg")
    light = page.evaluate(ink)
    page.focus("#look")
    page.keyboard.press("Enter")
    page.wait_for_function(f"{ink} !== '{light}'")
    assert "Server" not in page.inner_text("nav")  # nothing is attached
    cut = """abouts => abouts.filter((about) => {
      const line = document.querySelector(".lab-header p");
      line.textContent = about;
      return line.scrollWidth > line.clientWidth;
    })"""
    abouts = [about for name, about in ABOUT.items() if name not in ("Lab", "Server", "Room")]
    assert page.evaluate(cut, abouts) == [], "every page's description fits its line on a projector"
    page.click("nav a:has-text('Lab')")
    lab.ready()
    assert urlsplit(page.url).path == "/"
    assert page.evaluate("document.body.classList.contains('dark')")
    assert page.inner_text("nav [aria-current]") == "Lab"
    page.click("nav a:has-text('Memory')")
    page.wait_for_selector("[data-chart=length] .main-svg")
    assert urlsplit(page.url).path == "/memory"
    assert page.evaluate("document.body.classList.contains('dark')")


def test_links_to_other_pages_have_the_settings_before_they_are_clicked(visit: Visit) -> None:
    """For who opens one in a new tab, or copies it."""
    page = visit().at("memory", kv_dtype="int8")
    deploy = page.locator("nav a:has-text('Deploy')")
    expect(deploy).to_have_attribute("href", re.compile(r"deploy\?kv_dtype=int8$"))
    page.click("#kv-dtype label:has-text('Native')")
    page.click("#weights label:has-text('INT4')")
    expect(deploy).to_have_attribute("href", re.compile(r"deploy\?weights=int4$"))


def test_the_address_is_not_rewritten_with_every_step_of_a_slider(visit: Visit) -> None:
    """Safari allows it a hundred times in ten seconds."""
    page = visit().at("memory")
    page.evaluate(
        """() => {
          [window.writings, window.began] = [0, performance.now()];
          const write = history.replaceState;
          history.replaceState = (...what) => (window.writings += 1, write.apply(history, what));
        }"""
    )
    page.evaluate("for (let i = 1; i <= 90; i += 1) decodeLab.link(['set_aside'], [10], [], [i])")
    expect(page.locator("nav a:has-text('Deploy')")).to_have_attribute("href", re.compile("set_aside=90"))
    page.wait_for_function("location.search.includes('set_aside=90')")
    assert page.evaluate("writings <= 21 + (performance.now() - began) / 200")


def test_tab_moves_from_an_open_list_to_the_next_control(visit: Visit) -> None:
    page = visit().at("memory")
    page.focus("#model input")
    page.wait_for_function(
        "(list => list && list.scrollHeight > list.clientHeight)(document.querySelector('[role=listbox]'))"
    )
    page.keyboard.press("Tab")
    page.wait_for_selector("[role=listbox]", state="detached")
    assert page.evaluate("document.activeElement.closest('#weights') !== null")


def test_the_page_fits_the_screen(visit: Visit) -> None:
    page = visit().at("memory", gpu="other", memory=48)
    assert page.evaluate(OVERFLOW) == [0, 0]
    assert page.evaluate("(box => box.clientHeight >= box.scrollHeight)(document.querySelector('#settings'))")
    bottom = page.evaluate("document.querySelector('.formula').getBoundingClientRect().bottom")
    assert bottom <= 720
    page.set_viewport_size({"width": 1024, "height": 600})
    page.wait_for_timeout(300)
    parts = page.eval_on_selector_all(
        ".sheet > *", "all => all.map(part => part.getBoundingClientRect()).map(({ top, bottom }) => [top, bottom])"
    )
    assert all(above[1] <= below[0] for above, below in pairwise(parts)), "the parts do not overlap"
    ticks = page.eval_on_selector_all(
        "[data-chart=split] .xtick text",
        "all => all.map(tick => tick.getBoundingClientRect()).map(({ left, right }) => [left, right])",
    )
    seen = [tick for tick in ticks if tick[1] > 0]
    assert all(before[1] < after[0] for before, after in pairwise(seen)), "the tick labels do not overlap"
    say = "document.querySelector('.sheet-say')"
    assert page.evaluate(f"{say}.scrollHeight <= {say}.clientHeight")
    page.evaluate("document.querySelector('.sheet').scrollTo(0, 9999)")
    page.evaluate("scrollTo(0, 9999)")
    assert page.evaluate("document.querySelector('.formula').getBoundingClientRect().bottom <= innerHeight")
    as_on_a_phone(page)
    page.wait_for_function(f"innerWidth === 390 && {OVERFLOW}[0] === 0")  # a phone zooms out on what is wider
