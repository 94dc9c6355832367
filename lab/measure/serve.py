"""Serving: many requests at once against one after another, in time and in memory.

All requests of a measurement arrive at the same moment, so time to first token includes waiting.
Everything runs on the same weights in one process, every measurement on a fresh engine: no
cache carries over. Rows take turns; figures are medians over the repeats.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

import numpy as np

from lab.bench.stock_batching import serve_stock
from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine, batched_tokens
from lab.errors import LabError
from lab.measure.interval import Interval, factor_interval
from lab.measure.measuring import Figures, finish, latencies, serve, summarise, take_turns
from lab.measure.prompts import PROMPTS as OPENINGS
from lab.measure.prompts import longest
from lab.measure.workload import Job, LogNormalLengths, exactly, write
from lab.util.messages import format_rate

Rows = dict[str, Callable[[], Figures]]

GAMMA = 4
SIZES = (1, 2, 4, 8, 16, 32)
TEMPERATURES = (0.0, 0.8)
GROWTH_REQUESTS, GROWTH_TOKENS = 96, 64
"""Requests in each row on growth, and the output of each. All rows have the same ones: as one ends, the next begins, so
that the batch keeps its size until the last of them."""
SHARED_TOKENS = 192
"""Length of the system prompt with which all prompts begin in the rows on a shared prefix."""
PARAGRAPH_TOKENS = 384
"""The most a request may need in the rows on memory."""
SCARCITY = 3
"""In those rows the pool has a third of the blocks that all requests together fill in the end."""
PAYS, LOSES, UNTOLD = "pays", "loses", "cannot be told"
"""What speculation does at a batch size."""


def run_serve(engine: Engine, count: int, seed: int, repeats: int, report: Callable[[str], None]) -> dict[str, object]:
    """All three parts, ``count`` requests at once in the first, with lengths drawn by ``seed``.

    Returns:
        A JSON-ready dict: ``throughput``, ``growth`` and ``memory`` by row, and the ratios that matter.

    Raises:
        LabError: the model's context is too short for the requests; and what ``serve`` raises.
    """

    def measure(rows: Rows) -> dict[str, Figures]:
        return {name: summarise(samples) for name, samples in take_turns(rows, repeats, report).items()}

    lengths = LogNormalLengths()
    prompt_tokens, output_tokens = lengths.draw(count, seed), lengths.draw(count, seed + 1)
    _refuse_short(engine, max(prompt_tokens), max(output_tokens))
    report(f"{count} requests, {lengths}, seed {seed}.")
    report(f"Prompts: an opening and {spread(prompt_tokens)}. Outputs: {spread(output_tokens)}.")
    prompts = write(engine, prompt_tokens)
    throughput = measure(throughput_rows(engine, exactly(prompts, output_tokens)))
    report("Speculation while the batch grows:")
    growth_samples = take_turns(growth_rows(engine), repeats, report)
    growth = {name: summarise(samples) for name, samples in growth_samples.items()}
    report("Contiguous and paged in the same few blocks:")
    rows, memory_setting = memory_rows(engine, prompts, PARAGRAPH_TOKENS)
    report(f"{memory_setting['requests']} paragraphs of {spread(memory_setting['output_tokens'])}")
    memory = measure(rows)
    return {
        "requests": count,
        "seed": seed,
        "repeats": repeats,
        "dtype": engine.dtype,
        "target": engine.target.name,
        "draft": engine.draft.name,
        "lengths": {"distribution": "log-normal, rounded and clipped", **asdict(lengths)},
        "prompt_tokens_after_opening": prompt_tokens,
        "output_tokens": output_tokens,
        "unit": "medians over repeats; tokens_per_second (of output, from the last arrival on) with quartiles; ms",
        "shared_prefix_tokens": SHARED_TOKENS,
        "throughput": throughput,
        "growth_setting": {
            "requests": GROWTH_REQUESTS,
            "output_tokens": GROWTH_TOKENS,
            "num_speculative_tokens": GAMMA,
        },
        "growth": growth,
        "speculation": {f"temperature {t:g}": speculation(growth_samples, t) for t in TEMPERATURES},
        "memory_setting": memory_setting,
        "memory": memory,
        "ratios": ratios(throughput, growth, memory),
    }


def _refuse_short(engine: Engine, prompt: int, output: int) -> None:
    """Raises LabError if the model's context would cut the longest request short, or its prompt would not fit."""
    opening = longest(engine, OPENINGS)
    shared = opening + SHARED_TOKENS + 1  # and a line break
    needed = opening + prompt + max(shared + output, PARAGRAPH_TOKENS)
    if needed > engine.context_length:
        raise LabError(
            f"{engine.target.name} holds {engine.context_length:,} tokens, and a request of this bench takes up to "
            f"{needed:,}. Choose a --target with a longer context."
        )


