"""Flags, metrics and settings of vLLM in what the lab prints: each is one of those found in vLLM's own code."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

from lab.config import EngineConfig, KVFormat
from lab.settings import SETTINGS
from lab.vllm import server_metrics
from lab.vllm.serve_command import DIFFERENCES, serve_command
from lessons.course import course

ROOT = Path(__file__).parents[2]
FOUND = tomllib.loads((ROOT / "tests/fixtures/vllm-0.33-names.toml").read_text("utf-8"))
NAMES = {name for names in FOUND.values() for name in names}
"""Those of vLLM 0.33 that the lab uses."""
LABS_OWN = {"--attach"}
FORMS = (
    r"(?<![\w-])--[a-z][a-z-]*[a-z]",  # a flag
    r"vllm:[a-z_]+",  # a metric
    r'(?<![\w=])"([a-z][a-z_0-9]*)"',  # a setting of speculation, or its value
    r"VLLM_[A-Z_]+",
    r"\b[A-Z]\w+Spec\b",
    r"\bfp8\b|\b[a-z0-9]+_per_token_head\b|\bturboquant\w+",
)


def texts() -> Iterator[tuple[str, str]]:
    for number, lesson in course().items():
        yield f"lesson {number}", lesson.front.beyond.vllm
    for one in DIFFERENCES:
        yield "differences.toml", one["say"]
    for setting in SETTINGS.values():
        yield setting.name, f'"{setting.vllm.split(" ")[0].split(".")[-1]}":' if setting.vllm else ""
    metrics = (value for value in vars(server_metrics).values() if isinstance(value, str))
    yield "server_metrics.py", " ".join(value for value in metrics if value.startswith("vllm:"))
    yield "vllm.md", (ROOT / "docs/vllm.md").read_text("utf-8")
    for row in (ROOT / "docs/glossary.md").read_text("utf-8").splitlines():
        yield "glossary.md", row.split("|")[2] if row.startswith("|") else ""
    paged = EngineConfig(paged=True, num_speculative_tokens=4)
    configs = [replace(paged, kv_dtype=form, kv_cache_dtype_skip_layers="0") for form in get_args(KVFormat)]
    configs += [replace(paged, speculative=way, enable_prefix_caching=True) for way in ("draft", "mtp", "ngram")]
    block = replace(paged, speculative="draft", rejection_sample_method="block")
    configs.append(replace(block, num_speculative_tokens_per_batch_size="1-8:4 9-64:1"))
    for config in configs:
        every = {"max_model_len": 9, "gpu_memory_utilization": 0.9, "max_num_seqs": 9, "max_num_batched_tokens": 99}
        yield "serve_command.py", serve_command(config, "a/b", "c/d", 2, dtype="float32", **every)


def used(text: str) -> set[str]:
    """Names of vLLM in a text. Prometheus adds ``_total`` to the name of a counter."""
    found = {name for form in FORMS for name in re.findall(form, text)}
    return {re.sub(r"(?<=.)_total$", "", name) for name in found} - LABS_OWN


def test_every_name_of_vllm_is_one_that_vllm_has() -> None:
    unknown = {(where, name) for where, text in texts() for name in used(text) - NAMES}
    assert not unknown
    unused = NAMES - {name for _, text in texts() for name in used(text)}
    assert not unused, "names that nothing prints any more"


def test_a_wrong_name_would_be_found() -> None:
    said = 'Use `--kv-cache-type fp9_per_token_head` and {"draft_method": "eagle9"}; watch `vllm:num_waiting_total`.'
    assert used(said) == {"--kv-cache-type", "fp9_per_token_head", "draft_method", "eagle9", "vllm:num_waiting"}
