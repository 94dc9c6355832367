"""A vLLM server and the visitors who watch it: it is read once a second for all of them, and answers their prompts."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from lab.config import SamplingParams
from lab.errors import LabError
from lab.util.messages import counted
from lab.vllm.client import Server, ServerError
from lab.vllm.completion import ROUND_METRICS_FLAG, CompletionEnd
from lab.vllm.server_metrics import MAX_POSITIONS
from visualize.charts import server_charts as figures
from visualize.jobs.job_queue import CLOSED, TICK, JobQueue
from visualize.jobs.sse_channel import Channel
from visualize.jobs.visitor_sessions import OnePerSession
from visualize.pages.server.watched import ServerReducer
from visualize.text import as_line, visible, visible_lines

log = logging.getLogger(__name__)

EVERY_S = 1.0
KEPT = 300
"""Messages kept: latecomers see the last five minutes."""
AT_ONCE = 16
"""Most prompts in progress from here. The server has others to serve."""
NOT_TOLD = (
    "The server reports nothing about your prompt's rounds: for that it has to be started with --speculative-config "
    f"and {ROUND_METRICS_FLAG}."
)
TOO_MANY = (
    "What the server reports about your prompt's rounds cannot be drawn: more rounds than tokens you allow, or more "
    f"than {MAX_POSITIONS} draft tokens in one."
)
CUT_SHORT = "The server reports an answer's rounds at its end, which this one did not reach."
NO_ROUND = "The answer ended before a round with draft tokens."
ENDED = {"": "", "length": " It reached the maximum of tokens.", "stop": " It ended by itself."}
"""By the server's reason. Others are that it was aborted, or went wrong."""
STOPPED = "Stopped. Closing the connection tells the server."
ROUNDS = "{rounds} with draft tokens, {accepted} of {drafted} accepted. Which tokens they were is not reported."


class ServerWatch:
    """One thread that reads the server's metrics until ``queue`` is closed, and reports them in ``channel``."""

    def __init__(self, server: Server, queue: JobQueue) -> None:
        self.channel = Channel(keep=KEPT)
        self.models: tuple[str, ...] = ()
        self._server, self._queue = server, queue
        threading.Thread(target=self._watch, name="decode-lab-watch", daemon=True).start()

    def _watch(self) -> None:
        asyncio.run(self._read())
        self.channel.close()

    async def _read(self) -> None:
        reducer = ServerReducer(self._server.address, time.monotonic())
        while not self._queue.closed:
            try:
                reading = await self._server.read()
                if reducer.begins_anew(reading):
                    self.models = ()
                note = await self._ask_models()
                message = reducer.take(reading, self.models)
                message["say"] += note
            except LabError as error:
                self.models = ()
                message = reducer.lost(time.monotonic(), str(error))
            except Exception as error:
                log.exception("a reading could not be told")
                message = reducer.lost(time.monotonic(), f"This reading failed ({type(error).__name__}).")
            self.channel.put(as_line(message))
            await asyncio.sleep(EVERY_S)  # in full, however long the reading took: a rate over an instant says nothing

    async def _ask_models(self) -> str:
        """Ask for the models until they are known: a server that comes back, or answers instead, may serve others.
        Returns why they are not: metrics may be public when models are not."""
        try:
            self.models = self.models or await self._server.models()
            return "" if self.models else " It names no model, so no prompt can be sent."
        except LabError as error:
            return f" No prompt can be sent: {visible(str(error))}"


