"""A saved run: reopened on the page, and played from an exported file without a server or network."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape
from pathlib import Path

from playwright.sync_api import Page, Route, expect

from lab import EngineConfig, Run
from lab.trace.events import StepTimed
from tests.browser.pages import HOSTILE, LONG, Lab, Visit, notices
from tests.browser.test_verdict import OPENED
from tests.visualize.conftest import script
from tests.waiting import until
from visualize.jobs.downloads import page as as_page
from visualize.recorded_results import runs

SEEN = ("text", "tokens", "numbers", "rounds", "blocks", "timing", "say")


def test_a_run_is_saved_reopened_made_again_and_a_bad_file_changes_nothing(
    visit: Visit, alone: Page, tmp_path: Path
) -> None:
    lab = visit().ran(prompt=f"{HOSTILE} 👩‍👩‍👧 {'a' * 200}", max_tokens=40, seed=3, logprobs=5, kv_dtype="int8")
    assert lab.page.is_hidden(".use"), "one's own settings are on the controls"
    end = lab.seen()
    file, exported = lab.save("json", tmp_path), lab.save("html", tmp_path)
    run = Run.load(file)
    assert lab.save("csv", tmp_path).read_text("utf-8").count("\n") == end["pass"] + 2  # plus header and prefill
    lab.tokens("recovered").first.click()
    verdict = lab.page.evaluate(OPENED)
    lab.press("Escape")

    damaged = tmp_path / "damaged.json"
    for text in ("no JSON", '{"format": "other"}', run.to_json()[:5000]):
        damaged.write_text(text, "utf-8")
        lab.reopen(damaged)
        expect(lab.problem).to_be_visible()
        assert lab.seen()["text"] == end["text"]
        lab.page.click("[data-do=first]")
        lab.page.click("[data-do=last]")
        expect(lab.problem).to_have_count(0)
    assert Run.load(lab.save("json", tmp_path)).events == run.events
    assert lab.link["run"] == "1"

    shown = lab.page.get_attribute(".stage", "data-run")
    lab.open()
    lab.reopen(file)
    lab.page.wait_for_selector(".use")
    lab.finish()
    again = lab.seen()
    assert {name: again[name] for name in SEEN} == {name: end[name] for name in SEEN}
    assert Run.load(lab.save("json", tmp_path)).events == run.events
    assert lab.page.get_attribute(".stage", "data-run") != shown
    lab.page.click(".use")
    expect(lab.option("kv_dtype", "int8")).to_be_checked()
    lab.until_asked(max_tokens=40, kv_dtype="int8", seed=3)
    last = lab.ran().instant
    assert lab.page.is_hidden(".use")
    assert lab.seen()["text"] == end["text"]

    # The exported page opens from disk without a network, plays and shows verdicts.
    page, own = alone, Lab(alone, "")
    page.goto(exported.as_uri())
    own.wait_for_instant(last)
    seen = own.seen()
    assert {name: seen[name] for name in SEEN} == {name: end[name] for name in SEEN}
    assert page.inner_text(".notice")  # where it was recorded
    assert not page.is_visible(".save")
    own.tokens("recovered").first.click()
    assert page.evaluate(OPENED) == verdict is not None
    page.click("[data-verdict=close]")
    own.leave_controls()
    own.press("Home")
    own.wait_for_instant(0)
    own.pace(1)
    page.evaluate("document.activeElement.blur()")
    own.press("Space")
    until(lambda: page.wait_for_timeout(20) or own.instant >= 3, 60)  # its policy allows no wait_for_function
    page.hover(".token >> nth=1")
    assert page.evaluate("window.pwned") is None
    assert page.query_selector(".stage img") is None


def test_a_part_of_a_run_and_names_of_models_as_markup_are_shown_and_of_two_files_the_second(
    visit: Visit, tmp_path: Path
) -> None:
    started, *rest = script(EngineConfig(speculative="draft"))
    lab, part = visit().open(), tmp_path / "part.json"
    started = replace(started, target="<b>mine</b>", sampling=started.sampling | {"stop": ["<i>end</i>"]})
    Run([started, *rest[: len(rest) // 2]]).save(part)  # as if it had been saved while the run was going on
    lab.reopen(part)
    lab.page.wait_for_function("document.querySelector('.bar').max > 2")
    lab.finish()
    assert lab.seen()["pass"] > 0
    lab.page.click(".use")
    for quoted in ("<b>mine</b>", "<i>end</i>"):
        expect(notices(lab.page)).to_contain_text(quoted)
    files = list(runs().values())[:2]
    lab.slow(400)
    lab.reopen(files[0])
    lab.page.wait_for_timeout(500)  # uploaded, and not yet answered
    lab.reopen(files[1])
    lab.page.wait_for_selector(f".token >> nth=1 >> text='{Run.load(files[1]).prompt.split()[1]}'")


def test_a_run_recorded_on_a_gpu_is_opened_without_one(visit: Visit) -> None:
    lab = visit().open(max_tokens=5)
    name, file = next((name, file) for name, file in runs().items() if "Draft" in name)
    run = Run.load(file)
    lab.pick("replays", name)
    expect(lab.page.locator(".notice")).to_contain_text(run.started.hardware)
    lab.finish()
    assert lab.seen()["pass"] == sum(isinstance(event, StepTimed) for event in run.events) - 1  # 0 is the prefill
    lab.came_to_its_end(48)
    assert not {"run", "step"} & lab.link.keys()


def test_a_file_that_arrives_during_a_run_does_not_end_it(visit: Visit, tmp_path: Path) -> None:
    lab = visit().open(**LONG, seed="")
    file = tmp_path / "run.json"
    Run(script(EngineConfig())).save(file)
    held: list[Route] = []
    lab.page.route("**/gradio_api/upload*", lambda route: held.append(route))
    lab.reopen(file)
    lab.run()
    lab.wait_for_tokens(3)
    held.pop().continue_()
    expect(lab.problem).to_be_visible()
    assert lab.running
    lab.page.click("#stop")
    lab.finish()
    seed = lab.link["seed"]  # that of the run that is shown
    assert f"seed={seed}&" in f"{lab.page.get_attribute('.against', 'href')}&"
    assert str(Run.load(lab.save("json", tmp_path)).started.sampling["seed"]) == seed


def test_a_link_to_a_saved_page_opens_its_step_also_within_another_page(alone: Page, tmp_path: Path) -> None:
    run = Run(script(EngineConfig(speculative="draft")))
    file, lab = tmp_path / "run.html", Lab(alone, "")
    file.write_text(as_page(run), "utf-8")
    alone.goto(f"{file.as_uri()}?step=5")
    lab.wait_for_instant(6)  # the head comes before step 0
    for seq, step in ((0, "start"), (2, "1")):
        lab.scrub(seq)
        expect(alone).to_have_url(re.compile(rf"\?step={step}$"))
    alone.focus(".text")
    lab.press("End")
    expect(lab.tip).to_be_visible()
    lab.press("Space")  # plays from the beginning: that token is yet to come, and its line goes
    expect(lab.tip).to_be_hidden()
    alone.goto(f"{file.as_uri()}?guess=3.1")
    expect(lab.verdict).to_be_visible()
    assert alone.locator(".rule a").count() == 0, "there is nothing to run it with"

    around = tmp_path / "around.html"  # within another page, where its address cannot be written
    around.write_text(f"<iframe width=1200 height=700 srcdoc='{escape(as_page(run))}'></iframe>", "utf-8")
    alone.goto(around.as_uri())
    inner = alone.frame_locator("iframe")
    inner.locator(".token.recovered").first.click()
    expect(inner.locator(".verdict")).to_be_visible()
