"""The Pool page: the real engine decodes many sequences, and all squares, chips and texts show the same instant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from lab.trace.run import read_json
from lab.util.messages import counted
from tests.browser.pages import CUT, HOSTILE, OVERFLOW, STOPPED, Lab, asked, is_harmless, notices, unfold
from tests.visualize.picture import Picture
from visualize.charts import pool_charts as figures
from visualize.charts.base import empty
from visualize.pages.pool.pool_file import of
from visualize.pages.pool.pool_frames import BatchReducer
from visualize.pool_inputs import PRESETS, address

Visit = Callable[..., Lab]
FEW = {"sequences": 6, "every": 0, "lengths": "equal", "tokens": 40, "max_num_seqs": 5, "num_blocks": 18, "shared": 0}


def opened(lab: Lab, **link: Any) -> Page:
    lab.at("pool", **link)
    return lab.ready().page


def ran(lab: Lab) -> None:
    """Press Run, and wait until the end is shown."""
    lab.run()
    lab.page.wait_for_function("(bar => bar.max > 0 && bar.value === bar.max)(document.querySelector('.bar'))")
    lab.finish()


def frames_of(file: Path, *, recorded: bool = False) -> list[dict[str, Any]]:
    """The frames of a run, rebuilt from its file."""
    return BatchReducer(FEW["sequences"], recorded=recorded).feed(of(read_json(file), file.name))


def first_preemption(frames: list[dict[str, Any]]) -> int:
    """The number of the first frame in which a sequence's blocks are marked as preempted."""
    picture = Picture(empty(figures.CHARTS))
    for number, frame in enumerate(frames):
        picture.apply(frame)
        if "preempted" in picture.columns["pool"][0].get("mark", ()):
            return number
    raise AssertionError("no sequence was preempted")


def assert_shows(lab: Lab, frames: list[dict[str, Any]], seq: int) -> Picture:
    """The stage shows what the frames up to ``seq`` say."""
    lab.wait_for_instant(seq)
    picture = Picture(empty(figures.CHARTS))
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
    assert lab.say.inner_text().startswith(picture.say)  # at the end, the player adds what Play does
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
    alone = "".join(lab.written.all_text_contents())
    texts = (token["text"] for frame in frames for token in frame.get("tokens", []) if token["owner"] == 0)
    assert alone == "".join(texts).replace(" ", "")  # they are between the tokens
    page = opened(lab)
    lab.reopen(file)
    assert_shows(lab, frames, len(frames) - 1)
    assert "cpu" in page.inner_text("#device")
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"format": "decode-lab-run", "version": 1, "events": []}', "utf-8")
    lab.slow(400)
    lab.reopen(file)
    page.wait_for_timeout(500)  # uploaded, and not yet answered: the next one is not lost
    lab.reopen(wrong)
    expect(lab.problem).to_be_visible()
    assert page.inner_text("[data-key=finished] .value") == "6 / 6"  # the run shown before stays
    expect(page.locator(".against")).to_be_hidden()  # whose settings are not known


