"""How the Lab's page fits windows of every size, from a projector to a phone."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.pages import EMPTY_SCROLLBARS, OVERFLOW, Visit
from tests.browser.test_controls import ROOM

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "reduced_motion": "reduce"}
BOXES = """() => Object.fromEntries(
  [".readouts", ".story", ".charts", ".transport", ".say", "#run", "[data-chart=blocks] .plot"].map(
    (where) => [where, document.querySelector(where).getBoundingClientRect().toJSON()]))"""
LONGEST = {
    "speed": "99999",
    "pass": "33.00",
    "accepted": "100",
    "kv": "99.9 / 99.9",
    "first": "99.9",
    "found": "99999",
    "gaps": "99.9 / 999",
    "limit": "1000",
    "memory": "9999",
}
SMALL = {"speed": "▼ 0.93× (was 1234)", "pass": "▲ 0.93× (was 10.00)", "accepted": "▼ 12 points (was 100)"}
CUT = """([longest, small]) => [...document.querySelectorAll(".readout:not([hidden])")].filter((card) => {
  card.querySelector(".value").textContent = longest[card.dataset.key];
  Object.assign(card.querySelector(".was"), { className: "was worse", textContent: small[card.dataset.key] ?? "" });
  const number = document.createRange();
  number.selectNodeContents(card.querySelector(".number"));
  const texts = [...card.querySelectorAll(".label, .was")];
  return number.getBoundingClientRect().right > card.getBoundingClientRect().right - 4
    || texts.some(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth);
}).map((card) => card.dataset.key)"""
"""The readouts in which such numbers, small texts or their labels are cut off."""


def test_on_a_projector_all_is_in_view_nothing_jumps_or_is_cut_off_and_a_small_window_reaches_everything(
    visit: Visit,
) -> None:
    lab = visit().open()
    before = lab.page.evaluate(BOXES)
    lab.run()
    lab.wait_for_tokens(30)
    assert lab.page.evaluate(BOXES) == before
    assert lab.page.evaluate(OVERFLOW) == [0, 0]
    assert lab.page.evaluate(ROOM) >= 0
    lab.finish()
    top = lab.page.evaluate("document.querySelector('.token').offsetTop")
    lab.choose("speculative", "ngram")
    lab.toggle("adaptive_window")
    lab.choose("kv_dtype", "int4")
    lab.ran()  # of which the most is said at its end, compared with the run before
    assert lab.page.inner_text(".compared")
    assert lab.page.evaluate("document.querySelector('.token').offsetTop") == top
    say = "document.querySelector('.say')"
    assert lab.page.evaluate(f"{say}.scrollHeight - {say}.clientHeight") <= 0
    after = lab.page.evaluate(BOXES)
    assert {where: box for where, box in after.items() if where != ".say"} == {
        where: box for where, box in before.items() if where != ".say"
    }
    assert lab.page.evaluate(OVERFLOW) == [0, 0]
    for prefix_caching in (False, True):  # with which there is one more
        lab.page.set_viewport_size({"width": 1280, "height": 720})
        if prefix_caching:
            lab.toggle("enable_prefix_caching")
        lab.ran()
        assert lab.page.is_visible("[data-key=found]") == prefix_caching
        for wide, high in ((1280, 720), (1000, 720), (390, 844)):
            lab.page.set_viewport_size({"width": wide, "height": high})
            assert lab.page.evaluate(CUT, [LONGEST, SMALL]) == [], (prefix_caching, wide)
    lab.page.set_viewport_size({"width": 1440, "height": 900})
    lab.ran()
    everything_can_be_reached_in_a_small_window(lab.page)


OUT = """() => [".save summary", ".against", ".place", ".say", "#run"].filter((where) => {
  const { left, right, top, bottom } = document.querySelector(where).getBoundingClientRect();
  return left < 0 || right > innerWidth || top < 0 || bottom > innerHeight;
})"""
SQUARES = """() => {
  const plot = document.querySelector("[data-chart=rounds] .plot");
  const { _length: wide, range: [first, end] } = plot._fullLayout.xaxis;
  return Math.max(...plot._fullData.map(({ marker }) => marker?.size ?? 0)) - wide / (end - first);
}"""
"""By how much a square of the rounds chart is wider than its column."""


def everything_can_be_reached_in_a_small_window(page: Page) -> None:
    assert page.evaluate(EMPTY_SCROLLBARS) == []
    page.wait_for_selector(".against:not([hidden])")
    say, box = (f"document.querySelector('{part}')" for part in (".say", ".gradio-container"))
    for wide, high in ((1024, 768), (821, 800), (1366, 625), (1280, 720)):
        page.set_viewport_size({"width": wide, "height": high})
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_function(f"({SQUARES})() <= 0 && ({OUT})().length === 0")
        across, down = page.evaluate(OVERFLOW)
        assert across <= 0  # less by a scrollbar where there is one
        if (wide, high) in ((1024, 768), (1280, 720)):  # projectors
            assert down == 0
        assert page.evaluate(f"{box}.scrollHeight - {box}.clientHeight") == 0, (
            "clipped content cannot be scrolled to",
            wide,
            high,
        )
        assert page.evaluate(f"{say}.scrollHeight - {say}.clientHeight") <= 0, (wide, high)

    page.set_viewport_size({"width": 320, "height": 640})
    page.click(".save summary")
    menu = page.locator(".save[open] div").bounding_box()
    assert menu["x"] >= 0
    assert menu["x"] + menu["width"] <= 320


def test_on_a_phone_the_page_is_one_column_with_one_chart_at_a_time_and_nothing_covers_the_run_button(
    visit: Visit,
) -> None:
    lab = visit(**PHONE).open(kv_cache=0, max_tokens=60, logprobs=5)  # most settings are disabled
    page = lab.page
    page.click("#show-settings")
    page.click("#folds button >> nth=0")
    page.wait_for_selector("#eviction")
    drawn = """element => {
      const z = (node) => node && (Number(getComputedStyle(node).zIndex) || z(node.parentElement) || 0);
      const { left, top, width, height } = element.getBoundingClientRect();
      const there = document.elementsFromPoint(left + width / 2, top + height / 2);
      const others = there.filter((node) => !node.contains(element));
      return there[0] === element && others.every((node) => z(node) < z(element));
    }"""
    run = page.query_selector("#run")
    for step in range(0, 700, 100):
        page.evaluate("y => scrollTo(0, y)", step)
        assert run.evaluate(drawn), step

    lab.toggle("kv_cache")
    lab.until_asked(kv_cache=None)
    meaning = page.locator(".meaning")
    page.tap("[data-key=pass]")  # a readout explains itself on a tap
    box = meaning.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    page.tap(".say")
    assert not meaning.is_visible()
    lab.ran()
    page.wait_for_function(f"{OVERFLOW}[0] === 0")
    shown = "[...document.querySelectorAll('.charts .panel')].filter(p => p.offsetWidth).map(p => p.dataset.chart)"
    assert page.evaluate(shown) == ["rounds"]
    lab.tokens("bonus").first.tap()  # a token explains itself on a tap, too
    assert "bonus" in lab.tip.inner_text()
    page.tap(".say")
    assert lab.tip.is_hidden()
    page.tap(".choose button[data-for=timing]")
    assert page.evaluate(shown) == ["timing"]
    page.wait_for_function("document.querySelector('[data-chart=timing] .plot').data?.[0].x.length")
    assert lab.seen()["timing"]["draft"] > 0
    page.reload()  # the chosen chart is in the address
    lab.ready()
    assert page.evaluate(shown) == ["timing"]
    for button in page.locator("[data-do]").all():
        assert button.get_attribute("aria-label")
    page.tap(".choose button[data-for=rounds]")
    assert "chart" not in lab.link
    lab.written.first.wait_for()
    lab.finish()
    boxes = [button.bounding_box() for button in page.locator(".transport .buttons button").all()]
    assert min(min(box["width"], box["height"]) for box in boxes) >= 40
    page.tap("[data-do=first]")
    lab.wait_for_instant(0)
    page.tap("[data-do=last]")
    lab.wait_for_instant(lab.last)

    # A verdict takes the charts' place within reach.
    page.evaluate("document.querySelector('.story').scrollIntoView({ block: 'end' })")
    lab.tokens("recovered").first.tap()
    expect(lab.verdict).to_be_visible()
    actions = "document.querySelector('#actions').getBoundingClientRect().top"
    page.wait_for_function(
        f"(({{ top, bottom }}) => top >= 0 && bottom <= {actions})"
        "(document.querySelector('.verdict').getBoundingClientRect())"
    )
    assert not page.is_visible("[data-chart=rounds]")
    for button in page.locator("[data-verdict]").all():
        assert button.get_attribute("aria-label")
        assert min(button.bounding_box()["width"], button.bounding_box()["height"]) >= 40
    page.tap(".choose button[data-for=timing]")  # choosing a chart closes the verdict
    assert page.is_visible("[data-chart=timing]")
    assert lab.verdict.is_hidden()
    lab.tokens("recovered").first.tap()  # with the rounds chart out of sight
    expect(lab.verdict).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
