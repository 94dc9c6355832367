"""Many clients at one server: ``python -m docs.measure_load``. With ``--json FILE`` it writes a record.

The server runs in a process of its own with the embedded pair, and the clients in this one, on the same machine. To
each prompt it has to give the same answer under load as before. Some clients hang up half-way and call again. Arguments
after ``--`` are options of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from lab.util.machine_info import describe_machine
from tests.browser.conftest import started

SETTINGS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "int8": {"kv_dtype": "int8"},
    "int4": {"kv_dtype": "int4"},  # each token is quantised by itself, so the batch changes nothing
    "draft": {"speculative": "draft"},
    "lookup": {"speculative": "ngram"},
    "paged, draft": {"paged": True, "speculative": "draft"},
    "prefix caching": {"paged": True, "enable_prefix_caching": True},
}
PROMPTS = (
    "Once upon a time",
    "The old king had three sons, and the youngest of them was",
    "In a great forest there lived a wolf who had never seen the sea, and one morning in spring he said to the fox",
)
ABANDONED = 0.1
"""Share of the calls that hang up before they are answered."""
GOAL = "longest wait at most 3 times the median; no error, no crossed text, nothing left"
Ask = tuple[str, str, int]
"""The name of the settings, the prompt, the number of tokens."""
ASKS: tuple[Ask, ...] = tuple(
    (name, prompt, tokens) for name in SETTINGS for prompt in PROMPTS for tokens in (16, 48, 96)
)


@dataclass
class Found:
    """Results of a crowd. ``waits_ms``: from the call to the answer, less the time after the run's first token."""

    answers: int = 0
    abandoned: int = 0
    waits_ms: list[float] = field(default_factory=list)
    answered_ms: list[float] = field(default_factory=list)
    crossed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Server:
    """A running server as programs use it: over plain HTTP."""

    def __init__(self, address: str) -> None:
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        self._http = httpx.AsyncClient(base_url=address, limits=unlimited, timeout=300, trust_env=False)

    @contextlib.asynccontextmanager
    async def asked(self, ask: Ask) -> AsyncIterator[httpx.Response]:
        """The stream on which the answer will arrive. Leaving the context before that hangs up."""
        name, prompt, tokens = ask
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True} | SETTINGS[name]
        joined = (await self._http.post("/gradio_api/call/v2/run", json=body)).raise_for_status()
        async with self._http.stream("GET", f"/gradio_api/call/run/{joined.json()['event_id']}") as stream:
            yield stream.raise_for_status()

    async def run(self, ask: Ask) -> dict[str, Any]:
        """The answer. Raises RuntimeError with the server's error if there is none."""
        async with self.asked(ask) as stream:
            event = ""
            async for line in stream.aiter_lines():
                kind, _, text = line.partition(": ")
                event = text if kind == "event" else event
                if kind == "data" and event == "complete":
                    return json.loads(json.loads(text)[0])
                if kind == "data" and event == "error":
                    raise RuntimeError(text)
        raise RuntimeError("no answer came")

    async def left(self) -> dict[str, float]:
        """Running and waiting sequences and the share of live blocks over all engines, and visitors."""
        page = (await self._http.get("/metrics")).text
        wanted = {"running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting"}
        wanted |= {"kv_usage": "vllm:kv_cache_usage_perc", "visits": "decode_lab:visits"}
        return {
            name: sum(map(float, re.findall(rf"^{metric}(?:{{.*}})? (.+)$", page, re.MULTILINE)))
            for name, metric in wanted.items()
        }

    async def quiet(self, seconds: float = 30) -> dict[str, float]:
        """What is left once there are no more calls: zeros, or what remains after ``seconds``."""
        until = time.monotonic() + seconds
        while any((left := await self.left()).values()) and time.monotonic() < until:
            await asyncio.sleep(0.1)
        return left

    async def close(self) -> None:
        await self._http.aclose()


async def texts_alone(server: Server, asks: Sequence[Ask] = ASKS) -> dict[Ask, str]:
    """The answer to each call when there are no others."""
    return {ask: (await server.run(ask))["text"] for ask in asks}


async def crowd(server: Server, alone: dict[Ask, str], clients: int, seconds: float, seed: int = 0) -> Found:
    """``clients`` callers, each of which calls again as soon as it is answered, until the time is over."""
    found, ends = Found(), time.monotonic() + seconds

    async def client(draw: random.Random) -> None:
        while time.monotonic() < ends:
            ask, began = draw.choice(list(alone)), time.monotonic()
            try:
                if draw.random() < ABANDONED:
                    async with server.asked(ask):
                        typical = statistics.median(found.answered_ms or [100.0])
                        await asyncio.sleep(draw.random() * typical / 1000)
                    found.abandoned += 1
                    continue
                answer = await server.run(ask)
            except (RuntimeError, httpx.HTTPError) as error:
                found.errors.append(f"{ask[0]}: {error!r}")
                continue
            took = 1000 * (time.monotonic() - began)
            found.answers += 1
            found.answered_ms.append(took)
            metrics = answer["metrics"]
            found.waits_ms.append(max(0.0, took - (metrics["elapsed_ms"] - metrics["ttft_ms"])))
            if answer["text"] != alone[ask]:
                found.crossed.append(ask[0])

    await asyncio.gather(*(client(random.Random(f"{seed} {i}")) for i in range(clients)))
    return found


def spread(some: Sequence[float]) -> dict[str, float]:
    median, longest = statistics.median(some), max(some)
    return {"median": median, "longest": longest, "ratio": longest / median}


async def measure(address: str, process: psutil.Process, clients: int, seconds: float) -> dict[str, Any]:
    """A crowd that warms the server up for a fifth of the time, then the one that is measured."""
    server = Server(address)

    async def resident() -> float:
        await asyncio.sleep(20)
        return process.memory_info().rss / 1e6

    alone = await texts_alone(server)
    figures: dict[str, Any] = {"memory_mb": {"before": await resident()}}
    await crowd(server, alone, clients, seconds / 5)
    figures["left_after_warm_up"] = await server.quiet()
    figures["memory_mb"]["after_warm_up"] = await resident()
    found = await crowd(server, alone, clients, seconds, seed=1)
    figures["left"] = await server.quiet()
    figures["memory_mb"]["after"] = await resident()
    await server.close()
    figures |= {name: getattr(found, name) for name in ("answers", "abandoned", "errors", "crossed")}
    return figures | {"waits_ms": spread(found.waits_ms), "answered_ms": spread(found.answered_ms)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=5, help="after a fifth of it to warm up")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("server", nargs="*", metavar="-- OPTION", help="options of the server")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        with started(log, *options.server) as (address, app):
            figures = asyncio.run(measure(address, psutil.Process(app.pid), options.clients, 60 * options.minutes))
        figures["tracebacks"] = log.read_text().count("Traceback")
    print(json.dumps(figures, indent=1))
    about = {name: getattr(options, name) for name in ("clients", "minutes", "server")}
    record = {"machine": describe_machine("cpu")} | about | {"settings": list(SETTINGS), "goal": GOAL} | figures
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
