"""The Pool page: the real engine decodes many sequences, and all squares, chips and texts show the same instant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from lab.trace.run import read_json
from tests.browser.pages import CUT, HOSTILE, OVERFLOW, STOPPED, Lab, Visit, as_on_a_phone, is_harmless, notices
from tests.browser.test_accessibility import at_rest
from tests.visualize.picture import Picture
from visualize.charts import pool_charts as figures
from visualize.charts.base import empty
from visualize.pages.pool.pool_file import of
from visualize.pages.pool.pool_frames import BatchReducer
from visualize.pool_inputs import PRESETS

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
    chips = lab.page.eval_on_selector_all(
        ".chip",
        """all => all.map((chip) => [Number(chip.dataset.sequence), chip.closest(".chips").dataset.state,
          chip.querySelector(".count").textContent])""",
    )
    states = ["done" if state == "finished" else state for state in rows["state"]]
    counts = [f"{a}/{b}" for a, b in zip(rows["tokens"], rows["wanted"], strict=True)]
    assert sorted(chips) == sorted([n, *row] for n, *row in zip(rows["number"], states, counts, strict=True))
    assert lab.say.inner_text().startswith(picture.say)  # at the end, the player adds what Play does
    captions = {name: lab.page.inner_text(f"[data-chart={name}] .caption") for name in picture.captions}
    assert captions == picture.captions
    return picture


def test_preemption_is_shown_step_by_step_and_the_saved_run_again(visit: Visit, tmp_path: Path) -> None:
    lab = visit()
    page = opened(lab, **FEW)
    ran(lab)
    file = lab.save("json", tmp_path)
    frames = frames_of(file)
    last = len(frames) - 1
    assert assert_shows(lab, frames, last).readouts["finished"][0] == "6 / 6"
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
    lab.scrub(last - 6)
    lab.pace("real")
    lab.press("Space")
    assert_shows(lab, frames, last)
    assert requests == []

    lab.scrub(preempted)
    chip = page.locator(".chips[data-state=running] .chip").first
    chip.focus()
    page.wait_for_selector(".square.chosen")
    text = "".join(
        token["text"] for frame in frames[: preempted + 1] for token in frame.get("tokens", []) if token["owner"] == 0
    )
    assert page.inner_text(".wrote").endswith(text.rstrip())
    lab.press("ArrowLeft")
    lab.wait_for_instant(preempted - 1)

    lab.press("End")  # the last sequence is chosen, and stays so when its chip is recreated
    lab.wait_for_instant(last)
    page.locator(".chip[data-sequence='5']").click()
    page.fill("#sequences input[type=number]", "4")  # another run does not have the chosen sequence
    ran(lab)
    expect(page.locator(".chip")).to_have_count(4)  # those of the new run
    assert page.locator(".stage.choosing, .square.chosen, .chip.chosen, .chip[aria-pressed=true]").count() == 0
    the_first_sequence_is_seen_alone_in_the_lab(lab, tmp_path / "another")
    a_saved_run_is_reopened_and_a_file_of_another_kind_is_refused(lab, file, tmp_path)


def the_first_sequence_is_seen_alone_in_the_lab(lab: Lab, folder: Path) -> None:
    frames = frames_of(lab.save("json", folder), recorded=True)
    lab.page.click(".against")
    lab.page.wait_for_selector("#stage .token:not(.prompt)")
    lab.leave_controls()
    lab.press("End")
    lab.finish()
    alone = "".join(lab.written.all_text_contents())
    texts = (token["text"] for frame in frames for token in frame.get("tokens", []) if token["owner"] == 0)
    assert alone == "".join(texts).replace(" ", "")  # they are between the tokens


def a_saved_run_is_reopened_and_a_file_of_another_kind_is_refused(lab: Lab, file: Path, tmp_path: Path) -> None:
    page = opened(lab)
    lab.slow(400)
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"format": "decode-lab-run", "version": 1, "events": []}', "utf-8")
    lab.reopen(file)
    page.wait_for_timeout(500)  # uploaded, and not yet answered: the next one is not lost
    lab.reopen(wrong)
    expect(lab.problem).to_be_visible()
    assert page.inner_text("[data-key=finished] .value") == "6 / 6"  # the run shown before stays
    expect(page.locator(".against")).to_be_hidden()  # whose settings are not known
    assert "float32" in page.inner_text("#device")


def test_a_shared_system_prompt_is_found_and_hostile_text_stays_text(visit: Visit) -> None:
    lab = visit()
    page = opened(lab, sequences=4, every=3, lengths="equal", tokens=24, system=f"{HOSTILE} {'Long ago. ' * 12}")
    ran(lab)
    assert int(page.inner_text("[data-key=found] .value")) >= 3 * 16
    lab.scrub(12)  # all four have arrived, and none has finished
    shared = page.locator(".squares .shared")
    assert shared.first.inner_text() == "×4"
    shared.first.hover()
    page.wait_for_selector(".chip.chosen")
    assert all(str(sequence) in shared.first.get_attribute("title") for sequence in range(4))
    is_harmless(page)
    lab.toggle("enable_prefix_caching")
    lab.until_asked(enable_prefix_caching=0)
    ran(lab)
    expect(page.locator("[data-key=found] .value")).to_have_text("0")
    assert page.inner_text("[data-key=found] .was")


def test_a_mistake_is_explained_presets_set_the_link_and_the_link_restores_the_settings(visit: Visit) -> None:
    lab = visit()
    page = opened(lab, sequences=0, num_blocks=8)
    expect(notices(page)).to_contain_text("sequences")
    lab.run()
    expect(lab.problem).to_contain_text("block")
    page.wait_for_selector("#stop[aria-disabled=true]")
    selected = page.locator("#preset label.selected")
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


def test_a_run_can_be_stopped_and_the_page_fits_the_screen(visit: Visit) -> None:
    lab = visit(color_scheme="dark")
    page = opened(lab, **FEW | {"tokens": 256, "num_blocks": 512, "sequences": 24, "max_num_seqs": 1})
    lab.run()
    page.wait_for_selector(".chips[data-state=waiting] .chip")
    page.wait_for_function("document.querySelectorAll('.chips[data-state=done] .chip').length > 0")
    lab.press("Escape")
    page.wait_for_selector("body:not(.running)")
    page.wait_for_selector(".chip[data-state=cancelled]")
    lab.press("ArrowLeft")
    expect(lab.say).to_have_text(STOPPED)

    lab.scrub(4)
    assert page.evaluate(OVERFLOW) == [0, 0]
    assert page.locator(".squares .square").count() == 512
    page.set_viewport_size({"width": 1024, "height": 768})
    page.wait_for_function(f"{OVERFLOW}.join() === '0,0'")
    page.wait_for_function("document.querySelector('.say').getBoundingClientRect().bottom <= innerHeight")
    assert page.eval_on_selector_all(".charts .caption", CUT) == []
    assert page.evaluate("(box => box.scrollHeight <= box.clientHeight)(document.querySelector('.squares'))")
    as_on_a_phone(page)
    assert page.locator(".charts .plot:visible").count() == 1
    page.click(".choose button[data-for=speed]")
    page.wait_for_selector("[data-chart=speed] .main-svg")
    page.click(".chips[data-state=running] .chip")
    page.wait_for_selector(".square.chosen")
    boxes = [button.bounding_box() for button in page.locator(".transport .buttons button").all()]
    assert min(min(box["width"], box["height"]) for box in boxes) >= 40
    at_rest(page)
