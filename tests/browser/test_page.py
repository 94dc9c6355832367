"""The Lab's page itself: what it accepts, what it keeps, how it is read and operated."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from lab.config import EngineConfig
from lab.trace.run import Run
from tests.browser.pages import HOSTILE, Lab, Visit, id_of, link_to
from tests.visualize.conftest import script
from tests.waiting import until
from visualize.states import STATES


def comes_to_rest(page: Page, seconds: float = 60) -> None:
    """Wait until no animation frame is requested for 0.4 s. Waits here: waiting in the page requests frames itself."""
    until = time.monotonic() + seconds
    before, asked = -1, 0
    while asked != before:
        assert time.monotonic() < until, f"{asked - before} animation frames were requested in 400 ms"
        before = page.evaluate("asked")
        page.wait_for_timeout(400)
        asked = page.evaluate("asked")


def test_an_idle_page_rests_hostile_text_stays_text_a_mistake_loses_nothing_and_a_run_explains_itself(
    visit: Visit,
) -> None:
    """No animation frames even for the clock of Gradio's loading screen, which is gone by then."""
    lab = visit()
    lab.page.add_init_script(
        "window.asked = 0; const ask = requestAnimationFrame;"
        "window.requestAnimationFrame = (callback) => { asked += 1; return ask(callback); };"
    )
    lab.open(prompt=HOSTILE, max_tokens=60, num_speculative_tokens=6, seed=3)
    comes_to_rest(lab.page)
    lab.ran()
    comes_to_rest(lab.page)
    lab.page.hover(".token >> nth=1")
    assert lab.page.evaluate("window.pwned") is None
    shown = "".join(lab.tokens("prompt").all_text_contents())
    for part in ("<img", "${window.pwned=1}", "⟨RLO⟩"):
        assert part in shown
    assert lab.page.query_selector(".text img") is None
    a_mistake_loses_nothing(lab)
    the_finished_run_is_described(lab)
    a_token_explains_itself(lab)
    the_menu_for_saving_closes_like_any_other(lab)


def a_mistake_loses_nothing(lab: Lab) -> None:
    lab.prompt.fill("")
    lab.page.click("#run")
    expect(lab.problem).to_contain_text("prompt")
    assert not lab.running
    assert lab.number("num_speculative_tokens").input_value() == "6"
    lab.prompt.fill("Once upon a time")
    lab.ran()
    lab.came_to_its_end()


def the_finished_run_is_described(lab: Lab) -> None:
    described = "document.querySelector('[data-chart=rounds] .plot').ariaDescription"
    reported = {state: int(n) for n, state in (part.split(" ", 1) for part in lab.page.evaluate(described).split(", "))}
    assert set(reported) <= {state.label for state in STATES.values()}
    assert reported[STATES["rejected"].label] == lab.page.locator(".text .above s").count()
    assert reported[STATES["recovered"].label] == lab.tokens("recovered").count()
    lab.press("Home")  # the description is of this instant, which has no rounds yet
    lab.wait_for_instant(0)
    assert lab.page.evaluate(described) == ""


