"""Layers with sliding windows, sinks, a softcap, latents or an attention of their own decode as in transformers, far
past their windows."""

from __future__ import annotations

import copy
import dataclasses
import itertools

import pytest
import torch
from torch import nn

from lab import ConfigError, EngineConfig, SamplingParams
from lab.backends.torch.torch_backend import TorchBackend
from lab.engine.pass_cost import PassCostModel, Span
from lab.kv_cache import attention
from lab.kv_cache.storage import FORMATS
from lab.load import new_engine
from lab.measure.score import divergence, log_probabilities
from lab.memory.capacity import Deployment, Lengths
from lab.memory.catalogue import GiB
from lab.models.language_model import LanguageModel
from lab.models.model_shape import ModelShape
from lab.models.numerical_check import refuse_disagreement
from lab.trace.events import Admitted, BlockAllocated, BlockFreed, Preempted, StepTimed
from tests import tiny_models
from tests.models.test_numerical_check import random_model

WINDOW = 9
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
LATENT = {
    "sliding_window": None,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "num_key_value_heads": 4,
}
EXPERTS = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 80,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "rope_theta": 10000.0,
}
LATENTS = {
    "deepseek_v2": LATENT | {"q_lora_rank": None},
    "deepseek_v3": LATENT | EXPERTS | {"rope_parameters": YARN},
    "glm4_moe_lite": LATENT | EXPERTS,
    "minicpm3": LATENT,
    "youtu": LATENT,
    "axk1": LATENT | EXPERTS,
}
"""Multi-head latent attention (MLA)."""
GEMMA_3N = {
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
    "num_kv_shared_layers": 3,
    "head_dim": 16,
    "vocab_size_per_layer_input": tiny_models.VOCABULARY,
    "hidden_size_per_layer_input": 16,
    "laurel_rank": 8,
    "intermediate_size": [96] * 5,
    "activation_sparsity_pattern": [0.0] * 5,
    "pad_token_id": 0,
}
"""Of which the last layers share the keys and values of others."""
PLAIN = {"sliding_window": None, "tie_word_embeddings": False}
GEMMA_4 = {
    "head_dim": 16,
    "global_head_dim": 32,
    "vocab_size_per_layer_input": tiny_models.VOCABULARY,
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 0,
}
INDEXED = LATENT | EXPERTS | {"index_topk": 6, "index_head_dim": 16, "index_n_heads": 16}
SPARSE = {"deepseek_v32": INDEXED, "glm_moe_dsa": INDEXED}
"""DeepSeek sparse attention (DSA), with heads enough that no two positions score alike."""
DECODER_SIZES = {"decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_dim": 96, "init_std": 0.3}
OWN = {
    "bart": PLAIN | DECODER_SIZES | {"forced_eos_token_id": None},  # counts its positions
    "bloom": PLAIN,
    "mpt": PLAIN,
    "falcon": PLAIN | {"new_decoder_architecture": True, "num_kv_heads": 2},
    "llama4_text": PLAIN | {"attention_chunk_size": WINDOW, "head_dim": 16},
    "diffllama": PLAIN,
    "jetmoe": PLAIN,
    "gemma4_text": GEMMA_4,
    "mimo_v2_flash": {"head_dim": 16, "v_head_dim": 12},
    **SPARSE,
}
"""Models that keep their own attention (``lab.models.own_attention``)."""
KINDS = {
    "mistral": {},
    "ministral": {"layer_types": MIXED, "head_dim": 16},
    "starcoder2": {},
    "phi3": {},
    "qwen2": {"use_sliding_window": True, "layer_types": MIXED},
    "gemma2": {"layer_types": MIXED, "head_dim": 16, "attn_logit_softcapping": 2.0},
    "gemma3_text": {"layer_types": MIXED, "head_dim": 16},
    "cohere2": {"layer_types": MIXED},
    "olmo3": {"layer_types": MIXED},
    "exaone4": {"layer_types": MIXED},
    "gpt_oss": {"layer_types": MIXED, "head_dim": 16},
    "gemma3n_text": GEMMA_3N,
    **LATENTS,
    **OWN,
}
CONFIGS = [
    EngineConfig(paged=True, block_size=4, enable_prefix_caching=True, speculative="early_exit"),
    EngineConfig(speculative="draft"),
]
TURNS = [EngineConfig(kv_cache=False), EngineConfig(speculative="ngram", prefill_attention="math")]
"""Of these, every second kind gets the same."""


