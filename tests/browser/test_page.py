"""The page itself: what it accepts, what it keeps, how it looks and is operated."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from lab.config import EngineConfig
from lab.trace.events import Judged
from lab.trace.run import Run
from tests.browser.conftest import Lab
from tests.visualize.conftest import script
from tests.waiting import until
from visualize.states import STATES

Visit = Callable[..., Lab]
HOSTILE = "<img src=x onerror=window.pwned=1>${window.pwned=1}{{value}}</script>\u202e"


def test_hostile_text_is_shown_as_text(visit: Visit) -> None:
    lab = visit().open(prompt=HOSTILE, max_tokens=12)
    lab.run()
    lab.finish()
    lab.page.hover(".token >> nth=1")
    assert lab.page.evaluate("window.pwned") is None
    shown = lab.page.evaluate("[...document.querySelectorAll('.token.prompt')].map(t => t.textContent).join('')")
    assert "<img" in shown
    assert "${window.pwned=1}" in shown
    assert "⟨RLO⟩" in shown
    assert lab.page.query_selector(".text img") is None


def comes_to_rest(page: Page, seconds: float = 30) -> None:
    """Wait until no animation frame is requested for 0.4 s. Waits here: waiting in the page requests frames itself."""
    until = time.monotonic() + seconds
    before, asked = -1, 0
    while asked != before:
        assert time.monotonic() < until, f"{asked - before} animation frames were requested in 400 ms"
        before = page.evaluate("asked")
        page.wait_for_timeout(400)
        asked = page.evaluate("asked")


def test_an_idle_page_requests_no_animation_frames(visit: Visit) -> None:
    """Not even for the clock of Gradio's loading screen, which is gone by then."""
    lab = visit()
    lab.page.add_init_script(
        "window.asked = 0; const ask = requestAnimationFrame;"
        "window.requestAnimationFrame = (callback) => { asked += 1; return ask(callback); };"
    )
    lab.open(max_tokens=20)
    comes_to_rest(lab.page)
    lab.run()
    lab.finish()
    comes_to_rest(lab.page)


def test_a_mistake_is_explained_and_loses_nothing_and_a_finished_run_is_described_to_screen_readers(
    visit: Visit,
) -> None:
    lab = visit().open(max_tokens=33, num_speculative_tokens=6, seed=3)
    lab.page.fill("#prompt textarea", "")
    lab.page.click("#run")
    lab.page.wait_for_selector(".say.problem")
    assert "prompt is empty" in lab.seen()["say"]
    assert not lab.running
    assert lab.page.input_value("#num-speculative-tokens input[type=number]") == "6"
    lab.page.fill("#prompt textarea", "Once upon a time")
    lab.run()
    lab.finish()
    assert lab.seen()["say"].startswith("Finished")
    assert lab.page.query_selector(".say.problem") is None

    words = lab.page.evaluate("document.querySelector('[data-chart=rounds] .plot').ariaDescription")
    told = {state: int(count) for count, state in (part.split(" ", 1) for part in words.split(", "))}
    assert set(told) <= {state.label for state in STATES.values()}
    assert told["rejected"] == lab.page.locator(".text .above s").count()
    assert told["recovered"] == lab.page.locator(".text .token.recovered").count()

    lab.page.keyboard.press("Home")  # the description is of this instant, which has no rounds yet
    lab.wait_for_instant(0)
    assert lab.page.evaluate("document.querySelector('[data-chart=rounds] .plot').ariaDescription") == ""


