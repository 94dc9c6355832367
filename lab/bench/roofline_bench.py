"""The limits of this device, and how close decoding steps come to them.

Every row is a kind of step, taken from runs of the engine itself; rows take turns. A figure is the median over
the row's steps. A verify has two rows: the draft's passes, and the target's one pass after them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from lab.config import EngineConfig, SamplingParams
from lab.engine.device_limits import device_limits
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.measure.measuring import finish, steps, take_turns
from lab.measure.prompts import PROMPTS, refuse_cut
from lab.measure.workload import Job
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
        bytes, flops: what it has to move and to compute.
        least_ms: the least time that this can take on the device.
        ms: the time that it took.
        step_ms: the time of the whole step around it, including drafting, sampling and reporting.
        share: least_ms / ms, computed per step.
        bound: what limits it.
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

    Returns:
        A JSON-ready dict: ``limits`` and ``rows``.

    Raises:
        LabError: too few tokens for a full window or more than the context leaves, limits that cannot be measured,
            work that cannot be counted, a run failed, or part of its setting was given up.
    """
    draft = EngineConfig(speculative="draft")
    if max_tokens < draft.num_speculative_tokens + 2:
        raise LabError(
            f"--max-tokens {max_tokens} leaves no room for a whole round: it takes the prefill's token and "
            f"{draft.num_speculative_tokens + 1} more. Ask for {draft.num_speculative_tokens + 2} or more."
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
    rows: dict[str, Callable[[], list[StepTimed]]] = {
        "prefill": lambda: _steps(engine, [long], EngineConfig(), 1, "prefill"),
        "decode": lambda: _steps(engine, PROMPTS[:1], EngineConfig(), max_tokens, "decode"),
        "decode, INT8": lambda: _steps(engine, PROMPTS[:1], EngineConfig(kv_dtype="int8"), max_tokens, "decode"),
        "decode, no cache": lambda: _steps(engine, PROMPTS[:1], EngineConfig(kv_cache=False), max_tokens, "decode"),
        f"decode, {TOGETHER} at once": lambda: _steps(
            engine, (PROMPTS * TOGETHER)[:TOGETHER], EngineConfig(), max_tokens, "decode"
        ),
    }
    if engine.draft:
        rows["verify"] = lambda: _steps(engine, PROMPTS[:1], draft, max_tokens, "verify")
    measured = {
        name: [step for some in lists for step in some] for name, lists in take_turns(rows, repeats, report).items()
    }
    table = []
    for name, some in measured.items():
        passes = [(PassCost(step.verify_bytes, step.verify_flops), step.verify_ms) for step in some]
        whole = statistics.median(step.total_ms for step in some)
        if name == "verify":
            drafting = [(PassCost(step.draft_bytes, step.draft_flops), step.draft_ms) for step in some]
            table.append(_row(f"draft, {draft.num_speculative_tokens} passes", drafting, whole, limits))
            name = f"verify, {draft.num_speculative_tokens} proposals"
        table.append(_row(name, passes, whole, limits))
    return {
        "target": engine.target.name,
        "draft": engine.draft.name if engine.draft else None,
        "dtype": engine.dtype,
        "limits": asdict(limits),
        "max_tokens": max_tokens,
        "prefill_tokens": max(step.target_tokens for step in measured["prefill"]),
        "repeats": repeats,
        "rows": [asdict(row) for row in table],
    }


def _steps(
    engine: Engine, prompts: Iterable[str], config: EngineConfig, max_tokens: int, kind: StepKind
) -> list[StepTimed]:
    """The steps of one kind, as reported to the first of the requests. Of verifies only those with a full window, of
    prefills those with a full chunk.
    """
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    (first, *_), _ = finish(engine, [Job(prompt, sampling) for prompt in prompts], config)
    told = steps(first, kind)
    full = max(event.batch_tokens for event in told) if kind != "decode" else 0
    return [event for event in told if event.batch_tokens >= full]


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
    """A table of ``run_roofline``'s result."""
    limits = Limits(**result["limits"])
    ridge = limits.flops_per_second / limits.bytes_per_second
    lines = [
        f"a large copy {limits.bytes_per_second / 1e9:.1f} GB/s, a large product "
        f"{limits.flops_per_second / 1e9:.0f} GFLOP/s ({result['dtype']}): memory-bound below {ridge:.1f} FLOPs a byte",
        "",
        f"{'':22}{'MB':>9}{'MFLOP':>10}{'FLOP/B':>8}{'least ms':>10}{'ms':>9}{'step ms':>10}{'of limit':>10}  bound by",
    ]
    lines += [
        f"{row['name']:22}{row['bytes'] / 1e6:9.1f}{row['flops'] / 1e6:10.1f}{row['flops'] / row['bytes']:8.1f}"
        f"{row['least_ms']:10.3f}{row['ms']:9.3f}{row['step_ms']:10.3f}{row['share']:10.1%}  {row['bound']}"
        for row in result["rows"]
    ]
    return "\n".join(lines)
