"""A saved run: reopened on the page, and played from an exported file without a server or network."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from lab import EngineConfig, Run
from lab.trace.events import Admitted, Event, Preempted, StepTimed
from tests.browser.conftest import Lab
from tests.browser.test_verdict import OPENED
from tests.visualize.conftest import script
from visualize.jobs.downloads import page as as_page
from visualize.jobs.run_store import MAX_RUN_FILE
from visualize.recordings import runs
from visualize.reduce.frames import Reducer

Visit = Callable[..., Lab]
HOSTILE = (
    "<img src=x onerror=window.pwned=1></script><script>window.pwned=1</script>${window.pwned=1}\u202e 👩‍👩‍👧 "
    + "a" * 300
)


@pytest.fixture(scope="module")
def offline(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """A browser without a network. A page of it stays open to keep its process, and thus the scripts of saved pages."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 720})
    empty = tmp_path_factory.mktemp("keeper") / "empty.html"
    empty.write_text("<!doctype html>")
    context.new_page().goto(empty.as_uri())
    yield context
    context.close()


@pytest.fixture
def alone(offline: BrowserContext) -> Iterator[Page]:
    """A page without a network, which may log no error."""
    page, complaints = offline.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    page.close()
    assert complaints == []


def test_an_exported_page_opens_from_disk_without_a_network_and_plays_and_shows_verdicts(
    visit: Visit, alone: Page, tmp_path: Path
) -> None:
    lab = visit().open(prompt=HOSTILE, max_tokens=40, seed=3, logprobs=5)
    lab.run()
    lab.finish()
    end = lab.seen()
    file = lab.save("html", tmp_path)
    lab.page.locator(".token.recovered").first.click()
    verdict = lab.page.evaluate(OPENED)
    page, complaints = alone, []
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("request", lambda request: complaints.append(request.url) if request.url != file.as_uri() else None)
    page.goto(file.as_uri())
    own = Lab(page, "")
    own.wait_for_instant(lab.instant)
    seen = own.seen()
    for name in ("text", "tokens", "numbers", "rounds", "blocks", "timing", "say"):
        assert seen[name] == end[name], name
    assert re.search(r"recorded on .* CPU cores? \(", page.inner_text(".notice"))
    assert not page.is_visible(".save")
    page.locator(".token.recovered").first.click()
    assert page.evaluate(OPENED) == verdict is not None
    page.click("[data-verdict=close]")
    assert page.evaluate(OPENED) is None
    page.click(".story h2")  # away from the tokens, which take the key
    page.keyboard.press("Home")
    own.wait_for_instant(0)
    page.select_option(".speed", label="true speed")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Space")
    until = time.monotonic() + 60  # a run recorded on a busy machine is slow
    while own.instant < 3 and time.monotonic() < until:  # the page's policy allows no wait_for_function
        page.wait_for_timeout(50)
    assert own.instant >= 3
    page.hover(".token >> nth=1")
    for chart in ("rounds", "timing", "blocks"):
        box = page.locator(f"[data-chart={chart}] .plot").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.22, box["y"] + box["height"] * 0.8)
        page.wait_for_timeout(60)
    assert page.evaluate("window.pwned") is None
    assert page.query_selector(".stage img") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [text for text in complaints if not text.startswith(("data:", "blob:"))] == []


def test_a_run_from_a_file_can_be_made_again(visit: Visit, tmp_path: Path) -> None:
    lab = visit().open(speculative="off", kv_dtype="int8", max_tokens=20, seed=3)
    lab.run()
    lab.finish()
    assert lab.page.is_hidden(".use"), "one's own settings are on the controls"
    end, file = lab.seen(), lab.save("json", tmp_path)

    lab.open()
    lab.reopen(file)
    lab.page.wait_for_selector(".use")
    shown = lab.page.get_attribute(".stage", "data-run")
    settings = "KV format INT8, paged blocks on, speculation Off, blocks in the pool 128, temperature 0.8, seed 3"
    assert lab.page.inner_text(".compared") == f"{settings}, max tokens 20"
    lab.page.click(".use")
    lab.page.wait_for_selector("#speculative label.selected:has-text('Off')")
    lab.page.wait_for_selector("#kv-dtype label.selected:has-text('INT8')")
    lab.page.wait_for_function("location.search.includes('max_tokens=20')")
    assert lab.page.get_attribute(".stage", "data-run") == shown
    lab.run()
    lab.finish()
    assert lab.page.is_hidden(".use")
    assert lab.seen()["text"] == end["text"]
    assert Run.load(lab.save("json", tmp_path)).config == Run.load(file).config