def windowed(kind: str) -> LanguageModel:
    # With the embeddings as its output layer, a random Gemma writes one token for ever.
    model = random_model(kind, **{"sliding_window": WINDOW, "tie_word_embeddings": False} | KINDS[kind])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.copy_(torch.linspace(-3, 6, len(parameter)))
    return LanguageModel(model, kind)


@pytest.fixture(params=KINDS)
def lab(request: pytest.FixtureRequest):
    model = windowed(request.param)
    refuse_disagreement(model)
    assert model.other_attention
    draft = LanguageModel(tiny_models.perturbed(model.model, 0.02), "draft")
    return new_engine(model, tiny_models.tokenizer(), draft, max_num_batched_tokens=33)


@pytest.mark.slow
def test_greedy_tokens_equal_those_of_generate(lab) -> None:
    """Several texts at once, one of them many windows long and read in chunks; then it again, whose beginning is found
    where prefixes are kept."""
    prompts = ("Once upon a time there was a cat, and the cat was old. " * 3, "A")
    wanted: dict[str, list[int]] = {}
    for config in [*CONFIGS, TURNS[list(KINDS).index(lab.target.name) % 2]]:
        sampling = SamplingParams(max_tokens=20 if config.kv_cache else 12, ignore_eos=True)
        asked = prompts + prompts[: config.enable_prefix_caching]
        for run in [it.result() for it in [lab.submit(prompt, config, sampling) for prompt in asked]]:
            if run.prompt not in wanted:
                wanted[run.prompt] = tiny_models.continuation(lab, run.prompt_token_ids, 20)
            assert run.token_ids == wanted[run.prompt][: sampling.max_tokens], config
        assert lab.occupancy().live == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
