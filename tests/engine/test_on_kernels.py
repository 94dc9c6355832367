"""The engine on the Triton kernels gives the reference's tokens, and falls back to the reference if a kernel fails."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

from lab import EngineConfig, SamplingParams, load_engine
from lab.backends.gpu import paged_attention as attend_kernel
from lab.backends.gpu import store_kv as store_kernel
from lab.load import new_engine
from lab.trace.events import BlockFreed, FellBack, StepTimed
from tests import tiny_models
from tests.captured import SMALL, compute_in_torch
from tests.engine.test_windows import windowed
from tests.tiny_models import of

pytestmark = pytest.mark.slow

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles here: see the tests marked gpu")
PROMPT = "A king"
PAGED = EngineConfig(paged=True, block_size=4)
SAMPLING = SamplingParams(max_tokens=8, ignore_eos=True)
CONFIGS = {
    "contiguous": EngineConfig(),
    "paged": PAGED,
    "int8": replace(PAGED, kv_dtype="int8"),
    "int4": EngineConfig(kv_dtype="int4"),
    "a draft, int8": replace(PAGED, kv_dtype="int8", speculative="draft"),
    "an early exit": EngineConfig(speculative="early_exit", num_speculative_tokens=2),
    "no cache": EngineConfig(kv_cache=False),
}


@pytest.fixture(scope="module")
def reference():
    return tiny_models.engine("llama", "good", shape=SMALL, kernels="reference")


def on_kernels(**limits: object):
    return tiny_models.engine("llama", "good", shape=SMALL, kernels="triton", **limits)


def counted(monkeypatch, module, name: str, *, failing_at: int | None = None) -> list[int]:
    """Count the calls of a launcher. Call ``failing_at``, counted from 0, and all later ones raise."""
    calls, launch = [0], getattr(module, name)

    def wrapped(*args):
        calls[0] += 1
        if failing_at is not None and calls[0] > failing_at:
            raise RuntimeError("out of registers\nand much more")
        return launch(*args)

    monkeypatch.setattr(module, name, wrapped)
    return calls


@without_gpu
@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - {"int8"}))  # which is read with a draft, too
def test_kernels_give_the_tokens_of_the_reference(reference, monkeypatch, name):
    config = CONFIGS[name]
    attended = counted(monkeypatch, attend_kernel, "attend")
    sampling = replace(SAMPLING, max_tokens=6)
    run = on_kernels().generate(PROMPT, config, sampling)
    assert run.token_ids == reference.generate(PROMPT, config, sampling).token_ids
    assert of(run, FellBack) == []
    assert (attended[0] > 0) == config.kv_cache


@without_gpu
@pytest.mark.parametrize(("kind", "kv_dtype"), [("gemma2", "auto"), ("gpt_oss", "auto"), ("mistral", "int8")])
def test_windows_sinks_and_softcaps_give_the_tokens_of_the_reference(monkeypatch, kind, kv_dtype):
    """Layers with windows and such without have blocks of their own; the window slides as tokens come."""
    attended = counted(monkeypatch, attend_kernel, "attend")
    config = replace(PAGED, kv_dtype=kv_dtype, speculative="ngram", kv_cache_dtype_skip_layers="1")
    few, runs = replace(SAMPLING, max_tokens=5), []
    for kernels in ("triton", "reference"):
        lab = new_engine(windowed(kind), tiny_models.tokenizer(), kernels=kernels)
        runs.append([it.result() for it in [lab.submit(text, config, few) for text in ("A king and a king", "A")]])
    assert attended[0] > 0
    assert not any(of(run, FellBack) for run in runs[0])
    assert [run.token_ids for run in runs[0]] == [run.token_ids for run in runs[1]]
    assert any(event.slid_out for run in runs[0] for event in of(run, BlockFreed))


@pytest.mark.slow
@without_gpu
def test_a_mixed_batch_gives_the_tokens_of_each_request_alone(reference):
    """Chunked prefill, decoding, verification and shared blocks in the same steps."""
    configs = [replace(PAGED, enable_prefix_caching=True, speculative=kind) for kind in ("off", "draft", "ngram")]
    prompts = [PROMPT, PROMPT + " and no son", "Once"]
    engine = on_kernels(max_num_batched_tokens=33)
    few = replace(SAMPLING, max_tokens=4)
    requests = [engine.submit(*asked, few) for asked in zip(prompts, configs, strict=True)]
    requests += engine.prepare(PROMPT, configs[0], few, continuations=2)()
    runs = [request.result() for request in requests]
    alone = [reference.generate(run.prompt, PAGED, few).token_ids for run in runs]
    assert [run.token_ids for run in runs] == alone
    assert engine.occupancy().live == 0


@without_gpu
@pytest.mark.parametrize(
    ("module", "name", "failing_at", "config"),
    [
        (attend_kernel, "attend", 0, "contiguous"),
        (attend_kernel, "attend", 3, "int8"),
        (attend_kernel, "attend", 11, "contiguous"),
        (store_kernel, "store", 0, "int8"),
        (store_kernel, "store", 3, "int4"),
        (store_kernel, "store", 11, "int8"),
    ],
)
def test_a_failing_kernel_is_replaced_by_the_reference(reference, monkeypatch, module, name, failing_at, config):
    """In the first step or later, or between two layers: the text is the same."""
    compute_in_torch(monkeypatch)
    calls = counted(monkeypatch, module, name, failing_at=failing_at)
    engine = on_kernels(fuse_layers=False)
    run = engine.generate(PROMPT, CONFIGS[config], SAMPLING)
    assert run.token_ids == reference.generate(PROMPT, CONFIGS[config], SAMPLING).token_ids
    (event,) = of(run, FellBack)
    assert (event.part, event.reason) == ("kernel", "RuntimeError: out of registers")
    assert calls[0] == failing_at + 1  # it is not asked again
    layers, steps = engine.target.layers, [e for e in run.events if isinstance(e, StepTimed)]
    before = [e for e in run.events[: run.events.index(event)] if isinstance(e, StepTimed)]
    assert (len(before), len(steps)) == (failing_at // layers, 8)
    assert engine.occupancy().live == 0


@without_gpu
@pytest.mark.parametrize("failing_at", [1, 5, 9])
def test_a_failing_kernel_does_not_end_speculation(reference, monkeypatch, failing_at):
    """In the prefill, in a proposal, or in a verification: the draft is not to blame, and goes on drafting."""
    config = replace(PAGED, speculative="draft", num_speculative_tokens=3)
    compute_in_torch(monkeypatch)
    counted(monkeypatch, attend_kernel, "attend", failing_at=failing_at)
    engine = on_kernels(fuse_layers=False)
    run = engine.generate(PROMPT, config, SAMPLING)
    plain = reference.generate(PROMPT, config, SAMPLING)
    assert [event.part for event in of(run, FellBack)] == ["kernel"]
    assert run.token_ids == plain.token_ids
    assert run.metrics.mean_acceptance_length == plain.metrics.mean_acceptance_length
    assert engine.occupancy().live == 0


# -- choosing --------------------------------------------------------------------------------


@without_gpu
def test_on_a_cpu_c_is_the_default_and_triton_can_be_chosen():
    assert tiny_models.engine().kernels == "c"
    assert tiny_models.engine(kernels="triton").kernels == "triton"


@pytest.mark.slow
@without_gpu
def test_without_triton_or_a_gpu_the_lab_works_and_triton_is_refused():
    code = """