def test_preemption_in_a_small_pool_is_shown_step_by_step(visit: Visit, tmp_path: Path) -> None:
    lab = visit()
    page = opened(lab, **FEW)
    ran(lab)
    frames = frames_of(lab.save("json", tmp_path))
    last = len(frames) - 1
    assert assert_shows(lab, frames, last).readouts["finished"][0] == "6 / 6"
    blocks = page.locator("[data-chart=occupancy]").get_by_role("img")
    assert "0 live" in blocks.evaluate("one => one.ariaDescription")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    preempted = first_preemption(frames)
    page.locator(".bar").fill(str(preempted))
    assert_shows(lab, frames, preempted)
    assert page.locator(".squares [data-mark=preempted]").count() > 0
    assert int(page.inner_text("[data-key=preempted] .value")) > 0
    lab.switch("paged").press("ArrowLeft")  # of which a checkbox makes no use
    assert_shows(lab, frames, preempted - 1)
    assert page.locator(".squares [data-mark=preempted]").count() == 0
    page.locator(".bar").press("ArrowRight")
    assert_shows(lab, frames, preempted)
    lab.press("Home")
    assert_shows(lab, frames, 0)
    lab.scrub(last - 6)
    lab.pace(1)
    lab.press("Space")
    assert_shows(lab, frames, last)
    assert requests == []

    lab.scrub(preempted)
    chip = page.locator(".chips[data-state=running] .chip").first
    chip.focus()
    page.wait_for_selector(".square.chosen")
    held = page.evaluate("document.querySelectorAll('.squares .chosen').length")
    assert counted(held, "block") in chip.get_attribute("title")
    text = "".join(
        token["text"] for frame in frames[: preempted + 1] for token in frame.get("tokens", []) if token["owner"] == 0
    )
    assert page.inner_text(".wrote").endswith(text.rstrip())
    lab.press("ArrowLeft")
    lab.wait_for_instant(preempted - 1)

    lab.press("End")  # the last sequence is chosen, and stays so when its chip is recreated
    lab.wait_for_instant(last)
    chosen = page.locator(".chip[data-sequence='5']")
    chosen.click()
    page.mouse.move(0, 0)
    for key, seq in (("Home", 0), ("End", last)):
        page.locator(".bar").press(key)
        lab.wait_for_instant(seq)
    expect(chosen).to_have_attribute("aria-pressed", "true")
    page.fill("#sequences input[type=number]", "4")  # another run does not have the chosen sequence
    ran(lab)
    expect(page.locator(".chip")).to_have_count(4)  # those of the new run
    assert page.locator(".stage.choosing, .square.chosen, .chip.chosen, .chip[aria-pressed=true]").count() == 0


def test_a_shared_system_prompt_is_found_and_hostile_text_stays_text(visit: Visit) -> None:
    lab = visit()
    page = opened(lab, sequences=4, every=3, lengths="equal", tokens=24, system=f"{HOSTILE} {'Long ago. ' * 12}")
    ran(lab)
    assert int(page.inner_text("[data-key=found] .value")) >= 3 * 16
    lab.scrub(12)  # all four have arrived, and none has finished
    shared = page.locator(".squares .shared")
    assert shared.first.inner_text() == "×4"
    words = page.evaluate("document.querySelector('.squares').ariaDescription")
    for kind in (".live", ".shared", ".square"):
        assert str(page.locator(f".squares {kind}").count()) in words
    shared.first.hover()
    page.wait_for_selector(".chip.chosen")
    assert page.get_attribute(".chip >> nth=0", "aria-label") is None, "its visible text names it"
    assert page.get_attribute(".chip >> nth=0", "title")
    assert all(str(sequence) in shared.first.get_attribute("title") for sequence in range(4))
    is_harmless(page)
    lab.toggle("enable_prefix_caching")
    lab.until_asked(enable_prefix_caching=0)
    ran(lab)
    expect(page.locator("[data-key=found] .value")).to_have_text("0")
    assert page.inner_text("[data-key=found] .was")


def test_presets_set_the_link_and_the_link_restores_the_settings(visit: Visit) -> None:
    lab = visit()
    page = opened(lab, sequences=0)
    assert "sequences" in notices(page).inner_text()
    selected = page.locator("#preset label.selected")
    for name, preset in reversed(PRESETS.items()):
        lab.choose("preset", name)
        word, box = (page.locator(f"#preset label.selected{part}").bounding_box() for part in (" span", ""))
        assert word["x"] + word["width"] <= box["x"] + box["width"] - 4, "its name fits its box"
        expect(lab.control("preset")).to_contain_text(preset.about)
    lab.choose("preset", "fits")
    lab.until_asked(paged=0, lengths="paragraph")
    expect(lab.switch("enable_prefix_caching")).to_be_disabled()
    page.reload()
    page.wait_for_selector("body[data-ready]")
    expect(selected).to_have_text(PRESETS["fits"].label)
    expect(lab.option("lengths", "paragraph")).to_be_checked()
    lab.toggle("paged")
    expect(lab.switch("enable_prefix_caching")).to_be_enabled()
    expect(selected).to_have_count(0)  # no preset has these settings
    lab.toggle("paged")
    expect(selected).to_have_text(PRESETS["fits"].label)
    lab.choose("preset", "forgets")
    lab.choose("eviction", "priority")
    lab.until_asked(**asked(address(PRESETS["forgets"].inputs)) | {"eviction": "priority"})
    with_priorities = lab.control("eviction").inner_text()
    lab.choose("shared", "1")  # all sequences share a prompt: none is more important than another
    expect(lab.control("eviction")).not_to_have_text(with_priorities)
    page.reload()
    page.wait_for_selector("body[data-ready]")
    expect(lab.option("eviction", "priority")).to_be_checked()

    lab.choose("preset", "users")
    unfold(page, "sampling")
    page.fill("#seed input", "8")
    expect(selected).to_have_count(0)
    page.fill("#seed input", "")  # an emptied seed is the usual one
    expect(selected).to_have_text(PRESETS["users"].label)


