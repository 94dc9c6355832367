"""What watching costs: ``python -m docs.measure_watching``. Prints a table, and with ``--json FILE`` writes it as JSON.

The app runs in its own process, a headless Chromium watches it, and both share the machine
with the engine, as on a laptop. Goals are printed beside the figures; none is a test, because
the result depends on the machine.
"""

from __future__ import annotations

import argparse
import bisect
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, sync_playwright

from app import Engines  # before anything that imports torch: this leaves a core to the server
from lab import Run
from lab.measure.measuring import shuffled
from lab.trace.events import Committed, StepTimed
from lab.trace.metrics import measure
from lab.util.machine_info import describe_machine
from tests.browser.conftest import QUIET, Lab, chromium, serving
from visualize.jobs.job_queue import JobQueue
from visualize.jobs.live_run import LiveRun
from visualize.run_settings import Settings

TOKENS = 500
RUNS = 6
"""Runs watched: each may be over in half a second."""
MOVED = 2**26
"""Bytes that the neighbouring process copies at a time: more than a CPU cache holds."""
SETTLED = 1500
"""Milliseconds after which a browser has finished opening a page."""
# Waited for within the page: Playwright's own waiting polls on every animation frame, which makes the browser draw
# frames that nothing else asked for.
COUNT = """() => {
  window.drawn = [];
  window.firstToken = 0;
  const stage = document.querySelector(".stage");
  let instant = stage.dataset.seq;
  new MutationObserver(() => {
    if (stage.dataset.seq !== instant) window.drawn.push(performance.now()); // what shows no other instant is no frame
    instant = stage.dataset.seq;
    window.firstToken ||= document.querySelector(".token:not(.prompt)") ? performance.now() : 0;
  }).observe(stage, { attributes: true, attributeFilter: ["data-seq"] });
}"""
RUN = """() => new Promise((over) => {
  const clicked = performance.now();
  let began = 0;
  new MutationObserver(() => {
    if (document.body.classList.contains("running")) began ||= performance.now();
    else if (began) over({ clicked, began, ended: performance.now() });
  }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  document.querySelector("#run").click();
})"""
PLAY = """() => new Promise((over) => {
  const stage = document.querySelector(".stage");
  new MutationObserver(() => stage.dataset.seq === document.querySelector(".bar").max && over()).observe(
    stage, { attributes: true, attributeFilter: ["data-seq"] });
  document.querySelector("[data-do=play]").click();
})"""

SAMPLE = """() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const plots = ["rounds", "blocks", "timing"].map((name) => document.querySelector(`[data-chart=${name}] .plot`));
  window.redrawn = plots.map(() => []);
  plots.forEach((plot, i) => plot.addEventListener("drawn", () => redrawn[i].push(performance.now())));
  const last = (plot) => Math.max(...(plot.data ?? []).map(({ x }) => x?.at(-1) ?? -1));
  const newest = (plot) => (plot === plots[1] ? last(plot) : Math.round(last(plot))); // x: seconds, or a bar's side
  const say = document.querySelector(".say");
  window.samples = [];
  setInterval(() => {
    samples.push([performance.now(), all(".token:not(.prompt)").length, ...plots.map(newest), say.textContent]);
  }, 50);
}"""
"""What is shown every 50 ms: tokens of the text, the newest pass or second of each of ``CHARTS``, and the sentence."""
CHARTS = ("rounds", "blocks", "timing")
NUMBERED = re.compile(r"(?:Round|Step) (\d+)")


class Watch:
    """Pages of one app, with the browser's own counters."""

    def __init__(self, browser: Browser, server: str) -> None:
        self._browser, self._server = browser, server

    def open(self, **link: Any) -> tuple[Lab, CDPSession]:
        page = self._browser.new_page(viewport={"width": 1280, "height": 720})
        return Lab(page, self._server).open(seed=3, **link), page.context.new_cdp_session(page)