def a_token_explains_itself(lab: Lab) -> None:
    """And keyboard focus is visible."""
    page = lab.page
    lab.press("End")
    lab.prompt.focus()
    lab.press("Tab", "Shift+Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    lab.tokens("recovered").first.hover()
    number = r" = (\d+(?:\.\d+)?(?:e-\d+)?)"
    reported = re.search(rf"(?<!/ )q{number}.*?(?<!/ )p{number}.*?p / q{number}", lab.tip.inner_text(), re.DOTALL)
    q, p, chance = map(float, reported.groups())
    assert p / q == pytest.approx(chance, rel=0.01), "the quotient matches the numbers beside it"
    page.focus(".text")
    lab.press("End", "ArrowLeft")
    focused = page.locator(".token.focused .word")
    assert focused.count() == 1
    assert focused.inner_text() in lab.tip.inner_text()
    lab.press("Home")
    assert "prompt" in lab.tip.inner_text()


def the_menu_for_saving_closes_like_any_other(lab: Lab) -> None:
    page = lab.page
    opened, shut = ".save[open]", ".save:not([open])"
    page.click(".save summary")
    page.wait_for_selector(opened)
    lab.press("Escape")
    page.wait_for_selector(shut)
    assert page.evaluate("document.activeElement.closest('.save') !== null")
    lab.press("Enter", *["Tab"] * page.locator(".save button").count())
    assert page.query_selector(opened)
    lab.press("Tab")
    page.wait_for_selector(shut)
    page.evaluate("() => { window.fetch = () => Promise.reject(new TypeError('Failed to fetch')) }")  # as if down
    page.click(".save summary")
    page.click("[data-save=json]")
    expect(lab.problem).to_be_visible()


def test_the_link_claims_no_run_whose_settings_were_changed_before_it_came_and_the_theme_follows_system_and_button(
    visit: Visit,
) -> None:
    lab = visit(color_scheme="dark").open(seed="", max_tokens=20)
    held: list[Route] = []
    lab.page.route("**/queue/join*", lambda route: held.append(route), times=1)
    lab.page.click("#run")
    until(lambda: lab.page.wait_for_timeout(20) or held)
    lab.toggle("paged")
    lab.until_asked(paged="0")
    held.pop().continue_()
    lab.page.wait_for_selector("body:not(.begun)")
    lab.finish()
    lab.press("Home")
    lab.page.wait_for_timeout(400)  # a step would be written by now
    assert lab.link == {"seed": "", "max_tokens": "20", "paged": "0"}
    lab.ran()
    lab.until_asked(run=1)
    assert lab.link["seed"]
    the_theme_follows_system_and_button(lab)


def in_forced_colours(page: Page) -> None:
    """In forced colours, nothing is told by a background alone."""
    page.emulate_media(forced_colors="active")

    def look(where: str, what: str, part: str | None = None) -> str:
        script = "([where, what, part]) => getComputedStyle(document.querySelector(where), part)[what]"
        return page.evaluate(script, [where, what, part])

    on, off = "#toggle-kv-cache input", "#toggle-adaptive-window input"
    assert look(off, "backgroundColor") not in (look(on, "backgroundColor"), look(off, "backgroundColor", "::before"))
    chosen, other = (f"{id_of('kv_dtype')} label{part}" for part in (".selected", ":not(.selected)"))
    assert look(chosen, "backgroundColor") != look(other, "backgroundColor")
    assert {look(edged, "borderTopStyle") for edged in (off, "#run", ".tip", "#meaning")} == {"solid"}
    assert look("nav [aria-current]", "outlineStyle") == "solid"
    page.emulate_media(forced_colors="none")


def the_theme_follows_system_and_button(lab: Lab) -> None:
    """The system's was dark when the page was opened."""
    ink = "document.querySelector('[data-chart=rounds] .plot').layout.font.color"
    dark = "document.body.classList.contains('dark')"
    assert lab.page.evaluate(dark)
    assert lab.page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"  # of its scrollbar
    before = lab.page.evaluate(ink)
    lab.page.click("#look")
    lab.page.wait_for_function(f"{ink} !== '{before}'")
    assert not lab.page.evaluate(dark)
    in_forced_colours(lab.page)
    link_to(lab.page, "Memory").click()
    lab.page.wait_for_selector("body[data-ready]")
    assert not lab.page.evaluate(dark), "it is kept, and for every page"
    expect(lab.page.locator("nav [aria-current]")).to_have_text("Memory")


TRANSLATE = """() => {
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
"""Chrome, when it translates a page, puts two elements of its own in place of every text that may be translated."""


def test_no_line_is_cut_off_no_word_is_split_and_what_the_model_wrote_is_not_translated(visit: Visit) -> None:
    lab = visit().ran(seed=3, max_tokens=150)
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
      const tops = [...word.querySelectorAll(".token")].map((token) => token.getBoundingClientRect().top);
      const { right } = word.getBoundingClientRect();
      const rejected = [...word.querySelectorAll(".above:has(s)")];
      return [new Set(tops).size, rejected.filter((one) => one.getBoundingClientRect().right > right + 1).length];
    })""")
    assert all(word == [1, 0] for word in words)  # on one line, with room for rejected drafts

    before = lab.seen()
    label = lab.page.inner_text(".readout .label >> nth=0")
    lab.page.evaluate(TRANSLATE)
    assert lab.page.inner_text(".readout .label >> nth=0") == label.upper()
    for button in ("first", "on", "last"):
        lab.page.click(f"[data-do={button}]")
        lab.finish()
    after = lab.seen()
    assert (after["text"], after["tokens"], after["numbers"]) == (before["text"], before["tokens"], before["numbers"])

    prompt = " ".join(("童话" * 60, "Donaudampfschiff" * 20, "a👩‍👩‍👧" * 30))  # text without spaces wraps
    lab.page.set_viewport_size({"width": 390, "height": 844})
    lab.ran(prompt=prompt, max_tokens=2)
    assert lab.page.evaluate("(text => text.scrollWidth - text.clientWidth)(document.querySelector('.text'))") == 0


def test_words_are_joined_up_to_a_space_and_written_in_the_direction_of_their_letters(
    visit: Visit, tmp_path: Path
) -> None:
    lab = visit().open(max_tokens=4)

    def written(*words: str) -> None:
        Run(script(EngineConfig(), max_tokens=len(words), words=list(words))).save(tmp_path / "run.json")
        lab.reopen(tmp_path / "run.json")
        lab.page.wait_for_function(
            "([count, last]) => (all => all.length === count && all.at(-1).textContent.includes(last))"
            "([...document.querySelectorAll('.token:not(.prompt)')])",
            arg=[len(words), words[-1].strip()],
        )

    written(" no", ".\n", "But", "ter", ".", "\n", "x")
    read = """expected => JSON.stringify([...document.querySelectorAll(".lexeme:has(.plain)")].map(
      (word) => [...word.querySelectorAll(".word")].map((piece) => piece.textContent).join("|"))) === expected"""
    whole = '["no|.↵","But|ter|.","↵","x"]'
    lab.leave_controls()
    for key, times, words in (("End", 1, whole), ("Shift+ArrowLeft", 4, '["no|.↵","But|ter"]'), ("End", 1, whole)):
        lab.press(*[key] * times)
        lab.page.wait_for_function(read, arg=words)

    drawn = """() => [...document.querySelectorAll(".token")].map((token) => [token.getBoundingClientRect(), token])
      .sort(([one], [other]) => Math.round((one.top - other.top) / 30) || one.left - other.left)
      .map(([, token]) => token.querySelector(".word").textContent)"""
    written(" كان", " في", " ال", "زم", "ان", " GPT", " two", " مل", "ك")
    assert lab.page.evaluate(drawn)[-9:] == ["ان", "زم", "ال", "في", "كان", "GPT", "two", "ك", "مل"]
    lab.prompt.fill("שלום עולם")  # every letter is several tokens, of which the last shows it
    assert lab.page.evaluate("document.querySelector('#prompt textarea').matches(':dir(rtl)')")
    lab.ran()
    assert "".join(lab.page.evaluate(drawn)).replace("\u2009", "").endswith("שלום עולם"[::-1].replace(" ", ""))
