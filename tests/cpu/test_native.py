"""The step in C gives what transformers' modules with the reference attention give, for every family and format."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from lab import EngineConfig, SamplingParams
from lab.backends.cpu.native_model import NativeModel, native_step, refusal
from lab.backends.interface import NewTokens
from lab.backends.torch.torch_backend import TorchBackend
from lab.engine.engine import Engine
from lab.engine.pass_cost import PassCostModel, Span
from lab.kv_cache.block_pool import BlockPool
from lab.kv_cache.block_table import BlockTable
from lab.kv_cache.storage import KVStorage
from lab.load import new_engine
from lab.models.language_model import LanguageModel
from lab.trace.events import Committed, Distributions, FellBack, Verified
from tests import tiny_models

SHAPE = {
    "vocab_size": tiny_models.VOCABULARY,  # not a multiple of a block of outputs
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": tiny_models.CONTEXT,
    "bos_token_id": None,
    "eos_token_id": 256,
    "initializer_range": 0.3,
    "sliding_window": None,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES = {
    "llama": LlamaConfig(**SHAPE),
    "llama, scaled positions": LlamaConfig(**SHAPE, rope_parameters=LLAMA3),
    "llama, biases, one KV head": LlamaConfig(**SHAPE | {"num_key_value_heads": 1}, attention_bias=True, mlp_bias=True),
    "mistral": MistralConfig(**SHAPE),
    "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SHAPE),
}
LLAMA = FAMILIES["llama"]


def exact(config, *, seed: int = 0) -> PreTrainedModel:
    """A random model whose matrices are exact in bfloat16."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter += 0.2 * torch.randn_like(parameter)
            else:
                parameter.copy_(parameter.bfloat16().float())
    return model


def storage_of(model: LanguageModel, kv_format: str, slots: int, exempt: tuple[int, ...] = ()) -> KVStorage:
    shape = {"layers": model.layers, "kv_heads": model.kv_heads, "head_dim": model.head_dim}
    storage = KVStorage(kv_format, slots, **shape, dtype=model.dtype, device=model.device, exempt=exempt)
    for layer in storage.layers:
        for tensor in layer.tensors:  # slots that were never written must not be read
            tensor.fill_(math.nan if tensor.is_floating_point() else 77)
    return storage


def table(pool: BlockPool, tokens: int, *, paged: bool = True) -> BlockTable:
    made = BlockTable(pool, 0, lambda *_, **__: None, paged=paged)
    made.allocate_slots(tokens)
    return made


@functools.cache
def llama() -> LanguageModel:
    return LanguageModel(exact(LLAMA), "llama")


