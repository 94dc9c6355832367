"""The README's moving picture, recorded from the running page: ``python -m docs.record_animation``.

Starts the app, which opens on a recorded run (``docs.record_opening``), steps through its rounds phase by phase with
the arrow key, as a person would, and writes a WebP animation of what Chromium showed. Needs
``requirements-test.txt`` and a Chromium.
"""

from __future__ import annotations

import argparse
import io
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

from PIL import Image
from playwright.sync_api import sync_playwright

from tests import ensure_chromium

ROOT = Path(__file__).parents[1]
WINDOW = {"width": 1360, "height": 860}
WIDTH = 1000
"""Pixels of the animation; the window is scaled down to it."""
START_SECONDS = 300


@contextmanager
def app(*options: str) -> Iterator[str]:
    """The address of a running app with these options."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "app.py", "--port", str(port), *options], cwd=ROOT)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def wait_for(url: str) -> None:
    """Return when the server answers. Raises TimeoutError if it does not within ``START_SECONDS``."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (URLError, OSError):
            time.sleep(0.2)
    raise TimeoutError(f"{url} did not answer within {START_SECONDS} seconds.")


def frames(url: str, count: int) -> list[Image.Image]:
    """Pictures of the page at ``count`` phases after the prefill of its recording."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=ensure_chromium.find(), args=["--no-sandbox"])
        page = browser.new_page(viewport=WINDOW, color_scheme="light")
        page.goto(url)
        page.locator(".opening .badge").wait_for()
        page.locator("[data-chart=rounds] .main-svg").first.wait_for()
        page.evaluate("document.activeElement?.blur()")
        page.keyboard.press("Home")
        page.keyboard.press("Shift+ArrowRight")
        pictures = []
        for _ in range(count):
            page.keyboard.press("ArrowRight")
            page.wait_for_timeout(400)  # until the charts have followed
            pictures.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        browser.close()
    return pictures


def main(arguments: list[str] | None = None) -> None:
    """Record and write the animation."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs/running.webp")
    parser.add_argument("--frames", type=int, default=31, help="31: three rounds")
    parser.add_argument("--milliseconds", type=int, default=450, help="how long each frame is shown")
    options = parser.parse_args(arguments)
    with app() as url:
        first, *rest = [
            picture.resize((WIDTH, WIDTH * WINDOW["height"] // WINDOW["width"]), Image.Resampling.LANCZOS)
            for picture in frames(url, options.frames)
        ]
    shown = [options.milliseconds] * len(rest) + [3 * options.milliseconds]
    first.save(options.out, save_all=True, append_images=rest, duration=shown, loop=0, quality=58, method=6)
    print(f"{options.out} was written: {len(rest) + 1} frames, {options.out.stat().st_size / 1e6:.2f} MB.")


if __name__ == "__main__":
    main()
