"""How soon something plays: ``python -m docs.measure_opening``. Prints milliseconds since the navigation.

The app runs in its own process beside a headless Chromium, as on a laptop. *Cold* is a browser that has nothing stored,
the first of them also the server's first visitor; *warm* is the same browser again.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from playwright.sync_api import BrowserContext, sync_playwright

from tests.browser.conftest import QUIET, chromium, serving

GOAL_MS = 2500
PLAYING = """() => {
  const times = (window.opened = {});
  const note = (name) => (times[name] ??= Math.round(performance.now()));
  let first = "";
  const look = () => {
    if (document.querySelector("#run")) note("Run");
    const cards = [...document.querySelectorAll(".film .card")].map((card) => card.className + card.textContent).join();
    if (cards) note("first token");
    if (cards && (first ||= cards) !== cards) note("it moves");
    if (document.body?.dataset.ready) note("settings ready");
    if (document.querySelector(".plot .main-svg")) note("first chart");
  };
  new MutationObserver(look).observe(document, { subtree: true, childList: true, attributes: true });
}"""
"""When each is first there, in milliseconds since the navigation; tokens are those of the round's strip."""
COLUMNS = ("first paint", "Run", "first token", "it moves", "settings ready", "first chart")


def opened(context: BrowserContext, address: str, patience_ms: int) -> dict[str, float]:
    """The times of one navigation."""
    page = context.new_page()
    page.goto(address, wait_until="commit")
    page.wait_for_function("n => Object.keys(window.opened).length >= n", arg=len(COLUMNS) - 1, timeout=patience_ms)
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN")
    times = page.evaluate("window.opened") | {"first paint": paint}
    page.close()
    return times


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5, help="browsers, each of which opens the page twice")
    parser.add_argument("--page", default="", help="another page that opens on a recording")
    options = parser.parse_args(arguments)
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder) / "log.txt") as server,
        sync_playwright() as playwright,
    ):
        args = [one for one in QUIET if not one.startswith("--js-flags")]  # a person's browser optimizes scripts
        print(f"{'':14}{''.join(f'{name:>16}' for name in COLUMNS)}")
        for number in range(1, options.times + 1):
            browser = playwright.chromium.launch(executable_path=chromium(), args=args)
            context = browser.new_context(viewport={"width": 1280, "height": 720})
            context.add_init_script(f"({PLAYING})()")
            for kind, times in found.items():
                times.append(opened(context, f"{server}/{options.page}", 120_000))
                print(f"{kind} {number:<9}{''.join(f'{times[-1][name]:16.0f}' for name in COLUMNS)}", flush=True)
            browser.close()
    for kind, times in found.items():
        moves = [one["it moves"] for one in times]
        print(f"{kind}: it moves after {statistics.median(moves):.0f} ms, at most {max(moves):.0f} (goal {GOAL_MS})")


if __name__ == "__main__":
    main()