def logits_of_both(
    model: LanguageModel,
    kv_format: str,
    lengths: list[tuple[int, int]],
    block_size: int = 8,
    threads: int = 1,
    exempt: tuple[int, ...] = (),
):
    """Logits of sequences of (known, new) tokens, by the reference and in C, and the contents of both caches.

    ``threads``: of the step in C. (Torch uses one: more would wait for each other whenever the machine is busy.)
    """
    generator = torch.Generator().manual_seed(7)
    results = []
    native = NativeModel(model)
    slots = block_size * sum(-(-(known + new) // block_size) for known, new in lengths)
    texts = [torch.randint(0, 257, (known + new,), generator=generator) for known, new in lengths]

    def in_c(batch, storage):
        torch.set_num_threads(threads)
        try:
            return native.step(batch, model.layers, storage)
        finally:
            torch.set_num_threads(1)

    for step in (lambda batch, storage: TorchBackend(model).forward(batch, storage), in_c):
        storage, pool = storage_of(model, kv_format, slots, exempt), BlockPool(slots // block_size, block_size)
        tables = [table(pool, known + new) for known, new in lengths]
        for text, its, (known, _) in zip(texts, tables, lengths, strict=True):
            if known:
                TorchBackend(model).forward([NewTokens(text[:known], 0, its, 0)], storage)
        batch = [
            NewTokens(text[known:], known, its, keep=1 + i % new)
            for i, (text, its, (known, new)) in enumerate(zip(texts, tables, lengths, strict=True))
        ]
        results.append((step(batch, storage), storage))
    return results


@pytest.mark.parametrize(
    ("family", "kv_format"), [*((name, "auto") for name in FAMILIES), ("qwen3", "int8"), ("qwen2", "int4")]
)
@torch.inference_mode()
def test_logits_and_cache_are_those_of_the_reference(family, kv_format):
    model = LanguageModel(exact(FAMILIES[family]), "exact")
    assert refusal(model) is None
    exempt = (0,) if kv_format == "int4" else ()
    given = [(37, 1), (0, 3), (20, 7), (8, 1)]
    (expected, theirs), (actual, ours) = logits_of_both(model, kv_format, given, exempt=exempt)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
    for left, right in zip(theirs.layers, ours.layers, strict=True):
        for a, b in zip(left.read(slice(None)), right.read(slice(None)), strict=True):
            # A number half-way between two quantisation steps may be stored as either.
            close = torch.isclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)
            assert close.double().mean() > 0.999


@pytest.mark.parametrize("kv_format", ["int8", "int4"])
@pytest.mark.parametrize("odd", [0.0, math.nan])
@torch.inference_mode()
def test_vectors_that_have_no_scale_of_their_own_are_stored_as_by_the_reference(odd, kv_format):
    """One head's values are all 0, or all but one that is no number: the vector must not be read back as finite."""
    model = exact(LLAMA)
    weight = model.model.layers[0].self_attn.v_proj.weight
    weight[: LLAMA.head_dim] = 0
    weight[5] = odd
    both = logits_of_both(LanguageModel(model, "odd"), kv_format, [(0, 3)])
    theirs, ours = (storage.layers[0].read(slice(0, 3))[1][:, 0] for _, storage in both)
    assert torch.equal(ours.isfinite(), theirs.isfinite())
    assert ours.isfinite().all() == (not odd)
    assert odd or not ours.any()


@settings(max_examples=20)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 20)), min_size=1, max_size=4),
    block_size=st.sampled_from((1, 3, 16, 33)),
    threads=st.sampled_from((1, 2)),
)
@torch.inference_mode()
def test_logits_are_those_of_the_reference_for_any_lengths_and_block_sizes(lengths, block_size, threads):
    (expected, _), (actual, _) = logits_of_both(llama(), "auto", lengths, block_size, threads)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


@functools.cache
def native_llama() -> NativeModel:
    return NativeModel(llama())


@torch.inference_mode()
def by_threads(threads: int) -> torch.Tensor:
    """The logits of a step on so many threads. (Torch's number of threads is separate for each Python thread.)"""
    torch.set_num_threads(threads)
    storage, pool = storage_of(llama(), "auto", 160), BlockPool(10, 16)
    texts = [torch.arange(first, first + count) for first, count in ((0, 40), (90, 3), (60, 17))]
    batch = [NewTokens(text, 0, table(pool, len(text)), len(text)) for text in texts]
    return native_llama().step(batch, llama().layers, storage)


@pytest.fixture
def _threads(monkeypatch):
    """As many threads as a test asks for, on however few cores."""
    monkeypatch.setattr("lab.backends.cpu.cpu_count.cores", lambda: 1000)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
def test_any_number_of_threads_gives_the_same_bits():
    """More of them than cores, fewer again, more than there is work for, and after a pause."""
    alone = by_threads(1)
    for threads in (2, 5, 1, 12, 2):
        assert torch.equal(by_threads(threads), alone)
        time.sleep(0.01)
        assert torch.equal(by_threads(threads), alone)


@pytest.mark.usefixtures("_threads")
def test_concurrent_steps_give_the_same_bits():
    """One gets the threads; the others do not wait for them."""
    alone, same = by_threads(1), []

    def steps() -> None:
        same.extend(torch.equal(by_threads(2), alone) for _ in range(10))

    callers = [threading.Thread(target=steps) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert same == [True] * 30


@pytest.mark.usefixtures("_threads")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    """As on a ZeroGPU Space, which forks one for every call: its parent's threads do not exist in it."""
    alone = by_threads(1)
    assert torch.equal(by_threads(2), alone)
    if not (child := os.fork()):
        signal.alarm(30)  # ends it if it waits for threads that do not exist
        os._exit(not all(torch.equal(by_threads(threads), alone) for threads in (2, 3, 2)))
    assert torch.equal(by_threads(2), alone)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("head_dim", "rounded"), [(32, False), (64, True), (128, False)])
