"""A long prompt read with each attention back end, within the same layers: what flash attention saves."""

from __future__ import annotations

from lab.bench.gpu.random_models import prompt
from lab.bench.gpu.sheet import Sheet, spread
from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.measure.measuring import refuse_failure, steps

ROWS = {
    "flash": ("flash", "transformers'"),
    "efficient": ("efficient", "transformers'"),
    "auto": ("auto", "transformers'"),
    "auto, fused": ("auto", "fused"),
    "math": ("math", "transformers'"),
}
"""Attention and layers; the one that needs the most memory last. "auto" is the engine's own kernels on a GPU. Only with
them are layers fused, so back ends are compared within transformers' layers."""
RUNS = 3


def time_prefill(sheet: Sheet, lab: Engine, unfused: Engine, tokens: int) -> None:
    """Fill ``prefill``: milliseconds of the target's passes over a prompt, and the peak memory in use.

    ``lab`` and ``unfused`` compute the same model; ``lab`` fuses its layers where kernels compute them.
    """
    found = sheet.result["prefill"] = {}
    blocks = -(-(tokens + 1) // EngineConfig().block_size)
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    for name, (choice, layers) in ROWS.items():
        if choice == "efficient" and lab.target.device.type == "cpu":
            continue  # torch has none there
        if layers == "fused" and lab.kernels != "triton":
            continue  # nor has the engine
        if not sheet.has_time(10, f"prefill by {name}"):
            continue
        with sheet.attempt(f"prefill by {name}"):
            config = EngineConfig(prefill_attention=choice, num_blocks=blocks)
            by = lab if layers == "fused" else unfused
            runs = [by.generate(prompt(tokens), config, sampling) for _ in range(1 + RUNS)][1:]
            for run in runs:
                refuse_failure(run, by)
            taken = spread([sum(step.verify_ms for step in steps(run, "prefill")) for run in runs])
            found[name] = {
                "attention": choice,
                "layers": layers,
                "tokens": tokens,
                "milliseconds": taken["median"],
                "spread": taken,
                "tokens_per_second": 1000 * tokens / taken["median"],
                "peak_bytes": max(run.metrics.peak_memory_bytes for run in runs),
            }
            sheet.say(f"  {name}: {taken['median']:.0f} ms")


def format_prefill(result: dict) -> list[str]:
    return [
        f"{row['milliseconds']:9.1f} ms        prefill of {row['tokens']:,} tokens, attention by {row['attention']}, "
        f"{row['layers']} layers, at most {row['peak_bytes'] / 1e9:.1f} GB in use"
        for row in result.get("prefill", {}).values()
    ]