def saved(lab: Lab) -> Run:
    """The run on the stage."""
    with tempfile.TemporaryDirectory() as folder:
        return Run.load(lab.save("json", Path(folder)))


def live(watch: Watch) -> dict[str, float]:
    """Instants shown and bytes received a second during runs, and how late their first tokens are."""
    lab, devtools = watch.open(max_tokens=TOKENS, speculative="off")
    received = [0]
    devtools.on("Network.dataReceived", lambda event: received.__setitem__(0, received[0] + event["dataLength"]))
    devtools.send("Network.enable")
    settings = lab.page.url
    lab.run()  # the first run loads the models
    lab.finish()
    frames, bytes_, seconds, shown_ms, late_ms = 0, 0, 0.0, [], []
    for _ in range(RUNS):
        lab.page.goto(settings)
        lab.ready()
        lab.page.wait_for_timeout(SETTLED)
        lab.page.evaluate(COUNT)
        received[0] = 0
        times = lab.page.evaluate(RUN)
        drawn, shown = lab.page.evaluate("[window.drawn, window.firstToken]")
        seconds += (times["ended"] - shown) / 1000
        frames += sum(shown <= instant <= times["ended"] for instant in drawn)
        lab.finish()
        bytes_ += received[0]
        had = saved(lab).metrics.ttft_ms
        shown_ms.append(shown - times["clicked"])
        late_ms.append(shown_ms[-1] - had)
    lab.page.close()
    return {
        "live_frames_per_second": frames / seconds,
        "live_bytes_per_second": bytes_ / seconds,
        "first_token_shown_ms": statistics.median(shown_ms),
        "first_token_late_ms": statistics.median(late_ms),
    }


def lag(watch: Watch) -> dict[str, float]:
    """How far each chart and the sentence are behind the text while a run is followed: for how many milliseconds the
    text has already shown a later pass, sampled in the page (95th percentile and most). Redraws per second of each
    chart; and the CPU time of the page's thread, per picture and per second of the run, with the part that laying the
    page out took. Prints a table of the last run: the step up to which everything goes."""
    lab, devtools = watch.open(max_tokens=TOKENS)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    settings = lab.page.url
    lab.ran()  # the first run loads the models
    behind: dict[str, list[float]] = {name: [] for name in (*CHARTS, "sentence")}
    redraws, pictures, seconds = dict.fromkeys(CHARTS, 0), 0, 0.0
    spent = dict.fromkeys(("TaskDuration", "LayoutDuration", "LayoutCount"), 0.0)

    def counted() -> dict[str, float]:
        all_of_them = devtools.send("Performance.getMetrics")["metrics"]
        return {one["name"]: one["value"] for one in all_of_them if one["name"] in spent}

    for _ in range(RUNS):
        lab.page.goto(settings)
        lab.ready()
        lab.page.wait_for_timeout(SETTLED)
        lab.page.evaluate(COUNT)
        lab.page.evaluate(SAMPLE)
        before = counted()
        ended = lab.page.evaluate(RUN)["ended"]
        after = counted()
        spent = {name: value + after[name] - before[name] for name, value in spent.items()}
        samples, redrawn, drawn, first = lab.page.evaluate("[samples, redrawn, drawn, firstToken]")
        seconds += (ended - first) / 1000
        lab.finish()
        pictures += sum(first <= instant <= ended for instant in drawn)
        for name, times in zip(CHARTS, redrawn, strict=True):
            redraws[name] += sum(first <= time <= ended for time in times)
        sampled = [one for one in samples if first <= one[0] <= ended]
        times, shown = [one[0] for one in sampled], positions(saved(lab), sampled)
        for name, found in lags(times, shown).items():
            behind[name] += found
    lab.page.close()
    print(" | ".join(["ms since the first token", *shown[0]]))
    for time, views in list(zip(times, shown, strict=True))[::3]:
        print(" | ".join([f"{time - first:.0f}", *(str(step) for step in views.values())]))
    cpu, layout = 1000 * spent["TaskDuration"], 1000 * spent["LayoutDuration"]
    figures = {"cpu_ms_per_picture": cpu / pictures, "cpu_ms_per_second": cpu / seconds}
    figures |= {"layout_ms_per_picture": layout / pictures, "layouts_per_picture": spent["LayoutCount"] / pictures}
    figures |= {f"redraws_per_second_{name}": count / seconds for name, count in redraws.items()}
    for name, found in behind.items():
        figures |= {f"lag_ms_{name}_p95": statistics.quantiles(found, n=20)[-1], f"lag_ms_{name}_most": max(found)}
    return figures


