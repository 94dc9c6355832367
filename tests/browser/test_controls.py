"""The controls: which depend on which, how each describes itself, and that the link carries their values."""

from __future__ import annotations

from playwright.sync_api import expect

from lab.settings import SETTINGS
from tests.browser.pages import HOSTILE, OVERFLOW, Lab, Visit, notices, unfold

ROOM = "document.querySelector('#settings').clientHeight - document.querySelector('#settings').scrollHeight"
LINES = """part => {
  const text = document.createRange();
  text.selectNodeContents(part);
  return new Set([...text.getClientRects()].map(({ top }) => top)).size;
}"""


def test_controls_disabled_by_a_switch_say_why_and_come_back_as_they_were(visit: Visit) -> None:
    lab = visit().open(enable_prefix_caching=1, max_tokens=5)
    prefix, paged = (lab.switch(name) for name in ("enable_prefix_caching", "paged"))
    dependent = ("enable_prefix_caching", "paged", "kv_dtype")
    before = [lab.control(name).inner_text() for name in dependent]
    expect(prefix).to_be_checked()
    lab.choose("kv_dtype", "int4")
    lab.switch("kv_cache").focus()
    lab.press("Space")
    for switch in (paged, prefix):
        expect(switch).to_be_disabled()
        expect(switch).not_to_be_checked()
    reasons = [lab.control(name).inner_text() for name in dependent]
    assert all(one != other for one, other in zip(before, reasons, strict=True)), "each says why"
    expect(lab.option("kv_dtype", "auto")).to_be_checked()
    lab.until_asked(kv_cache=0, kv_dtype=None)
    lab.press("Space")
    for switch in (paged, prefix):
        expect(switch).to_be_enabled()
        expect(switch).to_be_checked()
    expect(lab.option("kv_dtype", "int4")).to_be_checked()
    lab.until_asked(kv_cache=None, paged=None)
    assert lab.link == {"kv_dtype": "int4", "enable_prefix_caching": "1", "max_tokens": "5"}
    lab.toggle("paged")
    expect(prefix).to_be_disabled()
    expect(prefix).not_to_be_checked()
    lab.toggle("kv_cache")
    expect(paged).to_be_disabled()
    lab.toggle("kv_cache")
    expect(paged).to_be_enabled()
    expect(paged).not_to_be_checked()  # a switch turned off by the learner stays off
    expect(prefix).to_be_disabled()
    lab.until_asked(kv_dtype="int4", kv_cache=None, paged=0)
    lab.toggle("paged")
    expect(prefix).to_be_checked()

    # Run, pressed before the controls have followed a switch, runs what the switch says.
    lab.until_asked(paged=None)
    lab.switch("kv_cache").evaluate("one => { one.click(); document.querySelector('#run').click(); }")
    lab.page.wait_for_selector("body:not(.running):not(.begun) .token:not(.prompt)")
    lab.finish()
    lab.came_to_its_end(5)
    assert "recomputed" in lab.seen()
    assert notices(lab.page).inner_text() == ""


def test_a_nonsensical_link_is_corrected_drafters_show_their_own_settings_and_fields_refuse_what_no_link_has(
    visit: Visit,
) -> None:
    lab = visit()
    corrects_a_nonsensical_link(lab)
    shows_only_the_drafters_own_setting(lab)
    groups_are_one_tab_stop(lab)
    shows_what_depends_on_a_switch(lab)
    writes_an_opening_once(lab)
    scrolls_a_fold_into_view(lab)
    refuses_numbers_that_no_link_could_have(lab)


def corrects_a_nonsensical_link(lab: Lab) -> None:
    """And controls disabled by it come back with their defaults."""
    lab.open(
        num_speculative_tokens=HOSTILE,
        kv_cache=0,
        paged=1,
        block_size=9999,
        enable_prefix_caching=1,
        speculative="magic",
        synthetic_acceptance_rate="1e9",
    )
    for left_out in ("num_speculative_tokens", "speculative", "synthetic_acceptance_rate", "enable_prefix_caching"):
        expect(notices(lab.page).filter(has_text=left_out)).to_have_count(1)
    assert lab.number("num_speculative_tokens").input_value() == "4"
    assert lab.page.evaluate("window.pwned") is None
    expect(lab.option("speculative", "draft")).to_be_checked()
    lab.toggle("kv_cache")
    expect(lab.switch("paged")).to_be_checked()
    lab.page.wait_for_function("location.search === '?speed=real'")
    lab.page.dblclick("#toggle-paged input", delay=20)  # the last click counts, however late the answers are
    expect(lab.switch("enable_prefix_caching")).to_be_enabled()
    expect(lab.switch("paged")).to_be_checked()
    lab.page.wait_for_function("location.search === '?speed=real'")


def shows_only_the_drafters_own_setting(lab: Lab) -> None:
    """Each describes itself: after another, and after none."""
    own = {"early_exit_layer": "early_exit", "synthetic_acceptance_rate": "synthetic"}
    for drafter in ("off", "draft", "ngram", "synthetic", "off", "early_exit", "draft"):
        lab.choose("speculative", drafter)
        expect(lab.control("speculative")).to_contain_text(SETTINGS["speculative"].about[drafter])
        assert [lab.page.evaluate(ROOM) >= 0, lab.page.evaluate(OVERFLOW)] == [True, [0, 0]], "nothing is scrolled"
        for name, whose in own.items():
            expect(lab.control(name)).to_be_visible(visible=whose == drafter)
        for setting in (lab.number("num_speculative_tokens"), lab.switch("adaptive_window")):
            expect(setting).to_be_enabled(enabled=drafter != "off")


