"""Counts and limits: ``roofs``, the most tokens per second that a device allows, by arithmetic; ``turns``, the tokens
that a growing conversation computes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.measure.workload import write
from lab.memory.model_memory import known_models
from lessons.experiments.base import Experiment, Load, Measured, Name, Part, Watch, Work, spoken

CARDS = {"a100": (2.039e12, 312e12), "h100": (3.35e12, 989e12), "h200": (4.8e12, 989e12)}
"""Bytes per second of memory and dense bfloat16 FLOP/s of the A100 80 GB, the H100 and the H200, all SXM, by their data
sheets: https://www.nvidia.com/en-us/data-center/a100/, and h100/ and h200/ there, which give FLOP/s with sparsity,
double those of dense matrices."""
OF_ROOFS = {
    "weight_bytes": "of the model",
    "bytes_per_second": "of all cards together",
    "tokens_per_second": "at most, for one user: each token reads all weights once",
    "one_card": "the same if the cards work one after another, each on its own layers",
    "ridge": "tokens in a pass from which arithmetic takes longer than reading the weights",
}
OF_TURNS = {
    "prompt_tokens": "sent in all turns",
    "cached_tokens": "of those, found in the prefix cache",
    "computed_tokens": "of those, computed",
    "output_tokens": "written",
    "last_prompt": "sent in the last turn",
    "last_computed": "of those, computed",
}
SYSTEM_TOKENS, USER_TOKENS, ANSWER_TOKENS = 64, 2, 10


class Roof(Part):
    """A dense model on ``cards`` equal GPUs."""

    model: str
    card: Literal["a100", "h200"]
    cards: int = Field(default=1, ge=1, le=64)
    bytes_per_parameter: float = Field(default=2.0, gt=0, le=4)


class Roofs(Experiment):
    """Limits of reading and of computing, each reached perfectly."""

    arithmetic = True

    settings: dict[Name, Roof] = Field(min_length=1)

    def names(self) -> Mapping[str, Any]:
        return dict.fromkeys(self.settings, dict.fromkeys(OF_ROOFS))

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        yield
        return Measured({name: _of_roof(roof) for name, roof in self.settings.items()})


def _of_roof(roof: Roof) -> dict[str, float]:
    parameters = known_models()[roof.model].parameters
    weights, (bandwidth, flops) = parameters * roof.bytes_per_parameter, CARDS[roof.card]
    return {
        "weight_bytes": weights,
        "bytes_per_second": roof.cards * bandwidth,
        "tokens_per_second": roof.cards * bandwidth / weights,
        "one_card": bandwidth / weights,
        "ridge": weights / bandwidth / (2 * parameters / flops),
    }


class Conversation(Part):
    """A conversation as it is served. ``dated``: the first line of the prompt is another in every turn."""

    enable_prefix_caching: bool
    dated: bool = False


class Turns(Experiment):
    """A system prompt, and ``turns`` turns that each send all of the conversation and get an answer."""

    settings: dict[Name, Conversation] = Field(min_length=1, max_length=4)
    turns: int = Field(default=30, ge=2, le=30)

    def names(self) -> Mapping[str, Any]:
        return dict.fromkeys(self.settings, dict.fromkeys(OF_TURNS))

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        engine = load("matched")
        watch("writing what the user says", 0.0)
        system, *said = write(engine, [SYSTEM_TOKENS] + [USER_TOKENS] * self.turns)
        found: dict[str, dict[str, int]] = {}
        for place, (name, how) in enumerate(self.settings.items()):
            own, answers = engine.clone(), ""
            counts = dict.fromkeys(OF_TURNS, 0)
            for turn, words in enumerate(said):
                if cancelled.is_set():
                    return Measured({})
                share = (place + turn / self.turns) / len(self.settings)
                watch(f"{spoken(name)}: turn {turn + 1} of {self.turns}", share)
                answers += f"\n{words}\n"
                first = f"Day {turn + 1}. " if how.dated else ""
                answers += _take_turn(own, f"{first}{system}{answers}", how, counts)
                yield
            found[name] = counts
        return Measured(found)


def _take_turn(engine: Engine, prompt: str, how: Conversation, counts: dict[str, int]) -> str:
    """Count a turn's tokens. Returns the answer."""
    config = EngineConfig(paged=True, enable_prefix_caching=how.enable_prefix_caching)
    run = engine.generate(prompt, config, SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True))
    sent, cached = len(run.prompt_token_ids), run.metrics.cached_prompt_tokens
    counts["prompt_tokens"] += sent
    counts["cached_tokens"] += cached
    counts["computed_tokens"] += sent - cached
    counts["output_tokens"] += len(run.token_ids)
    counts |= {"last_prompt": sent, "last_computed": sent - cached}
    return run.text