def positions(run: Run, samples: list[list[Any]]) -> list[dict[str, int]]:
    """The step up to which each view goes, in each of the ``samples`` of a run; -1: before the first."""
    tokens, times, steps, written = [], [], [], 0
    for event in run.events:
        if isinstance(event, Committed):
            written += len(event.token_ids)
        elif isinstance(event, StepTimed):
            tokens.append(written)
            times.append(event.t_ms / 1000)
            steps.append(event.step)

    def at(values: list[float], value: float) -> int:
        place = bisect.bisect_right(values, value) - 1
        return steps[place] if place >= 0 else -1

    shown = []
    for _, text, rounds, seconds, passes, sentence in samples:
        said = NUMBERED.match(sentence)
        views = {"text": at(tokens, text), "rounds": rounds, "blocks": at(times, seconds + 0.0001), "timing": passes}
        shown.append(views | {"sentence": int(said[1]) if said else views["text"]})
    return shown


def lags(times: list[float], shown: list[dict[str, int]]) -> dict[str, list[float]]:
    """Milliseconds by which each view is behind the text at each of ``times``: how long the text has been further."""
    behind: dict[str, list[float]] = {name: [] for name in (*CHARTS, "sentence")}
    for now, views in zip(times, shown, strict=True):
        for name, found in behind.items():
            later = (time for time, other in zip(times, shown, strict=True) if other["text"] > views[name])
            found.append(max(0.0, now - next(later, now)))
    return behind


def player(watch: Watch) -> dict[str, float]:
    """Instants shown per second while a finished run plays, plain and speculative: in real time, in which it may be
    over after a few, and at five rounds per second."""
    figures = {}
    for speculation in ("off", "draft"):
        lab, _ = watch.open(max_tokens=TOKENS, speculative=speculation)
        lab.run()
        lab.finish()
        lab.page.evaluate(COUNT)
        each_ms = saved(lab).events[-1].t_ms / int(lab.page.get_attribute(".bar", "max"))
        for name, speed, instants in (("", "real", 1000 / each_ms), ("slowed_", "fast", 5.0)):
            lab.page.select_option(".speed", speed)
            lab.page.click("[data-do=first]")
            lab.wait_for_instant(0)
            lab.page.evaluate("window.drawn = []")
            lab.page.evaluate(PLAY)
            drawn = lab.page.evaluate("window.drawn")
            figures[f"player_{name}frames_per_second_{speculation}"] = 1000 * (len(drawn) - 1) / (drawn[-1] - drawn[0])
            figures[f"player_{name}instants_per_second_{speculation}"] = instants
        lab.page.close()
    return figures