def groups_are_one_tab_stop(lab: Lab) -> None:
    group = lab.control("speculative")
    inside = "group => group.contains(document.activeElement)"
    chosen = group.locator("input:checked")
    chosen.focus()
    lab.press("ArrowRight")
    expect(lab.option("speculative", "eagle3")).to_be_checked()
    lab.until_asked(speculative="eagle3")
    assert group.evaluate(inside)
    expect(chosen).to_have_count(1)
    for key in ("Tab", "Shift+Tab"):
        chosen.focus()
        lab.press(key)
        assert not group.evaluate(inside), key
    for value in ("int8", "int4"):
        lab.choose("kv_dtype", value)
        assert lab.control("kv_dtype").locator(".info-text").evaluate(LINES) == 1, "what was measured is one line"
    expect(lab.option("speculative", "eagle3")).to_be_checked()  # groups are independent


def shows_what_depends_on_a_switch(lab: Lab) -> None:
    """An adaptive window makes the number of draft tokens the most that there are."""
    before = lab.control("num_speculative_tokens").inner_text()
    lab.toggle("adaptive_window")
    expect(lab.control("num_speculative_tokens")).not_to_have_text(before)
    lab.until_asked(adaptive_window=1)
    unfold(lab.page, "pool")
    expect(lab.page.locator("#pool > button")).to_have_attribute("aria-expanded", "true")
    expect(lab.option("eviction", "priority")).to_be_disabled()
    lab.toggle("enable_prefix_caching")
    expect(lab.option("eviction", "priority")).to_be_enabled()
    expect(lab.number("cache_priority")).to_be_disabled()
    lab.choose("eviction", "priority")
    expect(lab.number("cache_priority")).to_be_enabled()
    lab.fill("cache_priority", 6)
    lab.until_asked(enable_prefix_caching=1, eviction="priority", cache_priority=6)


def test_a_link_sets_every_control_and_is_kept_by_them(visit: Visit) -> None:
    chosen = {"kv_dtype": "int4", "speculative": "early_exit", "block_size": "32", "eviction": "priority"}
    numbers = {"early_exit_layer": "6", "num_speculative_tokens": "3", "cache_priority": "2"}
    switched = {"enable_prefix_caching": "1", "adaptive_window": "1"}
    link = {"prompt": "A fox & a <wolf>", **chosen, **numbers, **switched}
    lab = visit().open(**link)
    assert lab.prompt.input_value() == link["prompt"]
    for name, value in chosen.items():
        expect(lab.option(name, value)).to_be_checked()
    for name in switched:
        expect(lab.switch(name)).to_be_checked()
    for name, value in numbers.items():
        expect(lab.number(name)).to_have_value(value)
    folds = lab.page.locator("#folds button.label-wrap")  # those are open in which the link changes something
    assert [fold.get_attribute("aria-expanded") for fold in folds.all()] == ["true", "false", "false"]
    assert lab.link == link
    lab.choose("speculative", "draft")
    lab.pick("pair", "mismatched")
    lab.until_asked(speculative=None, pair="mismatched")
    pair = lab.page.input_value("#pair input")
    lab.page.reload()
    expect(lab.ready().page.locator("#pair input")).to_have_value(pair)


def writes_an_opening_once(lab: Lab) -> None:
    lab.pick("openings", "Once upon a time")
    expect(lab.prompt).not_to_have_value("")
    lab.prompt.fill("My own words")
    lab.page.click("#openings input")
    lab.press("Tab")
    lab.page.wait_for_timeout(300)
    expect(lab.prompt).to_have_value("My own words")  # not again when the list is left
    lab.prompt.fill("")
    lab.prompt.focus()
    lab.page.keyboard.insert_text("word " * 900)
    expect(lab.control("prompt")).to_contain_text("4,000")
    assert len(lab.prompt.input_value()) == 4000
    lab.press("Backspace")
    expect(lab.control("prompt")).not_to_contain_text("4,000")


def scrolls_a_fold_into_view(lab: Lab) -> None:
    unfold(lab.page, "computing")
    for name, reason in (("cuda_graphs", "GPU"), ("torch_compile", "orch")):
        expect(lab.switch(name)).to_be_disabled()
        expect(lab.control(name)).to_contain_text(reason)
    lab.choose("kernels", "reference")
    expect(lab.switch("torch_compile")).to_be_enabled()
    lab.page.evaluate("document.querySelector('#settings').scrollTo(0, 0)")
    unfold(lab.page, "sampling")
    lab.page.wait_for_function(
        """() => {
          const [seen, inside] = ["#settings", "#sampling"].map(
            (node) => document.querySelector(node).getBoundingClientRect());
          const whole = inside.bottom <= seen.bottom + 1;
          const fromTop = Math.abs(inside.top - seen.top) < 2; // as far as there is room
          return inside.height > 100 && (whole || fromTop);
        }"""
    )


def refuses_numbers_that_no_link_could_have(lab: Lab) -> None:
    lab.choose("speculative", "draft")
    lab.page.fill("#seed input", "2147483648")
    lab.page.click("#run")
    expect(lab.problem).to_contain_text("2,147,483,647")
    expect(lab.control("seed")).to_contain_text("2,147,483,647")  # beside the field, too
    gamma = lab.page.locator("#num-speculative-tokens input[type=number]")
    gamma.fill("99")
    gamma.press("Tab")
    expect(lab.control("num_speculative_tokens")).to_contain_text("99 is outside 1 to 8.")
    expect(gamma).to_have_value("8")
    assert not lab.running
    lab.page.fill("#seed input", "1")
