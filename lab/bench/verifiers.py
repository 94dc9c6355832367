"""The acceptance rules beside each other: how many draft tokens each accepts, and what the lossy one changes.

Every rule decides about drafts that are drawn from q, and about the draft's likeliest tokens, after the beginnings of
texts that the embedded pair has not seen. At temperature 0 all rules are one.
"""

from collections.abc import Callable
from itertools import product
from typing import Any, get_args

from lab.config import EngineConfig, RejectionSampleMethod, SamplingParams
from lab.engine.engine import Engine
from lab.measure.interval import ratio_interval
from lab.measure.measuring import refuse_failure
from lab.measure.workload import held_out_prompts, refuse_cut
from lab.trace.events import Verified
from lab.trace.run import Run, acceptance_stats

GAMMA, TEMPERATURE = 4, 0.8
"""The lab's defaults, as for the model card."""
GREEDY = "greedy decoding"


def run_verifiers(engine: Engine, max_tokens: int, repeats: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Continue every text ``repeats`` times, each with a seed of its own, under every rule. A row: its mean acceptance
    length with a 95% interval over texts, and a lossy rule's mean total variation. Raises LabError: more tokens than
    the context leaves, or a run failed."""
    prompts = held_out_prompts()
    refuse_cut(engine, prompts, max_tokens)
    rows = {}
    for rule, draft in [*product(get_args(RejectionSampleMethod), ("probabilistic", "greedy")), (GREEDY, "greedy")]:
        report(f"{rule}, {draft} drafts")
        temperature, again = (0.0, 1) if rule == GREEDY else (TEMPERATURE, repeats)
        config = EngineConfig(
            speculative="draft",
            num_speculative_tokens=GAMMA,
            rejection_sample_method="standard" if rule == GREEDY else rule,
            draft_sample_method=draft,
        )
        by_text = []
        for i, prompt in enumerate(prompts):
            seeds = range(i, i + again * len(prompts), len(prompts))
            some = [
                engine.generate(
                    prompt, config, SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
                )
                for seed in seeds
            ]
            for run in some:
                refuse_failure(run, engine)
            by_text.append(some)
        rows[f"{rule}, {draft}"] = {"rule": rule, "draft": draft, **accepted(by_text)}
    return {"prompts": len(prompts), "gamma": GAMMA, "temperature": TEMPERATURE, "rows": rows}


def accepted(by_text: list[list[Run]]) -> dict[str, Any]:
    stats = [acceptance_stats(runs) for runs in by_text]
    length = ratio_interval([one.rounds + one.accepted for one in stats], [one.rounds for one in stats])
    moved = [
        event.total_variation
        for runs in by_text
        for run in runs
        for event in run.events
        if isinstance(event, Verified) and event.total_variation is not None
    ]
    return {
        "rounds": sum(one.rounds for one in stats),
        "acceptance": sum(one.accepted for one in stats) / sum(one.proposed for one in stats),
        "length": {"value": length.value, "low": length.low, "high": length.high},
        "total_variation": sum(moved) / len(moved) if moved else 0.0,
        "verified": len(moved),
    }