def test_the_link_reflects_the_controls(visit: Visit) -> None:
    lab = visit().open()
    assert urlsplit(lab.page.url).query == ""
    lab.page.fill("#prompt textarea", "A fox & a <wolf>")
    lab.choose("kv-dtype", "INT8")
    lab.toggle("paged")
    lab.page.click("#pool button")
    lab.choose("block-size", "32")
    lab.page.fill("#num-speculative-tokens input[type=number]", "3")
    lab.page.keyboard.press("Tab")
    lab.pick("pair", "Mismatched")
    lab.page.wait_for_function("location.search.includes('mismatched')")
    said = {
        "prompt": "A fox & a <wolf>",
        "kv_dtype": "int8",
        "paged": "0",
        "block_size": "32",
        "num_speculative_tokens": "3",
        "pair": "mismatched",
    }
    assert {name: values[0] for name, values in parse_qs(urlsplit(lab.page.url).query).items()} == said

    again = visit()
    again.page.goto(lab.page.url)
    again.ready()
    assert again.page.input_value("#prompt textarea") == "A fox & a <wolf>"
    assert again.page.is_checked("#kv-dtype label:has-text('INT8') input")
    assert not again.page.is_checked("#toggle-paged input")
    assert again.page.input_value("#num-speculative-tokens input[type=number]") == "3"
    assert again.page.is_checked("#block-size label:has-text('32') input")
    assert again.page.input_value("#pair input") == "Mismatched"


def test_the_previous_runs_numbers_are_not_cut_off(visit: Visit) -> None:
    lab = visit().open(max_tokens=60)
    cut = """[...document.querySelectorAll('.readout :is(.was, .label, .number), .compared')].filter((node) => {
      const text = document.createRange();
      text.selectNodeContents(node);
      const [inner, box] = [text.getBoundingClientRect(), node.closest('.readout, .panel').getBoundingClientRect()];
      const hides = getComputedStyle(node).overflowX === 'hidden';
      const over = hides && inner.width > node.getBoundingClientRect().width + 0.01;
      return node.offsetParent && (over || inner.right > box.right || inner.bottom > box.bottom);
    }).map((node) => node.textContent)"""
    high = "document.querySelector('.readouts').offsetHeight"
    for enable_prefix_caching in (False, True):  # with it, one more readout
        lab.page.set_viewport_size({"width": 1280, "height": 720})
        if enable_prefix_caching:
            lab.toggle("enable-prefix-caching")
            lab.choose("speculative", "Draft")
        lab.run()
        lab.finish()
        lab.choose("speculative", "Off")
        lab.run()
        lab.page.wait_for_selector(".was:not(:empty)")
        height = lab.page.evaluate(high)
        lab.finish()
        assert lab.page.is_visible("[data-key=found]") == enable_prefix_caching
        assert re.search(r"of [2-9]\.", lab.page.inner_text("[data-key=pass] .was"))
        assert lab.page.evaluate(high) == height  # nothing jumps
        for wide, tall in ((1280, 720), (390, 844)):
            lab.page.set_viewport_size({"width": wide, "height": tall})
            assert lab.page.evaluate(cut) == [], (enable_prefix_caching, wide)


def test_the_link_claims_no_run_whose_settings_were_changed_before_it_came(visit: Visit) -> None:
    lab = visit().open(seed="", max_tokens=20)

    def link() -> dict[str, str]:
        lab.page.wait_for_timeout(400)  # a step would be written by now
        query = parse_qs(urlsplit(lab.page.url).query, keep_blank_values=True)
        return {name: value for name, (value,) in query.items()}

    held: list[Route] = []
    for late, paged in (("queue/join*", {"paged": "0"}), ("channels/*", {})):  # the server's answer; the first frame
        lab.page.route(f"**/{late}", lambda route: held.append(route), times=1)
        lab.page.click("#run")
        until(lambda: lab.page.wait_for_timeout(20) or held)
        lab.toggle("paged")
        lab.page.wait_for_function(f"location.search.includes('paged') === {'paged' in paged}".lower())
        held.pop().continue_()
        lab.page.wait_for_selector("body:not(.begun)")
        lab.finish()
        lab.page.keyboard.press("Home")
        assert link() == {"seed": "", "max_tokens": "20"} | paged
    lab.run()
    lab.finish()
    assert link().keys() == {"seed", "max_tokens", "run"}
    assert link()["seed"]


