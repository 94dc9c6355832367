"""Serving: many requests at once against one after another, in time and in memory.

All requests of a measurement arrive at the same moment, so TTFT includes waiting. Every measurement runs on a fresh
engine with the same weights: no cache carries over. Rows take turns; figures are medians over the repeats.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import numpy as np
from transformers import ContinuousBatchingConfig, GenerationConfig

from lab.bench.ladder import BY_TORCH
from lab.bench.output import spread as quartiles
from lab.config import EngineConfig
from lab.engine.engine import Engine
from lab.engine.step_limits import batched_tokens
from lab.errors import LabError
from lab.measure.interval import factor_interval
from lab.measure.interval import ratios as paired
from lab.measure.measuring import take_turns
from lab.measure.throughput import Figures, Rows, latencies, memory_rows, serve, summarise
from lab.measure.workload import PROMPTS, LogNormalLengths, PlannedRequest, exactly, longest, write

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
BY_BATCH = "1-2:4 3-6:2 7-64:0"
"""Gamma by batch size, as the Pool page's preset has it."""
GAMMA_CONFIGS = {
    "no speculation": EngineConfig(paged=True),
    **{f"gamma {g}": EngineConfig(paged=True, speculative="draft", num_speculative_tokens=g) for g in (2, 4)},
    BY_BATCH: EngineConfig(paged=True, speculative="draft", num_speculative_tokens_per_batch_size=BY_BATCH),
}
GAMMA_LOADS = {1: 16, 4: 32, 16: 48, 32: 64}
"""Requests in all by how many run at once."""
SHRINKING_TOKENS = 8
"""The first of the requests that end one by one has so many tokens of output, the next twice as many, and so on."""
PAYS, LOSES, UNCLEAR = "pays", "loses", "too close to call"
"""The effect of speculation at a batch size."""


def run_serve(
    engine: Engine, requests: int, seed: int, repeats: int, report: Callable[[str], None]
) -> dict[str, object]:
    """All three parts, ``requests`` of them at once in the first, with lengths drawn by ``seed``. Raises LabError: the
    model's context is too short for the requests; and see ``serve``."""

    def measure(rows: Rows) -> dict[str, Figures]:
        return {name: summarise(samples) for name, samples in take_turns(rows, repeats, report).items()}

    lengths = LogNormalLengths()
    prompt_tokens, output_tokens = lengths.draw(requests, seed), lengths.draw(requests, seed + 1)
    _refuse_short(engine, max(prompt_tokens), max(output_tokens))
    report(f"{requests} requests, {lengths}, seed {seed}.")
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
    opening = longest(engine, PROMPTS)
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


def throughput_rows(engine: Engine, requests: list[PlannedRequest]) -> Rows:
    prefix = write(engine, [SHARED_TOKENS])[0]
    alike = [PlannedRequest(f"{prefix}\n{one.prompt}", one.sampling) for one in requests]
    count, paged = len(requests), EngineConfig(paged=True)
    caching = EngineConfig(paged=True, enable_prefix_caching=True)

    return {
        "one after another": partial(serve, engine, requests, EngineConfig(), max_num_seqs=1),
        "batched contiguous": partial(serve, engine, requests, EngineConfig(), max_num_seqs=count),
        "batched paged": partial(serve, engine, requests, paged, max_num_seqs=count),
        "shared prefix, computed": partial(serve, engine, alike, paged, max_num_seqs=count),
        "shared prefix, cached": partial(serve, engine, alike, caching, max_num_seqs=count),
        "transformers": lambda: serve_stock(engine, requests, batched_tokens(engine.target))[1],
    }


def growth_rows(engine: Engine) -> Rows:
    prompts = write(engine, [8] * GROWTH_REQUESTS)
    rows: Rows = {}
    for temperature in TEMPERATURES:
        requests = exactly(prompts, [GROWTH_TOKENS] * GROWTH_REQUESTS, temperature)
        for size in SIZES:
            for speculative in ("off", "draft"):
                config = EngineConfig(paged=True, speculative=speculative, num_speculative_tokens=GAMMA)
                name = growth_name(size, temperature, speculative)
                rows[name] = partial(serve, engine, requests, config, max_num_seqs=size)
    return rows


def growth_name(size: int, temperature: float, speculative: str) -> str:
    return f"{size} at once, temperature {temperature:g}, speculation {speculative}"


def speculation(samples: dict[str, list[Figures]], temperature: float) -> dict[str, object]:
    """Speed with speculation / without, by batch size: of the medians (``ratio_by_size``), and repeat by repeat, as its
    mean and 95% interval (``sure_by_size``). It "pays" or "loses" if the whole interval is on that side of 1, else that
    "too close to call". ``stops_paying_at``: the size from which on it loses at every size, if there is one."""
    by_size, sure, effect = {}, {}, {}
    for size in SIZES:
        off, on = (
            [figures["tokens_per_second"] for figures in samples[growth_name(size, temperature, way)]]
            for way in ("off", "draft")
        )
        by_size[size] = statistics.median(on) / statistics.median(off)
        one = factor_interval([fast / plain for fast, plain in zip(on, off, strict=True)])
        sure[size] = asdict(one)
        clear = one.low is not None and not one.low <= 1 <= one.high
        effect[size] = UNCLEAR if not clear else PAYS if one.low > 1 else LOSES
    losing = [size for i, size in enumerate(SIZES) if all(effect[later] == LOSES for later in SIZES[i:])]
    return {
        "ratio_by_size": by_size,
        "sure_by_size": sure,
        "told_by_size": effect,
        "stops_paying_at": min(losing, default=None),
    }


