"""The controls: which depend on which, how each describes itself, and that the link carries their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from lab import Run
from tests.browser.conftest import Lab, unfold
from visualize.setting_needs import SAYS
from visualize.states import DRAFTERS

Visit = Callable[..., Lab]


def link(lab: Lab) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(lab.page.url).query).items()}


def test_controls_disabled_by_a_switch_say_why_and_come_back_as_they_were(visit: Visit) -> None:
    lab = visit().open(enable_prefix_caching=1)
    prefix, paged = (lab.page.locator(f"#toggle-{name} input") for name in ("enable-prefix-caching", "paged"))
    assert prefix.is_checked()
    lab.choose("kv-dtype", "INT4")
    lab.page.focus("#toggle-kv-cache input")
    for _ in range(2):
        lab.page.keyboard.press("Space")
        lab.page.wait_for_selector("#toggle-paged input:disabled")
        lab.page.wait_for_selector("#toggle-enable-prefix-caching input:disabled")
        assert not prefix.is_checked()
        assert not paged.is_checked()
        for name in ("toggle-enable-prefix-caching", "toggle-paged", "kv-dtype"):
            assert "Needs the KV cache" in lab.page.inner_text(f"#{name}")
        assert lab.page.is_checked("#kv-dtype label:has-text('Native') input")
        lab.page.wait_for_function(
            "location.search === '?kv_cache=0&paged=0' || location.search === '?paged=0&kv_cache=0'"
        )
        lab.page.keyboard.press("Space")
        lab.page.wait_for_selector("#toggle-enable-prefix-caching input:enabled:checked")
        assert paged.is_checked()
        assert lab.page.is_checked("#kv-dtype label:has-text('INT4') input")
        lab.page.wait_for_function("!location.search.includes('=0')")
        assert link(lab) == {"kv_dtype": "int4", "enable_prefix_caching": "1"}
    lab.toggle("paged")
    lab.page.wait_for_selector("#toggle-enable-prefix-caching input:disabled")
    assert not prefix.is_checked()
    assert "Needs paged blocks" in lab.page.inner_text("#toggle-enable-prefix-caching")
    lab.toggle("kv-cache")
    lab.page.wait_for_selector("#toggle-paged input:disabled")
    lab.toggle("kv-cache")
    lab.page.wait_for_selector("#toggle-paged input:enabled")
    assert not paged.is_checked(), "a switch turned off by the learner stays off"
    assert prefix.is_disabled()
    lab.page.wait_for_function("location.search.includes('kv_dtype')")
    assert link(lab) == {"kv_dtype": "int4", "paged": "0"}
    lab.toggle("paged")
    lab.page.wait_for_selector("#toggle-enable-prefix-caching input:enabled:checked")

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
    lab.choose("kv-dtype", "INT8")
    lab.page.focus("#toggle-kv-cache input")
    lab.page.keyboard.press("Space")
    lab.page.wait_for_selector("#toggle-paged input:disabled")
    lab.page.wait_for_timeout(1500)
    assert paged.is_disabled()
    lab.page.keyboard.press("Space")
    lab.page.wait_for_selector("#toggle-enable-prefix-caching input:enabled:checked")
    assert lab.page.is_checked("#kv-dtype label:has-text('INT8') input")


def test_a_late_answer_to_a_switch_does_not_change_the_settings_of_a_run(visit: Visit, tmp_path: Path) -> None:
    """Those that "Use these settings" put on the controls: whether the switch was turned before it or just after."""
    lab = visit().open(enable_prefix_caching=1, max_tokens=4)
    lab.run()
    lab.finish()
    file = lab.save("json", tmp_path)
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
        for control in ("#toggle-kv-cache input", ".use") if turned_first else (".use", "#toggle-kv-cache input"):
            lab.page.evaluate("control => document.querySelector(control).click()", control)
        lab.page.wait_for_function("answered === 2")
        for name in ("kv-cache", "paged", "enable-prefix-caching"):
            switch = lab.page.locator(f"#toggle-{name} input")
            assert (switch.is_checked(), switch.is_enabled()) == (True, True), (turned_first, name)
        folds = lab.page.locator("#folds button.label-wrap")  # that is open in which there is a change
        assert [fold.get_attribute("aria-expanded") for fold in folds.all()] == ["false", "true", "false"]
        assert link(lab) == {"enable_prefix_caching": "1", "max_tokens": "4"}


def test_hostile_values_in_a_link_are_left_out_and_controls_disabled_by_it_come_back_with_their_defaults(
    visit: Visit,
) -> None:
    lab = visit().open(
        num_speculative_tokens="<script>window.pwned=1</script>", kv_cache="0", paged="1", block_size="9999"
    )
    lab.page.wait_for_selector(".toast-body")
    assert "num_speculative_tokens was left out" in lab.page.inner_text(".toast-wrap")
    assert lab.page.input_value("#num-speculative-tokens input[type=number]") == "4"
    assert lab.page.evaluate("window.pwned") is None
    assert lab.page.locator("#toggle-paged input").is_disabled()
    lab.page.wait_for_selector("#toggle-paged input:disabled")
    assert not lab.page.is_checked("#toggle-paged input")
    lab.toggle("kv-cache")
    lab.page.wait_for_selector("#toggle-paged input:enabled:checked")
    lab.page.wait_for_function("location.search === ''")
    lab.page.dblclick("#toggle-kv-cache input", delay=20)
    lab.page.wait_for_timeout(1000)
    lab.page.wait_for_selector("#toggle-paged input:enabled:checked")
    assert lab.page.is_checked("#toggle-kv-cache input")
    lab.page.wait_for_function("location.search === ''")


def test_an_opening_is_written_once_and_a_truncated_prompt_says_so(visit: Visit) -> None:
    lab = visit().open()
    lab.page.click("#openings input")
    lab.page.click("[role=option]:has-text('Once upon a time') >> nth=0")
    prompt = lab.page.locator("#prompt textarea")
    expect(prompt).not_to_have_value("")
    expect(lab.page.locator("#openings input")).to_have_value("Example openings")
    for leave in ("Tab", "Escape"):  # and not again when the list is left
        prompt.fill(f"My own words, left by {leave}")
        lab.page.click("#openings input")
        lab.page.keyboard.press(leave)
        lab.page.wait_for_timeout(300)
        expect(prompt).to_have_value(f"My own words, left by {leave}")

    says = "4,000 of 4,000 characters: anything after that is cut off."
    assert says not in lab.page.inner_text("#prompt")
    prompt.fill("")
    prompt.focus()
    lab.page.keyboard.insert_text("word " * 900)
    lab.page.wait_for_selector(f"#prompt:has-text('{says}')")
    assert len(prompt.input_value()) == 4000
    lab.page.keyboard.press("Backspace")
    lab.page.wait_for_selector(f"#prompt:not(:has-text('{says}'))")
    assert len(prompt.input_value()) == 3999


def test_a_nonsensical_link_is_corrected_and_each_drafter_shows_only_its_own_setting(visit: Visit) -> None:
    lab = visit().open(paged=0, enable_prefix_caching=1, speculative="magic", synthetic_acceptance_rate="1e9")
    lab.page.wait_for_selector(".toast-body")
    notices = lab.page.inner_text(".toast-wrap")
    assert "enable_prefix_caching was left out: it needs paged blocks" in notices
    assert "speculative was left out" in notices
    assert "synthetic_acceptance_rate was left out" in notices
    assert not lab.page.is_checked("#toggle-enable-prefix-caching input")
    assert lab.page.is_checked("#speculative label:has-text('Draft') input")

    # Each describes itself: after another, and after none.
    for speculation in ("off", "draft", "ngram", "early_exit", "synthetic", "off", "early_exit", "draft"):
        lab.choose("speculative", DRAFTERS[speculation].label)
        lab.page.wait_for_function(
            "about => document.querySelector('#speculative').innerText.includes(about)", arg=DRAFTERS[speculation].about
        )
        own = {"pair": "draft", "early-exit-layer": "early_exit", "synthetic-acceptance-rate": "synthetic"}
        shown = {name: lab.page.locator(f"#{name}").is_visible() for name in own}
        assert shown == {name: who == speculation for name, who in own.items()}, speculation
        for name in ("#num-speculative-tokens input[type=number]", "#toggle-adaptive-window input"):
            assert lab.page.locator(name).is_disabled() == (speculation == "off"), (speculation, name)
        says = "Needs speculation." if speculation == "off" else SAYS["num_speculative_tokens"]
        assert says in lab.page.inner_text("#num-speculative-tokens"), speculation
        if speculation == "synthetic":
            assert "Not a real drafter" in lab.page.inner_text("#speculative")

    group = "document.activeElement.closest('#speculative') !== null"
    lab.page.locator("#speculative input:checked").focus()
    lab.page.keyboard.press("ArrowRight")
    lab.page.wait_for_selector("#speculative label.selected:has-text('Lookup')")
    lab.page.wait_for_function("location.search.includes('speculative=ngram')")
    assert lab.page.evaluate(group)
    assert lab.page.locator("#speculative input:checked").count() == 1
    for key in ("Tab", "Shift+Tab"):  # the group is one tab stop
        lab.page.locator("#speculative input:checked").focus()
        lab.page.keyboard.press(key)
        assert not lab.page.evaluate(group), key
    lab.choose("speculative", "Draft")  # clicking still works
    assert lab.page.locator("#speculative input:checked").get_attribute("value") == "draft"
    lab.choose("kv-dtype", "INT8")
    assert lab.page.locator("#speculative input:checked").get_attribute("value") == "draft", "groups are independent"


def test_an_adaptive_window_makes_gamma_a_maximum_and_eviction_needs_prefix_caching(visit: Visit) -> None:
    lab = visit().open()
    assert lab.page.inner_text("#num-speculative-tokens").startswith("Guesses a round")
    lab.toggle("adaptive-window")
    lab.page.wait_for_function(
        "document.querySelector('#num-speculative-tokens').innerText.startsWith('Max guesses a round')"
    )
    assert link(lab) == {"adaptive_window": "1"}
    assert "Fewer bits" in lab.page.inner_text("#kv-dtype")
    lab.choose("kv-dtype", "INT4")
    lab.page.wait_for_function("document.querySelector('#kv-dtype').innerText.includes('less likely')")
    lab.choose("kv-dtype", "Native")
    lab.page.wait_for_function("document.querySelector('#kv-dtype').innerText.includes('Fewer bits')")

    lab.toggle("adaptive-window")
    lab.page.wait_for_function("location.search === ''")
    expect(lab.page.get_by_role("group", name="Speculation: who guesses?", exact=True)).to_have_count(1)
    lab.page.get_by_role("button", name="Pool", exact=True, expanded=False).click()
    expect(lab.page.get_by_role("group", name="Eviction", exact=True)).to_be_visible()
    expect(lab.page.get_by_role("button", name="Pool", exact=True, expanded=True)).to_have_count(1)
    assert "Needs prefix caching" in lab.page.inner_text("#eviction")
    lab.toggle("enable-prefix-caching")
    lab.page.wait_for_selector("#eviction input:enabled")
    assert lab.page.locator("#cache-priority input[type=number]").is_disabled()
    lab.choose("eviction", "Lowest priority")
    lab.page.wait_for_selector("#cache-priority input[type=number]:enabled")
    lab.page.fill("#cache-priority input[type=number]", "6")
    lab.page.keyboard.press("Tab")
    lab.page.wait_for_function("location.search.includes('cache_priority')")
    assert link(lab) == {"enable_prefix_caching": "1", "eviction": "priority", "cache_priority": "6"}


def test_a_link_sets_every_control(visit: Visit) -> None:
    lab = visit().open(
        kv_dtype="int4",
        enable_prefix_caching=1,
        speculative="early_exit",
        early_exit_layer=6,
        num_speculative_tokens=3,
        adaptive_window=1,
        eviction="priority",
        cache_priority=2,
        kernels="reference",
    )
    assert lab.page.is_checked("#kv-dtype label:has-text('INT4') input")
    assert lab.page.is_checked("#toggle-enable-prefix-caching input")
    assert lab.page.is_checked("#speculative label:has-text('Early exit') input")
    assert lab.page.input_value("#early-exit-layer input[type=number]") == "6"
    assert lab.page.input_value("#num-speculative-tokens input[type=number]") == "3"
    assert lab.page.is_checked("#toggle-adaptive-window input")
    folds = lab.page.locator("#folds button.label-wrap")  # those are open in which the link changes something
    assert [fold.get_attribute("aria-expanded") for fold in folds.all()] == ["true", "false", "true"]
    assert lab.page.is_checked("#eviction label:has-text('Lowest priority') input")
    assert lab.page.input_value("#cache-priority input[type=number]") == "2"
    assert lab.page.is_checked("#kernels label:has-text('Torch') input")


def test_the_compute_settings_work_and_unavailable_ones_say_why(visit: Visit, tmp_path: Path) -> None:
    """Without a GPU, two of the four can be used, and the others say why not."""
    lab = visit().open(max_tokens=12)
    unfold(lab.page, "computing")
    for toggle, reason in (("cuda-graphs", "Needs a GPU"), ("torch-compile", "Needs kernels by Torch")):
        assert lab.page.locator(f"#toggle-{toggle} input").is_disabled()
        assert reason in lab.page.inner_text(f"#toggle-{toggle}")
    lab.run()
    lab.finish()
    lab.choose("kernels", "Torch")
    lab.page.wait_for_selector("#toggle-torch-compile input:enabled")
    lab.choose("prefill-attention", "Math")
    lab.page.wait_for_function("location.search.includes('prefill_attention=math')")
    assert "kernels=reference" in lab.page.url
    lab.run()
    lab.finish()
    assert "kernels The lab's own → Torch" in lab.page.inner_text(".compared")
    run = Run.load(lab.save("json", tmp_path))
    assert (run.config.kernels, run.config.prefill_attention) == ("reference", "math")
    assert run.started.dtype == "float32"


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
    problem = ".say.problem:has-text('Seed must be a whole number from 0 to 2,147,483,647.')"
    for seed in ("1.5", "2147483648", "-1"):
        lab.page.fill("#seed input", seed)
        lab.run()  # until the page waits for it, and the message before is gone
        lab.page.wait_for_selector(problem)
        assert not lab.running, seed


def test_a_readout_explains_itself_on_focus_and_hover_and_a_cut_off_text_can_be_read_whole(
    visit: Visit,
) -> None:
    about = "Tokens / passes of the target"
    lab = visit().open()
    page, meaning = lab.page, lab.page.locator(".meaning")
    assert not meaning.is_visible()
    for cut in (".lab-header p", "[data-chart=rounds] .caption"):
        page.set_viewport_size({"width": 1024, "height": 768})
        page.mouse.move(0, 700)
        page.hover(cut)
        assert meaning.inner_text() == page.inner_text(cut)
        page.set_viewport_size({"width": 2560, "height": 1440})  # there is room for all of it
        page.mouse.move(0, 700)
        page.hover(cut)
        assert not meaning.is_visible()
    page.set_viewport_size({"width": 1280, "height": 720})
    lab.page.focus("[data-key=speed]")
    lab.page.keyboard.press("Tab")
    assert about in meaning.inner_text()
    assert lab.page.get_attribute("[data-key=pass]", "aria-describedby") == meaning.get_attribute("id")
    lab.page.hover("[data-key=kv]")
    described = "all => all.map((one) => one.dataset.key)"
    assert lab.page.eval_on_selector_all("[aria-describedby=meaning]", described) == ["kv"], (
        "it describes one readout at a time"
    )
    lab.page.evaluate("document.querySelector('.text').dispatchEvent(new Event('scroll'))")  # as when text is added
    assert meaning.is_visible()
    lab.page.keyboard.press("Escape")
    assert not meaning.is_visible()
    lab.page.hover("[data-key=speed]")
    assert meaning.is_visible()
    lab.page.focus("#run")
    assert not meaning.is_visible()
    assert lab.page.get_by_role("group", name="speed", exact=True).count() == 1
    lab.page.hover("[data-key=accepted]")
    assert "of the rounds" not in meaning.inner_text()
    lab.page.focus("#run")
    lab.run()
    lab.finish()
    lab.page.hover("[data-key=accepted]")
    kept = r"Kept in \d+(, \d+){3}% of the rounds, from the first guess to the last\.( Not all [^.]+\.)?$"
    assert re.search(kept, meaning.inner_text())


def test_run_pressed_before_the_controls_have_followed_a_switch_runs_what_the_switch_says(visit: Visit) -> None:
    lab = visit().open(enable_prefix_caching=1, max_tokens=5)
    lab.page.evaluate(
        "document.querySelector('#toggle-kv-cache input').click(); document.querySelector('#run').click()"
    )
    lab.page.wait_for_selector(".say:has-text('Finished')")
    assert "recomputed" in lab.seen()
    assert lab.page.locator(".toast-wrap").inner_text() == ""

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


@pytest.mark.parametrize("path", ["", "pool", "compare"])
def test_after_a_refused_run_nothing_is_stopped(troubled: Visit, path: str) -> None:
    lab = troubled()
    lab.at(path)
    lab.page.route("**/queue/join*", lambda route: route.fulfill(status=422, json={"detail": "That is too much."}))
    lab.page.click("#run")
    lab.page.wait_for_selector(".toast-wrap:has-text('too much')")
    expect(lab.page.locator("body")).not_to_have_class(re.compile("begun"))
    assert lab.page.get_attribute("#stop", "aria-disabled") == "true"
