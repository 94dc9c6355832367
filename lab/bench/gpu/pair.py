"""Part 1: the embedded pair. The ladder with graphs and without, compiled, and beside transformers' own ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

from lab.bench.ladder import PROMPTS, Generate, Row, ladder_configs, stock_generate, time_rows
from lab.config import EngineConfig, SamplingParams
from lab.load import load_engine

GAMMA = 4


def run_pair(result: dict, report: Callable[[str], None], *, device: str, small: bool) -> None:
    """Fill ``result`` with ``rows``: output tokens a second of whole greedy calls, medians and quartiles; and with
    ``static``, where fewer prompts are asked, for transformers compiles its static cache anew for each length.
    """
    max_tokens, repeats, prompts = (6, 2, PROMPTS[:1]) if small else (128, 2, PROMPTS[:4])
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)

    engine = load_engine(device=device)

    def lab(config: EngineConfig, **changes: bool) -> Generate:
        config = replace(config, **changes)
        return lambda prompt: len(engine.generate(prompt, config, sampling).token_ids)

    result |= {"dtype": engine.dtype, "kernels": engine.kernels, "cuda_graphs": engine.cuda_graphs, "gamma": GAMMA}
    rows = {name: lab(config) for name, config in ladder_configs(GAMMA).items()}
    for name, config in ladder_configs(GAMMA).items():
        if config.kv_cache and engine.cuda_graphs:
            rows[f"{name}, no graphs"] = lab(config, cuda_graphs=False)
    rows["transformers generate"] = stock_generate(engine, max_tokens)
    rows["transformers assisted generation"] = stock_generate(engine, max_tokens, GAMMA)
    result["rows"] = _as_dicts(time_rows(engine, rows, repeats, report, prompts))
    medians = {name: row["median"] for name, row in result["rows"].items()}
    pairs = [
        ("cache", "transformers generate"),
        ("cache", "cache, no graphs"),
        (f"cache + speculation (gamma {GAMMA})", "transformers assisted generation"),
    ]
    result["ratios"] = {f"{a} / {b}": medians[a] / medians[b] for a, b in pairs if b in medians}

    report("torch.compile, and transformers' static cache (compiled by transformers on a GPU):")
    cache = EngineConfig()
    compiled = replace(cache, torch_compile=not small)
    rows = {"cache": lab(cache), "cache, compiled": lab(compiled)}
    if engine.cuda_graphs:
        rows["cache, no graphs"] = lab(cache, cuda_graphs=False)
        rows["cache, compiled, no graphs"] = lab(compiled, cuda_graphs=False)
    rows |= {
        "transformers generate": stock_generate(engine, max_tokens),
        "transformers generate, static cache": stock_generate(engine, max_tokens, cache_implementation="static"),
    }
    target, _ = engine.models(compiled)
    result["compiled"] = target.compiled
    result["compile_failure"] = target.compile_failure
    result["static"] = _as_dicts(time_rows(engine, rows, repeats * 2, report, prompts[:1]))


def _as_dicts(rows: list[Row]) -> dict[str, dict]:
    return {row.name: asdict(row) for row in rows}


def format_pair(result: dict) -> list[str]:
    """The lines of the table that the bench ends with."""
    lines = []
    for part in ("rows", "static"):
        lines += [f"{row['median']:9.1f} tokens/s  {name}" for name, row in result.get(part, {}).items()]
    return lines + [f"{ratio:9.2f}           {name}" for name, ratio in result.get("ratios", {}).items()]
