"""Part 2: a model as large as people use. How near decoding comes to the speed of memory, and speculation to theory."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from lab.bench.gpu.models import (
    LLAMA_1B,
    LLAMA_8B,
    TINY_DRAFT,
    TINY_TARGET,
    Scripted,
    engine,
    guess,
    prompt,
    random_script,
)
from lab.config import EngineConfig, LabError, SamplingParams
from lab.decode.window import tokens_per_round
from lab.trace.events import FellBack, StepTimed
from lab.trace.recorder import Run

RATES = (0.5, 0.7, 0.9)
PROMPT_TOKENS = 128


def run_large(result: dict, report: Callable[[str], None], *, device: torch.device, small: bool) -> None:
    """Fill ``result``: ``decode`` (by way of computing: tokens/s, GB/s, fraction of a copy's), and ``speculation``
    (by acceptance and gamma: measured speed-up, and the formula's with the measured c).
    """
    shapes = (TINY_TARGET, TINY_DRAFT) if small else (LLAMA_8B, LLAMA_1B)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    tokens, gammas = (24, (1, 3)) if small else (256, tuple(range(1, 9)))
    script = random_script(shapes[0], device)
    target = Scripted(shapes[0], script, "8B-shaped", dtype=dtype, device=device)
    draft = Scripted(shapes[1], script.clone(), "1B-shaped", dtype=dtype, device=device)
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    blocks = -(-(PROMPT_TOKENS + tokens) // EngineConfig().block_size) + 4

    lab = engine(target, draft)

    def decode(config: EngineConfig, sampling: SamplingParams = sampling) -> Run:
        run = lab.generate(prompt(PROMPT_TOKENS), config, sampling)
        refuse_failures([run])
        return run

    plain = EngineConfig(num_blocks=blocks)
    started = decode(plain).started
    copies = started.copy_bytes_per_second
    if copies is None:
        raise LabError(f"how fast {device} copies could not be measured.")
    token_bytes = started.block_bytes / plain.block_size
    kv_bytes = (PROMPT_TOKENS + tokens / 2) * token_bytes
    read = target.weight_bytes + kv_bytes
    result |= {
        "target_bytes": target.weight_bytes,
        "draft_bytes": draft.weight_bytes,
        "mean_kv_bytes": kv_bytes,
        "copy_gb_per_second": copies / 1e9,
        "cuda_graphs": lab.cuda_graphs,
        "decode": {},
        "speculation": [],
    }

    def measure(name: str, **changes: bool) -> float:
        config = replace(plain, **changes)
        decode(config)
        runs = [decode(config) for _ in range(3)]
        rate = statistics.median(run.metrics.tokens_per_second for run in runs)
        result["decode"][name] = {
            "tokens_per_second": rate,
            "gb_per_second": read * rate / 1e9,
            "of_copy": read * rate / copies,
            "pass_ms": statistics.median(step.verify_ms for run in runs for step in steps(run, "decode")),
            "step_ms": statistics.median(step.total_ms for run in runs for step in steps(run, "decode")),
        }
        report(f"  {name}: {rate:.1f} tokens/s, {read * rate / copies:.0%} of a copy's bandwidth")
        return rate

    base = measure("decode")
    if lab.cuda_graphs:
        measure("decode, no graphs", cuda_graphs=False)

    report("Speculation with acceptance as it is asked for:")
    for gamma in gammas:
        config = EngineConfig(num_blocks=blocks, speculative="draft", num_speculative_tokens=gamma)
        decode(config, SamplingParams(max_tokens=4 * (gamma + 1), ignore_eos=True))  # its graphs are captured
        for rate in RATES:
            draft.script.copy_(guess(script, rate))
            run = decode(config)
            rounds = [step for step in steps(run, "verify") if step.target_tokens == gamma + 1]
            proposal = statistics.median(step.draft_ms for step in rounds) / gamma
            c = proposal / result["decode"]["decode"]["step_ms"]
            formula = tokens_per_round(rate, gamma) / (1 + gamma * c)
            speedup = run.metrics.tokens_per_second / base
            result["speculation"].append(
                {
                    "acceptance": rate,
                    "gamma": gamma,
                    "c": c,
                    "proposal_ms": proposal,
                    "verify_ms": statistics.median(step.verify_ms for step in rounds),
                    "tokens_per_round": run.metrics.mean_acceptance_length,
                    "expected_tokens_per_round": tokens_per_round(rate, gamma),
                    "speedup": speedup,
                    "formula": formula,
                    "measured_over_formula": speedup / formula,
                }
            )
        report(f"  gamma {gamma} done")

    if not small:
        report("Compiled:")
        compiled, _ = lab.models(replace(plain, torch_compile=True))
        result["compile_failure"] = compiled.compile_failure
        if compiled.compiled:
            measure("decode, compiled", torch_compile=True)
            measure("decode, compiled, no graphs", torch_compile=True, cuda_graphs=False)


def steps(run: Run, kind: str) -> list[StepTimed]:
    return [event for event in run.events if isinstance(event, StepTimed) and event.step_kind == kind]


def refuse_failures(runs: Iterable[Run]) -> None:
    """Raises LabError if one failed, or went on without a part of what was to be measured."""
    for run in runs:
        fallen = next((event.reason for event in run.events if isinstance(event, FellBack)), None)
        if run.reason == "error" or fallen:
            raise LabError(fallen or run.finished.message)


def format_large(result: dict) -> list[str]:
    lines = [f"{result['copy_gb_per_second']:9.0f} GB/s      a copy, read and written"] if result else []
    lines += [
        f"{row['tokens_per_second']:9.1f} tokens/s  {name}: {row['gb_per_second']:.0f} GB/s, "
        f"{row['of_copy']:.0%} of a copy"
        for name, row in result.get("decode", {}).items()
    ]
    for rate in RATES:
        rows = [row for row in result.get("speculation", ()) if row["acceptance"] == rate]
        told = "  ".join(f"{row['gamma']}: {row['speedup']:.2f} ({row['formula']:.2f})" for row in rows)
        lines.append(f"speed-up (and the formula's) at acceptance {rate} by gamma  {told}")
    return lines
