"""``runs``: settings of the engine decode in turns, several times each, and every run is recorded."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal

from pydantic import Field, model_validator

from lab.config import EngineConfig, SamplingParams
from lab.errors import LabError
from lab.measure.comparison import Case, in_turns
from lab.measure.difference import common_length
from lab.measure.measuring import RunTurn
from lab.measure.theory import speculated, without_speculation
from lab.trace.events import Distributions, Event, StepTimed, Verified
from lab.trace.metrics import Metrics
from lab.trace.run import Run
from lab.trace.verdict_rounding import RoundedVerdict, round_verdict
from lab.util.messages import counted
from lessons.experiments.base import MOST_REPEATS, Experiment, Load, Measured, Name, Part, Watch, Work, spoken

CONFIG, SAMPLING = (tuple(field.name for field in fields(kind)) for kind in (EngineConfig, SamplingParams))
MOST = 6

OF_METRICS = tuple(
    field.name for field in fields(Metrics) if field.name not in ("acceptance_by_position", "roofline_nearer")
)
"""Figures that ``lab.trace.metrics`` defines, under its names."""
RANKS = range(1, 5)
OTHERS = {
    "prompt_tokens": "tokens of the prompt",
    "kv_token_bytes": "bytes of cache that a token takes, the target's and the draft's, scales included",
    "prefill_flops": "what the target's pass over the prompt computes",
    "prefill_bytes": "what it moves between memory and processor",
    "step_flops": "of a pass after it, median",
    "step_bytes": "the same in bytes",
    "token_flops": "what all passes after the prefill compute, the draft's too, over the tokens that they gave",
    "token_bytes": "what they move, the same",
    "read_bytes_per_second": "what the device does at best, reading a buffer as large as the weights again and again",
    "memory_bytes_per_second": "the same from memory alone",
    "flops_per_second": "and computing",
    "bound": "what binds a pass after the prompt: 1 memory, 2 arithmetic, 0 neither, or it is not known",
    "agreeing_tokens": "tokens at the beginning of the output that are those of the first setting's",
    "kept_share": "accepted of verified draft tokens",
    "overlap": "mean of sum min(p, q) over the places of these draft tokens, where it was recorded",
    **{f"rank_{k}": f"places where the target's likeliest token was number {k} of the drafter's" for k in RANKS},
    **{f"{which}_{name}": "" for which in ("refused", "kept", "close") for name in ("p", "q", "u", "ratio")},
}
"""Other figures of a run. Of a verdict, where anything is drawn: the target's probability, the draft's, the number that
was drawn and p / q, rounded so that they show what was decided. It is that of the first draft token that was rejected
(refused) or kept, or the closest one among those with p below q."""
OF_ROUNDS = {
    "gamma": "draft tokens of a full window",
    "acceptance": "accepted of verified draft tokens, in rounds of a full window",
    "round_tokens": "tokens that such a round gives",
    "rounds": "how many there were: repeats that draw the same numbers count once",
    "whole_rounds": "share of them of which every draft token was accepted",
    "lost_rounds": "share of which none was",
    "draft_cost": "time of a draft token, over that of a pass of the target over one token",
    "pass_ratio": "time of a pass over all draft tokens, over that over one token",
}
"""Figures of a setting that speculates with a fixed window, if there is one without speculation to compare it with."""


class RunSetting(Part):
    """A setting's own values: ``prompt`` and ``draft`` by name; the rest are of EngineConfig and SamplingParams."""

    prompt: str | None = None
    draft: Literal["matched", "mismatched"] = "matched"
    config: dict[str, Any] = Field(default={})
    sampling: dict[str, Any] = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            raise ValueError("a setting is a mapping; {} has nothing of its own.")
        flat: dict[str, Any] = {"config": {}, "sampling": {}}
        for name, value in given.items():
            if name not in (known := ("prompt", "draft", *CONFIG, *SAMPLING)):
                raise ValueError(f"there is no {name!r}; there are {', '.join(known)}.")
            group = flat["config"] if name in CONFIG else flat["sampling"] if name in SAMPLING else flat
            group[name] = value
        return flat