import os, sys
os.environ.pop("TRITON_INTERPRET", None)
sys.modules["triton"] = None  # cannot be imported
import lab
from tests.tiny_models import of
engine = lab.load_engine()
print(engine.kernels, len(engine.generate("Once", None, lab.SamplingParams(max_tokens=2)).token_ids))
for _ in range(2):
    try:
        lab.load_engine(kernels="triton")
    except lab.ConfigError as error:
        print(error)
    del sys.modules["triton"]
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "c 2"
    assert "needs the package triton" in lines[1]
    assert "kernels='triton' needs a GPU" in lines[2]


# -- for real --------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing to compile the kernels for")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_on_a_gpu_the_embedded_pair_gives_the_tokens_of_the_reference(config):
    """Compiled, in float32, token for token; "auto" chooses the kernels."""
    engines = [load_engine(device="cuda", dtype="float32", kernels=choice) for choice in ("auto", "reference")]
    assert [engine.kernels for engine in engines] == ["triton", "reference"]
    sampling = replace(SAMPLING, max_tokens=100)
    runs = [engine.generate("Once upon a time", config, sampling) for engine in engines]
    assert of(runs[0], FellBack) == []
    assert runs[0].token_ids == runs[1].token_ids or config.kv_dtype == "int4"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing to compile the kernels for")
@pytest.mark.parametrize("speculative", ["off", "draft"])
def test_in_bfloat16_graphs_single_launches_and_torch_nearly_agree_on_a_gpu(speculative):
    """With the fused product. A captured step splits attention differently, so nothing is equal bit for bit."""
    lab = load_engine(device="cuda")
    assert lab.dtype == "bfloat16"
    sampling = replace(SAMPLING, max_tokens=100)
    beginnings = []
    for changes in ({}, {"cuda_graphs": False}, {"kernels": "reference"}):
        run = lab.generate("Once upon a time", EngineConfig(speculative=speculative, **changes), sampling)
        assert of(run, FellBack) == []
        beginnings.append([p for event in run.events if event.kind == "committed" for p in event.probabilities][:5])
    assert beginnings[0] == pytest.approx(beginnings[2], abs=0.05)
    assert beginnings[1] == pytest.approx(beginnings[2], abs=0.05)