@torch.inference_mode()
def test_a_token_gives_the_same_bits_alone_and_in_a_batch(head_dim, rounded):
    """So that verification agrees with decoding, and no text depends on the rest of the batch.

    Few new tokens and many (from 16 on, keys are transposed), within a tile of positions and over several.
    """
    model = LanguageModel(exact(LlamaConfig(**SHAPE | {"head_dim": head_dim})), "exact")
    native = NativeModel(model, rounded=rounded)
    text = torch.randint(0, 257, (90,), generator=torch.Generator().manual_seed(3))
    storage, pool = storage_of(model, "auto", 96), BlockPool(12, 8)
    its = table(pool, 90)
    native.step([NewTokens(text[:25], 0, its, 0)], model.layers, storage)
    alone = [native.step([NewTokens(text[i : i + 1], i, its, 1)], model.layers, storage) for i in range(25, 90)]
    for cuts in ([25, 90], [25, 30, 36, 67, 90]):
        storage, pool = storage_of(model, "auto", 160), BlockPool(20, 8)
        its, other = table(pool, 90), table(pool, 60)
        native.step([NewTokens(text[:25], 0, its, 0)], model.layers, storage)
        together = []
        for start, stop in itertools.pairwise(cuts):
            batch = [NewTokens(text[:11], 0, other, 1), NewTokens(text[start:stop], start, its, stop - start)]
            together.append(native.step(batch, model.layers, storage)[1:])
        assert torch.equal(torch.cat(together), torch.cat(alone))


@torch.inference_mode()
def test_rounded_inputs_are_rounded_as_by_bfloat16():
    model = LanguageModel(exact(FAMILIES["qwen2"]), "exact")
    native = NativeModel(model, rounded=True)
    if not native.rounded:
        pytest.skip("this processor has no instructions for products of bfloat16")
    text = torch.randint(0, 257, (30,), generator=torch.Generator().manual_seed(3))
    results = []
    plain = TorchBackend(model).forward([NewTokens(text, 0, None, 5)], None)
    for module in model.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs: (inputs[0].bfloat16().float(),))
    results = (
        TorchBackend(model).forward([NewTokens(text, 0, None, 5)], None),
        native.step([NewTokens(text, 0, None, 5)], model.layers, None),
    )
    off = [(result - plain).abs().max().item() for result in results]
    # A sum that differs in its last digit can round to the next number, so the results are not equal.
    assert (results[0] - results[1]).abs().max().item() < 0.5 * min(off)
    assert off[1] < 0.05 * plain.abs().max().item()


def engines(config=LLAMA, **settings) -> tuple[Engine, Engine]:
    """The same pair of models on the reference and in C."""
    made = []
    for kernels in ("reference", "c"):
        target, draft = exact(config), exact(config, seed=1)
        pair = LanguageModel(target, "target"), tiny_models.tokenizer(), LanguageModel(draft, "draft")
        made.append(new_engine(*pair, kernels=kernels, **settings))
    return tuple(made)


CONFIGS = {
    "contiguous": EngineConfig(),
    "paged": EngineConfig(paged=True, block_size=4),
    "int8": EngineConfig(kv_dtype="int8"),
    "prefixes": EngineConfig(paged=True, enable_prefix_caching=True, block_size=4),
    "draft": EngineConfig(paged=True, block_size=4, speculative="draft"),
    "early exit": EngineConfig(speculative="early_exit", early_exit_layer=2),
    "lookup": EngineConfig(speculative="ngram"),
    "no cache": EngineConfig(kv_cache=False),
    "no cache, draft": EngineConfig(kv_cache=False, speculative="draft"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "temperature"), [*((name, 0.0) for name in CONFIGS), ("paged", 0.8), ("draft", 0.8)])
def test_the_engine_gives_the_same_tokens_as_on_the_reference(monkeypatch, name, temperature):
    (reference, native), config = engines(), CONFIGS[name]
    steps = []
    step = NativeModel.step
    counted = lambda self, batch, *rest: steps.append(len(batch)) or step(self, batch, *rest)  # noqa: E731
    monkeypatch.setattr(NativeModel, "step", counted)
    sampling = SamplingParams(max_tokens=12, ignore_eos=True, temperature=temperature, seed=5)
    prompts = ["The king", "Once upon a time", "a"]
    expected = [request.result().token_ids for request in [reference.submit(p, config, sampling) for p in prompts]]
    assert not steps
    assert [r.result().token_ids for r in [native.submit(p, config, sampling) for p in prompts]] == expected
    assert max(steps) == len(prompts)  # one call for the whole batch