class RemotePrompt:
    """One prompt in progress at the server, reported in ``channel``. It ends within a tenth of a second once
    ``cancelled`` is set or ``queue`` is closed."""

    def __init__(self, server: Server, queue: JobQueue, model: str, prompt: str, sampling: SamplingParams) -> None:
        self.channel = Channel()
        self.cancelled = threading.Event()
        self._queue, self._most = queue, sampling.max_tokens
        self._answer = server.complete(model, prompt, sampling)
        threading.Thread(target=self._report, name="decode-lab-asked", daemon=True).start()

    @property
    def goes_on(self) -> bool:
        return not self.channel.closed and not self.cancelled.is_set()

    def _report(self) -> None:
        try:
            asyncio.run(self._read())
        except LabError as error:
            self._put(say=visible(str(error)), problem=True, rounds=CUT_SHORT)
        except Exception as error:
            log.exception("an answer could not be told")
            self._put(say=f"The answer failed ({type(error).__name__}).", problem=True, rounds=CUT_SHORT)
        finally:
            self.channel.close()

    async def _read(self) -> None:
        pieces: list[str] = []
        reading = asyncio.ensure_future(self._collect(pieces))
        while not reading.done():
            await asyncio.wait({reading}, timeout=TICK)
            if pieces:
                self._put(text=visible_lines("".join(pieces)))
                pieces.clear()
            if self.cancelled.is_set() or self._queue.closed:
                reading.cancel()
                await asyncio.wait({reading})
                self._put(say=CLOSED if self._queue.closed else STOPPED, rounds=CUT_SHORT)
                return
        self._put(**_final_message(reading.result(), self._most))

    async def _collect(self, pieces: list[str]) -> CompletionEnd:
        """The answer's end; its text goes into ``pieces``, from which ``_read`` removes and reports it."""
        async for piece in self._answer:
            if isinstance(piece, CompletionEnd):
                return piece
            pieces.append(piece)
        raise ServerError("The answer ended without a reason.")

    def _put(self, **record: Any) -> None:
        self.channel.put(as_line(record))


class Prompts:
    """Visitors' prompts to the server: one at a time each, and few at once."""

    def __init__(self, server: Server, queue: JobQueue, models: Callable[[], tuple[str, ...]]) -> None:
        self._server, self._queue, self._models = server, queue, models
        self._asked: OnePerSession[RemotePrompt] = OnePerSession()
        self.stop, self.leave = self._asked.stop, self._asked.leave

    def begin(self, visitor: str | None, prompt: str, sampling: SamplingParams) -> RemotePrompt | None:
        """Send a prompt. None: see ``OnePerSession``.

        Raises:
            ServerError: the server currently names no model, or too many prompts are in progress.
        """

        def ask() -> RemotePrompt:
            if self._asked.under_way >= AT_ONCE:
                raise ServerError(f"{AT_ONCE} prompts from here are under way at the server. Try again in a moment.")
            models = self._models()
            if not models:
                raise ServerError("The server names no model now, so no prompt was sent. Try again when it does.")
            return RemotePrompt(self._server, self._queue, models[0], prompt, sampling)

        return self._asked.begin(visitor, ask)


def _final_message(end: CompletionEnd, most: int) -> dict[str, Any]:
    """The message about a finished answer. ``most``: the tokens that were allowed."""
    tokens = "" if end.completion_tokens is None else f": {counted(end.completion_tokens, 'token')}"
    prompt = "" if end.prompt_tokens is None else f", prompt {end.prompt_tokens:,}"
    reason = end.finish_reason
    ended = ENDED.get(reason, f" The server ended it ({visible(reason)}).")
    say = f"Answered{tokens}{prompt if tokens else ''}.{ended}"
    if end.rounds is None:
        return {"say": say, "rounds": NOT_TOLD}
    if not end.rounds.drafted:
        return {"say": say, "rounds": NO_ROUND}
    if len(end.rounds.drafted) > most or max(end.rounds.drafted, default=0) > MAX_POSITIONS:
        return {"say": say, "rounds": TOO_MANY}
    counts = {
        "rounds": counted(len(end.rounds.drafted), "round"),
        "drafted": counted(sum(end.rounds.drafted), "draft token"),
    }
    reported = ROUNDS.format(**counts, accepted=sum(end.rounds.accepted))
    return {"say": say, "rounds": reported, "charts": {"rounds": figures.reported_rounds(end.rounds)}}
