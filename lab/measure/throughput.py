"""Many requests at once: throughput, latencies, sequences in flight, and a block pool that is too small for all."""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.errors import ConfigError, LabError
from lab.measure.measuring import finish
from lab.measure.workload import PlannedRequest, longest
from lab.trace.events import Admitted, Event, Finished, Preempted, StepTimed
from lab.trace.metrics import inter_token_ms
from lab.trace.recorder import BatchEvent, BatchStep
from lab.trace.run import Run

Figures = dict[str, float]
"""The figures of one measurement, by name."""
Rows = dict[str, Callable[..., Figures]]
SCARCITY = 3
"""In ``memory_rows`` the pool has a third of the blocks that all requests together fill in the end."""


def serve(
    engine: Engine,
    requests: Sequence[PlannedRequest],
    config: EngineConfig,
    *,
    max_num_seqs: int,
    static: bool = False,
) -> Figures:
    """All requests, arriving together, on a fresh engine that has captured its steps. ``static``: so many begin
    together, and the next ones once all of these have ended. Raises LabError: see ``finish`` and ``served``."""
    fresh = engine.clone(max_num_seqs=max_num_seqs)
    most = longest(engine, (one.prompt for one in requests)) + max(one.sampling.max_tokens for one in requests)
    fresh.warm_up(config, sequences=min(max_num_seqs, len(requests)), longest=min(most, engine.context_length))
    size = max_num_seqs if static else len(requests)
    groups = [finish(fresh, requests[at : at + size], config) for at in range(0, len(requests), size)]
    return served([run for runs, _ in groups for run in runs], sum(seconds for _, seconds in groups))


def served(runs: Sequence[Run], seconds: float) -> Figures:
    """Throughput, latencies and sequences in flight of runs that took ``seconds`` together. Raises LabError: none gave
    more than one token."""
    ttft = [run.metrics.ttft_ms for run in runs]
    gaps = [gap for run in runs for gap in inter_token_ms(run.events)]
    if not gaps:
        raise LabError("all requests ended with their first token: there is no time between tokens to measure.")
    return latencies(sum(len(run.token_ids) for run in runs), seconds, ttft, gaps) | in_flight(runs)


def latencies(tokens: int, seconds: float, ttft: Sequence[float], itl: Sequence[float]) -> Figures:
    """Tokens per second overall; p50 and p99 of TTFT (one per request) and ITL (of all requests), in milliseconds."""
    figures = {"tokens_per_second": tokens / seconds}
    for name, values in (("ttft", ttft), ("itl", itl)):
        for percent in (50, 99):
            figures[f"{name}_p{percent}_ms"] = float(np.percentile(values, percent))
    return figures


def in_flight(runs: Sequence[Run]) -> Figures:
    """Sequences per step, slots reserved but not used, preemptions. Means are over the steps.

    A step of n sequences is reported n times, once to each, so each report counts as 1/n. Without a cache nothing is
    reserved.
    """
    events = [event for run in runs for event in run.events]
    reports = [event for event in events if isinstance(event, StepTimed)]
    count = sum(1 / event.batch_sequences for event in reports)
    reserved = sum(event.kv_reserved_bytes for event in reports)
    wasted = reserved - sum(event.kv_used_bytes for event in reports)
    slot_bytes = runs[0].started.block_bytes / runs[0].config.block_size
    return {
        "most_sequences": max(event.running for event in events if isinstance(event, Admitted)),
        "mean_sequences": len(reports) / count,
        "wasted_slots": wasted / slot_bytes / count if reserved else 0.0,
        "wasted_share": wasted / reserved if reserved else 0.0,
        "preemptions": sum(isinstance(event, Preempted) for event in events),
    }


def summarise(samples: Sequence[Figures]) -> Figures:
    """Medians, and quartiles of the tokens per second."""
    lower, upper = map(float, np.percentile([figures["tokens_per_second"] for figures in samples], (25, 75)))
    medians = {name: statistics.median(figures[name] for figures in samples) for name in samples[0]}
    return medians | {"lower": lower, "upper": upper}


