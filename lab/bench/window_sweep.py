"""The adaptive window against fixed ones, over a mix in which no fixed one is best everywhere.

- easy: stories, greedy, with the draft distilled from the target. The text soon repeats itself.
- middling: program code at temperature 1.5, with the same draft: nothing that either model has read much of.
- hard: stories, greedy, with a draft that knows only another language: it is almost never right.

A large window suits the first, a small one the second, none the third. One request at a time. Every setting has engines
of its own, so that the adaptive one knows no costs but those of its own steps. Settings take turns on each request.
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.measure.measuring import finish, take_turns
from lab.measure.workload import CODE, PROMPTS, PlannedRequest, longest, refuse_cut

GAMMAS = (1, 2, 3, 4, 6, 8)
STORIES, PROGRAMS = PROMPTS[:3], CODE[:3]
ADAPTIVE = "adaptive"


class RequestKind(NamedTuple):
    """One kind of requests in the mix."""

    engine: Engine
    prompts: tuple[str, ...]
    temperature: float


def mix(engine: Engine, mismatched: Engine) -> dict[str, RequestKind]:
    return {
        "easy": RequestKind(engine, STORIES, 0.0),
        "middling": RequestKind(engine, PROGRAMS, 1.5),
        "hard": RequestKind(mismatched, STORIES, 0.0),
    }


def window_configs(context_length: int) -> dict[str, EngineConfig]:
    """The settings. Their block pools, one for each engine, hold one context: a device has no room for larger ones."""
    off = EngineConfig(num_blocks=-(-context_length // EngineConfig.block_size))
    fixed = {f"gamma {g}": replace(off, speculative="draft", num_speculative_tokens=g) for g in GAMMAS}
    adaptive = replace(off, speculative="draft", num_speculative_tokens=max(GAMMAS), adaptive_window=True)
    return {"off": off} | fixed | {ADAPTIVE: adaptive}


def run_window(
    load: Callable[[str], Engine], max_tokens: int, repeats: int, report: Callable[[str], None]
) -> dict[str, object]:
    """Time every setting on every request of the mix: tokens per second of the whole mix with quartiles over repeats,
    and of each kind; and the adaptive window's ratios to the worst and the best fixed one. Raises LabError: more tokens
    than the context leaves, a run failed, or part of its setting was given up."""
    mismatched, engine = load("mismatched"), load("matched")
    refuse_cut(engine, STORIES + PROGRAMS, max_tokens)
    kinds = mix(engine, mismatched)
    configs = window_configs(longest(engine, STORIES + PROGRAMS) + max_tokens)
    calls: dict[tuple[str, str, int], Callable[[], tuple[int, float]]] = {}
    for name, config in configs.items():
        for kind, some in kinds.items():
            own = some.engine.clone()
            for i, prompt in enumerate(some.prompts):
                sampling = SamplingParams(max_tokens=max_tokens, temperature=some.temperature, seed=i, ignore_eos=True)
                calls[name, kind, i] = partial(timed, own, PlannedRequest(prompt, sampling), config)
    times = take_turns(calls, repeats, report)

    def rates(name: str, wanted: set[str]) -> list[float]:
        """For each repeat, all tokens of the wanted kinds / all their time."""
        some = [times[key] for key in times if key[0] == name and key[1] in wanted]
        return [sum(n for n, _ in again) / sum(s for _, s in again) for again in zip(*some, strict=True)]

    rows = {}
    for name in configs:
        lower, median, upper = map(float, np.percentile(rates(name, set(kinds)), (25, 50, 75)))
        by_kind = {kind: statistics.median(rates(name, {kind})) for kind in kinds}
        rows[name] = {"mix": median, "lower": lower, "upper": upper} | by_kind
    return {
        "mix": {
            kind: {"draft": some.engine.draft.name, "temperature": some.temperature, "prompts": some.prompts}
            for kind, some in kinds.items()
        },
        "unit": "output tokens per second: all tokens / all engine time, medians over repeats, quartiles of the mix",
        "rows": rows,
        "ratios": {part: against_fixed(rows, part) for part in ("mix", *kinds)},
    }


def timed(engine: Engine, request: PlannedRequest, config: EngineConfig) -> tuple[int, float]:
    """Tokens and seconds of one request, from when it was queued."""
    (run,), seconds = finish(engine, [request], config)
    return len(run.token_ids), seconds


def against_fixed(rows: dict[str, dict[str, float]], part: str) -> dict[str, float | str]:
    """The adaptive window's speed on a part of the mix, relative to the worst and the best fixed setting."""
    fixed = {name: row[part] for name, row in rows.items() if name != ADAPTIVE}
    worst, best = min(fixed, key=fixed.__getitem__), max(fixed, key=fixed.__getitem__)
    own = rows[ADAPTIVE][part]
    return {"worst": worst, "to_worst": own / fixed[worst], "best": best, "to_best": own / fixed[best]}
