"""Part 1: the embedded pair. The ladder with and without CUDA graphs, compiled, and against transformers' own ways."""

from dataclasses import replace
from functools import partial

import torch

from lab.bench.gpu.sheet import Sheet
from lab.bench.ladder import Generate, lab_generate, ladder_configs, stock_generate, time_rows
from lab.config import EngineConfig, SamplingParams
from lab.load import load_engine, new_engine
from lab.measure.workload import PROMPTS

GAMMA = 4
SPECULATION = f"cache + speculation (gamma {GAMMA})"
STATIC = "transformers generate, static cache"
RATIOS = (
    ("cache", "transformers generate"),
    ("cache", "cache, no graphs"),
    ("cache", "cache, no async scheduling"),
    (SPECULATION, "transformers assisted generation"),
)


def run_pair(sheet: Sheet, *, device: torch.device, dtype: str, small: bool) -> None:
    """Fill ``rows``: output tokens per second of whole greedy calls, medians and quartiles; ``ratios`` between them;
    and ``static``, with one prompt only, because transformers compiles its static cache anew for each length."""
    max_tokens = 6 if small else 128
    prompts, rounds = (PROMPTS[:1], 2) if small else (PROMPTS[:4], 4)
    engine = load_engine(device=str(device), dtype=dtype)

    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    lab = partial(lab_generate, engine, sampling=sampling)

    def stock(gamma: int | None = None, cache: str | None = None) -> Generate:
        return stock_generate(engine, max_tokens, gamma, cache)

    sheet.result |= {"dtype": engine.dtype, "kernels": engine.kernels, "cuda_graphs": engine.cuda_graphs}
    configs = ladder_configs(GAMMA)
    ladder = {name: lab(config) for name, config in configs.items()}
    rows = {**ladder, "transformers generate": stock(), "transformers assisted generation": stock(GAMMA)}
    if engine.cuda_graphs:
        rows |= {
            f"{name}, no graphs": lab(replace(config, cuda_graphs=False))
            for name, config in configs.items()
            if config.kv_cache
        }
        models = engine.target, engine.tokenizer, engine.draft
        in_turn = new_engine(*models, kernels=engine.kernels, async_scheduling=False)
        rows["cache, no async scheduling"] = lab_generate(in_turn, configs["cache"], sampling)
    with sheet.attempt("rows"):
        found = sheet.result["rows"] = by_name(time_rows(engine, rows, prompts, rounds, sheet.say))
        medians = {name: row["median"] for name, row in found.items()}
        sheet.result["ratios"] = {f"{a} / {b}": medians[a] / medians[b] for a, b in RATIOS if {a, b} <= medians.keys()}
    sheet.say("torch.compile, and transformers' static cache (compiled by transformers on a GPU):")
    compiled = EngineConfig(torch_compile=not small)
    static = {name: rows[name] for name in ("cache", "transformers generate")}
    static["cache, compiled"] = lab(compiled)
    if engine.cuda_graphs:
        static["cache, no graphs"] = rows["cache, no graphs"]
        static["cache, compiled, no graphs"] = lab(replace(compiled, cuda_graphs=False))
    static[STATIC] = stock(cache="static")
    with sheet.attempt("static"):
        sheet.result["static"] = by_name(time_rows(engine, static, prompts[:1], rounds, sheet.say))


def by_name(rows: list[dict]) -> dict[str, dict]:
    return {row.pop("name"): row for row in rows}
