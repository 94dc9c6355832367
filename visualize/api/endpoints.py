"""The functions that programs call. API and MCP are made of them: of their names, types, defaults and what is said of
each parameter. Answers are JSON.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from lab.cli.json_results import JsonResult, compare_result, fit_result, run_result
from lab.config import EngineConfig, KVFormat, SamplingParams, parse_configs
from lab.engine.engine import Prompted
from lab.errors import ConfigError, LabError
from lab.measure.comparison import MAX_CONFIGS, MIN_CONFIGS
from lab.measure.comparison import compare as compared
from lab.measure.difference import first_differences
from lab.memory.capacity import Deployment, Lengths
from lab.memory.catalogue import GPU_KEYS, WeightFormat, device_bytes
from lab.memory.model_memory import known_models
from lab.models.chat_template import Chat
from lab.settings import SETTINGS
from lab.trace.run import Run
from lab.util.background import in_background
from visualize.api.flat_results import flat
from visualize.api_clients import client_of
from visualize.jobs.job_queue import TICK, JobQueue, Load, QueuedJob
from visualize.pages.compare.configurations import FORM as COMPARE
from visualize.pages.compare.configurations import MAX_OWN
from visualize.pages.memory.hub_models import look_up
from visualize.run_settings import as_asked, bounded

BOUNDED: dict[str, dict[str, tuple[float, float]]] = {
    "run": {"max_tokens": SETTINGS["max_tokens"].bounds},
    "compare": {name: COMPARE[name].bounds for name in ("repeats", "max_tokens")},
    "calculator": {},
}
"""What programs may call, and the numbers that are bounded as on the pages."""
NAMES = tuple(BOUNDED)
OF_ITS_OWN = {"compare": ("seed", "stop", "stop_token_ids", "ignore_eos", "logprobs")}
"""Settings that are not the caller's: all runs of a comparison have one seed and one length."""
PAIR = SETTINGS["pair"].default
USUAL, GREEDY = EngineConfig(), SamplingParams()
MAX_PROMPT = 100_000
"""Characters. What the model holds is counted in tokens, and refused by the engine."""
UNDER_WAY = "Under way"
"""What a caller is told whose run waits for nothing, and has come to no end of a part."""
MOST_SECONDS = 600
"""A call that takes longer is ended: it may be that nobody waits for it any more."""


class Job(QueuedJob):
    """Work for a program, which waits for its ``answer``. ``stage``: how far it is."""

    def __init__(self, queue: JobQueue, load: Load, do: "Callable[[Job], JsonResult]") -> None:
        self._do, self.answer, self.stage = do, {}, UNDER_WAY
        super().__init__(queue, load)

    def _work(self) -> None:
        self.answer = self._do(self)

    def go_on(self) -> None:
        """To be asked in its turn, which comes at once when it is cancelled. Raises LabError then."""
        if self.cancelled.is_set():
            raise LabError(f"This was stopped, by its caller or after {MOST_SECONDS} seconds.")

    async def finished(self, tell: Callable[[str], None]) -> JsonResult:
        """Its answer. Until then ``tell`` is called with what it waits for, whenever that has changed. Raises LabError
        with its problem."""
        ends, reported = time.monotonic() + MOST_SECONDS, ""
        while not self.done.is_set():
            if reported != (now := self.status() or self.stage):
                tell(reported := now)
            await asyncio.sleep(TICK / 5)
            if time.monotonic() > ends:
                self.cancelled.set()
        if self.problem:
            raise LabError(self.problem)
        return self.answer


