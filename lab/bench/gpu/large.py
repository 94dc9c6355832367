"""Part 2: a model of a size in common use. How close decoding comes to memory bandwidth; speculation; prefill."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from lab.bench.gpu.random_models import (
    LLAMA_1B,
    LLAMA_8B,
    TINY_DRAFT,
    TINY_TARGET,
    Scripted,
    draft_script,
    engine,
    prompt,
    random_script,
)
from lab.bench.gpu.sheet import Sheet
from lab.bench.output import spread
from lab.config import EngineConfig, SamplingParams
from lab.engine.adaptive_window import tokens_per_round
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.measure import measuring
from lab.measure.measuring import refuse_failure, steps
from lab.trace.run import Run

PROMPT_TOKENS = 128
PASSES = 3
"""Passes over the pairs of acceptance and gamma."""
PREFILL_ROWS = {
    "flash": ("flash", "transformers'"),
    "efficient": ("efficient", "transformers'"),
    "auto": ("auto", "transformers'"),
    "auto, fused": ("auto", "fused"),
    "math": ("math", "transformers'"),
}
"""Attention and layers; the one that needs the most memory last. "auto" is the engine's own kernels on a GPU. Only with
them are layers fused, so back ends are compared within transformers' layers."""
PREFILL_RUNS = 3


