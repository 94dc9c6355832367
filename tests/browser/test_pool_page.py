"""The Pool page: the real engine decodes many sequences, and all squares, chips and texts show the same instant."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import Page, expect

from lab.trace.run import read_json
from lab.util.messages import counted
from tests.browser.conftest import OVERFLOW, Lab, unfold
from tests.visualize.picture import Picture
from visualize.charts import pool_charts as figures
from visualize.pages.pool.inputs import PRESETS, address
from visualize.pages.pool.page import ALIKE, PRIORITIES
from visualize.pages.pool.pool_file import of
from visualize.pages.pool.pool_frames import BatchReducer

Visit = Callable[..., Lab]
HOSTILE = "<img src=x onerror=window.pwned=1>${window.pwned=1}{{value}}"
FORGETS = PRESETS["forgets"].inputs
FEW = {"sequences": 6, "every": 0, "lengths": "equal", "tokens": 40, "max_num_seqs": 5, "num_blocks": 18, "shared": 0}


def opened(lab: Lab, **link: Any) -> Page:
    lab.page.goto(f"{lab.server}/pool?{urlencode(link)}")
    return lab.ready().page


def in_link(url: str) -> dict[str, list[str]]:
    """The settings that a link carries, in any order."""
    return parse_qs(urlsplit(url).query)


def ran(lab: Lab) -> None:
    """Press Run, and wait until the end is shown."""
    lab.run()
    lab.page.wait_for_function("document.querySelector('.place').textContent.startsWith('end')", timeout=60_000)


def frames_of(file: Path, *, recorded: bool = False) -> list[dict[str, Any]]:
    """The frames of a run, rebuilt from its file."""
    return BatchReducer(FEW["sequences"], recorded=recorded).feed(of(read_json(file), file.name))


def assert_shows(lab: Lab, frames: list[dict[str, Any]], seq: int) -> Picture:
    """The stage shows what the frames up to ``seq`` say."""
    lab.wait_for_instant(seq)
    picture = Picture(figures.columns())
    for frame in frames[: seq + 1]:
        picture.apply(frame)
    squares = lab.page.eval_on_selector_all(
        ".squares .square",
        """all => all.map((one) => {
          const [, state] = one.classList;
          return [state, one.textContent, one.dataset.mark, one.style.getPropertyValue("--part")];
        })""",
    )
    pool, size = picture.columns["pool"][0], picture.head["block_size"]
    assert squares == [
        [
            state,
            f"×{len(owners)}" if len(owners) > 1 else "".join(map(str, owners)),
            mark,
            f"{100 * fill / size + 1e-9:.0f}%",
        ]
        for state, owners, mark, fill in zip(pool["state"], pool["owners"], pool["mark"], pool["fill"], strict=True)
    ]
    rows = picture.columns["sequences"][0]
    for place, states in {"waiting": ["waiting"], "running": ["running"], "done": ["finished"]}.items():
        there = lab.page.eval_on_selector_all(
            f".chips[data-state={place}] .chip", "all => all.map((chip) => Number(chip.dataset.sequence))"
        )
        assert there == [
            n for n, state in zip(rows.get("number", []), rows.get("state", []), strict=True) if state in states
        ]
    counts = lab.page.eval_on_selector_all(
        ".chip", "all => all.map((chip) => chip.querySelector('.count').textContent)"
    )
    assert sorted(counts) == sorted(f"{a}/{b}" for a, b in zip(rows["tokens"], rows["wanted"], strict=True))
    slow = float(lab.page.input_value(".speed"))
    how = f"{1 / slow:.0f} times slower" if slow < 1 else "at its true speed"
    plays = f" ▶\N{NO-BREAK SPACE}plays it {how}." if seq == len(frames) - 1 else ""
    assert lab.page.inner_text(".say") == picture.say + plays
    captions = {name: lab.page.inner_text(f"[data-chart={name}] .caption") for name in picture.captions}
    assert captions == picture.captions
    drawn = lab.page.evaluate(
        "document.querySelector('[data-chart=occupancy] .plot').data.map((trace) => trace.y.at(-1))"
    )
    assert drawn == [trace["y"][-1] for trace in picture.columns["occupancy"]]
    return picture


def test_a_saved_run_is_reopened_and_a_file_of_another_kind_is_refused(visit: Visit, tmp_path: Path) -> None:
    lab = visit()
    opened(lab, **FEW)
    ran(lab)
    file = lab.save("json", tmp_path)
    frames = frames_of(file, recorded=True)
    lab.page.click(".against")  # the first sequence alone, in the Lab
    lab.page.wait_for_selector("#stage .token:not(.prompt)")
    lab.finish()
    alone = lab.page.evaluate(
        "[...document.querySelectorAll('.token:not(.prompt)')].map((token) => token.textContent).join('')"
    )
    texts = (token["text"] for frame in frames for token in frame.get("tokens", []) if token["owner"] == 0)
    assert alone == "".join(texts).replace(" ", "")  # they are between the tokens
    lab = visit()
    page = opened(lab)
    lab.reopen(file)
    assert_shows(lab, frames, len(frames) - 1)
    assert "recorded on cpu" in page.inner_text("#device")
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"format": "decode-lab-run", "version": 1, "events": []}', "utf-8")
    lab.slow(400)
    lab.reopen(file)
    page.wait_for_timeout(500)  # uploaded, and not yet answered: the next one is not lost
    lab.reopen(wrong)
    page.wait_for_selector(".say.problem:has-text('is not a run of the pool')")
    assert page.inner_text("[data-key=finished] .value") == "6 / 6"  # the run shown before stays
    expect(page.locator(".against")).to_be_hidden()  # whose settings are not known


def test_preemption_in_a_small_pool_is_shown_step_by_step(visit: Visit, tmp_path: Path) -> None:
    lab = visit()
    page = opened(lab, **FEW)
    legends = page.locator(".charts figcaption").all_inner_texts()
    assert all("\n" in text for text in legends), "a name, and a legend or what is shown"
    ran(lab)
    frames = frames_of(lab.save("json", tmp_path))
    last = len(frames) - 1
    assert assert_shows(lab, frames, last).readouts["finished"][0] == "6 / 6"
    assert page.inner_text("[data-key=finished] .value") == "6 / 6"
    assert page.inner_text(".say").startswith("Done: 6 sequences, 240 tokens")
    blocks = page.get_by_role("img", name="Blocks live, cached, free")
    expect(blocks).to_have_accessible_description(re.compile(r"\d s: 0 live; .*\d s: \d+ cached; .*\d s: \d+ free$"))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    preempted = next(i for i, frame in enumerate(frames) if "preempted" in frame.get("say", ""))
    page.locator(".bar").fill(str(preempted))
    assert_shows(lab, frames, preempted)
    assert page.locator(".squares [data-mark=preempted]").count() > 0
    assert int(page.inner_text("[data-key=preempted] .value")) > 0
    page.locator("#toggle-paged input").press("ArrowLeft")  # of which a checkbox makes no use
    assert_shows(lab, frames, preempted - 1)
    assert page.locator(".squares [data-mark=preempted]").count() == 0
    page.locator(".bar").press("ArrowRight")
    assert_shows(lab, frames, preempted)
    page.keyboard.press("Home")
    assert_shows(lab, frames, 0)
    page.select_option(".speed", label="true speed")
    page.keyboard.press("Space")
    lab.wait_for_instant(last)
    assert_shows(lab, frames, last)
    assert asked == []

    page.locator(".bar").fill(str(preempted))
    lab.wait_for_instant(preempted)
    chip = page.locator(".chips[data-state=running] .chip").first
    chip.focus()
    page.wait_for_selector(".square.chosen")
    held = page.evaluate("document.querySelectorAll('.squares .chosen').length")
    assert counted(held, "block") in chip.get_attribute("title")
    text = "".join(
        token["text"] for frame in frames[: preempted + 1] for token in frame.get("tokens", []) if token["owner"] == 0
    )
    assert page.inner_text(".wrote").endswith(text.rstrip())
    page.keyboard.press("ArrowLeft")
    lab.wait_for_instant(preempted - 1)

    page.keyboard.press("End")  # the last sequence is chosen, and stays so when its chip is recreated
    lab.wait_for_instant(last)
    chosen = page.locator(".chip[data-sequence='5']")
    assert chosen.get_attribute("aria-pressed") == "false"
    chosen.click()
    page.mouse.move(0, 0)
    page.locator(".bar").press("Home")
    lab.wait_for_instant(0)
    page.locator(".bar").press("End")
    lab.wait_for_instant(last)
    assert chosen.get_attribute("aria-pressed") == "true"
    assert "chosen" in chosen.get_attribute("class")
    page.fill("#sequences input[type=number]", "4")  # another run does not have the chosen sequence
    ran(lab)
    page.wait_for_function("document.querySelectorAll('.chip').length === 4")  # those of the new run
    assert page.locator(".stage.choosing, .square.chosen, .chip.chosen, .chip[aria-pressed=true]").count() == 0
    assert page.locator(".charts figcaption").all_inner_texts() == legends


def test_a_shared_system_prompt_is_found_and_hostile_text_stays_text(visit: Visit) -> None:
    lab = visit()
    page = opened(lab, sequences=4, every=3, lengths="equal", tokens=24, system=f"{HOSTILE} {'Long ago. ' * 12}")
    ran(lab)
    assert int(page.inner_text("[data-key=found] .value")) >= 3 * 16
    page.locator(".bar").fill("12")  # all four have arrived, and none has finished
    lab.wait_for_instant(12)
    assert page.locator(".squares .shared").first.inner_text() == "×4"
    held, shared, every = (page.locator(f".squares {kind}").count() for kind in (".live", ".shared", ".square"))
    words = page.evaluate("document.querySelector('.squares').ariaDescription")
    assert words == f"{held} of {every} blocks held by 4 sequences, {shared} of them by several"
    named = page.get_attribute(".squares", "aria-labelledby").split()
    caption = page.inner_text("[data-chart=pool] .caption")
    assert [page.inner_text(f"#{name}") for name in named] == ["Pool", caption]
    assert caption.startswith(f"{held} live")
    page.hover(".squares .shared >> nth=0")
    page.wait_for_selector(".chip.chosen")
    assert page.get_attribute(".chip >> nth=0", "aria-label") is None, "its visible text names it"
    assert page.get_attribute(".chip >> nth=0", "title").startswith("Sequence 0: ")
    assert "shared by sequences" in page.get_attribute(".squares .shared >> nth=0", "title")
    assert page.evaluate("window.pwned") is None
    assert page.query_selector(".stage img") is None
    page.click("#toggle-enable-prefix-caching input")
    page.wait_for_function("location.search.includes('enable_prefix_caching=0')")
    lab.run()
    lab.finish()
    page.wait_for_function("document.querySelector('[data-key=found] .value').textContent === '0'")
    assert page.inner_text("[data-key=found] .was").startswith("was ")


def test_presets_set_the_link_and_the_link_restores_the_settings(visit: Visit) -> None:
    page = opened(visit(), sequences=0)
    assert "sequences was left out" in page.inner_text(".toast-wrap")
    page.click("#preset label:has-text('Contiguous')")
    page.wait_for_function("location.search.includes('paged=0') && location.search.includes('num_blocks=64')")
    assert page.is_disabled("#toggle-enable-prefix-caching input")
    assert PRESETS["fits"].about in page.inner_text("#preset")
    assert in_link(page.url)["lengths"] == ["paragraph"]
    page.reload()
    page.wait_for_selector("#preset label.selected:has-text('Contiguous')")
    assert page.is_checked("#lengths input[value=paragraph]")
    page.wait_for_selector("body[data-ready]")
    page.click("#toggle-paged input")
    page.wait_for_selector("#toggle-enable-prefix-caching input:enabled")
    expect(page.locator("#preset label.selected")).to_have_count(0)  # no preset has these settings
    assert PRESETS["fits"].about not in page.inner_text("#preset")
    page.click("#toggle-paged input")
    page.wait_for_selector("#preset label.selected:has-text('Contiguous')")
    assert "Needs prefix caching" in page.inner_text("#eviction")
    page.click("#preset label:has-text('Evicted')")
    page.click("#eviction label:has-text('Lowest priority')")
    expect(page.locator("#eviction")).to_contain_text(PRIORITIES)
    page.click("#shared label:has-text('All')")
    expect(page.locator("#eviction")).to_contain_text(ALIKE)
    page.click("#shared label:has-text('Every 4th')")
    page.wait_for_url(lambda url: in_link(url) == in_link(address(FORGETS)) | {"eviction": ["priority"]})
    page.reload()
    expect(page.locator("#eviction label.selected")).to_have_text("Lowest priority")
    expect(page.locator("#eviction")).to_contain_text(PRIORITIES)


def test_what_was_chosen_last_stays_however_late_the_answers_are(visit: Visit) -> None:
    """Of two scenarios; of a scenario and a switch; of a switch and a scenario."""
    lab = visit()
    page = opened(lab)
    lab.slow()
    dry, users = PRESETS["dry"], PRESETS["users"]
    for pause in (0, 20, 60, 150):
        page.click(f"#preset label:has-text('{users.label}')")
        page.wait_for_url(lambda url: in_link(url) == {})
        page.keyboard.press("ArrowDown")
        page.wait_for_timeout(pause)
        page.keyboard.press("ArrowDown")
        page.wait_for_url(lambda url: in_link(url) == in_link(address(dry.inputs)))
        expect(page.locator("#preset label.selected")).to_have_text(dry.label)
        expect(page.locator("#preset")).to_contain_text(dry.about)

    for pause in (50, 300, 450):
        page.click(f"#preset label:has-text('{dry.label}')")
        page.wait_for_timeout(pause)
        page.click("#toggle-paged input")
        page.wait_for_timeout(1200)
        expect(page.locator("#toggle-paged input"), str(pause)).not_to_be_checked()
        expect(page.locator("#toggle-enable-prefix-caching input"), str(pause)).to_be_disabled()
        page.wait_for_url(lambda url: in_link(url) == in_link(address(replace(dry.inputs, paged=False))))
        expect(page.locator("#preset label.selected")).to_have_count(0)

    page.click("#toggle-paged input")
    page.wait_for_timeout(100)
    page.click(f"#preset label:has-text('{users.label}')")
    page.wait_for_timeout(1200)
    expect(page.locator("#preset label.selected")).to_have_text(users.label)
    expect(page.locator("#toggle-enable-prefix-caching input")).to_be_enabled()
    page.wait_for_url(lambda url: in_link(url) == {})


def test_a_scenarios_name_fits_its_box_and_an_emptied_seed_is_the_usual_one(visit: Visit) -> None:
    page = opened(visit())
    for preset in reversed(PRESETS.values()):
        page.click(f"#preset label:has-text('{preset.label}')")
        page.wait_for_selector(f"#preset label.selected:has-text('{preset.label}')")
        word, box = (page.locator(f"#preset label.selected{part}").bounding_box() for part in (" span", ""))
        assert word["x"] + word["width"] <= box["x"] + box["width"] - 4, preset.label
    unfold(page, "sampling")
    page.fill("#seed input", "8")
    expect(page.locator("#preset label.selected")).to_have_count(0)
    page.fill("#seed input", "")
    expect(page.locator("#preset label.selected")).to_have_text(PRESETS["users"].label)


def test_a_mistake_is_explained_and_a_run_can_be_stopped(visit: Visit) -> None:
    lab = visit()
    page = opened(lab, num_blocks=8)
    lab.run()
    page.wait_for_selector(".say.problem")
    assert "block" in page.inner_text(".say")
    page.wait_for_selector("#stop[aria-disabled=true]")
    page = opened(lab, **FEW | {"tokens": 256, "num_blocks": 200, "sequences": 32, "max_num_seqs": 1})
    lab.run()
    page.wait_for_selector(".chips[data-state=waiting] .chip")
    page.wait_for_function("document.querySelectorAll('.chips[data-state=done] .chip').length > 0")
    page.keyboard.press("Escape")
    page.wait_for_selector("body:not(.running)")
    page.wait_for_function("document.querySelector('.say').textContent.startsWith('Ended early: ')")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("document.querySelector('.say').textContent.includes(' were stopped.')")
    page.wait_for_selector(".chip[data-state=cancelled]")


CUT = "texts => texts.filter((text) => text.scrollWidth > text.clientWidth).map((text) => text.textContent)"


@pytest.mark.parametrize("size", [(1280, 720), (390, 844)], ids=["projector", "phone"])
def test_the_page_fits_the_screen(visit: Visit, size: tuple[int, int]) -> None:
    wide, high = size
    lab = visit(viewport={"width": wide, "height": high}, is_mobile=wide < 800, has_touch=wide < 800)
    page = opened(lab, **FEW | {"num_blocks": 512, "sequences": 24, "tokens": 12})
    ran(lab)
    page.locator(".bar").fill("4")
    lab.wait_for_instant(4)
    across, down = page.evaluate(OVERFLOW)
    assert (across, page.evaluate("innerWidth")) == (0, wide)
    assert page.locator(".squares .square").count() == 512
    if wide > 800:
        assert down == 0
        cut = page.evaluate(
            """async () => {
              const box = document.querySelector(".squares");
              const cut = [];
              for (let width = 300.6; width > 250; width -= 1) {
                box.style.width = `${width}px`;
                await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
                if (box.scrollHeight > box.clientHeight) cut.push(width);
              }
              box.style.width = "";
              return cut;
            }"""
        )
        assert cut == [], "squares are cut off at these widths"
        page.set_viewport_size({"width": 1024, "height": 768})
        page.wait_for_function(f"{OVERFLOW}.join() === '0,0'")
        page.wait_for_function("document.querySelector('.say').getBoundingClientRect().bottom <= innerHeight")
        assert page.eval_on_selector_all(".charts .caption", CUT) == []
        turned = "ticks => ticks.map((tick) => tick.transform.baseVal[1]?.angle).filter(Boolean)"
        assert page.eval_on_selector_all(".charts .xtick text", turned) == [], "times are level"
        return
    assert page.locator(".charts .plot:visible").count() == 1
    page.tap(".choose button:has-text('Tokens a second')")
    page.wait_for_selector("[data-chart=speed] .main-svg")
    page.tap(".chips[data-state=running] .chip >> nth=1")
    page.wait_for_selector(".square.chosen")
    boxes = [button.bounding_box() for button in page.locator(".transport .buttons button").all()]
    assert min(min(box["width"], box["height"]) for box in boxes) >= 40