def spread(lengths: list[int]) -> str:
    low, middle, high = np.percentile(lengths, (0, 50, 100)).astype(int)
    return f"{low} to {high} tokens (median {middle}, mean {np.mean(lengths):.0f})"


# -- the rows --------------------------------------------------------------------------------


def throughput_rows(engine: Engine, jobs: list[Job]) -> Rows:
    prefix = write(engine, [SHARED_TOKENS])[0]
    alike = [Job(f"{prefix}\n{job.prompt}", job.sampling) for job in jobs]
    contiguous, paged = EngineConfig(), EngineConfig(paged=True)
    caching = EngineConfig(paged=True, enable_prefix_caching=True)

    def stock() -> Figures:
        runs = serve_stock(engine, jobs, batched_tokens(engine.target))
        return latencies(sum(map(len, runs.outputs)), runs.seconds, runs.ttft, runs.gaps)

    return {
        "one after another": partial(serve, engine, jobs, contiguous, max_num_seqs=1),
        "batched contiguous": partial(serve, engine, jobs, contiguous, max_num_seqs=len(jobs)),
        "batched paged": partial(serve, engine, jobs, paged, max_num_seqs=len(jobs)),
        "shared prefix, computed": partial(serve, engine, alike, paged, max_num_seqs=len(jobs)),
        "shared prefix, cached": partial(serve, engine, alike, caching, max_num_seqs=len(jobs)),
        "transformers": stock,
    }


def growth_rows(engine: Engine) -> Rows:
    prompts = write(engine, [8] * GROWTH_REQUESTS)
    rows: Rows = {}
    for temperature in TEMPERATURES:
        jobs = exactly(prompts, [GROWTH_TOKENS] * GROWTH_REQUESTS, temperature)
        for size in SIZES:
            for speculative in ("off", "draft"):
                config = EngineConfig(paged=True, speculative=speculative, num_speculative_tokens=GAMMA)
                rows[growth_name(size, temperature, speculative)] = partial(
                    serve, engine, jobs, config, max_num_seqs=size
                )
    return rows


def growth_name(size: int, temperature: float, speculative: str) -> str:
    return f"{size} at once, temperature {temperature:g}, speculation {speculative}"