def slow_down(watch: Watch, pairs: int) -> dict[str, float]:
    """How much slower the same run is, alternating with one that nobody watches: when a browser on the same machine
    draws it; when its frames are made and nobody reads them; and when another process copies memory on one core, which
    shows how much of it is due to the machine (cores share caches and memory)."""
    settings = Settings(seed=3, max_tokens=TOKENS)
    config = settings.engine_config(num_blocks=settings.blocks)
    waiting, engine = JobQueue(), Engines()

    def alone() -> float:
        run = engine(settings.pair).generate(settings.prompt, config, settings.sampling())
        return run.metrics.tokens_per_second

    def reported() -> float:
        run = LiveRun(waiting, engine, settings)
        run.done.wait()
        return measure(run.events).tokens_per_second

    def beside_a_neighbour() -> float:
        script = f"a, b = bytearray({MOVED}), bytearray({MOVED})\nwhile True: b[:] = a"
        busy = subprocess.Popen([sys.executable, "-c", script])
        try:
            return alone()
        finally:
            busy.kill()
            busy.wait()

    def watched() -> float:
        lab, _ = watch.open(max_tokens=TOKENS)
        lab.page.wait_for_timeout(SETTLED)
        lab.page.evaluate(RUN)
        lab.finish(120)
        speed = saved(lab).metrics.tokens_per_second
        lab.page.close()
        return speed

    ways = {"": watched, "_told": reported, "_moving_neighbour": beside_a_neighbour}
    for way in (alone, *ways.values()):
        way()  # the first of each loads models and pages
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    for names in shuffled(ways, pairs):
        for name in names:
            ratios[name].append(alone() / ways[name]() - 1)
    figures = {}
    for name, found in ratios.items():
        low, middle, high = statistics.quantiles(found, n=4)
        figures |= {f"slow_down{name}": middle, f"slow_down{name}_q1": low, f"slow_down{name}_q3": high}
    return figures


def memory(watch: Watch, runs: int) -> dict[str, float]:
    """What the page holds after a few runs, and after many more."""
    lab, devtools = watch.open(max_tokens=200)
    devtools.send("Performance.enable")
    figures = {}
    for done in range(1, runs + 1):
        lab.run()
        lab.finish()
        if done in (3, runs):
            devtools.send("HeapProfiler.collectGarbage")
            counted = {entry["name"]: entry["value"] for entry in devtools.send("Performance.getMetrics")["metrics"]}
            figures[f"heap_mb_after_{done}"] = counted["JSHeapUsedSize"] / 1e6
            figures[f"nodes_after_{done}"] = counted["Nodes"]
            figures[f"listeners_after_{done}"] = counted["JSEventListeners"]
    lab.page.close()
    figures["heap_growth_mb"] = figures[f"heap_mb_after_{runs}"] - figures["heap_mb_after_3"]
    return figures


GOALS = {
    "heap_growth_mb": "none",
    "live_frames_per_second": "at least 10",
    "first_token_late_ms": "at most 300",
    **{f"player_frames_per_second_{way}": "at least 30" for way in ("off", "draft")},
    "slow_down": "at most 0.05",
    **{f"redraws_per_second_{name}": "at least 5" for name in CHARTS},
    **{f"lag_ms_{name}_p95": "at most 200" for name in (*CHARTS, "sentence")},
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--pairs", type=int, default=5, help="comparisons of an engine that is watched or not")
    parser.add_argument("--runs", type=int, default=20, help="runs in a row whose memory is measured")
    parser.add_argument(
        "--only", nargs="*", choices=("live", "lag", "player", "slow_down", "memory"), help="not all of it"
    )
    options = parser.parse_args(arguments)
    parts: dict[str, Callable[[Watch], dict[str, float]]] = {
        "live": live,
        "lag": lag,
        "player": player,
        "slow_down": lambda watch: slow_down(watch, options.pairs),
        "memory": lambda watch: memory(watch, options.runs),
    }
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder) / "log.txt") as server,
        sync_playwright() as playwright,
    ):
        args = [one for one in QUIET if not one.startswith("--js-flags")]  # a person's browser optimizes scripts
        browser = playwright.chromium.launch(executable_path=chromium(), args=args)
        for name in options.only or parts:
            figures |= parts[name](Watch(browser, server))
        browser.close()
    for name, value in figures.items():
        print(f"{name:32} {value:12.3f}   {GOALS.get(name, '')}")
    if options.json:
        record = {"machine": describe_machine("cpu"), "tokens": TOKENS, "figures": figures, "goals": GOALS}
        options.json.write_text(json.dumps(record, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
