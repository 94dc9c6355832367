"""``python -m docs.record_parity``: greedy tokens of tiny random models beside those of ``generate`` in transformers,
with every drafter over every kind of cache (of the models that are named; the record keeps its other rows). With a
quantised cache, which transformers has none like, beside those of the lab's own contiguous cache without a drafter.

Writes docs/bench/parity.json, from which ``make docs`` makes a table in docs/architectures.md. A sliding window is of
nine tokens, sinks are far from zero, and everything is in float32 on one thread. Requests with one kind of cache run
in one batch, each with another drafter; where prefixes are kept, each has read the prompt before; of quantised caches
blocks, prefixes and preemption are tried together. Heads are random (an MTP head's layer is the target's last), so that
nearly all they propose is taken back. Left out are drafters without a cache.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch
from transformers.utils import logging

from docs import record_architectures
from docs.record_architectures import reason
from lab import EngineConfig, LabError, Run, SamplingParams
from lab.engine.engine import Engine
from lab.kv_cache.storage import FORMATS
from lab.load import new_engine
from lab.models.dflash_head import DFlashHead
from lab.models.eagle3_head import Eagle3Head
from lab.models.head_files import read_head_config
from lab.models.language_model import LanguageModel
from lab.models.mtp_head import MTPHead, MTPLayers
from lab.models.numerical_check import refuse_disagreement
from lab.trace.events import FellBack, Preempted
from tests import tiny_models
from tests.engine.test_recurrent import DELTA
from tests.engine.test_windows import KINDS, windowed
from tests.models.test_head_files import DFLASH, RAW
from tests.models.test_numerical_check import SIZES, random_model

RECORD = Path(__file__).parent / "bench" / "parity.json"
PROMPT, TOKENS, BEFORE = "Once upon a time there was a cat, and the cat was old", 200, 8
NAMED = {
    "Gemma 2": "gemma2",
    "Gemma 3": "gemma3_text",
    "gpt-oss": "gpt_oss",
    "Mistral": "mistral",
    "Ministral": "ministral",
    "OLMo 3": "olmo3",
    "EXAONE 4": "exaone4",
    "Cohere 2": "cohere2",
    "Gemma 3n": "gemma3n_text",
    "Gemma 4": "gemma4_text",
    "Qwen3-Next": "qwen3_next",
    "Qwen3.5": "qwen3_5_text",
    "Granite 4 hybrid": "granitemoehybrid",
    "LFM2": "lfm2",
    "Qwen3-MoE": "qwen3_moe",
    "Mixtral": "mixtral",
    "DeepSeek V2": "deepseek_v2",
    "DeepSeek V3": "deepseek_v3",
    "GLM 4.7 Flash": "glm4_moe_lite",
    "Kimi Linear": "kimi_linear",
}
QWEN = dict.fromkeys(("qwen3_next", "qwen3_5_text"), DELTA | {"num_hidden_layers": 4})
PUBLISHED = record_architectures.PUBLISHED | QWEN
"""Whose last layer has attention, as in the published ones: MTP heads are made after it."""
MTP = ("qwen3_next", "qwen3_5_text", "deepseek_v3", "glm4_moe_lite")
"""Those whose checkpoints have an MTP head, in a layout that is read."""
PAGED = EngineConfig(paged=True, block_size=4)
CACHES = {
    "no cache": EngineConfig(kv_cache=False),
    "contiguous": EngineConfig(),
    "paged": PAGED,
    "prefix caching": (PREFIXES := replace(PAGED, enable_prefix_caching=True)),
}
DRAFTERS = ("off", "draft", "early_exit", "ngram", "synthetic", "eagle3", "dflash", "mtp")
WIDE = {"hidden_size": SIZES["hidden_size"], "max_position_embeddings": SIZES["max_position_embeddings"]}
HEADS = {
    Eagle3Head: RAW | WIDE,
    DFlashHead: DFLASH | WIDE | {"head_dim": 16, "dflash_config": {"mask_token_id": 9, "target_layer_ids": [0, 1]}},
}
"""Their configurations, for a target of three layers or more."""


def engine(kind: str) -> tuple[Engine, dict[str, str]]:
    """A tiny model with a draft that mostly agrees and random heads; and why it goes without some."""
    target = windowed(kind) if kind in KINDS else LanguageModel(random_model(kind, **PUBLISHED.get(kind, {})), kind)
    refuse_disagreement(target)
    without = {}
    for head, given in HEADS.items():
        try:
            config = read_head_config(given, target, "the head")
        except LabError as error:
            without[head.kind] = reason(error)
        else:
            target.heads[head.kind] = head(config, target.model.get_input_embeddings()).eval()
    if kind in MTP:
        found = MTPLayers.of(target.model, weights=False)
        found.layers[0].mtp_block.load_state_dict(target.model.model.layers[-1].state_dict())
        target.heads["mtp"] = MTPHead(target.model, found, kind)
    draft = LanguageModel(tiny_models.perturbed(target.model, 0.02), "draft")
    return new_engine(target, tiny_models.tokenizer(), draft), without


def outcome(run: Run, wanted: list[int]) -> str:
    """ "equal", the first token that differs, or what a run went on without."""
    for event in tiny_models.of(run, FellBack):
        return f"without {event.part}: {event.reason}"
    if run.token_ids == wanted:
        return "equal"
    pairs = zip(run.token_ids, wanted, strict=False)
    return f"differs at token {next((n for n, (a, b) in enumerate(pairs) if a != b), len(run.token_ids))}"


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)


def batch(lab: Engine, cache: EngineConfig, tokens: int) -> tuple[dict[str, Run], dict[str, str]]:
    """A run with each drafter, all at once; and why some were refused."""
    requests, refused = {}, {}
    for drafter in DRAFTERS if cache.kv_cache else DRAFTERS[:1]:
        try:
            requests[drafter] = lab.submit(PROMPT, replace(cache, speculative=drafter), greedy(tokens))
        except LabError as error:
            refused[drafter] = reason(error)
    return {drafter: request.result() for drafter, request in requests.items()}, refused


def scarce(lab: Engine, cache: EngineConfig) -> EngineConfig:
    """With blocks for little more than one text, so that requests are preempted."""
    run = lab.generate(PROMPT, cache, SamplingParams(max_tokens=1))
    groups, longest = max(1, len(run.started.group_windows)), len(run.prompt_token_ids) + TOKENS
    return replace(cache, num_blocks=groups * -(-5 * longest // (4 * cache.block_size)))


def rows(kind: str) -> list[dict[str, object]]:
    """One for each kind of cache, with every drafter's outcome, its acceptance rate, and the prompt tokens that were
    found in the cache. "different": tokens in the text, which would be the same whatever is computed if it were one."""
    lab, without = engine(kind)
    plain = tiny_models.continuation(lab, lab.tokenizer(PROMPT)["input_ids"], TOKENS)
    found = []
    for name, cache in (CACHES | {form: replace(PREFIXES, kv_dtype=form) for form in FORMATS}).items():
        wanted = plain
        if cache.kv_dtype != "auto":
            wanted = lab.generate(PROMPT, EngineConfig(kv_dtype=name), greedy(TOKENS)).token_ids
        if cache.enable_prefix_caching:
            cache = scarce(lab, cache) if name in FORMATS else cache
            batch(lab, cache, BEFORE)
        runs, refused = batch(lab, cache, TOKENS)
        cells = {drafter: {"refused": without.get(drafter, why)} for drafter, why in refused.items()}
        for drafter, run in runs.items():
            accepted, cached = round(run.metrics.draft_acceptance_rate or 0.0, 3), run.metrics.cached_prompt_tokens
            cells[drafter] = {"outcome": outcome(run, wanted), "acceptance": accepted, "found": cached}
        preempted = sum(len(tiny_models.of(run, Preempted)) for run in runs.values())
        more = {"different": len(set(wanted)), "preempted": preempted, "drafters": cells}
        found.append({"kind": kind, "cache": name, **more})
    return found


def main() -> None:
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    kept, named = {}, sys.argv[1:]
    if named:
        kept = {(row["kind"], row["cache"]): row for row in json.loads(RECORD.read_text("utf-8"))["rows"]}
    for kind in named or NAMED.values():
        before = time.process_time()
        kept |= {(row["kind"], row["cache"]): row for row in rows(kind)}
        print(kind, f"{time.process_time() - before:.0f} s", flush=True)
        lines = ",\n".join(json.dumps(row) for row in kept.values())
        RECORD.write_text(f'{{"transformers": "{version("transformers")}", "rows": [\n{lines}\n]}}\n', "utf-8")


if __name__ == "__main__":
    main()
