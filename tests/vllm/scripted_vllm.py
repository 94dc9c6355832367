"""A scripted server that answers as vLLM does: changing metrics, streamed completions, and what can go wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL = "tiny-qwen3"
WORDS = ("once", "there", "was", "a", "miller", "who", "had", "three", "sons")
DRAFTED = (4, 4, 4, 2)
ACCEPTED = (4, 0, 2, 2)


LONG = {"message": "This model's maximum context length is 1024 tokens.", "code": 400}
UNNAMED = {"message": "The model `tiny` does not exist.", "code": 404}
WRONG: dict[str, Callable[[], Response]] = {
    "redirect": lambda: RedirectResponse("http://example.com/metrics"),
    "html": lambda: PlainTextResponse("<html>\n<script>window.pwned=1</script>\n", media_type="text/html"),
    "large": lambda: PlainTextResponse(b"#" * (9 * 2**20)),
    "endless": lambda: StreamingResponse(_drops()),
    "key": lambda: JSONResponse({"error": "Unauthorized"}, status_code=401),
    "long": lambda: JSONResponse({"error": LONG}, status_code=400),
    "unnamed": lambda: JSONResponse({"error": UNNAMED}, status_code=404),
    "gone": lambda: JSONResponse({"detail": "Not Found"}, status_code=404),
}
"""How it can misbehave, by name. "silent" sends nothing for half a minute."""


class ScriptedVLLM:
    """Change its attributes to change how it behaves.

    Attributes:
        counts: its counters by name; ``moves`` is added at each request for /metrics. ``gauges`` stay as they are.
        by_position: share of rounds in which each position is accepted.
        words: of every answer, one every ``pause`` seconds; an ``endless`` answer repeats them.
        drafted, accepted: what it reports of an answer's rounds.
        extra: text at the end of the metrics page.
        spec: whether it was started with detailed metrics per request.
        wrong: how it misbehaves, by path.
        asked: the paths requested, and the bodies of completion requests.
        left: completions whose client left before the end.
    """

    def __init__(self) -> None:
        self.model = MODEL
        self.started = 1.795e9
        self.moves = {"generation_tokens_total": 120, "prefix_cache_queries_total": 64, "prefix_cache_hits_total": 48}
        self.moves |= {"spec_decode_num_drafts_total": 40, "spec_decode_num_draft_tokens_total": 160}
        self.moves |= {"spec_decode_num_accepted_tokens_total": 90, "num_preemptions_total": 1}
        self.by_position = (0.9, 0.7, 0.45, 0.2)
        self.counts: dict[str, float] = dict.fromkeys(self.moves, 0)
        self.gauges: dict[str, float] = {
            "kv_cache_usage_perc": 0.25,
            "num_requests_running": 3,
            "num_requests_waiting": 2,
        }
        self.words = WORDS
        self.drafted, self.accepted = DRAFTED, ACCEPTED
        self.endless = False
        self.pause = 0.0
        self.extra = ""
        self.spec = True
        self.wrong: dict[str, str] = {}
        self.asked: list[Any] = []
        self.left = 0

    def restart(self) -> None:
        self.started += 60
        self.counts = dict.fromkeys(self.moves, 0)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/metrics", self._metrics),
                Route("/v1/models", self._models),
                Route("/v1/completions", self._completions, methods=["POST"]),
            ]
        )

    async def _misbehave(self, path: str) -> Response | None:
        wrong = self.wrong.get(path)
        if wrong == "silent":
            await asyncio.sleep(30)
        return WRONG[wrong]() if wrong in WRONG else None

    async def _metrics(self, request: Request) -> Response:
        self.asked.append("/metrics")
        if wrong := await self._misbehave("/metrics"):
            return wrong
        for name, more in self.moves.items():
            self.counts[name] += more
        labels = f'engine="0",model_name={json.dumps(self.model)}'
        lines = [f"vllm:{name}{{{labels}}} {value}" for name, value in (self.counts | self.gauges).items()]
        per_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        rounds = self.counts["spec_decode_num_drafts_total"]
        lines += [
            f'{per_position}{{{labels},position="{position}"}} {share * rounds}'
            for position, share in enumerate(self.by_position)
        ]
        lines.append(f'vllm:cache_config_info{{block_size="32",num_gpu_blocks="21845",{labels}}} 1.0')
        lines.append(f"process_start_time_seconds {self.started}")
        return PlainTextResponse("\n".join([*lines, self.extra, ""]))

    async def _models(self, request: Request) -> Response:
        self.asked.append("/v1/models")
        return await self._misbehave("/v1/models") or PlainTextResponse(json.dumps({"data": [{"id": self.model}]}))

    async def _completions(self, request: Request) -> Response:
        self.asked.append(await request.json())
        return await self._misbehave("/v1/completions") or StreamingResponse(
            self._stream(), media_type="text/event-stream"
        )

    async def _stream(self) -> AsyncIterator[str]:
        over = False
        try:
            words = self.words
            while True:
                for word in words:
                    await asyncio.sleep(self.pause)
                    yield _event({"choices": [{"index": 0, "text": f" {word}", "finish_reason": None}]})
                if self.wrong.get("stream") == "error":
                    yield _event({"error": {"message": "the engine died", "code": 500}})
                    return
                if self.wrong.get("stream") == "garbage":
                    yield "data: {not json\n\n"
                if not self.endless:
                    break
            yield _event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
            usage = {"prompt_tokens": 5, "completion_tokens": len(words)}
            said = {"per_step_drafted": self.drafted, "per_step_accepted": self.accepted}
            yield _event(
                {"choices": [], "usage": usage, "metrics": {"speculative_decoding": said if self.spec else None}}
            )
            yield "data: [DONE]\n\n"
            over = True
        finally:
            self.left += not over


async def _drops() -> AsyncIterator[bytes]:
    while True:
        yield b"#"
        await asyncio.sleep(0.02)


def _event(message: dict[str, Any]) -> str:
    return f"data: {json.dumps(message)}\n\n"


@contextmanager
def serving(vllm: ScriptedVLLM, port: int = 0, certificate: Path | None = None) -> Iterator[str]:
    """Runs ``vllm`` in a thread of its own and yields its address. ``certificate``: with its key; it speaks https."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    server = uvicorn.Server(
        uvicorn.Config(vllm.app(), log_level="error", timeout_graceful_shutdown=1, ssl_certfile=certificate)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http{'s' if certificate else ''}://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(5)
        listening.close()