def run_gammas(engine: Engine, repeats: int, report: Callable[[str], None]) -> dict[str, object]:
    """Gamma by batch size (``BY_BATCH``) against fixed gammas and no speculation, at batches that keep their size and
    one that shrinks from the largest to one sequence. Within a load, settings take turns.

    Returns:
        Of each load, every setting's output tokens per second, and the table's over each of the others, repeat by
        repeat, as medians with quartiles. Raises LabError: see ``serve``.
    """
    prompts = write(engine, [8] * max(GAMMA_LOADS.values()))
    seats = {f"{size} at once": (size, [GROWTH_TOKENS] * count) for size, count in GAMMA_LOADS.items()}
    largest = max(GAMMA_LOADS)
    seats[f"{largest} that end one by one"] = largest, [SHRINKING_TOKENS * (i + 1) for i in range(largest)]
    speeds, gains = {}, {}
    for load, (size, lengths) in seats.items():
        report(f"{load}:")
        requests = exactly(prompts[: len(lengths)], lengths, TEMPERATURES[-1])
        rows: Rows = {
            name: partial(serve, engine, requests, config, max_num_seqs=size) for name, config in GAMMA_CONFIGS.items()
        }
        samples = {
            name: [one["tokens_per_second"] for one in some] for name, some in take_turns(rows, repeats, report).items()
        }
        table = samples.pop(BY_BATCH)
        gains[load] = {name: quartiles(paired(table, some)) for name, some in samples.items()}
        speeds[load] = {name: quartiles(some) for name, some in (samples | {BY_BATCH: table}).items()}
    return {
        "temperature": TEMPERATURES[-1],
        "unit": "output tokens per second, and the table's over each setting's in the same repeat: medians, quartiles",
        "requests": {load: len(lengths) for load, (_, lengths) in seats.items()},
        "output_tokens": {load: [min(lengths), max(lengths)] for load, (_, lengths) in seats.items()},
        "tokens_per_second": speeds,
        "table_over": gains,
    }


def ratios(throughput: dict[str, Figures], growth: dict[str, Figures], memory: dict[str, Figures]) -> dict[str, float]:
    def over(figures: dict[str, Figures], row: str, base: str) -> float:
        return figures[row]["tokens_per_second"] / figures[base]["tokens_per_second"]

    one, plain = growth_name(1, 0.0, "off"), "one after another"
    return {
        "batched contiguous / one after another": over(throughput, "batched contiguous", plain),
        "batched paged / one after another": over(throughput, "batched paged", plain),
        "transformers / one after another": over(throughput, "transformers", plain),
        "batched paged / transformers": over(throughput, "batched paged", "transformers"),
        "shared prefix, cached / computed": over(throughput, "shared prefix, cached", "shared prefix, computed"),
        **{
            f"{size} of one length at once / one": over(growth, growth_name(size, 0.0, "off"), one)
            for size in SIZES[1:]
        },
        "paged / contiguous, the most, in the same blocks": over(memory, "paged", "contiguous, the most"),
        "paged / contiguous, foreseen, in the same blocks": over(memory, "paged", "contiguous, foreseen"),
    }


PAGE_SIZE = 16


def serve_stock(
    engine: Engine, requests: list[PlannedRequest], max_batch_tokens: int
) -> tuple[list[list[int]], Figures]:
    """transformers' own continuous batching: decode all requests greedily at once, each to its own length.

    ``generate_batch`` takes one length for all; the manager that it calls takes one per request. Neither making
    its cache nor stopping its thread is timed, and it is given token ids, not text.

    Returns:
        The token ids of each, and ``latencies``. Raises LabError: it did not finish.
    """
    prompts = [engine.tokenizer(one.prompt)["input_ids"] for one in requests]
    longest = max(len(prompt) + one.sampling.max_tokens for prompt, one in zip(prompts, requests, strict=True))
    settings = ContinuousBatchingConfig(
        page_size=PAGE_SIZE,
        num_blocks=len(requests) * -(-longest // PAGE_SIZE),
        max_batch_tokens=max_batch_tokens,
        max_requests_per_batch=len(requests),
        allow_block_sharing=False,
        auto_switch_to_flash=False,
    )
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1)
    results = {}
    with (
        engine.models(BY_TORCH)[0].stock_attention() as model,
        model.continuous_batching_context_manager(greedy, continuous_batching_config=settings) as manager,
    ):
        began = time.perf_counter()
        names = [
            manager.add_request(prompt, max_new_tokens=one.sampling.max_tokens, record_timestamps=True)
            for prompt, one in zip(prompts, requests, strict=True)
        ]
        while len(results) < len(requests):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                results[result.request_id] = result
            elif not manager.is_running():
                raise LabError("transformers' continuous batching stopped before its requests were done.")
        seconds = time.perf_counter() - began
    outputs = [results[name] for name in names]
    if failed := next((output.error for output in outputs if output.error), None):
        raise LabError(f"transformers' continuous batching failed: {failed}")
    ttft = [1000 * (output.timestamps[0] - output.created_time) for output in outputs]
    itl = [1000 * (after - before) for one in outputs for before, after in itertools.pairwise(one.timestamps)]
    tokens = [output.generated_tokens for output in outputs]
    return tokens, latencies(sum(map(len, tokens)), seconds, ttft, itl)