def memory_rows(engine: Engine, prompts: list[str], most: int) -> tuple[Rows, dict[str, object]]:
    """Every request writes one paragraph of at most ``most`` tokens, and nobody knows in advance how long it gets: the
    model's own long tail.

    A seed determines a text in any batch and any cache, except where a draw falls within rounding of another token
    (1e-7: seen once in 2,000 tokens), so all rows do the same work, or nearly:

    - contiguous, the most: a request reserves the most it may need, as it has to;
    - contiguous, foreseen: it reserves what it will turn out to need, which no server knows;
    - paged: it takes blocks as it goes.
    """
    jobs = [
        Job(prompt, SamplingParams(max_tokens=most, temperature=1.0, seed=i, stop=("\n",)))
        for i, prompt in enumerate(2 * prompts)
    ]
    runs, _ = finish(engine, jobs, EngineConfig(paged=True))
    output_tokens = [len(run.token_ids) for run in runs]
    foreseen = [
        replace(job, sampling=replace(job.sampling, max_tokens=tokens))
        for job, tokens in zip(jobs, output_tokens, strict=True)
    ]
    block_size = EngineConfig().block_size
    filled = sum(-(-(len(run.prompt_token_ids) + len(run.token_ids)) // block_size) for run in runs)
    largest = max(-(-(len(run.prompt_token_ids) + most) // block_size) for run in runs)
    contiguous = EngineConfig(num_blocks=max(largest, filled // SCARCITY))
    rows: Rows = {
        "contiguous, the most": partial(serve, engine, jobs, contiguous, max_num_seqs=len(jobs)),
        "contiguous, foreseen": partial(serve, engine, foreseen, contiguous, max_num_seqs=len(jobs)),
        "paged": partial(serve, engine, jobs, replace(contiguous, paged=True), max_num_seqs=len(jobs)),
    }
    return rows, {
        "requests": len(jobs),
        "num_blocks": contiguous.num_blocks,
        "block_size": block_size,
        "blocks_all_fill": filled,
        "max_tokens": most,
        "output_tokens": output_tokens,
    }


# -- what follows from them ------------------------------------------------------------------


def ratio(figures: dict[str, Figures], row: str, base: str) -> float:
    return figures[row]["tokens_per_second"] / figures[base]["tokens_per_second"]


def speculation(samples: dict[str, list[Figures]], temperature: float) -> dict[str, object]:
    """Speed with speculation / without by batch size, and what can be told from it.

    Returns:
        ``ratio_by_size``: of the medians. ``sure_by_size``: the ratio repeat by repeat, its mean and 95% interval
        (``factor_interval``). ``told_by_size``: "pays" or "loses" if the whole interval is on that side of 1, else
        "cannot be told". ``stops_paying_at``: the size from which on it loses at every size. None: that cannot be told,
        or there is none.
    """
    by_size, sure, told = {}, {}, {}
    for size in SIZES:
        off, on = (
            [figures["tokens_per_second"] for figures in samples[growth_name(size, temperature, way)]]
            for way in ("off", "draft")
        )
        by_size[size] = statistics.median(on) / statistics.median(off)
        one = factor_interval([fast / plain for fast, plain in zip(on, off, strict=True)])
        sure[size] = asdict(one)
        told[size] = UNTOLD
        if one.low is not None and (one.low > 1 or one.high < 1):
            told[size] = PAYS if one.low > 1 else LOSES
    losing = [size for i, size in enumerate(SIZES) if all(told[later] == LOSES for later in SIZES[i:])]
    return {
        "ratio_by_size": by_size,
        "sure_by_size": sure,
        "told_by_size": told,
        "stops_paying_at": min(losing, default=None),
    }


def ratios(throughput: dict[str, Figures], growth: dict[str, Figures], memory: dict[str, Figures]) -> dict[str, float]:
    def alone(size: int) -> float:
        return ratio(growth, growth_name(size, 0.0, "off"), growth_name(1, 0.0, "off"))

    return {
        "batched contiguous / one after another": ratio(throughput, "batched contiguous", "one after another"),
        "batched paged / one after another": ratio(throughput, "batched paged", "one after another"),
        "transformers / one after another": ratio(throughput, "transformers", "one after another"),
        "batched paged / transformers": ratio(throughput, "batched paged", "transformers"),
        "shared prefix, cached / computed": ratio(throughput, "shared prefix, cached", "shared prefix, computed"),
        **{f"{size} of one length at once / one": alone(size) for size in SIZES[1:]},
        "paged / contiguous, the most, in the same blocks": ratio(memory, "paged", "contiguous, the most"),
        "paged / contiguous, foreseen, in the same blocks": ratio(memory, "paged", "contiguous, foreseen"),
    }


# -- tables ----------------------------------------------------------------------------------

LATENCY = {"TTFT p50": "ttft_p50_ms", "p99": "ttft_p99_ms", "ITL p50": "itl_p50_ms", "p99 ": "itl_p99_ms"}
FLIGHT = {"in flight": "most_sequences", "mean": "mean_sequences"}
WASTE = {"wasted slots": "wasted_slots", "share": "wasted_share", "preempted": "preemptions"}


def format_serve(result: dict) -> str:
    """The three tables, speculation by size, and the ratios."""
    lines = [table(result["throughput"], LATENCY | FLIGHT), table(result["memory"], FLIGHT | WASTE)]
    for temperature, found in result["speculation"].items():
        lines.append(f"speculation (gamma {GAMMA}) / without at {temperature}, by batch size; repeat by repeat; so it")
        for size, value in found["ratio_by_size"].items():
            sure = Interval(**found["sure_by_size"][size])
            lines.append(f"{size:>6}: {value:.2f}   {sure!s:30}{found['told_by_size'][size]}")
        stops = found["stops_paying_at"]
        lines.append(f"from {stops} on it loses\n" if stops else "no size from which on it surely loses\n")
    lines += [f"{value:6.2f}  {name}" for name, value in result["ratios"].items()]
    return "\n".join(lines)


def table(rows: dict[str, Figures], columns: dict[str, str]) -> str:
    lines = [f"{'':24} tokens/s   quartiles   " + "".join(f"{title:>14}" for title in columns)]
    for name, row in rows.items():
        quartiles = f"{format_rate(row['lower'])} to {format_rate(row['upper'])}"
        cells = "".join(f"{row[key]:14.4g}" if key in row else f"{'-':>14}" for key in columns.values())
        lines.append(f"{name:24} {format_rate(row['tokens_per_second']):>8}   {quartiles:12}{cells}")
    return "\n".join(lines) + "\n"