class Programs:
    """The functions. Their runs wait in ``queue`` with those of the pages, and end when their caller leaves. All is
    called in the server's event loop.

    Args:
        told: by caller, what each waits for: filled here.
    """

    def __init__(self, load: Load, queue: JobQueue, reported: dict[str | None, str]) -> None:
        self._load, self._queue, self._reported = load, queue, reported
        self._jobs: dict[str | None, set[Job]] = {}

    def leave(self, request: gr.Request) -> None:
        """A caller has gone."""
        for job in self._jobs.get(client_of(request), ()):
            job.cancelled.set()

    async def _answer(self, request: gr.Request, do: Callable[[Job], JsonResult]) -> JsonResult:
        job = Job(self._queue, self._load, do)
        mine = self._jobs.setdefault(who := client_of(request), set())
        mine.add(job)
        try:
            return await job.finished(lambda status: self._report(who, status))
        finally:
            job.cancelled.set()
            mine.discard(job)
            if not mine:
                del self._jobs[who]
                self._reported.pop(who, None)

    def _report(self, who: str | None, status: str) -> None:
        """To those who listen to progress, as Gradio's own client and MCP do (which hears of steps only), and to those
        who wait by plain HTTP (``leaving``)."""
        gr.Progress()((0, None), desc=status)
        self._reported[who] = status

    async def run(
        self,
        request: gr.Request,
        prompt: str = "",
        config: EngineConfig = USUAL,
        sampling: SamplingParams = GREEDY,
        pair: str = PAIR,
        events: bool = False,
        token_ids: bool = False,
        messages: list[dict[str, Any]] | None = None,
        thinking: bool | None = None,
    ) -> JsonResult:
        """Decode a prompt with the engine's own loop, and tell what it wrote and what it took.

        Args:
            prompt: the text to go on from
            pair: target and draft; matched, unless this server was started with other models
            events: add the run's file, every event in it, which the page opens
            token_ids: the prompt is token ids, such as 1, 262
            messages: in place of a prompt a chat, [{"role": "user", "content": "Hello"}], in the model's chat template
            thinking: of a chat, where the template has a switch for it: whether the model thinks before it answers

        Returns:
            JSON: text, reason, models, settings with the seed, metrics; of a chat also the answer, its next message
        """

        if messages and prompt:
            raise ConfigError("There are a prompt and messages. Give one of them.")
        asked: Prompted = as_asked(bounded(prompt, MAX_PROMPT), token_ids)
        if messages:
            asked = Chat(messages, thinking)
            bounded("".join(one["content"] for one in messages), MAX_PROMPT)

        def do(job: Job) -> JsonResult:
            with job.turn(alone=False):
                job.go_on()
                engine = job.engine(pair)
                job.compile(engine, [config])
                job.go_on()
                run = Run(engine.stream(asked, config, sampling, cancelled=job.cancelled))
            return run_result(run) | ({"run": json.loads(run.to_json())} if events else {})

        return await self._answer(request, do)

    async def compare(
        self,
        request: gr.Request,
        prompt: str,
        settings: list[str],
        sampling: SamplingParams,
        repeats: int = 3,
        seed: int = 0,
        pair: str = PAIR,
        token_ids: bool = False,
    ) -> JsonResult:
        """Decode a prompt under two to six settings in turn: speed, memory, and whether they write the same. All go on
        past an end of text, so that all are of one length.

        Args:
            prompt: the text to go on from
            settings: each as kv_dtype=int8,speculative=draft, or empty for the defaults; the first is the reference
            repeats: runs of each setting, in changing order, after one to warm up
            seed: of the random draws of every run
            pair: target and draft; matched, unless this server was started with other models
            token_ids: the prompt is token ids, such as 1, 262

        Returns:
            JSON: by setting medians with quartiles, speed-up and text; and where texts differ
        """
        if not MIN_CONFIGS <= len(settings) <= MAX_CONFIGS:  # counted before any is read
            raise ConfigError(f"A comparison takes {MIN_CONFIGS} to {MAX_CONFIGS} settings, not {len(settings):,}.")
        if any(len(text) > MAX_OWN for text in settings):
            raise ConfigError(f"a setting has at most {MAX_OWN} characters.")
        configs = parse_configs(settings)
        sampling = replace(sampling, seed=seed)
        asked = as_asked(bounded(prompt, MAX_PROMPT), token_ids)

        def do(job: Job) -> JsonResult:
            with job.turn():
                engine = job.engine(pair)
                job.compile(engine, configs.values())
            runs: dict[str, list[Run]] = {name: [] for name in configs}
            steps = compared(engine, asked, configs, sampling, repeats, cancelled=job.cancelled)
            for done in itertools.count(1):
                with job.turn():  # others' runs come in between
                    job.go_on()
                    step = next(steps, None)
                if step is None:
                    break
                job.stage = f"{done} of {len(configs) * (repeats + 1)} runs done"
                if step[0].repeat:
                    runs[step[0].name].append(step[1])
            with job.turn():
                job.go_on()
                return compare_result(runs, first_differences(engine, {name: its[0] for name, its in runs.items()}))

        return await self._answer(request, do)

    async def calculator(
        self,
        model: str,
        gpu: str = "h100-80-gb",
        memory: float | None = None,
        weights: WeightFormat = "bfloat16",
        kv_dtype: KVFormat = "auto",
        kv_cache_dtype_skip_layers: str = "",
        set_aside: float = 0.1,
        mean: float = 500,
        longest: int = 4096,
        block_size: int = 16,
    ) -> JsonResult:
        """Work out what a model's weights and its cache take on a GPU, and how many sequences fit. Nothing is loaded.

        Args:
            model: MODELS, or a hub id, whose config.json is fetched
            gpu: whose memory it is to fit into
            memory: GiB of another device, which then counts instead
            weights: what a parameter is stored as
            kv_dtype: what a cache slot holds
            kv_cache_dtype_skip_layers: layers whose slots hold the compute dtype, like 0 15, or sliding_window
            set_aside: share of the memory that is kept for activations and the driver
            mean: mean length of a sequence in tokens
            longest: the longest sequence in tokens, for which contiguous allocation reserves room
            block_size: token positions in a block

        Returns:
            JSON: bytes of weights, of the cache and of a token; sequences at once, contiguous and paged
        """
        found = known_models().get(model) or await asyncio.wrap_future(
            in_background(lambda: look_up(model), "decode-lab-hub")
        )
        deployment = Deployment(
            shape=found.shape,
            parameters=found.parameters,
            state_bytes=found.state_bytes,
            weights=weights,
            kv_dtype=kv_dtype,
            kv_cache_dtype_skip_layers=kv_cache_dtype_skip_layers,
            memory=device_bytes(gpu, memory),
            set_aside=set_aside,
            lengths=Lengths(mean, longest),
            block_size=block_size,
        )
        return fit_result(found, deployment)


def build(pages: gr.Blocks, load: Load, queue: JobQueue, pairs: Sequence[str], reported: dict[str | None, str]) -> None:
    """Add the functions to ``pages``. Everything else of it stays private. ``pairs``: the names of those that are
    offered. ``told``: see ``Programs``.
    """
    programs = Programs(load, queue, reported)
    of_pairs = {"pair": pairs}
    choices = {"run": of_pairs, "compare": of_pairs, "calculator": {"gpu": tuple(GPU_KEYS)}}
    for name, bounds in BOUNDED.items():
        call = flat(getattr(programs, name), bounds, choices=choices[name], without=OF_ITS_OWN.get(name, ()))
        call.__doc__ = call.__doc__.replace("MODELS", ", ".join(known_models()))
        gr.api(call, concurrency_limit=None)
    pages.unload(programs.leave)
