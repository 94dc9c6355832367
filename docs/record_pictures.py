"""The documentation's pictures of pages: ``python -m docs.record_pictures``.

The Compare page, and its theory, as they open: on their recording (``docs.record_opening``). With ``--attach URL`` also
the Server page, after a minute of watching that vLLM server and a prompt to it; give it other requests meanwhile.
"""

from __future__ import annotations

import argparse
import io

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from docs.record_animation import ROOT, app
from tests import ensure_chromium

WINDOW = {"width": 1440, "height": 900}
SETTLED = 2_000
"""Milliseconds after which all is drawn."""


def record(page: Page, name: str) -> None:
    page.mouse.move(0, 0)
    page.wait_for_timeout(SETTLED)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(128)
    picture.save(ROOT / f"docs/{name}.png", optimize=True)
    print(f"docs/{name}.png was written.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--attach", metavar="URL", help="of a vLLM server with a draft model")
    options = parser.parse_args()
    attached = ["--attach", options.attach] if options.attach else []
    with app(*attached) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=ensure_chromium.find(), args=["--no-sandbox"])
        page = browser.new_page(viewport=WINDOW, color_scheme="light", reduced_motion="reduce")
        page.goto(f"{url}/compare")
        page.locator("[data-chart=bars] .main-svg").first.wait_for()
        record(page, "compare")
        page.click("[data-shows=theory]")
        record(page, "theory")
        if attached:
            page.goto(f"{url}/server")
            page.wait_for_timeout(60_000)
            page.get_by_role("button", name="Send").click()
            page.wait_for_timeout(10_000)
            record(page, "server")
        browser.close()


if __name__ == "__main__":
    main()
