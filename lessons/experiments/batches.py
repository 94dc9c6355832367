"""``batches``: many requests at once on one engine, in time and in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field, model_validator

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.measure.measuring import RunTurn, finish, turns
from lab.measure.throughput import Figures, served
from lab.measure.workload import PlannedRequest, write
from lab.trace.events import Event
from lab.trace.recorder import EventListener
from lab.trace.run import Run
from lessons.experiments.base import MOST_REPEATS, Experiment, Load, Measured, Name, Part, Watch, Work, spoken

FIGURES = {
    "requests": "that were made",
    "tokens_per_second": "of all requests together",
    "ttft_p50_ms": "time to first token, waiting included: the median request",
    "itl_p50_ms": "inter-token latency, the same",
    "itl_p99_ms": "the 99th percentile",
    "most_sequences": "at once in a step",
    "mean_sequences": "the same on average",
    "wasted_share": "share of the reserved slots that held nothing, on average",
    "preemptions": "sequences that were preempted",
    "prompt_tokens": "of all prompts",
    "cached_prompt_tokens": "of those, found in the cache and not computed",
    "output_tokens": "of all requests",
}
OPENING_TOKENS = 8
"""What a prompt has of its own after an opening sentence."""


class Batch(Part):
    """Requests that arrive together. Its other keys are those of EngineConfig.

    Attributes:
        requests: how many.
        output_tokens: of each; with ``paragraph`` the most, because a request then ends when the model ends its
            paragraph, which nobody knows in advance.
        system_tokens: length of a beginning that all prompts share.
        temperature: the seed is the request's number.
        at_once: how many of them are decoded together; the others wait. All, unless it is given.
        static: the others wait until all of these have ended, and not just one.
    """

    requests: int = Field(ge=1, le=64)
    output_tokens: int = Field(default=48, ge=2, le=512)
    paragraph: bool = False
    system_tokens: int = Field(default=0, ge=0, le=400)
    temperature: float = Field(default=0.0, ge=0, le=2)
    at_once: int | None = Field(default=None, ge=1, le=64)
    static: bool = False
    config: dict[str, Any] = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        own = EngineConfig.__dataclass_fields__
        config = {name: value for name, value in given.items() if name in own}
        return {"config": config} | {name: value for name, value in given.items() if name not in own}

    @model_validator(mode="after")
    def _sound(self) -> Batch:
        try:
            EngineConfig(**self.config)
        except LabError as error:
            raise ValueError(str(error)) from error
        return self

    def jobs(self, engine: Engine) -> list[PlannedRequest]:
        prompts = write(engine, [OPENING_TOKENS] * self.requests)
        if self.system_tokens:
            system = write(engine, [self.system_tokens])[0]
            prompts = [f"{system}\n{prompt}" for prompt in prompts]
        how = {"max_tokens": self.output_tokens, "temperature": self.temperature}
        ending = {"stop": ("\n",)} if self.paragraph else {"ignore_eos": True}
        return [PlannedRequest(prompt, SamplingParams(seed=i, **how, **ending)) for i, prompt in enumerate(prompts)]


class Batches(Experiment):
    """Batches in turns, each on a fresh engine, so that none finds the cache of another."""

    repeated = timed = True

    settings: dict[Name, Batch] = Field(min_length=1, max_length=6)
    repeats: int = Field(default=2, ge=1, le=MOST_REPEATS)

    def names(self) -> Mapping[str, Any]:
        return dict.fromkeys(self.settings, dict.fromkeys(FIGURES))

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        engine = load("matched")
        watch("writing the prompts", 0.0)
        jobs = {name: batch.jobs(engine) for name, batch in self.settings.items()}
        found: dict[str, list[Figures]] = {name: [] for name in jobs}
        happened: list[tuple[int, Event]] = []
        for turn in turns(jobs, self.repeats):
            batch = self.settings[turn.name]
            doing = f"repeat {turn.repeat} of {self.repeats}" if turn.repeat else "warming up"

            def report(share: float, turn: RunTurn = turn, doing: str = doing) -> None:
                said = f"{spoken(turn.name)}, {doing}: {share:.0%} of its tokens"
                watch(said, (turn.number - 1 + share) / turn.of, *happened)
                happened.clear()

            config = EngineConfig(**batch.config)
            options = {
                "at_once": batch.at_once,
                "static": batch.static,
                "on_event": lambda owner, _, event: happened.append((owner, event)),
            }
            figures = serve(engine, jobs[turn.name], config, cancelled, report, **options)
            if cancelled.is_set():
                return Measured({})
            if turn.repeat:
                found[turn.name].append(figures)
            yield
        return Measured({name: {key: [one[key] for one in some] for key in FIGURES} for name, some in found.items()})


def serve(
    engine: Engine,
    jobs: list[PlannedRequest],
    config: EngineConfig,
    cancelled: threading.Event,
    report: Callable[[float], None],
    *,
    at_once: int | None = None,
    static: bool = False,
    on_event: EventListener | None = None,
) -> Figures:
    """All jobs at once on an engine of their own, whose pool has room for all of them unless the setting limits it; or
    only so many ``at_once``, and if ``static`` the next ones after all of these. Once ``cancelled`` is set there are no
    figures. ``report`` gets the share of tokens that exist, ``on_event`` what ``Engine`` says. Raises LabError as
    ``finish`` and ``served``."""
    places = at_once or len(jobs)
    fresh = engine.clone(max_num_seqs=places, on_event=on_event)
    if config.kv_cache and config.num_blocks is None:
        drafted = config.num_speculative_tokens if config.speculative != "off" else 0
        prompts = (len(engine.tokenizer(job.prompt)["input_ids"]) for job in jobs)
        longest = (tokens + job.sampling.max_tokens + drafted for tokens, job in zip(prompts, jobs, strict=True))
        config = replace(config, num_blocks=sum(-(-length // config.block_size) for length in longest))
    most = sum(job.sampling.max_tokens for job in jobs)
    runs: list[Run] = []
    seconds = 0.0
    for group in [jobs[at : at + places] for at in range(0, len(jobs), places)] if static else [jobs]:
        before = sum(len(run.token_ids) for run in runs)

        def share(tokens: int, _: Event, before: int = before) -> None:
            report(min(1.0, (before + tokens) / most))

        some, took = finish(fresh, group, config, cancelled=cancelled, watch=share)
        runs, seconds = runs + some, seconds + took
    if cancelled.is_set():
        return {}
    return served(runs, seconds) | {
        "requests": len(runs),
        "prompt_tokens": sum(len(run.prompt_token_ids) for run in runs),
        "cached_prompt_tokens": sum(run.metrics.cached_prompt_tokens for run in runs),
        "output_tokens": sum(len(run.token_ids) for run in runs),
    }