def test_what_a_file_calls_its_models_is_no_markup_and_of_two_files_opened_at_once_the_second_is_shown(
    visit: Visit, tmp_path: Path
) -> None:
    started, *rest = script(EngineConfig(), max_tokens=6)
    started = replace(started, target="<b>mine</b>", sampling=started.sampling | {"stop": ["<i>end</i>"]})
    Run([started, *rest]).save(tmp_path / "run.json")
    lab = visit().open()
    lab.reopen(tmp_path / "run.json")
    lab.page.click(".use")
    lab.page.wait_for_selector(".toast-wrap:has-text('cannot be set here')")
    said = lab.page.inner_text(".toast-wrap")
    assert "models cannot be chosen here: <b>mine</b>" in said
    assert "stop strings cannot be set here: “<i>end</i>”" in said

    files = [tmp_path / f"{n}.json" for n in (1, 2)]
    for file, (name, kept) in zip(files, runs().items(), strict=False):
        file.write_bytes(kept.read_bytes())
        assert name.endswith(f"prompt {file.stem}")
    lab.slow(400)
    lab.reopen(files[0])
    lab.page.wait_for_timeout(500)  # uploaded, and not yet answered
    lab.reopen(files[1])
    first = Run.load(files[1]).prompt.split()[1]
    lab.page.wait_for_selector(f".token >> nth=1 >> text='{first}'")


def test_a_run_recorded_on_a_gpu_is_opened_without_one(visit: Visit) -> None:
    lab = visit().open(max_tokens=5)
    name, file = next((name, file) for name, file in runs().items() if "Draft" in name)
    run = Run.load(file)
    lab.page.evaluate(
        """() => {
          window.shown = [];
          const note = () => shown.push(document.querySelector(".stage").dataset.run);
          new MutationObserver(note).observe(document.querySelector(".stage"), { attributeFilter: ["data-run"] });
        }"""
    )
    lab.page.focus("#replays input")
    for _ in range(1 + list(runs()).index(name)):
        lab.page.keyboard.press("ArrowDown")
    lab.page.keyboard.press("Enter")
    for again in (False, True):
        if again:
            lab.run()
            lab.finish()
            assert lab.page.inner_text(".notice") == ""
            lab.pick("replays", name)
        lab.page.wait_for_selector(f".notice:text-is('recorded on {run.started.hardware}')")
        lab.finish()
        assert lab.page.inner_text("#device").startswith("recorded on NVIDIA H100 80GB HBM3")
        assert lab.seen()["pass"] == sum(isinstance(event, StepTimed) for event in run.events) - 1  # 0 is the prefill
        assert lab.seen()["say"].startswith("Finished with 48 tokens")
        expect(lab.page.locator("#replays input")).to_have_value("GPU recordings")
    assert len(lab.page.evaluate("shown")) == 3, "each choice opens the run once"
    lab.slow(400)
    last = list(runs())[-1]
    for chosen in (name, last):  # the second before the first is there
        lab.pick("replays", chosen)
    lab.page.wait_for_selector(f".token >> nth=1 >> text='{Run.load(runs()[last]).prompt.split()[1]}'")
    assert "recorded" not in lab.page.url


