"""The adaptive window against fixed ones, over a mix in which no fixed one is best everywhere.

- easy: stories, greedy, with the draft distilled from the target. The text soon repeats itself.
- middling: program code at temperature 1.5, with the same draft: nothing that either model has read much of.
- hard: stories, greedy, with a draft that knows only another language: it is almost never right.

A large window suits the first, a small one the second, none the third. One request
at a time. Every setting has engines of its own, so that the adaptive one knows no
costs but those of its own steps. Settings take turns on each request.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.measure.measuring import finish, take_turns
from lab.measure.prompts import PROMPTS, longest, refuse_cut
from lab.measure.workload import Job
from lab.util.messages import format_rate

GAMMAS = (1, 2, 3, 4, 6, 8)
STORIES = PROMPTS[:3]
CODE = (
    "def read(self, size=-1):\n    if self.closed:\n        raise ValueError(",
    "import os\nimport sys\n\nclass Parser:\n    def __init__(self, name):\n        self.",
    "for i in range(len(values)):\n    if values[i] > limit:\n        ",
)
ADAPTIVE = "adaptive"


@dataclass(frozen=True)
class RequestKind:
    """One kind of requests in the mix."""

    engine: Engine
    prompts: tuple[str, ...]
    temperature: float


def mix(engine: Engine, mismatched: Engine) -> dict[str, RequestKind]:
    return {
        "easy": RequestKind(engine, STORIES, 0.0),
        "middling": RequestKind(engine, CODE, 1.5),
        "hard": RequestKind(mismatched, STORIES, 0.0),
    }


def window_configs(context_length: int) -> dict[str, EngineConfig]:
    """The settings. Their pools, one for each engine, hold one context: of larger ones a device has no room for all."""
    off = EngineConfig(num_blocks=-(-context_length // EngineConfig.block_size))
    fixed = {f"gamma {g}": replace(off, speculative="draft", num_speculative_tokens=g) for g in GAMMAS}
    adaptive = replace(off, speculative="draft", num_speculative_tokens=max(GAMMAS), adaptive_window=True)
    return {"off": off} | fixed | {ADAPTIVE: adaptive}


def run_window(
    engine: Engine, mismatched: Engine, max_tokens: int, repeats: int, report: Callable[[str], None]
) -> dict[str, object]:
    """Time every setting on every request of the mix.

    Returns:
        A JSON-ready dict: ``rows`` (tokens a second of the whole mix with quartiles over repeats, and of
        each kind), and the adaptive window's ratios to the worst and the best fixed one.

    Raises:
        LabError: more tokens than the context leaves, a run failed, or part of its setting was given up.
    """
    refuse_cut(engine, STORIES + CODE, max_tokens)
    kinds, configs = mix(engine, mismatched), window_configs(longest(engine, STORIES + CODE) + max_tokens)
    calls: dict[tuple[str, str, int], Callable[[], tuple[int, float]]] = {}
    for name, config in configs.items():
        for kind, some in kinds.items():
            own = some.engine.clone()
            for i, prompt in enumerate(some.prompts):
                sampling = SamplingParams(max_tokens=max_tokens, temperature=some.temperature, seed=i, ignore_eos=True)
                calls[name, kind, i] = partial(timed, own, Job(prompt, sampling), config)
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
        "max_tokens": max_tokens,
        "repeats": repeats,
        "dtype": engine.dtype,
        "target": engine.target.name,
        "mix": {
            kind: {"draft": some.engine.draft.name, "temperature": some.temperature, "prompts": some.prompts}
            for kind, some in kinds.items()
        },
        "unit": "output tokens a second: all tokens / all engine time, medians over repeats, quartiles of the mix",
        "rows": rows,
        "ratios": {part: against_fixed(rows, part) for part in ("mix", *kinds)},
    }


def timed(engine: Engine, job: Job, config: EngineConfig) -> tuple[int, float]:
    """Tokens and seconds of one request, from when it was queued."""
    (run,), seconds = finish(engine, [job], config)
    return len(run.token_ids), seconds


def against_fixed(rows: dict[str, dict[str, float]], part: str) -> dict[str, float | str]:
    """The adaptive window's speed on a part of the mix, relative to the worst and the best fixed setting."""
    fixed = {name: row[part] for name, row in rows.items() if name != ADAPTIVE}
    worst, best = min(fixed, key=fixed.__getitem__), max(fixed, key=fixed.__getitem__)
    return {
        "worst": worst,
        "to_worst": rows[ADAPTIVE][part] / fixed[worst],
        "best": best,
        "to_best": rows[ADAPTIVE][part] / fixed[best],
    }


def format_window(result: dict) -> str:
    kinds = list(result["mix"])
    lines = [f"{'tokens/s':12} {'the mix':>8}   quartiles    " + "".join(f"{kind:>10}" for kind in kinds)]
    for name, row in result["rows"].items():
        quartiles = f"{format_rate(row['lower'])} to {format_rate(row['upper'])}"
        lines.append(
            f"{name:12} {format_rate(row['mix']):>8}   {quartiles:12}"
            + "".join(f"{format_rate(row[k]):>10}" for k in kinds)
        )
    for part, found in result["ratios"].items():
        lines.append(
            f"adaptive, {part}: {found['to_worst']:.2f} of the worst fixed ({found['worst']}), "
            f"{found['to_best']:.2f} of the best fixed ({found['best']})"
        )
    return "\n".join(lines)
