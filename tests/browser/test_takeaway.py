"""A saved run: reopened on the page, and played from an exported file without a server or network."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from html import escape
from pathlib import Path

from playwright.sync_api import Page, Route, expect

from lab import EngineConfig, Run
from lab.trace.events import Admitted, BlockAllocated, BlockFreed, Event, Preempted, StepTimed
from tests.browser.pages import HOSTILE, LONG, Lab, notices
from tests.browser.test_verdict import OPENED, drawn
from tests.visualize.conftest import script
from tests.waiting import until
from visualize.jobs.downloads import page as as_page
from visualize.jobs.run_store import MAX_RUN_FILE
from visualize.reduce.frames import Reducer

Visit = Callable[..., Lab]
PIXELS = """async ([type, data]) => {
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  const pictures = [];
  if (type === "image/svg+xml") {
    const image = Object.assign(new Image(), { src: `data:${type};base64,${data}` });
    await image.decode();
    pictures.push(image);
  } else {
    const decoder = new ImageDecoder({ type, data: bytes });
    await decoder.tracks.ready;
    await decoder.completed;
    const last = decoder.tracks.selectedTrack.frameCount - 1;
    const chosen = [...new Set([0, Math.floor(last / 2), last])];
    for (const frameIndex of chosen) pictures.push((await decoder.decode({ frameIndex })).image);
  }
  return pictures.map((picture) => {
    const [width, height] = [picture.displayWidth ?? picture.width, picture.displayHeight ?? picture.height];
    const surface = new OffscreenCanvas(width, height).getContext("2d");
    surface.drawImage(picture, 0, 0);
    const seen = new Uint32Array(surface.getImageData(0, 0, width, height).data.buffer);
    return [width, new Set(seen).size, seen.reduce((sum, pixel, at) => (sum + pixel * (at % 9973)) % 2147483647, 0)];
  });
}"""
"""Of each picture of a file (of a film the first, the middle and the last): its width, how many colours, and a sum."""
SEEN = ("text", "tokens", "numbers", "rounds", "blocks", "timing", "say")


def test_charts_and_the_round_are_saved_as_pictures_and_the_run_as_a_film(visit: Visit, tmp_path: Path) -> None:
    lab = visit().ran(max_tokens=12, seed=3)
    page = lab.page

    def saved(part: str, kind: str) -> list[list[int]]:
        page.click(f"{part} .take")
        with page.expect_download() as download:
            page.click(f".take-menu button:has-text('{kind}')")
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        mime = {"PNG": "image/png", "SVG": "image/svg+xml", "WebP": "image/webp"}[kind]
        return page.evaluate(PIXELS, [mime, b64encode(path.read_bytes()).decode()])

    for part in ("[data-chart=timing]", ".film"):
        (wide, colours, _), (_, drawn, _) = *saved(part, "PNG"), *saved(part, "SVG")
        assert wide > page.locator(part).bounding_box()["width"]
        assert min(colours, drawn) > 20
    lab.pace("fast")
    film = saved(".film", "WebP")
    assert len({total for *_, total in film}) == 3, "its first, middle and last pictures differ"
    assert min(colours for _, colours, _ in film) > 20
    assert page.locator(".film").count() == 1, "what it was drawn from is gone"
    lab.came_to_its_end(12)  # and nothing else has moved


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
    verdict = drawn(lab.page, OPENED)
    lab.press("Escape")

    damaged = tmp_path / "damaged.json"
    damaged.write_text(run.to_json()[:5000], "utf-8")
    lab.reopen(damaged)
    expect(lab.problem).to_be_visible()
    assert lab.seen()["text"] == end["text"]
    lab.page.click("[data-do=first]")
    lab.page.click("[data-do=last]")
    expect(lab.problem).to_have_count(0)
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (MAX_RUN_FILE + 1))
    lab.reopen(large)
    expect(notices(lab.page)).to_contain_text("16")  # MB at most
    assert Run.load(lab.save("json", tmp_path)).events == run.events
    assert lab.link["run"] == "1"

    other = visit().open()
    other.reopen(file)
    other.page.wait_for_selector(".use")
    other.finish()
    again = other.seen()
    assert {name: again[name] for name in SEEN} == {name: end[name] for name in SEEN}
    assert Run.load(other.save("json", tmp_path)).events == run.events
    shown = other.page.get_attribute(".stage", "data-run")
    other.page.click(".use")
    expect(other.option("kv_dtype", "int8")).to_be_checked()
    other.until_asked(max_tokens=40, kv_dtype="int8", seed=3)
    assert other.page.get_attribute(".stage", "data-run") == shown
    other.ran()
    assert other.page.is_hidden(".use")
    assert other.seen()["text"] == end["text"]

    # The exported page opens from disk without a network, plays and shows verdicts.
    page, complaints = alone, []
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("request", lambda request: complaints.append(request.url) if request.url != exported.as_uri() else None)
    page.goto(exported.as_uri())
    own = Lab(page, "")
    own.wait_for_instant(lab.instant)
    seen = own.seen()
    assert {name: seen[name] for name in SEEN} == {name: end[name] for name in SEEN}
    assert page.inner_text(".notice")  # where it was recorded
    assert not page.is_visible(".save")
    own.tokens("recovered").first.click()
    assert drawn(page, OPENED) == verdict is not None
    page.click("[data-verdict=close]")
    own.leave_controls()
    own.press("Home")
    own.wait_for_instant(0)
    own.pace("real")
    page.evaluate("document.activeElement.blur()")
    own.press("Space")
    until(lambda: page.wait_for_timeout(20) or own.instant >= 3, 60)  # its policy allows no wait_for_function
    page.hover(".token >> nth=1")
    for chart in ("rounds", "timing", "blocks"):
        box = page.locator(f"[data-chart={chart}] .plot").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.22, box["y"] + box["height"] * 0.8)
    assert page.evaluate("window.pwned") is None
    assert page.query_selector(".stage img") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [text for text in complaints if not text.startswith(("data:", "blob:"))] == []


def preempted(step: int) -> list[Event]:
    """A run that shares its pool from the start, and loses its blocks after a step."""
    events: list[Event] = []
    held: dict[int, Event] = {}
    for event in script(EngineConfig(speculative="draft")):
        again = Admitted(
            t_ms=event.t_ms, owner=0, running=2, waiting=0, cached_tokens=0, live_blocks=(), cached_blocks=()
        )
        events.append(again if isinstance(event, Admitted) else event)
        if isinstance(event, BlockAllocated):
            held[event.block] = event
        elif isinstance(event, BlockFreed):
            del held[event.block]
        if isinstance(event, StepTimed) and event.step == step:
            events += [Preempted(t_ms=event.t_ms, tokens=9), again, *held.values()]
    return events


def test_a_link_to_a_saved_page_opens_each_frame_of_a_step(alone: Page, tmp_path: Path) -> None:
    events = preempted(5)
    frames = Reducer().feed(events)
    (first, *later) = [frame["seq"] for frame in frames if frame["step"] == 5]
    assert len(later) == 2
    file, lab = tmp_path / "run.html", Lab(alone, "")
    file.write_text(as_page(Run(events)), "utf-8")
    alone.goto(f"{file.as_uri()}?step=5")
    lab.wait_for_instant(first)
    places = ((0, "start"), (1, "start.1"), (2, "0"), (later[0], "5.1"), (later[1], "5.2"), (later[1] + 1, "6"))
    for seq, step in places:
        lab.scrub(seq)
        expect(alone).to_have_url(re.compile(rf"\?step={re.escape(step)}$"))
        if step == "5.1":
            alone.reload()
            lab.wait_for_instant(seq)
    lab.scrub(len(frames) - 1)
    expect(alone).to_have_url(file.as_uri())

    alone.focus(".text")
    lab.press("End")
    expect(lab.tip).to_be_visible()
    lab.press("Space")  # plays from the beginning: that token is yet to come, and its line goes
    expect(lab.tip).to_be_hidden()
    alone.goto(f"{file.as_uri()}?step=5.9&guess=3.1")  # of another run
    lab.wait_for_instant(later[1])
    expect(lab.verdict).to_be_visible()
    assert alone.locator(".rule a").count() == 0, "there is nothing to run it with"

    events = events[: 1 + next(i for i, event in enumerate(events) if isinstance(event, StepTimed) and event.step == 9)]
    file.write_text(as_page(Run(events)), "utf-8")  # saved while it was going on
    alone.goto(f"{file.as_uri()}?step=9")
    lab.wait_for_instant(len(Reducer().feed(events)) - 1)
    lab.press("Shift+ArrowLeft")
    expect(alone).to_have_url(re.compile(r"\?step=8$"))

    around = tmp_path / "around.html"  # within another page, where its address cannot be written
    around.write_text(f"<iframe width=1200 height=700 srcdoc='{escape(as_page(Run(preempted(5))))}'></iframe>", "utf-8")
    alone.goto(around.as_uri())
    inner = alone.frame_locator("iframe")
    inner.locator(".token.recovered").first.click()
    expect(inner.locator(".verdict")).to_be_visible()


def test_a_file_that_arrives_during_a_run_does_not_end_it(visit: Visit, tmp_path: Path) -> None:
    lab = visit().open(**LONG)
    file = tmp_path / "run.json"
    Run(script(EngineConfig())).save(file)
    held: list[Route] = []
    lab.page.route("**/gradio_api/upload*", lambda route: held.append(route))
    lab.reopen(file)
    lab.run()
    lab.wait_for_tokens(3)
    held.pop().continue_()
    expect(lab.problem).to_be_visible()
    said, shown = lab.problem.inner_text(), lab.instant
    lab.page.wait_for_function("shown => document.querySelector('.stage').dataset.seq > shown + 9", arg=shown)
    assert lab.problem.inner_text() == said  # long enough to be read
    assert lab.running
    lab.page.click("#stop")
    lab.finish()
