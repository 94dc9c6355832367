"""The runs behind the figures in the lessons' introductions: ``python -m docs.record_figures``.

They show no times, except for ``order``, whose times are compared with one another.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from lab import EngineConfig, SamplingParams, load_engine
from lab.engine.engine import Engine
from lab.kv_cache.formats import Int4Layer, Int8Layer, QuantisedLayer
from lab.kv_cache.kv_cache import new_storage
from lab.measure import reference
from lab.measure.score import log_probabilities
from lab.measure.throughput import arrivals
from lab.measure.workload import PlannedRequest, user_requests, write
from lab.trace.events import StepTimed
from lab.trace.json_codec import to_dict
from lessons.experiments.base import whole
from lessons.experiments.kept import Kept
from lessons.experiments.noise import Noise
from lessons.experiments.numerics import PLAIN, round_keys
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
SOLDIER = "There was once a soldier who came home from the war with nothing but a tinderbox, and on the road"
LADDER = {
    "no_cache": {"kv_cache": False},
    "cached": {},
    "int8": {"kv_dtype": "int8"},
    "paged": {"paged": True},
    "draft": {"speculative": "draft"},
    "all": {"kv_dtype": "int8", "paged": True, "speculative": "draft"},
}
"""The settings of lesson 12."""
NUMBERS = 32
"""Of a key that are shown: those that share an INT4 scale."""
FACTORS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
"""By which one channel is larger."""
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
    texts = user_requests(5, "equal", 20, temperature=0.8, seed=4)
    long = PlannedRequest(write(engine, [200])[0], replace(texts[0].sampling, max_tokens=4))
    for name, most in {"long-whole": 1024, "long-chunked": 48}.items():
        own = engine.clone(max_num_batched_tokens=most)
        runs[name] = many(own, [*texts, long], EngineConfig(paged=True), every=2, at_once=8)
    runs["turns"] = conversation(engine.clone(), shared)
    runs["without-draft"] = one(engine, EngineConfig(), max_tokens=32)
    runs["with-draft"] = one(engine, EngineConfig(speculative="draft"), max_tokens=32)
    for name, config in LADDER.items():
        runs[f"ladder-{name}"] = one(engine, EngineConfig(**config), SOLDIER, max_tokens=64)
    runs["users"] = {str(count): a_pass(engine, count) for count in (1, 2, 4, 8, 16)}
    runs["rounded"], runs["outlier"] = rounded(engine), outlier(engine)
    runs["order"] = Noise().slowed(engine, 12)
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


def a_pass(engine: Engine, requests: int) -> dict[str, int]:
    """Bytes and operations of a pass over one token of each of so many requests."""
    asked = user_requests(requests, "equal", 12, temperature=0.0, seed=1)
    steps = [*arrivals(engine, asked, EngineConfig(paged=True), max_num_seqs=requests)]
    timed = [[entry.event for entry in step.entries if isinstance(entry.event, StepTimed)] for step in steps]
    whole = [some for some in timed if some and some[0].batch_sequences == some[0].batch_tokens == requests]
    [(moved, flops)] = {(one.verify_bytes, one.verify_flops) for one in whole[-1]}  # all decode
    return {"bytes": moved, "flops": flops}


def keys(engine: Engine) -> tuple[list[str], torch.Tensor]:
    """The tokens of a text, and their keys in a middle layer, [tokens, heads, head_dim] float32."""
    ids = engine.tokenizer(PLACE)["input_ids"]
    storage = new_storage(engine.target, "auto", -(-len(ids) // PLAIN.block_size) * PLAIN.block_size)
    for _ in log_probabilities(engine, ids, PLAIN, storage):
        pass
    key, _ = storage.layers[len(storage.layers) // 2].read(slice(0, len(ids) - 1))
    return [engine.tokenizer.decode([token]).strip() for token in ids], key.float().cpu()


def rounded(engine: Engine) -> dict[str, Any]:
    """Keys as INT8 and INT4 store them."""
    words, key = keys(engine)
    shown = [i for i in range(1, len(key)) if len(words[i]) > 3][:8]
    formats: dict[str, tuple[type[QuantisedLayer], range]] = {
        "INT8": (Int8Layer, range(-127, 128)),
        "INT4": (Int4Layer, range(-8, 8)),
    }
    lanes = {}
    for name, (layer, values) in formats.items():
        numbers, scale = layer.quantise(key[shown, 0])
        stored = layer.dequantise(numbers, scale)[:, :NUMBERS]
        lanes[name] = {"values": [*values], "steps": digits(scale[:, 0].float()), "stored": digits(stored)}
    at = [f"The key of “{words[i]}”." for i in shown]
    return {"at": at, "exact": digits(key[shown, 0, :NUMBERS]), "lanes": lanes}


def outlier(engine: Engine) -> dict[str, Any]:
    """A key in a byte per number, beside a channel that is made larger."""
    _, key = keys(engine)
    place, head = divmod(int(key[..., 0].abs().argmax()), key.shape[1])  # whose first channel is large already
    e4m3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ways = {
        "INT8, a scale per token": ("int8", "token", [*range(-127, 128)], 127.0),
        "FP8 (E4M3), a scale per token": ("e4m3", "token", e4m3[e4m3.isfinite()].unique().tolist(), 448.0),
        "INT8, a scale per channel": ("int8", "channel", [], 1.0),
    }
    lanes: dict[str, dict[str, list[Any]]] = {
        name: {"values": values, "steps": [], "stored": []} for name, (_, _, values, _) in ways.items()
    }
    for factor in FACTORS:
        larger = key.clone()
        larger[..., 0] *= factor
        for name, (form, scale, _, most) in ways.items():
            lanes[name]["steps"].append((larger[place, head].abs().max() / most).item())
            lanes[name]["stored"].append(digits(round_keys(larger, form, scale)[place, head, 1 : 1 + NUMBERS]))
    at = [f"One channel is {factor:g} times as large." if factor > 1 else "No outlier." for factor in FACTORS]
    return {"at": at, "exact": [digits(key[place, head, 1 : 1 + NUMBERS])] * len(FACTORS), "lanes": lanes}


def digits(numbers: torch.Tensor) -> Any:
    """Nested lists with six digits per number."""
    return reference.rounded(numbers.tolist())


if __name__ == "__main__":
    main()
