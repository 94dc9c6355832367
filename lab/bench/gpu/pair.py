"""Part 1: the embedded pair. The ladder with and without CUDA graphs, compiled, and against transformers' own ways."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import torch

from lab.bench.gpu.sheet import Sheet
from lab.bench.ladder import Generate, lab_generate, ladder_configs, stock_generate, timed
from lab.bench.output import spread
from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.load import load_engine, new_engine
from lab.measure.measuring import shuffled
from lab.measure.workload import PROMPTS

GAMMA = 4
SPECULATION = f"cache + speculation (gamma {GAMMA})"
STATIC = "transformers generate, static cache"
COMPILING_SECONDS = {"cache, compiled": 15.0, "cache, compiled, no graphs": 5.0, STATIC: 40.0}
"""What rows are assumed to take at least before they have a figure, when nothing of them was compiled before. The first
took 13 seconds beside one H100, and about 30 beside another, whose host was slower."""
RATIOS = (
    ("cache", "transformers generate"),
    ("cache", "cache, no graphs"),
    ("cache", "cache, no async scheduling"),
    (SPECULATION, "transformers assisted generation"),
)


def run_pair(sheet: Sheet, *, device: torch.device, dtype: str, small: bool) -> None:
    """Fill ``rows``: output tokens per second of whole greedy calls, medians and quartiles; ``ratios`` between them;
    and ``static``, with one prompt only, because transformers compiles its static cache anew for each length. What says
    most comes first, and what takes longest to compile last.
    """
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
    singly = {
        f"{name}, no graphs": lab(replace(config, cuda_graphs=False))
        for name, config in configs.items()
        if config.kv_cache and engine.cuda_graphs
    }
    first = {"cache": ladder.pop("cache"), "transformers generate": stock(), SPECULATION: ladder.pop(SPECULATION)}
    first["transformers assisted generation"] = stock(GAMMA)
    if "cache, no graphs" in singly:
        first["cache, no graphs"] = singly.pop("cache, no graphs")
        models = engine.target, engine.tokenizer, engine.draft
        in_turn = new_engine(*models, kernels=engine.kernels, async_scheduling=False)
        first["cache, no async scheduling"] = lab_generate(in_turn, configs["cache"], sampling)
    for name, config in configs.items():  # a last, shorter window has its own graph; the prompt decides which
        if config.speculative != "off" and engine.cuda_graphs:
            with sheet.attempt(f"{name}, to warm up"):
                for prompt in prompts:
                    lab(config)(prompt)
    time_rows(sheet, engine, "rows", first | ladder, prompts, rounds, reserve=85)
    if singly and sheet.has_time(10, "the other rows without graphs"):
        time_rows(sheet, engine, "rows", singly, prompts[:2], 2, reserve=80)

    sheet.say("torch.compile, and transformers' static cache (compiled by transformers on a GPU):")
    compiled = EngineConfig(torch_compile=not small)
    rows = {"cache": first["cache"], "transformers generate": first["transformers generate"]}
    rows["cache, compiled"] = lab(compiled)
    if engine.cuda_graphs:
        rows["cache, no graphs"] = first["cache, no graphs"]
        rows["cache, compiled, no graphs"] = lab(replace(compiled, cuda_graphs=False))
    rows[STATIC] = stock(cache="static")  # whole, and longer to compile than the others
    needed = {} if small else COMPILING_SECONDS
    time_rows(sheet, engine, "static", rows, prompts[:1], rounds, reserve=2, needed=needed)


def time_rows(
    sheet: Sheet,
    engine: Engine,
    into: str,
    rows: dict[str, Generate],
    prompts: tuple[str, ...],
    rounds: int,
    *,
    reserve: float,
    needed: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Time all rows once per round, each round with the next prompt and in another order.

    The first round warms up every row before timing it, so that each has a figure early. Another round begins only if
    it would leave ``reserve`` seconds for what comes later. A row that fails is not run again, and one that
    has fewer seconds than it ``needed`` is left out. ``ratios`` are up to date after every row.
    """
    found: dict[str, dict] = sheet.result.setdefault(into, {})
    rates: dict[str, list[float]] = {name: [] for name in rows}
    took = 0.0
    for number, order in enumerate([list(rows), *shuffled(rows, rounds - 1)]):
        if number and not sheet.has_time(took + reserve, f"rounds {number + 1} to {rounds} of {into}"):
            break
        took = 0.0
        for name in order:
            if len(rates[name]) < number or (not number and not sheet.has_time(needed.get(name, 0), name)):
                continue
            with sheet.attempt(name):
                if not number:
                    timed(engine, name, rows[name], prompts[0])
                tokens, seconds = timed(engine, name, rows[name], prompts[number % len(prompts)])
                took += seconds
                rates[name].append(tokens / seconds)
                found[name] = spread(rates[name])
                sheet.result["ratios"] = ratios(sheet.result)
        sheet.say(f"  round {number + 1} of {rounds} done")


def ratios(result: dict) -> dict[str, float]:
    rows = result.get("rows", {})
    return {f"{a} / {b}": rows[a]["median"] / rows[b]["median"] for a, b in RATIOS if a in rows and b in rows}
