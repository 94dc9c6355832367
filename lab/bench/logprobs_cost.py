"""The cost of recording the distributions around each verdict.

The same requests run with and without it, in turns. Recording changes no token, so step i of the one does the same
work as step i of the other, and every step of a repeat is compared with its own twin.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from lab.bench.output import about
from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.measure.measuring import finish, steps, take_turns
from lab.measure.prompts import PROMPTS, refuse_cut
from lab.measure.workload import PlannedRequest

CONFIG = EngineConfig(paged=True, speculative="draft")
TEMPERATURE = 0.8


def run_logprobs(
    engine: Engine, logprobs: int, max_tokens: int, repeats: int, report: Callable[[str], None]
) -> dict[str, object]:
    """Time rounds of speculation with ``logprobs`` recorded and with none.

    Returns:
        A JSON-ready dict: ``plain_ms`` and ``recorded_ms`` (median of a verify step), and ``added_ms`` (median and
        quartiles of the difference between a step and its twin).

    Raises:
        LabError: more tokens than the context leaves, a run failed, or part of its setting was given up.
    """
    refuse_cut(engine, PROMPTS, max_tokens)
    rows = {}
    for seed, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(max_tokens=max_tokens, temperature=TEMPERATURE, seed=seed, ignore_eos=True)
        for count in (0, logprobs):
            rows[count, seed] = partial(_rounds, engine, PlannedRequest(prompt, replace(sampling, logprobs=count)))
    times = take_turns(rows, repeats, report)
    plain, recorded = (
        [ms for (asked, _), again in times.items() if asked == count for some in again for ms in some]
        for count in (0, logprobs)
    )
    added = [with_them - without for without, with_them in zip(plain, recorded, strict=True)]
    lower, median, upper = map(float, np.percentile(added, (25, 50, 75)))
    return about(engine) | {
        "logprobs": logprobs,
        "num_speculative_tokens": CONFIG.num_speculative_tokens,
        "temperature": TEMPERATURE,
        "max_tokens": max_tokens,
        "prompts": len(PROMPTS),
        "repeats": repeats,
        "steps": len(plain),
        "plain_ms": statistics.median(plain),
        "recorded_ms": statistics.median(recorded),
        "added_ms": {"median": median, "lower": lower, "upper": upper},
    }


def _rounds(engine: Engine, request: PlannedRequest) -> list[float]:
    """Milliseconds of a request's rounds, in order."""
    (run,), _ = finish(engine, [request], CONFIG)
    return [step.total_ms for step in steps(run, "verify")]


def format_logprobs(result: dict) -> str:
    added = result["added_ms"]
    return (
        f"{result['steps']} rounds of {result['num_speculative_tokens']} draft tokens, each with and without the "
        f"{result['logprobs']} likeliest tokens\n"
        f"without {result['plain_ms']:.3f} ms, with {result['recorded_ms']:.3f} ms\n"
        f"added {added['median']:.3f} ms (quartiles {added['lower']:.3f} to {added['upper']:.3f})"
    )
