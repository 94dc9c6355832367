"""The runs behind the figures in the lessons' introductions: ``python -m docs.record_figures``. They show no times."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Sequence
from typing import Any

from lab import EngineConfig, SamplingParams, load_engine
from lab.engine.engine import Engine
from lab.measure.throughput import arrivals
from lab.measure.workload import PlannedRequest, user_requests
from lab.trace.json_codec import to_dict
from lessons.experiments.base import whole
from lessons.experiments.kept import Kept
from visualize.pages.lessons.figure import RECORDED

STORY = "Once upon a time there was a king"
HEAD_SEED = 3
"""Rounds of the EAGLE-3 head that accept, reject, and give a bonus token."""
RULES = {
    "standard": {},
    "block": {"rejection_sample_method": "block"},
    "greedy": {"draft_sample_method": "greedy"},
    "typical": {"rejection_sample_method": "typical"},
}
RULE_SEED = 5
"""A first round in which all have the same draft token, and not all accept it."""
PLACE = "Once upon a time there was a poor miller who had three sons, and the youngest of them was"
RETOLD = (
    "'Who goes there?' said the giant. 'It is only I,' said the little goat. 'Who goes there?' said the giant. "
    "'It is only I,' said the second goat. 'Who goes there?'"
)
SAID = ("There was a king", "His daughter said", "The next day a fox", "In the end")
"""What the user says in the turns of a conversation."""
SYSTEM = "These are the tales the old nurse told by the fire on winter nights, when the snow lay before the door."


def main() -> None:
    engine = load_engine()
    runs = {
        "cached": one(engine, EngineConfig()),
        "uncached": one(engine, EngineConfig(kv_cache=False)),
        "int8": one(engine, EngineConfig(kv_dtype="int8")),
        "int4": one(engine, EngineConfig(kv_dtype="int4")),
        "eagle3": one(engine, EngineConfig(speculative="eagle3"), temperature=0.8, seed=HEAD_SEED, logprobs=5),
        "ngram": one(engine, EngineConfig(speculative="ngram"), RETOLD, max_tokens=24),
    }
    for temperature in (0.2, 0.8, 1.5):
        hot = {"max_tokens": 3, "temperature": temperature, "seed": 1, "logprobs": 8}
        runs[f"at-{temperature}"] = one(engine, EngineConfig(speculative="draft"), PLACE, **hot)
    for rule, config in RULES.items():
        asked = EngineConfig(speculative="draft", **config)
        runs[f"rule-{rule}"] = one(engine, asked, PLACE, temperature=0.8, seed=RULE_SEED, logprobs=6)
    users = user_requests(8, "tailed", 10, temperature=0.8, seed=4)
    runs["batch"] = many(engine, users, EngineConfig(paged=True, block_size=8, num_blocks=32), every=2, at_once=4)
    begun = user_requests(5, "tailed", 6, temperature=0.8, seed=7, beginning=SYSTEM)
    shared = EngineConfig(paged=True, block_size=8, num_blocks=32, enable_prefix_caching=True)
    runs["prefixes"] = many(engine, begun, shared, every=3, at_once=3)
    runs["turns"] = conversation(engine.clone(), shared)
    runs["kept"] = whole(Kept().work(lambda _: engine, threading.Event(), lambda *_: None)).figures
    RECORDED.write_bytes(gzip.compress(json.dumps(runs, separators=(",", ":")).encode(), mtime=0))


def one(engine: Engine, config: EngineConfig, prompt: str = STORY, **sampling: Any) -> dict[str, Any]:
    chosen = SamplingParams(**{"max_tokens": 20, "temperature": 0.0, "top_tokens": 0} | sampling)
    return json.loads(engine.generate(prompt, config, chosen).to_json())


def many(
    engine: Engine, requests: Sequence[PlannedRequest], config: EngineConfig, *, every: int, at_once: int
) -> list[list[Any]]:
    """The events of each step, each with the number of its sequence."""
    steps = arrivals(engine, requests, config, every=every, max_num_seqs=at_once)
    return [[[entry.owner, to_dict(entry.event)] for entry in step.entries] for step in steps]


def conversation(engine: Engine, config: EngineConfig) -> list[list[Any]]:
    """The same of turns that each send all before them: a turn has two steps, the second with all of its answer."""
    text, steps = SYSTEM, []
    for turn, said in enumerate(SAID):
        run = engine.generate(f"{text}\n{said}", config, SamplingParams(max_tokens=12, temperature=0.0, top_tokens=0))
        text = f"{text}\n{said}{run.text}"
        events = [[turn, to_dict(event)] for event in run.events]
        read = next(i for i, (_, event) in enumerate(events) if event["kind"] == "step_timed")
        steps += [events[: read + 1], events[read + 1 :]]
    return steps


if __name__ == "__main__":
    main()
