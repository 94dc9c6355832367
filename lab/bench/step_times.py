"""The time of single steps: against the limits of the device (``roofline``), and with the distributions around each
verdict recorded (``logprobs``). Steps are taken from runs of the engine itself; rows take turns.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain

import numpy as np

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.measure.measuring import Spread, finish, steps, take_turns
from lab.measure.workload import PROMPTS, PlannedRequest, refuse_cut
from lab.trace.events import StepKind, StepTimed
from lab.trace.roofline import Achieved, Limits, PassCost

TOGETHER = 16
"""Sequences in the batch."""
PREFILL_TOKENS = 512
"""Tokens of the long prompt, or half the model's context if that is less."""


def run_roofline(engine: Engine, max_tokens: int, repeats: int, report: Callable[[str], None]) -> dict[str, object]:
    """Measure the device and the steps. A verify has two rows: the draft's passes, and the target's one pass after
    them; without a draft there are none. Of each row, medians over its ``steps``: ``bytes`` and ``flops`` of the work,
    ``least_ms`` that it takes on the device, ``ms`` that it took, ``share`` of the limit (least_ms / ms of each step),
    ``step_ms`` with drafting, sampling and reporting; and ``bound``, what binds it, or "neither".

    Raises LabError: too few tokens for a full window or more than the context leaves, limits that cannot be measured,
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
    if any(model.uncounted for model in (engine.target, engine.draft) if model):
        raise LabError("a model with such experts reads other weights for every token: its work cannot be counted.")
    limits = engine.device_limits
    if limits is None:
        raise LabError(
            f"a read or a {engine.dtype} matrix product failed on {engine.device}: no limits to compare with."
        )
    report(f"read {limits.bytes_per_second / 1e9:.1f} GB/s, product {limits.flops_per_second / 1e9:.0f} GFLOP/s")

    words, one, plain = " ".join(PROMPTS), PROMPTS[:1], EngineConfig()
    length = min(PREFILL_TOKENS, engine.context_length // 2)
    long = (words + " ") * (length // len(engine.tokenizer(words)["input_ids"]) + 1)
    kinds: dict[str, tuple[Sequence[str], EngineConfig, int, StepKind]] = {
        "prefill": ([long], plain, 1, "prefill"),
        "decode": (one, plain, max_tokens, "decode"),
        "decode, INT8": (one, EngineConfig(kv_dtype="int8"), max_tokens, "decode"),
        "decode, no cache": (one, EngineConfig(kv_cache=False), max_tokens, "decode"),
        f"decode, {TOGETHER} at once": ((PROMPTS * TOGETHER)[:TOGETHER], plain, max_tokens, "decode"),
    }
    if engine.draft:
        kinds["verify"] = (one, draft, max_tokens, "verify")
    lists = take_turns({name: partial(_steps, engine, *how) for name, how in kinds.items()}, repeats, report)
    measured = {name: list(chain(*some)) for name, some in lists.items()}
    table = []
    for name, some in measured.items():
        passes = [(PassCost(step.verify_bytes, step.verify_flops), step.verify_ms) for step in some]
        whole = statistics.median(step.total_ms for step in some)
        if name == "verify":
            drafting = [(PassCost(step.draft_bytes, step.draft_flops), step.draft_ms) for step in some]
            table.append(_row(f"draft, {gamma} passes", drafting, whole, limits))
            name = f"verify, {gamma} proposals"
        table.append(_row(name, passes, whole, limits))
    return {
        "limits": asdict(limits),
        "prefill_tokens": max(step.target_tokens for step in measured["prefill"]),
        "rows": table,
    }


def _steps(
    engine: Engine, prompts: Sequence[str], config: EngineConfig, max_tokens: int, kind: StepKind
) -> list[StepTimed]:
    """The steps of one kind, as reported to the first request: verifies of a full window, prefills of a full chunk."""
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    (first, *_), _ = finish(engine, [PlannedRequest(prompt, sampling) for prompt in prompts], config)
    own = steps(first, kind)
    full = max(event.batch_tokens for event in own) if kind != "decode" else 0
    return [event for event in own if event.batch_tokens >= full]


def _row(name: str, passes: list[tuple[PassCost, float]], step_ms: float, limits: Limits) -> dict[str, object]:
    """One kind of pass; ``passes`` gives the work of each and the milliseconds it took."""
    works = [work for work, _ in passes]
    share = statistics.median(limits.least_ms(work) / ms for work, ms in passes)
    return {
        "name": name,
        "steps": len(passes),
        "bytes": statistics.median(work.bytes for work in works),
        "flops": statistics.median(work.flops for work in works),
        "least_ms": statistics.median(limits.least_ms(work) for work in works),
        "ms": statistics.median(ms for _, ms in passes),
        "step_ms": step_ms,
        "share": share,
        "bound": Achieved(share, statistics.mode(limits.nearer(work) for work in works)).bound or "neither",
    }


# -- recorded distributions ------------------------------------------------------------------

RECORDED = EngineConfig(paged=True, speculative="draft")
TEMPERATURE = 0.8


def read_logprobs(args: argparse.Namespace) -> dict[str, int]:
    """The options. Raises ConfigError: too many tokens under each distribution."""
    SamplingParams(logprobs=args.logprobs)
    return {"logprobs": args.logprobs, "max_tokens": args.max_tokens, "repeats": args.repeats}


def run_logprobs(
    engine: Engine, logprobs: int, max_tokens: int, repeats: int, report: Callable[[str], None]
) -> dict[str, object]:
    """Time rounds of speculation with ``logprobs`` recorded, with as many ``top_tokens``, and with neither: medians of
    a verify step, and median and quartiles of the differences. Recording changes no token, so step i of the one does
    the same work as step i of the other, and every step of a repeat is compared with its own twin. Raises LabError:
    more tokens than the context leaves, a run failed, or part of its setting was given up."""
    refuse_cut(engine, PROMPTS, max_tokens)
    rows = {}
    for seed, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(max_tokens=max_tokens, temperature=TEMPERATURE, seed=seed, ignore_eos=True)
        for kept in ("", "logprobs", "top_tokens"):
            asked = replace(sampling, **({kept: logprobs} if kept else {}))
            rows[kept, seed] = partial(_rounds, engine, PlannedRequest(prompt, asked))
    times = take_turns(rows, repeats, report)
    plain, recorded, top = (
        np.concatenate([ms for (asked, _), again in times.items() if asked == kept for ms in again])
        for kept in ("", "logprobs", "top_tokens")
    )
    return {
        "num_speculative_tokens": RECORDED.num_speculative_tokens,
        "temperature": TEMPERATURE,
        "prompts": len(PROMPTS),
        "steps": len(plain),
        "plain_ms": float(np.median(plain)),
        "recorded_ms": float(np.median(recorded)),
        "added_ms": asdict(Spread.of((recorded - plain).tolist())),
        "top_tokens_added_ms": asdict(Spread.of((top - plain).tolist())),
    }


def _rounds(engine: Engine, request: PlannedRequest) -> list[float]:
    """Milliseconds of a request's rounds, in order."""
    (run,), _ = finish(engine, [request], RECORDED)
    return [step.total_ms for step in steps(run, "verify")]