@pytest.mark.slow
def test_tokens_do_not_depend_on_torchs_default_dtype():
    """It is one for all threads, and transformers changes it while it loads a model: C would read half the numbers."""
    engine = engines()[1]
    sampling = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.7, top_p=0.9, seed=5, logprobs=2)

    def generate():
        runs = [engine.generate("The king", CONFIGS[name], sampling) for name in ("draft", "no cache, draft", "int8")]
        kinds = Committed | Verified | Distributions
        return [replace(event, t_ms=0) for run in runs for event in run.events if isinstance(event, kinds)]

    expected, usual = generate(), torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        assert generate() == expected
        engine.clone().generate("a", CONFIGS["draft"], sampling)  # also what is made in the meantime
    finally:
        torch.set_default_dtype(usual)


def test_a_draft_with_another_vocabulary_size_runs_on_torch_beside_the_step_in_c():
    target = exact(LLAMA)
    draft = copy.deepcopy(target)
    draft.resize_token_embeddings(200)  # makes up rows that need not be exact in bfloat16
    for weight in (draft.get_input_embeddings().weight, draft.get_output_embeddings().weight):
        weight.data.copy_(weight.bfloat16().float())
    draft = LanguageModel(draft, "draft").with_vocabulary(tiny_models.VOCABULARY)
    engine = new_engine(LanguageModel(target, "target"), tiny_models.tokenizer(), draft)
    # C writes logits as wide as the model's own vocabulary; read as wider ones they end past the memory of a round.
    for width in (tiny_models.VOCABULARY + 99, tiny_models.VOCABULARY - 9):
        resized = engine.target.with_vocabulary(width)
        native_step(resized).prepare(resized)
        assert native_step(resized).model is None
        assert resized.rounded == engine.target.rounded
    assert (native_step(engine.target).model is None, native_step(engine.draft).model is None) == (False, True)
    for temperature in (0.0, 0.8):
        sampling = SamplingParams(max_tokens=20, ignore_eos=True, temperature=temperature, seed=5)
        run = engine.generate("The king", CONFIGS["draft"], sampling)
        assert len(run.token_ids) == 20
        assert run.metrics.draft_acceptance_rate > 0
        assert not [event for event in run.events if isinstance(event, FellBack)]


def pass_costs(engine: Engine) -> PassCostModel:
    return PassCostModel(engine.backends(EngineConfig())[0], None)


def test_a_pass_reads_half_the_bytes_of_its_matrices():
    reference, native = engines()
    passes = [pass_costs(engine).of([Span(9, 10, keep=1)]) for engine in (reference, native)]
    matrices = sum(module.weight.numel() for module in native.target.model.modules() if isinstance(module, nn.Linear))
    assert passes[0].bytes - passes[1].bytes == 2 * matrices
    assert passes[0].flops == passes[1].flops
    reference, native = (pass_costs(engine).of([Span(0, 9, keep=0)]) for engine in (reference, native))
    assert reference.bytes - native.bytes == 2 * (matrices - 48 * tiny_models.VOCABULARY)  # the head is not read


@pytest.mark.slow
def test_a_long_prompt_needs_no_deep_stack():
    """The softmax's state per query is on the heap: many query heads per KV head need a lot of it."""
    config = LlamaConfig(
        **SHAPE | {"num_attention_heads": 16, "num_key_value_heads": 1, "max_position_embeddings": 2048}
    )
    model, found = LanguageModel(exact(config), "llama"), []

    @torch.inference_mode()
    def read() -> None:
        [reference, _], [logits, _] = logits_of_both(model, "auto", [(0, 1000)])
        found.append((reference - logits).abs().max() < 1e-3 * reference.abs().max())

    usual = threading.stack_size(512 * 1024)  # the state takes 68 bytes per query and head: 1.1 MB
    try:
        thread = threading.Thread(target=read)
        thread.start()
    finally:
        threading.stack_size(usual)
    thread.join()
    assert found == [True]