CONTRAST = """() => {
  const pen = document.createElement("canvas").getContext("2d");
  const luminance = (colour) => {
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue] = [...pen.getImageData(0, 0, 1, 1).data]
      .map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const paper = luminance(getComputedStyle(document.querySelector(".story")).backgroundColor);
  return [...document.querySelectorAll(".legend .mark")].map((mark) => {
    const [dim, bright] = [paper, luminance(getComputedStyle(mark).color)].sort((one, other) => one - other);
    return (bright + 0.05) / (dim + 0.05);
  });
}"""
"""Contrast of the legend's marks with the panel."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_button(visit: Visit, scheme: str) -> None:
    lab = visit(color_scheme=scheme).open(max_tokens=30)
    ink = "document.querySelector('[data-chart=rounds] .plot').layout.font.color"
    dark = "document.body.classList.contains('dark')"
    assert lab.page.evaluate(dark) is (scheme == "dark")
    own = "getComputedStyle(document.documentElement).colorScheme"  # of the page's scrollbar
    assert (lab.page.evaluate(own) == "dark") is (scheme == "dark")
    assert min(lab.page.evaluate(CONTRAST)) >= 4.5
    before = lab.page.evaluate(ink)
    lab.run()
    lab.finish()
    lab.page.click("#look")
    lab.page.wait_for_function(f"{ink} !== '{before}'")
    assert lab.page.evaluate(dark) is (scheme == "light")
    lab.page.reload()
    lab.ready()
    assert lab.page.evaluate(dark) is (scheme == "light")


def test_in_forced_colours_nothing_is_told_by_a_background_alone(visit: Visit) -> None:
    page = visit(forced_colors="active").open().page
    style = "(where, what, part) => getComputedStyle(document.querySelector(where), part)[what]"
    look = f"([where, what, part]) => ({style})(where, what, part ?? null)"
    on, off = ("#toggle-kv-cache input", "backgroundColor"), ("#toggle-enable-prefix-caching input", "backgroundColor")
    assert page.evaluate(look, on) != page.evaluate(look, off)
    assert page.evaluate(look, off) != page.evaluate(look, [*off, "::before"]), "the switch's knob is visible"
    for edged in (off[0], "#run"):
        assert page.evaluate(look, [edged, "borderTopStyle"]) == "solid", edged
    parts = page.eval_on_selector_all(
        ".part", "all => all.map(part => getComputedStyle(part, '::before').backgroundColor)"
    )
    assert len(set(parts)) == len(parts), "each part of the time has its own colour"
    chosen = page.evaluate(look, ["#kv-dtype label.selected", "backgroundColor"])
    assert chosen != page.evaluate(look, ["#kv-dtype label:not(.selected)", "backgroundColor"])
    for edged in (".tip", "#meaning"):
        assert page.evaluate(look, [edged, "borderTopWidth"]) == "1px", edged
    marked = page.evaluate(look, ["nav [aria-current]", "outlineStyle"])
    assert (marked, page.evaluate(look, ["nav a:not([aria-current])", "outlineStyle"])) == ("solid", "none")


def test_keyboard_focus_is_visible_a_token_explains_itself_and_the_save_menu_closes_like_any_menu(visit: Visit) -> None:
    lab = visit().open(max_tokens=60)
    page = lab.page
    page.focus("#prompt textarea")
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.click("#openings input")
    for there, then in (
        ("#openings", "#replays"),
        ("#replays", "#toggle-kv-cache"),
    ):  # a list opens as it gets the focus
        page.wait_for_selector(f"{there} [role=listbox]")
        page.keyboard.press("Tab")
        page.wait_for_selector(f"{there} [role=listbox]", state="detached")
        assert page.evaluate(f"document.activeElement.closest('{then}') !== null")
    page.keyboard.press("Escape")

    lab.run()
    lab.finish()
    lab.page.locator(".token.recovered").first.hover()
    tip = lab.page.locator(".tip")
    assert "p exceeds q" in tip.inner_text()
    told = re.search(
        r"q = ([\d.e-]+);.* only p = ([\d.e-]+)\. .* p / q = ([\d.e-]+), and it was not:", tip.inner_text()
    )
    q, p, chance = map(float, told.groups())
    assert p / q == pytest.approx(chance, rel=0.01), "the quotient matches the numbers beside it"
    lab.page.focus(".text")
    lab.page.keyboard.press("End")
    lab.page.keyboard.press("ArrowLeft")
    focused = lab.page.locator(".token.focused .word")
    assert focused.count() == 1
    assert f"{focused.inner_text()}”" in tip.inner_text()
    assert re.search(r"\bp\b", tip.inner_text())
    lab.page.keyboard.press("Home")
    assert "prompt" in tip.inner_text()

    assert page.title() == "Decode Lab"
    opened, shut = ".save[open]", ".save:not([open])"
    page.click(".save summary")
    page.wait_for_selector(opened)
    page.keyboard.press("Escape")
    page.wait_for_selector(shut)
    assert page.evaluate("document.activeElement.closest('.save') !== null")
    page.keyboard.press("Enter")
    page.wait_for_selector(opened)
    page.click(".story h2")
    page.wait_for_selector(shut)
    page.focus(".save summary")
    page.keyboard.press("Enter")
    for _ in page.locator(".save button").all():
        page.keyboard.press("Tab")
    assert page.query_selector(opened)
    page.keyboard.press("Tab")
    page.wait_for_selector(shut)
    for name, says in (("rounds", "Rounds one column a pass"), ("timing", "Time Pass "), ("blocks", "Blocks ")):
        assert page.locator(f"[data-chart={name}]").get_by_role("img", name=says).count() == 1, name
    assert page.get_attribute(".rule", "tabindex") == "0", "what scrolls can be reached by keyboard"
    page.evaluate("() => { window.fetch = () => Promise.reject(new TypeError('Failed to fetch')) }")  # as if down
    page.click(".save summary")
    page.click("[data-save=json]")
    page.wait_for_selector(".say.problem:has-text('The server does not answer')")


def test_no_line_of_text_is_cut_off_at_the_top_and_no_word_is_split(visit: Visit) -> None:
    lab = visit().open(seed=3, max_tokens=300)
    lab.run()
    lab.finish()
    cut = """() => {
      const { top, bottom } = document.querySelector(".text").getBoundingClientRect();
      const marks = [...document.querySelectorAll(".token")].map((token) => token.getBoundingClientRect());
      return marks.filter((mark) => mark.top < top && mark.bottom > top).length;
    }"""
    assert lab.page.evaluate("document.querySelector('.text').scrollTop") > 0
    assert lab.page.evaluate(cut) == 0
    tops = lab.page.eval_on_selector_all(".token", "all => [...new Set(all.map((token) => token.offsetTop))]")
    assert min(below - above for above, below in pairwise(tops)) > 30  # the prompt's last line is one line, not two
    words = lab.page.evaluate("""() => [...document.querySelectorAll(".lexeme")].map((word) => {
      const box = (node) => node.getBoundingClientRect();
      const marks = [...word.querySelectorAll(".token")].map(box);
      const rejected = [...word.querySelectorAll(".above:has(s)")].map(box);
      const tops = new Set(marks.map(({ top }) => top)).size;
      const gaps = marks.slice(1).map((mark, i) => mark.left - marks[i].right);
      return { gaps, tops, rejected: rejected.length, over: rejected.some(({ right }) => right > box(word).right + 1) };
    })""")
    assert all(word["tops"] == 1 and not word["over"] for word in words)  # on one line, with room for rejected guesses
    assert max(gap for word in words if word["rejected"] < 2 for gap in word["gaps"]) < 4  # which do not tear it apart
    assert any(word["rejected"] and word["gaps"] for word in words)


def test_words_are_joined_up_to_a_space_and_written_in_the_direction_of_their_letters_and_close_verdicts_shown(
    visit: Visit, tmp_path: Path
) -> None:
    events = script(EngineConfig(speculative="draft"))
    at = next(i for i, event in enumerate(events) if isinstance(event, Judged) and event.accepted)
    events[at] = replace(events[at], p=0.0021827521, q=0.0024019224, u=0.9086675729)
    Run(events).save(tmp_path / "run.json")
    lab = visit().open()
    lab.reopen(tmp_path / "run.json")
    lab.page.locator(".token.accepted").first.hover()
    # To three digits, both u and p / q are 0.909.
    told = "min(1, p / q) = 0.90878, and it was: the number drawn, u = 0.90867, is below that"
    expect(lab.page.locator(".tip")).to_contain_text(told)

    words = [" no", ".\n", "But", "ter", ".", "\n", "x"]
    Run(script(EngineConfig(), max_tokens=len(words), words=words)).save(tmp_path / "run.json")
    lab.reopen(tmp_path / "run.json")
    lab.wait_for_tokens(len(words))
    read = """expected => JSON.stringify([...document.querySelectorAll(".lexeme:has(.plain)")].map(
      (word) => [...word.querySelectorAll(".word")].map((piece) => piece.textContent).join("|"))) === expected"""
    whole = '["no|.↵","But|ter|.","↵","x"]'
    for button, times, words in (("last", 1, whole), ("back", 4, '["no|.↵","But|ter"]'), ("last", 1, whole)):
        for _ in range(times):
            lab.page.click(f"[data-do={button}]")
        lab.page.wait_for_function(read, arg=words)

    drawn = """() => [...document.querySelectorAll(".token")].map((token) => [token.getBoundingClientRect(), token])
      .sort(([one], [other]) => Math.round((one.top - other.top) / 30) || one.left - other.left)
      .map(([, token]) => token.querySelector(".word").textContent)"""
    words = [" كان", " في", " ال", "زم", "ان", " GPT", " two", " مل", "ك"]
    Run(script(EngineConfig(), max_tokens=len(words), words=words)).save(tmp_path / "run.json")
    lab.reopen(tmp_path / "run.json")
    lab.wait_for_tokens(len(words))
    assert lab.page.evaluate(drawn)[-len(words) :] == ["ان", "زم", "ال", "في", "كان", "GPT", "two", "ك", "مل"]

    lab.open(prompt="שלום עולם", max_tokens=4)  # every letter is several tokens, of which the last shows it
    assert lab.page.evaluate("document.querySelector('#prompt textarea').matches(':dir(rtl)')")
    lab.run()
    lab.finish()
    assert "".join(lab.page.evaluate(drawn)).replace("\u2009", "").endswith("שלום עולם"[::-1].replace(" ", ""))
    first, second = (lab.page.locator(f".token >> nth={place}") for place in (0, 1))
    lab.page.focus(".text")
    lab.page.keyboard.press("ArrowLeft")
    expect(first).to_have_class(re.compile("focused"))
    lab.page.keyboard.press("ArrowLeft")
    expect(second).to_have_class(re.compile("focused"))


def test_a_browser_that_translates_the_page_leaves_what_the_model_wrote(visit: Visit) -> None:
    """Chrome puts two elements of its own in place of every text that may be translated."""
    translate = """() => {
      const texts = document.createTreeWalker(document.querySelector(".gradio-container"), NodeFilter.SHOW_TEXT);
      const found = [];
      while (texts.nextNode()) found.push(texts.currentNode);
      for (const text of found) {
        if (!text.parentElement.translate || text.parentElement.closest("svg, style, script")) continue;
        const [outer, inner] = [document.createElement("font"), document.createElement("font")];
        inner.textContent = text.data.toUpperCase();
        outer.append(inner);
        text.replaceWith(outer);
      }
    }"""
    lab = visit().open(max_tokens=60, seed=2)
    lab.run()
    lab.finish()
    before = lab.seen()
    lab.page.evaluate(translate)
    assert lab.page.inner_text(".readout .label >> nth=0") == "SPEED"
    for button in ("first", "on", "last"):
        lab.page.click(f"[data-do={button}]")
        lab.finish()
    after = lab.seen()
    assert (after["text"], after["tokens"], after["numbers"]) == (before["text"], before["tokens"], before["numbers"])
    lab.run()
    lab.finish()
    assert lab.seen()["tokens"] == before["tokens"]


def test_text_without_spaces_wraps(visit: Visit) -> None:
    prompt = " ".join(("童话" * 60, "Donaudampfschiff" * 20, "a👩‍👩‍👧" * 30))
    lab = visit(viewport={"width": 390, "height": 844}).open(prompt=prompt, max_tokens=2)
    lab.run()
    lab.finish()
    assert lab.page.evaluate("(text => text.scrollWidth - text.clientWidth)(document.querySelector('.text'))") == 0
