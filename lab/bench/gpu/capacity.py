"""Part 4: how many sequences of a long-tailed mix fit in a fixed piece of memory, and how fast they go together."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from lab.bench.gpu.device import clean_up, free_bytes
from lab.bench.gpu.large import refuse_failures
from lab.bench.gpu.models import LLAMA_8B, TINY_TARGET, Scripted, engine, prompt, random_script
from lab.bench.measuring import finish, in_flight
from lab.bench.workload import Job, Lengths
from lab.config import EngineConfig, LabError, SamplingParams

KV_BYTES = 20 * 10**9
REQUESTS = 224
LENGTHS = Lengths(median=768, sigma=0.8, shortest=16, longest=2048)
"""Of prompts. An answer's length nobody knows: it is asked for up to 4,096 tokens and ends when it ends."""
MEAN_OUTPUT = 256
CONFIGS = {
    "contiguous": EngineConfig(),
    "paged": EngineConfig(paged=True),
    "paged INT8": EngineConfig(paged=True, kv_dtype="int8"),
}


def run_capacity(result: dict, report: Callable[[str], None], *, device: torch.device, small: bool) -> None:
    """Fill ``result["rows"]``: most and mean sequences in flight, the share of reserved slots unused, preemptions, and
    output tokens a second of the whole.

    A seed settles where an answer ends, so all rows do the same work.
    """
    shape, requests, most, mean, kv_bytes = LLAMA_8B, REQUESTS, 4096, MEAN_OUTPUT, KV_BYTES
    lengths = LENGTHS.draw(requests, seed=0)
    if small:
        shape, requests, most, mean, kv_bytes = TINY_TARGET, 6, 96, 8, 160_000
        lengths = [4 + 3 * i for i in range(requests)]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target = Scripted(shape, random_script(shape, device), "8B-shaped", dtype=dtype, device=device, end=1 / mean)
    if device.type == "cuda" and free_bytes(device) < 1.2 * kv_bytes:
        raise LabError(f"the caches of this part take {kv_bytes / 1e9:.0f} GB, and {device} has less.")
    jobs = [
        Job(prompt(length, first=i), SamplingParams(max_tokens=most, temperature=1.0, seed=i))
        for i, length in enumerate(lengths)
    ]
    result |= {"kv_bytes": kv_bytes, "requests": requests, "max_tokens": most, "mean_output": mean, "rows": {}}
    longest = max(lengths) + 8 * mean  # an answer of more is one in three thousand
    for name, config in CONFIGS.items():
        lab = engine(target, max_num_seqs=requests, kv_bytes=kv_bytes)
        began = time.perf_counter()
        finish(lab, jobs[:2], config)  # compiles what is to be compiled
        lab.warm_up(config, sequences=requests, longest=longest)
        runs, seconds = finish(lab, jobs, config)
        refuse_failures(runs)
        figures = in_flight(runs)
        tokens = sum(len(run.token_ids) for run in runs)
        result["rows"][name] = {
            **figures,
            "blocks": runs[0].started.num_blocks,
            "output_tokens": tokens,
            "tokens_per_second": tokens / seconds,
        }
        report(f"  {name}: {figures['most_sequences']} at once ({time.perf_counter() - began:.0f} s)")
        del lab, runs
        clean_up(device)


def format_capacity(result: dict) -> list[str]:
    return [
        f"{row['tokens_per_second']:9.1f} tokens/s  {name}: at most {row['most_sequences']} at once, "
        f"{row['mean_sequences']:.0f} in the mean, {row['wasted_share']:.0%} of what is reserved unused"
        for name, row in result.get("rows", {}).items()
    ]
