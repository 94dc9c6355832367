"""The player: any instant of a run, scrubbed or played, the same in every view, without asking the server."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from playwright.sync_api import expect

from lab import EngineConfig, Run
from lab.trace.events import StepTimed
from tests.browser.pages import ENDLESS, STOPPED, Lab, Visit
from tests.visualize.conftest import script
from tests.visualize.picture import Picture
from visualize.reduce.frames import Frame, Reducer
from visualize.states import STATES

LINK = {"seed": 3, "max_tokens": 40}


def frames_of(lab: Lab, folder: Path) -> list[Frame]:
    """The frames of the run on the stage, rebuilt from its file."""
    return Reducer().feed(Run.load(lab.save("json", folder)).events)


def assert_shows(lab: Lab, frames: list[Frame], seq: int) -> None:
    """The stage shows what the frames up to ``seq`` say: text, charts, readouts and narration."""
    lab.wait_for_instant(seq)
    picture = Picture()
    for frame in frames[: seq + 1]:
        picture.apply(frame)
    seen = lab.seen()
    words = [*picture.head["prompt"], *(token["text"] for token in picture.tokens)]
    assert seen["text"].replace("\u2009", "") == "|".join(word.lstrip(" ") for word in words)
    assert seen["say"].startswith(picture.say)  # at the end, the player adds what Play does
    for name in ("rounds", "blocks", "timing"):
        drawn = list(seen[name].values())
        assert drawn == [sum(y is not None for y in trace["y"]) for trace in picture.columns[name]], name
    rows = picture.columns["pool"][0]
    counts = {state: rows.get("state", []).count(state) for state in ("live", "cached", "free")}
    assert seen["squares"] == counts | {"fill": sum(fill > 0 for fill in rows.get("fill", []))}
    shown = {name: value for name, value in seen["numbers"].items() if name in picture.readouts}
    assert shown == {name: row[0] for name, row in picture.readouts.items()}
    assert lab.page.inner_text("[data-chart=blocks] .caption") == picture.captions["blocks"]


def test_every_key_and_the_bar_move_every_view_together_and_the_browsers_own_are_left_to_it(
    visit: Visit, tmp_path: Path
) -> None:
    lab = visit().ran(**LINK)
    page = lab.page
    frames = frames_of(lab, tmp_path)
    last = len(frames) - 1
    assert_shows(lab, frames, last)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    for keys, seq in ((("Home",), 0), (("Shift+ArrowRight",) * 2, 2), (("End", "Shift+ArrowLeft"), last - 1)):
        lab.press(*keys)
        assert_shows(lab, frames, seq)
    page.locator(".bar").fill(str(last // 4))
    assert_shows(lab, frames, last // 4)
    page.locator(".bar").press("Shift+ArrowLeft")
    lab.wait_for_instant(last // 4 - 1)
    page.click("[data-do=on]")
    page.wait_for_selector(".stages .now:text-is('Draft')")
    assert lab.instant == last // 4 - 1, "the text waits for the end of the round"
    assert requests == []

    lab.leave_controls()
    lab.press("End")
    lab.wait_for_instant(last)
    page.evaluate("window.kept = []; window.addEventListener('keydown', (e) => kept.push([e.key, e.defaultPrevented]))")
    for key in ("Shift+Home", "Alt+ArrowRight", "Control+Home"):
        page.keyboard.press(key)
    assert all(not prevented for _, prevented in page.evaluate("kept")), page.evaluate("kept")
    page.evaluate("document.dispatchEvent(new Event('keydown'))")  # as when autofill fills in a form: it has no key
    lab.press("Home")
    lab.until_asked(step="start")
    lab.press("Shift+ArrowRight")
    lab.until_asked(step=0)
    lab.pace("explain")
    page.evaluate("document.activeElement.blur()")
    for _ in range(5):
        page.keyboard.down("Space")  # the key repeats while held
    page.keyboard.up("Space")
    lab.plays()
    lab.press("Space", "End")
    lab.wait_for_instant(last)

    # Where the focus is on a control, keys reach the player that the control does not use itself.
    switch, folded = lab.switch("adaptive_window"), page.locator("#pool > button")
    format = lab.control("kv_dtype").locator("input:checked")
    gamma = lab.control("num_speculative_tokens").locator("input[type=range]")
    switch.click()
    for control, key, seq in (
        (switch, "Home", 0),
        (switch, "Space", 0),
        (folded, "Shift+ArrowRight", 1),
        (folded, "Space", 1),
        (format, "Home", 0),
        (gamma, "End", 0),
        (lab.prompt, "Shift+ArrowRight", 0),
        (page.locator(".speed"), "End", 0),
        (format, "End", last),
        (format, "Shift+ArrowRight", last),
    ):
        control.press(key)
        lab.wait_for_instant(seq)
    assert not switch.is_checked()
    assert folded.get_attribute("aria-expanded") == "true"
    assert gamma.input_value() == "8"
    expect(lab.option("kv_dtype", "int8")).to_be_checked()
    page.locator(".token").nth(9).click()
    page.locator(".story .text").press("ArrowRight")
    assert page.get_attribute(".token.focused", "data-index") == "10"


def slowly(visit: Visit, folder: Path, ms: float) -> tuple[Lab, list[Frame]]:
    """A run whose passes took this many milliseconds each, shown at its start; and its frames."""
    lab, events = visit().open(), script(EngineConfig(speculative="draft"), max_tokens=60)
    each = ms * max(event.step for event in events if isinstance(event, StepTimed)) / events[-1].t_ms
    run = Run([replace(event, t_ms=each * event.t_ms) for event in events])
    run.save(folder / "slow.json")
    lab.reopen(folder / "slow.json")
    lab.page.wait_for_function("document.querySelector('.bar').max > 9")
    lab.finish()
    lab.leave_controls()
    lab.pace("real")
    lab.press("Home")
    lab.wait_for_instant(0)
    return lab, Reducer(recorded=True).feed(Run.load(folder / "slow.json").events)


DRAWN = """() => {
  const stage = document.querySelector(".stage");
  window.drawn = [];
  new MutationObserver(() => drawn.push(Number(stage.dataset.seq))).observe(stage, { attributeFilter: ["data-seq"] });
}"""
"""Records each instant that is drawn from now on."""


CLIPPED = """() => {
  const label = document.querySelector("[data-chart=timing] .textpoint");
  return getComputedStyle(label).visibility !== "visible" || label.closest("[clip-path]") !== null;
}"""
UNVEILED = """(calm) => {
  const stage = document.querySelector(".stage");
  const charts = ["rounds", "timing"].map((name) => {
    const plot = document.querySelector(`[data-chart=${name}] .plot`);
    const { range, _length: width } = plot._fullLayout.xaxis;
    const clip = plot.querySelector("clipPath.plotclip rect").getAttribute("width");
    const passes = plot.data.flatMap(({ x }) => x ?? []);
    return { until: range[0] + (range[1] - range[0]) * clip / width, end: range[1], ahead: Math.max(...passes) };
  });
  const { _fullData: drawn } = document.querySelector("[data-chart=rounds] .plot");
  const glyphs = drawn.some(({ mode }) => mode?.includes("text"));
  const seen = { seq: Number(stage.dataset.seq), charts, glyphs };
  return seen.seq > 3 && !(calm && stage.ariaBusy === "true") && seen;
}"""


def test_a_run_plays_slowed_down_and_a_round_loops(visit: Visit, tmp_path: Path) -> None:
    lab, frames = slowly(visit, tmp_path, 40)
    last = len(frames) - 1
    lab.pace("fast")
    lab.listen()
    lab.page.evaluate(DRAWN)
    began = lab.page.evaluate("performance.now()")
    lab.press("Space")
    lab.page.wait_for_function("drawn.some((seq) => seq >= 7)")
    took = lab.page.evaluate("performance.now()") - began
    assert lab.heard == []
    lab.press("Space")
    lab.plays(False)
    steps = lab.page.evaluate("drawn")
    assert steps == sorted(steps)
    assert len(set(steps)) >= 3, "it is seen at several instants on its way"
    assert took > 6 * 200, "five rounds per second"
    paused = lab.instant
    assert paused < last
    speeds = []
    for _ in range(3):
        lab.press("r")
        speeds.append(lab.page.input_value(".speed"))
    assert speeds == ["real", "fast", "real"], "real time is one key away"
    lab.scrub(6)
    assert lab.heard[-1][1] == lab.seen()["say"], "an instant chosen by hand is announced"
    lab.press("l")
    lab.page.wait_for_selector("[data-do=loop][aria-pressed=true]")
    for seq in (5, 6, 5):
        lab.wait_for_instant(seq)
    assert lab.heard == []
    lab.press("l")
    lab.page.wait_for_selector("[data-do=loop][aria-pressed=false]")
    lab.scrub(7)
    lab.press("Space")
    lab.wait_for_instant(last)
    assert lab.heard, "the end is announced"

    # Passes to come stay veiled, and glyphs are drawn only when passes go by slowly.
    for pace, glyphs in (("real", False), ("slow", True)):
        lab.pace(pace)
        lab.press("Home")
        lab.page.wait_for_selector(".stage[data-seq='0'][aria-busy=false]")
        lab.press("Space")
        now = lab.page.wait_for_function(UNVEILED, arg=glyphs).json_value()
        assert now["glyphs"] == glyphs
        lab.press("Space")
        lab.plays(False)
    assert lab.page.evaluate(CLIPPED) is False, "the prefill's time is told whole, however far the passes are"
    step = frames[now["seq"]]["step"]
    for chart in now["charts"]:
        assert abs(chart["until"] - (step + 0.5)) < 0.01
        assert chart["ahead"] > step, "a window's passes are drawn at once, veiled"
    lab.press("End")
    lab.finish()
    assert_shows(lab, frames, len(frames) - 1)
    now = lab.page.evaluate(UNVEILED, True)
    assert now["glyphs"], "at rest"
    assert all(chart["until"] == chart["end"] for chart in now["charts"])


def test_a_live_run_is_followed_until_the_user_scrubs_back(visit: Visit) -> None:
    lab = visit().open(**ENDLESS)
    live = lab.page.locator("[data-do=live]")
    lab.listen()
    lab.run()
    lab.page.wait_for_function("heard.length >= 3", polling=200)
    assert all(later - before > 1900 for (before, _), (later, _) in pairwise(lab.heard[1:]))  # after the first wait
    assert not live.is_visible()
    lab.leave_controls()
    lab.press("Shift+ArrowLeft")
    lab.page.wait_for_selector("[data-do=live].offered")
    there = lab.instant
    seen = lab.seen()
    lab.page.wait_for_function("there => document.querySelector('.bar').max > there + 2", arg=there)
    assert lab.running
    assert lab.instant == there
    assert lab.seen() == seen
    live.click()
    lab.page.wait_for_function("there => Number(document.querySelector('.stage').dataset.seq) > there + 2", arg=there)
    lab.press("Escape")
    lab.finish()
    expect(lab.say).to_have_text(STOPPED)


def test_a_link_opens_the_run_at_its_step_and_speed_until_settings_are_changed(visit: Visit) -> None:
    lab = visit().ran(**LINK)
    lab.leave_controls()
    lab.press("Home", "Shift+ArrowRight")
    lab.wait_for_instant(1)
    seen = lab.seen()
    assert seen["pass"] == 0
    assert seen["timing"]["target"] == seen["timing"]["prefill"] == seen["rounds"][STATES["plain"].label] == 1
    lab.press("End")
    lab.until_asked(step=None)
    lab.scrub(9)
    lab.until_asked(step=8)  # the head comes before step 0
    lab.pace("fast")
    lab.until_asked(speed="fast")
    seen = lab.seen()
    lab.page.reload()
    lab.ready().wait_for_instant(9)
    lab.finish()
    again = lab.seen()
    assert [again[name] for name in ("text", "say", "rounds")] == [seen[name] for name in ("text", "say", "rounds")]
    assert lab.page.input_value(".speed") == "fast"
    lab.toggle("paged")  # the step belonged to other settings
    lab.until_asked(paged=0, step=None, run=None)
    lab.scrub(7)  # still the run of the settings before
    lab.tokens("accepted").first.click()
    expect(lab.verdict).to_be_visible()
    lab.page.wait_for_timeout(300)
    assert not {"step", "guess"} & lab.link.keys()

    lab.open(**LINK, paged=1, step=4, guess="4.1")  # a default may be spelled out; nothing runs yet
    assert lab.link["step"] == "4"
    lab.ran()
    assert (lab.link["step"], lab.link["guess"], lab.link["run"]) == ("4", "4.1", "1")
    expect(lab.verdict).to_be_visible()
    lab.toggle("paged")
    lab.until_asked(step=None, guess=None)
    lab.ran()
    assert lab.instant == lab.last
    assert lab.verdict.is_hidden()