def memory_rows(engine: Engine, prompts: Sequence[str], most: int) -> tuple[Rows, dict[str, object]]:
    """Requests that each write one paragraph of at most ``most`` tokens, of a length that nobody knows in advance.

    A seed determines a text in any batch and any cache, except where a draw falls within rounding of another token
    (1e-7: seen once in 2,000 tokens), so all rows do nearly the same work:

    - contiguous, the most: a request reserves the most it may need, as it has to;
    - contiguous, foreseen: it reserves what it will turn out to need, which no server knows;
    - paged: it allocates blocks as it goes.

    Returns:
        What measures each row, and the setting that they share.
    """
    requests = [
        PlannedRequest(prompt, SamplingParams(max_tokens=most, temperature=1.0, seed=i, stop=("\n",)))
        for i, prompt in enumerate([*prompts, *prompts])
    ]
    runs, _ = finish(engine, requests, EngineConfig(paged=True))
    output_tokens = [len(run.token_ids) for run in runs]
    foreseen = [
        replace(one, sampling=replace(one.sampling, max_tokens=tokens))
        for one, tokens in zip(requests, output_tokens, strict=True)
    ]
    block_size = EngineConfig().block_size
    filled = sum(-(-(len(run.prompt_token_ids) + len(run.token_ids)) // block_size) for run in runs)
    largest = max(-(-(len(run.prompt_token_ids) + most) // block_size) for run in runs)
    contiguous = EngineConfig(num_blocks=max(largest, filled // SCARCITY))
    rows: Rows = {
        "contiguous, the most": partial(serve, engine, requests, contiguous, max_num_seqs=len(requests)),
        "contiguous, foreseen": partial(serve, engine, foreseen, contiguous, max_num_seqs=len(requests)),
        "paged": partial(serve, engine, requests, replace(contiguous, paged=True), max_num_seqs=len(requests)),
    }
    return rows, {
        "requests": len(requests),
        "num_blocks": contiguous.num_blocks,
        "block_size": block_size,
        "blocks_all_fill": filled,
        "max_tokens": most,
        "output_tokens": output_tokens,
    }


def arrivals(
    engine: Engine,
    requests: Sequence[PlannedRequest],
    config: EngineConfig,
    *,
    every: int = 0,
    at: Sequence[float] = (),
    max_num_seqs: int = 64,
    cancelled: threading.Event | None = None,
) -> Iterator[BatchStep]:
    """Decode ``requests``, which arrive all at once, one ``every`` so many steps, or each ``at`` a time in seconds (in
    order, as many as there are requests), with the models of ``engine`` and nothing cached. Each has its own cache
    priority. Their sequences are numbered (``owner``) in order: all continuations of a request, then the next one's.
    Steps in which nothing happens, because the next request has not arrived, take no time and are left out.

    Setting ``cancelled`` ends it after the step under way; the last step then reports that the requests have ended.
    Raises LabError: one of the requests can never be decoded, or the synthetic drafter is asked for. None is begun
    then.
    """
    if config.speculative == "synthetic":
        raise ConfigError(
            "speculative='synthetic' decodes every request plainly before it begins, so requests would not arrive "
            "when they should. Choose another drafter."
        )
    cancelled = cancelled or threading.Event()
    heard: list[BatchEvent] = []
    began = time.perf_counter()

    def watch(owner: int, seconds: float, event: Event) -> None:
        heard.append(BatchEvent((seconds - began) * 1000, owner, event))

    own = engine.clone(max_num_seqs=max_num_seqs, on_event=watch)
    coming = deque(
        own.prepare(
            one.prompt,
            replace(config, cache_priority=one.cache_priority),
            one.sampling,
            continuations=one.continuations,
            cancelled=cancelled,
        )
        for one in requests
    )
    began = time.perf_counter()
    step = left = come = 0
    while True:
        if cancelled.is_set():
            coming.clear()
        while coming and (time.perf_counter() - began >= at[come] if at else step >= come * every):
            left += len(coming.popleft()())
            come += 1
        if at and coming and not left:
            cancelled.wait(max(0.0, at[come] - (time.perf_counter() - began)))
            continue
        own.step()
        step += 1
        entries, heard[:] = heard[:], []
        left -= sum(isinstance(entry.event, Finished) for entry in entries)
        last = not (coming or left)
        if entries or last:
            yield BatchStep(entries, last)
        if last:
            return
