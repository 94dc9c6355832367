"""The player: any instant of a run, scrubbed or played, the same in every view, without asking the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import expect

from lab import EngineConfig, Run
from lab.trace.events import StepTimed
from tests.browser.conftest import Lab
from tests.visualize.conftest import script
from tests.visualize.picture import Picture
from visualize.reduce.frames import Frame, Reducer

Visit = Callable[..., Lab]
LINK = {"seed": 3, "max_tokens": 40}


def finished(visit: Visit, **context: Any) -> Lab:
    lab = visit(**context).open(**LINK)
    lab.run()
    lab.finish()
    return lab


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
    shown = {name: value for name, value in seen["numbers"].items() if name in picture.readouts}
    assert shown == {name: row[0] for name, row in picture.readouts.items()}
    assert lab.page.inner_text("[data-chart=blocks] .caption") == picture.captions["blocks"]


def test_every_key_and_the_bar_move_every_view_together_and_the_browsers_own_are_left_to_it(
    visit: Visit, tmp_path: Path
) -> None:
    lab = finished(visit)
    frames = frames_of(lab, tmp_path)
    last = len(frames) - 1
    assert_shows(lab, frames, last)
    asked = []
    lab.page.on("request", lambda request: asked.append(request.url))
    lab.page.keyboard.press("Home")
    assert_shows(lab, frames, 0)
    for seq in (1, 2, 3):
        lab.page.keyboard.press("ArrowRight")
        assert_shows(lab, frames, seq)
    lab.page.keyboard.press("End")
    lab.page.keyboard.press("ArrowLeft")
    assert_shows(lab, frames, last - 1)
    for seq in (last // 2, last // 4, last - 3):
        lab.page.locator(".bar").fill(str(seq))
        assert_shows(lab, frames, seq)
    lab.page.locator(".bar").press("ArrowLeft")
    assert_shows(lab, frames, last - 4)
    lab.page.click("[data-do=on]")
    assert_shows(lab, frames, last - 3)
    assert asked == []

    page = lab.page
    page.click(".story h2")
    page.keyboard.press("End")
    lab.wait_for_instant(last)
    page.evaluate("window.kept = []; window.addEventListener('keydown', (e) => kept.push([e.key, e.defaultPrevented]))")
    for key in ("Shift+ArrowRight", "Shift+End", "Alt+ArrowRight", "Control+Home"):
        page.keyboard.press(key)
        page.locator(".story .text").press(key)
    assert all(not prevented for _, prevented in page.evaluate("kept")), page.evaluate("kept")
    page.evaluate("document.dispatchEvent(new Event('keydown'))")  # as when autofill fills in a form: it has no key
    page.evaluate("document.activeElement.blur()")

    last = lab.instant
    page.keyboard.press("Home")
    lab.wait_for_instant(0)
    assert page.inner_text(".place").startswith("start / ")
    page.wait_for_function("location.search.includes('step=start')")
    page.keyboard.press("ArrowRight")
    lab.wait_for_instant(1)
    assert page.inner_text(".place").startswith("pass 0 / ")
    page.wait_for_function("location.search.includes('step=0')")
    page.select_option(".speed", label="1/100")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.down("Space")
    for _ in range(4):
        page.keyboard.down("Space")  # the key repeats while held
    page.keyboard.up("Space")
    page.wait_for_selector("[data-do=play][aria-label=Pause]")
    page.keyboard.press("Space")
    page.keyboard.press("End")
    lab.wait_for_instant(last)

    # Where the focus is on a control, keys reach the player that the control does not use itself.
    records, folded = page.locator("#logprobs input:checked"), page.locator("#pool > button")
    format, gamma = page.locator("#kv-dtype input:checked"), page.locator("#num-speculative-tokens input[type=range]")
    records.click()
    for control, key, seq in (
        (records, "ArrowLeft", last - 1),
        (records, "Home", 0),
        (records, "Space", 0),
        (records, "ArrowRight", 1),
        (folded, "ArrowRight", 2),
        (folded, "Space", 2),
        (format, "Home", 0),
        (gamma, "End", 0),
        (page.locator("#prompt textarea"), "ArrowRight", 0),
        (page.locator("#openings input"), "End", 0),
        (page.locator(".speed"), "End", 0),
        (format, "End", last),
        (format, "ArrowRight", last),
        (page.locator("#run"), "Home", 0),
    ):
        control.press(key)
        lab.wait_for_instant(seq)
    assert not records.is_checked()
    assert folded.get_attribute("aria-expanded") == "true"
    assert gamma.input_value() == "8"
    assert page.is_checked("#kv-dtype label:has-text('INT8') input")
    gamma.press("Space")
    page.wait_for_selector("[data-do=play][aria-label=Pause]")


DRAWN = """() => {
  const stage = document.querySelector(".stage");
  let began;
  window.drawn = [];
  addEventListener("keydown", () => (began = performance.now()), { once: true, capture: true });
  new MutationObserver(() => drawn.push([Number(stage.dataset.seq), performance.now() - began])).observe(
    stage, { attributeFilter: ["data-seq"] });
}"""
"""Records each instant drawn from the next key press on, with the milliseconds since then."""


def test_a_run_plays_slowed_down_and_a_round_loops(visit: Visit, tmp_path: Path) -> None:
    lab = slowly(visit, tmp_path, 10)
    times = [frame["t_ms"] for frame in recorded(tmp_path)]
    last = len(times) - 1
    lab.page.select_option(".speed", label="1/20")
    lab.listen()
    lab.page.evaluate(DRAWN)
    lab.page.keyboard.press("Space")
    lab.page.wait_for_function("drawn.some(([seq]) => seq >= 7)")
    assert lab.heard == []
    lab.page.keyboard.press("Space")
    steps, ms = zip(*lab.page.evaluate("drawn"), strict=True)
    place = next(place for place, seq in enumerate(steps) if seq >= 7)
    began, ended = times[steps[place - 1] + 1], times[steps[place]]
    assert began - 3 < ms[place] / 20 < ended + 75, "a twentieth of the speed, but for the time drawing takes"
    assert list(steps) == sorted(steps)
    assert len(set(steps[:place])) >= 3
    lab.page.wait_for_selector("[data-do=play][aria-label=Play]")
    paused = lab.instant
    assert paused < last
    lab.page.wait_for_timeout(200)
    assert lab.instant == paused

    lab.page.select_option(".speed", label="true speed")
    lab.page.locator(".bar").fill("6")
    lab.wait_for_instant(6)
    assert lab.heard[-1][1] == lab.seen()["say"], "an instant chosen by hand is announced"
    lab.page.keyboard.press("l")
    lab.page.wait_for_selector("[data-do=loop][aria-pressed=true]")
    for seq in (5, 6, 5):
        lab.wait_for_instant(seq)
    assert lab.heard == []
    lab.page.keyboard.press("ArrowRight")
    for seq in (6, 7):
        lab.wait_for_instant(seq)
    lab.page.keyboard.press("l")
    lab.wait_for_instant(7)
    lab.page.wait_for_timeout(800)
    assert lab.instant == 7
    lab.page.keyboard.press("Space")
    lab.wait_for_instant(last)
    assert "▶\u00a0plays it" in lab.heard[-1][1], "the end is announced"


def slowly(visit: Visit, folder: Path, ms: float) -> Lab:
    """A run whose passes took this many milliseconds each, shown at its start."""
    lab, events = visit().open(), script(EngineConfig(speculative="draft"), max_tokens=80)
    each = ms * max(event.step for event in events if isinstance(event, StepTimed)) / events[-1].t_ms
    Run([replace(event, t_ms=each * event.t_ms) for event in events]).save(folder / "slow.json")
    lab.reopen(folder / "slow.json")
    lab.page.wait_for_selector("#device:has-text('recorded')")
    lab.finish()
    lab.page.click(".story h2")  # away from the button that opens files
    lab.page.select_option(".speed", label="true speed")
    lab.page.keyboard.press("Home")
    lab.wait_for_instant(0)
    return lab


def recorded(folder: Path) -> list[Frame]:
    """The frames of that run."""
    return Reducer(recorded=True).feed(Run.load(folder / "slow.json").events)


UNVEILED = """() => {
  const stage = document.querySelector(".stage");
  const shown = (name) => {
    const plot = document.querySelector(`[data-chart=${name}] .plot`);
    const { range, _length: width } = plot._fullLayout.xaxis;
    const clip = plot.querySelector("clipPath.plotclip rect").getAttribute("width");
    const until = range[0] + (range[1] - range[0]) * clip / width;
    const passes = plot.data.flatMap(({ x }) => x ?? []);
    return { until, range, passes: [...new Set(passes)].filter((pass) => pass > range[0]) };
  };
  const charts = { rounds: shown("rounds"), timing: shown("timing") };
  return { seq: Number(stage.dataset.seq), late: stage.ariaBusy === "true", charts };
}"""
STAGE, SEQ = 'document.querySelector(".stage")', '{ attributeFilter: ["data-seq"] }'


def test_future_passes_stay_veiled_while_a_run_plays(visit: Visit, tmp_path: Path) -> None:
    lab = slowly(visit, tmp_path, 150)
    frames = recorded(tmp_path)
    steps = [frame["step"] for frame in frames]
    lab.page.evaluate(f"views = []; new MutationObserver(() => views.push(({UNVEILED})())).observe({STAGE}, {SEQ})")
    for _ in range(5):  # on a busy machine, charts are late in most of a play's frames
        lab.page.keyboard.press("Space")
        lab.page.evaluate(f"views.push(({UNVEILED})())")
        lab.page.wait_for_selector("[data-do=play][aria-label=Pause]")
        lab.page.wait_for_selector("[data-do=play][aria-label=Play]", timeout=60_000)
        views = [view for view in lab.page.evaluate("views") if view["seq"] < len(frames) - 2]
        seen = {view["seq"]: view["charts"] for view in views if not view["late"]}  # without charts still to be drawn
        if enough := len({steps[seq] for seq in seen} - {-1, 0}) >= 8:
            break
    assert enough
    ahead = [seq for seq, view in seen.items() if 0 < steps[seq] < max(view["rounds"]["passes"], default=0)]
    assert ahead, "a window's passes are drawn at once, veiled"
    held = {"rounds": 0, "timing": 0}
    for seq, view in seen.items():
        for name, chart in view.items():
            first, last = chart["range"]
            if not seq:  # before the prefill
                assert all(step > chart["until"] for step in chart["passes"]), name
            if not first < steps[seq] < last:
                continue  # one chart is drawn at a time: the other shows the previous window a tick longer
            held[name] += 1
            happened = [step for step in range(steps[seq] + 1) if step > first]
            assert set(happened) <= set(chart["passes"]), (seq, name)
            assert abs(chart["until"] - (steps[seq] + 0.5)) < 0.01, (seq, name)
    assert min(held.values()) >= len(seen) / 4
    assert_shows(lab, frames, len(frames) - 1)
    for chart in lab.page.evaluate(UNVEILED)["charts"].values():
        assert chart["until"] == chart["range"][1]
    lab.page.locator(".bar").fill("6")
    assert_shows(lab, frames, 6)


SQUARE = """(pass) => {
  const plot = document.querySelector("[data-chart=rounds] .plot");
  const { xaxis, yaxis } = plot._fullLayout;
  const { left, top } = plot.getBoundingClientRect();
  const [from, to] = xaxis.range;
  const at = Number(document.querySelector(".stage").dataset.seq);
  return {
    at,
    from,
    to,
    place: pass && [left + xaxis._offset + xaxis.l2p(pass), top + yaxis._offset + yaxis.l2p(0)],
    said: plot.querySelectorAll(".hovertext").length,
    glyphs: plot._fullData.some(({ mode }) => mode?.includes("text")),
    shapes: new Set(plot.data.map(({ marker }) => marker.symbol)).size,
  };
}"""


def test_veiled_passes_cannot_be_hovered_or_clicked(visit: Visit, tmp_path: Path) -> None:
    lab = slowly(visit, tmp_path, 300)
    steps = [frame["step"] for frame in recorded(tmp_path)]
    lab.page.keyboard.press("Space")
    lab.page.wait_for_function("document.querySelector('.stage').dataset.seq > 3")
    told = {}
    for name in ("shown", "veiled"):
        now = lab.page.evaluate(SQUARE)
        step = steps[now["at"]]
        square = step - 1 if name == "shown" else int(now["to"] - 0.5)
        lab.page.mouse.move(*lab.page.evaluate(SQUARE, square)["place"])
        said = lab.page.locator("[data-chart=rounds] .hovertext")
        expect(said).to_have_count(1 if name == "shown" else 0)
        lab.page.wait_for_timeout(100)  # Plotly checks the pointer at most twenty times a second
        after = lab.page.evaluate(SQUARE)
        told[name] = after["said"]
        assert (now["from"] < square <= steps[after["at"]]) == (name == "shown")
    assert told == {"shown": 1, "veiled": 0}
    now = lab.page.evaluate(SQUARE)
    square = int(now["to"] - 0.5)
    assert steps[now["at"]] < square - 1
    lab.page.mouse.click(*lab.page.evaluate(SQUARE.replace("l2p(0)", "l2p(1)"), square)["place"])  # its first guess
    assert lab.page.get_attribute("[data-do=play]", "aria-label") == "Pause"
    assert lab.page.is_hidden(".verdict")


def test_glyphs_are_drawn_only_when_passes_go_by_slowly_enough(visit: Visit, tmp_path: Path) -> None:
    lab = slowly(visit, tmp_path, 40)
    for label, glyphs in (("true speed", False), ("1/10", True)):
        lab.page.select_option(".speed", label=label)
        lab.page.keyboard.press("Home")
        lab.page.wait_for_selector(".stage[data-seq='0'][aria-busy=false]")
        lab.page.keyboard.press("Space")
        drawn = "document.querySelector('[data-chart=rounds] .plot').data.some(({ x }) => x?.length)"  # not yet at 0
        playing = "document.querySelector('.stage').dataset.seq > 3 && document.querySelector('[aria-label=Pause]')"
        now = lab.page.wait_for_function(f"() => {playing} && {drawn} && ({SQUARE})()").json_value()
        assert now["glyphs"] == glyphs
        assert now["shapes"] == (2 if glyphs else 5)  # full and hollow squares; without glyphs, a shape for each state
        lab.page.keyboard.press("Space")
        lab.page.wait_for_selector("[data-do=play][aria-label=Play]")
    lab.page.wait_for_function(f"({SQUARE})().glyphs")  # at rest


def test_a_live_run_is_followed_until_the_user_scrubs_back(visit: Visit) -> None:
    lab = visit().open(max_tokens=900, speculative="off", kv_cache=0, paged=0)
    live = lab.page.locator("[data-do=live]")
    lab.listen()
    lab.run()
    lab.page.wait_for_function("heard.length >= 3", polling=200, timeout=60_000)
    assert all(later - before > 1900 for (before, _), (later, _) in pairwise(lab.heard[1:]))  # after the first wait
    assert not live.is_visible()
    lab.page.locator(".story h2").click()  # away from the Run button
    lab.page.keyboard.press("ArrowLeft")
    lab.page.wait_for_selector("[data-do=live].offered")
    there = lab.instant
    seen = lab.seen()
    lab.page.wait_for_function("there => document.querySelector('.bar').max > there + 2", arg=there)
    assert lab.running
    assert lab.instant == there
    assert lab.seen() == seen
    live.click()
    lab.page.wait_for_function("there => Number(document.querySelector('.stage').dataset.seq) > there + 2", arg=there)
    lab.wait_for_tokens(sum(lab.seen()["tokens"].values()) + 5)
    lab.page.keyboard.press("Escape")
    lab.finish()
    assert "it was stopped." in lab.seen()["say"]


def test_the_end_says_what_to_do_next_and_a_link_opens_the_run_at_its_step(visit: Visit) -> None:
    lab = finished(visit)
    assert "were given back" in lab.seen()["say"]
    assert lab.seen()["say"].endswith("▶\u00a0plays it 20 times slower.")
    lab.page.select_option(".speed", label="true speed")
    lab.page.wait_for_selector(".say:has-text('▶\u00a0plays it at its true speed.')")
    assert lab.page.inner_text("[data-chart=blocks] .caption").endswith(" given back (pale)")  # where the blocks went
    lab.page.click(".story h2")  # away from the list of speeds
    lab.page.keyboard.press("Home")
    lab.wait_for_instant(0)
    assert lab.seen()["say"].endswith("Nothing has been computed yet.")
    assert lab.seen()["pass"] is None
    lab.page.keyboard.press("ArrowRight")
    lab.wait_for_instant(1)
    seen = lab.seen()
    assert seen["say"].startswith("Prefill: ")
    assert seen["pass"] == 0
    assert seen["timing"]["target"] == seen["timing"]["prefill"] == seen["rounds"]["plain"] == 1
    lab.page.keyboard.press("End")
    lab.page.wait_for_function("!location.search.includes('step')")

    assert "step" not in parse_qs(urlsplit(lab.page.url).query)
    lab.page.locator(".bar").fill("9")
    lab.wait_for_instant(9)
    lab.page.wait_for_function("location.search.includes('step=8')")  # the head comes before step 0
    lab.page.select_option(".speed", label="1/5")
    lab.page.wait_for_function("location.search.includes('speed=0.2')")
    seen, link = lab.seen(), lab.page.url
    lab.page.keyboard.press("Home")
    lab.page.wait_for_function("location.search.includes('step=start')")
    start = lab.page.url
    lab.toggle("paged")  # the step belonged to other settings
    lab.page.wait_for_function(
        "location.search.includes('paged=0') && !['step', 'run'].some((name) => location.search.includes(name))"
    )
    lab.page.locator(".bar").fill("7")  # still the run of the settings before
    lab.wait_for_instant(7)
    lab.page.locator(".token.accepted").first.click()
    lab.page.wait_for_selector(".verdict:not([hidden])")
    lab.page.wait_for_timeout(400)
    assert not {"step", "guess"} & set(parse_qs(urlsplit(lab.page.url).query))
    lab.page.close()
    other = visit()
    assert parse_qs(urlsplit(link).query)["run"] == ["1"]  # the link repeats the run
    other.page.goto(link)
    other.ready()
    other.wait_for_instant(9)
    other.finish()
    again = other.seen()
    for name in ("text", "say", "rounds", "blocks"):
        assert again[name] == seen[name]
    assert other.instant == 9
    assert other.page.input_value(".speed") == "0.2"
    other.page.goto(start)
    other.ready()
    other.finish()
    other.wait_for_instant(0)
    other.run()
    other.finish()
    assert other.seen()["say"].startswith("Finished")
    other.page.wait_for_function("!location.search.includes('step')")


def test_a_link_keeps_its_step_until_the_run_is_made_or_settings_are_changed(visit: Visit) -> None:
    lab = visit().open(**LINK, paged=1, step=4, guess="4.1")  # a default may be spelled out
    lab.page.wait_for_timeout(500)
    assert parse_qs(urlsplit(lab.page.url).query)["step"] == ["4"]
    lab.run()
    lab.finish()
    assert lab.seen()["say"].startswith("Round 4:")
    asked = parse_qs(urlsplit(lab.page.url).query)
    assert (asked["step"], asked["guess"], asked["run"]) == (["4"], ["4.1"], ["1"])

    lab.open(**LINK, step=4, guess="4.1")
    lab.toggle("paged")
    lab.page.wait_for_function("!['step', 'guess'].some((name) => location.search.includes(name))")
    lab.run()
    lab.finish()
    assert lab.seen()["say"].startswith("Finished")
    assert lab.page.is_hidden(".verdict")


def test_keys_reach_the_player_after_run_and_arrows_start_at_a_clicked_token(visit: Visit) -> None:
    lab = visit().open(**LINK, speed=0.01)
    lab.run()
    lab.finish()
    run = lab.page.get_attribute(".stage", "data-run")
    lab.page.keyboard.press("Space")
    lab.page.wait_for_selector("[data-do=play][aria-label=Pause]")
    assert lab.page.get_attribute(".stage", "data-run") == run
    lab.page.click("[data-do=play]")
    lab.page.keyboard.press("Space")
    lab.page.wait_for_selector("[data-do=play][aria-label=Pause]")
    lab.page.keyboard.press("L")
    lab.page.wait_for_selector("[data-do=loop][aria-pressed=true]")
    lab.page.keyboard.press("L")
    lab.page.keyboard.press("End")  # stopped, with every token shown
    lab.page.wait_for_selector("[data-do=play][aria-label=Play]")
    lab.page.locator(".token").nth(9).click()
    lab.page.locator(".story .text").press("ArrowRight")
    assert lab.page.get_attribute(".token.focused", "data-index") == "10"


def test_every_button_has_a_label_and_is_large_enough_to_tap(visit: Visit) -> None:
    lab = visit(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True, reduced_motion="reduce")
    lab.open(**LINK)
    for button in lab.page.locator("[data-do]").all():
        assert button.get_attribute("aria-label")
        assert button.is_disabled()
    lab.run()
    lab.finish()
    boxes = [button.bounding_box() for button in lab.page.locator(".transport .buttons button").all()]
    assert min(min(box["width"], box["height"]) for box in boxes) >= 40
    lab.page.tap("[data-do=first]")
    lab.wait_for_instant(0)
    lab.page.tap("[data-do=on]")
    lab.wait_for_instant(1)
    assert lab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