def test_a_saved_run_is_reopened_and_a_bad_file_changes_nothing(visit: Visit, tmp_path: Path) -> None:
    lab = visit().open(max_tokens=40, seed=3)
    lab.run()
    lab.finish()
    end = lab.seen()
    file = lab.save("json", tmp_path)
    run = Run.load(file)
    assert lab.save("csv", tmp_path).read_text("utf-8").count("\n") == end["pass"] + 2  # plus header and prefill

    damaged = tmp_path / "damaged.json"
    for text in ("no JSON", '{"format": "other"}', run.to_json()[:5000]):
        damaged.write_text(text, "utf-8")
        lab.reopen(damaged)
        lab.page.wait_for_selector(".say.problem")
        assert "not a run's file" in lab.seen()["say"]
        assert "Save › Run" in lab.seen()["say"]
        assert lab.seen()["text"] == end["text"]
        lab.page.click("[data-do=first]")
        lab.page.click("[data-do=last]")
        lab.page.wait_for_selector(".say:not(.problem)")
    assert Run.load(lab.save("json", tmp_path)).events == run.events
    assert "run=1" in lab.page.url

    part = tmp_path / "part.json"  # as if it had been saved while the run was going on
    Run(run.events[: len(run.events) // 2]).save(part)
    other = visit().open()
    other.reopen(part)
    other.page.wait_for_selector(".say:has-text('its file ends here')")
    other.finish()
    other.page.click("[data-do=first]")
    other.page.click("[data-do=last]")
    other.finish()
    assert 0 < other.seen()["pass"] < end["pass"]
    Run(run.events[:1]).save(part)
    other.reopen(part)
    expect(other.page.locator(".place")).to_have_text("start / 0 · 0 ms")

    large = tmp_path / "large.json"
    large.write_bytes(b" " * (MAX_RUN_FILE + 1))
    lab.reopen(large)
    lab.page.wait_for_selector(".toast-body")
    assert "exceed the maximum allowed size of 16" in lab.page.inner_text(".toast-wrap")
    assert lab.seen()["text"] == end["text"]

    other.reopen(file)
    other.page.wait_for_selector(".say:has-text('Finished with 40 tokens')")
    other.finish()
    assert "recorded on " in other.page.inner_text(".notice")
    again = other.seen()
    for name in ("text", "tokens", "numbers", "rounds", "blocks", "timing", "say"):
        assert again[name] == end[name], name
    assert "recorded on cpu" in other.page.inner_text("#device")
    assert Run.load(other.save("json", tmp_path)).events == run.events
    other.page.keyboard.press("Home")
    other.page.wait_for_timeout(400)
    assert "step" not in other.page.url


def test_a_file_that_arrives_during_a_run_does_not_end_it(visit: Visit, tmp_path: Path) -> None:
    lab = visit().open(max_tokens=900, kernels="reference")
    file = tmp_path / "run.json"
    Run(script(EngineConfig())).save(file)
    held: list[Route] = []
    lab.page.route("**/gradio_api/upload*", lambda route: held.append(route))
    lab.reopen(file)
    lab.run()
    lab.wait_for_tokens(3)
    held.pop().continue_()
    lab.page.wait_for_selector(".say.problem:has-text('A run began meanwhile')")
    shown = lab.seen()["pass"]
    lab.page.wait_for_function("shown => document.querySelector('.stage').dataset.seq > shown + 20", arg=shown)
    assert "A run began meanwhile" in lab.seen()["say"]  # long enough to be read
    assert lab.running
    lab.page.click("#stop")
    lab.finish()


def test_the_address_has_the_seed_of_the_run_that_is_shown(visit: Visit, tmp_path: Path) -> None:
    lab = visit().open(seed="", max_tokens=5)
    seeds = set()
    for _ in range(3):
        lab.run()
        lab.finish()
        seed = Run.load(lab.save("json", tmp_path)).started.sampling["seed"]
        assert f"seed={seed}&" in f"{lab.page.url}&"
        assert f"seed={seed}&" in f"{lab.page.get_attribute('.against', 'href')}&"
        seeds.add(seed)
    assert len(seeds) == 3


def preempted(step: int) -> list[Event]:
    """A run that shares its pool from the start, and loses its blocks after a step."""
    events: list[Event] = []
    for event in script(EngineConfig(speculative="draft")):
        again = Admitted(
            t_ms=event.t_ms, owner=0, running=2, waiting=0, cached_tokens=0, live_blocks=(), cached_blocks=()
        )
        events.append(again if isinstance(event, Admitted) else event)
        if isinstance(event, StepTimed) and event.step == step:
            events += [Preempted(t_ms=event.t_ms, tokens=9), again]
    return events


def test_a_link_to_a_saved_page_opens_each_frame_of_a_step_and_a_tokens_line_goes_with_it(
    alone: Page, tmp_path: Path
) -> None:
    events = preempted(5)
    frames = Reducer().feed(events)
    (first, *later) = [frame["seq"] for frame in frames if frame["step"] == 5]
    assert [frames[seq]["say"].split()[0] for seq in (first, *later)] == ["Round", "Preempted:", "Admitted"]
    file, lab = tmp_path / "run.html", Lab(alone, "")
    file.write_text(as_page(Run(events)), "utf-8")
    alone.goto(f"{file.as_uri()}?step=5")
    lab.wait_for_instant(first)
    places = ((0, "start"), (1, "start.1"), (2, "0"), (later[0], "5.1"), (later[1], "5.2"), (later[1] + 1, "6"))
    for seq, step in places:
        alone.locator(".bar").fill(str(seq))
        lab.wait_for_instant(seq)
        expect(alone).to_have_url(re.compile(rf"\?step={re.escape(step)}$"))
        expect(alone.locator(".place")).to_contain_text("start / " if seq < 2 else f"pass {step.split('.')[0]} / ")
        if step in ("start.1", "5.1"):
            alone.reload()
            lab.wait_for_instant(seq)
    alone.locator(".bar").fill(str(len(frames) - 1))
    expect(alone).to_have_url(file.as_uri())

    alone.focus(".text")
    alone.keyboard.press("End")
    expect(alone.locator(".tip")).to_be_visible()
    alone.keyboard.press("Space")  # plays from the beginning: that token is yet to come, and its line goes
    expect(alone.locator(".tip")).to_be_hidden(timeout=2000)

    for step, seq in (("5.9", later[1]), ("999", len(frames) - 2)):  # of another run
        alone.goto(f"{file.as_uri()}?step={step}")
        lab.wait_for_instant(seq)


def test_a_link_opens_a_run_that_was_saved_while_it_was_going_on(alone: Page, tmp_path: Path) -> None:
    events = preempted(5)
    events = events[: 1 + next(i for i, event in enumerate(events) if isinstance(event, StepTimed) and event.step == 9)]
    file, lab = tmp_path / "part.html", Lab(alone, "")
    file.write_text(as_page(Run(events)), "utf-8")
    last = len(Reducer().feed(events)) - 1
    alone.goto(f"{file.as_uri()}?step=9")
    lab.wait_for_instant(last)
    alone.keyboard.press("ArrowLeft")
    expect(alone).to_have_url(re.compile(r"\?step=8$"))
    alone.goto(f"{file.as_uri()}?guess=3.1")
    expect(alone.locator(".verdict h2")).to_have_text("Round 3, guess 1")
    expect(alone.locator(".rule")).to_contain_text("This run recorded no distributions.")
    assert not re.search("run again|Run it again", alone.inner_text(".rule")), "there is nothing to run it with"


def test_a_saved_page_within_another_page_opens_verdicts(alone: Page, tmp_path: Path) -> None:
    """Its address cannot be written there."""
    file = tmp_path / "around.html"
    inside = escape(as_page(Run(preempted(5))))
    file.write_text(f"<iframe width=1200 height=700 srcdoc='{inside}'></iframe>", "utf-8")
    alone.goto(file.as_uri())
    inner = alone.frame_locator("iframe")
    inner.locator(".token.recovered").first.click()
    expect(inner.locator(".verdict h2")).to_contain_text("guess")
