"""The limits of this device, and how close decoding steps come to them.

Every row is a kind of step, taken from runs of the engine itself; rows take turns. A figure is the median over the
row's steps. A verify has two rows: the draft's passes, and the target's one pass after them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial

from lab.bench.output import about, format_table
from lab.config import EngineConfig, SamplingParams
from lab.engine.device_limits import device_limits
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.measure.measuring import finish, steps, take_turns
from lab.measure.prompts import PROMPTS, refuse_cut
from lab.measure.workload import PlannedRequest
from lab.trace.events import StepKind, StepTimed
from lab.trace.roofline import Bound, Limits, PassCost

TOGETHER = 16
"""Sequences in the batch."""
PREFILL_TOKENS = 512
"""Tokens of the long prompt, or half the model's context if that is less."""


@dataclass(frozen=True)
class MedianStep:
    """A kind of step, medians over ``steps`` of them.

    Attributes:
        bytes, flops: its work. bound: what limits it.
        least_ms: the least time of this work on the device. ms: the time that it took. share: least_ms / ms, per step.
        step_ms: the time of the whole step around it, including drafting, sampling and reporting.
    """

    name: str
    steps: int
    bytes: float
    flops: float
    least_ms: float
    ms: float
    step_ms: float
    share: float
    bound: Bound


def run_roofline(engine: Engine, max_tokens: int, repeats: int, report: Callable[[str], None]) -> dict[str, object]:
    """Measure the device and the steps; without a draft there are no rows of a verify.

    Raises:
        LabError: too few tokens for a full window or more than the context leaves, limits that cannot be measured,
            work that cannot be counted, a run failed, or part of its setting was given up.
    """
    draft = EngineConfig(speculative="draft")
    gamma = draft.num_speculative_tokens
    if max_tokens < gamma + 2:
        raise LabError(
            f"--max-tokens {max_tokens} leaves no room for a whole round: it takes the prefill's token and "
            f"{gamma + 1} more. Ask for {gamma + 2} or more."
        )
    refuse_cut(engine, PROMPTS, max_tokens)
    limits = device_limits(engine.target.device, engine.product_dtype)
    if limits is None:
        raise LabError(
            f"a copy or a {engine.dtype} matrix product failed on {engine.device}: no limits to compare with."
        )
    if any(model.routed for model in (engine.target, engine.draft) if model):
        raise LabError("a model with experts reads other weights for every token: its work cannot be counted.")
    report(f"copy {limits.bytes_per_second / 1e9:.1f} GB/s, product {limits.flops_per_second / 1e9:.0f} GFLOP/s")

    words = " ".join(PROMPTS)
    length = min(PREFILL_TOKENS, engine.context_length // 2)
    long = (words + " ") * (length // len(engine.tokenizer(words)["input_ids"]) + 1)
    plain, many = EngineConfig(), (PROMPTS * TOGETHER)[:TOGETHER]
    rows = {
        "prefill": partial(_steps, engine, [long], plain, 1, "prefill"),
        "decode": partial(_steps, engine, PROMPTS[:1], plain, max_tokens, "decode"),
        "decode, INT8": partial(_steps, engine, PROMPTS[:1], EngineConfig(kv_dtype="int8"), max_tokens, "decode"),
        "decode, no cache": partial(_steps, engine, PROMPTS[:1], EngineConfig(kv_cache=False), max_tokens, "decode"),
        f"decode, {TOGETHER} at once": partial(_steps, engine, many, plain, max_tokens, "decode"),
    }
    if engine.draft:
        rows["verify"] = partial(_steps, engine, PROMPTS[:1], draft, max_tokens, "verify")
    measured = {
        name: [step for some in lists for step in some] for name, lists in take_turns(rows, repeats, report).items()
    }
    table = []
    for name, some in measured.items():
        passes = [(PassCost(step.verify_bytes, step.verify_flops), step.verify_ms) for step in some]
        whole = statistics.median(step.total_ms for step in some)
        if name == "verify":
            drafting = [(PassCost(step.draft_bytes, step.draft_flops), step.draft_ms) for step in some]
            table.append(_row(f"draft, {gamma} passes", drafting, whole, limits))
            name = f"verify, {gamma} proposals"
        table.append(_row(name, passes, whole, limits))
    return about(engine) | {
        "limits": asdict(limits),
        "max_tokens": max_tokens,
        "prefill_tokens": max(step.target_tokens for step in measured["prefill"]),
        "repeats": repeats,
        "rows": [asdict(row) for row in table],
    }


def _steps(
    engine: Engine, prompts: Iterable[str], config: EngineConfig, max_tokens: int, kind: StepKind
) -> list[StepTimed]:
    """The steps of one kind, as reported to the first request: verifies of a full window, prefills of a full chunk."""
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    (first, *_), _ = finish(engine, [PlannedRequest(prompt, sampling) for prompt in prompts], config)
    own = steps(first, kind)
    full = max(event.batch_tokens for event in own) if kind != "decode" else 0
    return [event for event in own if event.batch_tokens >= full]


def _row(name: str, passes: list[tuple[PassCost, float]], step_ms: float, limits: Limits) -> MedianStep:
    """One kind of pass; ``passes`` gives the work of each and the milliseconds it took."""
    works = [work for work, _ in passes]
    return MedianStep(
        name=name,
        steps=len(passes),
        bytes=statistics.median(work.bytes for work in works),
        flops=statistics.median(work.flops for work in works),
        least_ms=statistics.median(limits.least_ms(work) for work in works),
        ms=statistics.median(ms for _, ms in passes),
        step_ms=step_ms,
        share=statistics.median(limits.least_ms(work) / ms for work, ms in passes),
        bound=statistics.mode(limits.bound(work) for work in works),
    )


def format_roofline(result: dict) -> str:
    limits = Limits(**result["limits"])
    ridge = limits.flops_per_second / limits.bytes_per_second
    head = ["", "MB", "MFLOP", "FLOP/B", "least ms", "ms", "step ms", "of limit", "bound by"]
    rows = [
        [
            row["name"],
            f"{row['bytes'] / 1e6:.1f}",
            f"{row['flops'] / 1e6:.1f}",
            f"{row['flops'] / row['bytes']:.1f}",
            *(f"{row[name]:.3f}" for name in ("least_ms", "ms", "step_ms")),
            f"{row['share']:.1%}",
            row["bound"],
        ]
        for row in result["rows"]
    ]
    return (
        f"a large copy {limits.bytes_per_second / 1e9:.1f} GB/s, a large product "
        f"{limits.flops_per_second / 1e9:.0f} GFLOP/s ({result['dtype']}): memory-bound below {ridge:.1f} FLOPs a byte"
        f"\n\n{format_table(head, rows)}"
    )
