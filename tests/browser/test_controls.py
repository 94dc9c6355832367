"""The controls: which depend on which, how each describes itself, and that the link carries their values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from lab import Run
from lab.settings import SETTINGS
from tests.browser.pages import HOSTILE, Lab, id_of, notices, unfold

Visit = Callable[..., Lab]


def test_controls_disabled_by_a_switch_say_why_and_come_back_as_they_were(visit: Visit) -> None:
    lab = visit().open(enable_prefix_caching=1)
    prefix, paged = (lab.switch(name) for name in ("enable_prefix_caching", "paged"))
    dependent = ("enable_prefix_caching", "paged", "kv_dtype")
    before = [lab.control(name).inner_text() for name in dependent]
    expect(prefix).to_be_checked()
    lab.choose("kv_dtype", "int4")
    lab.switch("kv_cache").focus()
    for _ in range(2):
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
        assert lab.link == {"kv_dtype": "int4", "enable_prefix_caching": "1"}
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

    # Two quick changes are applied in order, even if the first answer is late: it does not undo what the second change
    # did to other controls.
    lab.page.evaluate(
        """() => {
          const honest = window.fetch;
          let late = 800;
          window.fetch = async (...asked) => {
            const answer = await honest(...asked);
            const wait = asked[1]?.method === "POST" ? late : 0;
            if (wait) late = 0;
            await new Promise((done) => setTimeout(done, wait));
            return answer;
          };
        }"""
    )
    lab.choose("kv_dtype", "int8")
    lab.switch("kv_cache").focus()
    lab.press("Space")
    expect(paged).to_be_disabled()
    lab.page.wait_for_timeout(1500)
    assert paged.is_disabled()
    lab.press("Space")
    expect(prefix).to_be_checked()
    expect(lab.option("kv_dtype", "int8")).to_be_checked()


def test_a_late_answer_to_a_switch_does_not_change_the_settings_of_a_run(visit: Visit, tmp_path: Path) -> None:
    """Those that "Use these settings" put on the controls: whether the switch was turned before it or just after."""
    lab = visit().ran(enable_prefix_caching=1, max_tokens=4)
    file = lab.save("json", tmp_path)
    switch = f"{id_of('kv_cache')} input"
    for turned_first in (True, False):
        lab.open()
        lab.reopen(file)
        lab.page.wait_for_selector(".use")
        lab.page.evaluate(
            """() => {
              const honest = window.fetch;
              let asked = 0;
              window.answered = 0;
              window.fetch = async (...request) => {
                const path = new URL(request[0].url ?? request[0], location).pathname;
                if (!path.endsWith("/run/predict")) return honest(...request);
                const first = ++asked === 1; // the switch's; what follows the settings of the run is asked for later
                const answer = await honest(...request);
                while (first ? asked < 2 : !window.answered) await new Promise((done) => setTimeout(done, 20));
                setTimeout(() => window.answered += 1, 100);
                return answer;
              };
            }"""
        )
        for control in (switch, ".use") if turned_first else (".use", switch):
            lab.page.evaluate("control => document.querySelector(control).click()", control)
        lab.page.wait_for_function("answered === 2")
        for name in ("kv_cache", "paged", "enable_prefix_caching"):
            expect(lab.switch(name), str(turned_first)).to_be_checked()
            expect(lab.switch(name), str(turned_first)).to_be_enabled()
        assert lab.link == {"enable_prefix_caching": "1", "max_tokens": "4"}


def test_a_nonsensical_link_is_corrected_and_controls_disabled_by_it_come_back_with_their_defaults(
    visit: Visit,
) -> None:
    lab = visit().open(
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
    for name in ("paged", "enable_prefix_caching"):
        expect(lab.switch(name)).to_be_disabled()
        expect(lab.switch(name)).not_to_be_checked()
    lab.toggle("kv_cache")
    expect(lab.switch("paged")).to_be_checked()
    lab.page.wait_for_function("location.search === ''")
    lab.page.dblclick("#toggle-paged input", delay=20)  # the last click counts, however late the answers are
    expect(lab.switch("enable_prefix_caching")).to_be_enabled()
    expect(lab.switch("paged")).to_be_checked()
    lab.page.wait_for_function("location.search === ''")


def test_an_opening_is_written_once_and_a_truncated_prompt_says_so(visit: Visit) -> None:
    lab = visit().open()
    lab.pick("openings", "Once upon a time")
    expect(lab.prompt).not_to_have_value("")
    for leave in ("Tab", "Escape"):  # and not again when the list is left
        lab.prompt.fill(f"My own words, left by {leave}")
        lab.page.click("#openings input")
        lab.press(leave)
        lab.page.wait_for_timeout(300)
        expect(lab.prompt).to_have_value(f"My own words, left by {leave}")

    lab.prompt.fill("")
    lab.prompt.focus()
    lab.page.keyboard.insert_text("word " * 900)
    expect(lab.control("prompt")).to_contain_text("4,000")
    assert len(lab.prompt.input_value()) == 4000
    lab.press("Backspace")
    expect(lab.control("prompt")).not_to_contain_text("4,000")
    assert len(lab.prompt.input_value()) == 3999


def test_each_drafter_shows_only_its_own_setting_and_a_group_is_one_tab_stop(visit: Visit) -> None:
    lab = visit().open()
    # Each describes itself: after another, and after none.
    own = {"pair": "draft", "early_exit_layer": "early_exit", "synthetic_acceptance_rate": "synthetic"}
    for drafter in ("off", "draft", "ngram", "early_exit", "synthetic", "off", "early_exit", "draft"):
        lab.choose("speculative", drafter)
        expect(lab.control("speculative")).to_contain_text(SETTINGS["speculative"].about[drafter])
        for name, whose in own.items():
            expect(lab.control(name)).to_be_visible(visible=whose == drafter)
        for setting in (lab.number("num_speculative_tokens"), lab.switch("adaptive_window")):
            expect(setting).to_be_enabled(enabled=drafter != "off")

    group = lab.control("speculative")
    inside = "group => group.contains(document.activeElement)"
    chosen = group.locator("input:checked")
    chosen.focus()
    lab.press("ArrowRight")
    expect(lab.option("speculative", "ngram")).to_be_checked()
    lab.until_asked(speculative="ngram")
    assert group.evaluate(inside)
    expect(chosen).to_have_count(1)
    for key in ("Tab", "Shift+Tab"):
        chosen.focus()
        lab.press(key)
        assert not group.evaluate(inside), key
    lab.choose("speculative", "draft")  # clicking still works
    lab.choose("kv_dtype", "int8")
    expect(lab.option("speculative", "draft")).to_be_checked()  # groups are independent

    # An adaptive window makes the number of draft tokens the most that there are.
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
    link = {
        "prompt": "A fox & a <wolf>",
        "kv_dtype": "int4",
        "enable_prefix_caching": "1",
        "speculative": "early_exit",
        "early_exit_layer": "6",
        "num_speculative_tokens": "3",
        "adaptive_window": "1",
        "block_size": "32",
        "eviction": "priority",
        "cache_priority": "2",
        "kernels": "reference",
    }
    lab = visit().open(**link)
    assert lab.prompt.input_value() == link["prompt"]
    for name in ("kv_dtype", "speculative", "block_size", "eviction", "kernels"):
        expect(lab.option(name, link[name])).to_be_checked()
    for name in ("enable_prefix_caching", "adaptive_window"):
        expect(lab.switch(name)).to_be_checked()
    for name in ("early_exit_layer", "num_speculative_tokens", "cache_priority"):
        expect(lab.number(name)).to_have_value(link[name])
    folds = lab.page.locator("#folds button.label-wrap")  # those are open in which the link changes something
    assert [fold.get_attribute("aria-expanded") for fold in folds.all()] == ["true", "false", "true"]
    assert lab.link == link
    lab.choose("speculative", "draft")
    lab.pick("pair", "mismatched")
    lab.until_asked(speculative=None, pair="mismatched")
    again = visit()
    again.page.goto(lab.page.url)
    again.ready()
    expect(again.page.locator("#pair input")).to_have_value(lab.page.input_value("#pair input"))


def test_the_compute_settings_work_and_unavailable_ones_say_why(visit: Visit, tmp_path: Path) -> None:
    """Without a GPU, two of the four can be used, and the others say why not."""
    lab = visit().open(max_tokens=12)
    unfold(lab.page, "computing")
    for name, reason in (("cuda_graphs", "GPU"), ("torch_compile", "orch")):
        expect(lab.switch(name)).to_be_disabled()
        expect(lab.control(name)).to_contain_text(reason)
    lab.ran()
    lab.choose("kernels", "reference")
    expect(lab.switch("torch_compile")).to_be_enabled()
    lab.choose("prefill_attention", "math")
    lab.until_asked(prefill_attention="math", kernels="reference")
    lab.ran()
    assert "Torch" in lab.page.inner_text(".compared")
    run = Run.load(lab.save("json", tmp_path))
    assert (run.config.kernels, run.config.prefill_attention) == ("reference", "math")


def test_an_opened_fold_scrolls_into_view_and_a_seed_that_no_link_could_have_is_refused(visit: Visit) -> None:
    lab = visit().open()
    for fold in ("pool", "sampling", "computing"):
        lab.page.evaluate("document.querySelector('#settings').scrollTo(0, 0)")
        lab.page.click(f"#{fold} > button")
        lab.page.wait_for_function(
            """fold => {
              const [seen, inside] = [document.querySelector("#settings"), document.querySelector(`#${fold}`)].map(
                (node) => node.getBoundingClientRect());
              return inside.height > 100 && inside.bottom <= seen.bottom + 1;
            }""",
            arg=fold,
        )
        lab.page.click(f"#{fold} > button")
        lab.page.wait_for_function("fold => document.querySelector(`#${fold}`).offsetHeight < 100", arg=fold)
    unfold(lab.page, "sampling")
    for seed in ("1.5", "2147483648", "-1"):
        lab.page.fill("#seed input", seed)
        lab.run()  # until the page waits for it, and the message before is gone
        expect(lab.problem).to_contain_text("2,147,483,647")
        assert not lab.running, seed


def test_a_readout_explains_itself_on_focus_and_hover_and_a_cut_off_text_can_be_read_whole(visit: Visit) -> None:
    lab = visit().open()
    page, meaning = lab.page, lab.page.locator(".meaning")
    assert not meaning.is_visible()
    for cut in (".lab-header p", "[data-chart=rounds] .caption"):
        for viewport, whole in (({"width": 1024, "height": 768}, False), ({"width": 2560, "height": 1440}, True)):
            page.set_viewport_size(viewport)
            page.mouse.move(0, 700)
            page.hover(cut)
            expect(meaning).to_be_visible(visible=not whole)
            assert whole or meaning.inner_text() == page.inner_text(cut)
    page.set_viewport_size({"width": 1280, "height": 720})
    page.focus("[data-key=speed]")
    lab.press("Tab")
    about = meaning.inner_text()
    assert page.get_attribute("[data-key=pass]", "aria-describedby") == meaning.get_attribute("id")
    page.hover("[data-key=kv]")
    assert meaning.inner_text() != about
    described = "all => all.map((one) => one.dataset.key)"
    assert page.eval_on_selector_all("[aria-describedby=meaning]", described) == ["kv"], "one readout at a time"
    page.evaluate("document.querySelector('.text').dispatchEvent(new Event('scroll'))")  # as when text is added
    assert meaning.is_visible()
    lab.press("Escape")
    assert not meaning.is_visible()
    page.hover("[data-key=accepted]")
    before = meaning.inner_text()
    page.focus("#run")
    assert not meaning.is_visible()
    lab.ran()
    page.hover("[data-key=accepted]")
    assert meaning.inner_text().startswith(before)
    assert meaning.inner_text().count(",") >= 3, "the rates of each place in a round are added"


def test_run_pressed_before_the_controls_have_followed_a_switch_runs_what_the_switch_says(visit: Visit) -> None:
    lab = visit().open(enable_prefix_caching=1, max_tokens=5)
    lab.switch("kv_cache").evaluate("one => { one.click(); document.querySelector('#run').click(); }")
    lab.page.wait_for_selector("body:not(.running):not(.begun) .token:not(.prompt)")
    lab.finish()
    lab.came_to_its_end(5)
    assert "recomputed" in lab.seen()
    assert notices(lab.page).inner_text() == ""

    # Its keys, held down, begin one run.
    lab.page.evaluate(
        """() => {
          window.pressed = 0;
          document.querySelector("#run").addEventListener("click", () => (pressed += 1));
        }"""
    )
    lab.page.keyboard.down("Control")
    for _ in range(4):
        lab.page.keyboard.down("Enter")  # pressed again without having been let go: repeated
    lab.page.keyboard.up("Enter")
    lab.page.keyboard.up("Control")
    assert lab.page.evaluate("pressed") == 1
    lab.finish()
