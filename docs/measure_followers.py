"""The cost of followers to a workshop's server: ``python -m docs.measure_followers``. Prints a record, and with
``--json FILE`` writes it.

A presenter moves through a run ten times a second; followers are connections that read what is shown, as a browser
does. The clients are separate processes: only the server's processor time is counted. The goal is printed beside the
figure, but not tested, since it depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
from playwright.sync_api import Browser, sync_playwright

from lab.util.machine_info import describe_machine
from tests.browser.conftest import QUIET, Lab, chromium, started

KEY = "a key for measuring"


async def _read(address: str, channel: str, heard: Any) -> None:
    """One follower: reads the channel and counts its messages without parsing them."""
    where = urlsplit(address)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(
        f"GET /channels/{channel} HTTP/1.1\r\nHost: {where.netloc}\r\nAccept: text/event-stream\r\n\r\n".encode()
    )
    while line := await reader.readline():
        if line.startswith(b"data:"):
            heard.value += 1


def _follow(address: str, channel: str, count: int, heard: Any) -> None:
    async def all_of_them() -> None:
        await asyncio.gather(*(_read(address, channel, heard) for _ in range(count)))

    asyncio.run(all_of_them())


@contextmanager
def following(address: str, channel: str, count: int) -> Iterator[Any]:
    """``count`` connections in one process. Yields the number of messages that all of them have received."""
    heard = multiprocessing.Value("q", 0, lock=False)
    process = multiprocessing.Process(target=_follow, args=(address, channel, count, heard), daemon=True)
    process.start()
    try:
        yield heard
    finally:
        process.terminate()
        process.join()


def ask(client: httpx.Client, door: str, **question: Any) -> dict[str, Any]:
    return client.post(f"/workshop/{door}", json=question).raise_for_status().json()


def show(client: httpx.Client, key: str, run: str | None, at: int | None) -> None:
    """Show an instant. Raises RuntimeError with the reason if it is not shown: showing nothing would cost nothing."""
    answer = ask(client, "lead", key=key, run=run, at=at, query="?num_speculative_tokens=4", who="measuring", take=True)
    if "problem" in answer:
        raise RuntimeError(answer["problem"])


def run_once(browser: Browser, client: httpx.Client, key: str) -> str:
    """The id of a run that is being shown, and is therefore kept although the page that made it is closed."""
    page = browser.new_page()
    lab = Lab(page, str(client.base_url)).open(max_tokens=60)
    lab.run()
    lab.finish()
    run = page.evaluate("JSON.parse(document.querySelector('.stage').dataset.run).run")
    show(client, key, run, 0)
    page.close()
    return run


def lead(client: httpx.Client, key: str, run: str | None, hz: float, seconds: float) -> int:
    """Show another instant of ``run`` ``hz`` times a second; without a run, wait as long."""
    began, shown = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        if run:
            show(client, key, run, shown % 50)
            shown += 1
        time.sleep(max(0.0, shown / hz - (time.monotonic() - began)) if run else min(0.5, seconds - passed))
    return shown


def measure(
    address: str,
    app: psutil.Process,
    key: str,
    browser: Browser,
    followers: int,
    hz: float,
    seconds: float,
    rounds: int,
) -> dict[str, Any]:
    """For an app that holds a workshop: the share of a core that ``app`` takes, and that of messages that arrived."""
    with httpx.Client(base_url=address, timeout=60) as client:
        code = ask(client, "presenter", key=key, page=address)["code"]
        channel = ask(client, "join", code=code)["lead"]
        run = run_once(browser, client, key)
        time.sleep(min(3, seconds))

        def share(run: str | None) -> tuple[float, int]:
            before, began = sum(app.cpu_times()[:2]), time.monotonic()
            shown = lead(client, key, run, hz, seconds)
            return 100 * (sum(app.cpu_times()[:2]) - before) / (time.monotonic() - began), shown

        shares: dict[str, list[float]] = {"idle": [], "leading": [], "followed": []}
        arrived = []
        for _ in range(rounds):
            shares["idle"].append(share(None)[0])
            shares["leading"].append(share(run)[0])
            with following(address, channel, followers) as heard:
                while ask(client, "presenter", key=key, page=address)["followers"] < followers:
                    time.sleep(0.1)
                time.sleep(0.5)  # each first receives what is shown already
                had = heard.value
                percent, shown = share(run)
                shares["followed"].append(percent)
                time.sleep(0.5)
                arrived.append((heard.value - had) / (shown * followers))
        show(client, key, None, None)
    figures = {name: round(statistics.median(some), 2) for name, some in shares.items()}
    asked = {"followers": followers, "hz": hz, "seconds": seconds, "rounds": rounds}
    return {
        "machine": describe_machine("cpu"),
        **asked,
        "percent_of_a_core": shares | {"medians": figures},
        "added_by_followers": round(figures["followed"] - figures["leading"], 2),
        "messages_arrived": round(statistics.median(arrived), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--followers", type=int, default=30)
    parser.add_argument("--hz", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        started(Path(folder) / "log", "--workshop", DECODE_LAB_PRESENTER_KEY=KEY) as (address, app),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(QUIET))
        how = {name: value for name, value in vars(options).items() if name != "json"}
        record = measure(address, psutil.Process(app.pid), KEY, browser, **how)
        browser.close()
    print(json.dumps(record, indent=1), "(goal of added_by_followers: below 10)", sep="\n")
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
