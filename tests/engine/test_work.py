"""PassCost is counted correctly: checked by hand, by torch's counter, and against the forward passes of a real run."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from lab import EngineConfig, SamplingParams
from lab.backends.torch.torch_backend import TorchBackend
from lab.engine.engine import Engine
from lab.engine.pass_cost import PassCostModel, Span
from lab.kv_cache.storage import KVStorage, bytes_per_token
from lab.load import new_engine
from lab.models.experts import expert_modules
from lab.models.language_model import LanguageModel
from lab.trace.events import StepTimed
from lab.trace.roofline import PassCost, limits_of
from tests import tiny_models
from tests.models.test_numerical_check import random_model

# tiny_models' Llama with 3 layers: 48 numbers, 4 query heads and 2 KV heads of 12, FFN 96, a tied table of 257 tokens.
LAYER = 48 * 48 + 2 * 48 * 24 + 48 * 48 + 3 * 48 * 96
NORMS = (3 * 2 + 1) * 48
HEAD = 257 * 48
SLOT = 3 * 2 * 2 * 12 * 4


def costs(model: LanguageModel, storage: KVStorage | None) -> PassCostModel:
    return PassCostModel(TorchBackend(model), storage)


@pytest.fixture(scope="module")
def llama() -> LanguageModel:
    return LanguageModel(tiny_models.random_model("llama", num_hidden_layers=3), "llama")


def storage(model: LanguageModel, kv_format: str = "auto", slots: int = 8) -> KVStorage:
    return KVStorage(kv_format, slots, **shape(model), device=model.device)


def shape(model: LanguageModel) -> dict:
    return {name: getattr(model, name) for name in ("layers", "kv_heads", "head_dim", "dtype")}


# -- by hand ---------------------------------------------------------------------------------------


def test_a_decode_step_reads_the_weights_and_the_cached_context(llama):
    """One token at position 9 attends to ten positions: nine slots are read and one is written."""
    work = costs(llama, storage(llama)).of([Span(9, 10, keep=1)])
    assert work.bytes == 4 * (3 * LAYER + NORMS + HEAD) + 10 * SLOT
    assert work.flops == 2 * (3 * LAYER + HEAD) + 10 * 3 * 4 * 48


def test_weights_count_in_their_dtype_and_without_lookup_tables():
    tied = LanguageModel(tiny_models.random_model("llama", num_hidden_layers=3), "tied")
    untied = tiny_models.random_model("llama", num_hidden_layers=3, tie_word_embeddings=False)
    untied = LanguageModel(untied, "untied")
    parameters = 3 * LAYER + NORMS + HEAD
    assert tied.weight_bytes == untied.weight_bytes == 4 * parameters
    assert sum(weight.numel() for weight in untied.model.parameters()) == parameters + HEAD
    untied.model.bfloat16()
    assert untied.weight_bytes == 2 * parameters
    gpt2 = LanguageModel(tiny_models.random_model("gpt2"), "gpt2")
    positions = tiny_models.CONTEXT * 48
    assert gpt2.weight_bytes == 4 * (sum(weight.numel() for weight in gpt2.model.parameters()) - positions)


class Packed(torch.nn.Module):
    """A linear layer with two numbers to an element, in a parameter (as bitsandbytes' 4 bits) or a buffer (GPTQ)."""

    def __init__(self, linear: torch.nn.Linear, *, in_buffer: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        numbers = torch.zeros(linear.weight.numel() // 2, 1, dtype=torch.uint8)
        self.weight = None if in_buffer else torch.nn.Parameter(numbers, requires_grad=False)
        self.register_buffer("qweight", numbers if in_buffer else None)


@pytest.mark.parametrize("in_buffer", [False, True])
def test_packed_weights_are_half_the_bytes_and_as_many_flops(in_buffer):
    plain, packed = (tiny_models.random_model("llama", num_hidden_layers=3) for _ in range(2))
    for layer in packed.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, linear in list(part.named_children()):
                if isinstance(linear, torch.nn.Linear):
                    setattr(part, name, Packed(linear, in_buffer=in_buffer))
    plain, packed = (costs(LanguageModel(it, "llama"), None).of([Span(0, 4, keep=1)]) for it in (plain, packed))
    assert packed.flops == plain.flops
    assert packed.bytes == plain.bytes - 3 * LAYER * 7 // 2  # four bytes a number, now half a byte


# -- by torch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", tiny_models.CONFIGS)
def test_flops_equal_those_of_the_torch_counter(architecture):
    """A prompt of ten tokens, then one more. Torch counts a prompt's attention as the full square, not only the
    positions that each token sees; for one token both are the same. Until 2.12 it counts the rotary angles, too.
    """
    model = LanguageModel(tiny_models.random_model(architecture), architecture)
    passes, position = (costs(model, None), 4 * model.layers * model.kv_heads * model.query_groups * model.head_dim)
    cache = DynamicCache()
    with model.stock_attention() as stock, sdpa_kernel(SDPBackend.MATH), torch.inference_mode():
        for span, unseen in ((Span(0, 10, keep=1), 45), (Span(10, 11, keep=1), 0)):
            with FlopCounterMode(display=False, depth=3) as counter:
                ids = torch.arange(span.start, span.stop)[None]
                stock(ids, cache=cache, use_cache=True, logits_to_keep=span.keep)
            counted = counter.get_flop_counts()
            angles = sum(sum(of.values()) for module, of in counted.items() if module.endswith(".rotary_emb"))
            assert counter.get_total_flops() - angles == passes.of([span]).flops + unseen * position


# -- what holds for any pass -----------------------------------------------------------------------

SPANS = st.lists(
    st.tuples(st.integers(0, 100), st.integers(1, 40), st.integers(0, 40)).map(
        lambda some: Span(some[0], some[0] + some[1], min(some[1], some[2]))
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@given(SPANS, SPANS)
def test_sharing_a_pass_saves_the_weights_and_nothing_else(llama, some, more):
    passes = costs(llama, storage(llama))
    together, apart = passes.of(some + more), passes.of(some) + passes.of(more)
    heads = [any(span.keep for span in spans) for spans in (some, more)]
    assert together == replace(apart, bytes=apart.bytes - llama.weight_bytes + 4 * HEAD * (not all(heads)))


# -- a real run ------------------------------------------------------------------------------------

PROMPTS = ("The king had three daughters, and the king", "A fox", "Once upon a time, a fox")
PAGED = EngineConfig(paged=True, block_size=4)
CONFIGS = {
    "plain": EngineConfig(),
    "no cache": EngineConfig(kv_cache=False),
    "int8": replace(PAGED, kv_dtype="int8"),
    "a draft": EngineConfig(speculative="draft"),
    "a draft, no cache": EngineConfig(speculative="draft", kv_cache=False),
    "a draft, int4": replace(PAGED, kv_dtype="int4", speculative="draft", num_speculative_tokens=3),
    "an early exit": replace(PAGED, speculative="early_exit", num_speculative_tokens=2),
    "lookup": EngineConfig(speculative="ngram", prompt_lookup_min=1),
}


def mixtures() -> Engine:
    """Each token goes to two of four experts in each layer."""
    target, draft = (LanguageModel(random_model("qwen3_moe"), name) for name in ("target", "draft"))
    lab = new_engine(target, tiny_models.tokenizer(), draft, max_num_batched_tokens=33)
    numbers = 3 * 64 * 32
    assert target.experts == (3 * 4 * 4 * numbers, 4 * numbers, 3 * 2 * numbers)
    target.expert_counter.begin()
    target.expert_counter._count += 5  # a pass that is no step's
    return lab


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize(
    ("kind", "config"),
    [("llama", name) for name in CONFIGS] + [("mixture", name) for name in CONFIGS if "int" not in name],
)
def test_the_events_of_a_run_add_up_to_the_work_of_its_passes(monkeypatch, kind, config, together):
    """Every forward pass is watched: which positions it computed, with which model, how many logits, and which
    experts its tokens went to."""
    # The longest prompt comes in two parts.
    lab = mixtures() if kind == "mixture" else tiny_models.engine("llama", "good", seed=3, max_num_batched_tokens=33)
    watched: dict[LanguageModel, PassCost] = {}
    forward, config, experts = LanguageModel.forward, CONFIGS[config], []
    for module in (it for model in (lab.target, lab.draft) for it in expert_modules(model.model)):
        module.register_forward_pre_hook(lambda module, given: experts.extend(set(given[1].flatten().tolist())))

    def watching(model, token_ids, positions, plan, keep):
        key = lab.target if model is lab.target else "drafting"
        experts.clear()
        logits = forward(model, token_ids, positions, plan, keep)
        watched[key] = watched.get(key, PassCost()) + seen(model, positions.tolist(), len(keep))
        return logits

    def seen(model: LanguageModel, positions: list[int], keep: int) -> PassCost:
        ends = [p for p, after in zip(positions, [*positions[1:], -1], strict=True) if after != p + 1]
        flops = 2 * len(positions) * model.layer_weights + 2 * keep * model.head_weights
        width = model.kv_heads * model.query_groups * model.head_dim
        flops += sum(4 * model.layers * width * (position + 1) for position in positions)
        slot = bytes_per_token(config.kv_dtype, **shape(model)) if config.kv_cache else 0
        weights = model.weight_bytes - (0 if keep else model.head_bytes)
        if kind == "mixture":
            weights += len(experts) * model.experts.bytes_each - model.experts.bytes
        return PassCost(weights + slot * sum(end + 1 for end in ends), flops)

    monkeypatch.setattr(LanguageModel, "forward", watching)
    sampling = SamplingParams(max_tokens=15, temperature=1.0, seed=7, ignore_eos=True)
    requests = [lab.submit(prompt, config, sampling) for prompt in PROMPTS[:together]]
    reported = [event for request in requests for event in request.result().events if isinstance(event, StepTimed)]
    # A step of n sequences is reported to each of them.
    total = {
        name: sum(Fraction(getattr(event, name), event.batch_sequences) for event in reported)
        for name in ("draft_bytes", "draft_flops", "verify_bytes", "verify_flops")
    }
    assert PassCost(total["verify_bytes"], total["verify_flops"]) == watched[lab.target]
    assert PassCost(total["draft_bytes"], total["draft_flops"]) == watched.get("drafting", PassCost())
    assert ("drafting" in watched) == (config.speculative in ("draft", "early_exit"))
    assert any(event.batch_sequences > 1 for event in reported) == (together > 1)


def test_a_mixture_that_cannot_be_counted_has_no_limits():
    assert LanguageModel(random_model("jetmoe"), "m").uncounted
    for counted in (True, False):
        lab = new_engine(LanguageModel(random_model("qwen3_moe"), "experts"), tiny_models.tokenizer())
        assert not lab.target.uncounted
        if not counted:
            lab.target.expert_counter, lab.target.uncounted = None, True
        run = lab.generate("A fox", sampling=SamplingParams(max_tokens=3))
        assert run.reason != "error"
        assert (limits_of(run.started) is not None) == (run.metrics.roofline_fraction is not None) == counted
