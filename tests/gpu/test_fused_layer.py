"""Fused layers give what transformers' own layers give, with the same weights and a fraction of the launches."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import MistralConfig

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

from lab import EngineConfig, SamplingParams
from lab.backends.gpu import fused_layer
from lab.backends.gpu import fused_product as product
from lab.backends.gpu.fused_layer import FusedLayer, fused, merge
from lab.backends.gpu.paged_attention import attend_by_kernels
from lab.backends.interface import KernelError
from lab.kv_cache.attention_metadata import BlockPlan
from lab.kv_cache.storage import KVStorage
from lab.load import new_engine
from lab.models.language_model import LanguageModel
from lab.trace.events import FellBack
from lab.util.device_memory import CAPTURING
from tests import tiny_models
from tests.captured import SMALL

pytestmark = pytest.mark.slow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCK, BLOCKS = 4, 12
FAMILIES = {
    "llama": {},
    "llama, one head dim for all": {"head_dim": 20, "num_key_value_heads": 1, "num_hidden_layers": 1},
    "llama, biases": {"num_hidden_layers": 1, "attention_bias": True, "mlp_bias": True},
    "qwen2": {"num_hidden_layers": 1},  # a second layer is to Llama's what a first is
    "qwen3": {"num_hidden_layers": 1},
    "mistral": {"num_hidden_layers": 1},
}


@pytest.fixture(autouse=True)
def _mistral(monkeypatch):
    llama = tiny_models.CONFIGS["llama"].to_diff_dict()
    sizes = {key: value for key, value in llama.items() if key not in ("model_type", "transformers_version")}
    monkeypatch.setitem(tiny_models.CONFIGS, "mistral", MistralConfig(**sizes, sliding_window=None))


def model_of(family: str, **changes: object) -> LanguageModel:
    shape = {"num_hidden_layers": 2} | FAMILIES.get(family, {}) | changes  # the interpreter is slow for each layer
    random = tiny_models.random_model(family.split(",")[0], **shape)
    with torch.no_grad():
        for parameter in random.parameters():
            if parameter.ndim == 1:  # norms of 1 and biases of 0 could be left out unnoticed
                parameter.add_(0.3 * torch.randn_like(parameter))
    return LanguageModel(random.to(DEVICE).requires_grad_(False), family)


def merged(model: LanguageModel) -> LanguageModel:
    model = fused(model)
    merge(model)
    return model


def storage_for(model: LanguageModel, kv_format: str = "auto") -> KVStorage:
    sizes = {"layers": model.layers, "kv_heads": model.kv_heads, "head_dim": model.head_dim}
    return KVStorage(kv_format, BLOCK * BLOCKS, **sizes, dtype=model.dtype, device=DEVICE)


def step(model: LanguageModel, storage: KVStorage, sequences: list[tuple[list[int], int, int]], seed: int = 0):
    """Logits of random tokens. ``sequences``: their blocks, and the numbers of cached and of new tokens."""
    slots = [
        torch.tensor([blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(old, old + new)])
        for blocks, old, new in sequences
    ]
    height = max(len(blocks) for blocks, _, _ in sequences)
    counts, lengths = [new for *_, new in sequences], [old + new for _, old, new in sequences]
    plan = BlockPlan(
        write=torch.cat(slots).to(DEVICE),
        starts=torch.tensor([0, *counts]).cumsum(0).to(DEVICE),
        lengths=torch.tensor(lengths, device=DEVICE),
        tables=torch.tensor([blocks + [0] * (height - len(blocks)) for blocks, *_ in sequences], device=DEVICE),
        block_size=BLOCK,
        longest_new=max(counts),
        longest=max(lengths),
        storage=storage,
        attend=attend_by_kernels,
    )
    positions = torch.cat([torch.arange(old, old + new) for _, old, new in sequences]).to(DEVICE)
    ids = torch.randint(256, positions.shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    with torch.inference_mode():
        return model.forward(ids, positions, plan, torch.arange(len(ids), device=DEVICE))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers_layers(family):
    """Two prompts in a batch, then a decode and a verification over what the prompts stored."""
    plain = model_of(family)
    ours = merged(plain)
    assert ours is not plain
    prompts = [([3, 7], 0, 5), ([1, 9, 4], 0, 9)]
    then = [([3, 7], 5, 1), ([1, 9, 4], 9, 3)]
    kept = [storage_for(plain) for _ in range(2)]
    for sequences, seed in ((prompts, 0), (then, 1)):
        ours_said, said = (
            step(model, where, sequences, seed) for model, where in zip((ours, plain), kept, strict=True)
        )
        torch.testing.assert_close(ours_said, said, rtol=1e-4, atol=1e-4 * said.abs().max().item())


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_layer_takes_six_launches(monkeypatch, family):
    """In bfloat16: four products, rotate (which stores) and attend. One more where keys and values are quantised. For
    many rows torch's products fuse nothing but the addition to the residual."""
    plain = model_of(family)
    plain.model.bfloat16()
    ours, ran = merged(plain), []

    def record(module, name, result=lambda x: None):
        monkeypatch.setattr(module, name, lambda x, *args, **options: (ran.append(name), result(x))[1])

    def attend(layer_idx, query, *args, stored=False):
        ran.extend(["attend"] if stored else ["store", "attend"])
        return torch.empty_like(query)

    record(product, "rms_norm", torch.empty_like)
    record(product, "swiglu", lambda x: x.new_empty(len(x), x.shape[1] // 2))
    record(product, "_launch")
    record(fused_layer, "rotate")
    monkeypatch.setattr(fused_layer, "attend_by_kernels", attend)

    def launched(rows: int, kv_format: str = "auto") -> list[str]:
        x = torch.randn(1, rows, 48, dtype=torch.bfloat16, device=DEVICE)
        angles = plain.model.model.rotary_emb(x, torch.arange(rows, device=DEVICE)[None])
        plan = BlockPlan(*[None] * 4, 1, 1, 1, storage_for(plain, kv_format), attend)
        ran.clear()
        with torch.no_grad():
            ours.model.model.layers[0](x, position_embeddings=angles, plan=plan)
        return ran.copy()

    for rows in (1, product.MOST_ROWS):
        assert launched(rows) == ["_launch", "rotate", "attend", "_launch", "_launch", "_launch"]
    for quantised in ("int8", "int4"):
        assert launched(1, quantised)[1:4] == ["rotate", "store", "attend"]
    assert launched(product.MOST_ROWS + 1) == ["rms_norm", "rotate", "attend", "rms_norm", "swiglu"]


def test_the_final_norm_takes_one_launch(monkeypatch):
    """Also of the layers that an early exit computes. A kernel that fails is not tried again."""
    plain = model_of("llama")
    ours, normed = merged(plain), []

    def kernel(x, *args):
        normed.append(len(x))
        return rms_norm(x, *args)

    rms_norm = fused_layer.rms_norm
    monkeypatch.setattr(fused_layer, "rms_norm", kernel)
    for model in (ours, ours.first(1)):
        step(model, storage_for(plain), [([3, 7], 0, 5)])
    assert normed == [5, 5]
    x = torch.randn(1, 3, 48, device=DEVICE)
    said = plain.model.model.norm(x)
    torch.testing.assert_close(ours.model.model.norm(x), said)

    def failing(x, *args):
        raise RuntimeError("no such GPU")

    monkeypatch.setattr(fused_layer, "rms_norm", failing)
    with pytest.raises(KernelError, match="no such GPU"):
        ours.model.model.norm(x)
    assert torch.equal(ours.model.model.norm(x), said)


def test_in_bfloat16_fused_layers_are_as_exact_as_transformers_layers():
    """A prompt, a decode after it and a small verification, all compared with float32. In the median of the rows: how
    far off a single one is depends on a few roundings (on an H100, 2.6 times as far in one, and less in the others)."""
    exact, plain = (model_of("qwen3") for _ in range(2))
    plain.model.load_state_dict(exact.model.state_dict())
    plain.model.bfloat16()
    exact.model.load_state_dict({name: weight.float() for name, weight in plain.model.state_dict().items()})
    ours = merged(plain)
    models, steps = (exact, plain, ours), ([([3, 7], 0, 4)], [([3, 7], 4, 1)], [([3, 7], 5, 3)])
    kept = [storage_for(model) for model in models]
    ratios = []
    for seed, sequences in enumerate(steps):
        said = [step(model, where, sequences, seed) for model, where in zip(models, kept, strict=True)]
        by_transformers, by_us = ((logits - said[0]).square().mean(-1).sqrt() for logits in said[1:])
        ratios.append(by_us / by_transformers)
    assert 0 < torch.cat(ratios).median() < 2


# -- weights -----------------------------------------------------------------------------------


def test_there_is_one_copy_of_the_weights():
    plain = model_of("qwen2", num_hidden_layers=2)
    read, numbers, layers = plain.weight_bytes, copy.deepcopy(plain.model.state_dict()), plain.layer_weights
    ours = merged(plain)
    assert (ours.weight_bytes, ours.layer_weights) == (read, layers)
    layer = plain.model.model.layers[1]
    for together in (["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]):
        parent = layer.self_attn if "q_proj" in together else layer.mlp
        whole = {getattr(parent, name).weight.untyped_storage().data_ptr() for name in together}
        assert len(whole) == 1
    assert all(torch.equal(number, numbers[name]) for name, number in plain.model.state_dict().items())


def assert_alike(ours: LanguageModel, plain: LanguageModel) -> None:
    found, expected = (step(model, storage_for(plain), [([2], 0, 4)]) for model in (ours, plain))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_changed_weights_take_effect():
    """Changed in place, at once; replaced by others, when they are merged again. Merging twice copies nothing."""
    plain = model_of("llama")
    ours, prompt = merged(plain), [([2], 0, 4)]
    before = step(ours, storage_for(plain), prompt)
    where = plain.identity()
    merge(ours)
    assert plain.identity() == where
    attention = plain.model.model.layers[0].self_attn
    with torch.no_grad():
        attention.k_proj.weight.mul_(1.5)
    assert_alike(ours, plain)
    assert not torch.allclose(step(ours, storage_for(plain), prompt), before, atol=1e-3)
    attention.v_proj.weight = torch.nn.Parameter(-attention.v_proj.weight)
    merge(ours)
    assert_alike(ours, plain)


def test_merging_changed_weights_is_not_taken_for_another_change():
    """It moves them."""
    model = model_of("llama")
    lab = new_engine(model, tiny_models.tokenizer(), kernels="triton", kv_bytes=10**8)
    sampling = SamplingParams(max_tokens=2, ignore_eos=True)
    lab.generate("A", None, sampling)
    attention = model.model.model.layers[0].self_attn
    attention.v_proj.weight = torch.nn.Parameter(-attention.v_proj.weight, requires_grad=False)
    lab.generate("A", None, sampling)
    (pool,) = lab._cores
    lab.generate("A", None, sampling)
    assert list(lab._cores) == [pool]


def test_the_memory_of_merged_matrices_is_given_back_to_a_gpu_and_not_during_a_capture(monkeypatch):
    """Once for all layers, and only if something was merged."""
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(CAPTURING.locked()))
    ours = fused(model_of("llama"))
    ours.device = torch.device("cuda")
    for _ in range(2):
        merge(ours)
    assert emptied == [True]
    assert not CAPTURING.locked()


def test_an_adapter_is_not_bypassed_and_models_with_other_layers_are_left_alone():
    """A layer with a matrix that has become another kind of module is computed as by transformers."""
    plain = model_of("llama")
    ours = merged(plain)

    class Adapted(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    plain.model.model.layers[1].mlp.up_proj.__class__ = Adapted
    merge(ours)
    assert_alike(ours, plain)
    gpt2 = LanguageModel(tiny_models.random_model("gpt2"), "gpt2")
    assert fused(gpt2) is gpt2


# -- in the engine -----------------------------------------------------------------------------

SAMPLING = SamplingParams(max_tokens=4, ignore_eos=True)


def engine(**settings: object):
    return tiny_models.engine("qwen3", "good", shape=SMALL, kernels="triton", **settings)


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """How many layers were computed by fused kernels."""
    computed, compute = [0], FusedLayer._fused

    def counted(*args):
        computed[0] += 1
        return compute(*args)

    monkeypatch.setattr(FusedLayer, "_fused", counted)
    return computed


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests of the kernels themselves do it there")
@pytest.mark.parametrize("config", [EngineConfig(speculative="early_exit"), EngineConfig(speculative="draft")])
def test_the_engine_gives_the_same_tokens_with_fused_layers(calls, config):
    """An early exit uses them, too; runs on the reference or without a cache do not."""
    lab = engine()
    run = lab.generate("A king", config, SAMPLING)
    assert calls[0] > 0
    computed = calls[0]
    assert run.token_ids == lab.generate("A king", EngineConfig(kernels="reference"), SAMPLING).token_ids
    assert run.token_ids == lab.generate("A king", EngineConfig(kv_cache=False), SAMPLING).token_ids
    assert run.token_ids == engine(fuse_layers=False).generate("A king", config, SAMPLING).token_ids
    assert calls[0] == computed


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests of the kernels themselves do it there")
@pytest.mark.parametrize(("module", "kernel"), [(product, "swiglu"), (fused_layer, "rms_norm")])
def test_a_failing_kernel_between_matrices_or_after_them_is_replaced_by_the_reference(monkeypatch, module, kernel):
    """As with an attention kernel, the reference goes on, and the run says why."""
    lab = engine()
    expected = lab.generate("A king", EngineConfig(kernels="reference"), SAMPLING).token_ids
    launch, ran = getattr(module, kernel), []

    def fails_later(*numbers):
        ran.append(numbers)
        if len(ran) > 3:
            raise RuntimeError("out of registers\nand much more")
        return launch(*numbers)

    monkeypatch.setattr(module, kernel, fails_later)
    run = lab.generate("A king", EngineConfig(), SAMPLING)
    assert run.token_ids == expected
    (event,) = [event for event in run.events if isinstance(event, FellBack)]
    assert (event.part, event.reason) == ("kernel", "RuntimeError: out of registers")