def test_what_was_chosen_last_stays_however_late_the_answers_are(visit: Visit) -> None:
    """Of two scenarios; of a scenario and a switch; of a switch and a scenario."""
    lab = visit()
    page = opened(lab)
    lab.slow()
    dry, users = PRESETS["dry"], PRESETS["users"]
    selected = page.locator("#preset label.selected")
    for pause in (0, 60, 150):
        lab.choose("preset", "users")
        page.wait_for_url(lambda url: asked(url) == {})
        lab.press("ArrowDown")
        page.wait_for_timeout(pause)
        lab.press("ArrowDown")
        page.wait_for_url(lambda url: asked(url) == asked(address(dry.inputs)))
        expect(selected).to_have_text(dry.label)

    for pause in (50, 300, 450):
        lab.choose("preset", "dry")
        page.wait_for_timeout(pause)
        lab.toggle("paged")
        page.wait_for_timeout(1000)
        expect(lab.switch("paged"), str(pause)).not_to_be_checked()
        expect(lab.switch("enable_prefix_caching"), str(pause)).to_be_disabled()
        page.wait_for_url(lambda url: asked(url) == asked(address(replace(dry.inputs, paged=False))))
        expect(selected).to_have_count(0)

    lab.toggle("paged")
    page.wait_for_timeout(100)
    lab.choose("preset", "users")
    page.wait_for_timeout(1000)
    expect(selected).to_have_text(users.label)
    expect(lab.switch("enable_prefix_caching")).to_be_enabled()
    page.wait_for_url(lambda url: asked(url) == {})


def test_a_mistake_is_explained_and_a_run_can_be_stopped(visit: Visit) -> None:
    lab = visit()
    page = opened(lab, num_blocks=8)
    lab.run()
    expect(lab.problem).to_contain_text("block")
    page.wait_for_selector("#stop[aria-disabled=true]")
    opened(lab, **FEW | {"tokens": 256, "num_blocks": 200, "sequences": 32, "max_num_seqs": 1})
    lab.run()
    page.wait_for_selector(".chips[data-state=waiting] .chip")
    page.wait_for_function("document.querySelectorAll('.chips[data-state=done] .chip').length > 0", timeout=60_000)
    lab.press("Escape")
    page.wait_for_selector("body:not(.running)")
    page.wait_for_selector(".chip[data-state=cancelled]")
    lab.press("ArrowLeft")
    expect(lab.say).to_have_text(STOPPED)


@pytest.mark.parametrize("size", [(1280, 720), (390, 844)], ids=["projector", "phone"])
def test_the_page_fits_the_screen(visit: Visit, size: tuple[int, int]) -> None:
    wide, high = size
    lab = visit(viewport={"width": wide, "height": high}, is_mobile=wide < 800, has_touch=wide < 800)
    page = opened(lab, **FEW | {"num_blocks": 512, "sequences": 24, "tokens": 12})
    ran(lab)
    lab.scrub(4)
    across, down = page.evaluate(OVERFLOW)
    assert (across, page.evaluate("innerWidth")) == (0, wide)
    assert page.locator(".squares .square").count() == 512
    if wide > 800:
        assert down == 0
        cut = page.evaluate(
            """async () => {
              const box = document.querySelector(".squares");
              const cut = [];
              for (let width = 300.6; width > 250; width -= 3) {
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
    page.tap(".choose button[data-for=speed]")
    page.wait_for_selector("[data-chart=speed] .main-svg")
    page.tap(".chips[data-state=running] .chip >> nth=1")
    page.wait_for_selector(".square.chosen")
    boxes = [button.bounding_box() for button in page.locator(".transport .buttons button").all()]
    assert min(min(box["width"], box["height"]) for box in boxes) >= 40