class Runs(Experiment):
    """Settings that take turns. ``sampling`` is what they share; the seed is 1 by default. No run ends early."""

    repeated = timed = True

    prompts: dict[str, str] = Field(min_length=1)
    settings: dict[Name, RunSetting] = Field(min_length=1, max_length=MOST)
    sampling: dict[str, Any] = Field(default={})
    repeats: int = Field(default=3, ge=1, le=MOST_REPEATS)

    @model_validator(mode="after")
    def _sound(self) -> Runs:
        for name in self.settings:
            setting = self.settings[name]
            if setting.prompt is not None and setting.prompt not in self.prompts:
                raise ValueError(f"{name}: there is no prompt {setting.prompt!r}; there are {', '.join(self.prompts)}.")
            try:
                self.config(name), self.how(name)
            except (LabError, TypeError) as error:
                raise ValueError(f"{name}: {error}") from error
        return self

    def config(self, name: str) -> EngineConfig:
        return EngineConfig(**self.settings[name].config)

    def how(self, name: str) -> SamplingParams:
        return SamplingParams(**{"seed": 1} | self.sampling | self.settings[name].sampling)

    def names(self) -> Mapping[str, Any]:
        return dict.fromkeys(self.settings, dict.fromkeys((*OF_METRICS, *OTHERS, *OF_ROUNDS)))

    def case(self, load: Load, name: str) -> Case:
        """Case that a setting decodes. A cache of one context is enough, and small enough to be seen block by block."""
        setting, config = self.settings[name], self.config(name)
        engine = load(setting.draft)
        if config.kv_cache and config.num_blocks is None:
            config = replace(config, num_blocks=-(-engine.context_length // config.block_size))
        prompt = self.prompts[setting.prompt] if setting.prompt else next(iter(self.prompts.values()))
        return Case(engine, prompt, config, self.how(name))

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        cases = {name: self.case(load, name) for name in self.settings}

        def report(turn: RunTurn, tokens: int, event: Event | None) -> None:
            most = cases[turn.name].sampling.max_tokens
            doing = f"repeat {turn.repeat} of {self.repeats}" if turn.repeat else "warming up"
            so_far = counted(tokens, "token")
            share = (turn.number - 1 + min(1, tokens / most)) / turn.of
            watch(f"{spoken(turn.name)}, {doing}: {so_far}", share, *([(0, event)] if event else []))

        runs: dict[str, list[Run]] = {name: [] for name in cases}
        for turn, run in in_turns(cases, self.repeats, cancelled=cancelled, watch=report):
            if turn.repeat:
                runs[turn.name].append(run)
            yield
        return Measured({} if cancelled.is_set() else figures(runs), runs)


def figures(runs: Mapping[str, list[Run]]) -> dict[str, dict[str, Any]]:
    """By setting and name: a list with one number per repeat, or one number. What was not measured is left out."""
    first = next(iter(runs.values()))
    configs = {name: some[0].config for name, some in runs.items()}
    found: dict[str, dict[str, Any]] = {}
    for name, some in runs.items():
        each = [figures_of(run) | {"agreeing_tokens": common_length(first[0].token_ids, run.token_ids)} for run in some]
        found[name] = {key: [one[key] for one in each] for key in each[0] if all(key in one for one in each)}
        plain = without_speculation(name, configs)
        if plain is not None and (rounds := speculated(some, runs[plain])):
            found[name] |= {
                "gamma": rounds.gamma,
                "acceptance": rounds.acceptance,
                "round_tokens": rounds.tokens,
                "rounds": rounds.verified[0],
                "whole_rounds": rounds.accepted[-1] / rounds.verified[0],
                "lost_rounds": 1 - rounds.accepted[0] / rounds.verified[0],
                "draft_cost": rounds.cost,
                "pass_ratio": rounds.pass_ratio,
            }
    return found


def figures_of(run: Run) -> dict[str, float]:
    """The figures of one run."""
    metrics, steps = run.metrics, [event for event in run.events if isinstance(event, StepTimed)]
    prefill = [step for step in steps if step.step_kind == "prefill"]
    later = sorted((step for step in steps if step.step_kind != "prefill"), key=lambda step: step.verify_bytes)
    found: dict[str, float | None] = {name: getattr(metrics, name) for name in OF_METRICS}
    found |= {
        "prompt_tokens": len(run.prompt_token_ids),
        "prefill_flops": sum(step.verify_flops for step in prefill),
        "prefill_bytes": sum(step.verify_bytes for step in prefill),
        "read_bytes_per_second": run.started.read_bytes_per_second,
        "memory_bytes_per_second": run.started.memory_bytes_per_second,
        "flops_per_second": run.started.flops_per_second,
        "bound": {"memory": 1, "compute": 2}.get(metrics.roofline_bound, 0),
    }
    if later:
        typical = later[len(later) // 2]
        found |= {"step_flops": typical.verify_flops, "step_bytes": typical.verify_bytes}
        given = metrics.generated_tokens - 1  # the first is the prefill's
        found["token_flops"] = sum(step.verify_flops + step.draft_flops for step in later) / given
        found["token_bytes"] = sum(step.verify_bytes + step.draft_bytes for step in later) / given
    if run.started.block_bytes:
        found["kv_token_bytes"] = run.started.block_bytes / run.config.block_size
    if verdicts := [event.accepted for event in run.events if isinstance(event, Verified)]:
        found["kept_share"] = statistics.fmean(verdicts)
    if overlaps := [e.overlap for e in run.events if isinstance(e, Distributions) and e.overlap is not None]:
        found["overlap"] = statistics.fmean(overlaps)
    if ranks := [_rank(e) for e in run.events if isinstance(e, Distributions) and e.q is not None]:
        found |= {f"rank_{k}": ranks.count(k) / len(ranks) for k in RANKS}
    for word, verdict in _verdicts(run).items():
        found |= {f"{word}_{name}": getattr(verdict, name) for name in ("p", "q", "u", "ratio")}
    return {name: value for name, value in found.items() if value is not None}


def _rank(place: Distributions) -> int:
    """The drafter's rank, from 1, of the target's likeliest token; one that it ranks below those recorded has more."""
    right = place.q[place.p.index(max(place.p))]
    return 1 + sum(q > right for q in place.q)


def _verdicts(run: Run) -> dict[str, RoundedVerdict]:
    """The first accepted draft token, the first rejected one, and the closest call, to be worked out by hand: of those
    that take the fewest digits to show what was decided. Empty if nothing is drawn."""
    # Those of the standard rule; others compare with a threshold of their own.
    verified = [e for e in run.events if isinstance(e, Verified) and e.u is not None and e.threshold is None]
    drawn = [(event.accepted, round_verdict(event.p, event.q, event.u, accepted=event.accepted)) for event in verified]
    drawn.sort(key=lambda each: each[1].digits)  # of as many digits, the first remains the first
    found = {"kept" if accepted else "refused": numbers for accepted, numbers in reversed(drawn)}
    if unsure := [numbers for _, numbers in drawn if numbers.ratio < 1]:
        found["close"] = min(unsure, key=lambda numbers: (numbers.digits, abs(numbers.u - numbers.ratio)))
    return found
