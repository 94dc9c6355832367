"""What the benches on many requests measure, and how rows take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from lab.config import EngineConfig
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.measure.prompts import longest
from lab.measure.turns import shuffled
from lab.measure.workload import Job
from lab.trace.events import Admitted, FellBack, Preempted, StepKind, StepTimed
from lab.trace.metrics import inter_token_ms
from lab.trace.run import Run
from lab.util.device_memory import is_out_of_memory

Figures = dict[str, float]
"""The figures of one measurement, by name."""

Measured = TypeVar("Measured")


def finish(engine: Engine, jobs: list[Job], config: EngineConfig) -> tuple[list[Run], float]:
    """Submit all jobs and wait for all; returns the runs and the seconds they took together, from when all were queued.

    Nothing is computed before that, and reading a long prompt takes the host milliseconds in which a GPU would idle.

    Raises:
        LabError: one of them failed, or part of its setting was given up.
    """
    requests = [engine.submit(job.prompt, config, job.sampling) for job in jobs]
    began = time.perf_counter()
    runs = [request.result() for request in requests]
    if engine.device.startswith("cuda"):
        torch.cuda.synchronize(engine.device)
    seconds = time.perf_counter() - began
    for run in runs:
        refuse_failure(run, engine)
    return runs, seconds


def make_ready(engine: Engine, config: EngineConfig, longest: int) -> None:
    """Make the pool of a run of up to ``longest`` tokens, prompt included, and capture its steps, for windows that its
    end cuts short, too: else that would count in the run's time. Done before every run, since a GPU may not have room
    for the pools of all settings at once, and one that was dropped has lost its graphs."""
    windows = range(1, config.num_speculative_tokens + 1) if config.speculative != "off" else [1]
    try:
        for gamma in windows:
            cut = replace(config, num_speculative_tokens=gamma)
            engine.warm_up(cut, longest=min(longest, engine.context_length))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):  # which the run itself will tell
            raise


def refuse_failure(run: Run, engine: Engine) -> None:
    """Refuse a run for which ``engine`` did not do what its setting says.

    Without a C compiler it still did: torch then computes all of an engine's runs alike.

    Raises:
        LabError: it failed, or part of its setting was given up.
    """
    start = f"decoding {run.prompt[:40]!r}"
    if run.reason == "error":
        raise LabError(f"{start} failed: {run.finished.message}")
    for fallen in (event for event in run.events if isinstance(event, FellBack)):
        if fallen.reason != engine.kernel_failure:
            raise LabError(f"{start} went on without its {fallen.part}: {fallen.reason}")


def sound(run: Run, engine: Engine) -> Run:
    """The run, if ``engine`` did what its setting says and there is a time between tokens.

    Raises:
        LabError: see ``refuse_failure``; or it gave only one token.
    """
    refuse_failure(run, engine)
    if len(run.token_ids) < 2:
        raise LabError(f"{run.prompt[:40]!r} leaves the model room for one token only. Shorten the prompt.")
    return run


def steps(run: Run, kind: StepKind) -> list[StepTimed]:
    """The run's steps of one kind, in order."""
    return [event for event in run.events if isinstance(event, StepTimed) and event.step_kind == kind]


def serve(engine: Engine, jobs: list[Job], config: EngineConfig, *, max_num_seqs: int) -> Figures:
    """All jobs, arriving together, on a fresh engine that has captured its steps. Raises what ``finish`` and ``served``
    raise."""
    fresh = engine.clone(max_num_seqs=max_num_seqs)
    most = longest(engine, (job.prompt for job in jobs)) + max(job.sampling.max_tokens for job in jobs)
    fresh.warm_up(config, sequences=min(max_num_seqs, len(jobs)), longest=min(most, engine.context_length))
    return served(*finish(fresh, jobs, config))


def served(runs: list[Run], seconds: float) -> Figures:
    """Throughput, latencies and what was in flight, of runs that took ``seconds`` together.

    Raises:
        LabError: none gave more than one token.
    """
    ttft = [run.metrics.ttft_ms for run in runs]
    gaps = [gap for run in runs for gap in inter_token_ms(run.events)]
    if not gaps:
        raise LabError("all requests ended with their first token: there is no time between tokens to measure.")
    return latencies(sum(len(run.token_ids) for run in runs), seconds, ttft, gaps) | in_flight(runs)


def latencies(tokens: int, seconds: float, ttft: list[float], gaps: list[float]) -> Figures:
    """Tokens per second overall; percentiles of ``ttft`` (one per request) and of ``gaps`` (between the tokens
    of all requests), in milliseconds.
    """
    figures = {"tokens_per_second": tokens / seconds}
    for name, values in (("ttft", ttft), ("itl", gaps)):
        for percent in (50, 99):
            figures[f"{name}_p{percent}_ms"] = float(np.percentile(values, percent))
    return figures


def in_flight(runs: list[Run]) -> Figures:
    """Sequences in a step, slots reserved but not used, preemptions. Means are over the steps.

    A step of n sequences is reported n times, once to each, so each report counts as 1/n. Without a cache nothing is
    reserved.
    """
    events = [event for run in runs for event in run.events]
    told = [event for event in events if isinstance(event, StepTimed)]
    count = sum(1 / event.batch_sequences for event in told)
    reserved = sum(event.kv_reserved_bytes for event in told)
    wasted = reserved - sum(event.kv_used_bytes for event in told)
    slot_bytes = runs[0].started.block_bytes / runs[0].config.block_size
    return {
        "most_sequences": max(event.running for event in events if isinstance(event, Admitted)),
        "mean_sequences": len(told) / count,
        "wasted_slots": wasted / slot_bytes / count if reserved else 0.0,
        "wasted_share": wasted / reserved if reserved else 0.0,
        "preemptions": sum(isinstance(event, Preempted) for event in events),
    }


def take_turns(
    rows: dict[str, Callable[[], Measured]], repeats: int, report: Callable[[str], None]
) -> dict[str, list[Measured]]:
    """Call every row ``repeats`` times, interleaved in changing order, after one call each to warm up."""
    results: dict[str, list[Measured]] = {name: [] for name in rows}
    for row in rows.values():
        row()
    for repeat, order in enumerate(shuffled(rows, repeats)):
        for name in order:
            results[name].append(rows[name]())
        report(f"  repeat {repeat + 1} of {repeats} done")
    return results


def summarise(samples: list[Figures]) -> Figures:
    """Medians, and quartiles of the tokens per second."""
    rates = [figures["tokens_per_second"] for figures in samples]
    lower, upper = map(float, np.percentile(rates, (25, 75)))
    return {name: statistics.median(figures[name] for figures in samples) for name in samples[0]} | {
        "lower": lower,
        "upper": upper,
    }
