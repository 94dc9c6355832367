"""Part 4: how many sequences of a long-tailed mix fit in a fixed piece of memory, and how fast they run together."""

import torch

from lab.bench.gpu.random_models import LLAMA_8B, TINY_TARGET, Scripted, engine, prompt, random_script
from lab.bench.gpu.sheet import Sheet, clean_up
from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.measure.measuring import finish
from lab.measure.throughput import in_flight
from lab.measure.workload import LogNormalLengths, PlannedRequest
from lab.trace.events import Admitted
from lab.util.device_memory import free_bytes

KV_BYTES = 20 * 10**9
REQUESTS = 256
"""More than fit with INT8: with fewer, it would look as if no more fitted."""
LENGTHS = LogNormalLengths(median=1024, sigma=0.8, shortest=16, longest=3072)
"""Lengths of prompts. An answer's is not known in advance: it may take up to 4,096 tokens and ends when it ends."""
MEAN_OUTPUT = 128
CONFIGS = {
    "paged": EngineConfig(paged=True),
    "paged INT8": EngineConfig(paged=True, kv_dtype="int8"),
    "contiguous": EngineConfig(),
}


def run_capacity(sheet: Sheet, *, device: torch.device, dtype: torch.dtype, small: bool) -> None:
    """Fill ``rows``: most and mean sequences in flight, how many others waited at the peak, the share of reserved slots
    unused, preemptions, and output tokens per second overall.

    A seed determines where an answer ends, so all rows do the same work. Raises LabError: the device is too small.
    """
    shape, requests, most, mean, kv_bytes = LLAMA_8B, REQUESTS, 4096, MEAN_OUTPUT, KV_BYTES
    lengths = LENGTHS.draw(requests, seed=0)
    if small:
        shape, requests, most, mean, kv_bytes = TINY_TARGET, 6, 96, 8, 160_000
        lengths = [4 + 3 * i for i in range(requests)]
    target = Scripted(shape, random_script(shape, device), "8B-shaped", dtype=dtype, device=device, end=1 / mean)
    if device.type == "cuda" and free_bytes(device) < 1.2 * kv_bytes:
        raise LabError(f"the caches of this part take {kv_bytes / 1e9:.0f} GB, and {device} has less.")
    jobs = [
        PlannedRequest(prompt(length, first=i), SamplingParams(max_tokens=most, temperature=1.0, seed=i))
        for i, length in enumerate(lengths)
    ]
    short = [PlannedRequest(job.prompt, SamplingParams(max_tokens=4, temperature=1.0, seed=0)) for job in jobs[:2]]
    sheet.result |= {"kv_bytes": kv_bytes, "max_tokens": most, "mean_output": mean, "rows": {}}
    longest = max(lengths) + 8 * mean  # one answer in three thousand is longer
    for name, config in CONFIGS.items():
        with sheet.attempt(name):
            lab = engine(target, max_num_seqs=requests, kv_bytes=kv_bytes)
            finish(lab, short, config)  # compiles what has to be compiled
            lab.warm_up(config, sequences=_max_num_seqs(lab, config, lengths, most), longest=longest)
            sheet.result["rows"][name] = _serve(lab, jobs, config)
        lab = None
        clean_up(device)
        sheet.say(f"  {name} done")


def _max_num_seqs(lab: Engine, config: EngineConfig, lengths: list[int], most: int) -> int:
    """The most sequences that can be in flight: as many of the shortest as the memory holds."""
    least = min(lengths) + (0 if config.paged else most)
    return min(len(lengths), max(1, lab.default_num_blocks(config) * config.block_size // least))


def _serve(lab: Engine, jobs: list[PlannedRequest], config: EngineConfig) -> dict[str, float]:
    runs, seconds = finish(lab, jobs, config)
    figures = in_flight(runs)
    admitted = [event for run in runs for event in run.events if isinstance(event, Admitted)]
    tokens = sum(len(run.token_ids) for run in runs)
    return {
        **figures,
        "waited_then": max(event.waiting for event in admitted if event.running == figures["most_sequences"]),
        "requests": len(jobs),
        "blocks": runs[0].started.num_blocks,
        "output_tokens": tokens,
        "tokens_per_second": tokens / seconds,
    }