def test_blocks_are_freed_when_they_slid_out_and_prefixes_found_beyond(kind: str) -> None:
    """However long the text, a group with a window keeps three blocks; a next turn finds what it needs; preempted
    requests write what they would alone."""
    model = windowed(kind)
    lab = new_engine(model, tiny_models.tokenizer())
    config = EngineConfig(paged=True, block_size=4, enable_prefix_caching=True)
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    run = lab.generate("Once upon a time there was a cat, and the cat was old", config, sampling)
    windows = run.started.group_windows
    assert windows == ((9,) if kind == "mistral" else (None, 9, 9))
    held: dict[int, set[int]] = {group: set() for group in range(len(windows))}
    most = dict.fromkeys(held, 0)
    for event in run.events:
        if isinstance(event, BlockAllocated):
            held[event.group].add(event.block)
        elif isinstance(event, BlockFreed):
            held[event.group].remove(event.block)
            assert not event.slid_out or windows[event.group]
        elif isinstance(event, StepTimed) and event.step > 1:
            most = {group: max(most[group], len(blocks)) for group, blocks in held.items()}
            kept = sum(map(len, held.values())) * 4 * run.started.block_bytes // 4
            assert event.kv_used_bytes <= kept == event.kv_reserved_bytes
    longest = len(run.prompt_token_ids) + 60
    for group, window in enumerate(windows):
        assert most[group] == (3 if window else -(-(longest - 1) // 4)), (group, most)

    again = [*run.prompt_token_ids, *run.token_ids, 5, 6]
    turn = lab.generate(again, config, SamplingParams(max_tokens=20, ignore_eos=True))
    assert turn.metrics.cached_prompt_tokens > 100
    assert turn.token_ids == tiny_models.continuation(lab, again, 20)

    small = dataclasses.replace(config, num_blocks=len(windows) * -(-longest // 4))  # one text fits
    prompts = [run.prompt, "A", "Once", "B"]
    runs = [it.result() for it in [lab.submit(prompt, small, sampling) for prompt in prompts]]
    preempted = any(isinstance(event, Preempted) for it in runs for event in it.events)
    assert preempted == (None in windows)  # one text's blocks hold any number of them where all layers have windows
    for it in runs:
        assert it.token_ids == tiny_models.continuation(lab, it.prompt_token_ids, 60)
    assert lab.occupancy().live == 0


def test_a_layer_that_leaves_out_its_window_sinks_or_softcap_is_refused(monkeypatch) -> None:
    """The trial's texts are longer than the windows then are."""
    whole = attention._attend
    for kind, changed in (("mistral", (None, None, None)), ("gemma2", (3, None, None)), ("gpt_oss", (3, None, None))):
        with monkeypatch.context() as patch:
            patch.setattr(attention, "_attend", lambda *given, changed=changed: whole(*given[:5], *changed))
            with pytest.raises(Exception, match="% off"):
                refuse_disagreement(windowed(kind))


def test_work_within_a_window_is_counted() -> None:
    """Against a sum over tokens and layers."""
    model = windowed("gemma3_text")
    width = model.kv_heads * model.query_groups * model.head_dim
    for start, count in itertools.product((0, 3, 9, 30), (1, 4, 20)):
        stop = start + count
        seen = sum(min(p + 1, window or stop) for p in range(start, stop) for window in (WINDOW, None, WINDOW))
        flops = PassCostModel(TorchBackend(model), None).of([Span(start, stop, 0)]).flops
        assert flops - 2 * count * model.layer_weights == 4 * width * seen


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_a_slot_holds_the_latent_and_the_rotary_key_and_no_value(kv_dtype) -> None:
    """As many bytes as the Memory page counts, whatever the format."""
    model, numbers = windowed("deepseek_v3"), LATENT["kv_lora_rank"] + LATENT["qk_rope_head_dim"]
    lab, config = new_engine(model, tiny_models.tokenizer()), EngineConfig(kv_dtype=kv_dtype, speculative="ngram")
    run = lab.generate("Once upon", config, SamplingParams(max_tokens=8, ignore_eos=True))
    shape = ModelShape.from_config(model.model.config)
    counted = Deployment(
        shape=shape, parameters=9, weights="float32", memory=GiB, lengths=Lengths(1, 1), kv_dtype=kv_dtype
    )
    assert lab.token_bytes(config) == counted.token_bytes == 3 * sum(counted.vector_bytes)
    bytes_each = {"auto": 4, "int4": 0.5, "int4_per_token_head": 0.5, "turboquant_3bit_nc": 3 / 8}.get(kv_dtype, 1)
    assert counted.vector_bytes.numbers == numbers * bytes_each
    assert run.metrics.kv_used_bytes == counted.token_bytes * (len(run.prompt_token_ids) + 7)
    if kv_dtype == "auto":
        assert run.token_ids == tiny_models.continuation(lab, run.prompt_token_ids, 8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", OWN)
def test_models_with_an_attention_of_their_own_read_quantised_slots(kind: str) -> None:
    """Whatever the blocks and drafts, the same tokens, and distributions near the model's, in INT8 nearer than in INT4.
    INT4 in float64, which not every mixture knows: in float32 the last digit decides now and then about a step."""
    model = windowed(kind)
    single = kind in ("mimo_v2_flash", *SPARSE)
    if not single:
        model.model.double()
    lab = new_engine(model, tiny_models.tokenizer(), LanguageModel(tiny_models.perturbed(model.model, 0.02), "draft"))
    sampling, prompt = SamplingParams(max_tokens=24, ignore_eos=True), "Once upon a time there was a cat"
    form = {"kv_dtype": "int8" if single else "int4"}
    paged = EngineConfig(**form, paged=True, block_size=4, enable_prefix_caching=True, speculative="draft")
    runs = [lab.generate(prompt, config, sampling) for config in (EngineConfig(**form), paged, paged)]
    assert runs[0].token_ids == runs[1].token_ids == runs[2].token_ids
    assert runs[2].metrics.cached_prompt_tokens > 20
    ids = list(range(60, 120))
    whole, int8, int4 = (
        torch.cat([*log_probabilities(lab, ids, EngineConfig(kv_dtype=it))]) for it in ("auto", "int8", "int4")
    )
    # The median, because in a mixture a token near a tie may go to another expert.
    assert 0 < divergence(whole, int8).median() < 0.02
    assert divergence(whole, int8).median() < divergence(whole, int4).median()


def test_layers_that_share_keys_and_values_store_none() -> None:
    model = windowed("gemma3n_text")
    own = 2 * 2 * model.kv_heads * model.head_dim * 4
    lab = new_engine(model, tiny_models.tokenizer())
    run = lab.generate("Once upon", EngineConfig(), SamplingParams(max_tokens=8, ignore_eos=True))
    assert run.metrics.kv_used_bytes == own * (len(run.prompt_token_ids) + 7)
    assert sum(ModelShape.from_config(model.model.config).kv_layers.values()) == 2


def test_latents_go_through_a_matrix_that_does_not_show_its_weights() -> None:
    """Such as a quantised one."""
    model = windowed("deepseek_v3")
    for module in model.model.modules():
        if hasattr(module, "kv_b_proj"):
            module.kv_b_proj.__class__ = type("Hidden", (nn.Linear,), {})
    lab = new_engine(model, tiny_models.tokenizer())
    run = lab.generate("Once upon", EngineConfig(), SamplingParams(max_tokens=8, ignore_eos=True))
    assert run.token_ids == tiny_models.continuation(lab, run.prompt_token_ids, 8)


@pytest.mark.parametrize(("kind", "reason"), [("mistral", "sliding-window"), ("minicpm3", "not of minicpm3")])
def test_kernels_for_full_attention_are_refused_and_not_taken(kind, reason) -> None:
    model = windowed(kind)
    assert not new_engine(copy.copy(model), tiny_models.tokenizer()).computes_by_kernels
    with pytest.raises(ConfigError, match=reason):
        new_engine(model, tiny_models.tokenizer(), kernels="c")


def test_a_continuation_that_joins_late_shares_nothing_that_slid_out() -> None:
    """It waits for a place while the other continuation of its prompt goes on, past the window."""
    model = windowed("gemma2")
    lab = new_engine(model, tiny_models.tokenizer(), max_num_seqs=2)
    config = EngineConfig(paged=True, block_size=4)
    first = lab.submit("A", config, SamplingParams(max_tokens=30, ignore_eos=True))
    begin = lab.prepare("Once upon a time", config, SamplingParams(max_tokens=60, ignore_eos=True), continuations=2)
    runs = [request.result() for request in [first, *begin()]]
    joined = next(event for event in runs[2].events if isinstance(event, Admitted))
    assert joined.running == 2  # the other continuation is under way
    assert runs[2].token_ids == runs[1].token_ids == tiny_models.continuation(lab, runs[1].prompt_token_ids, 60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "skipped", "exempt"), [("olmo3", "sliding_window", 2), ("mistral", "0 2", 2), ("llama", "1", 1)]
)
def test_exempt_layers_keep_their_dtype_beside_quantised_ones(kind: str, skipped: str, exempt: int) -> None:
    """Whatever the blocks, drafts, prefixes and preemption, the same tokens; those of the model where all are exempt.
    In float64: in float32 the last digit decides now and then about a step of INT4."""
    model = (
        windowed(kind) if kind in KINDS else LanguageModel(tiny_models.random_model(kind, num_hidden_layers=3), kind)
    )
    model.model.double()
    draft = LanguageModel(tiny_models.perturbed(model.model, 0.02), "draft")
    lab = new_engine(model, tiny_models.tokenizer(), draft)
    whole, part = (lab.token_bytes(EngineConfig(kv_dtype=form)) for form in ("auto", "int4"))
    config = EngineConfig(kv_dtype="int4", kv_cache_dtype_skip_layers=skipped)
    assert lab.token_bytes(config) == part + exempt * (whole - part) // 3
    paged = dataclasses.replace(config, paged=True, block_size=4, enable_prefix_caching=True, speculative="draft")
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    prompts = ("Once upon a time there was a cat, and the cat was old", "A mouse")

    def written(config: EngineConfig, *prompts: str) -> list[list[int]]:
        return [it.result().token_ids for it in [lab.submit(prompt, config, sampling) for prompt in prompts]]

    groups = lab.generate("B", paged, SamplingParams(max_tokens=1)).started.group_windows
    scarce = dataclasses.replace(paged, num_blocks=21 * max(1, len(groups)))  # the longer text fits, and little else
    wanted = written(config, *prompts)
    assert written(scarce, *prompts) == written(scarce, *prompts) == wanted
    every = dataclasses.replace(paged, kv_cache_dtype_skip_layers="0 1 2")
    assert written(every, *prompts) == written(EngineConfig(), *prompts)
    assert lab.occupancy().live == 0
    with pytest.raises(ConfigError, match="names layer 3, and the model has 3"):
        lab.generate("A", dataclasses.replace(config, kv_cache_dtype_skip_layers="3"), sampling)
