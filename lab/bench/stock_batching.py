"""transformers' own continuous batching, to compare with the lab's."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

from transformers import ContinuousBatchingConfig, GenerationConfig

from lab.bench.ladder import BY_TORCH
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.measure.workload import PlannedRequest

PAGE_SIZE = 16


@dataclass(frozen=True)
class StockRuns:
    """``outputs``: token ids of each request. ``seconds``: for all of them. ``ttft`` and ``itl`` in milliseconds: of
    every request, and between all neighbouring tokens.
    """

    outputs: list[list[int]]
    seconds: float
    ttft: list[float]
    itl: list[float]


def serve_stock(engine: Engine, requests: list[PlannedRequest], max_batch_tokens: int) -> StockRuns:
    """Decode all requests greedily at once, each to its own length.

    ``generate_batch`` takes one length for all; the manager that it calls takes one per request. Neither making
    its cache nor stopping its thread is timed, and it is given token ids, not text.

    Raises:
        LabError: it did not finish.
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
    return StockRuns(
        [output.generated_tokens for output in outputs],
        seconds,
        [1000 * (output.timestamps[0] - output.created_time) for output in outputs],
        [1000 * (after - before) for output in outputs for before, after in itertools.pairwise(output.timestamps)],
    )
