"""Torch's attention backends, chosen for the prefill: each one that runs here gives the same tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lab import ConfigError, EngineConfig, SamplingParams
from lab.kv_cache import attention
from lab.kv_cache.sdpa_support import refuse_sdpa
from lab.trace.events import FellBack
from tests import tiny_models

PROMPTS = ["The king had three daughters", "Once", "A fox and a goose went to the mill, and on the way there"]
SAMPLING = SamplingParams(max_tokens=6, ignore_eos=True)
PAGED = EngineConfig(paged=True, block_size=4)
CONFIGS = {
    "paged": PAGED,
    "int8 and a draft": replace(PAGED, kv_dtype="int8", speculative="draft"),
    "no cache": EngineConfig(kv_cache=False),
}


@pytest.fixture
def used(monkeypatch) -> list[attention.SDPBackend]:
    """The backends that were requested."""
    asked, choose = [], attention.sdpa_kernel

    def spy(backend):
        asked.append(backend)
        return choose(backend)

    monkeypatch.setattr(attention, "sdpa_kernel", spy)
    return asked


def tokens(engine, config: EngineConfig) -> list[list[int]]:
    requests = [engine.submit(prompt, config, SAMPLING) for prompt in PROMPTS]
    runs = [request.result() for request in requests]
    assert not any(isinstance(event, FellBack) for run in runs for event in run.events)
    return [run.token_ids for run in runs]


@pytest.mark.skipif(torch.cuda.is_available(), reason="what runs is a CPU's")
@pytest.mark.parametrize("choice", ["math", "flash"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_backend_gives_the_same_tokens(used, config, choice):
    """For whole prompts and for chunks behind cached tokens, in one batch with decoding."""
    engine = tiny_models.engine("llama", "good", max_num_batched_tokens=33, kernels="reference")
    expected = tokens(engine, config)
    assert used == []
    assert tokens(engine, replace(config, prefill_attention=choice)) == expected
    assert set(used) == {attention.BACKENDS[choice]}


@pytest.mark.skipif(torch.cuda.is_available(), reason="what runs is a CPU's")
def test_kernels_decode_after_torch_has_prefilled(used):
    pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")
    engine = tiny_models.engine("llama", kernels="triton")
    config = replace(PAGED, prefill_attention="math")
    refuse_sdpa("math", engine.target.device, engine.target.dtype, engine.target.head_dim)  # tried once
    used.clear()
    prompt = "The king"
    run = engine.generate(prompt, config, SAMPLING)
    assert run.token_ids == tiny_models.engine("llama").generate(prompt, PAGED, SAMPLING).token_ids
    assert len(used) == engine.target.layers  # one pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="what runs is a CPU's")
def test_a_backend_that_does_not_run_here_is_refused():
    engine = tiny_models.engine("llama")
    with pytest.raises(ConfigError, match=r"'efficient' cannot be computed here: .* float32 on cpu .* Choose 'auto'"):
        engine.submit("Once", replace(PAGED, prefill_attention="efficient"))
    with pytest.raises(ConfigError, match="prefill_attention must be one of 'auto', 'math', 'efficient', 'flash'"):
        EngineConfig(prefill_attention="fast")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("choice", ["math", "efficient", "flash"])
def test_every_backend_is_close_to_the_kernels_on_a_gpu(choice):
    """In bfloat16, which flash attention requires: the first token's probability after a whole prompt."""
    from lab import load_engine

    engine = load_engine(device="cuda")
    firsts = []
    for config in (PAGED, replace(PAGED, prefill_attention=choice)):
        run = engine.generate("Once upon a time " * 20, config, SAMPLING)
        assert not any(isinstance(event, FellBack) for event in run.events)
        firsts.append(next(event for event in run.events if event.kind == "committed"))
    assert firsts[0].token_ids == firsts[1].token_ids
    assert firsts[0].probabilities[0] == pytest.approx(firsts[1].probabilities[0], abs=0.05)
