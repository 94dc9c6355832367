"""The drafters beside each other: what the target accepts of each, what a draft token costs, and what it gains.

All continue the beginnings of the same texts, which the embedded models have not seen, taking turns with decoding
without drafts.
"""

import threading
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.measure.comparison import Case, in_turns
from lab.measure.interval import ratio_interval
from lab.measure.measuring import refuse_failure
from lab.measure.theory import speculated
from lab.measure.workload import held_out_prompts, refuse_cut
from lab.trace.run import Run, acceptance_stats

GAMMA = 4
"""The lab's default, as for the model card."""
TEMPERATURES = 0.0, 0.8
PLAIN = "off"


def run_drafters(engine: Engine, max_tokens: int, repeats: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Continue every text by every drafter that the engine has. Raises LabError: more tokens than the context leaves,
    or a run failed."""
    prompts = held_out_prompts()
    refuse_cut(engine, prompts, max_tokens)
    configs = {PLAIN: EngineConfig()}
    for name in get_args(get_type_hints(EngineConfig)["speculative"]):
        config = EngineConfig(speculative=name, num_speculative_tokens=GAMMA)
        if name not in (PLAIN, "synthetic") and _has(engine, config):
            configs[name] = config
    rows = []
    for temperature in TEMPERATURES:
        by_text: list[dict[str, list[Run]]] = []
        for seed, prompt in enumerate(prompts):
            report(f"temperature {temperature:g}, text {seed + 1} of {len(prompts)}")
            sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
            cases = {name: Case(engine, prompt, config, sampling) for name, config in configs.items()}
            by_text.append({name: [] for name in cases})
            for turn, run in in_turns(cases, repeats, cancelled=threading.Event()):
                refuse_failure(run, engine)
                if turn.repeat:
                    by_text[-1][turn.name].append(run)
        rows += [_row(name, temperature, by_text) for name in configs if name != PLAIN]
    return {"prompts": len(prompts), "gamma": GAMMA, "rows": rows}


def _has(engine: Engine, config: EngineConfig) -> bool:
    try:
        engine.prepare("a", config)
    except LabError:
        return False
    return True


def _row(name: str, temperature: float, by_text: list[dict[str, list[Run]]]) -> dict[str, Any]:
    """A drafter's figures. Intervals are over texts; ``positions``: accepted of verified tokens, place by place. Where
    it never proposed a full window, there is no cost."""
    stats = [acceptance_stats(some[name]) for some in by_text]
    runs, plain = ([run for some in by_text for run in some[which]] for which in (name, PLAIN))
    found = speculated(runs, plain)
    seconds = [[sum(map(_decode_seconds, some[which])) for some in by_text] for which in (PLAIN, name)]
    rounds = [one.rounds for one in stats]
    return {
        "drafter": name,
        "temperature": temperature,
        "acceptance": sum(one.accepted for one in stats) / max(1, sum(one.proposed for one in stats)),
        "length": vars(ratio_interval([one.rounds + one.accepted for one in stats], rounds)) if all(rounds) else None,
        "positions": [a / v if v else None for a, v in zip(found.accepted, found.verified, strict=True)]
        if found
        else [],
        "cost": found.cost if found else None,
        "pass_ratio": found.pass_ratio if found else None,
        "speedup": vars(ratio_interval(*seconds)),
    }


def _decode_seconds(run: Run) -> float:
    """The time after the first token."""
    return (run.metrics.generated_tokens - 1) / run.metrics.tokens_per_second
