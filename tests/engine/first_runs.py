"""What Triton has to compile before runs on a GPU, which need not be present: ``python -m tests.engine.first_runs 90``,
with its compute capability.

One process runs the embedded pair with one setting after the other, and prints a line for each: its label, the kernels
that none before it had needed, and the seconds that compiling them took, by Triton's own assembler and without its
cache (``--count``: nothing is compiled). Kernels are not launched, so what they would write is noise, and so is the
text. Not counted: CUDA graphs, and what the number of a GPU's processors decides.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget

from lab import EngineConfig, SamplingParams, load_engine
from lab.backends.gpu import fused_kernels as kernels
from lab.backends.gpu import fused_product as product
from lab.backends.gpu import launching as interpreter
from lab.backends.gpu import paged_attention as attend_kernel
from lab.backends.gpu import store_kv as store_kernel

PROMPT = "Once upon a time there was a poor miller who had three sons, and when he grew old he said,"
DRAFT = {"paged": True, "speculative": "draft"}
RUNS: dict[str, tuple[EngineConfig, str]] = {
    "draft": (EngineConfig(**DRAFT), PROMPT),
    "no speculation": (EngineConfig(paged=True), PROMPT),
    "lookup": (EngineConfig(paged=True, speculative="ngram"), PROMPT),
    "early exit": (EngineConfig(paged=True, speculative="early_exit"), PROMPT),
    "not paged": (EngineConfig(speculative="draft"), PROMPT),
    "no cache": (EngineConfig(kv_cache=False, speculative="draft"), PROMPT),
    "prefix caching": (EngineConfig(enable_prefix_caching=True, **DRAFT), PROMPT),
    "gamma 16": (EngineConfig(num_speculative_tokens=16, **DRAFT), PROMPT),
    "a short prompt": (EngineConfig(**DRAFT), "A"),
    "a long prompt": (EngineConfig(**DRAFT), 8 * PROMPT),
    "blocks of 8": (EngineConfig(block_size=8, **DRAFT), PROMPT),
    "int8": (EngineConfig(kv_dtype="int8", **DRAFT), PROMPT),
    "int4": (EngineConfig(kv_dtype="int4", **DRAFT), PROMPT),
    "int4, blocks of 8": (EngineConfig(kv_dtype="int4", block_size=8, **DRAFT), PROMPT),
}


def noisy(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``make`` with finite numbers in it, which a model can go on with."""

    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = make(*args, **kwargs)
        return tensor.normal_() if tensor.is_floating_point() else tensor.zero_()

    return made


def pretend(target: GPUTarget) -> None:
    """From here on, the lab on a CPU chooses what it would on a GPU, and launches nothing."""
    run = triton.JITFunction.run
    triton.JITFunction.run = lambda self, *args, grid, warmup, **options: run(
        self, *args, grid=grid, warmup=True, **options
    )
    current = {"get_current_target": lambda: target, "get_current_device": lambda: 0}
    triton.runtime.driver.set_active(SimpleNamespace(**current, get_current_stream=lambda device: 0))
    attend_kernel._takes_few_columns = lambda device: target.arch // 10 not in (10, 11)
    product._each_has_a_multiprocessor = lambda programs, device: programs <= 60
    if target.arch >= 90:
        for module in attend_kernel, store_kernel, kernels, product:
            module.early = lambda device: {"EARLY": True, "launch_pdl": True}
    torch.empty, torch.empty_like = noisy(torch.empty), noisy(torch.empty_like)
    torch.Tensor.new_empty = noisy(torch.Tensor.new_empty)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.first_runs")
    parser.add_argument("capability", type=int, help="90 for 9.0")
    parser.add_argument("--count", action="store_true", help="compile nothing")
    options = parser.parse_args()
    pretend(GPUTarget("cuda", options.capability, 32))
    interpreter.INTERPRETED = True  # as far as the choice of kernels is concerned
    engine = load_engine(device="cpu", dtype="bfloat16", kernels="triton")
    interpreter.INTERPRETED = False
    asked: set[object] = set()
    begun, seconds = 0.0, 0.0

    def begin(*, fn: Any, key: object, **_: object) -> bool:
        nonlocal begun
        asked.add((fn.name, key))
        begun = time.perf_counter()
        return options.count  # whether it need not be compiled

    def end(**_: object) -> None:
        nonlocal seconds
        seconds += time.perf_counter() - begun

    knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook = begin, end
    with TemporaryDirectory() as cache:
        knobs.cache.dir = cache
        for label, (config, prompt) in RUNS.items():
            before, seconds = len(asked), 0.0
            tokens = config.num_speculative_tokens + 3  # a full round, and some beside it
            run = engine.generate(prompt, config, SamplingParams(max_tokens=tokens, ignore_eos=True))
            assert run.reason == "length", f"{label}: {run.reason}"
            print(f"{label:<20}{len(asked) - before:5}{seconds:7.1f}", flush=True)


if __name__ == "__main__":
    main()