def run_large(sheet: Sheet, *, device: torch.device, dtype: torch.dtype, small: bool) -> None:
    """Fill ``decode`` (by way of computing: tokens/s, GB/s, fraction of a copy's), ``speculation`` (by acceptance and
    gamma: measured speed-up, and the formula's with the measured c) and ``prefill`` (by attention back end
    within the same layers, and with fused ones).

    ``of_copy`` counts all of the time between two tokens, ``of_copy_in_pass`` only the pass, by the device's clock:
    what only the first misses is sampling's and the host's (but for packing, for which the device waits in the pass).
    """
    shapes = (TINY_TARGET, TINY_DRAFT) if small else (LLAMA_8B, LLAMA_1B)
    tokens, gammas, long = (24, (1, 3), 40) if small else (256, tuple(range(1, 9)), 8192)
    script = random_script(shapes[0], device)
    target = Scripted(shapes[0], script, "8B-shaped", dtype=dtype, device=device)
    draft = Scripted(shapes[1], script.clone(), "1B-shaped", dtype=dtype, device=device)
    lab, unfused = engine(target, draft), engine(target, fuse_layers=False)
    plain = EngineConfig(num_blocks=-(-(PROMPT_TOKENS + tokens) // EngineConfig().block_size) + 4)

    def decode(config: EngineConfig, tokens: int = tokens, by: Engine = lab) -> Run:
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
        return measuring.decode(by, prompt(PROMPT_TOKENS), config, sampling)

    started = lab.generate(prompt(4), plain, SamplingParams(max_tokens=1)).started
    copies = started.memory_bytes_per_second
    if copies is None:
        raise LabError(f"how fast {device} reads memory could not be measured.")
    token_bytes = started.block_bytes / plain.block_size
    sheet.result |= {
        "target_bytes": target.weight_bytes,
        "draft_bytes": draft.weight_bytes,
        "copy_gb_per_second": copies / 1e9,
        "cuda_graphs": lab.cuda_graphs,
        "decode": {},
    }

    def measure(name: str, runs: int, tokens: int = tokens, by: Engine = lab, **changes: bool) -> None:
        config = replace(plain, **changes)
        with sheet.attempt(name):
            decode(config, 4, by)
            measured = [decode(config, tokens, by) for _ in range(runs)]
            rates = spread([run.metrics.tokens_per_second for run in measured])
            read = target.weight_bytes + (PROMPT_TOKENS + tokens / 2) * token_bytes
            moved, timed = read * rates["median"], [step for run in measured for step in steps(run, "decode")]
            pass_ms = statistics.median(step.verify_ms for step in timed)
            sheet.result["decode"][name] = {
                "tokens_per_second": rates["median"],
                "spread": rates,
                "tokens": tokens,
                "mean_bytes": read,
                "gb_per_second": moved / 1e9,
                "of_copy": moved / copies,
                "of_copy_in_pass": read / (pass_ms / 1000) / copies,
                "pass_ms": pass_ms,
                "step_ms": statistics.median(step.total_ms for step in timed),
            }
            sheet.say(f"  {name}: {rates['median']:.1f} tokens/s, {moved / copies:.0%} of a copy's bandwidth")

    few = min(tokens, 64)  # launched one by one, kernels take several times as long
    measure("decode", 3)
    if lab.cuda_graphs:
        measure("decode, no async scheduling", 2, by=engine(target, async_scheduling=False))
    measure("decode, layers of transformers", 2, by=unfused)
    if lab.cuda_graphs:
        measure("decode, no graphs", 2, few, cuda_graphs=False)
        measure("decode, layers of transformers, no graphs", 2, few, by=unfused, cuda_graphs=False)

    sheet.say("Speculation with acceptance as it is asked for:")
    drafted = {g: replace(plain, speculative="draft", num_speculative_tokens=g) for g in gammas}
    with sheet.attempt("speculation"):
        warm_up(lab, script, drafted, PROMPT_TOKENS + tokens, decode)
        time_speculation(sheet, lab, script, plain, drafted, decode)
    sheet.say(f"Prefill of {long:,} tokens by torch's back ends and by the engine's kernels, within the same layers:")
    time_prefill(sheet, lab, unfused, long)
    if not small:
        sheet.say("Compiled:")
        measure("decode, compiled", 3, torch_compile=True)
        measure("decode, compiled, no graphs", 2, few, torch_compile=True, cuda_graphs=False)


def time_prefill(sheet: Sheet, lab: Engine, unfused: Engine, tokens: int) -> None:
    """Fill ``prefill``: milliseconds of the target's passes over a prompt, and the peak memory in use.

    ``lab`` and ``unfused`` compute the same model; ``lab`` fuses its layers where kernels compute them.
    """
    found = sheet.result["prefill"] = {}
    blocks = -(-(tokens + 1) // EngineConfig().block_size)
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    for name, (choice, layers) in PREFILL_ROWS.items():
        if choice == "efficient" and lab.target.device.type == "cpu":
            continue  # torch has none there
        if layers == "fused" and lab.kernels != "triton":
            continue  # nor has the engine
        with sheet.attempt(f"prefill by {name}"):
            config = EngineConfig(prefill_attention=choice, num_blocks=blocks)
            by = lab if layers == "fused" else unfused
            runs = [by.generate(prompt(tokens), config, sampling) for _ in range(1 + PREFILL_RUNS)][1:]
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


# -- speculation -----------------------------------------------------------------------------

RATES = (0.5, 0.7, 0.9)


Drafted = Mapping[int, EngineConfig]
"""Settings with a draft, by gamma."""


def warm_up(lab: Engine, script: torch.Tensor, drafted: Drafted, longest: int, decode: Callable[..., Run]) -> None:
    """Capture and compile everything that ``time_speculation`` needs, for up to ``longest`` tokens.

    First the graphs of every window, because a window that the run's end cuts short is that of a smaller gamma.
    Then a short run of each, with a draft that is often wrong. ``decode``: with a setting, all tokens or so many.
    """
    for config in drafted.values():
        lab.warm_up(config, longest=longest)
    lab.draft.script.copy_(draft_script(script, RATES[0]))
    for gamma, config in drafted.items():
        decode(config, 4 * (gamma + 1))


def time_speculation(
    sheet: Sheet, lab: Engine, script: torch.Tensor, plain: EngineConfig, drafted: Drafted, decode: Callable[..., Run]
) -> None:
    """Speculation with a draft that is right with a chosen probability, against what the formula says: fill
    ``speculation``, a row for every acceptance and gamma, from all runs so far. Each pass has a plain run to compare
    with, and a draft that is wrong at other positions.

    A round of gamma proposals, each right with probability a, gives (1 - a^(gamma + 1)) / (1 - a) tokens on average and
    takes the time of 1 + gamma c passes (Leviathan et al., 2211.17192), where c is a proposal's time in decode steps.
    """
    runs = defaultdict(list)
    for seed in range(PASSES):
        alone = decode(plain)
        for gamma, config in drafted.items():
            for rate in RATES:
                lab.draft.script.copy_(draft_script(script, rate, seed))
                runs[rate, gamma].append(_figures(decode(config), gamma, alone))
            sheet.result["speculation"] = [_row(*key, some) for key, some in sorted(runs.items())]
            sheet.say(f"  gamma {gamma} done")


def _figures(run: Run, gamma: int, plain: Run) -> dict[str, float]:
    """The figures of one run beside one without speculation."""
    rounds = [step for step in steps(run, "verify") if step.target_tokens == gamma + 1]
    proposal_ms = statistics.median(step.draft_ms for step in rounds) / gamma
    c = proposal_ms / statistics.median(step.total_ms for step in steps(plain, "decode"))
    speedup = run.metrics.tokens_per_second / plain.metrics.tokens_per_second
    formula = run.metrics.mean_acceptance_length / (1 + gamma * c)
    return {
        "speedup": speedup,
        "c": c,
        "proposal_ms": proposal_ms,
        "verify_ms": statistics.median(step.verify_ms for step in rounds),
        "tokens_per_round": run.metrics.mean_acceptance_length,
        "formula_as_accepted": formula,
        "measured_over_formula_as_accepted": speedup / formula,
    }


def _row(rate: float, gamma: int, runs: list[dict[str, float]]) -> dict:
    """Medians over the runs. ``formula``: with the acceptance asked for; ``formula_as_accepted``: with the tokens per
    round of the same run, which vary because a run has only a few dozen rounds. The engine is judged by the latter: the
    former's difference from it is chance, and the same in every call of the bench, as the seeds are.
    """
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    expected = tokens_per_round(rate, gamma)
    formula = expected / (1 + gamma * medians["c"])
    return {
        "acceptance": rate,
        "gamma": gamma,
        **medians,
        "spread": spread([run["speedup"] for run in runs]),
        "expected_tokens_per_round": expected,
        "formula": formula,
        "measured_over_formula": medians["speedup"] / formula,
    }
